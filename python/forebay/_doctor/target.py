"""Finds the dataset that the command names: `package.module:attribute` or `path/to/file.py:attribute`."""

import importlib
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any


class UsageError(Exception):
    """The command names nothing that could be examined; the text says what, and what to write."""


def find(target: str) -> Any:
    """The dataset; what is callable and no dataset itself is called without arguments."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"expected module:attribute or path/to/file.py:attribute, got {target!r}")
    value: Any = _module(place)
    for part in name.split("."):
        if not hasattr(value, part):
            there = ", ".join(sorted(name for name in vars(value) if not name.startswith("_"))[:12])
            raise UsageError(f"{place} has no {part!r}; it has {there or 'nothing'}")
        value = getattr(value, part)
    if isinstance(value, type) or (callable(value) and not is_dataset(value)):
        value = _call(value, target)
    inner = getattr(value, "dataset", None)
    if hasattr(value, "batch_sampler") and inner is not None:
        value = inner  # a loader: its dataset is what there is to examine
    if not is_dataset(value):
        kind = type(value).__name__
        raise UsageError(f"expected {target} to be a dataset with __getitem__ or __iter__, got a {kind}")
    return value


def is_dataset(value: Any) -> bool:
    """Whether samples can be read from it, by index or by iteration."""
    return hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__")


def is_iterable(dataset: Any) -> bool:
    """Whether it has no indices: torch's `IterableDataset`, or what can only be iterated."""
    is_torchs = any(base.__qualname__ == "IterableDataset" for base in type(dataset).__mro__)
    return is_torchs or not hasattr(type(dataset), "__getitem__")


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            # Only if it is this one: that one of its own imports is missing is a fault of the module.
            if error.name and (place == error.name or place.startswith(f"{error.name}.")):
                raise UsageError(f"there is no module {error.name!r} here ({os.getcwd()})") from None
            raise
    path = os.path.abspath(place)
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    name = os.path.basename(path)[: -len(".py")]
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _call(function: Any, target: str) -> Any:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = ()  # type: ignore[assignment]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in variable]
    if required:
        raise UsageError(
            f"{target} wants arguments ({', '.join(required)}): write a function without any that returns the dataset, "
            "and name that"
        )
    return function()
