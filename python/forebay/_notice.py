"""What a user should know while the loop goes on: the cost of Python code and the first failure (said once), and long
waits.
"""

import warnings
from collections.abc import Callable
from typing import Any

from forebay._forebay import Batch

# Files named when a wait is long; the first is the one that waited longest.
SHOWN = 3

_said: set[str] = set()


def python_callable(kind: str, name: str, consequence: str) -> None:
    """Says that Python code runs in the data path."""
    if kind in _said:
        return
    _said.add(kind)
    # The stack is forebay's own up to the user's line: loader, settings, here.
    warnings.warn(f"{kind} {name} is Python code: {consequence}", UserWarning, stacklevel=4)


class FirstFailure:
    """Says that samples fail in a loop that goes on all the same: once for each loader."""

    def __init__(self, failures: Callable[[], list[dict[str, Any]]]) -> None:
        self._failures = failures
        self._is_said = False
        self._expected_step = 0

    def look(self, batch: Batch | None) -> None:
        """Looks at a batch, or at the end: a batch of which nothing is left does not come at all."""
        is_clean = batch is not None and batch.failed == 0 and batch.step == self._expected_step
        self._expected_step = 0 if batch is None else batch.step + 1
        if is_clean or self._is_said:
            return
        failure = next((row for row in self._failures() if row["outcome"] != "recovered"), None)
        if failure is not None:
            self._is_said = True
            # The stack is forebay's own up to the user's loop: here, and three times the iteration.
            warnings.warn(
                f"{failure['message']}: {failure['outcome']}; further ones are counted silently: see loader.report()",
                RuntimeWarning,
                stacklevel=5,
            )


def in_words(in_flight: list[dict[str, Any]]) -> str:
    """What the loader's threads have in hand, longest first."""
    shown = [
        '"{path}" (stage {stage}, thread {thread}, attempt {attempt}, for {elapsed_seconds:.1f} s)'.format(**item)
        for item in in_flight[:SHOWN]
    ]
    more = [f"and {len(in_flight) - SHOWN} more"] if len(in_flight) > SHOWN else []
    return ", ".join(shown + more) or "nothing"


def stalled(seconds: float, in_flight: list[dict[str, Any]]) -> None:
    """Says what the loop waits for."""
    warnings.warn(f"no batch for {seconds:.1f} s; in flight: {in_words(in_flight)}", RuntimeWarning, stacklevel=6)
