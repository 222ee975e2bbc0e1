"""Pictures for the benchmarks: JPEGs of 500x375, and of 1800x1080, with the cost of photographs, always the same.

Smooth light, a few blurred shapes with edges, texture at several scales and a little grain, at quality 90: the
smaller ones have 50 to 90 KB each, as ImageNet's. Written once; a folder that is complete is left as it is.
"""

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375
LARGE = (1800, 1080)
CLASSES = 10
TEXTURES = 12


def octave(rng: np.random.Generator, cell: int, size: tuple[int, int]) -> np.ndarray:
    """Random colours on a coarse grid, smoothly enlarged: texture of one scale, around 0."""
    grid = rng.normal(0, 1, (size[1] // cell + 2, size[0] // cell + 2, 3)).astype(np.float32)
    channels = [Image.fromarray(grid[..., channel]).resize(size, Image.Resampling.BICUBIC) for channel in range(3)]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


@cache
def texture(number: int, size: tuple[int, int]) -> np.ndarray:
    """One of a few textures that all pictures are mixed from: drawing one anew for each would take minutes."""
    rng = np.random.default_rng([number])
    scales = ((40, 180), (18, 40), (9, 11), (7, 4))
    return np.sum([strength * octave(rng, cell, size) for strength, cell in scales], axis=0)


def draw(number: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """One picture."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    rng = np.random.default_rng([2026, number])
    pixels = np.full((height, width, 3), rng.uniform(90, 150, 3), np.float32)
    for one in rng.choice(TEXTURES, 2, replace=False):
        shift = rng.integers(0, height), rng.integers(0, width)
        pixels += 0.7 * np.roll(texture(int(one), size), shift, axis=(0, 1))
    for _ in range(4):
        cx, cy, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(20, 90)
        inside = 0.7 * np.clip(radius - np.hypot(x - cx, (y - cy) * rng.uniform(0.5, 2)), 0, 1)[..., None]
        pixels += inside * (rng.uniform(20, 235, 3).astype(np.float32) - pixels)
    # Grain differs between pictures, and so does their size.
    pixels += rng.uniform(2, 9) * rng.standard_normal((height, width, 1), np.float32)
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def ensure(folder: Path, count: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Makes sure that the folder has exactly these pictures."""
    stamp = folder.with_suffix(".complete")
    if stamp.exists():
        return
    print(f"drawing {count} pictures into {folder}", flush=True)
    for number in range(CLASSES):
        (folder / f"{number:02}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as processes:
        for _ in processes.map(write, [folder] * count, range(count), [size] * count, chunksize=10):
            pass
    stamp.touch()


def write(folder: Path, number: int, size: tuple[int, int]) -> None:
    """Draws one picture into its class."""
    draw(number, size).save(folder / f"{number % CLASSES:02}" / f"{number:05}.jpg", quality=90)


def ensure_damaged(folder: Path, good: Path) -> None:
    """Makes sure that the folder has the pictures of `good`, with each twentieth cut in half."""
    stamp = folder.with_suffix(".complete")
    if stamp.exists():
        return
    for number, path in enumerate(sorted(good.rglob("*.jpg"))):
        copy = folder / path.relative_to(good)
        copy.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        copy.write_bytes(content[: len(content) // 2] if number % 20 == 7 else content)
    stamp.touch()
