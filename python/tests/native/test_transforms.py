"""Each transform against torchvision v2 with the same parameters, within the tolerance of docs/transforms.md."""

import inspect
import math
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

import folders
import forebay as fb
from forebay import _forebay
from forebay import transforms as T
from forebay._native import pipeline
from forebay._options.gil import is_free_threaded

NAMES = [name for name in T.__all__ if name not in ("Transform", "InterpolationMode")]


def array(value: Any) -> Any:
    return numpy.asarray(value).astype(numpy.int64) if isinstance(value, Image.Image) else value.numpy()


def difference(ours: Any, theirs: Any) -> float:
    ours, theirs = array(ours), array(theirs)
    assert ours.shape == theirs.shape
    return float(numpy.abs(ours.astype(numpy.float64) - theirs.astype(numpy.float64)).max())


# One value for both ends of a range makes it certain.
PICTURES: list[tuple[str, dict[str, Any]]] = [
    *[("Resize", {"size": size, "interpolation": mode})
      for size in (20, 90, (31, 17), (100, 40))
      for mode in ("bilinear", "bicubic", "nearest", "nearest-exact", "box", "hamming", "lanczos")],
    ("Resize", {"size": 40, "max_size": 50}),
    ("Resize", {"size": None, "max_size": 30}),
    *[("CenterCrop", {"size": size}) for size in (20, (30, 41), 60, (100, 10))],
    ("RandomCrop", {"size": (48, 64)}),
    ("RandomCrop", {"size": (58, 74), "padding": 5, "fill": (1, 2, 3)}),
    ("RandomCrop", {"size": (52, 66), "padding": (1, 2), "padding_mode": "reflect"}),
    ("RandomResizedCrop", {"size": (30, 20), "scale": (1, 1), "ratio": (4 / 3, 4 / 3)}),
    ("RandomResizedCrop", {"size": 70, "scale": (1, 1), "ratio": (4 / 3, 4 / 3), "interpolation": "bicubic"}),
    *[(name, {"p": p})
      for name in ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale")
      for p in (0, 1)],
    *[("Pad", {"padding": padding, "padding_mode": mode})
      for padding in (3, (4, 7), (1, 2, 3, 4))
      for mode in ("constant", "edge", "reflect", "symmetric")],
    ("Pad", {"padding": 3, "fill": (9, 8, 7)}),
    ("Grayscale", {}),
    ("Grayscale", {"num_output_channels": 3}),
    *[("ColorJitter", {name: (factor, factor)})
      for name in ("brightness", "contrast", "saturation")
      for factor in (0.0, 0.4, 1.3, 2.5)],
    *[("ColorJitter", {"hue": (factor, factor)}) for factor in (-0.5, -0.2, 0.1, 0.5)],
    *[("GaussianBlur", {"kernel_size": size, "sigma": (sigma, sigma)})
      for size in (3, (5, 7), 23)
      for sigma in (0.3, 2.0)],
    *[("RandomRotation", {"degrees": (angle, angle), "interpolation": mode, "expand": expand})
      for angle in (0, 30, 90, 180, 217.5)
      for mode in ("nearest", "bilinear", "bicubic")
      for expand in (False, True)],
    ("RandomRotation", {"degrees": (20, 20), "center": (5, 9), "fill": (10, 20, 30)}),
]  # fmt: skip


def documented() -> dict[str, str]:
    """The difference that docs/transforms.md states for each transform."""
    lines = (Path(__file__).parents[3] / "docs" / "transforms.md").read_text().splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return {row[0].strip(" `"): row[-1].strip() for row in rows}


def torchvisions(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for torchvision: before 0.29 an interpolation's name was not enough."""
    return {name: InterpolationMode(value) if name == "interpolation" else value for name, value in arguments.items()}


@pytest.mark.parametrize(("name", "arguments"), PICTURES, ids=str)
def test_pictures_are_torchvisions(name: str, arguments: dict[str, Any]) -> None:
    picture = folders.picture(5)
    ours, theirs = getattr(T, name)(**arguments)(picture), getattr(v2, name)(**torchvisions(arguments))(picture)
    assert isinstance(ours, Image.Image) and ours.mode == theirs.mode
    stated = documented().get(name, "")
    levels = 0 if stated.startswith(("exact", "the same")) else int(re.match(r"±(\d)", stated)[1])  # type: ignore[index]
    assert difference(ours, theirs) <= levels


TENSORS: list[tuple[str, dict[str, Any], float]] = [
    ("CenterCrop", {"size": (30, 70)}, 0),
    ("RandomCrop", {"size": (58, 74), "padding": 5, "fill": 0.5}, 0),
    ("RandomHorizontalFlip", {"p": 1}, 0),
    ("RandomVerticalFlip", {"p": 1}, 0),
    ("Pad", {"padding": (4, 7), "padding_mode": "reflect"}, 0),
    ("Grayscale", {"num_output_channels": 3}, 1e-6),
    ("RandomGrayscale", {"p": 1}, 1e-6),
    ("Normalize", {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, 1e-6),
]


@pytest.mark.parametrize(("name", "arguments", "tolerance"), TENSORS, ids=str)
def test_tensors_are_torchvisions(name: str, arguments: dict[str, Any], tolerance: float) -> None:
    tensor = v2.functional.to_dtype(v2.functional.pil_to_tensor(folders.picture(6)), torch.float32, scale=True)
    ours, theirs = (getattr(module, name)(**arguments)(tensor.clone()) for module in (T, v2))
    assert ours.dtype == theirs.dtype
    assert difference(ours, theirs) <= tolerance


def shown(default: Any) -> str:
    default = getattr(default, "value", default)
    if isinstance(default, tuple):
        return f"({', '.join(map(shown, default))})"
    return f"{default:g}" if isinstance(default, float) else str(default)


def table() -> str:
    """The table of docs/transforms.md, from the native table and the signatures of the classes."""
    lines = ["| transform | arguments | takes | reference | difference |", "|---|---|---|---|---|"]
    for name, _, takes, reference, difference in _forebay.transform_table():
        parameters = inspect.signature(getattr(T, name)).parameters.values()
        arguments = [
            f"`{parameter.name}`"
            if parameter.default is parameter.empty
            else f"`{parameter.name}={shown(parameter.default)}`"
            for parameter in parameters
        ]
        lines.append(f"| `{name}` | {', '.join(arguments) or '–'} | {takes} | {reference} | {difference} |")
    return "\n".join(lines)


def test_the_documented_table_is_the_native_one() -> None:
    document = (Path(__file__).parents[3] / "docs" / "transforms.md").read_text()
    assert table() in document, f"docs/transforms.md is old; its table should be\n{table()}"


def test_every_transform_is_documented() -> None:
    assert set(documented()) == set(NAMES) - {"Lambda", "PILToTensor"}


@pytest.mark.parametrize("row", _forebay.transform_table(), ids=lambda row: row[0])
def test_every_row_of_the_native_table_has_its_class(row: tuple[str, list[str], str, str, str]) -> None:
    name, arguments, *_ = row
    made = getattr(T, name)(*SAMPLES.get(name, ()))
    assert set(vars(made)) == set(arguments)
    # In torchvision's order, with nothing left out but what changes nothing.
    assert [name for name in inspect.signature(type(made)).parameters if name != "inplace"] == arguments


# Arguments of the transforms that need some.
SAMPLES: dict[str, Any] = {
    "Resize": (5,), "CenterCrop": (5,), "RandomCrop": (5,), "RandomResizedCrop": (5,), "Pad": (1,),
    "ColorJitter": (0.1, 0.2, 0.3, 0.4), "GaussianBlur": (3,), "RandomRotation": (30,), "ToDtype": (torch.float32,),
    "Normalize": ([0.5], [0.5]), "Compose": ([v2.CenterCrop(3)],), "RandomApply": ([v2.CenterCrop(3)], 0.3),
    "RandomChoice": ([v2.CenterCrop(3), v2.Pad(2)], [3, 1]), "RandomOrder": ([v2.CenterCrop(3), v2.Pad(2)],),
}  # fmt: skip


def test_conversions_are_exact() -> None:
    picture = folders.picture(7)
    tensor = v2.functional.pil_to_tensor(picture)
    assert torch.equal(T.ToImage()(picture), tensor) and torch.equal(T.PILToTensor()(picture), tensor)
    unit = tensor.to(torch.float32) / 255
    assert torch.equal(T.ToTensor()(picture), unit)
    for dtype, scale, start in (
        (torch.float32, True, tensor),
        (torch.float32, False, tensor),
        (torch.uint8, True, unit),
    ):
        assert torch.equal(T.ToDtype(dtype, scale)(start), v2.ToDtype(dtype, scale)(start))


def test_arrays_stand_for_pictures() -> None:
    pixels = folders.pixels(8)
    assert numpy.array_equal(T.CenterCrop(10)(pixels), pixels[19:29, 27:37])
    assert torch.equal(T.ToTensor()(pixels), T.ToTensor()(Image.fromarray(pixels)))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 1100)])
def test_a_whole_evaluation_pipeline_is_torchvisions(tmp_path: Any, size: tuple[int, int]) -> None:
    (tmp_path / "a").mkdir()
    folders.picture(9, *size).save(tmp_path / "a" / "1.png")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ours = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize(mean, std)])
    theirs = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    ((images, _),) = fb.DataLoader(fb.ImageFolder(tmp_path, transform=ours))
    expected = v2.functional.normalize(theirs(Image.open(tmp_path / "a" / "1.png").convert("RGB")), mean, std)
    assert difference(images[0], expected) < 1e-5


# Distributions: a statistic of the result, ours against torchvision's. Coordinates as colours show where a crop was.
ROWS, COLUMNS = numpy.mgrid[0:150, 0:200].astype(numpy.uint8)
COORDINATES = Image.fromarray(numpy.stack([ROWS, COLUMNS, 0 * ROWS], axis=-1))
ZEROS = torch.zeros(3, 50, 60)
GREY = Image.new("RGB", (8, 8), (100, 100, 100))
SPOT = Image.fromarray(numpy.pad(numpy.full((1, 1, 3), 255, numpy.uint8), ((10, 10), (10, 10), (0, 0))))
RED = Image.new("RGB", (8, 8), (200, 50, 50))


def box(result: Any) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a crop of COORDINATES, enlarged by nearest."""
    y, x = array(result)[:, :, 0], array(result)[:, :, 1]
    return int(y[0, 0]), int(x[0, 0]), int(y[-1, 0] - y[0, 0] + 1), int(x[0, -1] - x[0, 0] + 1)


def erased(result: Any) -> tuple[int, int, int, int]:
    """(top, left, height, width) of what was overwritten by 2."""
    rows, columns = numpy.nonzero(result.numpy()[0] == 2)
    if rows.size == 0:
        return 0, 0, 0, 0
    return rows.min(), columns.min(), numpy.ptp(rows) + 1, numpy.ptp(columns) + 1


def angle(result: Any) -> float:
    """How far the horizontal gradient of COORDINATES was turned, in degrees."""
    x = array(result)[:, :, 1].astype(float)[60:90, 85:115]
    down, right = numpy.gradient(x)
    return math.degrees(math.atan2(down.mean(), right.mean()))


def centre(value: float) -> Callable[[Any], float]:
    return lambda result: float(array(result)[value, value, 0])  # type: ignore[index]


Statistic = Callable[[Any], float]
CROP = {"size": 256, "interpolation": "nearest"}
DISTRIBUTIONS: list[tuple[str, dict[str, Any], Any, Statistic]] = [
    ("RandomResizedCrop", CROP, COORDINATES, lambda result: box(result)[2] * box(result)[3]),
    ("RandomResizedCrop", CROP, COORDINATES, lambda result: math.log(box(result)[3] / box(result)[2])),
    ("RandomResizedCrop", CROP, COORDINATES, lambda result: box(result)[0]),
    ("RandomResizedCrop", CROP, COORDINATES, lambda result: box(result)[1]),
    ("RandomResizedCrop", CROP | {"scale": (0.9, 1), "ratio": (3, 4)}, COORDINATES, lambda result: box(result)[2]),
    ("RandomCrop", {"size": 140}, COORDINATES, lambda result: array(result)[0, 0, 0]),
    ("RandomCrop", {"size": 100}, COORDINATES, lambda result: array(result)[0, 0, 1]),
    ("RandomHorizontalFlip", {}, COORDINATES, lambda result: array(result)[0, 0, 1]),
    ("RandomVerticalFlip", {"p": 0.2}, COORDINATES, lambda result: array(result)[0, 0, 0]),
    ("RandomGrayscale", {"p": 0.3}, RED, centre(4)),
    ("ColorJitter", {"brightness": 0.5}, GREY, centre(4)),
    ("ColorJitter", {"contrast": 0.9}, SPOT, centre(10)),
    ("ColorJitter", {"saturation": (0.2, 1.8)}, RED, centre(4)),
    ("ColorJitter", {"hue": 0.3}, RED, lambda result: array(result)[4, 4, 1]),
    ("ColorJitter", {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 0.2}, SPOT, centre(10)),
    ("GaussianBlur", {"kernel_size": 7, "sigma": (0.2, 3)}, SPOT, centre(10)),
    ("RandomRotation", {"degrees": 40, "interpolation": "bilinear"}, COORDINATES, angle),
    ("RandomErasing", {"value": 2}, ZEROS, lambda result: erased(result)[2] * erased(result)[3]),
    (
        "RandomErasing",
        {"value": 2, "p": 1},
        ZEROS,
        lambda result: erased(result)[3] / erased(result)[2],
    ),
    ("RandomErasing", {"value": 2, "p": 1}, ZEROS, lambda result: erased(result)[0]),
    (
        "RandomErasing",
        {"value": "random", "p": 1},
        ZEROS,
        lambda result: float(result[result != 0].std()),
    ),
]


def largest_gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The Kolmogorov-Smirnov statistic of two samples."""
    points = numpy.union1d(ours, theirs)
    below = [numpy.searchsorted(numpy.sort(values), points, side="right") / len(values) for values in (ours, theirs)]
    return float(numpy.abs(below[0] - below[1]).max())


@pytest.mark.parametrize(
    ("name", "arguments", "start", "statistic"), DISTRIBUTIONS, ids=lambda value: folders.named(value)[:30]
)
def test_random_parameters_are_distributed_as_torchvisions(
    name: str, arguments: dict[str, Any], start: Any, statistic: Statistic
) -> None:
    draws = 600
    torch.manual_seed(11)
    ours, theirs = (
        [statistic(transform(start)) for _ in range(draws)]
        for transform in (getattr(T, name)(**arguments), getattr(v2, name)(**torchvisions(arguments)))
    )
    # One pair of equal distributions in a thousand is further apart; the seed is fixed.
    assert largest_gap(ours, theirs) < 1.95 * math.sqrt(2 / draws)


@pytest.mark.parametrize("name", NAMES)
def test_names_arguments_and_defaults_are_torchvisions(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (T, v2))
    assert list(ours) == list(theirs)
    for argument in ours:
        ours_default, theirs_default = (signature[argument].default for signature in (ours, theirs))
        assert getattr(ours_default, "value", ours_default) == theirs_default, argument


def test_they_print_and_compare_by_their_arguments() -> None:
    assert repr(T.RandomResizedCrop(3)) == repr(v2.RandomResizedCrop(3))
    assert repr(T.Normalize([0.5], [0.5])) == "Normalize(mean=[0.5], std=[0.5])"
    assert T.Resize(3) == T.Resize([3]) != T.Resize(4)
    assert T.Resize(3, "bicubic") == T.Resize(3, v1.InterpolationMode.BICUBIC) == T.Resize(3, Image.Resampling.BICUBIC)
    assert len({T.ToTensor(), T.ToTensor(), T.Resize(1), T.Compose([T.ToTensor()])}) == 3
    assert T.ToDtype(torch.float32, scale=True) == T.ToDtype(numpy.float32, scale=True) == T.ToDtype("float32", True)


def nested(kind: Any, levels: int, outermost: Any = None) -> Any:
    """A transform in so many others."""
    transform: Any = T.RandomHorizontalFlip()
    for _ in range(levels - 2):
        transform = kind([transform])
    return (outermost or kind)([transform])


def doubled(times: int) -> Any:
    transform: Any = T.RandomHorizontalFlip()
    for _ in range(times):
        transform = T.RandomOrder([transform, transform])
    return transform


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: T.Resize(0), "Resize: size: expected .* got 0"),
        (lambda: T.Resize((1, 2, 3)), r"Resize: size: expected .* got \(1, 2, 3\)"),
        (lambda: T.Resize(3, "cubic"), "interpolation: expected one of nearest, .* got 'cubic'"),
        (lambda: T.CenterCrop("a"), "CenterCrop: size: expected"),
        (lambda: T.RandomCrop(3, padding=(1, 2, 3)), "RandomCrop: padding: expected one, two or four"),
        (lambda: T.Pad(-1), "Pad: padding: expected"),
        (lambda: T.Pad(2**32), "Pad: padding: expected one, two or four whole numbers, .* got 4294967296"),
        (lambda: T.Resize(2**32), "Resize: size: expected one or two whole numbers, .* got 4294967296"),
        (lambda: T.Resize(8, max_size=-1), "Resize: max_size: expected a whole number or None, got -1"),
        (lambda: T.CenterCrop((8, 2**40)), "CenterCrop: size: expected one or two whole numbers"),
        (
            lambda: T.Pad(1, padding_mode="mirror"),
            "padding_mode: expected one of constant, edge, reflect, symmetric, got 'mirror'",
        ),
        (lambda: T.RandomHorizontalFlip(1.5), "p: expected a number from 0 to 1, got 1.5"),
        (lambda: T.RandomResizedCrop(3, scale=(0.5, 0.1)), r"scale: expected two numbers .* got \(0.5, 0.1\)"),
        (lambda: T.Grayscale(2), "num_output_channels: expected 1 or 3, got 2"),
        (lambda: T.ColorJitter(brightness=-1), "brightness: expected"),
        (lambda: T.ColorJitter(hue=0.6), "hue: expected"),
        (lambda: T.GaussianBlur(4), "kernel_size: expected odd numbers, got 4"),
        (lambda: T.GaussianBlur(3, 0), "sigma: expected"),
        (lambda: T.RandomRotation(-3), "degrees: expected"),
        (lambda: T.RandomErasing(value="noise"), "value: expected"),
        (lambda: T.ToDtype("float64"), "dtype: expected float32 or uint8, got 'float64'"),
        (lambda: T.Normalize([0.5], [0.0]), "std: expected numbers other than 0"),
        (lambda: T.Normalize(0.5, 0.5), "mean: expected one number for each channel"),
        (lambda: T.Compose([]), "Compose: transforms: expected"),
        (lambda: T.Compose([3]), "transform: expected a transform or a callable, got 3"),
        (lambda: T.Compose([T.ToTensor]), r"got the class ToTensor itself\n.*parentheses are missing: ToTensor\("),
        (lambda: T.Compose([v2.Resize(3), v2.RandAugment]), r"parentheses are missing: RandAugment\("),
        (lambda: T.Lambda(3), "lambd: expected a callable, got 3"),
        (lambda: T.RandomApply([]), r"RandomApply: transforms: expected a list of at least one transform, got \[\]"),
        (lambda: T.RandomApply(T.ToTensor()), "RandomApply: transforms: expected a list of at least one transform"),
        (lambda: T.RandomApply([T.ToTensor()], 1.5), "RandomApply: p: expected a number from 0 to 1, got 1.5"),
        (lambda: T.RandomApply([T.ToTensor()], "1"), "RandomApply: p: expected a number from 0 to 1, got '1'"),
        (lambda: T.RandomApply([T.Pad(1), 3]), "transform: expected a transform or a callable, got 3"),
        (lambda: T.RandomChoice([]), "RandomChoice: transforms: expected"),
        (lambda: T.RandomChoice([T.Pad(1)], [1, 2]), r"p: expected 1 numbers, 0 or more, .* got \[1, 2\]"),
        (lambda: T.RandomChoice([T.Pad(1), T.Pad(2)], [0, 0]), "p: expected 2 numbers, 0 or more, with a sum above 0"),
        (lambda: T.RandomChoice([T.Pad(1), T.Pad(2)], [2, -1]), "p: expected 2 numbers, 0 or more"),
        (lambda: T.RandomOrder("ab"), "RandomOrder: transforms: expected"),
        (lambda: nested(T.RandomApply, 33), "expected at most 32 levels of transforms, got more"),
        (lambda: nested(T.Compose, 33), "expected at most 32 levels of transforms, got more"),
        (lambda: nested(v2.RandomApply, 33, T.Compose), "expected at most 32 levels of transforms, got more"),
        (lambda: doubled(14), "expected at most 4096 transforms, got more"),
    ],
)
def test_wrong_arguments_say_what_was_expected(make: Any, named: str) -> None:
    with pytest.raises(fb.errors.ConfigError, match=named):
        make()


@pytest.mark.parametrize(
    "chain",
    [
        [T.ToTensor(), T.Resize(3)],
        [T.Normalize([0.5], [0.5])],
        [T.ToImage(), T.Normalize([0.5], [0.5])],
        [T.ToDtype("float32")],
        [T.ToTensor(), T.Normalize([0.5, 0.5], [0.5, 0.5])],
        [T.RandomApply([T.ToTensor()])],
        [T.RandomChoice([T.ToTensor(), T.ToImage()])],
        [T.ToTensor(), T.RandomApply([T.RandomChoice([T.Resize(3)])])],
    ],
    ids=str,
)
def test_wrong_places_are_refused_before_any_sample(folder: Path, chain: list[Any]) -> None:
    with pytest.raises(fb.errors.ConfigError, match=r"expected .* got"):
        fb.ImageFolder(folder, transform=T.Compose(chain))


def names(transform: Any) -> list[str]:
    return [name for name, _ in pipeline.settle(pipeline.specs(transform))]


def test_torchvisions_own_instances_become_native() -> None:
    chain = v2.Compose([v2.RandomResizedCrop(9), v2.RandomHorizontalFlip(), v1.ToTensor(), v2.Normalize([0.5], [0.5])])
    assert names(chain) == ["RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
    recommended = v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(9), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    )
    assert names(recommended) == ["RandomResizedCrop", "ToImage", "ToDtype"]
    assert names(torch.nn.Sequential(v2.CenterCrop(3), v2.ColorJitter(0.1))) == ["CenterCrop", "ColorJitter"]


def test_torchvisions_instances_run_as_they_are_where_the_native_ones_would_differ() -> None:
    assert names(v2.Compose([v1.ToTensor(), v2.Resize(3)])) == ["ToTensor", "Custom"]
    assert names(v2.Compose([v2.RandAugment(), v2.Resize(3), v2.PILToTensor()])) == ["Custom", "ToImage"]
    assert names(v2.Pad(3, fill={torch.Tensor: 1})) == ["Custom"]

    class Mine(v2.Resize):
        pass

    assert names(Mine(3)) == ["Custom"]
    assert names(v2.ToDtype(torch.float64)) == ["Custom"]


def test_every_native_transform_has_a_translation() -> None:
    for name in set(NAMES) - {"Compose", "Lambda"}:
        arguments = SAMPLES.get(name, ())
        chain = [v2.ToImage()] if name in ("ToDtype",) else [v1.ToTensor()] if name == "Normalize" else []
        theirs = getattr(v1 if name == "ToTensor" else v2, name)(*arguments)
        made = pipeline.settle(pipeline.specs(v2.Compose([*chain, theirs])))[-1]
        assert made == pipeline.settle(getattr(T, name)(*arguments)._specs())[0], name


def test_a_python_callable_gets_a_picture_before_and_a_tensor_after_totensor(folder: Any) -> None:
    seen: list[type] = []

    def look(value: Any) -> Any:
        seen.append(type(value))
        return value

    chain = T.Compose([T.CenterCrop(8), look, T.ToTensor(), T.Lambda(look), T.Normalize([0.5], [0.5])])
    plain = T.Compose([T.CenterCrop(8), T.ToTensor(), T.Normalize([0.5], [0.5])])
    cost = "several threads run it" if is_free_threaded() else "it runs under the GIL"
    with pytest.warns(UserWarning, match=f"transform .*look is Python code: {cost}"):
        loader = fb.DataLoader(fb.ImageFolder(folder, transform=chain), 4)
    expected = fb.DataLoader(fb.ImageFolder(folder, transform=plain), 4)
    for (images, _), (others, _) in zip(loader, expected, strict=True):
        assert torch.equal(images, others)
    assert set(seen) == {Image.Image, torch.Tensor}


def test_lambda_looks_at_types() -> None:
    only_tensors = T.Lambda(lambda value: value + 1, torch.Tensor)
    assert only_tensors(3) == 3 and only_tensors(torch.zeros(1)) == 1


def unit(image: Any) -> Any:
    return numpy.asarray(image).astype(numpy.float32) / 255


@pytest.mark.parametrize("shape", [(32, 30, 3), (32, 30, 4), (32, 30, 1), (3, 32, 3), (32, 30)], ids=str)
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.uint8])
def test_totensor_takes_every_array_for_a_picture_as_torchvision_does(shape: tuple[int, ...], dtype: Any) -> None:
    values = numpy.random.default_rng(1).integers(0, 255, shape).astype(dtype)
    expected = v1.ToTensor()(values)
    alone, within = T.ToTensor()(values), T.Compose([lambda _: values, T.ToTensor()])(folders.picture(1))
    for made in (alone, within):
        assert made.dtype == expected.dtype == torch.float32
        assert difference(made, expected) < 1e-6


def test_an_array_of_floats_keeps_its_layout_where_nothing_converts_it() -> None:
    values = numpy.random.default_rng(1).random((20, 30, 3), numpy.float32)
    assert numpy.array_equal(T.CenterCrop(10)(values), values[5:15, 10:20])
    expected = (values - numpy.float32(0.5)) / numpy.float32(0.25)
    assert numpy.abs(T.Normalize([0.5], [0.25])(values) - expected).max() < 1e-6
    tensor = torch.from_numpy(values.transpose(2, 0, 1).copy())
    assert torch.equal(T.CenterCrop(10)(tensor), tensor[:, 5:15, 10:20]), "tensors have their channels first"
    made = T.Compose([lambda _: tensor, T.CenterCrop(10)])(values)
    assert torch.equal(made, tensor[:, 5:15, 10:20]), "what a callable made a tensor of is one"


def test_arrays_of_a_python_transform_become_tensors_as_in_torchvision(folder: Path) -> None:
    ours = T.Compose([T.Resize((32, 30)), unit, T.ToTensor(), T.Normalize([0.5], [0.5])])
    theirs = v1.Compose([v1.Resize((32, 30)), unit, v1.ToTensor(), v1.Normalize([0.5], [0.5])])
    for (images, _), path in zip(fb.DataLoader(dataset := fb.ImageFolder(folder, ours)), dataset.samples, strict=True):
        assert images.shape == (1, 3, 32, 30)
        assert difference(images[0], theirs(Image.open(path[0]))) < 1e-5


def test_an_array_after_totensor_is_what_the_tensor_was(folder: Path) -> None:
    ours = T.Compose([T.Resize((8, 9)), T.ToTensor(), lambda tensor: tensor.numpy() * 2, T.Normalize([0.5], [0.5])])
    plain = T.Compose([T.Resize((8, 9)), T.ToTensor()])
    for (images, _), (expected, _) in zip(
        fb.DataLoader(fb.ImageFolder(folder, ours)), fb.DataLoader(fb.ImageFolder(folder, plain)), strict=True
    ):
        assert difference(images, expected * 4 - 1) < 1e-5


class Marked(numpy.ndarray):  # type: ignore[type-arg]
    """An array of a class of its own: only the very object passes for it."""


def test_python_callables_in_a_row_pass_values_as_they_are(folder: Path) -> None:
    seen: list[type] = []

    def look(value: Any) -> Any:
        seen.append(type(value))
        return value

    def mark(image: Any) -> Any:
        return numpy.asarray(image).view(Marked)

    chain = [T.CenterCrop(8), mark, look, T.Lambda(look), numpy.asarray, T.ToTensor()]
    settled = pipeline.settle(pipeline.specs(T.Compose(chain)))
    assert [name for name, _ in settled] == ["CenterCrop", "Custom", "ToTensor"]
    assert settled[1][1]["name"] == "mark → look → Lambda(look) → asarray"
    plain = T.Compose([T.CenterCrop(8), T.ToTensor()])
    for (images, _), (expected, _) in zip(
        fb.DataLoader(fb.ImageFolder(folder, T.Compose(chain)), 4),
        fb.DataLoader(fb.ImageFolder(folder, plain), 4),
        strict=True,
    ):
        assert torch.equal(images, expected)
    assert set(seen) == {Marked}


@pytest.mark.parametrize("convert", [numpy.array, unit], ids=["bytes", "floats"])
def test_the_array_of_the_last_callable_stays_one(folder: Path, convert: Any) -> None:
    dataset = fb.ImageFolder(folder, T.Compose([T.Resize((8, 9)), convert]))
    assert isinstance(dataset[0][0], numpy.ndarray) and dataset[0][0].shape == (8, 9, 3)
    for (images, _), (expected, _) in zip(
        fb.DataLoader(dataset, 4), torch.utils.data.DataLoader(dataset, 4), strict=True
    ):
        assert images.shape == (4, 8, 9, 3) and torch.equal(images, expected)
    for images, _ in fb.DataLoader(dataset, 4, output="numpy"):
        assert images.shape == (4, 8, 9, 3) and isinstance(images, numpy.ndarray)


def test_what_a_loader_of_ones_own_gives_passes_as_it_is(folder: Path) -> None:
    def load(path: str) -> Any:
        return numpy.array(Image.open(path).resize((9, 8))).view(Marked)

    seen: list[type] = []

    def look(value: Any) -> Any:
        seen.append(type(value))
        return value

    images, _ = next(iter(fb.DataLoader(fb.ImageFolder(folder, loader=load), 4)))
    assert images.shape == (4, 8, 9, 3)
    images, _ = next(iter(fb.DataLoader(fb.ImageFolder(folder, T.Compose([look, T.ToTensor()]), loader=load), 4)))
    assert images.shape == (4, 3, 8, 9) and set(seen) == {Marked}


def outcomes(transform: Any, possible: Sequence[Any], draws: int = 1000) -> list[int]:
    """How often each of the possible pictures is made of one."""
    torch.manual_seed(5)
    counts = [0] * len(possible)
    expected = [array(picture) for picture in possible]
    for _ in range(draws):
        made = array(transform(folders.picture(3)))
        counts[next(place for place, other in enumerate(expected) if numpy.array_equal(made, other))] += 1
    return counts


START = folders.picture(3)
FLIPPED, PADDED, BOTH = (
    v2.Compose(chain)(START)
    for chain in ([v2.RandomHorizontalFlip(1)], [v2.Pad(2)], [v2.RandomHorizontalFlip(1), v2.Pad(2)])
)


@pytest.mark.parametrize("module", [T, v2], ids=["ours", "theirs"])
def test_choices_are_made_as_often_as_torchvision_makes_them(module: Any) -> None:
    """Pixels are those of what was chosen. (torchvision's instances are translated, and run in the same test.)"""
    flip, pad = module.RandomHorizontalFlip(1), module.Pad(2)

    def count(transform: Any, possible: Sequence[Any]) -> list[int]:
        return outcomes(T.Compose([transform]), possible)

    def near(counts: list[int], expected: list[int]) -> bool:
        return all(abs(got - wanted) < 60 for got, wanted in zip(counts, expected, strict=True))

    assert near(count(module.RandomApply([flip, pad]), [START, BOTH]), [500, 500])
    assert near(count(module.RandomApply([flip, pad], p=0.2), [START, BOTH]), [800, 200])
    assert near(count(module.RandomChoice([flip, pad]), [FLIPPED, PADDED]), [500, 500])
    assert count(module.RandomChoice([flip, pad], p=[0, 3]), [FLIPPED, PADDED]) == [0, 1000]
    branches = [module.Compose([flip, pad]), flip, module.RandomApply([pad], p=0.5)]
    counts = count(module.RandomChoice(branches, p=[2, 1, 1]), [BOTH, FLIPPED, START, PADDED])
    assert near(counts, [500, 250, 125, 125])
    small = v2.CenterCrop(48)
    crop_first, pad_first = v2.Pad(2)(small(START)), small(v2.Pad(2)(START))
    order = module.RandomOrder([module.CenterCrop(48), pad])
    assert near(count(order, [crop_first, pad_first]), [500, 500])


def test_torchvisions_containers_become_native() -> None:
    jitter = v2.RandomApply([v2.ColorJitter(0.1), v2.RandAugment()], p=0.8)
    chain = v2.Compose([jitter, v2.RandomChoice([v2.Pad(1), v1.Compose([v1.Pad(2), v1.Pad(3)])]), v2.ToImage()])
    settled = pipeline.settle(pipeline.specs(chain))
    assert [name for name, _ in settled] == ["RandomApply", "RandomChoice", "ToImage"]
    assert [name for name, _ in settled[0][1]["transforms"]] == ["ColorJitter", "Custom"] and settled[0][1]["p"] == 0.8
    # What RandAugment makes is not known.
    assert [name for name, _ in settled[1][1]["transforms"]] == ["Custom", "Compose"]
    # It is given a tensor, and so is all that stands in one list with it.
    settled = pipeline.settle(pipeline.specs(v2.Compose([v2.ToImage(), jitter, v2.Resize(3)])))
    assert [name for name, _ in settled] == ["ToImage", "RandomApply", "Custom"]
    assert [name for name, _ in settled[1][1]["transforms"]] == ["Custom"]
    # As torchvision recommends it: the conversion moves behind what takes pictures, in containers too.
    recommended = v2.Compose(
        [v2.ToImage(), v2.RandomApply(torch.nn.ModuleList([v2.GaussianBlur(3)])), v2.ToDtype(torch.float32, scale=True)]
    )
    assert names(recommended) == ["RandomApply", "ToImage", "ToDtype"]
    assert names(v1.RandomOrder([v1.Pad(1), v1.ToTensor()])) == ["RandomOrder"]
    assert names(v1.RandomChoice([v1.Pad(1), v1.CenterCrop(2)], p=[1, 2])) == ["RandomChoice"]


def test_a_container_that_holds_itself_is_refused() -> None:
    for module in (T, v2):
        endless = module.Compose([module.Pad(1)])
        endless.transforms.append(module.RandomApply([module.Pad(1)]))
        endless.transforms[-1].transforms.append(endless)
        with pytest.raises(fb.errors.ConfigError, match="at most 32 levels"):
            pipeline.specs(endless)


NESTED = T.Compose(
    [
        T.RandomApply([T.Pad(3), T.RandomChoice([T.CenterCrop(40), T.RandomVerticalFlip(), T.Pad(1)], p=[1, 2, 3])]),
        T.RandomResizedCrop(24),
        T.RandomOrder([T.RandomApply([T.ColorJitter(0.5, 0.5)], p=0.7), T.RandomGrayscale(0.5)]),
        T.Compose([T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]), T.RandomApply([T.Normalize([0.5], [0.5])])]),
    ]
)


def test_nested_transforms_depend_on_no_thread_and_resume_exactly(folder: Path, digests: Any) -> None:
    dataset = fb.ImageFolder(folder, NESTED)
    assert dataset._pipeline.layout == ((3, 24, 24), "float32")
    expected = digests(fb.DataLoader(dataset, 4, shuffle=True, num_workers=1, seed=3))
    assert len(set(expected)) == len(expected) == 24
    for threads in (2, 5):
        assert digests(fb.DataLoader(dataset, 4, shuffle=True, num_workers=threads, seed=3)) == expected
    for step in range(1, 6):
        loader = fb.DataLoader(dataset, 4, shuffle=True, seed=3)
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        resumed = fb.DataLoader(dataset, 4, shuffle=True, num_workers=2, seed=3)
        resumed.load_state_dict(loader.state_dict())
        assert digests(resumed) == expected[4 * step :]


def test_a_choice_changes_no_draw_of_what_comes_after(folder: Path) -> None:
    def images(*first: Any) -> list[Any]:
        chain = T.Compose([T.CenterCrop(40), *first, T.RandomErasing(1.0), T.ToTensor()])
        return [images for images, _ in fb.DataLoader(fb.ImageFolder(folder, chain), 4, seed=1)]

    plain = images(T.RandomApply([T.RandomVerticalFlip(0), T.RandomErasing(0)], p=0))
    chosen = images(T.RandomApply([T.RandomVerticalFlip(0), T.RandomErasing(0)], p=0.5))
    assert all(torch.equal(a, b) for a, b in zip(plain, chosen, strict=True))


def test_shapes_that_depend_on_a_choice_are_not_promised(folder: Path) -> None:
    def layout(*chain: Any) -> Any:
        return fb.ImageFolder(folder, T.Compose([*chain, T.ToTensor()]))._pipeline.layout

    assert layout(T.CenterCrop(8), T.RandomApply([T.CenterCrop(6)])) is None
    assert layout(T.CenterCrop(8), T.RandomApply([T.Pad(1), T.CenterCrop(8)])) == ((3, 8, 8), "float32")
    assert layout(T.RandomChoice([T.Resize((8, 8)), T.CenterCrop(8)])) == ((3, 8, 8), "float32")


def test_callables_run_inside_of_others(folder: Path) -> None:
    seen: list[type] = []

    def invert(value: Any) -> Any:
        seen.append(type(value))
        return Image.eval(value, lambda level: 255 - level) if isinstance(value, Image.Image) else 1 - value

    chain = T.Compose([T.CenterCrop(8), T.RandomApply([invert, T.RandomChoice([invert, T.Lambda(invert)])], p=1)])
    plain = T.Compose([T.CenterCrop(8), T.ToTensor(), T.Normalize([0.5], [0.5])])
    whole = T.Compose([chain, T.ToTensor(), T.RandomApply([invert, invert], p=1), T.Normalize([0.5], [0.5])])
    with pytest.warns(UserWarning, match="transform .*invert is Python code"):
        loader = fb.DataLoader(fb.ImageFolder(folder, whole), 4)
    for (images, _), (others, _) in zip(loader, fb.DataLoader(fb.ImageFolder(folder, plain), 4), strict=True):
        assert difference(images, others) < 1e-6
    assert set(seen) == {Image.Image, torch.Tensor}

    def fail(value: Any) -> Any:
        raise ValueError("no")

    broken = fb.ImageFolder(folder, T.Compose([T.RandomChoice([T.RandomApply([fail], 1)]), T.ToTensor()]))
    with pytest.raises(ValueError, match="no") as raised:
        next(iter(fb.DataLoader(broken, 4)))
    assert "failed in fail: ValueError: no" in "".join(raised.value.__notes__)


def test_nested_transforms_print_compare_and_travel() -> None:
    some = T.RandomApply([T.Pad(1), T.RandomChoice([T.ToTensor()], [2])], p=0.25)
    assert repr(some).splitlines() == [
        "RandomApply(",
        "    p=0.25",
        "    Pad(padding=(1, 1, 1, 1), fill=[0.0], padding_mode=constant)",
        "    RandomChoice(",
        "        p=[1.0]",
        "        ToTensor()",
        "    )",
        ")",
    ]
    assert pickle.loads(pickle.dumps(NESTED)) == NESTED
    assert some == T.RandomApply([T.Pad(1), T.RandomChoice([T.ToTensor()])], p=0.25) != T.RandomApply([T.Pad(1)], 0.25)
    assert len({some, pickle.loads(pickle.dumps(some)), T.RandomOrder([T.Pad(1)])}) == 2
