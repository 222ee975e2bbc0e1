"""Workers that are threads of this process: for datasets that release the GIL, and for Python without one.

The dataset is the caller's own object, so nothing is pickled and nothing is copied. A thread cannot be ended from
outside: one that is past its deadline is written off, and another one takes its place, unless the samples are a stream
that only it has in hand: then the run ends with the error.
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

from forebay._workers import limits, role, stacks
from forebay._workers.fetch import Fetcher
from forebay._workers.inline import index_at, own
from forebay._workers.job import END, Incident, Job, Raised, Result, Task
from forebay._workers.weight import weigh
from forebay.errors import DeadlineError

# Written-off threads that are still stuck, before the run stops. Each keeps what it had in hand.
_MAX_LOST = 64
# How long `close` waits for what the threads have in hand.
_CLOSE_SECONDS = 5.0
# How long the interpreter's end waits for all of them.
_EXIT_SECONDS = 2.0

# Every thread at work, and where.
_living: "dict[threading.Thread, _Desk]" = {}


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
        """Lets the worker go on, whatever there is: it is to leave."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


@dataclass
class _Desk:
    """What a worker and its crew share."""

    shard: int
    room: _Room
    inbox: "queue.SimpleQueue[_Begin | Task | None]" = field(default_factory=queue.SimpleQueue)
    # (task, position, since): replaced as a whole, so that it is read as a whole.
    hand: tuple[Task, int, float] | None = None
    # Since when it has been starting: `worker_init_fn`, `iter(dataset)`.
    starting: float | None = None
    fetcher: Fetcher | None = None
    # Tasks handed out and not answered, in order.
    waiting: dict[int, Task] = field(default_factory=dict)
    is_lost: bool = False
    thread: threading.Thread | None = None

    def dismiss(self) -> None:
        """Lets the worker go, after what it has in hand."""
        self.inbox.put(None)
        self.room.open()


def _work(desk: _Desk, outbox: "queue.SimpleQueue[tuple[int, _Desk, Result]]") -> None:
    """The life of a worker. It knows its desk and nothing of the crew, which may be dropped any time."""
    try:
        _work_on(desk, outbox)
    finally:
        _living.pop(threading.current_thread(), None)


def _work_on(desk: _Desk, outbox: "queue.SimpleQueue[tuple[int, _Desk, Result]]") -> None:
    refusal: Raised | None = None
    info: Any | None = None
    generation = 0

    def note(position: int) -> None:
        if (hand := desk.hand) is not None:
            desk.hand = hand[0], position, time.monotonic()

    while (message := desk.inbox.get()) is not None and not desk.is_lost:
        if isinstance(message, _Begin):
            job, generation, refusal = message.job, message.generation, None
            desk.starting = time.monotonic()
            try:
                if message.is_first:
                    info = role.of_thread(job, desk.shard)
                with role.in_thread(info):
                    if message.is_first and job.worker_init_fn is not None:
                        job.worker_init_fn(desk.shard)
                    desk.fetcher = Fetcher(job, desk.shard, message.state, note, role.reseeding(info))
            except BaseException as error:
                refusal = Raised(error, "".join(traceback.format_exception(error)))
            desk.starting = None
            continue
        desk.room.wait()
        desk.hand = message, 0, time.monotonic()
        if refusal is not None or desk.fetcher is None:
            result = Result(message.number, desk.shard, refusal)
        else:
            try:
                with role.in_thread(info):
                    result = desk.fetcher.fetch(message)
                result.state = copy.deepcopy(result.state)  # what a dataset tells may be what it goes on with
            except BaseException as error:  # SystemExit and its like must not end a worker unnoticed
                text = "".join(traceback.format_exception(error))
                result = Result(message.number, desk.shard, Raised(error, text))
        desk.hand = None
        desk.room.put(message.number, 0 if result.value is END else weigh(result.value))
        outbox.put((generation, desk, result))


def _dismiss(desks: dict[int, _Desk]) -> None:
    for desk in desks.values():
        desk.dismiss()


def _end_all() -> None:
    """Lets every thread go before the interpreter ends: it would cut them off wherever they are, and cut off in torch's
    code they take the process with them.
    """
    living = list(_living.copy().items())
    for _, desk in living:
        desk.dismiss()
    until = time.monotonic() + _EXIT_SECONDS
    for thread, _ in living:
        thread.join(max(0.0, until - time.monotonic()))


atexit.register(_end_all)


class ThreadCrew:
    """One thread for each shard."""

    def __init__(self, deadline_seconds: float | None = None, memory_budget: int | None = None) -> None:
        self._deadline_seconds = deadline_seconds
        self._budget_bytes = limits.budget_bytes(memory_budget)
        self._share_bytes = 0
        self._job: Job | None = None
        self._generation = 0
        self._desks: dict[int, _Desk] = {}
        self._outbox: queue.SimpleQueue[tuple[int, _Desk, Result]] = queue.SimpleQueue()
        self._lost: list[_Desk] = []
        self._lost_count = 0
        self._extra: dict[int, list[Incident]] = {}
        # Shards whose stream is stuck in a thread that was written off, and why.
        self._refused: dict[int, Raised] = {}
        self._answers: deque[Result] = deque()
        # Dropped without being closed, it still lets its threads go.
        weakref.finalize(self, _dismiss, self._desks).atexit = False

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        self._job = job
        self._share_bytes = self._budget_bytes // max(1, len(shards))
        for place, shard in enumerate(shards):
            self._desks[shard] = self._hire(shard)
            self._begin(shard, own(job, len(shards)), states[place] if states else None, is_first=True)

    def _hire(self, shard: int) -> _Desk:
        desk = _Desk(shard, _Room(self._share_bytes))
        name = f"forebay-worker-{shard}"
        desk.thread = threading.Thread(target=_work, args=(desk, self._outbox), name=name, daemon=True)
        _living[desk.thread] = desk
        desk.thread.start()
        return desk

    def _begin(self, shard: int, job: Job, state: Any | None, is_first: bool) -> None:
        self._desks[shard].inbox.put(_Begin(job, self._generation, state, is_first))

    def submit(self, task: Task) -> None:
        if (refusal := self._refused.get(task.shard)) is not None:
            self._answers.append(Result(task.number, task.shard, refusal))
            return
        desk = self._desks[task.shard]
        desk.waiting[task.number] = task
        desk.inbox.put(task)

    def receive(self, timeout_seconds: float) -> Result | None:
        until = time.monotonic() + timeout_seconds
        while True:
            if self._answers:
                return self._answers.popleft()
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
            if generation != self._generation:
                desk.room.take(result.number)
            elif not desk.is_lost:
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
            task, position, since = hand
            desk.is_lost = True
            desk.dismiss()
            self._lost.append(desk)
            self._lost_count += 1
            said = self._incident(desk, task, position, time.monotonic() - since)
            if self._job.is_iterable:
                return self._end_stream(desk, task, said)
            self._desks[shard] = self._hire(shard)
            self._begin(shard, self._job, None, is_first=True)
            is_over = self._job.on_error == "raise" or position < 0 or self._living_lost() > _MAX_LOST
            for number, waiting in desk.waiting.items():
                if number != task.number:
                    self.submit(waiting)
                elif not is_over:
                    self._extra.setdefault(number, []).append(said)
                    self.submit(replace(task, excluded=task.excluded | {position}))
            if is_over:
                return Result(task.number, shard, _raised(said), [said])
        return None

    def _end_stream(self, desk: _Desk, task: Task, said: Incident) -> Result:
        """Gives a shard up: its iterator is in the hands of a thread that is stuck, and nobody else can go on."""
        del self._desks[desk.shard]
        refusal = self._refused[desk.shard] = _raised(said)
        later = [number for number in desk.waiting if number != task.number]
        self._answers.extend(Result(number, desk.shard, refusal) for number in later)
        return Result(task.number, desk.shard, refusal, [said])

    def _living_lost(self) -> int:
        self._lost = [desk for desk in self._lost if desk.thread is not None and desk.thread.is_alive()]
        return len(self._lost)

    def _incident(self, desk: _Desk, task: Task, position: int, seconds: float) -> Incident:
        index = self._index(desk, task, position)
        what = "collating a batch" if position < 0 else f"sample {index!r}"
        if self._job is not None and self._job.is_iterable:
            what += f" of the stream of worker {desk.shard}"
        name, where = "" if desk.thread is None else f" {desk.thread.name}", _stack(desk)
        message = f"{what} took longer than deadline_seconds={self._deadline_seconds:g} in a worker thread{name}"
        stage = "assemble" if position < 0 else "transform"
        return Incident(position, index, "timeout", stage, message, where, 1, seconds, None, None, "raised")

    def _index(self, desk: _Desk, task: Task, position: int) -> Any:
        return None if self._job is None else index_at(self._job, task, position, desk.fetcher)

    def delivered(self, result: Result) -> None:
        if (desk := self._desks.get(result.shard)) is not None:
            desk.room.take(result.number)

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        if self._job is None:
            raise AssertionError("renewed before it was started")
        self._generation += 1
        self._job = replace(self._job, **changes)
        self._extra.clear()
        self._answers.clear()
        fresh = {shard: self._hire(shard) for shard in self._refused}
        self._refused.clear()
        self._desks.update(fresh)
        shards = sorted(self._desks)
        for place, shard in enumerate(shards):
            desk = self._desks[shard]
            desk.waiting.clear()
            desk.room.take(None)
            while True:  # what was not begun is not wanted any more
                try:
                    desk.inbox.get_nowait()
                except queue.Empty:
                    break
            job, state = own(self._job, len(shards)), states[place] if states else None
            self._begin(shard, job, state, is_first=shard in fresh)

    def in_flight(self) -> list[dict[str, Any]]:
        now, found, desks = time.monotonic(), [], list(self._desks.values())  # asked by any thread
        told = stacks.of(desk.thread for desk in desks)
        for desk in desks:
            hand, starting = desk.hand, desk.starting
            if hand is None and starting is None:
                continue
            number, index, since, stage = None, None, starting or 0.0, "start"
            if hand is not None:
                task, position, since = hand
                number, index = task.number, self._index(desk, task, position)
                stage = "transform" if position >= 0 else "assemble"
            found.append(
                {
                    "shard": desk.shard,
                    "pid": os.getpid(),
                    "thread": "" if desk.thread is None else desk.thread.name,
                    "number": number,
                    "index": index,
                    "since_seconds": now - since,
                    "stage": stage,
                    "stack": told.get(desk.thread, ""),
                }
            )
        return found

    def stats(self) -> dict[str, Any]:
        return {"kind": "threads", "restarts": self._lost_count, "recycled": 0, "workers": []}

    def close(self) -> None:
        _dismiss(self._desks)
        until = time.monotonic() + _CLOSE_SECONDS
        for desk in self._desks.values():
            if desk.thread is not None and desk.thread is not threading.current_thread():
                desk.thread.join(max(0.0, until - time.monotonic()))
        self._desks.clear()


def _raised(said: Incident) -> Raised:
    """What ends the batch of a thread that was written off."""
    index = said.index if isinstance(said.index, int) else None
    error = DeadlineError(
        said.message, index=index, stage=said.stage, elapsed_seconds=said.elapsed_seconds, detail=said.detail
    )
    return Raised(error, said.detail or "", said.index, said.position)


def _stack(desk: _Desk) -> str:
    return "".join(stacks.of([desk.thread]).values())
