"""What became of every sample of a Python dataset: the books of each epoch, the failures, the ledger, the report.

The ledger's lines have the names and the meaning of those that the native loader writes.
"""

import json
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forebay import _hints, _notice
from forebay._failures import Failure, Failures
from forebay._forebay import Ledger
from forebay._workers.job import Incident
from forebay.errors import TooManyFailuresError

# A fraction of failures is judged only after so many samples.
_FAIR_COUNT = 100
# As many failures are kept to look at; the ledger has all of them.
_MAX_KEPT = 10_000
# Different hints that a report gives for one code: some name an element of a list.
_MAX_HINTS = 3


@dataclass
class Book:
    """Of one epoch: planned = delivered + replaced + skipped."""

    planned: int = 0
    delivered: int = 0
    replaced: int = 0
    skipped: int = 0


@dataclass
class Books:
    """Of a loader, over all its epochs."""

    rank: int
    max_failures: int | float | None
    ledger_path: str | None
    epochs: dict[int, Book] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    failed_count: int = 0
    _ledger: Ledger | None = None
    _is_said: bool = False
    _is_ledger_said: bool = False
    # Several passes of a loader may be under way, each in a thread.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        if self.ledger_path is not None:
            # Before anything is read: a ledger that cannot be written is a wrong setting.
            self._ledger = Ledger(self.ledger_path)

    def book(self, epoch: int) -> Book:
        return self.epochs.setdefault(epoch, Book())

    def enter(self, epoch: int, step: int, first_position: int, planned: int, incidents: Sequence[Incident]) -> None:
        """Writes down a batch that is handed over, or that failed; raises where too many samples have."""
        with self._lock:
            self._enter(epoch, step, first_position, planned, incidents)

    def _enter(self, epoch: int, step: int, first_position: int, planned: int, incidents: Sequence[Incident]) -> None:
        book = self.book(epoch)
        lost = [incident for incident in incidents if incident.outcome in ("replaced", "skipped")]
        replaced = sum(incident.outcome == "replaced" for incident in lost)
        skipped = len(lost) - replaced
        book.planned += planned
        book.replaced += replaced
        book.skipped += skipped
        book.delivered += planned - replaced - skipped
        self.failed_count += len(lost)
        for incident in incidents:
            self._note(_failure(incident, epoch, step, first_position, self.rank))
        if lost:
            self._judge(lost[-1])

    def _note(self, failure: Failure) -> None:
        if len(self.failures) < _MAX_KEPT:
            self.failures.append(failure)
        self._write(failure)
        if not self._is_said and failure.outcome in ("replaced", "skipped"):
            self._is_said = True
            warnings.warn(
                f"{failure.message}: {failure.outcome}; further ones are counted silently: see loader.report()",
                RuntimeWarning,
                stacklevel=_notice.users_level(),
            )

    def _write(self, failure: Failure) -> None:
        if self._ledger is None:
            return
        line = json.dumps({name: value for name, value in asdict(failure).items() if _is_told(name, value)})
        self._ledger.append(line.encode("utf-8", "replace").decode() + "\n")
        self._say_ledger(self._ledger)

    def _say_ledger(self, ledger: Ledger) -> None:
        if not self._is_ledger_said and (trouble := ledger.trouble()) is not None:
            self._is_ledger_said = True
            _notice.ledger_behind(trouble)

    def _judge(self, last: Incident) -> None:
        limit = self.max_failures
        if limit is None:
            return
        seen = sum(book.planned for book in self.epochs.values())
        is_fraction = isinstance(limit, float)
        if not is_fraction and self.failed_count > limit:
            told = f"{self.failed_count} samples failed, more than max_failures={limit}"
        elif is_fraction and seen >= _FAIR_COUNT and self.failed_count > limit * seen:
            told = f"{self.failed_count} of {seen} samples failed, more than max_failures={limit}"
        else:
            return
        raise TooManyFailuresError(f"{told}; the last one: {last.message}", detail=last.detail)

    def report(self) -> str:
        """What failed, why, what to do, and the balance of each epoch."""
        with self._lock:
            return self._report()

    def _report(self) -> str:
        lines = []
        counts: dict[tuple[Any, ...], int] = {}
        first: dict[tuple[Any, ...], Failure] = {}
        for failure in self.failures:
            key = (failure.code, failure.stage, failure.index)
            counts[key] = counts.get(key, 0) + 1
            first.setdefault(key, failure)
        if not counts:
            lines.append("no sample failed")
        else:
            plural = "s" if len(counts) > 1 else ""
            lines.append(f"{len(counts)} sample{plural} failed:")
            width = max(len("class"), *(len(key[0]) for key in counts))
            depth = max(len("stage"), *(len(str(key[1])) for key in counts))
            lines.append(f"  {'class':<{width}}  {'stage':<{depth}}  times  message")
            for key, count in counts.items():
                detail = f" [{first[key].detail}]" if first[key].detail else ""
                lines.append(f"  {key[0]:<{width}}  {key[1]!s:<{depth}}  {count:>5}  {first[key].message}{detail}")
            lines += _hint_lines(first.values())
        for epoch, book in sorted(self.epochs.items()):
            lines.append(
                f"epoch {epoch}: planned {book.planned} = delivered {book.delivered} + replaced {book.replaced} + "
                f"skipped {book.skipped}"
            )
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        """Closes the ledger. Further failures are kept, and not written."""
        with self._lock:
            ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.flush()
            self._say_ledger(ledger)


def _hint_lines(failures: Iterable[Failure]) -> list[str]:
    """The different hints of each code."""
    hints: dict[str, dict[str, None]] = {}
    for failure in failures:
        hints.setdefault(failure.code, {}).setdefault(failure.hint)
    return [f"  hint ({code}): {hint}" for code, some in hints.items() for hint in list(some)[:_MAX_HINTS]]


def _failure(incident: Incident, epoch: int, step: int, first_position: int, rank: int) -> Failure:
    position = first_position + max(incident.position, 0)
    return Failure(
        path=incident.path or f"dataset[{incident.index!r}]",
        index=_number(incident.index, position),
        code=incident.code,
        stage=incident.stage,
        errno=incident.errno,
        attempts=incident.attempts,
        elapsed_seconds=incident.elapsed_seconds,
        message=incident.message,
        hint=incident.hint or _hints.by_code(incident.code),
        detail=incident.detail,
        epoch=epoch,
        step=step,
        position=position,
        rank=rank,
        outcome=incident.outcome,
        unix_seconds=time.time(),
        substitute=None if incident.substitute is None else _number(incident.substitute, position),
    )


def _number(index: Any, position: int) -> int:
    """Ledgers have whole numbers; a key of another kind is told in the message, and here by its position."""
    try:
        number = int(index)
    except (TypeError, ValueError):
        return position
    return number if number >= 0 else position


def _is_told(name: str, value: Any) -> bool:
    return value is not None or name not in ("substitute", "size_bytes", "mtime_ns")
