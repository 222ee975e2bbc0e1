"""Tokens as nanoGPT reads them, `numpy.memmap`: as a Dataset for torch's DataLoader, or by its own `get_batch`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contender import BATCH_SIZE, torch_batches


class Windows:
    """A window of tokens and the one behind it are a sample, as `x` and `y` of nanoGPT's train.py."""

    def __init__(self, path: Path, length: int) -> None:
        self._tokens, self._length = np.memmap(path, dtype=np.uint16, mode="r"), length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = index * self._length, (index + 1) * self._length
        x, y = (self._tokens[start + shift : end + shift].astype(np.int64) for shift in (0, 1))
        return torch.from_numpy(x), torch.from_numpy(y)


class Drawn:
    """nanoGPT's `get_batch`, in the training loop itself: windows are drawn with replacement, at any place."""

    def __init__(self, path: Path, length: int) -> None:
        self._path, self._length = path, length

    def __iter__(self) -> Iterator[Any]:
        while True:
            # Mapped anew for each batch, as there, "to avoid a memory leak".
            data, length = np.memmap(self._path, dtype=np.uint16, mode="r"), self._length
            ix = torch.randint(len(data) - length, (BATCH_SIZE,))
            x = torch.stack([torch.from_numpy((data[i : i + length]).astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + length]).astype(np.int64)) for i in ix])
            yield x, y


def loader(
    folder: str, threads: int, length: int, ahead: int | None = None, check: str = "", drawn: bool = False
) -> Iterable[Any]:
    """Worker processes that stay between epochs, or none."""
    path = Path(folder) / ("few.bin" if check else "tokens.bin")
    torch.manual_seed(0)
    if drawn:
        return Drawn(path, length)
    return torch_batches(Windows(path, length), threads, ahead)
