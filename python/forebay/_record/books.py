"""What became of every sample of a Python dataset: the engine's own journal, told by the passes.

Books, limits, ledger and report are the native loader's (`docs/books.md`). This module adds what only Python knows: the
words for an index that is no number, and the warnings.
"""

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from forebay import _forebay
from forebay._python.workers.job import Incident
from forebay._record import hints as _hints
from forebay._record import notices
from forebay._record.failures import Failure, Failures
from forebay.errors import InternalError, StateMismatchError

# In the order of the native calls.
_NAMES = ("planned", "delivered", "replaced", "skipped")


def empty() -> dict[str, int]:
    """The books of a pass that has handed over nothing."""
    return dict.fromkeys(_NAMES, 0)


def check_state(books: Any) -> None:
    """Refuses books of a state that do not balance, as a native loader does. An older state has none."""
    if books is None:
        return
    is_counted = isinstance(books, Mapping) and all(
        isinstance(count := books.get(name), int) and 0 <= count < 1 << 63 for name in _NAMES
    )
    if not is_counted or books["planned"] != sum(books[name] for name in _NAMES[1:]):
        raise StateMismatchError(f"the state's books: expected them to balance, got {books!r}")


class Books:
    """Of a loader, over all its epochs."""

    def __init__(self, rank: int, max_failures: int | float | None, ledger_path: str | None) -> None:
        self._rank, self._max_failures = rank, max_failures
        # Before anything is read: a ledger that cannot be written is a wrong setting.
        self._journal = _forebay.Journal(ledger_path)
        # Several passes of a loader may be under way, each in a thread.
        self._lock = threading.Lock()
        self._is_said = self._is_ledger_said = False
        # Over all passes, also where two of them were of one epoch.
        self.sample_count = self.failed_count = 0

    def begin(self, epoch: int, books: Mapping[str, int] | None) -> "Account":
        """Opens the books of a pass, starting from those of the resumed state."""
        counts = books or empty()
        planned, delivered, replaced, skipped = (int(counts[name]) for name in _NAMES)
        opened = self._journal.begin(epoch, self._rank, self._max_failures, (planned, delivered, replaced, skipped))
        return Account(self, opened)

    @property
    def epochs(self) -> dict[int, dict[str, int]]:
        """The books of each epoch."""
        return {row["epoch"]: {name: row[name] for name in _NAMES} for row in self._journal.books()}

    @property
    def failures(self) -> Failures:
        """Failures so far, oldest first; older ones than the last 100,000 are only in the ledger."""
        return Failures(Failure.from_line(line) for line in self._journal.failures())

    def known_bad(self) -> tuple[str, ...]:
        """Lines of files that are permanently bad, for workers."""
        return tuple(self._journal.known_bad())

    def report(self) -> str:
        """What failed, why, what to do, and the balance of each epoch."""
        return self._journal.report()

    def count(self, planned: int, failed: int) -> None:
        """Records a delivered batch."""
        with self._lock:
            self.sample_count += planned
            self.failed_count += failed

    def say(self, incidents: Sequence[Incident]) -> None:
        """Warns about the first sample that is missing, and about an incomplete ledger, each once."""
        if not incidents:
            return
        lost = next((incident for incident in incidents if incident.outcome in ("replaced", "skipped")), None)
        with self._lock:
            is_first, self._is_said = lost is not None and not self._is_said, self._is_said or lost is not None
        self._say_ledger()
        if is_first and lost is not None:
            warnings.warn(
                f"{lost.message}: {lost.outcome}; further ones are counted silently: see loader.report()",
                RuntimeWarning,
                stacklevel=notices.users_level(),
            )

    def _say_ledger(self) -> None:
        if not self._is_ledger_said and (trouble := self._journal.ledger_error()) is not None:
            self._is_ledger_said = True
            notices.ledger_behind(trouble)

    def close(self) -> None:
        """Waits briefly for unwritten lines, and closes the ledger: further failures are kept in memory."""
        self._journal.close()
        self._say_ledger()


class Account:
    """The books of one pass over an epoch."""

    def __init__(self, books: Books, opened: _forebay.Account) -> None:
        self._books, self._opened = books, opened

    def enter(self, step: int, first_position: int, incidents: Sequence[Incident]) -> None:
        """Records failures of a batch that is not delivered."""
        if incidents:
            self._opened.enter([_row(incident, step, first_position) for incident in incidents])
            self._books.say(incidents)

    def hand_over(
        self, step: int, first_position: int, planned: int, sample_count: int, incidents: Sequence[Incident]
    ) -> dict[str, int]:
        """Writes down a batch that is handed over: `sample_count` samples, as the worker counted them, where `planned`
        were asked for. Gives the books after it; raises where too many samples of the epoch have failed.
        """
        replaced = sum(incident.outcome == "replaced" for incident in incidents)
        skipped = sum(incident.outcome == "skipped" for incident in incidents)
        delivered = sample_count - replaced
        if delivered < 0:
            raise InternalError(f"a batch of {sample_count} samples has {replaced} substitutes")
        rows = [_row(incident, step, first_position) for incident in incidents]
        counts = self._opened.hand_over((planned, delivered, replaced, skipped), rows)
        self._books.count(planned, replaced + skipped)
        self._books.say(incidents)
        return dict(zip(_NAMES, counts, strict=True))

    def check(self, expected_planned: int | None) -> None:
        """Raises if the books of the epoch do not balance, or do not match the number of planned samples."""
        self._opened.check(expected_planned)


def _row(incident: Incident, step: int, first_position: int) -> dict[str, Any]:
    position = first_position + max(incident.position, 0)
    return {
        "path": incident.path or f"dataset[{incident.index!r}]",
        "index": _number(incident.index, position),
        "code": incident.code,
        "stage": incident.stage,
        "errno": incident.errno,
        "attempts": incident.attempts,
        "elapsed_seconds": incident.elapsed_seconds,
        "message": _text(incident.message),
        "hint": _text(incident.hint or _hints.by_code(incident.code)),
        "detail": None if incident.detail is None else _text(incident.detail),
        "step": step,
        "position": position,
        "outcome": incident.outcome,
        "substitute": None if incident.substitute is None else _number(incident.substitute, position),
        "size_bytes": incident.size_bytes,
        "mtime_ns": incident.mtime_ns,
    }


def _text(said: str) -> str:
    """Without lone surrogates, which file names may contain and a ledger cannot."""
    return said.encode("utf-8", "replace").decode()


def _number(index: Any, position: int) -> int:
    """Ledgers have integer indices; a key of another type is in the message, and here its position is used."""
    try:
        number = int(index)
    except (TypeError, ValueError):
        return position
    return number if 0 <= number < 1 << 64 else position
