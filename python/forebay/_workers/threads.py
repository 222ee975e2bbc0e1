"""Workers that are threads of this process: for datasets that release the GIL, and for Python without one.

The dataset is the caller's own object, so nothing is pickled and nothing is copied. A thread cannot be ended from
outside: one that is past its deadline is written off, and another one takes its place.
"""

import atexit
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay._workers import role
from forebay._workers.fetch import Fetcher
from forebay._workers.inline import index_at, own
from forebay._workers.job import Incident, Job, Raised, Result, Task
from forebay.errors import DeadlineError

# Written-off threads that are still stuck, before the run stops. Each keeps what it had in hand.
_MAX_LOST = 64
# How long `close` waits for what the threads have in hand.
_CLOSE_SECONDS = 5.0
# How long the interpreter's end waits for all of them.
_EXIT_SECONDS = 2.0

# Every thread at work, and what lets it go.
_living: "dict[threading.Thread, queue.SimpleQueue[_Begin | Task | None]]" = {}


@dataclass
class _Begin:
    """Tells a worker to begin an epoch."""

    job: Job
    generation: int
    state: Any | None
    is_first: bool


@dataclass
class _Desk:
    """What a worker and its crew share."""

    shard: int
    inbox: "queue.SimpleQueue[_Begin | Task | None]" = field(default_factory=queue.SimpleQueue)
    # (task, position, since): replaced as a whole, so that it is read as a whole.
    hand: tuple[Task, int, float] | None = None
    # Tasks handed out and not answered, in order.
    waiting: dict[int, Task] = field(default_factory=dict)
    is_lost: bool = False
    thread: threading.Thread | None = None


def _work(desk: _Desk, outbox: "queue.SimpleQueue[tuple[int, _Desk, Result]]") -> None:
    """The life of a worker. It knows its desk and nothing of the crew, which may be dropped any time."""
    try:
        _work_on(desk, outbox)
    finally:
        _living.pop(threading.current_thread(), None)


def _work_on(desk: _Desk, outbox: "queue.SimpleQueue[tuple[int, _Desk, Result]]") -> None:
    fetcher: Fetcher | None = None
    refusal: Raised | None = None
    job: Job | None = None
    generation = 0

    def note(position: int) -> None:
        if (hand := desk.hand) is not None:
            desk.hand = hand[0], position, time.monotonic()

    while (message := desk.inbox.get()) is not None and not desk.is_lost:
        if isinstance(message, _Begin):
            job, generation, refusal = message.job, message.generation, None
            try:
                with role.in_thread(job, desk.shard):
                    if message.is_first and job.worker_init_fn is not None:
                        job.worker_init_fn(desk.shard)
                    fetcher = Fetcher(job, desk.shard, message.state, note)
            except Exception as error:
                refusal = Raised(error, "".join(traceback.format_exception(error)))
            continue
        if job is None:
            raise AssertionError("a task came before the job")
        desk.hand = message, 0, time.monotonic()
        if refusal is not None or fetcher is None:
            result = Result(message.number, desk.shard, refusal)
        else:
            try:
                with role.in_thread(job, desk.shard):
                    result = fetcher.fetch(message)
            except BaseException as error:  # SystemExit and its like must not end a worker unnoticed
                text = "".join(traceback.format_exception(error))
                result = Result(message.number, desk.shard, Raised(error, text))
        desk.hand = None
        outbox.put((generation, desk, result))


def _dismiss(desks: dict[int, _Desk]) -> None:
    for desk in desks.values():
        desk.inbox.put(None)


def _end_all() -> None:
    """Lets every thread go before the interpreter ends: it would cut them off wherever they are, and cut off in torch's
    code they take the process with them.
    """
    living = list(_living.items())
    for _, inbox in living:
        inbox.put(None)
    until = time.monotonic() + _EXIT_SECONDS
    for thread, _ in living:
        thread.join(max(0.0, until - time.monotonic()))


atexit.register(_end_all)


class ThreadCrew:
    """One thread for each shard."""

    def __init__(self, deadline_seconds: float | None = None) -> None:
        self._deadline_seconds = deadline_seconds
        self._job: Job | None = None
        self._generation = 0
        self._desks: dict[int, _Desk] = {}
        self._outbox: queue.SimpleQueue[tuple[int, _Desk, Result]] = queue.SimpleQueue()
        self._lost: list[_Desk] = []
        self._lost_count = 0
        self._extra: dict[int, list[Incident]] = {}
        # Dropped without being closed, it still lets its threads go.
        weakref.finalize(self, _dismiss, self._desks).atexit = False

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        self._job = job
        for place, shard in enumerate(shards):
            self._desks[shard] = self._hire(_Desk(shard))
            self._begin(shard, own(job, len(shards)), states[place] if states else None, is_first=True)

    def _hire(self, desk: _Desk) -> _Desk:
        name = f"forebay-worker-{desk.shard}"
        desk.thread = threading.Thread(target=_work, args=(desk, self._outbox), name=name, daemon=True)
        _living[desk.thread] = desk.inbox
        desk.thread.start()
        return desk

    def _begin(self, shard: int, job: Job, state: Any | None, is_first: bool) -> None:
        self._desks[shard].inbox.put(_Begin(job, self._generation, state, is_first))

    def submit(self, task: Task) -> None:
        desk = self._desks[task.shard]
        desk.waiting[task.number] = task
        desk.inbox.put(task)

    def receive(self, timeout_seconds: float) -> Result | None:
        until = time.monotonic() + timeout_seconds
        while True:
            remaining = until - time.monotonic()
            patience = remaining if self._deadline_seconds is None else min(remaining, self._deadline_seconds / 4)
            try:
                generation, desk, result = self._outbox.get(timeout=max(0.0, patience))
            except queue.Empty:
                if (overdue := self._overdue()) is not None:
                    return overdue
                if remaining <= 0:
                    return None
                continue
            if generation == self._generation and not desk.is_lost:
                desk.waiting.pop(result.number, None)
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
        for shard, desk in self._desks.items():
            hand = desk.hand
            if hand is None or time.monotonic() - hand[2] < self._deadline_seconds:
                continue
            if self._job.is_iterable:
                continue  # its iterator is in that thread's hands, and nobody else's
            task, position, since = hand
            desk.is_lost = True
            self._lost.append(desk)
            self._lost_count += 1
            said = self._incident(task, position, time.monotonic() - since, stack(desk.thread))
            fresh = _Desk(shard)
            self._desks[shard] = self._hire(fresh)
            self._begin(shard, self._job, None, is_first=True)
            is_over = self._job.on_error == "raise" or position < 0 or self._living_lost() > _MAX_LOST
            for number, waiting in desk.waiting.items():
                if number != task.number:
                    self.submit(waiting)
                elif not is_over:
                    self._extra.setdefault(number, []).append(said)
                    self.submit(replace(task, excluded=task.excluded | {position}))
            if is_over:
                error = DeadlineError(
                    said.message, index=said.index if isinstance(said.index, int) else None, stage=said.stage
                )
                error.detail = said.detail
                raised = Raised(error, said.detail or "", said.index, position)
                return Result(task.number, shard, raised, [replace(said, outcome="raised")])
        return None

    def _living_lost(self) -> int:
        self._lost = [desk for desk in self._lost if desk.thread is not None and desk.thread.is_alive()]
        return len(self._lost)

    def _incident(self, task: Task, position: int, seconds: float, where: str) -> Incident:
        index = None if self._job is None else index_at(self._job, task, position)
        what = "collating a batch" if position < 0 else f"sample {index!r}"
        message = f"{what} took longer than deadline_seconds={self._deadline_seconds:g} in a worker thread"
        stage = "assemble" if position < 0 else "transform"
        return Incident(position, index, "timeout", stage, message, where, 1, seconds, None, None, "raised")

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        if self._job is None:
            raise AssertionError("renewed before it was started")
        self._generation += 1
        self._job = replace(self._job, **changes)
        self._extra.clear()
        for place, (shard, desk) in enumerate(self._desks.items()):
            desk.waiting.clear()
            while True:  # what was not begun is not wanted any more
                try:
                    desk.inbox.get_nowait()
                except queue.Empty:
                    break
            self._begin(shard, own(self._job, len(self._desks)), states[place] if states else None, is_first=False)

    def in_flight(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        held = [(desk, hand) for desk in self._desks.values() if (hand := desk.hand) is not None]
        return [
            {
                "shard": desk.shard,
                "pid": os.getpid(),
                "thread": desk.thread.name if desk.thread is not None else "",
                "number": task.number,
                "index": None if self._job is None else index_at(self._job, task, position),
                "since_seconds": now - since,
                "stage": "transform" if position >= 0 else "assemble",
                "stack": stack(desk.thread),
            }
            for desk, (task, position, since) in held
        ]

    def stats(self) -> dict[str, Any]:
        return {"kind": "threads", "restarts": self._lost_count, "recycled": 0, "workers": []}

    def close(self) -> None:
        _dismiss(self._desks)
        until = time.monotonic() + _CLOSE_SECONDS
        for desk in self._desks.values():
            if desk.thread is not None and desk.thread is not threading.current_thread():
                desk.thread.join(max(0.0, until - time.monotonic()))
        self._desks.clear()


def stack(thread: threading.Thread | None) -> str:
    """Where a thread is, innermost line last."""
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
