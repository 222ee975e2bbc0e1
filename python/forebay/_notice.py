"""Notices of cost: each kind is said once per process, so that they inform and do not nag."""

import warnings

_said: set[str] = set()


def python_callable(kind: str, name: str, consequence: str) -> None:
    """Says that Python code runs in the data path."""
    if kind in _said:
        return
    _said.add(kind)
    # The stack is forebay's own up to the user's line: loader, settings, here.
    warnings.warn(f"{kind} {name} is Python code: {consequence}", UserWarning, stacklevel=4)
