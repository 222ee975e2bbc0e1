"""Samples that are `None` or hold it, so that no batch can be made of them: most often a transform lacks a `return`."""

import os
from collections.abc import Mapping
from typing import Any

from forebay._arrays.python_values import name_of


def found(samples: Any, indices: Any, dataset: Any) -> str | None:
    """Which sample of a batch that cannot be collated it is, with its file and its transform where they are known."""
    if not isinstance(samples, (list, tuple)):
        return None
    for position, sample in enumerate(samples):
        if (place := _place(sample)) is None:
            continue
        index = indices[position] if isinstance(indices, (list, tuple)) and len(indices) == len(samples) else None
        base, at = _below(dataset, index)
        what = f"sample {position} of it" if index is None else f"sample {index!r}"
        what += f"{_file(base, at)} is None" if not place else f"{_file(base, at)} has None at {place}"
        return f"forebay: {what}, which no batch can be made of{_transform(base)}"
    return None


def _place(value: Any) -> str | None:
    """Where in a sample the first `None` is: "" for all of it, `None` for nowhere."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        return None
    return next((f"[{name!r}]{place}" for name, part in parts if (place := _place(part)) is not None), None)


def _below(dataset: Any, index: Any) -> tuple[Any, Any]:
    """The dataset under any number of torch's `Subset`s, and the index there."""
    while isinstance(chosen := getattr(dataset, "indices", None), (list, tuple)) and hasattr(dataset, "dataset"):
        try:
            index = chosen[index]
        except (TypeError, IndexError):
            index = None
        dataset = dataset.dataset
    return dataset, index


def _file(dataset: Any, index: Any) -> str:
    """The path that a dataset has for an index in a list of (path, label), as torchvision's have it."""
    known = getattr(dataset, "samples", None)
    try:
        path = known[index][0] if isinstance(known, (list, tuple)) else None
    except (TypeError, IndexError, KeyError):
        path = None
    return f' ("{os.fsdecode(path)}")' if isinstance(path, (str, bytes, os.PathLike)) else ""


def _transform(dataset: Any) -> str:
    transform = getattr(dataset, "transform", None)
    if transform is None:
        return ""
    parts = getattr(transform, "transforms", None)
    names = list(map(name_of, parts)) if isinstance(parts, (list, tuple)) else [name_of(transform)]
    return f"; its transform is {', then '.join(names)}: does each return its result?"
