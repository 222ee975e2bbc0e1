"""The threads of this process, as the kernel lists them."""

import gc
import os
import time


def listed() -> set[str]:
    """Their ids. Loaders that other tests left as garbage are collected first, so that theirs do not end in between."""
    gc.collect()
    return set(os.listdir("/proc/self/task"))


def expect_no_more_than(before: set[str]) -> None:
    """Fails if threads stay that were not there before. One that has been joined is listed for a moment longer."""
    deadline = time.monotonic() + 5
    while more := set(os.listdir("/proc/self/task")) - before:
        assert time.monotonic() < deadline, f"{len(more)} more threads than before"
