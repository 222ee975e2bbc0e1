"""Nurseries that are left over from loaders, for the next ones of this process.

Their interpreters have imported torch already, which is nearly all of what starting workers costs. Two are
kept: loaders that are made one after the other share them, those that live at the same time have their own.
"""

import os
import sys

from forebay._workers.processes import ProcessCrew

# A loader to train with, and one to validate with.
_MAX_SPARE = 2
_spare: list[tuple[object, ProcessCrew]] = []


def _surroundings() -> object:
    """What a nursery was born into, and passes on: one of other surroundings is of no use."""
    return os.getpid(), tuple(sys.path), os.getcwd(), tuple(os.environ.items())


def take(deadline_seconds: float | None, memory_budget: int | None, max_worker_memory: int | None) -> ProcessCrew:
    """A crew, with the nursery that is left over, if there is one."""
    here = _surroundings()
    while _spare:
        there, crew = _spare.pop()
        if there == here and crew.is_at_hand():
            crew.settings(deadline_seconds, memory_budget, max_worker_memory)
            return crew
        crew.close()
    return ProcessCrew(deadline_seconds, memory_budget, max_worker_memory)


def leave(crews: list[ProcessCrew]) -> None:
    """Keeps the crews of a loader that is gone, as far as there is room, and closes the others."""
    while crews:
        crew = crews.pop()
        crew.rest()
        if len(_spare) >= _MAX_SPARE or not crew.is_at_hand():
            crew.close()
        else:
            _spare.append((_surroundings(), crew))
