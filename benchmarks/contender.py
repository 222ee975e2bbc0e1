"""One contender of the benchmark in a process of its own: loads the folder and prints one JSON line.

`contender.py NAME FOLDER THREADS EPOCHS [OPTIONS [PACE]]`; OPTIONS are further arguments of the loader, as JSON. Epoch
0 starts workers and warms up caches; what it delivers is counted and hashed. From epoch 1 on nothing is done with the
batches, so that the loader alone is measured. The clock starts after epoch 1, which uses up what was made ahead while
epoch 0 was hashed. With a PACE, batches are taken at that many images a second, as a model takes them that is slower
than the loader. With `first` for EPOCHS only epoch 0 is timed, and not hashed, from the making of the loader on:
forebay has no landmarks yet. With `-` it is a rival (rivals.py), and delivers as many as each line says that it reads.
For shards, tokens and lines (shards.py) there are also `first+N`, `for+SECONDS` and `check` (turns.py).
"""

import collections
import importlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import turns

BATCH_SIZE = 64
MADE_AHEAD = 8  # more batches than forebay ever has ahead of a loop
SETTLE_SECONDS = 0.01
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def per_worker(ahead: int | None, workers: int) -> int | None:
    """The `prefetch_factor` for so many batches ahead of the loop, by all workers together; None: the default."""
    return None if ahead is None else max(ahead // workers, 1)


def training(t: Any) -> Any:
    """The usual transform, of one library's module `transforms` or the other's."""
    return t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)])


def crops(t: Any) -> Any:
    """The same without floats."""
    return t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip()])


def forebay_loader(
    folder: str,
    threads: int,
    augment: Callable[[Any], Any] = training,
    ahead: int | None = None,
    dataset: dict[str, Any] | None = None,
    **options: Any,
) -> Iterable[Any]:
    """forebay, as a user writes it: of the folder, or of what `dataset` says instead."""
    import forebay as fb
    from forebay import transforms

    images = fb.ImageFolder(**(dataset or {"root": folder}), transform=augment(transforms))
    options = {"num_workers": threads, "on_error": "replace"} | options
    options["prefetch_factor"] = per_worker(ahead, options["num_workers"])
    return fb.DataLoader(images, batch_size=BATCH_SIZE, shuffle=True, **options)


def without_landmarks_loader(folder: str, threads: int, **options: Any) -> Iterable[Any]:
    """As every epoch is where pictures are not known from an earlier one."""
    os.environ["FOREBAY_LANDMARKS"] = "0"
    return forebay_loader(folder, threads, **options)


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


def torch_batches(dataset: Any, threads: int, ahead: int | None) -> Iterable[Any]:
    """Torch's loader of a dataset, with workers that stay between epochs."""
    import torch

    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=threads,
        persistent_workers=True,
        prefetch_factor=per_worker(ahead, threads),
    )


def torch_loader(folder: str, threads: int, ahead: int | None = None) -> Iterable[Any]:
    """Torch with torchvision's ImageFolder: PIL, transforms v1."""
    import torch
    from torchvision import datasets, transforms

    torch.manual_seed(0)
    return torch_batches(datasets.ImageFolder(folder, transform=training(transforms)), threads, ahead)


def v2_loader(folder: str, threads: int) -> Iterable[Any]:
    """Torch with torchvision's own decoder and transforms v2 on bytes: no PIL."""
    from peers import torch_v2

    return torch_v2.loader(folder, threads)


LOADERS: dict[str, Callable[..., Iterable[Any]]] = {
    "forebay": forebay_loader,
    "without-landmarks": without_landmarks_loader,
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


def find(name: str) -> Callable[..., Iterable[Any]]:
    """A contender's function, with everything imported that it uses: to import is not the loader's time or memory."""
    if name not in LOADERS:
        return importlib.import_module(f"peers.{name}").loader
    for module in ("torch", "torchvision") if name == "torch" else ("torch", "forebay"):
        importlib.import_module(module)
    return LOADERS[name]


class Content:
    """What was delivered in an epoch: when the first of it, how much, a hash, and whether it looks like pictures."""

    def __init__(self, started: float) -> None:
        self._started, self._first_batch_seconds, self._form = started, 0.0, "nothing"
        self._images, self._hash, self._sum, self._squares, self._values = 0, 0, 0.0, 0.0, 0

    def add(self, images: Any) -> None:
        """Counts a batch."""
        if not self._images:
            self._first_batch_seconds = time.perf_counter() - self._started
            self._form = f"{tuple(images.shape[1:])} {images.dtype}"
        self._images += len(images)
        for image in np.asarray(images):
            flat = np.ascontiguousarray(image).reshape(-1)
            # The sum of 32-bit words does not depend on the order; examples/kernel.rs takes the same.
            self._hash = (self._hash + int(flat.view(np.uint32).sum(dtype=np.uint64))) % 2**64
            self._sum += float(flat.sum(dtype=np.float64))
            self._squares += float(np.square(flat, dtype=np.float64).sum())
            self._values += flat.size

    def told(self) -> dict[str, Any]:
        """As it is printed."""
        mean = self._sum / self._values
        deviation = (self._squares / self._values - mean**2) ** 0.5
        return {
            "first_batch_seconds": self._first_batch_seconds,
            "form": self._form,
            "warm_up_images": self._images,
            "hash": f"{self._hash:016x}",
            "mean": mean,
            "deviation": deviation,
        }


def paced(batches: Iterable[Any], pace: float) -> Iterator[Any]:
    """The batches, none before its time; at once if there is no pace."""
    due = time.perf_counter()
    for batch in batches:
        yield batch
        if pace:
            now = time.perf_counter()
            due = max(due + len(batch[0]) / pace, now)
            time.sleep(due - now)


def stats(loader: Any) -> dict[str, Any]:
    """What forebay says of itself; other loaders do not."""
    if not type(loader).__module__.startswith("forebay"):
        return {"starved_seconds": 0.0, "landmark_bytes": 0}
    told = loader.stats()
    return {"starved_seconds": told["decode"]["waiting_seconds"], "landmark_bytes": told["landmarks"]["bytes"]}


def timed(loader: Any, batches: Iterable[Any]) -> dict[str, Any]:
    """What it takes to deliver these."""
    before, started, processor = stats(loader), time.perf_counter(), processes.processor_seconds()
    images = sum(map(len, batches))
    told = {
        "images": images,
        "seconds": time.perf_counter() - started,
        "processor_seconds": processes.processor_seconds() - processor,
    }
    after = stats(loader)
    # How long its threads had nothing to decode, all of them together.
    starved = after["starved_seconds"] - before["starved_seconds"]
    return told | {"starved_seconds": starved, "landmark_bytes": after["landmark_bytes"]}


def take_turns(loader: Any) -> None:
    """Delivers as many epochs as each line of standard input says. The clock starts when what was made ahead since the
    last turn is used up; a turn ends when nothing is made ahead any more, which would slow down the next one. Each
    answer has the hash of epoch 0, which was before all turns."""
    content = Content(time.perf_counter())
    for images, _ in loader:
        content.add(images)
    del images  # a batch's memory, which the loader could not use again
    delivered = content.told()["hash"]
    print("ready", flush=True)
    for line in sys.stdin:
        batches = (images for _ in range(int(line)) for images, _ in loader)
        collections.deque(itertools.islice(batches, MADE_AHEAD), maxlen=0)
        result = timed(loader, batches)
        used = SETTLE_SECONDS
        while used > SETTLE_SECONDS / 10:
            used = -time.process_time()
            time.sleep(SETTLE_SECONDS)
            used += time.process_time()
        print(json.dumps(result | {"hash": delivered}), flush=True)


def main() -> None:
    """Measures one contender."""
    name, folder, threads, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    options: dict[str, Any] = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    pace = float(sys.argv[6]) if len(sys.argv) > 6 else 0.0
    make = find(name)
    imported = {"pss": processes.pss(os.getpid())[0], "seconds": processes.started_ago(os.getpid())}
    started = time.perf_counter()
    loader = make(folder, threads, **options)
    if turn := turns.find(epochs):
        result = turn(loader, started)
        print(json.dumps(result | {"imported": imported, "ended": time.monotonic()}), flush=True)
        return
    if epochs == "-":
        take_turns(loader)
        return
    if epochs == "first":
        result = timed(loader, (images for images, _ in loader))
        print(json.dumps(result | {"seconds": time.perf_counter() - started}), flush=True)
        return
    content = Content(started)
    for images, _ in paced(loader, pace):
        content.add(images)
    del images  # a batch's memory, which the loader could not use again
    collections.deque(paced(loader, pace), maxlen=0)
    result = timed(loader, (images for _ in range(int(epochs)) for images, _ in paced(loader, pace)))
    print(json.dumps(result | {"imported": imported, "ended": time.monotonic()} | content.told()), flush=True)


if __name__ == "__main__":
    main()
