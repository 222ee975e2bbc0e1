"""Workers that are threads of this process: for datasets that release the GIL, and for Python without one.

The dataset is the caller's own object, so nothing is pickled and nothing is copied. A thread cannot be ended from
outside: a thread past its deadline is written off and replaced. If it iterates a stream, which only that thread can
continue, the run ends with the error.
"""

import atexit
import copy
import os
import queue
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay._options import limits
from forebay._python.workers.diagnose import stacks
from forebay._python.workers.job import END, Incident, Job, Raised, Result, Task
from forebay._python.workers.process import worker_setup
from forebay._python.workers.process.batch_memory import weigh
from forebay._python.workers.process.fetch import Fetcher
from forebay._python.workers.process.inline import index_at, own
from forebay.errors import DeadlineError

# Threads that are written off and still stuck, before the run stops. Each keeps its sample's memory.
_MAX_LOST = 64
# How long `close` waits for threads to finish their samples.
_CLOSE_SECONDS = 5.0
# How long the interpreter's end waits for all of them.
_EXIT_SECONDS = 2.0

# Every thread at work, and where.
_living: "dict[threading.Thread, _ThreadWorker]" = {}


@dataclass
class _Begin:
    """Tells a worker to begin an epoch."""

    job: Job
    generation: int
    state: Any | None
    is_first: bool


class _Room:
    """What a worker made that is not in the loop's hands yet: it waits while the next batch may be more than its share.

    With nothing of its own on the way it never waits, so that the batch which the loop waits for is always made.
    """

    def __init__(self, share_bytes: int) -> None:
        self._share_bytes = share_bytes
        self._weights: dict[int, int] = {}
        self._last = 0
        self._is_open = False
        self._changed = threading.Condition()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or not self._weights or self._fits())

    def _fits(self) -> bool:
        return sum(self._weights.values()) + self._last <= self._share_bytes

    def put(self, number: int, weight_bytes: int) -> None:
        with self._changed:
            self._weights[number] = self._last = weight_bytes

    def take(self, number: int | None) -> None:
        """Notes that a batch is delivered; `None`: that none of them is wanted any more."""
        with self._changed:
            if number is None:
                self._weights.clear()
            else:
                self._weights.pop(number, None)
            self._changed.notify_all()

    def open(self) -> None:
        """Wakes the worker, so that it can exit."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


@dataclass
class _ThreadWorker:
    """A worker thread, and the state that it shares with the loader's thread."""

    shard: int
    room: _Room
    inbox: "queue.SimpleQueue[_Begin | Task | None]" = field(default_factory=queue.SimpleQueue)
    # (task, position, since): replaced as a whole, so that it is read as a whole.
    current: tuple[Task, int, float] | None = None
    # Since when it has been starting: `worker_init_fn`, `iter(dataset)`.
    starting: float | None = None
    fetcher: Fetcher | None = None
    # Tasks handed out and not answered, in order.
    waiting: dict[int, Task] = field(default_factory=dict)
    is_lost: bool = False
    thread: threading.Thread | None = None

    def dismiss(self) -> None:
        """Ends the worker after its current task."""
        self.inbox.put(None)
        self.room.open()


def _work(worker: _ThreadWorker, outbox: "queue.SimpleQueue[tuple[int, _ThreadWorker, Result]]") -> None:
    """Runs one worker. It refers only to its own object: the group it belongs to may be dropped any time."""
    try:
        _work_on(worker, outbox)
    finally:
        _living.pop(threading.current_thread(), None)


def _work_on(worker: _ThreadWorker, outbox: "queue.SimpleQueue[tuple[int, _ThreadWorker, Result]]") -> None:
    refusal: Raised | None = None
    info: Any | None = None
    generation = 0

    def note(position: int) -> None:
        if (current := worker.current) is not None:
            worker.current = current[0], position, time.monotonic()

    while (message := worker.inbox.get()) is not None and not worker.is_lost:
        if isinstance(message, _Begin):
            job, generation, refusal = message.job, message.generation, None
            worker.starting = time.monotonic()
            try:
                if message.is_first:
                    info = worker_setup.of_thread(job, worker.shard)
                with worker_setup.in_thread(info):
                    if message.is_first and job.worker_init_fn is not None:
                        job.worker_init_fn(worker.shard)
                    worker.fetcher = Fetcher(job, worker.shard, message.state, note, worker_setup.reseeding(info))
            except BaseException as error:
                refusal = Raised(error, "".join(traceback.format_exception(error)))
            worker.starting = None
            continue
        worker.room.wait()
        worker.current = message, 0, time.monotonic()
        if refusal is not None or worker.fetcher is None:
            result = Result(message.number, worker.shard, refusal)
        else:
            try:
                with worker_setup.in_thread(info):
                    result = worker.fetcher.fetch(message)
                result.state = copy.deepcopy(result.state)  # a dataset may change the state that it returned
            except BaseException as error:  # SystemExit and its like must not end a worker unnoticed
                text = "".join(traceback.format_exception(error))
                result = Result(message.number, worker.shard, Raised(error, text))
        worker.current = None
        worker.room.put(message.number, 0 if result.value is END else weigh(result.value))
        outbox.put((generation, worker, result))


def _dismiss(workers: dict[int, _ThreadWorker]) -> None:
    for worker in workers.values():
        worker.dismiss()


def _end_all() -> None:
    """Lets every thread go before the interpreter ends: it would cut them off wherever they are, and cut off in torch's
    code they take the process with them.
    """
    living = list(_living.copy().items())
    for _, worker in living:
        worker.dismiss()
    until = time.monotonic() + _EXIT_SECONDS
    for thread, _ in living:
        thread.join(max(0.0, until - time.monotonic()))


atexit.register(_end_all)


class ThreadWorkers:
    """One thread for each shard."""

    def __init__(self, deadline_seconds: float | None = None, memory_budget: int | None = None) -> None:
        self._deadline_seconds = deadline_seconds
        self._budget_bytes = limits.budget_bytes(memory_budget)
        self._share_bytes = 0
        self._job: Job | None = None
        self._generation = 0
        self._by_shard: dict[int, _ThreadWorker] = {}
        self._outbox: queue.SimpleQueue[tuple[int, _ThreadWorker, Result]] = queue.SimpleQueue()
        self._lost: list[_ThreadWorker] = []
        self._lost_count = 0
        self._extra: dict[int, list[Incident]] = {}
        # Shards whose stream is stuck in a thread that was written off, and why.
        self._refused: dict[int, Raised] = {}
        self._answers: deque[Result] = deque()
        # Dropped without being closed, it still lets its threads go.
        weakref.finalize(self, _dismiss, self._by_shard).atexit = False

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        self._job = job
        self._share_bytes = self._budget_bytes // max(1, len(shards))
        for place, shard in enumerate(shards):
            self._by_shard[shard] = self._start_worker(shard)
            self._begin(shard, own(job, len(shards)), states[place] if states else None, is_first=True)

    def _start_worker(self, shard: int) -> _ThreadWorker:
        worker = _ThreadWorker(shard, _Room(self._share_bytes))
        name = f"forebay-worker-{shard}"
        worker.thread = threading.Thread(target=_work, args=(worker, self._outbox), name=name, daemon=True)
        _living[worker.thread] = worker
        worker.thread.start()
        return worker

    def _begin(self, shard: int, job: Job, state: Any | None, is_first: bool) -> None:
        self._by_shard[shard].inbox.put(_Begin(job, self._generation, state, is_first))

    def submit(self, task: Task) -> None:
        if (refusal := self._refused.get(task.shard)) is not None:
            self._answers.append(Result(task.number, task.shard, refusal))
            return
        worker = self._by_shard[task.shard]
        worker.waiting[task.number] = task
        worker.inbox.put(task)

    def receive(self, timeout_seconds: float) -> Result | None:
        until = time.monotonic() + timeout_seconds
        while True:
            if self._answers:
                return self._answers.popleft()
            remaining = until - time.monotonic()
            patience = remaining if self._deadline_seconds is None else min(remaining, self._deadline_seconds / 4)
            try:
                generation, worker, result = self._outbox.get(timeout=max(0.0, patience))
            except queue.Empty:
                if (overdue := self._overdue()) is not None:
                    return overdue
                if remaining <= 0:
                    return None
                continue
            if generation != self._generation:
                worker.room.take(result.number)
            elif not worker.is_lost:
                worker.waiting.pop(result.number, None)
                self._explain(result)
                return result

    def _explain(self, result: Result) -> None:
        """Says of a sample that was given up why it was."""
        known = {incident.position: incident for incident in self._extra.pop(result.number, [])}
        for place, incident in enumerate(result.incidents):
            if (before := known.get(incident.position)) is not None and incident.code == "worker_died":
                outcome, substitute = incident.outcome, incident.substitute
                result.incidents[place] = replace(before, outcome=outcome, substitute=substitute)

    def _overdue(self) -> Result | None:
        """Writes a thread off whose sample is past its deadline, and puts another one in its place."""
        if self._deadline_seconds is None or self._job is None:
            return None
        for shard, worker in self._by_shard.items():
            current = worker.current
            if current is None or time.monotonic() - current[2] < self._deadline_seconds:
                continue
            task, position, since = current
            worker.is_lost = True
            worker.dismiss()
            self._lost.append(worker)
            self._lost_count += 1
            said = self._incident(worker, task, position, time.monotonic() - since)
            if self._job.is_iterable:
                return self._end_stream(worker, task, said)
            self._by_shard[shard] = self._start_worker(shard)
            self._begin(shard, self._job, None, is_first=True)
            is_over = self._job.on_error == "raise" or position < 0 or self._living_lost() > _MAX_LOST
            for number, waiting in worker.waiting.items():
                if number != task.number:
                    self.submit(waiting)
                elif not is_over:
                    self._extra.setdefault(number, []).append(said)
                    self.submit(replace(task, excluded=task.excluded | {position}))
            if is_over:
                return Result(task.number, shard, _raised(said), [said])
        return None

    def _end_stream(self, worker: _ThreadWorker, task: Task, said: Incident) -> Result:
        """Gives up a shard: its iterator is used by a thread that is stuck, and no other thread can continue it."""
        del self._by_shard[worker.shard]
        refusal = self._refused[worker.shard] = _raised(said)
        later = [number for number in worker.waiting if number != task.number]
        self._answers.extend(Result(number, worker.shard, refusal) for number in later)
        return Result(task.number, worker.shard, refusal, [said])

    def _living_lost(self) -> int:
        self._lost = [worker for worker in self._lost if worker.thread is not None and worker.thread.is_alive()]
        return len(self._lost)

    def _incident(self, worker: _ThreadWorker, task: Task, position: int, seconds: float) -> Incident:
        index = self._index(worker, task, position)
        what = "collating a batch" if position < 0 else f"sample {index!r}"
        if self._job is not None and self._job.is_iterable:
            what += f" of the stream of worker {worker.shard}"
        name, where = "" if worker.thread is None else f" {worker.thread.name}", _stack(worker)
        message = f"{what} took longer than deadline_seconds={self._deadline_seconds:g} in a worker thread{name}"
        stage = "assemble" if position < 0 else "transform"
        return Incident(position, index, "timeout", stage, message, where, 1, seconds, None, None, "raised")

    def _index(self, worker: _ThreadWorker, task: Task, position: int) -> Any:
        return None if self._job is None else index_at(self._job, task, position, worker.fetcher)

    def delivered(self, result: Result) -> None:
        if (worker := self._by_shard.get(result.shard)) is not None:
            worker.room.take(result.number)

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        if self._job is None:
            raise AssertionError("renewed before it was started")
        self._generation += 1
        self._job = replace(self._job, **changes)
        self._extra.clear()
        self._answers.clear()
        fresh = {shard: self._start_worker(shard) for shard in self._refused}
        self._refused.clear()
        self._by_shard.update(fresh)
        shards = sorted(self._by_shard)
        for place, shard in enumerate(shards):
            worker = self._by_shard[shard]
            worker.waiting.clear()
            worker.room.take(None)
            while True:  # what was not begun is not wanted any more
                try:
                    worker.inbox.get_nowait()
                except queue.Empty:
                    break
            job, state = own(self._job, len(shards)), states[place] if states else None
            self._begin(shard, job, state, is_first=shard in fresh)

    def in_flight(self) -> list[dict[str, Any]]:
        now, found, workers = time.monotonic(), [], list(self._by_shard.values())  # asked by any thread
        told = stacks.of(worker.thread for worker in workers)
        for worker in workers:
            current, starting = worker.current, worker.starting
            if current is None and starting is None:
                continue
            number, index, since, stage = None, None, starting or 0.0, "start"
            if current is not None:
                task, position, since = current
                number, index = task.number, self._index(worker, task, position)
                stage = "transform" if position >= 0 else "assemble"
            found.append(
                {
                    "shard": worker.shard,
                    "pid": os.getpid(),
                    "thread": "" if worker.thread is None else worker.thread.name,
                    "number": number,
                    "index": index,
                    "since_seconds": now - since,
                    "stage": stage,
                    "stack": told.get(worker.thread, ""),
                }
            )
        return found

    def stats(self) -> dict[str, Any]:
        return {"kind": "threads", "restarts": self._lost_count, "recycled": 0, "workers": []}

    def close(self) -> None:
        _dismiss(self._by_shard)
        until = time.monotonic() + _CLOSE_SECONDS
        for worker in self._by_shard.values():
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, until - time.monotonic()))
        self._by_shard.clear()


def _raised(said: Incident) -> Raised:
    """The error in place of the batch of a thread that was written off."""
    index = said.index if isinstance(said.index, int) else None
    error = DeadlineError(
        said.message, index=index, stage=said.stage, elapsed_seconds=said.elapsed_seconds, detail=said.detail
    )
    return Raised(error, said.detail or "", said.index, said.position)


def _stack(worker: _ThreadWorker) -> str:
    return "".join(stacks.of([worker.thread]).values())
