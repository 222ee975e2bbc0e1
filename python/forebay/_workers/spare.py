"""A nursery that is left over from one loader, for the next one of this process.

Its interpreter has imported torch already, which is nearly all of what starting workers costs. One is kept: loaders
that are made one after the other share it, those that live at the same time have their own.
"""

import os
import sys

from forebay._workers.processes import ProcessCrew

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
    """Keeps one of the crews of a loader that is gone, and closes the others."""
    while crews:
        crew = crews.pop()
        crew.rest()
        if _spare or not crew.is_at_hand():
            crew.close()
        else:
            _spare.append((_surroundings(), crew))
