"""Torch's DataLoader with torchvision's own decoder and transforms v2, the fastest that torch brings itself.

WebDataset, LitData and MosaicML Streaming have no decoder of their own; they are given this one.
"""

from collections.abc import Iterable
from typing import Any

import torch
from contender import MEAN, STD, torch_batches
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

AUGMENT = v2.Compose(
    [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)


# Without chance and floats: what a decoder makes of a picture, by shards.py's name for it.
CHECKS = {"crop": v2.CenterCrop(224), "squashed": v2.Resize((224, 224), antialias=True)}


def picture(content: bytes, check: str = "") -> torch.Tensor:
    """A training sample out of a JPEG in memory, or one to compare."""
    # bytearray: torch warns of memory that cannot be written, though it is only read.
    encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return (CHECKS[check] if check else AUGMENT)(decode_image(encoded, ImageReadMode.RGB))


def read(path: str) -> torch.Tensor:
    """The pixels of a file."""
    return decode_image(read_file(path), ImageReadMode.RGB)


def loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """Worker processes that stay between epochs."""
    torch.manual_seed(0)
    return torch_batches(ImageFolder(folder, transform=AUGMENT, loader=read), threads, ahead)
