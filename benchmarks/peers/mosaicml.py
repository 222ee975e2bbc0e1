"""MosaicML Streaming: MDS shards, read by torch's worker processes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from contender import BATCH_SIZE, per_worker
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from peers.torch_v2 import picture


def convert(folder: Path, target: Path) -> None:
    """Shards of 16 MB with the bytes of the files as they are."""
    with MDSWriter(out=str(target), columns={"image": "bytes", "label": "int"}, size_limit=1 << 24) as shards:
        for path in sorted(folder.rglob("*.jpg")):
            shards.write({"image": path.read_bytes(), "label": int(path.parent.name)})


class Pictures(StreamingDataset):
    """Samples are dictionaries; a training sample is a pair."""

    check = ""

    def __getitem__(self, index: Any) -> Any:
        """Decodes one."""
        item = super().__getitem__(index)
        return picture(item["image"], self.check), item["label"]


def loader(
    folder: str, threads: int, ahead: int | None = None, check: str = "", streaming: bool = False
) -> Iterable[Any]:
    """Worker processes that stay between epochs, of torch's loader or its own, which is torch's and counts."""
    dataset = Pictures(local=folder, shuffle=True, batch_size=BATCH_SIZE, shuffle_seed=0)
    dataset.check = check
    kind = StreamingDataLoader if streaming else torch.utils.data.DataLoader
    return kind(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=threads,
        persistent_workers=True,
        prefetch_factor=per_worker(ahead, threads),
    )
