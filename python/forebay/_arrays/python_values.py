"""One sample between the native pipeline and Python callables.

The contract is torchvision's: a transform gets a PIL image until `ToTensor`, a tensor after it, and a NumPy array that
it returns is (height, width, channels). Without Pillow an image is such an array; without torch a tensor is an array
(channels, height, width).
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from forebay._arrays import numpy_arrays, torch_arrays
from forebay._arrays.optional_packages import imported
from forebay._forebay import Array

_MODES = {1: "L", 3: "RGB"}
_CHANNELS = {mode: channels for channels, mode in _MODES.items()}
_DTYPES = ("float32", "uint8")


def name_of(call: object) -> str:
    """What a user's callable goes by in messages."""
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return str(name).rpartition("<locals>.")[2]


@functools.cache  # asked for every sample
def has_pillow() -> bool:
    return importlib.util.find_spec("PIL") is not None


def is_pillow(value: Any) -> bool:
    """Whether it is a PIL image; nothing is one before Pillow is imported."""
    module = imported("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def to_python(value: Any) -> Any:
    """What a Python callable gets for a native sample. Opaque objects pass unchanged."""
    if not isinstance(value, Array):
        return value
    if value.kind == "tensor":
        return (torch_arrays if torch_arrays.is_available() else numpy_arrays).tensor(value)
    if not has_pillow():
        return numpy_arrays.tensor(value)
    from PIL import Image

    height, width, channels = value.shape
    mode, buffer = _MODES[channels], numpy_arrays.tensor(value)
    return Image.frombuffer(mode, (width, height), buffer, "raw", mode, 0, 1)


def row_to_python(values: Any, columns: Sequence[str]) -> Any:
    """A sample of these columns: a dict of its values; of a single column, the value itself."""
    if len(columns) < 2:
        return to_python(values)
    return {name: to_python(value) for name, value in zip(columns, values, strict=True)}


class Parts(tuple[Any, ...]):
    """A value taken apart for the native pipeline: what `from_python` gives. No callable of a user's returns one."""

    __slots__ = ()


def from_python(value: Any, is_planar: bool = False) -> Parts:
    """What the native pipeline gets for the result of a Python callable.

    ("image", bytes, height, width, channels), ("tensor", bytes, dtype, (channels, height, width)), or
    ("opaque", value) for everything that no native transform understands. `is_planar` says that an array is a tensor.
    """
    if isinstance(value, Parts):
        return value
    if isinstance(value, Array):
        is_planar = value.kind == "tensor"
        value = to_python(value) if is_planar else numpy_arrays.tensor(value)
    if torch_arrays.is_tensor(value):
        return _planar(value, str(value.dtype).removeprefix("torch."))
    if isinstance(value, numpy.ndarray):
        return _planar(value, str(value.dtype)) if is_planar else _interleaved(value)
    if is_pillow(value) and value.mode in _CHANNELS:
        return Parts(("image", value.tobytes(), value.height, value.width, _CHANNELS[value.mode]))
    return Parts(("opaque", value))


@dataclass(frozen=True, eq=False)
class Calls:
    """Python callables that follow each other, as one: values pass between them as they are.

    The rest says what becomes of the last one's result: whether everything, or an array, stays what it is, whether an
    array is a tensor, and whether bytes become 0 to 1 (what `ToTensor` does to a picture, but not to a tensor).
    `columns` are those of the samples that the first one is given, where these are rows.
    """

    calls: Sequence[Callable[[Any], Any]]
    keeps_all: bool = False
    keeps_arrays: bool = False
    is_planar: bool = False
    is_scaled: bool = False
    columns: Sequence[str] = ()

    def __call__(self, value: Any) -> Parts:
        if len(self.columns) > 1:
            value = row_to_python(value, self.columns)
        for place, call in enumerate(self.calls):
            try:
                result = call(value)
            except Exception as error:
                if value is None and place:
                    error.add_note(f"forebay: the transform before it, {name_of(self.calls[place - 1])}, returned None")
                raise
            value = result
        if value is None and not self.keeps_all and not self.keeps_arrays:
            raise TypeError(f"{name_of(self.calls[-1])} returned None: expected a picture or a tensor")
        if self.keeps_all or (self.keeps_arrays and isinstance(value, numpy.ndarray)):
            return Parts(("opaque", value))
        return from_python(scaled(value) if self.is_scaled else value, self.is_planar)


def scaled(value: Any) -> Any:
    """An array of bytes that is no picture by its channels, from 0 to 1: `ToTensor` would take it for a tensor."""
    is_bytes = isinstance(value, numpy.ndarray) and value.dtype == numpy.uint8
    return numpy.float32(value) / numpy.float32(255) if is_bytes and not _is_picture(value) else value


def _is_picture(array: Any) -> bool:
    return array.dtype == numpy.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _MODES))


def _interleaved(array: Any) -> Parts:
    """An array in the layout of pictures: the last axis holds the channels, if there is one."""
    if array.ndim not in (2, 3) or array.size == 0:
        return Parts(("opaque", array))
    pixels = array[:, :, None] if array.ndim == 2 else array
    if _is_picture(pixels):
        return Parts(("image", _bytes_of(pixels), *pixels.shape))
    parts = _planar(pixels.transpose(2, 0, 1), str(array.dtype))
    return Parts(("opaque", array)) if parts[0] == "opaque" else parts


def _planar(value: Any, dtype: str) -> Parts:
    shape = tuple(value.shape)
    if dtype not in _DTYPES or len(shape) != 3 or 0 in shape:
        return Parts(("opaque", value))
    array = torch_arrays.to_numpy(value) if torch_arrays.is_tensor(value) else value
    return Parts(("tensor", _bytes_of(array), dtype, shape))


def _bytes_of(array: Any) -> memoryview:
    contiguous: Any = numpy.ascontiguousarray(array)
    return memoryview(contiguous).cast("B")
