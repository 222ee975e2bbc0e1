"""One pass over a Python dataset: hands out tasks to workers, takes their batches in order, keeps books and state."""

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forebay._arrays import torch_arrays, torch_data
from forebay._options.settings import Patience
from forebay._python import reraise
from forebay._python.order import Endless, FromBatch, FromDataset, Order
from forebay._python.progress import Progress
from forebay._python.workers.job import END, Job, Raised, Result, Task, Workers
from forebay._record import notices
from forebay._record.books import Account
from forebay.errors import DeadlineError, StoppedError, TooManyFailuresError

# Of a pass; more are not kept.
_MAX_WAITS = 100_000
# How long to wait before checking whether another thread closed the pass.
_SLICE_SECONDS = 0.1
# How long `close` waits for a thread that is in `next`.
_CLOSE_SECONDS = 5.0


class LoaderTimeoutError(DeadlineError, RuntimeError):
    """No batch came within `timeout`: torch's error for it is a `RuntimeError`, and this one is both."""


@dataclass
class Setup:
    """What a pass is made of."""

    workers: Workers
    # Called at the end of the pass: stops the workers, or keeps them for the next one.
    release: Callable[[], None]
    # "inline", "threads" or "processes".
    kind: str
    job: Job
    order: Order | Endless
    epoch: int
    # Tasks handed out and not yet delivered.
    ahead: int
    shards: list[int]
    in_order: bool
    account: Account
    patience: Patience
    # Substitutes for on_error="replace" are taken from the whole dataset: (seed, length).
    replaces_from: tuple[int, int] | None
    pin_device: str | None
    with_ids: bool
    copier: torch_arrays.Copier | None
    progress: Progress
    length_told: int | None
    # What `Pass.state` gave, if the pass resumes from it.
    resumed: dict[str, Any] | None


@dataclass
class _Sent:
    """A task that was handed out."""

    task: Task
    # The order's state after it.
    order: dict[str, Any]
    first_position: int
    size: int


class Pass(Iterator[Any]):
    """What `iter(loader)` gives. The loader is kept alive, because it is what closes everything at exit.

    Threads may share it: each batch goes to one of them, and the others wait. Its state may be taken and it may be
    closed meanwhile.
    """

    def __init__(self, setup: Setup, loader: object) -> None:
        self._setup = setup
        self._loader = loader
        # Of the thread that is in `next`, for as long as it is; a dataset may well ask for the state there.
        self._turn = threading.RLock()
        # Of the order and the progress, for moments; taken after `_turn`.
        self._lock = threading.RLock()
        self._workers: Workers | None = setup.workers
        # What closed it, where it was not its end.
        self._why = "this iteration was closed"
        self._process = os.getpid()
        # Also when the loop is left and the pass is dropped. Not at exit: then the loader closes everything.
        self._release = weakref.finalize(self, setup.release)
        self._release.atexit = False
        self._sent: dict[int, _Sent] = {}
        self._ready: dict[int, Result] = {}
        self._numbers = 0
        self._drawn_samples = 0
        # What the books have to say at the end.
        self._expected_planned = 0
        self._outstanding = dict.fromkeys(setup.shards, 0)
        self._cursor = 0
        self._is_drawn_out = False
        self.progress = self._progress = setup.progress
        self._resume()
        if setup.kind != "inline":
            self._refill()

    def _resume(self) -> None:
        setup, where = self._setup, self._progress.where
        if setup.resumed is None:
            self._progress.begin(setup.order.state())
            return
        since = self._progress.resume(setup.resumed)
        self._numbers, self._drawn_samples = where.number, where.position
        self._expected_planned = where.books["planned"]
        if not setup.job.is_iterable:
            self._cursor = self._numbers
        elif where.last_shard in setup.shards:
            self._cursor = setup.shards.index(where.last_shard) + 1
        if since:
            self._progress.is_begun = True
            self._refill()
            for _ in range(since):
                if self._advance() is END:
                    break

    def __getstate__(self) -> object:
        raise TypeError("an iterator of a DataLoader cannot be pickled: send the loader, and begin a pass there")

    def __iter__(self) -> "Pass":
        return self

    def state(self) -> dict[str, Any]:
        """Where it is. What decides its order is decided now, if it was not before."""
        with self.at_rest(), self._lock:
            if self._progress.where.number == 0:
                self._setup.order.decide()
                self._progress.know_order(self._setup.order.state())
            return self._progress.state()

    def at_rest(self) -> contextlib.AbstractContextManager[object]:
        """Without workers, waits for the current batch: the dataset itself reports its position, which would be wrong
        in the middle of a batch.
        """
        return self._turn if self._setup.kind == "inline" else contextlib.nullcontext()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._workers is None:
            raise self._end()
        if self._process != os.getpid():
            raise StoppedError("the pass was begun in another process", hint="begin a pass in each process")
        with self._turn:
            return self._next()

    def _next(self) -> Any:
        if self._workers is None:  # since then
            raise self._end()
        self._progress.is_begun = True
        began = time.monotonic()
        value = self._advance()
        if len(self._progress.waits) < _MAX_WAITS:
            self._progress.waits.append(time.monotonic() - began)
        if value is END:
            self._finish()
            raise StopIteration
        self._check_length()
        return self._handed_over(value)

    def _end(self) -> Exception:
        """Why there are no more batches: a closed pass must not look like one that reached its end."""
        return StopIteration() if self._progress.is_finished else _closed(self._why)

    def _handed_over(self, value: Any) -> Any:
        """The batch where the user wants it: pinned, on a device."""
        if self._setup.pin_device is not None:
            value = torch_data.pinned(value, self._setup.pin_device)
        if (copier := self._setup.copier) is not None:
            # Copied on a stream of its own, beside what the training step still does on the device.
            value = copier.finish(*copier.start(value))
        return value

    def _advance(self) -> Any:
        """The next batch, or `END`."""
        while True:
            if self._setup.kind == "inline" or not self._sent:
                self._refill()
            result = self._take()
            if result is None:
                return END
            sent = self._sent.pop(result.number)
            self._outstanding[result.shard] -= 1
            if self._workers is not None:
                self._workers.delivered(result)
            if result.value is END:
                with self._lock:
                    self._progress.end_shard(result.number, result.shard, result.state)
            if self._setup.kind != "inline":
                self._refill()
            if result.value is END:
                self._write_down_end(sent, result)
                continue
            if isinstance(result.value, Raised):
                self._expected_planned -= sent.size
                self._setup.account.enter(self._progress.where.step, sent.first_position, result.incidents)
                reraise.again(result.value, result.number, self._setup.epoch, result.shard, self._setup.kind)
            is_empty = result.delivered is not None and not result.delivered
            books = self._write_down(sent, result)
            told = result.state
            behind = sent.first_position + sent.size
            is_in_turn = self._setup.in_order
            with self._lock:
                self._progress.where.books = books
                if not is_empty:
                    self._progress.count_batch()
                self._progress.hand_over(result.number, result.shard, sent.order, behind, told, is_in_turn)
            if not is_empty:
                return self._with_ids(sent, result) if self._setup.with_ids else result.value

    def _write_down(self, sent: _Sent, result: Result) -> dict[str, int]:
        """Records a delivered batch in the books, and returns them."""
        planned = result.drawn_count if self._setup.job.is_iterable else sent.size
        step, count = self._progress.where.step, result.sample_count
        try:
            return self._setup.account.hand_over(step, sent.first_position, planned, count, result.incidents)
        except TooManyFailuresError:
            self._expected_planned -= sent.size
            raise

    def _write_down_end(self, sent: _Sent, result: Result) -> None:
        """The last samples of a stream may all have failed: there is no batch that they would be told with."""
        skipped = sum(incident.outcome == "skipped" for incident in result.incidents)
        if skipped:
            step = self._progress.where.step
            books = self._setup.account.hand_over(step, sent.first_position, skipped, 0, result.incidents)
            with self._lock:
                self._progress.where.books = books

    def _with_ids(self, sent: _Sent, result: Result) -> Any:
        ids = sent.task.indices if result.delivered is None else result.delivered
        if not self._setup.job.is_batched and result.delivered is not None:
            ids = result.delivered[0]
        return result.value, torch_data.integers(ids) if self._setup.job.output == "torch" else ids

    def _take(self) -> Result | None:
        """The result whose turn it is; `None` at the end."""
        while self._sent:
            if self._setup.in_order:
                first = next(iter(self._sent))
                if first in self._ready:
                    return self._ready.pop(first)
            elif self._ready:
                return self._ready.pop(next(iter(self._ready)))
            result = self._wait()
            if result.number in self._sent:
                self._ready[result.number] = result
        return None

    def _wait(self) -> Result:
        """A result of the workers. Reports a long wait, and raises when the user's timeout has passed."""
        workers, patience, began = self._workers, self._setup.patience, time.monotonic()
        if workers is None:
            raise _closed(self._why)
        waited = 0.0
        while (result := self._received(workers, patience.until_told(waited))) is None:
            waited = time.monotonic() - began
            if waited >= patience.timeout_seconds:
                raise LoaderTimeoutError(
                    f"DataLoader timed out after {patience.timeout_seconds:g} seconds; {in_words(workers)}",
                    stage="deliver",
                )
            if waited >= patience.stall_seconds:
                notices.stalled(f"no batch for {waited:.0f} s: {in_words(workers)}")
        return result

    def _received(self, workers: Workers, timeout_seconds: float) -> Result | None:
        """A result, unless the pass is closed meanwhile: by another thread, which waits for this one to leave."""
        until = time.monotonic() + timeout_seconds
        while self._workers is not None:
            left = until - time.monotonic()
            result = workers.receive(max(0.0, min(left, _SLICE_SECONDS)))
            if result is not None or left <= 0:
                return result
        raise _closed(self._why)

    def _refill(self) -> None:
        with self._lock:
            self._draw_ahead()

    def _draw_ahead(self) -> None:
        while not self._is_drawn_out and len(self._sent) < self._setup.ahead:
            shard = self._next_shard()
            if shard is None:
                # All at their end; or busy, where the order does not matter.
                self._is_drawn_out = len(self._progress.where.ended) == len(self._setup.shards)
                return
            try:
                indices = self._setup.order.next()
            except StopIteration:
                self._is_drawn_out = True
                if self._progress.wants_last_states:
                    for each in self._setup.shards:
                        self._submit(END, each)
                return
            self._submit(indices, shard)

    def _next_shard(self) -> int | None:
        """Round robin, as in torch, among those that are not at their end, and with `in_order=False` not busy."""
        shards, ended, most = self._setup.shards, self._progress.where.ended, None
        if not self._setup.in_order and len(shards) > 1:
            most = max(1, self._setup.ahead // max(1, len(shards) - len(ended)))
        for _ in shards:
            shard = shards[self._cursor % len(shards)]
            self._cursor += 1
            if shard not in ended and (most is None or self._outstanding[shard] < most):
                return shard
        return None

    def _submit(self, indices: Any, shard: int) -> None:
        setup, number = self._setup, self._numbers
        self._numbers += 1
        if indices is END:
            size = 0
        elif setup.job.is_batched:
            size = indices if setup.job.is_iterable else len(indices)
        else:
            size = int(not setup.job.is_iterable)
        order, first = setup.order.state(), self._drawn_samples
        self._drawn_samples += size
        if number in self._progress.where.early:  # delivered before the state was taken
            self._progress.remember(number, order, first + size)
            return
        task = Task(
            number,
            shard,
            indices,
            setup.epoch,
            substitutes=None if indices is END else self._substitutes(first, indices),
            wants_state=self._progress.wants_state(number),
        )
        self._expected_planned += size
        self._sent[number] = _Sent(task, order, first, size)
        self._outstanding[shard] += 1
        if self._workers is not None:
            self._workers.submit(task)

    def _substitutes(self, first_position: int, indices: Any) -> FromDataset | FromBatch | None:
        setup = self._setup
        if setup.job.on_error != "replace" or setup.job.is_iterable:
            return None
        if setup.replaces_from is not None:
            seed, length = setup.replaces_from
            return FromDataset(seed, setup.epoch, first_position, length)
        return FromBatch(list(indices) if setup.job.is_batched else [indices])

    def _check_length(self) -> None:
        told, step = self._setup.length_told, self._progress.where.step
        if told is not None and step > told:
            worker = (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
            warnings.warn(
                f"Length of IterableDataset {self._setup.job.dataset} was reported to be {told}(when accessing "
                f"len(dataloader)), but {step} samples have been fetched. "
                + (worker if self._setup.kind != "inline" else ""),
                UserWarning,
                stacklevel=notices.users_level(),
            )

    def in_flight(self) -> list[dict[str, Any]]:
        """Samples that the workers of this pass work on, longest first."""
        items = [] if self._workers is None else self._workers.in_flight()
        return sorted(items, key=lambda item: -item["since_seconds"])

    def _finish(self) -> None:
        try:
            # The length of a stream is unknown.
            self._setup.account.check(None if self._setup.job.is_iterable else self._expected_planned)
            with self._lock:
                self._progress.finish()
        finally:
            self.close()

    def close(self, why: str | None = None) -> None:
        """Ends the workers of this pass, unless they are to stay for the next one. Further calls do nothing.

        `why` is the message for a loop that asks for more.
        A thread that waits in `next` leaves it with an error first. A thread that makes samples there itself is waited
        for, but not for ever.
        """
        if self._workers is not None and why is not None:
            self._why = why
        workers, self._workers = self._workers, None
        if workers is None:
            return
        has_turn = self._turn.acquire(timeout=_CLOSE_SECONDS)
        try:
            self._release()
        finally:
            if has_turn:
                self._turn.release()


def _closed(why: str) -> StoppedError:
    return StoppedError(why, hint="begin another one, or close it later")


def in_words(workers: Workers) -> str:
    """What the workers do, in words, for a message about a long wait."""
    items = sorted(workers.in_flight(), key=lambda item: -item["since_seconds"])
    if not items:
        return "no worker is working on a sample"
    return "; ".join(map(_one_in_words, items))


def _one_in_words(item: dict[str, Any]) -> str:
    where = f"\n{item['stack']}" if item.get("stack") else ""
    if item["stage"] == "start":
        return f"worker {item['shard']} is starting{where}"
    what = "a batch to collate" if item["stage"] == "assemble" else "its next sample"
    if item["index"] is not None:
        what = f"sample {item['index']!r}"
    who = f"thread {item['thread']}" if item.get("thread") else f"pid {item['pid']}"
    return f"worker {item['shard']} ({who}) has worked on {what} for {item['since_seconds']:.1f} s{where}"
