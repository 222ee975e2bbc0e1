"""Finds the open handle behind an error of a dataset: the attribute or global that holds it, and its state.

Looks at the objects as they are, and calls no code of their classes but `closed`, `fileno` and `tell` of handles. A
search is short (`_MAX_NODES`, `_MAX_SECONDS`): it runs for every sample that failed in such a way.
"""

import errno
import functools
import io
import os
import re
import stat
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from forebay._pickling import handles
from forebay._pickling.handles import quietly
from forebay._pickling.walk import Budget, Node

State = Literal["closed", "ended", "absent", "open"]
"""Closed; open, and at its end; with a descriptor that is not open in this process; none of these."""

# Not measured; large enough for a dataset of some hundred objects.
_MAX_NODES = 3_000
_MAX_SECONDS = 0.02
_MAX_ELEMENTS = 200
_ATOMS = (str, bytes, bytearray, float, complex, bool, type(None), range, type, types.ModuleType)
# Attributes that are descriptors as `os.open` gives them.
_DESCRIPTOR = re.compile(r"(?:^|_)(?:fd|fileno|descriptor)s?$")


@dataclass(frozen=True)
class Held:
    """A handle that outlives the call in which it is used."""

    path: str
    """Where it is: `dataset.file`, `dataset.parts[2].file`, `module.FILE`."""
    what: str
    """What it is: `BufferedReader on data/a.bin`, `descriptor 7`."""
    why: str
    """What it does when workers share it."""
    state: State


def find(dataset: object, error: BaseException) -> list[Held]:
    """The handles that a dataset holds, and those in globals and closures that the failing code uses."""
    found: list[Held] = []
    seen: set[int] = set()
    budget = Budget(_MAX_NODES, _MAX_SECONDS)
    queue = deque([*_used(error), *([] if dataset is None else [Node(dataset, None, "dataset")])])
    while queue and budget.spend():
        node = queue.popleft()
        try:
            held = _looked_at(node, seen, queue)
        except Exception:  # of the user's own objects, which must not hide the error that is explained
            continue
        if held is not None:
            found.append(held)
    return found


def _looked_at(node: Node, seen: set[int], queue: deque[Node]) -> Held | None:
    """The handle, if it is one; otherwise what is below it joins the queue."""
    value = node.value
    if type(value) is int:
        return _descriptor(node)
    if isinstance(value, _ATOMS) or id(value) in seen:
        return None
    seen.add(id(value))
    if not handles.is_open_handle(value):
        queue.extend(_children(node))
        return None
    what = handles.describe(value).removeprefix("closed ")
    return Held(node.path(), what, handles.why(value), state(value))


def state(value: object) -> State:
    """The state of a handle, as far as it can be known."""
    if _is_closed(value):
        return "closed"
    try:
        number = value.fileno()  # type: ignore[attr-defined]
        status = os.fstat(number) if isinstance(number, int) else None
    except OSError as refused:
        if refused.errno == errno.EBADF:
            return "absent"
        status = None
    except Exception:  # one without a descriptor
        status = None
    return "ended" if _is_at_end(value, status) else "open"


def _is_closed(value: object) -> bool:
    if quietly(value, "closed") is True or quietly(value, "_closed") is True:
        return True
    if type(value).__module__.partition(".")[0] == "zipfile" and hasattr(value, "fp"):
        return quietly(value, "fp") is None
    return bool(quietly(quietly(value, "id"), "valid") == 0)  # of an HDF5 object


def _is_at_end(value: object, status: os.stat_result | None) -> bool:
    if isinstance(value, io.BytesIO):
        size = value.getbuffer().nbytes
    elif isinstance(value, io.StringIO):
        size = len(value.getvalue())
    elif status is None or not stat.S_ISREG(status.st_mode) or type(value).__module__ != "_io":
        return False  # a position in a compressed file is not one in the file below it
    else:
        size = status.st_size
    try:
        return bool(value.tell() >= size)  # type: ignore[attr-defined]
    except Exception:  # text that is iterated over has no position
        return False


def _descriptor(node: Node) -> Held | None:
    # That of the attribute or key which has it, or the list that it is in.
    steps = (above.step if isinstance(above.step, str) else above.step[1] for above in node.line())
    name = next((step for step in steps if isinstance(step, str)), "")
    if node.value < 0 or not _DESCRIPTOR.search(name.lstrip(".")):
        return None
    try:
        os.fstat(node.value)
    except OSError:
        return Held(node.path(), f"descriptor {node.value}", handles.NUMBER, "absent")
    return Held(node.path(), f"descriptor {node.value}", handles.NUMBER, "open")


def _used(error: BaseException) -> Iterator[Node]:
    """Globals and closure variables of the functions that the error passed through, the innermost first."""
    trace, frames = error.__traceback__, []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "forebay":
            continue
        for name in frame.f_code.co_names:
            value = frame.f_globals.get(name)
            if handles.is_open_handle(value) or (type(value) is int and _DESCRIPTOR.search(name.lower())):
                yield Node(value, Node(None, None, module), f".{name}")
        for name in frame.f_code.co_freevars:
            if name != "__class__" and name in frame.f_locals:
                yield Node(frame.f_locals[name], None, name)


def _children(node: Node) -> Iterator[Node]:
    value = node.value
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        for index, item in enumerate(islice(tuple(value) if isinstance(value, (set, deque)) else value, _MAX_ELEMENTS)):
            yield Node(item, node, ("index", index))
    elif isinstance(value, dict):
        for key, item in islice(list(value.items()), _MAX_ELEMENTS):
            yield Node(item, node, ("key", key))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield Node(quietly(cell, "cell_contents"), node, f".<closure>.{name}")
        return
    elif isinstance(value, functools.partial):
        yield Node(value.func, node, ".func")
        yield Node(value.args, node, ".args")
        yield Node(value.keywords, node, ".keywords")
    elif isinstance(value, types.MethodType):
        yield Node(value.__self__, node, ".__self__")
        return
    if type(value).__module__ in ("builtins", "numpy", "torch"):
        return  # numbers, or what was looked at above
    for name, item in list(_dict(value).items()):
        yield Node(item, node, f".{name}")
    for base in type(value).__mro__:
        for name, member in list(vars(base).items()):
            if isinstance(member, types.MemberDescriptorType):  # one of `__slots__`
                yield Node(quietly(value, name), node, f".{name}")


def _dict(value: object) -> dict[str, Any]:
    """Its attributes, without running code of its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):  # it has slots only
        return {}
    return found if isinstance(found, dict) else {}


def of_interest(found: list[Held], states: tuple[State, ...]) -> Held | None:
    """The one in the first of these states that any of them is in."""
    return next((held for each in states for held in found if held.state == each), None)


def method(dataset: Any) -> str:
    """The method of a dataset in which its code reads."""
    if dataset is None:
        return "__getitem__"
    # Torch's has a `__getitem__`, too, which only raises.
    is_torchs = any(base.__qualname__ == "IterableDataset" for base in type(dataset).__mro__)
    return "__iter__" if is_torchs or not hasattr(type(dataset), "__getitem__") else "__getitem__"
