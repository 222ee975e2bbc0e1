"""Hugging Face's `datasets`, for torch's DataLoader: Arrow on disk, Parquet files as a stream, and texts."""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from contender import BATCH_SIZE, per_worker, torch_batches
from datasets import Dataset, Features, Image, Value, load_dataset, load_from_disk

from peers.batches import Texts
from peers.torch_v2 import picture

SHARDS = 8  # a multiple of the usual numbers of workers: each is to get as many
BUFFER = 1000


def convert(folder: Path, target: Path) -> None:
    """Pictures into Arrow files, as `save_to_disk` writes them, and into Parquet files; texts into Arrow files."""
    if (folder / "lines").exists():
        for name in ("lines", "few"):
            files = [str(path) for path in sorted((folder / name).glob("*.txt"))]
            texts = load_dataset("text", data_files=files, split="train", cache_dir=str(target / "cache"))
            texts.save_to_disk(str(target / name), num_shards=len(files))
        return
    files = sorted(folder.rglob("*.jpg"))
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in files],
        "label": [int(path.parent.name) for path in files],
    }
    pictures = Dataset.from_dict(columns, Features({"image": Image(), "label": Value("int64")}))
    pictures.save_to_disk(str(target / "arrow"), num_shards=SHARDS)
    (target / "parquet").mkdir()
    for number in range(SHARDS):
        shard = pictures.shard(SHARDS, number, contiguous=True)
        shard.to_parquet(str(target / "parquet" / f"train-{number:05}-of-{SHARDS:05}.parquet"))


def decoded(rows: dict[str, Any], check: str) -> dict[str, Any]:
    """A transform of `datasets`, of some rows."""
    return {"image": [picture(image["bytes"], check) for image in rows["image"]], "label": rows["label"]}


def pair(samples: list[dict[str, Any]]) -> Any:
    """A batch as the others deliver it."""
    images = torch.stack([sample["image"] for sample in samples])
    return images, torch.tensor([sample["label"] for sample in samples])


def loader(folder: str, threads: int, kind: str, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """Worker processes that stay between epochs. Pictures are decoded by torchvision, as for the other peers."""
    torch.manual_seed(0)
    if kind == "text":
        return Texts(torch_batches(load_from_disk(str(Path(folder) / ("few" if check else "lines"))), threads, ahead))
    if kind == "arrow":
        dataset = load_from_disk(str(Path(folder) / "arrow")).cast_column("image", Image(decode=False))
        order: dict[str, Any] = {"shuffle": True}
        dataset = dataset.with_transform(functools.partial(decoded, check=check))
    else:
        files = str(Path(folder) / "parquet" / "*.parquet")
        stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
        stream = stream.cast_column("image", Image(decode=False)).shuffle(seed=0, buffer_size=BUFFER)
        dataset, order = stream.map(decoded, fn_kwargs={"check": check}, batched=True, batch_size=8), {}
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=threads,
        persistent_workers=True,
        collate_fn=pair,
        prefetch_factor=per_worker(ahead, threads),
        **order,
    )
