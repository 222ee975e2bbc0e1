"""One contender of the benchmark in a process of its own: loads the folder and prints one JSON line.

`contender.py NAME FOLDER THREADS EPOCHS`. Epoch 0 starts workers and warms up caches; what it delivers is counted and
hashed. The epochs after it are timed, and nothing is done with their batches, so that the loader alone is measured.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def training(t: Any) -> Any:
    """The usual transform, of one library's module `transforms` or the other's."""
    return t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)])


def crops(t: Any) -> Any:
    """The same without floats."""
    return t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip()])


def forebay_loader(
    folder: str, threads: int, augment: Callable[[Any], Any] = training, **options: Any
) -> Iterable[Any]:
    """forebay, as a user writes it."""
    import forebay as fb
    from forebay import transforms

    dataset = fb.ImageFolder(folder, transform=augment(transforms))
    options = {"num_workers": threads, "on_error": "replace"} | options
    return fb.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, **options)


def isolated_loader(folder: str, threads: int) -> Iterable[Any]:
    """As forebay reads on mounts that can hang: in reader processes."""
    return forebay_loader(folder, threads, isolate="always")


def unguarded_loader(folder: str, threads: int) -> Iterable[Any]:
    """With all that can be left out of what guards against failures."""
    return forebay_loader(folder, threads, on_error="raise", retries=0, deadline_seconds=1e9)


def guarded_loader(folder: str, threads: int) -> Iterable[Any]:
    """With all of it: a ledger, second reads, a limit."""
    ledger = Path(tempfile.mkdtemp()) / "ledger.jsonl"
    return forebay_loader(folder, threads, ledger=ledger, hedge="p99", max_failures=0.1)


def half_loader(folder: str, threads: int) -> Iterable[Any]:
    """Batches as many train with them on a GPU."""
    return forebay_loader(folder, threads, dtype="float16", memory_format="channels_last")


def bytes_loader(folder: str, threads: int) -> Iterable[Any]:
    """Batches that are normalised on the GPU."""
    return forebay_loader(folder, threads, augment=crops, dtype="uint8")


def fast_loader(folder: str, threads: int) -> Iterable[Any]:
    """Of JPEGs only as much detail as the crop shows."""
    return forebay_loader(folder, threads, decode="fast")


def torch_loader(folder: str, threads: int) -> Iterable[Any]:
    """Torch with torchvision's ImageFolder: PIL, transforms v1, workers that stay between epochs."""
    import torch
    from torchvision import datasets, transforms

    torch.manual_seed(0)
    dataset = datasets.ImageFolder(folder, transform=training(transforms))
    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=threads, persistent_workers=True
    )


def v2_loader(folder: str, threads: int) -> Iterable[Any]:
    """Torch with torchvision's own decoder and transforms v2 on bytes: no PIL."""
    import torch
    from torchvision import datasets, io
    from torchvision.transforms import v2

    def decode(path: str) -> Any:
        return io.decode_image(path, mode=io.ImageReadMode.RGB)

    torch.manual_seed(0)
    augment = v2.Compose(
        [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = datasets.ImageFolder(folder, transform=augment, loader=decode)
    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=threads, persistent_workers=True
    )


LOADERS: dict[str, Callable[[str, int], Iterable[Any]]] = {
    "forebay": forebay_loader,
    "isolated": isolated_loader,
    "unguarded": unguarded_loader,
    "guarded": guarded_loader,
    "damaged": guarded_loader,
    "half": half_loader,
    "bytes": bytes_loader,
    "fast": fast_loader,
    "torch": torch_loader,
    "v2": v2_loader,
}


def processor_seconds() -> float:
    """What this process and those it started have used, in user code and in the kernel: steadier than a clock where
    others work, too."""
    ticks = 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures one contender."""
    name, folder, threads, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    loader = LOADERS[name](folder, threads)
    total = 0
    for images, _ in loader:
        # The sum of 32-bit words does not depend on the order; examples/kernel.rs takes the same.
        words = np.ascontiguousarray(images.numpy()).reshape(-1).view(np.uint32)
        total = (total + int(words.sum(dtype=np.uint64))) % 2**64
    delivered = 0
    started, processor = time.perf_counter(), processor_seconds()
    for _ in range(epochs):
        for images, _ in loader:
            delivered += len(images)
    seconds, processor = time.perf_counter() - started, processor_seconds() - processor
    result = {"images": delivered, "seconds": seconds, "processor_seconds": processor, "hash": f"{total:016x}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
