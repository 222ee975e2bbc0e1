"""How one task becomes a batch: torch's rules, one sample at a time, so that each failure has an address.

Runs in a worker process, in a thread, or in the caller.
"""

import inspect
import itertools
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay import _forebay
from forebay._arrays import torch_arrays, torch_data
from forebay._python.workers.diagnose import incidents, none_samples
from forebay._python.workers.job import END, Incident, Job, Raised, Result, Task
from forebay._python.workers.process import collate, seeds
from forebay._record import hints


class _SampleError(Exception):
    """Carries an exception of the user's code, with the sample it is about, to where the batch is given up."""

    def __init__(self, cause: Exception, index: Any, position: int | None) -> None:
        super().__init__(cause, index, position)
        self.cause, self.index, self.position = cause, index, position


class _NotTriedError(Exception):
    """The sample is to be got in another way than by `dataset[index]`."""


@dataclass
class _Tried:
    """What came of the attempts at one sample."""

    sample: Any = None
    attempts: int = 0
    # Why it was given up; None if it was loaded.
    error: Exception | None = None
    # What an earlier attempt met.
    passed: Exception | None = None
    # Size and modification time of the file that is to blame, and whether it was known to be bad.
    file: tuple[int, int] | None = None
    is_known: bool = False


@dataclass
class _Place:
    """Where a sample belongs: its task, its position there, and what came of those before it."""

    task: Task
    result: Result
    position: int
    index: Any
    samples: list[Any]
    delivered: list[Any]
    dataset: Any

    def deliver(self, sample: Any, index: Any) -> None:
        self.samples.append(sample)
        self.delivered.append(index)

    def say(self, tried: _Tried, began: float, outcome: str, substitute: Any = None) -> None:
        error = tried.passed if outcome == "recovered" else tried.error
        if error is None:
            said = _given_up(self.position, self.index, outcome, substitute)
        else:
            elapsed = time.monotonic() - began
            said = incidents.incident(
                self.position, self.index, error, tried.attempts, elapsed, outcome, substitute, self.dataset
            )
            said = incidents.of_file(said, tried.file, tried.is_known)
        self.result.incidents.append(said)


class Fetcher:
    """Makes the batches of one shard.

    `note(position)` is called before each sample, and with -1 before the batch is collated: it
    tells the supervisor which sample the worker makes. `reseed(key)` seeds the random numbers of a sample. The
    constructor calls the user's `iter(dataset)`, which may raise.
    """

    def __init__(
        self,
        job: Job,
        shard: int,
        state: Any | None = None,
        note: Callable[[int], None] | None = None,
        reseed: Callable[[int], None] = seeds.of_process,
    ) -> None:
        self._job = job
        self._shard = shard
        self._note = note or (lambda position: None)
        self._reseed = reseed
        self._dataset = job.dataset
        self._retries = _forebay.Retries(max(0, job.max_attempts - 1), job.deadline_seconds, list(job.known_bad))
        self._collate = collate.chosen(job)
        self._stream: _Stream | None = None
        if job.pipe_seed is not None:
            torch_data.seed_pipe(self._dataset, job.pipe_seed)
        if state is not None and state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])
        if job.is_iterable:
            self._stream = _Stream(self._dataset, state)
            if state is not None and state.get("finished"):
                # That pass is over. A generator that resumed its position notices that only when it is asked for a
                # sample.
                self._stream.draw()
                self._stream = _Stream(self._dataset, None)
        # Decided once: the attribute may be computed, and `None` switches it off.
        self._get_many = many(job)
        # Whether it is asked for a whole batch at once. Where samples have random numbers of their own it is asked for
        # one by one, unless it does not give samples, but batches: that is looked at once.
        self._asks_for_all: bool | None = True if job.seed is None else None

    def fetch(self, task: Task) -> Result:
        """The result of a task. Only what is no `Exception`, such as an interrupt, goes through."""
        began = time.monotonic()
        result = Result(task.number, self._shard, None)
        try:
            if task.indices is END:
                result.value = END
            else:
                self._fill(task, result)
        except _SampleError as failed:
            result.value = self._raised(failed.cause, failed.index, failed.position)
        except Exception as error:
            result.value = self._raised(error)
        if task.wants_state or result.value is END:
            self._add_state(result)
        result.seconds = time.monotonic() - began
        return result

    def _raised(self, error: Exception, index: Any = None, position: int | None = None) -> Raised:
        text = "".join(traceback.format_exception(error))
        incidents.add_hint(error, self._dataset)  # a note, which the text need not have again
        return Raised(error, text, index, position)

    def state(self) -> dict[str, Any]:
        """The state of the dataset; a fetcher that is made with it continues there."""
        # A dataset that is its own iterator has one state, that of the iterator.
        is_apart = self._stream is None or self._stream.iterator is not self._dataset
        state = {"dataset": self._dataset.state_dict() if is_apart and is_stateful(self._dataset) else None}
        return state | (self._stream.state() if self._stream is not None else {})

    def drawn(self) -> int | None:
        """Which sample of its stream is being made, counted from 0; `None` where samples have indices."""
        return None if self._stream is None else self._stream.drawn

    def catch_up(self) -> None:
        """Draws now what was delivered before, where the dataset cannot say where it is."""
        if self._stream is not None:
            self._stream.catch_up(self._note)

    def is_resumable(self) -> bool:
        """Whether another worker can resume without replaying the whole stream."""
        return self._stream is None or self.is_telling()

    def is_telling(self) -> bool:
        """Whether the dataset or its iterator has a state of its own."""
        return is_stateful(self._dataset) or (self._stream is not None and is_stateful(self._stream.iterator))

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
            samples = self._single(task, result)
        if result.delivered is not None and not result.delivered:
            return  # all of them were skipped: there is no batch
        if self._stream is not None:
            result.sample_count = len(samples) if self._job.is_batched else 1
        self._note(-1)
        try:
            result.value = self._collate(samples)
        except Exception as error:
            error.add_note(_of_batch(task, "collating"))
            indices = task.indices if result.delivered is None else result.delivered
            if (told := none_samples.found(samples, indices, self._dataset)) is not None:
                error.add_note(told)
            raise

    def _batch(self, task: Task, result: Result) -> Any:
        if self._get_many is not None and not task.excluded and self._is_asked_for_all(task):
            self._note(0)
            self._seed(task, task.indices[0] if len(task.indices) else None)
            try:
                samples = self._get_many(task.indices)
                result.sample_count = len(task.indices)  # what it gave need not have a length
                return samples
            except Exception as error:
                if self._job.on_error == "raise" and self._pause(self._retries.begin(task.number, 0), error)[0] is None:
                    error.add_note(_of_batch(task, "__getitems__ with"))
                    raise
                # One of them is bad, and only asking for each by itself says which.
        samples, delivered = [], []
        note, is_keyed, dataset = self._note, self._job.seed is not None, self._dataset
        is_plain = self._get_many is None and not task.excluded
        # The loop that every sample goes through: what fails is looked at elsewhere.
        for position, index in enumerate(task.indices):
            note(position)
            try:
                if not is_plain:
                    raise _NotTriedError
                if is_keyed:
                    self._seed(task, index)
                samples.append(dataset[index])
                delivered.append(index)
            except Exception as error:
                first = None if isinstance(error, _NotTriedError) else error
                self._again(_Place(task, result, position, index, samples, delivered, dataset), first)
        if len(result.incidents):
            result.delivered = delivered
        result.sample_count = len(samples)
        return samples

    def _is_asked_for_all(self, task: Task) -> bool:
        if self._asks_for_all is None and len(task.indices):
            self._note(0)
            try:
                given = self._get_many([task.indices[0]])  # type: ignore[misc]
            except Exception:
                return False  # met again, and told, when the sample is asked for
            self._asks_for_all = not (isinstance(given, (list, tuple)) and len(given) == 1)
        return bool(self._asks_for_all)

    def _single(self, task: Task, result: Result) -> Any:
        """The one sample of a task that is no batch; `END` where it is skipped."""
        samples: list[Any] = []
        self._note(0)
        place = _Place(task, result, 0, task.indices, samples, [], self._dataset)
        self._again(place, None)
        if len(result.incidents):
            result.delivered = place.delivered
        result.sample_count = len(samples)
        return samples[0] if samples else END

    def _again(self, place: "_Place", first: Exception | None) -> None:
        """Gets a sample that failed, or was not tried yet, or does without it as the user wants it done."""
        task, position, index = place.task, place.position, place.index
        began = time.monotonic()
        tried = _Tried()
        if position not in task.excluded:
            tried = self._tried(task, position, index, first)
            if tried.error is None:
                place.deliver(tried.sample, index)
                if tried.passed is not None:
                    place.say(tried, began, "recovered")
                return
        if self._job.on_error == "skip":
            place.say(tried, began, "skipped")
            return
        count = 0
        if self._job.on_error == "replace":
            candidates = iter(()) if task.substitutes is None else task.substitutes.candidates(position, index)
            for other in itertools.islice(candidates, _forebay.MAX_SUBSTITUTES):
                count += 1
                substitute = self._tried(task, position, other, None)
                if substitute.error is None:
                    place.deliver(substitute.sample, other)
                    place.say(tried, began, "replaced", other)
                    return
            tried.error = tried.error or RuntimeError(f"sample {index!r} took down two workers")
            tried.error.add_note(f"forebay: none of {count} substitutes could be loaded either")
        if tried.error is None:
            raise AssertionError("a sample is given up only where it may be left out")
        place.say(tried, began, "raised")
        raise _SampleError(tried.error, index, position) from tried.error

    def _tried(self, task: Task, position: int, index: Any, first: Exception | None) -> _Tried:
        """Tries a sample, again after errors that may pass. `first` is that of an attempt that was made already."""
        tries = self._retries.begin(task.number, position)
        tried = _Tried(attempts=int(first is not None), passed=first)
        while True:
            if tried.passed is not None:
                pause, file, is_known = self._pause(tries, tried.passed)
                if pause is None:
                    return _Tried(None, tried.attempts, tried.passed, None, file, is_known)
                if pause:
                    time.sleep(pause)
            tried.attempts += 1
            try:
                self._seed(task, index)
                tried.sample = self._get(index)
                return tried
            except Exception as error:
                tried.passed = error

    def _pause(self, tries: _forebay.Tries, error: Exception) -> tuple[float | None, tuple[int, int] | None, bool]:
        """Seconds until the next attempt, or `None` if there is none; and what is known about the file that caused the
        failure.
        """
        code, stage = hints.classified(error)
        return tries.after(incidents.errno_of(error), code, stage, incidents.path_of(error))

    def _get(self, index: Any) -> Any:
        if self._get_many is not None:
            return self._get_many([index])[0]
        return self._dataset[index]

    def _seed(self, task: Task, index: Any) -> None:
        if self._job.seed is not None:
            self._reseed(seeds.key(self._job.seed, task.epoch, index))

    def _from_stream(self, task: Task, result: Result, stream: "_Stream") -> Any:
        """The next samples of an iterable dataset, or `END`."""
        stream.catch_up(self._note)
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
                sample = stream.draw()
                result.drawn_count += sample is not END
                return sample
            except Exception as error:
                result.drawn_count += 1
                is_over = inspect.isgenerator(stream.iterator) and stream.iterator.gi_frame is None
                outcome = "raised" if is_over or self._job.on_error == "raise" else "skipped"
                elapsed = time.monotonic() - began
                said = incidents.incident(position, index, error, 1, elapsed, outcome, dataset=self._dataset)
                result.incidents.append(said)
                if outcome == "raised":
                    if is_over and self._job.on_error != "raise":
                        error.add_note(
                            "forebay: a generator ends with the first exception that leaves it, so what follows the "
                            "sample is lost: catch the exception inside it, or give the dataset an iterator class"
                        )
                    raise _SampleError(error, index, position) from error


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
        # As in torchdata: an iterator that can report its position is asked once more, even if it had ended.
        if state["iterator"] is not None or state["dataset"] is not None:
            self.drawn = state["drawn"]
        else:
            self._behind, self.is_ended = state["drawn"], False

    def catch_up(self, note: Callable[[int], None]) -> None:
        """Draws what was delivered before, from a dataset that cannot say where it is; each with its deadline."""
        while self._behind:
            note(0)
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
        iterator = self.iterator.state_dict() if is_stateful(self.iterator) else None
        return {"iterator": iterator, "drawn": self.drawn + self._behind, "ended": self.is_ended}


def many(job: Job) -> Callable[[Any], Any] | None:
    """The dataset's `__getitems__`, where torch would call it. `None` also where it only does what `dataset[index]`
    does, one by one, and hides which one failed: that of a `Subset` of a dataset without.
    """
    if job.is_iterable or not job.is_batched:
        return None
    dataset: Any = job.dataset
    below = dataset
    while (subset := torch_arrays.subset_class(below)) is not None and type(below) is subset:
        below = below.dataset  # type: ignore[attr-defined]
    if below is not dataset and not callable(getattr(below, "__getitems__", None)):
        return None
    return getattr(dataset, "__getitems__", None) or None


def is_stateful(value: Any) -> bool:
    """Whether it has a state that it can be resumed from."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _given_up(position: int, index: Any, outcome: str, substitute: Any) -> Incident:
    """For a sample that took down its workers: how they died is added by `deaths`, the outcome is recorded here."""
    message = f"sample {index!r} was given up: it took down two workers"
    return Incident(position, index, "worker_died", "transform", message, None, 2, 0.0, None, None, outcome, substitute)


def _of_batch(task: Task, doing: str) -> str:
    if isinstance(task.indices, (list, tuple)):
        shown = ", ".join(map(repr, task.indices[:8]))
        more = f" and {len(task.indices) - 8} more" if len(task.indices) > 8 else ""
        return f"forebay: {doing} batch {task.number}, samples {shown}{more}"
    return f"forebay: {doing} batch {task.number}"
