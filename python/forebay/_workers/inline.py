"""`num_workers=0`: samples are made in the caller, one batch at a time, when it is asked for."""

import copy
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay._workers import role, seeds
from forebay._workers.fetch import Fetcher
from forebay._workers.job import END, Job, Result, Task


class InlineCrew:
    """A crew of nobody. A state of several shards is gone on with, all of them in the caller."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._infos: dict[int, Any] = {}
        self._fetchers: dict[int, Fetcher] = {}
        # Where those were that nobody has to ask any more.
        self._known: dict[int, Any] = {}
        self._tasks: deque[Task] = deque()
        self._hand: tuple[Task, int, float] | None = None

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        self._jobs = {shard: own(job, len(shards)) for shard in shards}
        self._infos = {shard: role.of_thread(each, shard) for shard, each in self._jobs.items()}
        for shard in shards if job.shard_count else []:
            if job.worker_init_fn is not None:
                with role.in_thread(self._infos[shard]):
                    job.worker_init_fn(shard)
        self._begin(states)

    def _begin(self, states: list[Any] | None) -> None:
        self._tasks.clear()
        self._fetchers, self._known = {}, {}
        for place, (shard, job) in enumerate(self._jobs.items()):
            with role.in_thread(self._infos[shard]):
                self._fetchers[shard] = Fetcher(job, shard, states[place] if states else None, self._note)

    def _note(self, position: int) -> None:
        if self._tasks:
            self._hand = self._tasks[0], position, time.monotonic()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def receive(self, timeout_seconds: float) -> Result | None:
        if not self._tasks:
            return None
        task = self._tasks[0]
        job = self._jobs[task.shard]
        kept = None if job.seed is None else seeds.Kept()
        try:
            with role.in_thread(self._infos[task.shard]):
                return self._fetchers[task.shard].fetch(task)
        finally:
            if kept is not None:
                kept.put_back()
            self._tasks.popleft()
            self._hand = None

    def delivered(self, result: Result) -> None:
        """Nothing is prepared ahead here."""

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        self._jobs = {shard: replace(job, **changes) for shard, job in self._jobs.items()}
        self._begin(states)

    def shard_states(self) -> list[Any]:
        """Where each shard is now; after the end of a pass, too, whichever way it ended."""
        told = [self._known.get(shard) or self._fetchers[shard].state() for shard in self._jobs]
        return copy.deepcopy(told)  # what a dataset tells may be what it goes on with

    def in_flight(self) -> list[dict[str, Any]]:
        if (hand := self._hand) is None:
            return []
        task, position, since = hand
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
    """Which sample a worker has in hand: of a stream, how many came before it, if its fetcher is at hand to be asked;
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
