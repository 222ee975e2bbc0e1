"""forebay itself, on the shards, tokens and lines of shards.py, as a user writes it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch  # noqa: F401 -- it delivers torch's tensors: to import that is not the loader's time
from contender import BATCH_SIZE, per_worker, training

import forebay as fb
from forebay import transforms


def transform(check: str) -> Any:
    """The usual transform, or one without chance and floats."""
    if not check:
        return training(transforms)
    return transforms.CenterCrop(224) if check == "crop" else transforms.Resize((224, 224))


def batches(dataset: Any, threads: int, ahead: int | None, **options: Any) -> Any:
    """Shuffled batches of it."""
    prefetch = per_worker(ahead, threads)
    return fb.DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=threads, prefetch_factor=prefetch, **options)


def shards(
    root: str,
    threads: int,
    ahead: int | None = None,
    check: str = "",
    below: str = "",
    fields: Any = ("image", "label"),
    **options: Any,
) -> Iterable[Any]:
    """Pairs of pictures and numbers; of archives without numbers, the places of the samples are their numbers."""
    dataset = fb.Shards(Path(root) / below, transform(check), fields=fields, **options)
    dtype = {"dtype": "uint8"} if check else {}
    return batches(dataset, threads, ahead, with_ids=isinstance(fields, str), **dtype)


def folder(root: str, threads: int, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """The pictures that the shards were made of, as files."""
    dtype = {"dtype": "uint8"} if check else {}
    return batches(fb.ImageFolder(Path(root) / "folder", transform(check)), threads, ahead, **dtype)


class Pairs:
    """Batches as pairs of content and labels."""

    def __init__(self, loader: Any, names: tuple[str, str] | None) -> None:
        self._loader, self._names = loader, names

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield (batch, None) if self._names is None else tuple(batch[name] for name in self._names)


def tokens(root: str, threads: int, length: int, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """Windows of a file of tokens, with the tokens that follow."""
    dataset = fb.Tokens(Path(root) / ("few.bin" if check else "tokens.bin"), length)
    return Pairs(batches(dataset, threads, ahead), ("tokens", "targets"))


def lines(root: str, threads: int, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """Lines of all files."""
    return Pairs(batches(fb.TextLines(Path(root) / ("few" if check else "lines")), threads, ahead), None)


KINDS = {"shards": shards, "folder": folder, "tokens": tokens, "lines": lines}


def loader(root: str, threads: int, kind: str = "shards", **options: Any) -> Iterable[Any]:
    """One of these."""
    return KINDS[kind](root, threads, **options)
