"""Checks of resume states, common to all loaders, with short messages: a model's state is megabytes."""

from collections.abc import Mapping
from typing import Any

from forebay._arrays import torch_arrays
from forebay.errors import StateMismatchError

_MAX_SHOWN = 4
_HINT = "save loader.state_dict() beside the model's in the checkpoint, and load that one"


def check(state_dict: Any, keys: frozenset[str]) -> dict[str, Any]:
    """The state as a dict; refuses one without these keys, and names what it looks like instead."""
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError(f"the state: expected a dict that state_dict() gave, got {_kind(state_dict)}")
    state = dict(state_dict)
    if keys <= state.keys():
        return state
    expected = f"expected the state of a forebay.DataLoader, with the keys {', '.join(sorted(keys))}"
    inside = next((name for name, value in state.items() if isinstance(value, Mapping) and keys <= value.keys()), None)
    if inside is not None:
        raise StateMismatchError(
            f"{expected}, got a checkpoint that holds one under {_shown(inside)}",
            hint=f"pass that part of it: load_state_dict(checkpoint[{_shown(inside)}])",
        )
    named = f"{len(state)} keys: {_names(state)}"
    if any(torch_arrays.is_tensor(value) for value in state.values()):
        raise StateMismatchError(f"{expected}, got what looks like a model's state_dict ({named})", hint=_HINT)
    if {"state", "param_groups"} <= state.keys():
        raise StateMismatchError(f"{expected}, got what looks like an optimizer's state_dict", hint=_HINT)
    missing = ", ".join(sorted(keys - state.keys()))
    raise StateMismatchError(f"{expected}, got one without {missing} ({named})", hint=_HINT)


def _names(state: dict[Any, Any]) -> str:
    shown = ", ".join(map(_shown, list(state)[:_MAX_SHOWN]))
    return f"{shown}, …" if len(state) > _MAX_SHOWN else shown or "none"


def _shown(name: Any) -> str:
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _kind(value: Any) -> str:
    return "a tensor" if torch_arrays.is_tensor(value) else f"an object of class {type(value).__qualname__}"
