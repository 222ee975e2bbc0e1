"""Pictures that a loader knows from the epoch before: what it jumps over must not change a pixel."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forebay as fb
from forebay import transforms as t


def write(path: Path, seed: int, **options: object) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=92, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pictures" / "noise"
    place.mkdir(parents=True)
    kinds: list[dict[str, object]] = [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_rows": 1}]
    for number in range(12):
        write(place / f"{number:02}.jpg", number, **kinds[number % 4])
    Image.open(place / "00.jpg").convert("L").save(place / "12.jpg", quality=92)
    return place.parent


def loader(folder: Path, decode: str) -> fb.DataLoader:
    dataset = fb.ImageFolder(folder, transform=t.Compose([t.RandomResizedCrop(96), t.ToTensor()]))
    return fb.DataLoader(dataset, batch_size=4, shuffle=True, seed=3, num_workers=2, decode=decode)


def epoch(loader: fb.DataLoader, number: int) -> list[np.ndarray]:
    loader.set_epoch(number)
    return [np.asarray(images) for images, _ in loader]


@pytest.mark.parametrize("decode", ["faithful", "fast"])
def test_a_picture_that_is_known_has_the_same_pixels(folder: Path, decode: str) -> None:
    experienced = loader(folder, decode)
    for number in range(6):
        known, fresh = epoch(experienced, number), epoch(loader(folder, decode), number)
        assert all(np.array_equal(a, b) for a, b in zip(known, fresh, strict=True))


def test_another_picture_in_its_place_is_not_mistaken_for_it(folder: Path) -> None:
    experienced = loader(folder, "faithful")
    epoch(experienced, 0)
    first, other = folder / "noise" / "00.jpg", folder / "noise" / "04.jpg"
    # As long as the one before, to the byte: what follows the end marker is nobody's business.
    size = max(first.stat().st_size, other.stat().st_size)
    first.write_bytes(first.read_bytes().ljust(size, b"\0"))
    epoch(experienced, 1)
    first.write_bytes(other.read_bytes().ljust(size, b"\0"))
    epoch(experienced, 2)  # its first batches may have been made before
    known, fresh = epoch(experienced, 3), epoch(loader(folder, "faithful"), 3)
    assert all(np.array_equal(a, b) for a, b in zip(known, fresh, strict=True))


def test_damage_is_found_where_it_was_not_before(folder: Path) -> None:
    experienced = loader(folder, "faithful")
    epoch(experienced, 0)
    path = folder / "noise" / "00.jpg"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = bytes(4000)
    path.write_bytes(content)
    with pytest.raises(fb.errors.ForebayError, match=r"noise/00\.jpg"):
        for number in range(1, 20):
            epoch(experienced, number)
