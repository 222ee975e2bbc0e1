"""`dtype=` and `memory_format=`: bit for bit what torch's `.to()` makes of the default batch, written at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import folders
import forebay as fb
from forebay import transforms as T
from forebay._arrays import torch_arrays
from forebay.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = ("float32", "float16", "bfloat16")

TRANSFORMS: dict[str, list[Any]] = {
    "training": [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)],
    "evaluation": [T.Resize(30), T.CenterCrop((21, 27)), T.ToTensor(), T.Normalize(MEAN, STD)],
    "recommended": [T.ToImage(), T.RandomResizedCrop(17), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)],
    "erased": [T.Resize((19, 23)), T.ToTensor(), T.Normalize(MEAN, STD), T.RandomErasing(1.0, value="random")],
    "not fused": [T.Resize((20, 20)), T.ToTensor(), T.RandomGrayscale(0.5), T.CenterCrop(13), T.RandomVerticalFlip()],
    "grey": [T.Resize((20, 21)), T.Grayscale(), T.RandomHorizontalFlip(), T.ToTensor()],
    # Results beyond the range of float16, and below its smallest normal number.
    "extreme": [T.Resize((16, 16)), T.ToTensor(), T.Normalize((0.5, 0.0, -1e6), (1e-6, 1e6, 1.0))],
    "no fixed shape": [T.Resize(20), T.ToTensor()],
    "python": [T.Resize((20, 20)), T.ToTensor(), T.Lambda(lambda tensor: tensor * 3.3 - 1)],
    "python, strided": [T.Resize((20, 20)), T.Lambda(lambda picture: torch.rand(3, 9, 7).transpose(1, 2) * 0 + 0.1)],
    "bytes": [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.PILToTensor()],
    "bytes, python": [T.Resize((20, 20)), T.PILToTensor(), T.Lambda(lambda tensor: 255 - tensor)],
}


def batches(folder: Path, steps: list[Any], **options: Any) -> list[Any]:
    options = {"batch_size": 7, "shuffle": True, "seed": 3} | options
    with fb.DataLoader(fb.ImageFolder(folder, transform=T.Compose(steps)), **options) as loader:
        return [images for images, _ in loader]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("memory_format", [None, "contiguous", "channels_last"])
def test_batches_are_what_torch_makes_of_the_default_ones(folder: Path, name: str, memory_format: str | None) -> None:
    default = batches(folder, TRANSFORMS[name])
    is_bytes = default[0].dtype == torch.uint8
    for dtype in (None, *FLOATS, *(["uint8"] if is_bytes else [])):
        given = batches(folder, TRANSFORMS[name], dtype=dtype, memory_format=memory_format)
        torch_format = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        assert len(given) == len(default)
        for ours, plain in zip(given, default, strict=True):
            theirs = plain.to(dtype=plain.dtype if dtype is None else getattr(torch, dtype), memory_format=torch_format)
            assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
            assert ours.is_contiguous(memory_format=torch_format)
            # As bits: -0.0 is not 0.0, and infinities count.
            assert torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def test_what_is_not_a_number_stays_so(folder: Path) -> None:
    def spoil(tensor: Any) -> Any:
        tensor[0, 0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e-40])
        return tensor

    for dtype in FLOATS:
        images = batches(folder, [T.Resize((8, 8)), T.ToTensor(), T.Lambda(spoil)], dtype=dtype)[0]
        first = images[:, 0, 0, :4].float()
        assert first[:, 0].isnan().all() and (first[:, 1] == float("inf")).all() and (first[:, 2] < -1e38).all()
        assert (first[:, 3].abs() < 1e-37).all()


@pytest.mark.parametrize("given", ["float16", "half", torch.float16, numpy.float16, numpy.dtype("float16")], ids=repr)
def test_types_go_by_their_names(folder: Path, given: Any) -> None:
    images = batches(folder, TRANSFORMS["training"], dtype=given, memory_format=torch.channels_last)[0]
    assert images.dtype == torch.float16 and images.is_contiguous(memory_format=torch.channels_last)


def test_pictures_become_bytes_where_bytes_are_asked_for(folder: Path) -> None:
    as_tensors = batches(folder, [T.RandomResizedCrop(24), T.PILToTensor()])
    as_pictures = batches(folder, [T.RandomResizedCrop(24)], dtype="uint8")
    assert len(as_tensors) == len(as_pictures) and all(map(torch.equal, as_tensors, as_pictures))
    assert as_pictures[0].dtype == torch.uint8 and as_pictures[0].shape == (7, 3, 24, 24)


def test_normalising_bytes_later_gives_the_same_pictures(folder: Path) -> None:
    """What the hint of the refusal says."""
    floats = batches(folder, [T.RandomResizedCrop(24), T.ToTensor(), T.Normalize(MEAN, STD)])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    for images, expected in zip(batches(folder, [T.RandomResizedCrop(24)], dtype="uint8"), floats, strict=True):
        assert torch.allclose((images.float() / 255 - mean) / std, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"dtype": "uint8"}, 'dtype: expected transforms that end in uint8 for "uint8", got float32', "on the GPU"),
        ({"dtype": "float64"}, 'dtype: expected one of "float32", "float16", "bfloat16", "uint8", or torch', None),
        ({"dtype": torch.int64}, "or torch's own, got torch.int64", None),
        ({"memory_format": "nhwc"}, 'memory_format: expected one of "contiguous", "channels_last", or', None),
        ({"memory_format": torch.channels_last_3d}, "got torch.channels_last_3d", None),
        ({"dtype": "bfloat16", "output": "numpy"}, "dtype: expected one that NumPy has", 'output="torch"'),
    ],
    ids=str,
)
def test_what_does_not_go_is_refused(folder: Path, options: dict[str, Any], message: str, hint: str | None) -> None:
    dataset = fb.ImageFolder(folder, transform=T.Compose(TRANSFORMS["training"]))
    with pytest.raises(ConfigError) as raised:
        fb.DataLoader(dataset, **options)
    assert message in str(raised.value)
    assert hint is None or hint in raised.value.hint


def test_pictures_have_no_other_type(folder: Path) -> None:
    with pytest.raises(ConfigError, match="expected transforms that end in tensors, got PIL images") as raised:
        fb.DataLoader(fb.ImageFolder(folder, transform=T.CenterCrop(8)), dtype="float16", collate_fn=list)
    assert "PILToTensor" in raised.value.hint


@pytest.mark.parametrize(
    ("result", "options", "message"),
    [
        (lambda tensor: {"image": tensor}, {"dtype": "float16"}, "expected transforms that give tensors, got dict"),
        (lambda tensor: tensor, {"dtype": "uint8"}, 'expected transforms that end in uint8 for "uint8", got float32'),
        (lambda tensor: tensor.double(), {"dtype": "uint8"}, 'in uint8 for "uint8", got float64'),
        (lambda tensor: tensor[0, 0], {"memory_format": "channels_last"}, "got a tensor of (7, 8)"),
    ],
    ids=["dict", "float32", "float64", "vector"],
)
def test_what_only_samples_tell_is_refused_by_the_batch(
    folder: Path, result: Callable[[Any], Any], options: dict[str, Any], message: str
) -> None:
    steps = [T.Resize((8, 8)), T.ToTensor(), T.Lambda(result)]
    with pytest.raises(ConfigError) as raised:
        batches(folder, steps, **options)
    assert message in str(raised.value) and raised.value.stage == "assemble"


def test_collate_fn_gets_samples_of_the_type_asked_for(folder: Path) -> None:
    for name in ("training", "python"):
        rows = batches(folder, TRANSFORMS[name], dtype="bfloat16", collate_fn=lambda rows: (rows, None))[0]
        assert all(image.dtype == torch.bfloat16 for image, _ in rows)
    shapes = {"collate_fn": lambda rows: ([image for image, _ in rows], None), "memory_format": "channels_last"}
    for name in ("training", "python", "no fixed shape"):
        images = batches(folder, TRANSFORMS[name], **shapes)[0]
        assert all(image.permute(1, 2, 0).is_contiguous() and image.shape[0] == 3 for image in images)


def test_samples_of_many_shapes_have_the_type_too(folder: Path) -> None:
    folders.picture(99, width=50, height=60).save(sorted(folder.rglob("*.jpg"))[1])
    options = {"batch_size": 24, "shuffle": False, "collate_fn": lambda rows: ([image for image, _ in rows], None)}
    for steps in ([T.Resize(20), T.ToTensor()], [T.Resize(20), T.ToTensor(), T.Lambda(lambda tensor: tensor + 0.1)]):
        for output in ("torch", "numpy"):
            default = batches(folder, steps, output=output, **options)[0]
            assert len({tuple(image.shape) for image in default}) == 2
            form = {"dtype": "float16", "memory_format": "channels_last"}
            given = batches(folder, steps, output=output, **form, **options)[0]
            for ours, plain in zip(map(torch.as_tensor, given), map(torch.as_tensor, default), strict=True):
                assert torch.equal(ours, plain.half()) and ours.permute(1, 2, 0).is_contiguous()


def test_samples_without_a_batch_have_the_type_too(folder: Path) -> None:
    loader = fb.DataLoader(
        fb.ImageFolder(folder, transform=T.Compose(TRANSFORMS["training"])), batch_size=None, dtype="float16"
    )
    image, label = next(iter(loader))
    assert image.dtype == torch.float16 and image.shape == (3, 24, 24) and label == 0


@pytest.mark.parametrize("name", ["training", "python", "no fixed shape"])
def test_numpy_has_the_same_options(folder: Path, name: str) -> None:
    default = batches(folder, TRANSFORMS[name], output="numpy")
    given = batches(folder, TRANSFORMS[name], output="numpy", dtype="float16", memory_format="channels_last")
    for ours, plain in zip(given, default, strict=True):
        assert ours.dtype == numpy.float16 and ours.transpose(0, 2, 3, 1).flags.c_contiguous
        assert numpy.array_equal(ours, plain.astype(numpy.float16))


def test_memory_is_budgeted_for_what_is_written(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, transform=T.Compose(TRANSFORMS["training"]))
    sizes = {
        dtype: fb.DataLoader(dataset, batch_size=7, dtype=dtype)._engine.batch_bytes for dtype in ("float32", "float16")
    }
    assert sizes == {"float32": 7 * 3 * 24 * 24 * 4, "float16": 7 * 3 * 24 * 24 * 2}
    # Enough for a batch of halves, not for one of floats.
    fb.DataLoader(dataset, batch_size=7, dtype="float16", memory_budget=7 * 3 * 24 * 24 * 2)
    with pytest.raises(ConfigError, match="memory_budget"):
        fb.DataLoader(dataset, batch_size=7, memory_budget=7 * 3 * 24 * 24 * 2)


def test_lent_memory_is_written_in_the_same_form(folder: Path) -> None:
    """As for `pin_memory` and `device`, whose batches are views of memory that torch owns."""
    default = batches(folder, TRANSFORMS["training"])[0]
    dataset = fb.ImageFolder(folder, transform=T.Compose(TRANSFORMS["training"]))
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3, "dtype": "bfloat16"}
    for memory_format in (torch.contiguous_format, torch.channels_last):
        with fb.DataLoader(dataset, memory_format=memory_format, **options) as loader:
            torch_arrays.lend(loader._engine)
            run = loader._engine.begin()
            batch = run.next(60.0)
            assert batch and batch.content["image"].lender is not None
            images = torch_arrays.tensor(batch.content["image"])
            assert images.data_ptr() == batch.content["image"].lender.data_ptr()
            assert images.is_contiguous(memory_format=memory_format) and torch.equal(images, default.bfloat16())
            run.close()


def test_resume_does_not_depend_on_the_type(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, transform=T.Compose(TRANSFORMS["training"]))
    default = fb.DataLoader(dataset, batch_size=5, shuffle=True)
    whole = [images for images, _ in default]
    first = fb.DataLoader(dataset, batch_size=5, shuffle=True, dtype="float16", memory_format="channels_last")
    iteration = iter(first)
    for expected in whole[:2]:
        assert torch.equal(next(iteration)[0], expected.half())
    # A state is of the order alone: it may be loaded with another type.
    second = fb.DataLoader(dataset, batch_size=5, shuffle=True, dtype="bfloat16")
    second.load_state_dict(first.state_dict())
    rest = [images for images, _ in second]
    assert len(rest) == len(whole) - 2
    assert all(torch.equal(ours, expected.bfloat16()) for ours, expected in zip(rest, whole[2:], strict=True))


def test_replaced_and_skipped_samples_keep_the_batch_in_order(folder: Path) -> None:
    folders.truncate(sorted(folder.rglob("*.jpg"))[3])
    for on_error in ("replace", "skip"):
        options = {"on_error": on_error, "batch_size": 24, "shuffle": False}
        with pytest.warns(RuntimeWarning):
            default = batches(folder, TRANSFORMS["evaluation"], **options)[0]
            given = batches(folder, TRANSFORMS["evaluation"], dtype="float16", memory_format="channels_last", **options)
        assert len(default) == (24 if on_error == "replace" else 23)
        assert torch.equal(given[0], default.half())


def test_a_loader_of_its_own_pipeline_is_collected(folder: Path) -> None:
    """The derived pipeline refers to the dataset's, whose callables may refer back to the loader."""
    import gc
    import weakref

    class Owner:
        def __call__(self, tensor: Any) -> Any:
            return tensor

    owner = Owner()
    dataset = fb.ImageFolder(folder, transform=T.Compose([T.Resize((8, 8)), T.ToTensor(), owner]))
    owner.loader = fb.DataLoader(dataset, batch_size=4, dtype="float16")  # type: ignore[attr-defined]
    assert next(iter(owner.loader))[0].dtype == torch.float16  # type: ignore[attr-defined]
    gone = weakref.ref(owner)
    del owner, dataset
    gc.collect()
    assert gone() is None
