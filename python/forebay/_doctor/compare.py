"""Whether two samples are the same, and random numbers from a given seed: the two halves of a test for determinism."""

import random
from collections.abc import Mapping
from typing import Any

import cloudpickle

from forebay._arrays import torch_arrays
from forebay._arrays.optional_packages import imported


def seed_all(seed: int) -> None:
    """Seeds the generators that transforms draw from: Python's, and NumPy's and torch's where they are in use."""
    random.seed(seed)
    if (numpy := imported("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := imported("torch")) is not None:
        torch.manual_seed(seed)


def is_same(left: Any, right: Any) -> bool | None:
    """Whether two values are equal; `None` where nothing can tell."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        if list(left) != list(right):
            return False
        return _all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return False
        return _all(is_same(one, other) for one, other in zip(left, right, strict=True))
    own, others = getattr(left, "__dict__", None), getattr(right, "__dict__", None)
    if isinstance(own, dict) and isinstance(others, dict) and own and not hasattr(left, "tobytes"):
        return is_same(own, others)
    try:
        return bool(_bytes(left) == _bytes(right))
    except Exception:  # an object that cannot be pickled: another check says so
        return _by_equality(left, right)


def _all(answers: Any) -> bool | None:
    found = list(answers)
    return False if False in found else None if None in found else True


def _bytes(value: Any) -> Any:
    # By content: equal arrays may be pickled differently, by their layout, and tensors by their address.
    if torch_arrays.is_tensor(value):
        return value.shape, value.dtype, torch_arrays.content(value)
    if hasattr(value, "tobytes") and hasattr(value, "shape"):
        return value.shape, str(value.dtype), value.tobytes()
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return value.size, value.mode, value.tobytes()
    return cloudpickle.dumps(value, 5)


def _by_equality(left: Any, right: Any) -> bool | None:
    if "__eq__" not in {name for base in type(left).__mro__[:-1] for name in vars(base)}:
        return None
    try:
        return bool(left == right)
    except Exception:
        return None
