"""Landmarks: pictures that a loader knows from an earlier epoch. What it jumps over must not change a pixel."""

import io
import tarfile
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


WITH_LANDMARKS = 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pictures" / "noise"
    place.mkdir(parents=True)
    # Those with the last two have no landmarks.
    kinds: list[dict[str, object]] = [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_rows": 1}]
    for number in range(12):
        write(place / f"{number:02}.jpg", number, **kinds[number % 4])
    Image.open(place / "00.jpg").convert("L").save(place / "12.jpg", quality=92)
    return place.parent


def loader(folder: Path, decode: str, indices: list[int] | None = None) -> fb.DataLoader:
    dataset = fb.ImageFolder(folder, transform=t.Compose([t.RandomResizedCrop(96), t.ToTensor()]))
    # The caller's own order: no next epoch is begun, so that what is known is counted exactly.
    order = indices or range(len(dataset))
    return fb.DataLoader(dataset, batch_size=4, sampler=order, seed=3, num_workers=2, decode=decode)


def epoch(loader: fb.DataLoader, number: int) -> list[np.ndarray]:
    loader.set_epoch(number)
    return [np.asarray(images) for images, _ in loader]


def known_pictures(loader: fb.DataLoader) -> int:
    """How many were decoded with landmarks so far."""
    return int(loader.stats()["landmarks"]["pictures"])


def same(known: list[np.ndarray], fresh: list[np.ndarray]) -> bool:
    return len(fresh) > 0 and all(np.array_equal(a, b) for a, b in zip(known, fresh, strict=True))


@pytest.mark.parametrize("decode", ["faithful", "fast"])
def test_a_picture_that_is_known_has_the_same_pixels(folder: Path, decode: str) -> None:
    experienced = loader(folder, decode)
    for number in range(6):
        fresh = loader(folder, decode)
        assert same(epoch(experienced, number), epoch(fresh, number))
        assert known_pictures(experienced) == number * WITH_LANDMARKS, "each, from its second epoch on"
        assert known_pictures(fresh) == 0
    assert 0 < experienced.stats()["landmarks"]["bytes"] < 100_000


def test_the_one_picture_of_a_sample_of_several_fields_is_known(folder: Path, tmp_path: Path) -> None:
    pictures = sorted(folder.rglob("*.jpg"))
    with tarfile.open(tmp_path / "train.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, picture in enumerate(pictures):
            # Another JPEG of the sample, which is decoded before it, and as a whole.
            archive.add(pictures[number - 1], f"{number:05}.before.jpg")
            archive.add(picture, f"{number:05}.jpg")
            label = tarfile.TarInfo(f"{number:05}.cls")
            label.size = 1
            archive.addfile(label, io.BytesIO(b"7"))

    def shards() -> fb.DataLoader:
        crop = t.Compose([t.RandomResizedCrop(96), t.ToTensor()])
        whole = t.Compose([t.Resize((32, 32)), t.ToTensor()])
        dataset = fb.Shards(
            tmp_path / "train.tar",
            fields=("before.jpg", "jpg", "cls"),
            transforms={"before.jpg": whole, "jpg": crop},
        )
        return fb.DataLoader(dataset, batch_size=4, sampler=range(len(dataset)), seed=3, num_workers=2)

    def images(loader: fb.DataLoader, number: int) -> list[np.ndarray]:
        loader.set_epoch(number)
        return [np.asarray(column) for before, images, _ in loader for column in (before, images)]

    experienced = shards()
    for number in range(3):
        fresh = shards()
        assert same(images(experienced, number), images(fresh, number))
        assert known_pictures(experienced) == number * WITH_LANDMARKS and known_pictures(fresh) == 0


def test_switched_off_nothing_is_known_and_the_pixels_are_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experienced = loader(folder, "faithful")
    monkeypatch.setenv("FOREBAY_LANDMARKS", "0")
    without = loader(folder, "faithful")
    for number in range(2):
        assert same(epoch(experienced, number), epoch(without, number))
    assert known_pictures(experienced) == WITH_LANDMARKS
    assert without.stats()["landmarks"] == {"pictures": 0, "bytes": 0}


def test_another_picture_in_its_place_is_not_mistaken_for_it(folder: Path) -> None:
    first, other = folder / "noise" / "00.jpg", folder / "noise" / "04.jpg"
    # Both have the same length: bytes after the end marker are ignored.
    size = max(first.stat().st_size, other.stat().st_size)
    first.write_bytes(first.read_bytes().ljust(size, b"\0"))
    experienced = loader(folder, "faithful", [0])
    for number in range(2):
        epoch(experienced, number)
    assert known_pictures(experienced) == 1
    first.write_bytes(other.read_bytes().ljust(size, b"\0"))
    assert same(epoch(experienced, 2), epoch(loader(folder, "faithful", [0]), 2))
    assert known_pictures(experienced) == 1, "the new picture was not known"


def verdict(loader: fb.DataLoader, number: int) -> str | None:
    try:
        epoch(loader, number)
    except fb.errors.ForebayError as error:
        return str(error)
    return None


def test_damage_is_found_where_it_was_not_before(folder: Path) -> None:
    experienced = loader(folder, "faithful", [0])
    for number in range(2):
        epoch(experienced, number)
    assert known_pictures(experienced) == 1
    path = folder / "noise" / "00.jpg"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4000] = bytes(4000)
    path.write_bytes(content)
    # A crop above the damage does not meet it: found as soon as a loader that knows nothing finds it.
    for number in range(2, 20):
        expected = verdict(loader(folder, "faithful", [0]), number)
        assert verdict(experienced, number) == expected
        if expected:
            assert "noise/00.jpg" in expected
            break
    else:
        pytest.fail("no crop met the damage")
