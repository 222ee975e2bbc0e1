"""SPDL: a pipeline of threads around FFmpeg, which decodes, crops, scales and flips."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import spdl.io
import torch
from contender import BATCH_SIZE, MEAN, STD
from spdl.pipeline import PipelineBuilder
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop

SCALE = (1 / (255 * torch.tensor(STD))).view(3, 1, 1)
SHIFT = (torch.tensor(MEAN) / torch.tensor(STD)).view(3, 1, 1)
ONE_THREAD = spdl.io.decode_config(decoder_options={"threads": "1"})


def decode(sample: tuple[str, int]) -> tuple[Any, int]:
    """One file: the crop is drawn by torchvision from the size in the header, and done by FFmpeg."""
    path, label = sample
    packets = spdl.io.demux_image(path)
    area = torch.empty(0, packets.height, packets.width)
    top, left, height, width = RandomResizedCrop.get_params(area, [0.08, 1.0], [3 / 4, 4 / 3])
    flip = ",hflip" if random.random() < 0.5 else ""
    filters = f"crop={width}:{height}:{left}:{top},scale=224:224:flags=bilinear{flip},format=pix_fmts=rgb24"
    return spdl.io.decode_packets(packets, filter_desc=filters, decode_config=ONE_THREAD), label


def collate(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as the others deliver it."""
    pixels = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in samples]))
    images = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return images.mul_(SCALE).sub_(SHIFT), torch.tensor([label for _, label in samples])


class Epochs:
    """A pipeline is built for every epoch."""

    def __init__(self, folder: str, threads: int, ahead: int) -> None:
        torch.set_num_threads(1)  # a batch is put together by one of the threads, beside those that decode
        self._samples = ImageFolder(folder).samples
        self._threads, self._ahead = threads, ahead

    def __iter__(self) -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(random.sample(self._samples, len(self._samples)))
            .pipe(decode, concurrency=self._threads)
            .aggregate(BATCH_SIZE)
            .pipe(collate)
            .add_sink(self._ahead)
            .build(num_threads=self._threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline


def loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """All stages share as many threads."""
    return Epochs(folder, threads, ahead or 3)
