"""Image folders for the tests: small, seeded, and damaged on purpose."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

WIDTH, HEIGHT = 64, 48


def pixels(seed: int, width: int = WIDTH, height: int = HEIGHT, channels: int = 3) -> Any:
    """Waves and a little noise: compresses like a photograph, and no two seeds look alike."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [
        127 + 90 * numpy.sin(x / random.uniform(4, 20) + random.uniform(0, 6)) * numpy.cos(y / random.uniform(4, 20))
        for _ in range(channels)
    ]
    noisy = numpy.stack(planes, axis=-1) + random.normal(0, 6, (height, width, channels))
    return noisy.clip(0, 255).astype(numpy.uint8)


def picture(seed: int, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    return Image.fromarray(pixels(seed, width, height))


def write_folder(root: Path, count: int = 24, classes: Sequence[str] = ("cat", "dog"), **size: int) -> list[Path]:
    """`count` JPEGs, dealt to the classes in turn, in the order of the dataset."""
    paths = []
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, **size).save(path, quality=90)
        paths.append(path)
    return sorted(paths)


def truncate(path: Path, fraction: float = 0.5) -> None:
    os.truncate(path, int(path.stat().st_size * fraction))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("<html>404 not found</html>")


def named(parameter: Any) -> str:
    """A parameter as part of a test's name: without addresses, which are others in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(parameter))
