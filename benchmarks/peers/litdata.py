"""LitData: its own chunks, mapped by torch's worker processes."""

import functools
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import litdata
from contender import BATCH_SIZE, per_worker

from peers.torch_v2 import picture


def sample(path: str) -> dict[str, Any]:
    """What a chunk holds of a file: its bytes as they are."""
    return {"image": Path(path).read_bytes(), "label": int(Path(path).parent.name)}


def convert(folder: Path, target: Path) -> None:
    """Chunks of 16 MB."""
    optimize(sample, folder, target)


def optimize(make: Callable[[str], dict[str, Any]], folder: Path, target: Path) -> None:
    """The same of what is made of each file."""
    files = [str(path) for path in sorted(folder.rglob("*.jpg"))]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = cache
        litdata.optimize(make, files, str(target), chunk_bytes="16MB", num_workers=1, verbose=False)


def decoded(item: dict[str, Any], check: str) -> tuple[Any, int]:
    """A training sample."""
    return picture(item["image"], check), item["label"]


def loader(
    folder: str, threads: int, ahead: int | None = None, check: str = "", make: Callable[..., Any] = decoded
) -> Iterable[Any]:
    """Worker processes that stay between epochs."""
    transform = functools.partial(make, check=check)
    dataset = litdata.StreamingDataset(folder, shuffle=True, drop_last=False, seed=0, transform=transform)
    prefetch = {} if ahead is None else {"prefetch_factor": per_worker(ahead, threads)}
    return litdata.StreamingDataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=threads, persistent_workers=True, drop_last=False, **prefetch
    )
