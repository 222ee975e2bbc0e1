"""`num_workers=0`: samples are made in the caller, one batch at a time, when it is asked for."""

import copy
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay._python.workers.job import END, Job, Result, Task
from forebay._python.workers.process import seeds, worker_setup
from forebay._python.workers.process.fetch import Fetcher


class InlineWorkers:
    """No workers at all. A state of several shards is resumed with all of them in the caller."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._infos: dict[int, Any] = {}
        self._fetchers: dict[int, Fetcher] = {}
        # The last states of shards that are exhausted.
        self._known: dict[int, Any] = {}
        self._tasks: deque[Task] = deque()
        self._current: tuple[Task, int, float] | None = None

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        self._jobs = {shard: own(job, len(shards)) for shard in shards}
        self._infos = {shard: worker_setup.of_thread(each, shard) for shard, each in self._jobs.items()}
        for shard in shards if job.shard_count else []:
            if job.worker_init_fn is not None:
                with worker_setup.in_thread(self._infos[shard]):
                    job.worker_init_fn(shard)
        self._begin(states)

    def _begin(self, states: list[Any] | None) -> None:
        self._tasks.clear()
        self._fetchers, self._known = {}, {}
        for place, (shard, job) in enumerate(self._jobs.items()):
            with worker_setup.in_thread(self._infos[shard]):
                self._fetchers[shard] = Fetcher(job, shard, states[place] if states else None, self._note)

    def _note(self, position: int) -> None:
        if self._tasks:
            self._current = self._tasks[0], position, time.monotonic()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def receive(self, timeout_seconds: float) -> Result | None:
        if not self._tasks:
            return None
        task = self._tasks[0]
        job = self._jobs[task.shard]
        kept = None if job.seed is None else seeds.Kept()
        try:
            with worker_setup.in_thread(self._infos[task.shard]):
                return self._fetchers[task.shard].fetch(task)
        finally:
            if kept is not None:
                kept.put_back()
            self._tasks.popleft()
            self._current = None

    def delivered(self, result: Result) -> None:
        """Nothing is prepared ahead here."""

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        self._jobs = {shard: replace(job, **changes) for shard, job in self._jobs.items()}
        self._begin(states)

    def shard_states(self) -> list[Any]:
        """The state of each shard; also after the end of a pass."""
        told = [self._known.get(shard) or self._fetchers[shard].state() for shard in self._jobs]
        return copy.deepcopy(told)  # a dataset may change the state that it returned

    def in_flight(self) -> list[dict[str, Any]]:
        if (current := self._current) is None:
            return []
        task, position, since = current
        return [
            {
                "shard": task.shard,
                "pid": os.getpid(),
                "number": task.number,
                "index": index_at(self._jobs[task.shard], task, position, self._fetchers.get(task.shard)),
                "since_seconds": time.monotonic() - since,
                "stage": "transform" if position >= 0 else "assemble",
            }
        ]

    def stats(self) -> dict[str, Any]:
        return {"kind": "inline", "restarts": 0, "recycled": 0, "workers": []}

    def close(self) -> None:
        """Lets the iterators go, but for those that say themselves where they are: they are asked when it is wanted."""
        self._tasks.clear()
        known = {shard: fetcher.state() for shard, fetcher in self._fetchers.items() if not fetcher.is_telling()}
        self._known |= known
        for shard in known:
            del self._fetchers[shard]


def index_at(job: Job, task: Task, position: int, fetcher: Fetcher | None = None) -> Any:
    """The index of the sample that a worker makes; in a stream, the number of samples before it, given a fetcher.

    `None` while the batch is being collated.
    """
    if position < 0 or task.indices is END:
        return None
    if job.is_iterable:
        return None if fetcher is None else fetcher.drawn()
    return task.indices[position] if job.is_batched else task.indices


def own(job: Job, count: int) -> Job:
    """The job of one of several shards in one process: what it sets on its dataset must not reach the others."""
    return replace(job, dataset=copy.copy(job.dataset)) if job.is_iterable and count > 1 else job
