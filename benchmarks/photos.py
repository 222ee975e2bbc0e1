"""Pictures for the benchmarks: JPEGs of 500x375 with the size and the cost of photographs, always the same.

Smooth light, a few blurred shapes with edges, texture at several scales and a little grain, at quality 90: 50 to
90 KB each, as ImageNet's. Written once; a folder that is complete is left as it is.
"""

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375
CLASSES = 10
TEXTURES = 12
Y, X = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)


def octave(rng: np.random.Generator, cell: int) -> np.ndarray:
    """Random colours on a coarse grid, smoothly enlarged: texture of one scale, around 0."""
    grid = rng.normal(0, 1, (HEIGHT // cell + 2, WIDTH // cell + 2, 3)).astype(np.float32)
    channels = [
        Image.fromarray(grid[..., channel]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for channel in range(3)
    ]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


@cache
def texture(number: int) -> np.ndarray:
    """One of a few textures that all pictures are mixed from: drawing one anew for each would take minutes."""
    rng = np.random.default_rng([number])
    return 40 * octave(rng, 180) + 18 * octave(rng, 40) + 9 * octave(rng, 11) + 7 * octave(rng, 4)


def draw(number: int) -> Image.Image:
    """One picture."""
    rng = np.random.default_rng([2026, number])
    pixels = np.full((HEIGHT, WIDTH, 3), rng.uniform(90, 150, 3), np.float32)
    for one in rng.choice(TEXTURES, 2, replace=False):
        shift = rng.integers(0, HEIGHT), rng.integers(0, WIDTH)
        pixels += 0.7 * np.roll(texture(int(one)), shift, axis=(0, 1))
    for _ in range(4):
        cx, cy, radius = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT), rng.uniform(20, 90)
        inside = 0.7 * np.clip(radius - np.hypot(X - cx, (Y - cy) * rng.uniform(0.5, 2)), 0, 1)[..., None]
        pixels += inside * (rng.uniform(20, 235, 3).astype(np.float32) - pixels)
    # Grain differs between pictures, and so does their size.
    pixels += rng.uniform(2, 9) * rng.standard_normal((HEIGHT, WIDTH, 1), np.float32)
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def ensure(folder: Path, count: int) -> None:
    """Makes sure that the folder has exactly these pictures."""
    stamp = folder.with_suffix(".complete")
    if stamp.exists():
        return
    print(f"drawing {count} pictures into {folder}", flush=True)
    for number in range(CLASSES):
        (folder / f"{number:02}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as processes:
        for _ in processes.map(write, [folder] * count, range(count), chunksize=10):
            pass
    stamp.touch()


def write(folder: Path, number: int) -> None:
    """Draws one picture into its class."""
    draw(number).save(folder / f"{number % CLASSES:02}" / f"{number:05}.jpg", quality=90)


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
