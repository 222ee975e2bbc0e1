"""The arguments of transforms, brought into one form: torchvision takes most of them in several.

Every message says what was expected and what was got. Ranges that only matter to the pipeline are checked there.
"""

import math
from collections.abc import Sequence
from enum import Enum
from numbers import Integral, Real
from typing import Any

from forebay.errors import ConfigError


class InterpolationMode(Enum):
    """How pixels between pixels are made. torchvision's own enum, its strings and Pillow's numbers work as well."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_PILLOW_MODES = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def problem(transform: str, argument: str, expected: str, got: object) -> ConfigError:
    return ConfigError(f"{transform}: {argument}: expected {expected}, got {got!r}")


def interpolation(transform: str, mode: Any) -> InterpolationMode:
    value = mode.value if isinstance(mode, Enum) else mode
    if is_integer(value) and 0 <= value < len(_PILLOW_MODES):
        value = _PILLOW_MODES[value]
    try:
        return InterpolationMode(value)
    except ValueError:
        names = ", ".join(mode.value for mode in InterpolationMode)
        raise problem(transform, "interpolation", f"one of {names}", mode) from None


def is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_length(value: Any) -> bool:
    """Whether it can be a number of pixels, 0 or more."""
    return is_integer(value) and 0 <= value < 2**32


def sequence(value: Any, lengths: tuple[int, ...], test: Any) -> list[Any] | None:
    """The items of a sequence of one of these lengths whose items all pass the test."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) in lengths and all(map(test, value)):
        return list(value)
    return None


def size(transform: str, argument: str, value: Any) -> tuple[int, int]:
    """(height, width) from one number or two."""
    items = [value] if is_length(value) else sequence(value, (1, 2), is_length)
    if items is None or 0 in items:
        raise problem(transform, argument, "one or two whole numbers, 1 or more (height, width)", value)
    return int(items[0]), int(items[-1])


def padding(transform: str, value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from one, two or four numbers."""
    items = [value] if is_length(value) else sequence(value, (1, 2, 4), is_length)
    if items is None:
        raise problem(transform, "padding", "one, two or four whole numbers, 0 or more", value)
    left, top, right, bottom = (items * 4)[:4]
    return int(left), int(top), int(right), int(bottom)


def padding_mode(transform: str, value: Any) -> str:
    if value not in PADDING_MODES:
        raise problem(transform, "padding_mode", f"one of {', '.join(PADDING_MODES)}", value)
    return str(value)


def values(transform: str, argument: str, value: Any) -> list[float]:
    """One number, or one for each channel."""
    if value is None:
        return [0.0]
    items = [value] if is_number(value) else sequence(value, (1, 3), is_number)
    if items is None:
        raise problem(transform, argument, "one number, or one for each channel", value)
    return [float(item) for item in items]


def numbers(transform: str, argument: str, value: Any) -> list[float]:
    """One or more numbers; arrays and tensors are taken as well."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, Sequence) or isinstance(value, str) or not value or not all(map(is_number, value)):
        raise problem(transform, argument, "one number for each channel, in a list", value)
    return [float(item) for item in value]


def probability(transform: str, value: Any) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise problem(transform, "p", "a number from 0 to 1", value)
    return float(value)


def span(transform: str, argument: str, value: Any, least: float, most: float = math.inf) -> tuple[float, float]:
    """(smallest, largest) within bounds."""
    items = sequence(value, (2,), is_number)
    if items is None or not least <= items[0] <= items[1] <= most:
        bounds = f"{least:g} or more" if most == math.inf else f"within {least:g} to {most:g}"
        raise problem(transform, argument, f"two numbers (smallest, largest), {bounds}", value)
    return float(items[0]), float(items[1])


def flag(transform: str, argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise problem(transform, argument, "True or False", value)
    return value
