"""What a user should know while nothing has failed: the cost of Python code (said once), and long waits."""

import warnings
from typing import Any

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
    warnings.warn(f"no batch for {seconds:.1f} s; in flight: {in_words(in_flight)}", RuntimeWarning, stacklevel=5)
