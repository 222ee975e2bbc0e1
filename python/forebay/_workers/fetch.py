"""How one task becomes a batch: torch's rules, one sample at a time, so that each failure has an address.

Runs in a worker process, in a thread, or in the caller.
"""

import inspect
import time
import traceback
from collections.abc import Callable
from typing import Any

from forebay._workers import blame, collate, seeds
from forebay._workers.job import END, Incident, Job, Raised, Result, Task

# Before a second attempt, doubled before each further one. Not measured.
_PAUSE_SECONDS = 0.05
# How many substitutes are tried for one sample.
_MAX_SUBSTITUTES = 64


class _Failed(Exception):
    """Carries an exception of the user's code, with the sample it is about, to where the batch is given up."""

    def __init__(self, cause: Exception, index: Any, position: int | None) -> None:
        super().__init__(cause, index, position)
        self.cause, self.index, self.position = cause, index, position


class Fetcher:
    """Makes the batches of one shard.

    `note(position)` is called before each sample, and with -1 before the batch is collated: whoever watches a worker
    sees there what it has in hand. Constructing it calls the user's `iter(dataset)`, which may raise.
    """

    def __init__(
        self, job: Job, shard: int, state: Any | None = None, note: Callable[[int], None] | None = None
    ) -> None:
        self._job = job
        self._shard = shard
        self._note = note or (lambda position: None)
        self._dataset = job.dataset
        self._collate = collate.chosen(job)
        self._stream: _Stream | None = None
        if state is not None and state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])
        if job.is_iterable:
            self._stream = _Stream(self._dataset, state)
        # Decided once: the attribute may be computed, and `None` switches it off.
        self._get_many = None if job.is_iterable else getattr(self._dataset, "__getitems__", None) or None

    def fetch(self, task: Task) -> Result:
        """The result of a task. Only what is no `Exception`, such as an interrupt, goes through."""
        began = time.monotonic()
        result = Result(task.number, self._shard, None)
        try:
            self._fill(task, result)
        except _Failed as failed:
            text = "".join(traceback.format_exception(failed.cause))
            result.value = Raised(failed.cause, text, failed.index, failed.position)
        except Exception as error:
            result.value = Raised(error, "".join(traceback.format_exception(error)))
        if task.wants_state:
            self._add_state(result)
        result.seconds = time.monotonic() - began
        return result

    def state(self) -> dict[str, Any]:
        """Where the dataset is; a fetcher that is made with it goes on there."""
        own = self._dataset if self._stream is None or self._stream.iterator is not self._dataset else None
        state = {"dataset": own.state_dict() if _is_stateful(own) else None}
        return state | (self._stream.state() if self._stream is not None else {})

    def _add_state(self, result: Result) -> None:
        try:
            result.state = self.state()
        except Exception as error:
            error.add_note("forebay: raised by state_dict() of the dataset or its iterator")
            result.value = Raised(error, "".join(traceback.format_exception(error)))

    def _fill(self, task: Task, result: Result) -> None:
        if self._stream is not None:
            samples = self._from_stream(task, result, self._stream)
            if samples is END:
                result.value = END
                return
        elif self._job.is_batched:
            samples = self._batch(task, result)
        else:
            samples = self._one(task, result, 0, task.indices)
            samples = samples[0] if samples else END
        result.sample_count = len(samples) if self._job.is_batched else int(samples is not END)
        if not result.sample_count:
            return  # all of them were skipped: there is no batch
        self._note(-1)
        try:
            result.value = self._collate(samples)
        except Exception as error:
            error.add_note(_of_batch(task, "collating"))
            raise

    def _batch(self, task: Task, result: Result) -> Any:
        if self._get_many is not None and not task.excluded:
            self._note(0)
            self._seed(task, task.indices[0] if len(task.indices) else None)
            try:
                return self._get_many(task.indices)
            except Exception as error:
                if self._job.on_error == "raise":
                    error.add_note(_of_batch(task, "__getitems__ with"))
                    raise
                # One of them is bad, and only asking for each by itself says which.
        samples: list[Any] = []
        delivered: list[Any] = []
        for position, index in enumerate(task.indices):
            for sample in self._one(task, result, position, index, delivered):
                samples.append(sample)
        if len(result.incidents):
            result.delivered = delivered
        return samples

    def _one(
        self, task: Task, result: Result, position: int, index: Any, delivered: list[Any] | None = None
    ) -> list[Any]:
        """The sample at a position, or its substitute, in a list; an empty one where it is skipped."""
        delivered = [] if delivered is None else delivered
        self._note(position)
        began = time.monotonic()
        attempts, error = 0, None
        if position not in task.excluded:
            sample, attempts, error = self._tried(task, index)
            if error is None:
                delivered.append(index)
                if attempts > 1:
                    result.incidents.append(self._incident(position, index, self._last, attempts, began, "recovered"))
                return [sample]
        if self._job.on_error == "raise":
            assert error is not None, "a sample is excluded only where it may be left out"
            result.incidents.append(self._incident(position, index, error, attempts, began, "raised"))
            raise _Failed(error, index, position) from error
        if self._job.on_error == "replace":
            tried = 0
            candidates = task.substitutes.candidates(position) if task.substitutes is not None else iter(())
            for other in candidates:
                sample, _, refused = self._tried(task, other)
                if refused is None:
                    if error is not None:
                        said = self._incident(position, index, error, attempts, began, "replaced", other)
                        result.incidents.append(said)
                    else:
                        result.incidents.append(_given_up(position, index, "replaced", other))
                    delivered.append(other)
                    if not self._job.is_batched:
                        result.delivered = delivered
                    return [sample]
                tried += 1
                if tried == _MAX_SUBSTITUTES:
                    break
            if error is None:
                error = RuntimeError(f"no substitute for sample {index!r} could be loaded either")
            error.add_note(f"forebay: none of {tried} substitutes could be loaded either")
            result.incidents.append(self._incident(position, index, error, attempts, began, "raised"))
            raise _Failed(error, index, position) from error
        if error is not None:
            result.incidents.append(self._incident(position, index, error, attempts, began, "skipped"))
        else:
            result.incidents.append(_given_up(position, index, "skipped", None))
        if not self._job.is_batched:
            result.delivered = delivered
        return []

    def _tried(self, task: Task, index: Any) -> tuple[Any, int, Exception | None]:
        """(sample, attempts, error): an error that may pass is tried again."""
        attempt = 0
        while True:
            attempt += 1
            self._seed(task, index)
            try:
                return self._get(index), attempt, None
            except Exception as error:
                self._last = error
                if attempt >= self._job.max_attempts or not blame.is_transient(error):
                    return None, attempt, error
            time.sleep(_PAUSE_SECONDS * 2 ** min(attempt - 1, 6))

    def _get(self, index: Any) -> Any:
        if self._get_many is not None:
            return self._get_many([index])[0]
        return self._dataset[index]

    def _seed(self, task: Task, index: Any) -> None:
        if self._job.seed is not None:
            seeds.of_sample(self._job.seed, task.epoch, index)

    def _incident(
        self,
        position: int,
        index: Any,
        error: BaseException,
        attempts: int,
        began: float,
        outcome: str,
        substitute: Any = None,
    ) -> Incident:
        return blame.incident(position, index, error, attempts, time.monotonic() - began, outcome, substitute)

    def _from_stream(self, task: Task, result: Result, stream: "_Stream") -> Any:
        """The next samples of an iterable dataset, or `END`."""
        stream.catch_up()
        if stream.is_ended:
            return END
        if not self._job.is_batched:
            sample = self._drawn(task, result, stream, 0)
            return END if sample is END else sample
        samples: list[Any] = []
        for position in range(task.indices):
            sample = self._drawn(task, result, stream, position)
            if sample is END:
                stream.is_ended = True
                break
            samples.append(sample)
        if not samples or (self._job.drop_last and len(samples) < task.indices):
            return END
        return samples

    def _drawn(self, task: Task, result: Result, stream: "_Stream", position: int) -> Any:
        while True:
            self._note(position)
            began = time.monotonic()
            index = stream.drawn
            self._seed(task, (self._shard, index))
            try:
                return stream.draw()
            except Exception as error:
                is_over = inspect.isgenerator(stream.iterator) and stream.iterator.gi_frame is None
                outcome = "raised" if is_over or self._job.on_error == "raise" else "skipped"
                result.incidents.append(self._incident(position, index, error, 1, began, outcome))
                if outcome == "raised":
                    if is_over and self._job.on_error != "raise":
                        error.add_note(
                            "forebay: a generator ends with the first exception that leaves it, so what follows the "
                            "sample is lost: catch the exception inside it, or give the dataset an iterator class"
                        )
                    raise _Failed(error, index, position) from error


class _Stream:
    """The iterator of an iterable dataset, and how far it is."""

    def __init__(self, dataset: Any, state: Any | None) -> None:
        self.iterator = iter(dataset)
        self.is_ended = False
        self.drawn = 0
        self._behind = 0
        if state is None:
            return
        if state["iterator"] is not None:
            self.iterator.load_state_dict(state["iterator"])
        # As torchdata has it: an iterator that can tell where it is, is asked once more, even if it had ended.
        if state["iterator"] is not None or state["dataset"] is not None:
            self.drawn = state["drawn"]
        else:
            self._behind, self.is_ended = state["drawn"], False

    def catch_up(self) -> None:
        """Draws what was delivered before, from a dataset that cannot say where it is."""
        while self._behind:
            self._behind -= 1
            if self.draw() is END:
                self._behind, self.is_ended = 0, True

    def draw(self) -> Any:
        try:
            sample = next(self.iterator)
        except StopIteration:
            return END
        except Exception:
            self.drawn += 1
            raise
        self.drawn += 1
        return sample

    def state(self) -> dict[str, Any]:
        iterator = self.iterator.state_dict() if _is_stateful(self.iterator) else None
        return {"iterator": iterator, "drawn": self.drawn + self._behind, "ended": self.is_ended}


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _given_up(position: int, index: Any, outcome: str, substitute: Any) -> Incident:
    """For a sample that took down its workers: the crew says how, this says what became of it."""
    message = f"sample {index!r} was given up: it took down two workers"
    return Incident(position, index, "worker_died", "transform", message, None, 2, 0.0, None, None, outcome, substitute)


def _of_batch(task: Task, doing: str) -> str:
    if isinstance(task.indices, (list, tuple)):
        shown = ", ".join(map(repr, task.indices[:8]))
        more = f" and {len(task.indices) - 8} more" if len(task.indices) > 8 else ""
        return f"forebay: {doing} batch {task.number}, samples {shown}{more}"
    return f"forebay: {doing} batch {task.number}"
