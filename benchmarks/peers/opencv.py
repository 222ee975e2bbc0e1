"""Torch's DataLoader with OpenCV decoding and resizing in its workers."""

from collections.abc import Iterable
from typing import Any

import cv2
import numpy as np
import torch
from contender import BATCH_SIZE, MEAN, STD, per_worker
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop

SCALE = (1 / (255 * np.array(STD, np.float32))).reshape(3, 1, 1)
SHIFT = (np.array(MEAN, np.float32) / np.array(STD, np.float32)).reshape(3, 1, 1)


def read(path: str) -> np.ndarray:
    """The pixels of a file, in OpenCV's order of colours."""
    return cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)


def augment(pixels: np.ndarray) -> torch.Tensor:
    """The usual transform; where the picture shrinks, with the filter that averages, as torchvision's does."""
    area = torch.empty(0, *pixels.shape[:2])  # the crop is drawn by torchvision, from the size alone
    top, left, height, width = RandomResizedCrop.get_params(area, [0.08, 1.0], [3 / 4, 4 / 3])
    filter_ = cv2.INTER_AREA if height > 224 and width > 224 else cv2.INTER_LINEAR
    pixels = cv2.resize(pixels[top : top + height, left : left + width], (224, 224), interpolation=filter_)
    if torch.rand(()) < 0.5:
        pixels = cv2.flip(pixels, 1)
    pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) * SCALE - SHIFT)


def one_thread(_: int) -> None:
    """A worker process is one thread; OpenCV would start one for each processor in each of them."""
    cv2.setNumThreads(0)


def loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """Worker processes that stay between epochs."""
    torch.manual_seed(0)
    dataset = ImageFolder(folder, transform=augment, loader=read)
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=threads,
        persistent_workers=True,
        worker_init_fn=one_thread,
        prefetch_factor=per_worker(ahead, threads),
    )
