"""Which function makes a batch of samples."""

from collections.abc import Callable, Mapping
from typing import Any

from forebay._arrays import numpy_arrays, torch_data
from forebay._python.workers.job import Job


def chosen(job: Job) -> Callable[[Any], Any]:
    """The user's own, or torch's default, or the same with arrays where torch is not wanted."""
    if job.collate_fn is not None:
        return job.collate_fn
    if job.output == "torch":
        return torch_data.default_collate if job.is_batched else torch_data.default_convert
    return arrays if job.is_batched else _same


def _same(value: Any) -> Any:
    return value


def arrays(samples: list[Any]) -> Any:
    """What torch's `default_collate` does, with arrays in place of tensors."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: arrays([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(arrays(list(column)) for column in zip(*samples, strict=True)))
    if isinstance(first, (list, tuple)):
        if any(len(sample) != len(first) for sample in samples):
            raise RuntimeError("each element in list of batch should be of equal size")
        return [arrays(list(column)) for column in zip(*samples, strict=True)]
    return numpy_arrays.collate(samples)
