"""How much memory a dataset's Python objects take: what every worker process has for itself, also after a fork.

A fork shares memory until one side writes to it; counting references is writing, so that each object that is looked at
is copied with its page. The numbers inside arrays and tensors have no such counts.
"""

import sys
import types
from typing import Any

# Of a longer container some elements stand for all: of those in it fewer, and of those in these fewer still.
_SAMPLES = (1000, 100, 30, 10)
_MAX_OBJECTS = 400_000
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType)


class Scale:
    """Weighs objects, each once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self.objects = 0.0
        self.python_bytes = 0.0
        self.data_bytes = 0.0
        self.is_complete = True

    def put(self, value: Any) -> None:
        """Adds a value and everything below it. Not by recursion: what is nested deep is weighed, too."""
        stack = [(value, 1.0, 0)]
        while stack:
            if len(self._seen) >= _MAX_OBJECTS:
                self.is_complete = False
                return
            item, weight, level = stack.pop()
            if item is None or isinstance(item, (bool, *_SHARED)) or id(item) in self._seen:
                continue
            self._seen[id(item)] = item
            self.objects += weight
            buffer = _buffer_bytes(item)
            self.data_bytes += buffer * weight
            self.python_bytes += _own_bytes(item, buffer) * weight
            children = _children(item)
            most = _SAMPLES[min(level, len(_SAMPLES) - 1)]
            if len(children) > most:
                picked = children[:: len(children) // most + 1]
                weight, children, level = weight * len(children) / len(picked), picked, level + 1
            stack.extend((child, weight, level) for child in children)


def _buffer_bytes(item: Any) -> int:
    """Bytes of numbers, for what is an array or a tensor that is not a view of another one."""
    if type(item).__module__.partition(".")[0] not in ("numpy", "torch", "pyarrow", "pandas"):
        return 0
    try:
        size = item.nbytes if getattr(item, "base", None) is None else 0
        return int(size() if callable(size) else size)
    except Exception:  # a class of the library's without it, or on a device
        return 0


def _own_bytes(item: Any, buffer: int) -> int:
    try:
        size = sys.getsizeof(item)
    except Exception:  # a __sizeof__ of the user's own
        return 0
    return max(size - buffer, 0) if buffer and size >= buffer else size


def _children(item: Any) -> list[Any]:
    kind = type(item)
    if kind in (str, bytes, bytearray, int, float, complex, range):
        return []
    if isinstance(item, dict):
        return [*dict.keys(item), *dict.values(item)]
    if isinstance(item, (list, tuple, set, frozenset)):
        items = list(kind.__iter__(item))
        return items + _attributes(item)
    return _attributes(item)


def _attributes(item: Any) -> list[Any]:
    found = []
    try:
        own = object.__getattribute__(item, "__dict__")
        if isinstance(own, dict):
            found.append(own)
    except (AttributeError, TypeError):
        pass
    for base in type(item).__mro__:
        for name, descriptor in vars(base).items():
            if isinstance(descriptor, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    found.append(descriptor.__get__(item))
                except Exception:  # a slot that was never filled
                    continue
    return found


def weigh(dataset: Any) -> dict[str, Any]:
    """Objects and bytes of the whole, and the attribute that has the most of them."""
    whole = Scale()
    whole.put(dataset)
    heaviest: dict[str, Any] | None = None
    attributes = getattr(dataset, "__dict__", None)
    for name, value in list(attributes.items()) if isinstance(attributes, dict) else []:
        part = Scale()
        part.put(value)
        if heaviest is None or part.python_bytes > heaviest["bytes"]:
            length = len(value) if isinstance(value, (list, tuple, dict, set)) else None
            first = next(iter(value), None) if length else None
            inside = type(first).__name__ if isinstance(value, (list, tuple)) and length else None
            heaviest = {
                "path": f"dataset.{name}",
                "type": type(value).__name__,
                "length": length,
                "of": inside,
                "bytes": round(part.python_bytes),
            }
    return {
        "is_complete": whole.is_complete,
        "objects": round(whole.objects),
        "python_bytes": round(whole.python_bytes),
        "data_bytes": round(whole.data_bytes),
        "heaviest": heaviest,
    }
