"""The hand-over to NumPy: the same functions as `torch_arrays`, for machines without torch and for `output="numpy"`."""

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy

from forebay._forebay import Array
from forebay.errors import ConfigError


def tensor(array: Array) -> Any:
    """The same memory as an array, without a copy."""
    if array.dtype == "bfloat16":
        raise ConfigError(
            'output: expected "torch" for elements of bfloat16, which NumPy has not got, got "numpy"',
            hint='use output="torch", or convert the elements in transform',
        )
    if 0 in array.shape:  # a buffer of no bytes is refused
        return numpy.empty(array.shape, dtype=array.dtype)
    buffer: Any = array
    flat = numpy.frombuffer(buffer, dtype=array.dtype)
    if not array.is_interleaved:
        return flat.reshape(array.shape)
    batch, channels, height, width = array.shape
    return flat.reshape(batch, height, width, channels).transpose(0, 3, 1, 2)


def convert(value: Any, dtype: str | None, is_channels_last: bool) -> Any:
    """An array of a batch, or of one sample, in another type and order."""
    if dtype is not None:
        value = value.astype(dtype, copy=False)
    if is_channels_last:
        value = numpy.moveaxis(numpy.ascontiguousarray(numpy.moveaxis(value, -3, -1)), -1, -3)
    return value


def element_bytes(value: Any, dtype: str) -> bytes:
    """One element of this type."""
    return numpy.asarray(value).astype(dtype).tobytes()


def as_nested(tensors: Sequence[Any]) -> Any:
    raise ConfigError('ragged: expected "list" or "pad" for output="numpy", got "nested", which only torch has')


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
