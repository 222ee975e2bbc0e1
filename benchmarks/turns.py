"""What a contender of `shards.py` does in its process, by name: `first+N` an epoch from the making of the loader on and
N later ones, `for+SECONDS` what is delivered in this time by an epoch too long to wait for, `check` what is in it.
"""

import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import processes

WARM_UP_SECONDS = 0.7
KEPT = 64  # the numbers of the pictures whose means are told, to say how far decoders are from each other
Turn = Callable[[Any, float], dict[str, Any]]


def find(name: str) -> Turn | None:
    """The turn of this name, if it is one."""
    what, _, argument = name.partition("+")
    if what == "first" and argument:
        return partial(first_and_later, epochs=int(argument))
    if what == "for":
        return partial(for_seconds, seconds=float(argument))
    return check if what == "check" else None


class Timer:
    """Counts samples, and their time and processor time."""

    def __init__(self) -> None:
        self.samples, self._started, self._used = 0, time.perf_counter(), processes.processor_seconds()

    def told(self, prefix: str = "") -> dict[str, Any]:
        """As it is printed."""
        seconds = time.perf_counter() - self._started
        used = processes.processor_seconds() - self._used
        told = {"images": self.samples, "seconds": seconds, "processor_seconds": used}
        return {prefix + name: value for name, value in told.items()}


def first_and_later(loader: Any, started: float, epochs: int) -> dict[str, Any]:
    """The first epoch is timed from the making of the loader on. `labels` is the sum of all labels, each of which is
    the number of its sample: whether all were delivered once."""
    told, labels, first = {}, 0, 0
    for content, numbers in loader:
        if not first:
            told["first_batch_seconds"] = time.perf_counter() - started
        first, labels = first + len(content), labels + int(numbers.sum())
    told |= {"first_images": first, "first_seconds": time.perf_counter() - started}
    timer = Timer()
    for _ in range(epochs):
        for content, numbers in loader:
            timer.samples, labels = timer.samples + len(content), labels + int(numbers.sum())
    return told | timer.told() | {"labels": labels}


def for_seconds(loader: Any, started: float, seconds: float) -> dict[str, Any]:
    """What is delivered in this time, after the first moments; nothing is done with it."""
    batches = iter(epochs(loader))
    next(batches)
    told = {"first_batch_seconds": time.perf_counter() - started}
    end = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < end:
        next(batches)
    timer = Timer()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        timer.samples += len(next(batches))
    return told | timer.told()


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of all epochs, without labels."""
    for _ in itertools.count():
        for content, _ in loader:
            yield content


def check(loader: Any, started: float) -> dict[str, Any]:
    """One epoch: how many samples, a hash of them with their labels, whatever their order, and of some pictures the
    pixels, 8 by 8 of them as one mean."""
    del started
    count, total, kept = 0, 0, {}
    for content, labels in loader:
        for place, sample in enumerate(content):
            label = None if labels is None else np.asarray(labels[place], dtype=np.int64)
            data = sample.encode() if isinstance(sample, str) else np.ascontiguousarray(np.asarray(sample))
            digest = zlib.crc32(data if label is None else label.tobytes(), zlib.crc32(data))
            count, total = count + 1, total + digest
            is_picture = label is not None and label.ndim == 0 and int(label) < KEPT
            if is_picture:
                kept[int(label)] = data.reshape(3, 28, 8, 28, 8).mean((2, 4)).round(2).tolist()
    return {"count": count, "hash": f"{total % 2**64:016x}", "kept": kept}
