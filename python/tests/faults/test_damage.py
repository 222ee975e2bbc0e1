"""Promise 6 and proof 3: every kind of damage is reported as what it is, nothing hangs, the books balance."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import children
import folders
import forebay as fb
from forebay import transforms as T

TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@dataclass
class Damaged:
    """A folder with every kind of damage, and what each is to be called."""

    root: Path
    dataset: fb.ImageFolder
    expected: dict[str, tuple[str, str]] = field(default_factory=dict)


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    root = tmp_path / "data"
    cat = root / "cat"
    folders.write_folder(root, 24)
    for name in (
        "truncated.jpg",
        "empty.jpg",
        "deleted.jpg",
        "became a directory.jpg",
        "ünïcode 猫.jpg",
        "new\nline.jpg",
    ):
        folders.picture(len(name)).save(cat / name)
    folders.picture(1).save(os.fsencode(cat) + b"/not \xff utf-8.jpg", format="JPEG")
    folders.picture(2).save(os.fsencode(cat) + b"/cut \xfe.jpg", format="JPEG")
    os.truncate(os.fsencode(cat) + b"/cut \xfe.jpg", 500)
    folders.truncate(cat / "truncated.jpg")
    folders.empty(cat / "empty.jpg")
    folders.text(cat / "text.png")
    (cat / "directory.jpg").mkdir()
    (cat / "dangling.jpg").symlink_to("nowhere.jpg")
    (cat / "loop.jpg").symlink_to("pool.jpg")
    (cat / "pool.jpg").symlink_to("loop.jpg")
    (cat / "up").symlink_to(root, target_is_directory=True)
    os.mkfifo(cat / "pipe.jpg")
    (root / "empty class").mkdir()
    dataset = fb.ImageFolder(root, transform=TO_TENSOR, allow_empty=True)
    (cat / "deleted.jpg").unlink()
    (cat / "became a directory.jpg").unlink()
    (cat / "became a directory.jpg").mkdir()
    expected = {
        "truncated.jpg": ("corrupt", "decode"),
        "empty.jpg": ("corrupt", "decode"),
        "text.png": ("undecodable", "decode"),
        "deleted.jpg": ("not_found", "fetch"),
        "became a directory.jpg": ("undecodable", "fetch"),
        "dangling.jpg": ("not_found", "fetch"),
        "loop.jpg": ("not_found", "fetch"),
        "pool.jpg": ("not_found", "fetch"),
        "pipe.jpg": ("undecodable", "fetch"),
        os.fsdecode(b"cut \xfe.jpg"): ("corrupt", "decode"),
    }
    return Damaged(root, dataset, expected)


def by_pillow(path: str) -> Any:
    """The picture as it has to be delivered, made without forebay."""
    with Image.open(os.fsencode(path)) as image:
        small = image.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR)
    return numpy.asarray(small, numpy.float32).transpose(2, 0, 1) / 255


def is_picture(image: Any, path: str) -> bool:
    return bool(numpy.abs(image.numpy() - by_pillow(path)).max() <= 2 / 255)


def last_books(loader: fb.DataLoader) -> dict[str, int]:
    return loader._engine.books()[-1]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_each_is_reported_as_what_it_is_and_the_books_balance(damaged: Damaged, on_error: str) -> None:
    loader = fb.DataLoader(damaged.dataset, 4, shuffle=True, on_error=on_error, with_ids=True)
    planned = [place["index"] for step in range(len(loader)) for place in loader.explain(step)]
    delivered = [sample for batch in loader for sample in zip(*batch, strict=True)]
    found = {os.path.basename(failure.path): (failure.code, failure.stage) for failure in loader.failures}
    assert found == damaged.expected
    assert all(failure.outcome == {"replace": "replaced", "skip": "skipped"}[on_error] for failure in loader.failures)
    books, bad = last_books(loader), len(damaged.expected)
    assert books["planned"] == len(damaged.dataset) == books["delivered"] + books["replaced"] + books["skipped"]
    assert (books["replaced"], books["skipped"]) == ((bad, 0) if on_error == "replace" else (0, bad))
    # What was delivered: the good ones as planned, and in place of each bad one its substitute or nothing.
    substitutes = {failure.index: failure.substitute for failure in loader.failures}
    expected = [substitutes.get(index, index) for index in planned]
    assert [int(index) for *_, index in delivered] == [index for index in expected if index is not None]
    for image, label, index in delivered:
        path, target = damaged.dataset.samples[index]
        assert is_picture(image, path) and label == target, path


def test_each_failure_has_an_address(damaged: Damaged) -> None:
    loader = fb.DataLoader(damaged.dataset, 4, on_error="replace")
    list(loader)
    for failure in loader.failures:
        assert damaged.dataset.samples[failure.index][0] == failure.path
        assert os.path.basename(failure.path).encode("utf-8", "surrogateescape").split(b" ")[0] in os.fsencode(
            failure.message
        )
        assert failure.hint and failure.epoch == 0 and failure.attempts >= 1
        assert failure.substitute is not None
        assert failure.step == failure.position // 4
    loop = next(failure for failure in loader.failures if failure.path.endswith("loop.jpg"))
    assert loop.errno == 40


def test_replacing_keeps_every_batch_whole(damaged: Damaged) -> None:
    whole, rest = divmod(len(damaged.dataset), 4)
    sizes = [len(labels) for _, labels in fb.DataLoader(damaged.dataset, 4, on_error="replace")]
    assert sizes == [4] * whole + [rest] * (rest > 0)


@pytest.mark.parametrize("threads", [1, 5])
def test_raise_names_the_first_in_plan_order(damaged: Damaged, threads: int) -> None:
    loader = fb.DataLoader(damaged.dataset, 4, shuffle=True, num_workers=threads)
    planned = [place["path"] for step in range(len(loader)) for place in loader.explain(step)]
    first = next(path for path in planned if os.path.basename(path) in damaged.expected)
    with pytest.raises(fb.ForebayError) as raised:
        list(loader)
    code, stage = damaged.expected[os.path.basename(first)]
    assert (raised.value.path, raised.value.code, raised.value.stage) == (first, code, stage)
    assert raised.value.index is not None and damaged.dataset.samples[raised.value.index][0] == first


def test_links_upwards_and_empty_classes_are_noted(damaged: Damaged) -> None:
    notes = {os.path.relpath(path, damaged.root): message for path, message in damaged.dataset.notes}
    assert "above" in notes["cat/up/cat"] or "above" in notes["cat/up"]
    assert "no samples" in notes["empty class"]


def test_a_directory_with_the_name_of_an_image_is_no_sample(damaged: Damaged) -> None:
    assert not any(path.endswith("/directory.jpg") for path, _ in damaged.dataset.samples)


def test_odd_names_are_delivered(damaged: Damaged) -> None:
    names = [os.path.basename(path) for path, _ in damaged.dataset.samples]
    odd = [names.index(name) for name in ("ünïcode 猫.jpg", "new\nline.jpg", os.fsdecode(b"not \xff utf-8.jpg"))]
    ((images, _),) = fb.DataLoader(damaged.dataset.subset(odd), 3)
    assert len(images) == 3
    for image, index in zip(images, odd, strict=True):
        assert is_picture(image, damaged.dataset.samples[index][0])


def test_an_empty_class_is_refused_by_name(tmp_path: Path) -> None:
    folders.write_folder(tmp_path, 2)
    (tmp_path / "eel").mkdir()
    with pytest.raises(FileNotFoundError, match="for the classes eel"):
        fb.ImageFolder(tmp_path)


def test_too_many_failures_end_the_run(damaged: Damaged) -> None:
    loader = fb.DataLoader(damaged.dataset, 4, on_error="replace", max_failures=3)
    with pytest.raises(fb.errors.TooManyFailuresError, match="max_failures allows 3"):
        list(loader)


def test_enough_failures_allowed_end_nothing(damaged: Damaged) -> None:
    loader = fb.DataLoader(damaged.dataset, 4, on_error="replace", max_failures=len(damaged.expected))
    assert sum(len(labels) for _, labels in loader) == len(damaged.dataset)


def test_a_folder_of_nothing_but_damage_ends_with_an_error(tmp_path: Path) -> None:
    for path in folders.write_folder(tmp_path, 6):
        folders.empty(path)
    loader = fb.DataLoader(fb.ImageFolder(tmp_path, transform=TO_TENSOR), 2, on_error="replace")
    with pytest.raises(fb.ForebayError):
        list(loader)
    skipping = fb.DataLoader(fb.ImageFolder(tmp_path, transform=TO_TENSOR), 2, on_error="skip")
    assert list(skipping) == []
    assert last_books(skipping)["skipped"] == 6


def test_one_item_raises_what_the_loader_would(damaged: Damaged) -> None:
    names = [os.path.basename(path) for path, _ in damaged.dataset.samples]
    with pytest.raises(fb.errors.CorruptError, match="truncated"):
        damaged.dataset[names.index("truncated.jpg")]
    with pytest.raises(FileNotFoundError):
        damaged.dataset[names.index("deleted.jpg")]


@pytest.fixture
def readable_by_all() -> Iterator[Path]:
    """pytest's own folders are closed to other users."""
    root = Path(tempfile.mkdtemp(prefix="forebay-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


def test_an_unreadable_file_is_denied(readable_by_all: Path) -> None:
    paths = folders.write_folder(readable_by_all, 4)
    paths[1].chmod(0)
    program = """
        import os, sys
        import forebay as fb
        from forebay import transforms as T
        if os.geteuid() == 0:
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
        dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
        loader = fb.DataLoader(dataset, 2, on_error="replace", output="numpy")
        list(loader)
        print([(failure.code, failure.stage, failure.errno, failure.path) for failure in loader.failures])
        print(loader.failures[0].hint)
    """
    done = children.run(program, readable_by_all)
    assert done.returncode == 0, done.stderr
    assert str([("denied", "fetch", 13, str(paths[1]))]) in done.stdout
    assert "mode 0" in done.stdout
