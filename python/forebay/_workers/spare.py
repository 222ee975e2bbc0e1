"""Nurseries that are left over from loaders, for the next ones of this process.

Their interpreters have imported torch already, which is nearly all of what starting workers costs. Two are
kept: loaders that are made one after the other share them, those that live at the same time have their own.
"""

import contextlib
import os
import threading
from typing import TypeVar

from forebay._workers.nursery import EARLY_VARIABLE
from forebay._workers.processes import ProcessCrew

_T = TypeVar("_T")

# A loader to train with, and one to validate with.
_MAX_SPARE = 2
_spare: list[ProcessCrew] = []
_leaving = threading.RLock()  # a loader may be finalised, and leave its crews, inside of it


def take(deadline_seconds: float | None, memory_budget: int | None, max_worker_memory: int | None) -> ProcessCrew:
    """A crew, with the nursery that is left over, if there is one."""
    while (crew := popped(_spare)) is not None:
        if crew.is_at_hand():
            crew.settings(deadline_seconds, memory_budget, max_worker_memory)
            return crew
        crew.close()
    return ProcessCrew(deadline_seconds, memory_budget, max_worker_memory)


def prepare_early() -> None:
    """Starts a nursery when forebay is imported, where the environment asks for that."""
    if os.environ.get(EARLY_VARIABLE, "") not in ("", "0"):
        prepare("torch", is_early=True)


def prepare(output: str, *, is_early: bool = False) -> None:
    """Starts a nursery for the next loader that begins a pass, unless one is left over."""
    with _leaving, contextlib.suppress(OSError):  # met again when the pass begins, and told there
        if not any(crew.is_at_hand() for crew in _spare):
            crew = ProcessCrew()
            crew.prepare(output, is_early=is_early)
            _spare.append(crew)


def leave(crews: list[ProcessCrew]) -> None:
    """Keeps the crews of a loader that is gone, as far as there is room, and closes the others."""
    while (crew := popped(crews)) is not None:
        crew.rest()
        if not (crew.is_at_hand() and _is_kept(crew)):
            crew.close()


def _is_kept(crew: ProcessCrew) -> bool:
    with _leaving:
        if len(_spare) >= _MAX_SPARE:
            return False
        _spare.append(crew)
        return True


def popped(found: list[_T]) -> _T | None:
    """The last one, if there is one: another thread may take it first."""
    try:
        return found.pop()
    except IndexError:
        return None
