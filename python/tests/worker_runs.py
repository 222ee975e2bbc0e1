"""Groups of worker processes, driven as a loader drives them: so many tasks ahead, results put in order."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay._python.workers.job import END, Job, Raised, Result, Task
from forebay._python.workers.process import fork_server
from forebay._python.workers.process.processes import ProcessWorkers


def job(dataset: Any, **fields: Any) -> Job:
    plain = {
        "collate_fn": None,
        "worker_init_fn": None,
        "is_iterable": False,
        "is_batched": True,
        "drop_last": False,
        "shard_count": 2,
        "base_seed": 1234,
        "seed": None,
        "on_error": "raise",
        "max_attempts": 1,
        "output": "torch",
    }
    return Job(dataset=dataset, **(plain | fields))


class Others:
    """Substitutes: the samples after the one that failed."""

    def __init__(self, indices: list[int], count: int) -> None:
        self._indices, self._count = indices, count

    def candidates(self, position: int, failed: Any) -> Iterator[int]:
        for step in range(1, self._count):
            yield (self._indices[position] + step) % self._count


@contextmanager
def running(the_job: Job, states: list[Any] | None = None, **options: Any) -> Iterator[ProcessWorkers]:
    made = ProcessWorkers(**options)
    try:
        made.start(the_job, list(range(the_job.shard_count)), states)
        yield made
    finally:
        made.close()


def tasks(the_job: Job, count: int, batch: int, epoch: int = 0) -> list[Task]:
    made = []
    for number, start in enumerate(range(0, count, batch)):
        indices: Any = list(range(start, min(count, start + batch)))
        if the_job.is_iterable:
            indices = batch
        substitutes = Others(indices, count) if the_job.on_error == "replace" else None
        made.append(Task(number, number % the_job.shard_count, indices, epoch, substitutes=substitutes))
    return made


def results(
    made: ProcessWorkers,
    todo: list[Task],
    ahead: int = 8,
    each: Callable[[Result], None] | None = None,
    seconds: float = 60,
) -> list[Result]:
    """Every result, in order; fails where one comes twice or not at all."""
    waiting = list(todo)
    found: dict[int, Result] = {}
    until = time.monotonic() + seconds
    submitted = 0
    while len(found) < len(todo):
        while waiting and submitted - len(found) < ahead:
            made.submit(waiting.pop(0))
            submitted += 1
        result = made.receive(1.0)
        assert time.monotonic() < until, f"{len(found)} of {len(todo)} results in {seconds} s: {made.in_flight()}"
        if result is None:
            continue
        assert result.number not in found, f"result {result.number} came twice"
        found[result.number] = result
        if each is not None:
            each(result)
    return [found[task.number] for task in todo]


def values(made: list[Result]) -> list[Any]:
    for result in made:
        if isinstance(result.value, Raised):
            print(result.value.traceback)
            raise result.value.exception
    return [result.value for result in made if result.value is not END]


def flat(batches: Iterable[Any]) -> list[Any]:
    return [sample for batch in batches for sample in batch.tolist()]


def children(pid: int | None = None) -> list[int]:
    """The processes that come from one, at any depth."""
    found, todo = [], [os.getpid() if pid is None else pid]
    while todo:
        parent = todo.pop()
        for thread in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                mine = [int(text) for text in thread.read_text().split()]
            except OSError:
                continue
            found += mine
            todo += mine
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def outlast() -> None:
    """Waits until the process is gone that this one was forked from."""
    fork_server._prctl(fork_server._PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pause()
