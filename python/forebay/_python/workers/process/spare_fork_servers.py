"""Fork servers that are left over from loaders, for the next ones of this process.

Their interpreters have imported torch already, which is nearly all of what starting workers costs. Two are
kept: loaders that are made one after the other share them, those that live at the same time have their own.
"""

import contextlib
import os
import threading
from typing import TypeVar

from forebay._python.workers.process.fork_server import EARLY_VARIABLE
from forebay._python.workers.process.processes import ProcessWorkers

_T = TypeVar("_T")

# A loader to train with, and one to validate with.
_MAX_SPARE = 2
_spare: list[ProcessWorkers] = []
_leaving = threading.RLock()  # a loader may be finalised, and leave its groups of workers, inside of it


def take(deadline_seconds: float | None, memory_budget: int | None, max_worker_memory: int | None) -> ProcessWorkers:
    """Workers, with an idle fork server if there is one."""
    while (workers := popped(_spare)) is not None:
        if workers.is_at_hand():
            workers.settings(deadline_seconds, memory_budget, max_worker_memory)
            return workers
        workers.close()
    return ProcessWorkers(deadline_seconds, memory_budget, max_worker_memory)


def prepare_early() -> None:
    """Starts a fork server when forebay is imported, where the environment asks for that."""
    if os.environ.get(EARLY_VARIABLE, "") not in ("", "0"):
        prepare("torch", is_early=True)


def prepare(output: str, *, is_early: bool = False) -> None:
    """Starts a fork server for the next loader that begins a pass, unless one is left over."""
    with _leaving, contextlib.suppress(OSError):  # met again when the pass begins, and told there
        if not any(workers.is_at_hand() for workers in _spare):
            workers = ProcessWorkers()
            workers.prepare(output, is_early=is_early)
            _spare.append(workers)


def leave(groups: list[ProcessWorkers]) -> None:
    """Keeps the groups of workers of a loader that is gone, as far as there is room, and closes the others."""
    while (workers := popped(groups)) is not None:
        workers.rest()
        if not (workers.is_at_hand() and _is_kept(workers)):
            workers.close()


def _is_kept(workers: ProcessWorkers) -> bool:
    with _leaving:
        if len(_spare) >= _MAX_SPARE:
            return False
        _spare.append(workers)
        return True


def popped(found: list[_T]) -> _T | None:
    """The last one, if there is one: another thread may take it first."""
    try:
        return found.pop()
    except IndexError:
        return None
