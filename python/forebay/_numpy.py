"""The hand-over to NumPy: the same functions as `_torch`, for machines without torch and for `output="numpy"`."""

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy

from forebay._forebay import Array


def tensor(array: Array) -> Any:
    """The same memory as an array, without a copy."""
    buffer: Any = array
    return numpy.frombuffer(buffer, dtype=array.dtype).reshape(array.shape)


def integers(values: Sequence[int]) -> Any:
    return numpy.array(values, dtype=numpy.int64)


def collate(values: Sequence[Any]) -> Any:
    """Numbers and arrays of one shape become an array, everything else stays as it is."""
    first = values[0]
    if all(isinstance(value, (Number, numpy.generic)) for value in values):
        return numpy.asarray(values)
    if all(isinstance(value, numpy.ndarray) and value.shape == first.shape for value in values):
        return numpy.stack(values)
    return values
