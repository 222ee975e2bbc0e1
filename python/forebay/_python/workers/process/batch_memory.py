"""The approximate memory of a batch: its arrays, tensors, pictures, bytes and text, at any depth."""

import math
import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

from forebay._pickling.handles import quietly

# Of a container with more elements, some are weighed, and the others taken to be alike.
_MAX_WEIGHED = 256
_MAX_DEPTH = 8


def weigh(value: Any, depth: int = 0) -> int:
    """Bytes. What is in it twice counts twice, and what an object has outside of its attributes does not count.

    >>> weigh([b"x" * 1000] * 1000) // 1000
    1041
    """
    own = sys.getsizeof(value, 64)
    if depth == _MAX_DEPTH or isinstance(value, (str, bytes, bytearray, int, float, type)):
        return own
    if isinstance(size := quietly(value, "nbytes"), int):  # of an array or a tensor
        return max(own, size)
    if callable(bands := quietly(value, "getbands")):  # of one of Pillow's pictures
        return own + int(math.prod(value.size)) * len(bands())
    if isinstance(value, (list, tuple, set, frozenset)):
        inside: Any = value
    else:
        inside = value.values() if isinstance(value, Mapping) else (quietly(value, "__dict__") or {}).values()
    weighed = [weigh(each, depth + 1) for each in islice(inside, _MAX_WEIGHED)]
    return own + sum(weighed) * len(inside) // max(1, len(weighed))
