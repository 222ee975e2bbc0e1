"""WebDataset: tar files read in sequence by torch's worker processes."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds
from contender import BATCH_SIZE, per_worker

from peers.torch_v2 import picture

SHARDS = 16  # a multiple of the usual numbers of workers: each is to get as many


def convert(folder: Path, target: Path) -> None:
    """Sixteen tar files; the classes are dealt out among them."""
    files = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
    for number in range(SHARDS):
        with wds.TarWriter(str(target / f"{number:02}.tar")) as tar:
            for path in files[number::SHARDS]:
                tar.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": int(path.parent.name)})


def loader(folder: str, threads: int, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """Worker processes that stay between epochs; each has tar files of its own, and batches."""
    urls = [str(path) for path in sorted(Path(folder).glob("*.tar"))]
    dataset = (
        wds.WebDataset(urls, shardshuffle=SHARDS, seed=0)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(functools.partial(picture, check=check), int)
        .batched(BATCH_SIZE)
    )
    prefetch = {} if ahead is None else {"prefetch_factor": per_worker(ahead, threads)}
    return wds.WebLoader(dataset, batch_size=None, num_workers=threads, persistent_workers=True, **prefetch)
