"""Same seed, any threads: identical bytes. Another epoch: another order and other crops."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import folders
import forebay as fb
from forebay import transforms as T

Digests = Callable[[Iterable[Any]], list[str]]


@pytest.fixture
def dataset(folder: Path, augment: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(folder, transform=augment)


@pytest.mark.parametrize(("threads", "io_threads"), [(2, 1), (5, 8), (1, 32)])
def test_threads_never_matter(dataset: fb.ImageFolder, digests: Digests, threads: int, io_threads: int) -> None:
    expected = digests(fb.DataLoader(dataset, 5, shuffle=True, num_workers=1, io_threads=1))
    assert digests(fb.DataLoader(dataset, 5, shuffle=True, num_workers=threads, io_threads=io_threads)) == expected


def without(jpeg: bytes, marker: int) -> bytes:
    """A JPEG without the segments of a kind."""
    at, rest = 2, jpeg[:2]
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        rest += jpeg[at:end] if jpeg[at + 1] != marker else b""
        at = end
    return rest + jpeg[at:]


@pytest.mark.parametrize("decode", ["faithful", "fast"])
def test_pictures_without_tables_are_what_pillow_says_on_any_threads(
    tmp_path: Path, digests: Digests, decode: str
) -> None:
    """Without quantisation tables they are damaged, and without Huffman tables they have those of the standard: never
    those of another picture, which depend on what a thread has decoded before."""
    folders.write_folder(tmp_path, 24)
    for number in range(24, 48):
        # Another quality has other tables.
        folders.picture(number).save(tmp_path / "cat" / f"{number}.jpg", quality=20 + number, optimize=number % 3 == 0)
    refused = 0
    paths = sorted(tmp_path.glob("*/*.jpg"))
    for number, path in enumerate(paths):
        if number % 3:
            path.write_bytes(without(path.read_bytes(), [0xDB, 0xC4][number % 3 - 1]))
        try:
            numpy.asarray(Image.open(path))
        except OSError:
            refused += 1
            assert number % 3 == 1
    assert refused == len(paths) // 3
    dataset = fb.ImageFolder(tmp_path, transform=T.Compose([T.Resize((16, 16)), T.ToTensor()]))

    def outcome(threads: int) -> tuple[list[str], dict[str, int], list[str]]:
        loader = fb.DataLoader(dataset, 5, shuffle=True, on_error="replace", num_workers=threads, decode=decode)
        delivered = digests(loader)
        return delivered, loader._engine.books()[-1], sorted(failure.path for failure in loader.failures)

    expected = outcome(1)
    assert expected[1]["replaced"] == refused
    for threads in (1, 2, 4):
        assert outcome(threads) == expected


def test_batch_size_changes_neither_order_nor_pixels(dataset: fb.ImageFolder, digests: Digests) -> None:
    assert digests(fb.DataLoader(dataset, 1, shuffle=True)) == digests(fb.DataLoader(dataset, 7, shuffle=True))


def test_another_epoch_has_another_order(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, 24, shuffle=True)
    orders = [[place["index"] for place in loader.explain(0, epoch)] for epoch in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(24))
    assert orders[0] != orders[1] != orders[2]


def test_another_epoch_has_other_crops_of_the_same_sample(dataset: fb.ImageFolder, digests: Digests) -> None:
    loader = fb.DataLoader(dataset, 4)
    first, second = digests(loader), digests(loader)
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_another_seed_has_another_order_and_other_crops(dataset: fb.ImageFolder, digests: Digests) -> None:
    first, second = (digests(fb.DataLoader(dataset, 4, shuffle=True, seed=seed)) for seed in (1, 2))
    assert not set(first) & set(second)


def test_an_epoch_prefetched_across_the_boundary_is_the_same_as_a_fresh_one(
    dataset: fb.ImageFolder, digests: Digests
) -> None:
    loader = fb.DataLoader(dataset, 4, shuffle=True)
    digests(loader)
    fresh = fb.DataLoader(dataset, 4, shuffle=True)
    fresh.set_epoch(1)
    assert digests(loader) == digests(fresh)


def test_set_epoch_after_an_epoch_leaves_the_prefetched_one(dataset: fb.ImageFolder, digests: Digests) -> None:
    loader = fb.DataLoader(dataset, 4, shuffle=True)
    first = digests(loader)
    loader.set_epoch(0)
    assert digests(loader) == first


def test_a_subset_keeps_its_own_order_and_labels(dataset: fb.ImageFolder) -> None:
    chosen = [20, 3, 11]
    batches = list(fb.DataLoader(dataset.subset(chosen), 3))
    assert batches[0][1].tolist() == [dataset.targets[index] for index in chosen]
