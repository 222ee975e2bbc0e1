"""`ImageFolder` and `DatasetFolder` in the place of torchvision's: every test asks both the same."""

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
import torchvision
from torchvision.datasets import wrap_dataset_for_transforms_v2

import children
import forebay as fb
from forebay import transforms as T
from forebay.datasets import default_loader

THEIRS = torchvision.datasets
NAMES = ("DatasetFolder", "ImageFolder")
# What both kinds of folder take, each in its own way.
REQUIRED: dict[str, dict[str, Any]] = {
    "DatasetFolder": {"loader": default_loader, "extensions": (".jpg", ".png")},
    "ImageFolder": {},
}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(package: Any, name: str, root: Any, **options: Any) -> Any:
    return getattr(package, name)(root, **{**REQUIRED[name], **options})


def pair(name: str, root: Any, **options: Any) -> tuple[Any, Any]:
    return made(fb, name, root, **options), made(THEIRS, name, root, **options)


def equal(ours: Any, theirs: Any) -> bool:
    (image, target), (expected, expected_target) = ours, theirs
    return target == expected_target and numpy.array_equal(numpy.asarray(image), numpy.asarray(expected))


def raised(call: Any) -> Exception:
    with pytest.raises(Exception) as info:
        call()
    return info.value


def doubled(target: int) -> int:
    return 2 * target


def test_the_first_parameters_are_torchvisions(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(package, name)).parameters for package in (fb, THEIRS))
    assert list(ours)[: len(theirs)] == list(theirs)
    for parameter, expected in zip(ours.values(), theirs.values(), strict=False):
        is_required = parameter.default is inspect.Parameter.empty
        assert parameter.kind is expected.kind
        assert is_required is (expected.default is inspect.Parameter.empty), parameter
        assert is_required or callable(parameter.default) or parameter.default == expected.default
    assert all(parameter.default is not inspect.Parameter.empty for parameter in list(ours.values())[len(theirs) :])


@pytest.mark.parametrize("options", [{}, {"extensions": (".jpg",)}, {"transform": None}])
def test_a_call_without_its_required_arguments_is_refused_in_the_same_words(name: str, options: Any) -> None:
    if name == "ImageFolder":
        options = {key: value for key, value in options.items() if key != "extensions"}
    errors = [raised(lambda kind=getattr(package, name): kind(**options)) for package in (fb, THEIRS)]
    assert type(errors[0]) is type(errors[1]) is TypeError and str(errors[0]) == str(errors[1])


def written_manifest(folder: Path) -> Path:
    path = folder / "samples.csv"
    names = [Path(name).relative_to(folder) for name, _ in fb.ImageFolder(folder).samples]
    path.write_text("path,class\n" + "".join(f"{name},{name.parent}\n" for name in names))
    return path


def test_a_manifest_stands_in_for_the_root(name: str, folder: Path) -> None:
    kind, path = getattr(fb, name), written_manifest(folder)
    for dataset in (kind(manifest=path), kind(fb.Manifest(path)), kind(manifest=fb.Manifest(path))):
        assert len(dataset) == 24 and dataset[0][0].size == (64, 48)
    assert "required positional argument" in str(raised(lambda: kind(verify="checksum")))


def test_they_are_torchvisions_classes(name: str, folder: Path) -> None:
    ours, theirs = pair(name, folder)
    for kind in (THEIRS.VisionDataset, THEIRS.DatasetFolder, torch.utils.data.Dataset, getattr(THEIRS, name)):
        assert isinstance(ours, kind) and isinstance(theirs, kind)
    assert isinstance(ours, THEIRS.ImageFolder) == isinstance(theirs, THEIRS.ImageFolder)
    assert not isinstance(fb.ImageFiles(folder), THEIRS.VisionDataset)


def test_torchvision_may_be_imported_after_the_dataset_was_made(folder: Path) -> None:
    program = """
    import sys
    import forebay as fb
    dataset = fb.ImageFolder(sys.argv[1], target_transform=abs)
    assert "torch" not in sys.modules and "torchvision" not in sys.modules
    print(dataset.transforms)
    import torchvision
    wrapped = torchvision.datasets.wrap_dataset_for_transforms_v2(dataset)
    assert isinstance(dataset, torchvision.datasets.ImageFolder) and isinstance(wrapped, fb.ImageFolder)
    print(wrapped[-1][1])
    """
    done = children.run(program, folder, seconds=90)  # it imports torch and torchvision
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["StandardTransform", "Target transform: <built-in function abs>", "1"]


def test_attributes_are_torchvisions(name: str, folder: Path) -> None:
    for root in (folder, str(folder)):
        ours, theirs = pair(name, root, target_transform=doubled)
        for attribute in ("root", "classes", "class_to_idx", "samples", "targets", "transform", "target_transform"):
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
        assert type(ours.root) is type(theirs.root) and len(ours) == len(theirs)
        if name == "DatasetFolder":
            assert (ours.loader, ours.extensions) == (theirs.loader, theirs.extensions)
        else:
            assert ours.imgs == theirs.imgs
        assert equal(ours[3], theirs[3]) and equal(ours[numpy.int64(-1)], theirs[numpy.int64(-1)])
        assert equal((ours + ours)[30], (theirs + theirs)[30])
        # Loaded natively, so it is no ConcatDataset; it has what one has.
        both, torchs = ours + ours, theirs + theirs
        assert isinstance(both, torch.utils.data.Dataset) and list(both.datasets) == [ours, ours]
        assert (len(both), both.cumulative_sizes) == (len(torchs), torchs.cumulative_sizes)


TRANSFORMS: list[dict[str, Any]] = [
    {},
    {"transform": torchvision.transforms.ToTensor()},
    {"target_transform": doubled},
    {"transform": T.Compose([T.Resize((4, 5)), T.ToTensor()]), "target_transform": doubled},
]


@pytest.mark.parametrize("options", TRANSFORMS)
def test_transforms_and_repr_are_torchvisions(name: str, folder: Path, options: Any) -> None:
    ours, theirs = pair(name, folder, **options)
    twin = pickle.loads(pickle.dumps(ours))
    assert type(twin.transforms) is type(ours.transforms) is type(theirs.transforms)
    assert repr(twin) == repr(ours) and getattr(twin.transforms, "transform", None) is twin.transform
    assert repr(ours) == repr(theirs) and str(ours.transforms) == str(theirs.transforms)
    if options:
        sample = default_loader(ours.samples[5][0]), 7
        assert equal(ours.transforms(*sample), theirs.transforms(*sample))
    # What is set later does not get there; neither does it in torchvision.
    for dataset in (ours, theirs):
        dataset.transform, dataset.target_transform = T.ToTensor(), None
    assert repr(ours) == repr(theirs)


def test_transforms_print_alike_without_torchvision(folder: Path) -> None:
    program = """
    import pickle, sys
    import forebay as fb
    from forebay import transforms as T
    dataset = fb.ImageFolder(sys.argv[1], T.Compose([T.Resize((4, 5)), T.ToTensor()]), abs)
    assert "torchvision" not in sys.modules
    image, target = dataset.transforms(fb.datasets.default_loader(dataset.samples[0][0]), -1)
    assert image.shape == (3, 4, 5) and target == 1
    print(repr(pickle.loads(pickle.dumps(dataset))))
    """
    done = children.run(program, folder)
    assert done.returncode == 0, done.stderr
    transform = T.Compose([T.Resize((4, 5)), T.ToTensor()])
    assert done.stdout.rstrip("\n") == repr(THEIRS.ImageFolder(str(folder), transform, abs))


def test_a_subclass_adds_lines_to_repr(name: str, folder: Path) -> None:
    shown = []
    for package in (fb, THEIRS):
        kind = type("Mine", (getattr(package, name),), {"extra_repr": lambda self: f"Split: train\nSeed: {len(self)}"})
        shown.append(repr(kind(str(folder), **REQUIRED[name])))
    assert shown[0] == shown[1] and "    Split: train\n    Seed: 24" in shown[0]


@pytest.mark.parametrize("options", TRANSFORMS)
def test_the_wrapper_for_transforms_v2_takes_them(name: str, folder: Path, options: Any) -> None:
    ours, theirs = (wrap_dataset_for_transforms_v2(dataset) for dataset in pair(name, folder, **options))
    assert type(ours).__name__ == type(theirs).__name__ == f"Wrapped{name}"
    assert len(ours) == len(theirs) == 24 and ours.classes == theirs.classes and ours.samples == theirs.samples
    for twin in (ours, pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert all(equal(twin[index], theirs[index]) for index in (0, 7, -1))
    assert len(ours.subset([9, 3])) == 2 and equal(ours.subset([9, 3])[0], theirs[9])
    # The dataset itself is left without transforms, as torchvision leaves it.
    plain = ours._dataset
    assert plain.transform is plain.target_transform is plain.transforms is None
    for dataset in (ours.subset([3, 20]), torch.utils.data.Subset(ours, [3, 20])):
        (samples,) = fb.DataLoader(dataset, 2, collate_fn=list)
        assert equal(samples[0], theirs[3]) and equal(samples[1], theirs[20])


def test_the_wrapper_refuses_keys_of_targets_in_the_same_words(name: str, folder: Path) -> None:
    for keys in ("all", ["boxes"], 3):
        errors = [
            raised(lambda one=one, keys=keys: wrap_dataset_for_transforms_v2(one, keys)) for one in pair(name, folder)
        ]
        assert type(errors[0]) is type(errors[1]) is ValueError and str(errors[0]) == str(errors[1])


def test_transforms_that_a_loader_would_leave_out_are_refused(folder: Path) -> None:
    dataset = fb.ImageFolder(folder)
    dataset.transforms = lambda image, target: (image, -target)
    wrapped = wrap_dataset_for_transforms_v2(dataset)
    assert wrapped[-1][1] == -1
    with pytest.raises(fb.errors.ConfigError, match="transforms of transform and target_transform alone"):
        fb.DataLoader(wrapped)


def listed(directory: Any, class_to_idx: Any, extensions: Any, is_valid_file: Any, allow_empty: Any) -> Any:
    """Every second file, the last class first."""
    files = sorted(Path(directory).glob("*/*.jpg"), reverse=True)[::2]
    return [(str(file), class_to_idx[file.parent.name]) for file in files]


class Static:
    seen: ClassVar[list[Any]] = []

    @staticmethod
    def make_dataset(directory: Any, class_to_idx: Any, extensions: Any = None, **rest: Any) -> Any:
        Static.seen.append((directory, class_to_idx, extensions, rest))
        return listed(directory, class_to_idx, extensions, **rest)


class Chosen:
    def find_classes(self, directory: Any) -> Any:
        assert directory == self.root  # type: ignore[attr-defined]
        return ["dog"], {"dog": 5}


class Relabelled:
    @classmethod
    def make_dataset(cls, directory: Any, class_to_idx: Any, **rest: Any) -> Any:
        found = THEIRS.DatasetFolder.make_dataset(directory, class_to_idx, **rest)
        return [(path, f"{cls.__name__} {label}") for path, label in found]


@pytest.mark.parametrize("mixin", [Static, Chosen, Relabelled])
def test_overridden_methods_are_called_as_torchvision_calls_them(name: str, folder: Path, mixin: type) -> None:
    Static.seen.clear()
    kinds = [type("Mine", (mixin, getattr(package, name)), {}) for package in (fb, THEIRS)]
    ours, theirs = (kind(folder, **REQUIRED[name]) for kind in kinds)
    for attribute in ("root", "classes", "class_to_idx", "samples", "targets"):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    assert equal(ours[1], theirs[1]) and equal(ours[-1], theirs[-1])
    if mixin is Static:
        (directory, class_to_idx, _, rest), expected = Static.seen
        assert (directory, class_to_idx, rest) == (*expected[:2], expected[3])


def test_an_overridden_make_dataset_may_call_the_one_above_it(name: str, folder: Path) -> None:
    seen = []
    for package in (fb, THEIRS):
        base = getattr(package, name)

        class Backwards(base):  # type: ignore[misc,valid-type]
            def make_dataset(self, directory: Any, class_to_idx: Any, **rest: Any) -> Any:
                return super().make_dataset(directory, class_to_idx, **rest)[::-1]

        dataset = Backwards(str(folder), **REQUIRED[name])
        seen.append(dataset.samples)
        assert dataset[0][1] == 1
    assert seen[0] == seen[1]


class Named(fb.ImageFolder):
    """Samples that `make_dataset` names, one of them twice."""

    @staticmethod
    def make_dataset(directory: Any, class_to_idx: Any, *rest: Any, **more: Any) -> Any:
        files = [Path(directory) / "dog" / "0001.jpg", Path(directory) / "cat" / "0000.jpg"]
        return [(files[0], 1), (files[1], 0), (files[0], 0)]


def test_samples_of_make_dataset_are_loaded_resumed_pickled_and_chosen(folder: Path) -> None:
    dataset = Named(folder, T.Compose([T.Resize((4, 5)), T.ToTensor()]))
    assert dataset.targets == [1, 0, 0] and dataset.root == folder
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "with_ids": True}
    loader = fb.DataLoader(dataset, 1, num_workers=2, **options)
    whole = [ids.item() for _, _, ids in loader]
    assert sorted(whole) == [0, 1, 2]
    loader = fb.DataLoader(dataset, 1, **options)
    iterator = iter(loader)
    images, target, ids = next(iterator)
    assert torch.equal(images[0], dataset[whole[0]][0]) and target.item() == dataset.targets[ids.item()]
    other = fb.DataLoader(pickle.loads(pickle.dumps(dataset)), 1, **options)
    other.load_state_dict(loader.state_dict())
    assert [ids.item() for _, _, ids in other] == whole[1:]
    assert dataset.subset([2, 0]).samples == [dataset.samples[2], dataset.samples[0]]


@pytest.mark.parametrize(
    ("samples", "named"),
    [([(3, 0)], "make_dataset: expected a path in each sample, got 3"), ([("a.jpg", ())], "labels: expected numbers")],
)
def test_samples_that_no_engine_can_read_are_named(folder: Path, samples: Any, named: str) -> None:
    kind = type("Mine", (fb.ImageFolder,), {"make_dataset": staticmethod(lambda *given, **named: samples)})
    with pytest.raises((ValueError, TypeError), match=named):
        kind(folder)


def test_a_manifest_has_its_own_samples(folder: Path) -> None:
    with pytest.raises(fb.errors.ConfigError, match="make_dataset: expected none with a manifest"):
        Named(manifest=written_manifest(folder))


def test_make_dataset_is_torchvisions(folder: Path) -> None:
    (folder / "none").mkdir()
    calls: list[tuple[Any, ...]] = [
        (folder, {"cat": 3, "dog": 1}, (".jpg",)),
        (str(folder), {"dog": 1}, ".jpg"),
        (folder, {"dog": 1}, None, lambda path: path.endswith("1.jpg")),
        (folder, {"dog": 1, "none": 0, "nowhere": 2, "no/where": 3}, (".jpg",), None, True),
        (folder.parent, {"data/dog": 1, "data/cat/": 0}, (".jpg",)),
        (folder, {".": 1}, (".jpg",)),
    ]
    for call in calls:
        assert fb.ImageFolder.make_dataset(*call) == THEIRS.ImageFolder.make_dataset(*call)
    refused: list[tuple[Any, ...]] = [
        (folder, None, (".jpg",)),
        (folder, {}, (".jpg",)),
        (folder, {"dog": 1}),
        (folder, {"dog": 1}, (".jpg",), bool),
        (folder, {"dog": 1, "none": 0, "nowhere": 2}, (".jpg", ".png")),
        (folder, {"dog": 1, "none": 0}, ".png"),
        (folder, {"dog": 1, "none": 0}, None, lambda path: False),
    ]
    for call in refused:
        ours, theirs = (
            raised(lambda kind=kind: kind.make_dataset(*call)) for kind in (fb.ImageFolder, THEIRS.ImageFolder)
        )
        assert isinstance(ours, type(theirs)) and ours.message == str(theirs), call  # type: ignore[attr-defined]


def test_what_is_wrong_with_a_root_is_said_in_the_same_words(name: str, folder: Path) -> None:
    (folder / "none").mkdir()
    options = {} if name == "ImageFolder" else {"extensions": (".jpg",)}
    for root in (folder / "cat", folder):
        errors = [
            raised(lambda root=root, package=package: made(package, name, root, **options)) for package in (fb, THEIRS)
        ]
        assert isinstance(errors[0], FileNotFoundError) and isinstance(errors[1], FileNotFoundError)
        # Ours are more by GIF.
        assert errors[0].message.removesuffix(", .gif") == str(errors[1])  # type: ignore[attr-defined]
    ours, theirs = (raised(lambda package=package: made(package, name, folder / "missing")) for package in (fb, THEIRS))
    assert isinstance(ours, FileNotFoundError) and isinstance(theirs, FileNotFoundError)
    assert (ours.errno, ours.filename) == (theirs.errno, str(theirs.filename))
    assert pair(name, folder, allow_empty=True)[0].classes == ["cat", "dog", "none"]
