"""How much memory this process and its children may use, and how long a worker may take for a sample."""

import bdb
import math
import os
import sys
from typing import Any

# The share of available memory that batches in progress may take by default. Not measured.
_BUDGET_SHARE = 0.25
# How long a worker may take for one sample by default, and to start in any case. As long as NCCL waits before
# it ends a run: decisions/0039.
DEADLINE_SECONDS = 600.0


def deadline_seconds(given: float | None) -> float | None:
    """`None`: no deadline. That is the default while a debugger is attached to this process."""
    if given is None:
        return None if _is_debugged() else DEADLINE_SECONDS
    return None if math.isinf(given) else given


def _is_debugged() -> bool:
    tracer: Any = getattr(sys.gettrace(), "__self__", None)
    return isinstance(tracer, bdb.Bdb) or "pydevd" in sys.modules or "debugpy" in sys.modules


def memory_limit_bytes() -> int | None:
    """The limit of the control group, v1 or v2, if there is one below what the machine has."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for limit in _limits() if limit < physical]
    return min(limits) if limits else None


def memory_bytes() -> int:
    """What there is: the limit of the control group, or all of the machine's."""
    return memory_limit_bytes() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def budget_bytes(given: int | None) -> int:
    """The memory that batches in progress may take."""
    return given or int(memory_bytes() * _BUDGET_SHARE)


def _limits() -> list[int]:
    found = []
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A group further up may be the narrower one. In a container, its own path may not be visible.
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            try:
                with open("/".join([root, *parts[:depth], name])) as limit:
                    text = limit.read().strip()
            except OSError:
                continue
            if text.isdigit():
                found.append(int(text))
    return found
