"""Notices to the user while a loop runs: the cost of Python code, the first failure, a ledger or a cache that
cannot be written (said once), and long waits.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from forebay._forebay import Batch, take_warnings
from forebay._pickling.sendable import Finding

# Without a handler at all, Python would print what is a warning already.
_LOG = logging.getLogger("forebay")
_LOG.addHandler(logging.NullHandler())

_said: dict[str, object] = {}


def python_callable(kind: str, name: str, consequence: str) -> None:
    """Says that Python code runs in the data path."""
    mine = object()
    if _said.setdefault(kind, mine) is not mine:
        return
    warnings.warn(f"{kind} {name} is Python code: {consequence}", UserWarning, stacklevel=users_level())


def users_level() -> int:
    """How many frames up the stack the user's own line is, from the caller: the argument for `stacklevel`."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "forebay":
        frame, level = frame.f_back, level + 1
    return level


class FirstFailure:
    """Warns about failing samples, the ledger, the cache and repaired files while a loop continues: each once."""

    def __init__(
        self,
        failures: Callable[[], list[dict[str, Any]]],
        ledger_error: Callable[[], str | None],
        cache_notice: Callable[[], str | None],
        repaired: Callable[[], list[tuple[str, str]]],
    ) -> None:
        self._failures = failures
        self._ledger_error = ledger_error
        self._cache_notice = cache_notice
        self._repaired = repaired
        self._said_of_repaired: set[str] = set()
        self._is_said = self._is_ledger_said = False
        self._said_of_cache: str | None = None
        self._expected_step = 0

    def look(self, batch: Batch | None) -> None:
        """Checks after a batch, or at the end: a batch without any sample left is not delivered at all."""
        if (trouble := self._cache_notice()) != self._said_of_cache and trouble is not None:
            self._said_of_cache = trouble  # where it lies, and then perhaps the first trouble with its disk
            _LOG.warning("%s", trouble, stacklevel=users_level())
            warnings.warn(trouble, RuntimeWarning, stacklevel=users_level())
        for path, said in self._repaired():
            if path not in self._said_of_repaired:
                self._said_of_repaired.add(path)
                _LOG.warning("%s", said, stacklevel=users_level())
                warnings.warn(said, RuntimeWarning, stacklevel=users_level())
        is_clean = batch is not None and batch.failed == 0 and batch.step == self._expected_step
        self._expected_step = 0 if batch is None else batch.step + 1
        self.look_at_ledger()
        if is_clean or self._is_said:
            return
        failure = next((row for row in self._failures() if row["outcome"] != "recovered"), None)
        if failure is not None:
            self._is_said = True
            warnings.warn(
                f"{failure['message']}: {failure['outcome']}; further ones are counted silently: see loader.report()",
                RuntimeWarning,
                stacklevel=users_level(),
            )

    def look_at_ledger(self) -> None:
        """Warns once that lines wait for the ledger."""
        if not self._is_ledger_said and (trouble := self._ledger_error()) is not None:
            self._is_ledger_said = True
            ledger_behind(trouble)


def ledger_behind(trouble: str) -> None:
    """Warns that lines are missing from the ledger."""
    said = f"the ledger is incomplete: {trouble}; the run continues, and loader.failures has the missing lines"
    _LOG.warning("%s", said, stacklevel=users_level())
    warnings.warn(said, RuntimeWarning, stacklevel=users_level())


def stalled(sentence: str) -> None:
    """Reports what the loop waits for, as a warning and to the log.

    The warning is shown each time: by default Python shows the same text at the same line only once. The log is for
    users with a log handler: without one nothing is printed.
    """
    level = users_level()
    _LOG.warning("%s", sentence, stacklevel=level)
    user = sys._getframe(level - 1)
    warnings.warn_explicit(
        sentence, RuntimeWarning, user.f_code.co_filename, user.f_lineno, user.f_globals.get("__name__"), registry={}
    )


def servers() -> None:
    """Warns about servers, for example one that gets credentials over an unencrypted connection."""
    for sentence in take_warnings():
        _LOG.warning("%s", sentence, stacklevel=users_level())
        warnings.warn(sentence, RuntimeWarning, stacklevel=users_level())


def growing(sentence: str) -> None:
    """Warns that a worker's memory or descriptors keep growing."""
    _LOG.warning("%s", sentence, stacklevel=users_level())
    warnings.warn(sentence, RuntimeWarning, stacklevel=users_level())


def handles(findings: Sequence[Finding]) -> None:
    """Names values in a dataset that behave differently in a worker, before the first batch."""
    for finding in findings:
        said = f"{finding}: {finding.why}; {finding.change}"
        warnings.warn(said, RuntimeWarning, stacklevel=users_level())


# Handles with one position, or one conversation at a time.
_ONE_AT_A_TIME = frozenset(("file", "archive", "database connection", "socket", "decoder", "generator"))


def shared(findings: Sequence[Finding]) -> None:
    """Warns of handles in a dataset that worker threads, chosen by default, would use at the same time.

    A dataset with a lock is assumed to be safe.
    """
    if any(finding.kind == "lock" for finding in findings):
        return
    for finding in findings:
        if finding.kind in _ONE_AT_A_TIME:
            said = (
                f"{finding}: this Python has no GIL, so that workers are threads, and all of them use it at the same "
                'time; give each its own (threading.local()), guard it with a lock, or pass workers="processes"'
            )
            warnings.warn(said, RuntimeWarning, stacklevel=users_level())


def random_order(name: str) -> None:
    """Warns that the order after a resume may differ from the order the state was taken in."""
    warnings.warn(
        f"the sampler ({name}) has no state: it starts over, and the indices that were already delivered are skipped. "
        "If its order is not the same as before, samples repeat and others are missed: seed its generator as it was "
        "when that epoch began, or use shuffle=True, or a sampler with state_dict and load_state_dict",
        RuntimeWarning,
        stacklevel=users_level(),
    )
