"""Pickling problems explained: what of a dataset, a function or a sample cannot be sent, why, and what to change.

`dumps` is cloudpickle with a better error. `handles` names what is tied to this process before anything is sent.
"""

import functools
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from forebay._pickling import handles as _handles
from forebay._pickling.handles import Kind
from forebay._pickling.walk import PROTOCOL, Budget, Node, Walk
from forebay.errors import ConfigError

# Before the first batch the search must take no noticeable time; after a failure it may take longer.
_LOOK = (20_000, 0.25)
_SEARCH = ((200_000, 2.0), (5_000_000, 8.0))
_MAX_FINDINGS = 50
# pickle gives up at some hundred levels of objects in objects.
_DEEP = 200


class UnsendableError(ConfigError, TypeError, pickle.PicklingError):
    """Something cannot be sent to or from a worker; `findings` has everything in it that cannot."""

    findings: list["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that is tied to the process that made it."""

    path: str
    """Where it is: `dataset.transform.fn.<closure>.lock`."""
    what: str
    """What it is: `_thread.lock`, `BufferedReader on data/a.bin`."""
    kind: str
    """`file`, `lock`, `generator`, `database connection` … or `unpicklable`."""
    why: str
    """What it would do in a worker."""
    change: str
    """What to change; several lines where it is code."""
    blocks: bool
    """Whether nothing can be sent because of it; otherwise it is sent, and is something else there."""
    count: int = 1
    """How many of the kind are at the same place, such as the elements of a list."""

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more there)" if self.count > 1 else ""
        return f"{self.path} → {self.what}{more}"


def dumps(
    value: object,
    root: str,
    *,
    index: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes:
    """The bytes to send; `root` is what the value is called in the error, `index` the sample it comes from.

    >>> import threading
    >>> dumps({"image": threading.Lock()}, "sample", index=7)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    UnsendableError: sample 7 cannot be sent from its worker: sample["image"] → _thread.lock
    """
    try:
        return bytes(cloudpickle.dumps(value, PROTOCOL, buffer_callback))
    except MemoryError:
        raise
    except Exception as error:  # a reducer of the user's may raise anything
        raise explain(value, root, error, index=index) from error


def explain(value: object, root: str, error: BaseException, *, index: int | None = None) -> UnsendableError:
    """The error to raise in place of the one that pickling gave."""
    search = _find(value, root, _is_recursion(error))
    is_sample = _is_sample(root)
    name = root if index is None else f"{root} {index}"
    head = f"{name} cannot be sent {'from its' if is_sample else 'to a'} worker"
    cause = f"{type(error).__name__}: {_first_line(error)}"
    blocking = [finding for finding in search.findings if finding.blocks]
    if _is_recursion(error) and search.depth > _DEEP:
        assert search.deepest is not None, "a nested value has a deepest level"
        message = f"{head}: it is nested too deep for pickle: {search.deepest.path()} → …"
        hint = "keep elements that refer to each other in a list, by index; or give the class a __getstate__ that does"
        detail = cause
    elif blocking:
        message, hint = f"{head}: {blocking[0]}", f"{blocking[0].why}; {blocking[0].change}"
        others = f"; also {', '.join(map(str, blocking[1:4]))}" if blocking[1:] else ""
        rest = f" and {len(blocking) - 4} more" if len(blocking) > 4 else ""
        detail = f"{cause}{others}{rest}"
    else:
        message = f"{head}: {cause}"
        seen = "everything in it" if search.is_complete else "a part of it, within some seconds,"
        detail = f"{seen} was looked at one by one, and could be pickled"
        hint = f"take parts out of the {root} until `cloudpickle.dumps` accepts it: the last one is the culprit"
    told = UnsendableError(message, index=index, stage="send", hint=hint, detail=detail)
    told.findings = search.findings
    return told


def handles(value: object, root: str = "dataset") -> list[Finding]:
    """Files, locks, connections and their like that would be sent with a value; a quick look, not at every element.

    What a `__getstate__` leaves out is not there: that is how it should be.

    >>> class Lines:
    ...     def __init__(self, path):
    ...         self.file = open(path, "rb")
    >>> lines = Lines("/dev/null")
    >>> [(finding.path, finding.what) for finding in handles(lines)]
    [('dataset.file', 'BufferedReader on /dev/null')]
    >>> lines.file.close()
    """
    search = _Search(root)
    search.run(value, Budget(*_LOOK), is_sampled=True)
    return search.findings


def _find(value: object, root: str, is_recursion: bool) -> "_Search":
    """The obstacles to pickling: first in samples of large values, then everywhere."""
    search = _Search(root)
    for is_sampled, limits in zip((True, False), _SEARCH, strict=True):
        search = _Search(root)
        search.run(value, Budget(*limits), is_sampled)
        if any(finding.blocks for finding in search.findings) or (is_recursion and search.depth > _DEEP):
            break
    return search


class _Search:
    """Collects what is found on a walk."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._found: dict[tuple[str, str], Finding] = {}
        self._told: set[int] = set()
        self.deepest: Node | None = None
        self.depth = 0
        self.is_complete = True

    @property
    def findings(self) -> list[Finding]:
        return list(self._found.values())

    def run(self, value: object, budget: Budget, is_sampled: bool) -> None:
        walk = Walk(self._visit, self._fail, budget, is_sampled)
        walk.run(value, self._root)
        self.deepest, self.depth = walk.deepest, walk.depth
        self.is_complete = walk.is_complete and not is_sampled

    def _visit(self, node: Node) -> bool:
        recognised = _handles.known(node.value)
        if recognised is None or not recognised[1]:
            return True
        self._tell(node, recognised[0], not recognised[0].is_sent)
        return False

    def _fail(self, node: Node, error: Exception) -> None:
        # The outermost thing with a name: of a queue it is not its lock that the user knows about.
        for above in reversed(list(node.line())):
            if recognised := _handles.known(above.value):
                self._tell(above, recognised[0], blocks=True, error=error)
                return
        self._tell(node, None, blocks=True, error=error)

    def _tell(self, node: Node, kind: Kind | None, blocks: bool, error: Exception | None = None) -> None:
        if id(node.value) in self._told:
            return
        self._told.add(id(node.value))
        same = (node.pattern(), type(node.value).__qualname__)
        if before := self._found.get(same):
            self._found[same] = Finding(**{**vars(before), "count": before.count + 1})
        elif len(self._found) < _MAX_FINDINGS:
            what = _handles.describe(node.value)
            if kind is None:
                why, change = _refusal(node.value, error), _unknown_change(node, self._root)
                finding = Finding(node.path(), what, "unpicklable", why, change, blocks)
            else:
                why = kind.why.format(what=what, size=_handles.size(node.value))
                finding = Finding(node.path(), what, kind.name, why, _change(node, kind, self._root), blocks)
            self._found[same] = finding


def _refusal(value: object, error: Exception | None) -> str:
    told = f"{type(error).__name__}: {_first_line(error)}" if error is not None else "it cannot be pickled"
    return f"{type(value).__qualname__} refused to be pickled ({told})"


def _change(node: Node, kind: Kind, root: str) -> str:
    """The change to make, in the names of the user's own code."""
    if _is_sample(root):
        return kind.instead
    if kind.name == "random generator":
        return (
            "draw from `random`, `numpy.random` or `torch`, which differ in each worker, or make it in the worker:\n"
            + (_lazy(node, kind) or f"      {kind.make}")
        )
    if kind.name == "multiprocessing object":
        return (
            "make it with `multiprocessing.get_context('spawn')` before the loader is made; or use "
            "`workers='threads'`, where all is shared anyway"
        )
    if owner := _function_above(node):
        name, where, function = owner
        return (
            f"{name} is a {where} of {_handles.describe(function)}, and goes where the function goes: make it inside "
            "the function, when it is first called there, or move the function to a module that workers import"
        )
    if kind.name == "generator":
        return "keep what makes the generator (its function and arguments), and call it in the worker; or a list of it"
    lazy = _lazy(node, kind)
    is_open = _handles.is_open_handle(node.value)
    if lazy is None:
        where = _handles.lazily() if is_open else "make it in the worker, when it is first used"
        return f"{where}: {_make(node, kind)}"
    if is_open:
        return f"{_handles.lazily(_method(node))}; as one for each worker process:\n{lazy}"
    return f"keep what it is made from, and make it in the worker, when it is first used:\n{lazy}"


def _lazy(node: Node, kind: Kind) -> str | None:
    """The pattern, as code for the class that holds it."""
    attribute = node.attribute()
    if attribute is None or attribute.parent is None:
        return None
    owner, name = type(attribute.parent.value), str(attribute.step)[1:]
    called = _method(node)
    arguments = {"__getitem__": "self, index", "__iter__": "self"}.get(called, "self, …")
    made = _make(node, kind) if attribute is node else f"[{(kind.make or '…').format(path='path')} for path in …]"
    lines = (
        f"class {owner.__qualname__.rpartition('.')[2]}:",
        f"    def __init__(self, …):        # self.{name} = None, and no {kind.name} yet",
        "    def __getstate__(self):       # what is sent to a worker",
        f'        return self.__dict__ | {{"{name}": None}}',
        f"    def {called}({arguments}):",
        f"        if self.{name} is None:",
        f"            self.{name} = {made}",
    )
    return "\n".join(f"      {line}" for line in lines)


def _method(node: Node) -> str:
    """The method in which the class that holds it will use it."""
    attribute = node.attribute()
    owner = type(attribute.parent.value) if attribute is not None and attribute.parent is not None else object
    methods = {name for base in owner.__mro__ for name in vars(base)}
    return next((name for name in ("__getitem__", "__iter__", "__call__") if name in methods), "__getitem__")


def _make(node: Node, kind: Kind) -> str:
    where = _handles.place(node.value)
    return (kind.make or "…").format(path=repr(where) if where else "path")


def _function_above(node: Node) -> tuple[str, str, object] | None:
    """Its name, what it is to a function, and the function: from around it, a global, a default, a bound argument."""
    words = {"closure": "variable from around", "default": "default argument", "global": "global"}
    above: Node | None = node
    while above is not None and above.parent is not None:
        function = above.parent.value
        if isinstance(function, types.FunctionType) and isinstance(above.step, str):
            where, _, name = above.step[2:].partition(">.")
            return (name, words[where], function) if where in words else None
        if isinstance(function, functools.partial):
            return node.path().rpartition(".")[2], "bound argument", function.func
        if type(function) not in (types.CellType, list, tuple, dict):
            return None
        above = above.parent
    return None


def _unknown_change(node: Node, root: str) -> str:
    if _is_sample(root):
        return "return plain data in its place: bytes, numbers, strings, arrays, tensors, and containers of them"
    holder = node.attribute()
    what = f"`{str(holder.step)[1:]}`" if holder is not None else "it"
    return f"give the class a __getstate__ that leaves {what} out of what is sent, and make it anew in the worker"


def _is_sample(root: str) -> bool:
    return root.startswith(("sample", "batch"))


def _is_recursion(error: BaseException) -> bool:
    return isinstance(error, RecursionError) or "recursion" in str(error)


def _first_line(error: BaseException | None) -> str:
    try:
        return str(error).partition("\n")[0]
    except Exception:  # an exception's own __str__ may raise, too
        return f"(its text raises, too: {type(error).__qualname__})"
