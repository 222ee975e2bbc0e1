"""TurboLoader: C++ threads that decode the crop only, out of one tar file; and its loader of token files."""

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import turboloader
from contender import BATCH_SIZE


def convert(folder: Path, target: Path) -> None:
    """One tar file, and the labels beside it in the same order: a tar has none for TurboLoader."""
    files = sorted(folder.rglob("*.jpg"))
    with tarfile.open(target / "photos.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in files:
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{path.parent.name}_{path.name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (target / "labels.txt").write_text("\n".join(path.parent.name for path in files), "utf-8")


class Epochs:
    """The loader, with labels and with another order in every epoch."""

    def __init__(self, folder: str, antialias: bool, check: str) -> None:
        self._labels = torch.tensor([int(label) for label in (Path(folder) / "labels.txt").read_text().split()])
        self._epoch, self._is_checked = 0, bool(check)
        self._loader = turboloader.DataLoader(
            str(Path(folder) / "photos.tar"),
            batch_size=BATCH_SIZE,
            image_size=224,
            output_format="pytorch",
            transform=None if check else turboloader.ImageNetNormalize(),
            shuffle=True,
            train_aug=not check,
            antialias=antialias,
        )

    def __iter__(self) -> Iterator[Any]:
        self._loader.set_epoch(self._epoch)
        self._epoch += 1
        for images, meta in self._loader:
            pixels = torch.from_numpy(images)
            if self._is_checked:
                pixels = (pixels * 255).round().to(torch.uint8)
            yield pixels, self._labels[torch.as_tensor(meta["indices"])]


class Tokens:
    """Arrays of NumPy as tensors, with another order in every epoch."""

    def __init__(self, folder: str, length: int) -> None:
        self._loader = turboloader.TokenDataLoader(f"{folder}/tokens.bin", length, BATCH_SIZE, dtype="uint16")
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self._loader.set_epoch(self._epoch)
        self._epoch += 1
        for tokens, targets in self._loader:
            yield torch.from_numpy(tokens), torch.from_numpy(targets)


def loader(
    folder: str,
    threads: int,
    antialias: bool = False,
    ahead: int | None = None,
    check: str = "",
    length: int | None = None,
) -> Iterable[Any]:
    """Its pool has a thread for each processor that the process may use, and no argument for that, nor for how many
    batches it makes ahead."""
    del ahead
    processors = len(os.sched_getaffinity(0))
    assert threads == processors, f"expected to be bound to {threads} processors, got {processors}"
    return Epochs(folder, antialias, check) if length is None else Tokens(folder, length)
