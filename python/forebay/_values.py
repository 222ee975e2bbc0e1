"""One sample between the native pipeline and Python callables.

The contract is torchvision's: a transform gets a PIL image until `ToTensor`, a tensor after it. Without Pillow an
image is a NumPy array (height, width, channels); without torch a tensor is one (channels, height, width).
"""

import functools
import importlib.util
from typing import Any

import numpy

from forebay import _numpy, _torch
from forebay._forebay import Array
from forebay._modules import imported

_MODES = {1: "L", 3: "RGB"}
_CHANNELS = {mode: channels for channels, mode in _MODES.items()}
_DTYPES = ("float32", "uint8")


@functools.cache  # asked for every sample
def has_pillow() -> bool:
    return importlib.util.find_spec("PIL") is not None


def is_pillow(value: Any) -> bool:
    """Whether it is a PIL image; nothing can be one before somebody imported Pillow."""
    module = imported("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def to_python(value: Any) -> Any:
    """What a Python callable gets for a native sample. Opaque objects pass unchanged."""
    if not isinstance(value, Array):
        return value
    if value.kind == "tensor":
        return (_torch if _torch.is_available() else _numpy).tensor(value)
    if not has_pillow():
        return _numpy.tensor(value)
    from PIL import Image

    height, width, channels = value.shape
    mode, buffer = _MODES[channels], _numpy.tensor(value)
    return Image.frombuffer(mode, (width, height), buffer, "raw", mode, 0, 1)


def from_python(value: Any) -> tuple[Any, ...]:
    """What the native pipeline gets for the result of a Python callable.

    ("image", bytes, height, width, channels), ("tensor", bytes, dtype, (channels, height, width)), or
    ("opaque", value) for everything that no native transform understands.
    """
    if isinstance(value, Array):
        value = _numpy.tensor(value) if value.kind == "image" else to_python(value)
    if _torch.is_tensor(value):
        return _planar(value, str(value.dtype).removeprefix("torch."))
    if isinstance(value, numpy.ndarray):
        return _interleaved(value) or _planar(value, str(value.dtype))
    if is_pillow(value) and value.mode in _CHANNELS:
        return "image", value.tobytes(), value.height, value.width, _CHANNELS[value.mode]
    return "opaque", value


def _interleaved(array: Any) -> tuple[Any, ...] | None:
    """An array in the layout of pictures: the last axis holds the channels, or there is none."""
    if array.dtype != numpy.uint8 or array.size == 0:
        return None
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in _MODES:
        return None
    return "image", _bytes_of(array), *array.shape


def _planar(value: Any, dtype: str) -> tuple[Any, ...]:
    shape = tuple(value.shape)
    if dtype not in _DTYPES or len(shape) != 3 or 0 in shape:
        return "opaque", value
    array = _torch.to_numpy(value) if _torch.is_tensor(value) else value
    return "tensor", _bytes_of(array), dtype, shape


def _bytes_of(array: Any) -> memoryview:
    contiguous: Any = numpy.ascontiguousarray(array)
    return memoryview(contiguous).cast("B")
