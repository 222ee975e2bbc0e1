"""datago: Rust threads that decode and resize, and deliver single pictures."""

import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import datago
import numpy as np
import torch
from contender import BATCH_SIZE, MEAN, STD

SCALE = (1 / (255 * torch.tensor(STD))).view(3, 1, 1)
SHIFT = (torch.tensor(MEAN) / torch.tensor(STD)).view(3, 1, 1)


def collate(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as the others deliver it; datago has no batches, no flip and no floats."""
    images = torch.empty(len(samples), 3, 224, 224)
    for image, sample in zip(images, samples, strict=True):
        pixels = torch.from_numpy(np.array(sample["image"])).permute(2, 0, 1)
        image.copy_(pixels.flip(-1) if random.random() < 0.5 else pixels)
    labels = [int(Path(sample["id"].strip('"')).parent.name) for sample in samples]
    return images.mul_(SCALE).sub_(SHIFT), torch.tensor(labels)


class Epochs:
    """A client that is started for every epoch."""

    def __init__(self, folder: str, ahead: int) -> None:
        config = {
            "source_type": "file",
            "source_config": {"root_path": folder, "random_sampling": True, "rank": 0, "world_size": 1},
            "image_config": {
                "crop_and_resize": True,
                "default_image_size": 224,
                "downsampling_ratio": 32,
                "min_aspect_ratio": 1.0,
                "max_aspect_ratio": 1.0,
                "pre_encode_images": False,
            },
            "limit": sum(1 for _ in Path(folder).rglob("*.jpg")),  # without one it ends after the first thousands
            "samples_buffer_size": ahead * BATCH_SIZE,
        }
        self._client = datago.DatagoClient(json.dumps(config))

    def __iter__(self) -> Iterator[Any]:
        self._client.start()
        samples: list[dict[str, Any]] = []
        while (sample := self._client.get_sample_auto_convert()) is not None:
            samples.append(sample)
            if len(samples) == BATCH_SIZE:
                yield collate(samples)
                samples = []
        if samples:
            yield collate(samples)


def loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """Its tasks are limited by the environment."""
    os.environ["DATAGO_MAX_TASKS"] = str(threads)
    torch.set_num_threads(1)
    return Epochs(folder, ahead or 2)
