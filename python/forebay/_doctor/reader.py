"""How the doctor's child gets at samples: which, in which order, and noted before each."""

import contextlib
import functools
import operator
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from forebay._doctor import origin, system, target
from forebay._doctor.page import Page

# What grows by so many objects has shown it, and more of them would take long to be looked through.
_MAX_BLOCKS = 100_000


class Reader:
    """A dataset, and the indices of it that are read."""

    def __init__(self, dataset: Any, page: Page, max_samples: int, excluded: set[int]) -> None:
        self.dataset = dataset
        self.page = page
        self.max_samples = max_samples
        self.excluded = excluded
        self.is_iterable = target.is_iterable(dataset)
        self.files_at_first = system.open_files()
        self.length, self.length_error = length_of(dataset)
        self.order = [] if self.is_iterable else [index for index in self._indices() if index not in excluded]

    def _indices(self) -> list[int]:
        """The indices to read: both ends, then others in an order that is random and always the same."""
        if self.length is None:
            return list(range(self.max_samples))  # as far as there are any
        wanted = min(self.length, self.max_samples)
        if wanted == self.length:
            picked = list(range(self.length))
        else:
            picked = random.Random(0).sample(range(self.length), wanted)
        random.Random(1).shuffle(picked)
        return list(dict.fromkeys([0, self.length - 1, *picked])) if self.length else []

    def samples(self, again: bool = False) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Numbers, and how to get each sample; by index or one after the other, from the beginning when `again`."""
        while True:
            if self.is_iterable:
                iterator = Ending(self.dataset)
                for number in range(self.max_samples):
                    yield number, iterator.get
                    if iterator.is_over:
                        break
            else:
                for index in self.order:
                    yield index, functools.partial(operator.getitem, self.dataset, index)
            if not again or (not self.is_iterable and not self.order):
                return

    def consume(self, samples: Iterator[tuple[int, Callable[[], Any]]], count: int, end: float) -> int:
        """Reads so many samples and drops them, as far as the time goes and descriptors and memory do; how many."""
        taken, most_blocks = 0, sys.getallocatedblocks() + _MAX_BLOCKS
        for index, get in samples:
            if taken % 4 == 0 and system.is_crowded():
                break
            self.page.note(index)
            with contextlib.suppress(Exception):  # counted where samples are read for their errors
                get()
            taken += 1
            if taken >= count or time.perf_counter() > end or sys.getallocatedblocks() > most_blocks:
                break
        return taken


class Ending:
    """An iterator that remembers that it has ended."""

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        self.is_over = False

    def get(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self.is_over = True
            raise


def length_of(dataset: Any) -> tuple[int | None, str | None]:
    """The length, if it has one; and why not, if that is an error."""
    try:
        return len(dataset), None
    except (TypeError, NotImplementedError):
        return None, None
    except Exception as error:
        return None, f"{type(error).__name__}: {origin.first_line(error)}"
