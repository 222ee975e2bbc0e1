"""`ImageFolder` and `DatasetFolder` are torchvision's, seen from outside."""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torchvision
from PIL import Image

import children
import folders
import forebay as fb
from forebay import transforms as T
from forebay.datasets import IMG_EXTENSIONS, default_loader


@pytest.fixture
def odd_tree(tmp_path: Path) -> Path:
    """Depth, hidden files, upper case, other files, links, and names that sort in unexpected ways."""
    root = tmp_path / "odd"
    names = [
        "b/1.jpg",
        "b/sub/2.JPG",
        "b/sub/deeper/3.Png",
        "b/sub-x/4.jpeg",
        "b/sub.y/5.webp",
        "b/.hidden.jpg",
        "b/.hidden/6.jpg",
        "b/10.jpg",
        "b/9.jpg",
        "b/ünï.jpg",
        "b/new\nline.jpg",
        "b/.jpg",
        "B/7.tif",
        "a b/8.bmp",
        "Z/9.PPM",
        ".dot/10.tiff",
        "b/x.jpg/inside.jpg",
    ]
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.picture(number).save(path, format="PPM" if name.endswith("PPM") else "PNG")
    for name in ("b/notes.txt", "b/jpg", "b/picture.jpg.part", "top.jpg"):
        (root / name).write_text("no image")
    (root / "linked").symlink_to(root / "a b", target_is_directory=True)
    (root / "b" / "link.jpg").symlink_to(root / "b" / "1.jpg")
    (root / "Z" / "sub").symlink_to(root / "b" / "sub", target_is_directory=True)
    return root


def both(root: Path, **options: Any) -> tuple[fb.ImageFolder, Any]:
    return fb.ImageFolder(root, **options), torchvision.datasets.ImageFolder(root, **options)


def assert_equal(ours: fb.DatasetFolder, theirs: Any) -> None:
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.samples == theirs.samples
    assert ours.targets == theirs.targets
    assert len(ours) == len(theirs)


def test_samples_classes_and_targets_are_torchvisions(odd_tree: Path) -> None:
    ours, theirs = both(odd_tree)
    assert_equal(ours, theirs)
    assert ours.imgs == theirs.imgs
    assert ours.samples[0][0].startswith(str(odd_tree))


def test_a_root_given_as_text_stays_as_it_was_given(odd_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(odd_tree.parent)
    for root in ("odd", "./odd", "odd/"):
        assert fb.ImageFolder(root).samples == torchvision.datasets.ImageFolder(root).samples, root
    monkeypatch.setenv("HOME", str(odd_tree.parent))
    assert fb.ImageFolder("~/odd").samples == torchvision.datasets.ImageFolder("~/odd").samples


def test_is_valid_file_replaces_the_endings(odd_tree: Path) -> None:
    assert_equal(*both(odd_tree, is_valid_file=lambda path: not path.endswith(".JPG") and "top" not in path))


def test_is_valid_file_is_asked_in_torchvisions_order(odd_tree: Path) -> None:
    asked: list[list[str]] = []
    for kind in (fb.ImageFolder, torchvision.datasets.ImageFolder):
        paths: list[str] = []
        kind(odd_tree, is_valid_file=lambda path, paths=paths: not paths.append(path))
        asked.append(paths)
    # Files of the root's own folder are nobody's: torchvision does not ask about them either.
    assert len(asked[0]) > 20 and asked[0] == asked[1]


def test_names_that_are_not_utf_8_are_found_like_torchvisions(tmp_path: Path) -> None:
    for number in range(300):
        directory = tmp_path / f"class {number % 3}" / f"{number % 7}"
        directory.mkdir(parents=True, exist_ok=True)
        name = bytes([65 + number % 26, 128 + number % 100]) + f"{number * 31 % 300}.jpg".encode()
        open(os.fsencode(directory) + b"/" + name, "wb").close()
    ours, theirs = both(tmp_path)
    assert len(ours) == 300
    assert_equal(ours, theirs)


def test_an_exception_of_is_valid_file_is_the_users_own(odd_tree: Path) -> None:
    def refuse(path: str) -> bool:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fb.ImageFolder(odd_tree, is_valid_file=refuse)


def test_empty_classes_are_allowed_on_demand(odd_tree: Path) -> None:
    (odd_tree / "nothing").mkdir()
    assert_equal(*both(odd_tree, allow_empty=True))
    with pytest.raises(FileNotFoundError, match="nothing"):
        fb.ImageFolder(odd_tree)


def test_find_classes_may_be_overridden(odd_tree: Path) -> None:
    def find_classes(self: Any, directory: str) -> tuple[list[str], dict[str, int]]:
        return ["b", "a b"], {"b": 7, "a b": 3}

    class Ours(fb.ImageFolder):
        pass

    class Theirs(torchvision.datasets.ImageFolder):
        pass

    for kind in (Ours, Theirs):
        kind.find_classes = find_classes  # type: ignore[method-assign]
    assert_equal(Ours(odd_tree), Theirs(odd_tree))


def test_a_class_without_a_folder_is_empty(odd_tree: Path) -> None:
    class Chosen(fb.ImageFolder):
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            return ["b", "missing"], {"b": 0, "missing": 1}

    assert set(Chosen(odd_tree, allow_empty=True).targets) == {0}
    with pytest.raises(FileNotFoundError, match="missing"):
        Chosen(odd_tree)


def test_items_are_torchvisions(odd_tree: Path) -> None:
    ours, theirs = both(
        odd_tree, is_valid_file=lambda path: path.lower().endswith((".jpg", ".png", ".webp", ".bmp")), allow_empty=True
    )
    for index in (0, 5, -1):
        (image, label), (expected, expected_label) = ours[index], theirs[index]
        assert isinstance(image, Image.Image) and image.mode == "RGB"
        assert label == expected_label
        assert numpy.array_equal(numpy.asarray(image), numpy.asarray(expected))
    with pytest.raises(IndexError):
        ours[len(ours)]
    with pytest.raises(TypeError):
        ours["0"]  # type: ignore[index]


def test_transforms_apply_to_items(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, T.Compose([T.Resize((8, 9)), T.ToTensor()]), target_transform=lambda label: -label)
    image, target = dataset[1]
    assert isinstance(image, torch.Tensor) and image.shape == (3, 8, 9) and image.dtype == torch.float32
    assert target == 0 and dataset[-1][1] == -1


def test_random_items_follow_torchs_seed(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, T.Compose([T.RandomResizedCrop(8), T.ToTensor()]))
    torch.manual_seed(3)
    first = dataset[0][0]
    assert not torch.equal(dataset[0][0], first)
    torch.manual_seed(3)
    assert torch.equal(dataset[0][0], first)


def test_a_loader_of_ones_own(folder: Path) -> None:
    dataset = fb.DatasetFolder(folder, lambda path: len(path), extensions=(".jpg",))
    assert dataset[0] == (len(dataset.samples[0][0]), 0)


def test_torchvisions_default_loader_is_the_native_one(folder: Path) -> None:
    assert fb.ImageFolder(folder, loader=torchvision.datasets.folder.default_loader)._open is None
    assert fb.ImageFolder(folder, loader=default_loader)._open is None
    assert numpy.asarray(default_loader(fb.ImageFolder(folder).samples[0][0])).shape == (48, 64, 3)


def test_a_subset_has_its_samples_in_its_order(folder: Path) -> None:
    dataset = fb.ImageFolder(folder)
    chosen = dataset.subset([5, 0, -1])
    assert chosen.samples == [dataset.samples[index] for index in (5, 0, -1)]
    assert chosen.subset([2]).samples == [dataset.samples[-1]]
    assert chosen.classes == dataset.classes and len(dataset) == 24
    with pytest.raises(IndexError, match="24"):
        dataset.subset([24])


def negative(label: int) -> int:
    return -label


def is_jpeg(path: str) -> bool:
    return path.endswith(".jpg")


class Numbered(fb.ImageFolder):
    """With classes, a constructor and an attribute of its own."""

    def __init__(self, root: Path, first: int) -> None:
        self.first = first
        super().__init__(root, is_valid_file=is_jpeg)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        return ["cat", "dog"], {"cat": self.first, "dog": self.first + 1}


def datasets(root: Path) -> list[fb.DatasetFolder]:
    transform = T.Compose([T.Resize((8, 9)), T.RandomHorizontalFlip(), T.ToTensor()])
    whole = fb.ImageFolder(root, transform, negative)
    chosen = whole.subset([5, 0, -1, 5])
    return [
        whole,
        chosen,
        chosen.subset([2, 0]),
        chosen.subset([]),
        fb.DatasetFolder(root, len, (".jpg",)),
        Numbered(root, 5),
        Numbered(root, 5).subset(range(1, 20)),
    ]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "copy"])
def test_a_dataset_is_pickled_and_copied(folder: Path, number: int, how: str) -> None:
    dataset = datasets(folder)[number]
    ways: dict[str, Any] = {
        "pickle": lambda value: pickle.loads(pickle.dumps(value)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }
    twin = ways[how](ways[how](dataset))
    assert type(twin) is type(dataset) and repr(twin) == repr(dataset)
    assert_equal(twin, dataset)
    assert (twin.transform, twin.loader, twin.extensions) == (dataset.transform, dataset.loader, dataset.extensions)
    assert vars(twin).get("first") == vars(dataset).get("first")
    if len(dataset) > 1:
        torch.manual_seed(1)
        value, label = dataset[1]
        torch.manual_seed(1)
        again, other = twin[1]
        assert label == other and (torch.equal(value, again) if torch.is_tensor(value) else value == again)
        assert twin.subset([1]).samples == [dataset.samples[1]]
        loaders = [fb.DataLoader(one, 2, collate_fn=len) for one in (dataset, twin)]
        loaders[1].load_state_dict(loaders[0].state_dict())


def test_a_deep_copy_is_the_copys_own(folder: Path) -> None:
    dataset = fb.ImageFolder(folder, transform=T.Compose([T.ToTensor()]))
    both = copy.deepcopy([dataset, dataset])
    assert both[0] is both[1] and both[0].transform is not dataset.transform
    both[0].transform = None
    both[0].classes.append("more")
    assert dataset.transform is not None and dataset.classes == ["cat", "dog"]


def test_a_folder_that_changed_is_not_unpickled(folder: Path) -> None:
    pickled = [pickle.dumps(dataset) for dataset in datasets(folder)[:2]]
    os.remove(fb.ImageFolder(folder).samples[3][0])
    for data in pickled:
        with pytest.raises(fb.errors.StateMismatchError, match=r"expected the 24 samples .* pickled, got 23"):
            pickle.loads(data)


def test_a_dataset_goes_to_another_process(folder: Path, tmp_path: Path) -> None:
    dataset = fb.ImageFolder(folder, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()])).subset([5, 0, 23])
    (tmp_path / "dataset.pickle").write_bytes(pickle.dumps(dataset.subset([2, 0])))
    program = """
    import pickle, sys
    with open(sys.argv[1], "rb") as file:
        dataset = pickle.load(file)
    assert "torch" not in sys.modules and "torchvision" not in sys.modules  # they take seconds
    import forebay as fb
    print([path for path, _ in dataset.samples])
    print([images.shape for images, _ in fb.DataLoader(dataset, 2, output="numpy")])
    """
    done = children.run(program, tmp_path / "dataset.pickle")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([dataset.samples[index][0] for index in (2, 0)]), "[(2, 3, 8, 8)]"]


def test_labels_outside_what_fits_are_named(folder: Path) -> None:
    for first in (-1, 2**32):
        with pytest.raises(fb.errors.ConfigError, match=r"class_to_idx\['cat'\]: expected"):
            Numbered(folder, first)


def test_transform_may_be_set_later_and_is_checked(folder: Path) -> None:
    dataset = fb.ImageFolder(folder)
    dataset.transform = T.ToTensor()
    assert dataset[0][0].shape == (3, 48, 64)
    with pytest.raises(fb.errors.ConfigError):
        dataset.transform = T.Normalize([0.5], [0.5])


@pytest.mark.parametrize("name", ["samples", "targets", "imgs"])
def test_what_no_loader_would_see_cannot_be_set(folder: Path, name: str) -> None:
    dataset = fb.ImageFolder(folder)
    before = list(dataset.samples)
    with pytest.raises(fb.errors.ConfigError, match=rf"{name}: .*\n.*subset.*torch.utils.data.Subset"):
        setattr(dataset, name, [])
    assert dataset.samples == before


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda root: fb.ImageFolder(root / "missing"), "missing"),
        (lambda root: fb.ImageFolder(root / "cat"), "Couldn't find any class folder in"),
        (lambda root: fb.ImageFolder(root / "cat" / "0000.jpg"), "0000.jpg"),
        (lambda root: fb.DatasetFolder(root, len), "extensions and is_valid_file"),
        (lambda root: fb.DatasetFolder(root, len, (".jpg",), is_valid_file=bool), "extensions and is_valid_file"),
        (lambda root: fb.DatasetFolder(root, len, ()), "extensions: expected"),
        (lambda root: fb.DatasetFolder(root, "loader", (".jpg",)), "loader: expected a callable, got 'loader'"),
        (lambda root: fb.ImageFolder(root, target_transform=3), "target_transform: expected a callable, got 3"),
        (lambda root: fb.ImageFolder(root, transform="Resize"), "transform: expected a transform or a callable"),
        (
            lambda root: fb.DatasetFolder(root, len, (".gif",)),
            "Found no valid file for the classes cat, dog. Supported extensions are: .gif",
        ),
    ],
)
def test_bad_input_is_named(folder: Path, make: Any, named: str) -> None:
    with pytest.raises((fb.errors.ConfigError, fb.errors.NotFoundError, OSError), match=named):
        make(folder)


def test_a_missing_root_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        fb.ImageFolder(tmp_path / "missing")
    assert raised.value.filename == str(tmp_path / "missing")
    assert pickle.loads(pickle.dumps(raised.value)).errno == 2


def test_the_endings_are_torchvisions_and_gif() -> None:
    assert set(IMG_EXTENSIONS) == {*torchvision.datasets.folder.IMG_EXTENSIONS, ".gif"}


def test_names_that_are_not_utf8_are_those_of_os(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/cat"
    os.mkdir(folder)
    folders.picture(1).save(folder + b"/\xff.jpg", format="JPEG")
    dataset = fb.ImageFolder(tmp_path)
    assert dataset.samples == torchvision.datasets.ImageFolder(tmp_path).samples
    assert dataset[0][1] == 0
