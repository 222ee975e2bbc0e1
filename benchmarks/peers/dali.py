"""NVIDIA DALI without a GPU: C++ threads, decoding that knows the crop."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch  # noqa: F401 -- before DALI, as its own examples do
from contender import BATCH_SIZE, MEAN, STD
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator


@pipeline_def
def training(folder: str) -> Any:
    """The usual transform, as DALI's own training examples write it."""
    files, labels = fn.readers.file(file_root=folder, random_shuffle=True, initial_fill=1024, name="reader")
    pixels = fn.decoders.image_random_crop(
        files, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], num_attempts=10
    )
    pixels = fn.resize(pixels, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
    images = fn.crop_mirror_normalize(
        pixels,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        mirror=fn.random.coin_flip(),
    )
    return images, labels


class Epochs:
    """DALI's iterator gives dictionaries."""

    def __init__(self, folder: str, threads: int, ahead: int) -> None:
        pipeline = training(
            folder, batch_size=BATCH_SIZE, num_threads=threads, device_id=None, seed=0, prefetch_queue_depth=ahead
        )
        self._batches = DALIClassificationIterator(
            pipeline, reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
        )

    def __iter__(self) -> Iterator[Any]:
        for (batch,) in self._batches:
            yield batch["data"], batch["label"].squeeze(-1)


def loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """Threads of its own, two batches ahead unless told otherwise."""
    return Epochs(folder, threads, ahead or 2)
