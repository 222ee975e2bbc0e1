"""`decode="fast"`: nearly the same pixels in the same places, the same order, the same verdicts about files."""

from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import folders
import forebay as fb
from forebay import transforms as T
from forebay.errors import ConfigError

TRAINING = [T.RandomResizedCrop(56), T.RandomHorizontalFlip(), T.PILToTensor()]
EVALUATION = [T.Resize(60), T.CenterCrop(56), T.PILToTensor()]


def batches(root: Path, steps: list[Any], **options: Any) -> list[Any]:
    options = {"batch_size": 5, "shuffle": True, "seed": 3, "output": "numpy"} | options
    with fb.DataLoader(fb.ImageFolder(root, transform=T.Compose(steps)), **options) as loader:
        return [images for images, _ in loader]


def pixels(root: Path, steps: list[Any], **options: Any) -> Any:
    return numpy.concatenate(batches(root, steps, **options)).astype(float)


def decibels(ours: Any, theirs: Any) -> float:
    return float(10 * numpy.log10(255**2 / numpy.mean((ours - theirs) ** 2)))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    folders.write_folder(root, 20, width=400, height=300)
    return root


@pytest.mark.parametrize("steps", [TRAINING, EVALUATION, [T.RandomResizedCrop(224), T.PILToTensor()]])
def test_pixels_differ_and_little(photos: Path, steps: list[Any]) -> None:
    faithful, fast = pixels(photos, steps), pixels(photos, steps, decode="fast")
    assert not numpy.array_equal(faithful, fast)
    # Photographs: docs/decode.md. These have waves as short as 25 pixels, and noise in all colours.
    assert decibels(fast, faithful) > 38
    assert abs(numpy.mean(fast - faithful)) < 0.2


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(150, 200), (112, 149), (75, 100), (37, 50), (20, 26), (290, 390)])
def test_nothing_is_shifted(tmp_path: Path, size: tuple[int, int], subsampling: str) -> None:
    """Of Pillow's results, that of the picture itself is nearer than those of it moved by a third of a pixel."""
    (tmp_path / "one").mkdir()
    folders.picture(7, 400, 300).save(tmp_path / "one/picture.jpg", quality=95, subsampling=subsampling)
    inner = (slice(3, -3), slice(3, -3))  # moved pictures have no edges
    ours = pixels(tmp_path, [T.Resize(size), T.PILToTensor()], decode="fast")[0].transpose(1, 2, 0)[inner]
    picture = Image.open(tmp_path / "one/picture.jpg")

    def nearness(x: float, y: float) -> float:
        moves = (1, 0, x * 400 / size[1], 0, 1, y * 300 / size[0])
        moved = picture.transform(picture.size, Image.Transform.AFFINE, moves, Image.Resampling.BICUBIC)
        resized = moved.resize(size[::-1], Image.Resampling.BILINEAR)
        return decibels(ours, numpy.asarray(resized).astype(float)[inner])

    straight = nearness(0, 0)
    for x, y in ((1 / 3, 0), (0, 1 / 3)):
        there, back = nearness(x, y), nearness(-x, -y)
        # As far to one side as to the other, too: where a block has few samples, ours is sharper than Pillow's.
        assert straight > max(there, back) and abs(there - back) < 1.5


def test_other_formats_and_colours_are_as_ever(tmp_path: Path) -> None:
    root = tmp_path / "others"
    (root / "a").mkdir(parents=True)
    picture = folders.picture(1, 200, 160)
    picture.save(root / "a/1.png")
    picture.save(root / "a/2.webp", quality=90)
    picture.save(root / "a/3.gif")
    picture.convert("CMYK").save(root / "a/4.jpg")
    picture.save(root / "a/5.jpg", keep_rgb=True)
    assert numpy.array_equal(pixels(root, EVALUATION), pixels(root, EVALUATION, decode="fast"))


def test_grey_and_progressive_pictures_are_decoded(tmp_path: Path) -> None:
    root = tmp_path / "kinds"
    (root / "a").mkdir(parents=True)
    for number in range(8):
        picture = folders.picture(number, 300, 220).convert("L" if number % 2 else "RGB")
        picture.save(root / f"a/{number}.jpg", quality=92, progressive=number % 4 > 1)
    faithful, fast = (pixels(root, TRAINING, decode=decode) for decode in ("faithful", "fast"))
    assert not numpy.array_equal(faithful, fast) and decibels(fast, faithful) > 38


def test_threads_types_and_runs_change_nothing(photos: Path) -> None:
    steps = [*TRAINING[:2], T.ToTensor()]
    one = batches(photos, steps, decode="fast", num_workers=1)
    for given in (batches(photos, steps, decode="fast", num_workers=4), batches(photos, steps, decode="fast")):
        assert all(numpy.array_equal(a, b) for a, b in zip(one, given, strict=True))
    options: dict[str, Any] = {"decode": "fast", "dtype": "float16", "memory_format": "channels_last"}
    for default, given in zip(one, batches(photos, steps, **options), strict=True):
        assert given.dtype == numpy.float16 and numpy.array_equal(default.astype(numpy.float16), given)


def test_damaged_files_are_found_as_ever(photos: Path) -> None:
    paths = sorted(photos.rglob("*.jpg"))
    folders.truncate(paths[3])
    folders.truncate(paths[8], 0.98)
    folders.empty(paths[11])
    with paths[15].open("r+b") as file:
        file.seek(paths[15].stat().st_size // 3)
        file.write(bytes(4096))
    found = []
    for decode in ("faithful", "fast"):
        dataset = fb.ImageFolder(photos, transform=T.Compose(EVALUATION))
        options: dict[str, Any] = {"on_error": "replace", "output": "numpy", "with_ids": True, "decode": decode}
        with pytest.warns(RuntimeWarning), fb.DataLoader(dataset, batch_size=5, **options) as loader:
            ids = [list(map(int, ids)) for _, _, ids in loader]
            failed = sorted((failure.path, failure.code, failure.detail) for failure in loader.failures)
        found.append((ids, failed))
    assert found[0] == found[1]
    assert {path for path, _, _ in found[0][1]} == {str(paths[number]) for number in (3, 8, 11, 15)}


def test_a_state_is_of_the_order_alone(photos: Path) -> None:
    dataset = fb.ImageFolder(photos, transform=T.Compose(TRAINING))
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "output": "numpy"}
    with fb.DataLoader(dataset, **options, decode="fast") as fast, fb.DataLoader(dataset, **options) as faithful:
        whole = [images for images, _ in faithful]
        iteration = iter(fast)
        next(iteration)
        faithful.load_state_dict(fast.state_dict())
        assert all(numpy.array_equal(a, b) for a, (b, _) in zip(whole[1:], faithful, strict=True))


def test_other_words_are_refused(photos: Path) -> None:
    dataset = fb.ImageFolder(photos, transform=T.Compose(TRAINING))
    assert fb.DataLoader(dataset, output="numpy").decode == "faithful"
    with pytest.raises(ConfigError, match='decode: expected one of "faithful", "fast", got \'draft\''):
        fb.DataLoader(dataset, output="numpy", decode="draft")  # type: ignore[arg-type]
