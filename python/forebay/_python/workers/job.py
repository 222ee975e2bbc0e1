"""What a loader and its workers exchange: a job, its tasks, and their results.

All of them are plain data that can be pickled. What the user's objects are (dataset, collate function) is told once,
in the job; everything after that is small.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to start; sent once."""

    dataset: Any
    # None: torch's default, `default_collate`, or `default_convert` when samples are not batched.
    collate_fn: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], None] | None
    is_iterable: bool
    # False: batch_size=None.
    is_batched: bool
    # For iterable datasets only: elsewhere the order does it.
    drop_last: bool
    # What `get_worker_info().num_workers` says; 0: the dataset is not told that it is in a worker.
    shard_count: int
    # As in torch, the worker of shard w has seed base_seed + w.
    base_seed: int
    # Where it is given, random numbers are keyed by (seed, epoch, index); else they are torch's streams.
    seed: int | None
    # "raise", "replace" or "skip".
    on_error: str
    # How often a sample is tried whose error may pass.
    max_attempts: int
    # "torch" or "numpy".
    output: str
    # For torch's data pipes: what their shuffling is seeded with, another one in each epoch.
    pipe_seed: int | None = None
    # No further attempt starts later than this after the first; None: no limit.
    deadline_seconds: float | None = None
    # Lines of the ledger about files that are permanently bad.
    known_bad: tuple[str, ...] = ()


class Substitutes(Protocol):
    """Which samples may stand in for one that failed. Pure: the same candidates in every process and run."""

    def candidates(self, position: int, failed: Any) -> Iterator[Any]:
        """Indices to try, in order, for the sample at a position of its task; never that of the sample that failed."""
        ...


@dataclass(frozen=True)
class Task:
    """A batch to be made. The workers give exactly one `Result` for it."""

    # Counts up from 0 within an epoch, over all shards.
    number: int
    # Which worker does it, as torch counts them.
    shard: int
    # A list of indices, one index where samples are not batched; the batch size, or None, for iterable datasets; `END`
    # where nothing is to be made any more, and the result shall say the state of the dataset.
    indices: Any
    epoch: int
    # Positions within `indices` whose sample is given up: it took down two workers.
    excluded: frozenset[int] = frozenset()
    substitutes: Substitutes | None = None
    # Whether the result shall say the state of the dataset after it.
    wants_state: bool = False


@dataclass(frozen=True)
class Incident:
    """One failed sample, as far as a worker knows. The loader adds the address and writes it down."""

    position: int
    index: Any
    code: str
    stage: str
    message: str
    detail: str | None
    attempts: int
    elapsed_seconds: float
    errno: int | None
    path: str | None
    # "replaced", "skipped", "raised" or "recovered".
    outcome: str
    substitute: Any | None = None
    # None: that of its code.
    hint: str | None = None
    # Of the file whose bytes are to blame, where it is known: its quarantine ends when they change.
    size_bytes: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Raised:
    """In place of a batch: the exception that ended it, the worker's traceback as text, and the sample it is about."""

    exception: BaseException
    traceback: str
    index: Any = None
    position: int | None = None


class End:
    """In place of a batch: the iterable of this shard is exhausted. There is one, also after pickling."""

    def __reduce__(self) -> str:
        return "END"

    def __repr__(self) -> str:
        return "END"


END = End()


@dataclass
class Result:
    """The result of a task."""

    number: int
    shard: int
    # The batch, a `Raised`, or `END`.
    value: Any
    incidents: list[Incident] = field(default_factory=list)
    # The state of the dataset after this task, if it was requested: `Fetcher` resumes from it.
    state: Any | None = None
    # The index of each sample that is in the batch; only where some were replaced or skipped.
    delivered: list[Any] | None = None
    # How many samples are in the batch: counted, substitutes included.
    sample_count: int = 0
    # How many samples of a stream were drawn for it, those that failed included.
    drawn_count: int = 0
    # How long it took to make.
    seconds: float = 0.0


class Workers(Protocol):
    """Workers and their supervision."""

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        """Starts a worker for each shard, which resumes from its state if it has one."""
        ...

    def submit(self, task: Task) -> None:
        """Hands out a task. Those of one shard are done in the order they were handed out."""
        ...

    def receive(self, timeout_seconds: float) -> Result | None:
        """A result, in any order; `None` if there is none within the time."""
        ...

    def delivered(self, result: Result) -> None:
        """Notes that the loop has received a result, so that one more can be prepared ahead."""
        ...

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        """Begins another epoch with the same workers: the job with these fields changed.

        Results of the epoch before that were not received are dropped.
        """
        ...

    def in_flight(self) -> list[dict[str, Any]]:
        """The sample that each worker makes: shard, pid, number, index, since_seconds, stage."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the start: restarts, recycled, and what is known of each worker."""
        ...

    def close(self) -> None:
        """Ends every worker. Further calls do nothing."""
        ...
