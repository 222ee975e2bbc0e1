"""The objects that pickling would visit, each with its way there from the root.

It goes where cloudpickle goes: by what `__reduce_ex__`, `__getstate__` and cloudpickle's own reducers give, into
containers, closures, and the globals and classes that are sent by value. Nothing is written, and what cannot be pickled
is told and passed over: objects of the user's own may raise, nest for ever, or be very many.
"""

import contextlib
import functools
import io
import pickle
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import cloudpickle

PROTOCOL = 5
# Of more elements than this, those at the beginning, at the end and some between are looked at.
SAMPLE = 300
_ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, bytearray, range, type(None), type(...), type(NotImplemented)}
)
_GLOBALS = (types.FunctionType, types.BuiltinFunctionType, type)
# The separator of two steps of a path: a name after a dot, or an element in brackets, as in Python.
Step = str | tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """An object, and how one gets to it."""

    value: Any
    parent: "Node | None"
    step: Step

    def path(self, max_steps: int = 14) -> str:
        """As one would write it: `dataset.transform.transforms[2]`; what is not Python is in `<…>`."""
        nodes = list(self.line())[::-1]
        steps = [_text(node.step) for node in nodes]
        if len(steps) > max_steps:
            half = max_steps // 2
            steps = [*steps[:half], f" … {len(steps) - 2 * half} steps … ", *steps[-half:]]
        return "".join(steps)

    def pattern(self) -> str:
        """The path without what tells the elements of a container apart."""
        steps = [node.step if isinstance(node.step, str) else "[]" for node in self.line()]
        return "".join(reversed(steps))

    def line(self) -> Iterator["Node"]:
        """Itself and those above it, up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def attribute(self) -> "Node | None":
        """The attribute that has it: itself, or the one whose list, tuple or dict it is in."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            owner = node.parent.value
            if isinstance(node.step, str) and node.step.startswith(".") and node.step[1:].isidentifier():
                return None if type(owner).__module__ in ("builtins", "functools") else node
            if type(owner) not in (list, tuple, dict):
                return None
            node = node.parent
        return None


def _text(step: Step) -> str:
    if isinstance(step, str):
        return step
    kind, key = step
    shown = repr(key) if type(key) in _ATOMS else f"<{type(key).__name__}>"
    shown = shown if len(shown) <= 40 else f"{shown[:36]}…{shown[-1]}"
    return f"[{shown.replace(chr(39), chr(34)) if kind == 'key' else shown}]"


class Budget:
    """How far a walk goes."""

    def __init__(self, max_nodes: int, seconds: float) -> None:
        self.left = max_nodes
        self._end = time.monotonic() + seconds

    def spend(self) -> bool:
        """Takes one; whether there was one left."""
        self.left -= 1
        return self.left >= 0 and (self.left % 64 != 0 or time.monotonic() < self._end)


class Walk:
    """One walk. `visit` decides for each object whether to descend into it; `fail` is called for what cannot be
    pickled.
    """

    def __init__(
        self,
        visit: Callable[[Node], bool],
        fail: Callable[[Node, Exception], None],
        budget: Budget,
        is_sampled: bool,
    ) -> None:
        self._visit = visit
        self._fail = fail
        self._budget = budget
        self._is_sampled = is_sampled
        self._reducer = cloudpickle.Pickler(io.BytesIO(), PROTOCOL)
        # With the objects themselves: those made on the way must not give their identity to another one.
        self._seen: dict[int, Any] = {}
        self.deepest: Node | None = None
        self.depth = 0
        self.is_complete = True

    def run(self, value: object, root: str) -> None:
        """Walks, in the order of pickling; not by recursion, so that no depth is too much for it."""
        top = Node(value, None, root)
        stack: list[tuple[Node, Iterator[Node]]] = [(top, iter([top]))]
        while stack:
            owner, children = stack[-1]
            try:
                node = next(children, None)
            except Exception as error:
                stack.pop()
                self._broken(owner, error)
                continue
            if node is None:
                stack.pop()
                continue
            if type(node.value) in _ATOMS or id(node.value) in self._seen:
                continue
            if not self._budget.spend():
                self.is_complete = False
                return
            self._seen[id(node.value)] = node.value
            if not self._visit(node):
                continue
            try:
                stack.append((node, self._children(node)))
            except Exception as error:  # whatever a reducer of the user's raises
                self._fail(node, error)
                continue
            if len(stack) > self.depth:
                self.depth, self.deepest = len(stack), node

    def _broken(self, node: Node, error: Exception) -> None:
        if type(node.value) in (list, dict, set):
            self.is_complete = False  # changed by another thread meanwhile: nothing that pickling would meet again
        else:
            self._fail(node, error)

    def _some(self, items: Iterable[Any], count: int) -> Iterator[tuple[int, Any]]:
        """Numbered elements: all of them, or a sample."""
        if not self._is_sampled or count <= SAMPLE:
            return iter(enumerate(items))
        third, stride = SAMPLE // 3, max(count // (SAMPLE // 3), 1)
        if isinstance(items, (list, tuple)):
            picked = dict.fromkeys(chain(range(third), range(third, count, stride), range(count - third, count)))
            return ((index, items[index]) for index in picked)
        return islice(enumerate(items), SAMPLE)

    def _items(self, node: Node, items: Iterable[Any], count: int, prefix: str = "") -> Iterator[Node]:
        parent = Node(node.value, node, prefix) if prefix else node
        for index, item in self._some(items, count):
            if type(item) not in _ATOMS:
                yield Node(item, parent, ("index", index))

    def _mapping(self, node: Node, pairs: Iterable[tuple[Any, Any]], count: int, prefix: str = "") -> Iterator[Node]:
        parent = Node(node.value, node, prefix) if prefix else node
        for _, (key, item) in self._some(pairs, count):
            if type(key) not in _ATOMS:
                yield Node(key, parent, "<key>")
            if type(item) not in _ATOMS:
                yield Node(item, parent, ("key", key))

    def _children(self, node: Node) -> Iterator[Node]:
        """What pickle would descend into; raises what pickle would raise at this object."""
        value, kind = node.value, type(node.value)
        if kind in (list, tuple):
            return self._items(node, value, len(value))
        if kind is dict:
            # A copy: the user's threads may write to it meanwhile.
            return self._mapping(node, list(value.items()) if len(value) <= SAMPLE else value.items(), len(value))
        if kind in (set, frozenset):
            return (Node(item, node, "<element>") for _, item in self._some(value, len(value)))
        if _is_plain_array(value):
            return iter(())
        reduced = self._reduce(value)
        if isinstance(reduced, str):
            pickle.dumps(value, PROTOCOL)  # by name: raises if there is nothing of that name
            return iter(())
        if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
            raise pickle.PicklingError(
                f"__reduce__ of {kind.__qualname__} gave {type(reduced).__name__}, expected a str or a tuple of 2 to 6"
            )
        function, arguments, *more = reduced
        if not callable(function) or not isinstance(arguments, tuple):
            raise pickle.PicklingError(f"__reduce__ of {kind.__qualname__} gave no callable with a tuple of arguments")
        state, elements, pairs, setter = (*more, None, None, None, None)[:4]
        return chain(
            _one(node, function, _called(function)),
            self._arguments(node, arguments),
            _one(node, setter, ".<setter>") if setter is not None else (),
            self._items(node, elements, SAMPLE + 1) if elements is not None else (),
            self._mapping(node, pairs, SAMPLE + 1) if pairs is not None else (),
            self._state(node, state),
        )

    def _reduce(self, value: Any) -> Any:
        reduced = self._reducer.reducer_override(value)
        if reduced is not NotImplemented:
            return reduced
        kind = type(value)
        if isinstance(value, _GLOBALS):
            return "by name"
        reducer = self._reducer.dispatch_table.get(kind)
        return reducer(value) if reducer is not None else value.__reduce_ex__(PROTOCOL)

    def _arguments(self, node: Node, arguments: tuple[Any, ...]) -> Iterator[Node]:
        """What the object is made from, by the names of its attributes where they have one."""
        value = node.value
        if isinstance(value, types.CellType):
            yield from (Node(item, node, "") for item in arguments)
            return
        if _is_object_array(value):
            return  # its elements are its state
        names: dict[int, str] | None = None
        for index, argument in enumerate(arguments):
            if type(argument) in _ATOMS:
                continue
            if argument is type(value):
                yield Node(argument, node, f".<class {argument.__qualname__}>")
                continue
            if names is None:
                names = {id(item): name for name, item in _attributes(value)}
            name = names.get(id(argument))
            yield Node(argument, node, f".{name}" if name else f".<argument {index}>")

    def _state(self, node: Node, state: Any) -> Iterator[Node]:
        value = node.value
        if isinstance(value, types.FunctionType) and isinstance(state, tuple) and len(state) == 2:
            yield from self._function(node, *state)
        elif isinstance(value, functools.partial) and isinstance(state, tuple) and len(state) == 4:
            function, arguments, keywords, own = state
            yield Node(function, node, ".func")
            yield from self._items(node, arguments, len(arguments), ".args")
            yield from self._mapping(node, keywords.items(), len(keywords), ".keywords")
            yield from self._named(node, own)
        elif _is_object_array(value):
            yield from self._items(node, value.ravel(), value.size)
        elif isinstance(state, tuple) and len(state) == 2 and all(part is None or type(part) is dict for part in state):
            for part in state:
                yield from self._named(node, part)
        elif isinstance(state, dict):
            yield from self._named(node, state)
        elif state is not None:
            name = next((name for name, item in _attributes(value) if item is state), "<state>")
            yield Node(state, node, f".{name}")

    def _named(self, node: Node, attributes: Mapping[Any, Any] | None) -> Iterator[Node]:
        for _, (name, item) in self._some(list((attributes or {}).items()), len(attributes or ())):
            if type(item) not in _ATOMS:
                yield Node(item, node, f".{name}" if isinstance(name, str) else ("key", name))

    def _function(self, node: Node, own: Any, slots: Any) -> Iterator[Node]:
        """A function sent by value: what cloudpickle sends along with it."""
        function: types.FunctionType = node.value
        for name, cell in zip(function.__code__.co_freevars, slots.pop("__closure__", None) or (), strict=False):
            yield Node(cell, node, f".<closure>.{name}")
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = slots.pop("__defaults__", None) or ()
        for name, item in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            yield Node(item, node, f".<default>.{name}")
        for title, part in (("default", "__kwdefaults__"), ("global", "__globals__")):
            for name, item in (slots.pop(part, None) or {}).items():
                yield Node(item, node, f".<{title}>.{name}")
        yield from self._named(node, slots)
        yield from self._named(node, own)


def _one(node: Node, value: Any, step: Step) -> Iterator[Node]:
    yield Node(value, node, step)


def _called(function: Any) -> str:
    return f".<class {function.__qualname__}>" if isinstance(function, type) else ".<callable>"


def _is_object_array(value: object) -> bool:
    dtype = getattr(value, "dtype", None) if type(value).__module__ == "numpy" else None
    return bool(getattr(dtype, "hasobject", False)) and hasattr(value, "ravel")


def _is_plain_array(value: object) -> bool:
    """Numbers only: nothing below them, and much to copy."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__[:2]}
    return bool(names & {"numpy.ndarray", "torch.Tensor"}) and not _is_object_array(value)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Names and values of what an object has, without running code of its class."""
    if isinstance(value, types.CodeType):
        return  # some of its attributes warn when they are looked at, and none is a culprit
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # it has slots only, or is a class
        yield from dict(object.__getattribute__(value, "__dict__")).items()
    if isinstance(value, tuple):
        yield from zip(getattr(type(value), "_fields", ()), value, strict=False)  # a named one
    for base in type(value).__mro__:
        for name, descriptor in list(vars(base).items()):
            if isinstance(descriptor, (types.MemberDescriptorType, types.GetSetDescriptorType)) and name != "__dict__":
                try:
                    yield name, descriptor.__get__(value)
                except Exception:  # a slot that was never filled, or a native getter that refuses
                    continue
