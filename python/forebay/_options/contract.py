"""Torch's rules for the arguments of a loader of Python datasets: its defaults, its checks in its order, its words."""

import operator
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay._arrays import torch_arrays, torch_data
from forebay._forebay import available_cpus
from forebay._options import samplers, settings
from forebay._record import notices
from forebay.errors import ConfigError
from forebay.samplers import NativeSampler


@dataclass(frozen=True)
class Contract:
    """What a loader shows of its arguments, as torch's does."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    timeout: float
    prefetch_factor: int | None
    persistent_workers: bool
    generator: Any
    multiprocessing_context: Any
    is_iterable: bool
    # Whether the order is of the loader's making: then a batch sampler over it is, too.
    is_own_order: bool
    is_own_batches: bool


def check_workers(
    num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool
) -> tuple[int, float, int | None]:
    """(workers, timeout, batches ahead for each worker)."""
    count = 0 if num_workers is None else _whole("num_workers", num_workers)
    if count < 0:
        raise ConfigError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ConfigError(f"timeout: expected a number of seconds, got {timeout!r}")
    if timeout < 0:
        raise ConfigError("timeout option should be non-negative")
    if count == 0 and prefetch_factor is not None:
        raise ConfigError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if count > 0 and prefetch_factor is None:
        prefetch_factor = 2
    elif prefetch_factor is not None and _whole("prefetch_factor", prefetch_factor) < 0:
        raise ConfigError("prefetch_factor option should be non-negative")
    if persistent_workers and count == 0:
        raise ConfigError("persistent_workers option needs num_workers > 0")
    return count, timeout, None if prefetch_factor is None else operator.index(prefetch_factor)


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: expected a whole number, got {value!r}") from None


def check_dataset(dataset: Any) -> None:
    """Refuses what can be no dataset, whatever its methods."""
    if dataset is None or isinstance(dataset, (str, bytes, os.PathLike)):
        raise ConfigError(
            "dataset: expected a forebay.ImageFolder or forebay.DatasetFolder, or an object with __getitem__ and "
            f"__len__ or with __iter__, got {dataset!r}"
        )


def is_iterable(dataset: Any) -> bool:
    """Torch's rule, and besides it whatever can only be iterated."""
    has_items = hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")
    return torch_data.is_iterable(dataset) or (hasattr(type(dataset), "__iter__") and not has_items)


def check_context(value: Any, num_workers: int) -> Any:
    """Checks `multiprocessing_context`, and shows it as torch does. It has no effect: this process is never forked."""
    if value is None:
        return None
    if num_workers <= 0:
        raise ConfigError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    try:
        return torch_data.start_method_context(value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def sign(given: settings.Settings, *, wants_torch: bool, place: tuple[int, int] | None, seed: int | None) -> Contract:
    """Checks the arguments as torch does, and completes them."""
    count, timeout, prefetch_factor = check_workers(
        given.num_workers, given.timeout, given.prefetch_factor, given.persistent_workers
    )
    context = check_context(given.multiprocessing_context, count)
    dataset, sampler, batch_sampler, collate_fn = given.dataset, given.sampler, given.batch_sampler, given.collate_fn
    batch_size, drop_last = given.batch_size, given.drop_last
    check_dataset(dataset)
    iterable = is_iterable(dataset)
    if iterable:
        _check_iterable(dataset, given.shuffle, sampler, batch_sampler)
    shuffle = bool(given.shuffle)
    if isinstance(sampler, NativeSampler):
        iter(sampler)  # raises: it is for forebay's own datasets
    if sampler is not None and shuffle:
        raise ConfigError("sampler option is mutually exclusive with shuffle")
    is_own_order = sampler is None and batch_sampler is None
    is_own_batches = batch_sampler is None
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ConfigError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
        batch_size, drop_last = None, False
    elif batch_size is None and drop_last:
        raise ConfigError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
    if batch_size is not None:
        _check_batch_size(batch_size, drop_last)
    if sampler is None:
        sampler = _sampler(dataset, iterable, shuffle, given.generator, wants_torch, place, bool(drop_last), seed)
    if batch_size is not None and batch_sampler is None:
        make = torch_data.batches if wants_torch else samplers.BatchSampler
        batch_sampler = make(sampler, batch_size, bool(drop_last))
    if collate_fn is None and wants_torch:
        collate_fn = torch_data.collate_function(is_batched=batch_sampler is not None)
    return Contract(
        dataset=dataset,
        batch_size=batch_size,
        sampler=sampler,
        batch_sampler=batch_sampler,
        num_workers=count,
        collate_fn=collate_fn,
        drop_last=drop_last,
        timeout=timeout,
        prefetch_factor=prefetch_factor,
        persistent_workers=given.persistent_workers,
        generator=given.generator,
        multiprocessing_context=context,
        is_iterable=iterable,
        is_own_order=is_own_order,
        is_own_batches=is_own_batches,
    )


def _check_iterable(dataset: Any, shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    if shuffle not in (False, None) and not torch_data.is_pipe(dataset):
        raise ConfigError(
            f"DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle={shuffle}",
            hint="the dataset itself decides its order: shuffle inside its __iter__",
        )
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None:
            raise ConfigError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}",
                hint="an iterable dataset has no indices: choose samples inside its __iter__",
            )


def _check_batch_size(batch_size: Any, drop_last: Any) -> None:
    """As torch's `BatchSampler` does."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
        raise ConfigError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
    if not isinstance(drop_last, bool):
        raise ConfigError(f"drop_last should be a boolean value, but got drop_last={drop_last}")


def _sampler(
    dataset: Any,
    iterable: bool,
    shuffle: bool,
    generator: Any,
    wants_torch: bool,
    place: tuple[int, int] | None,
    drop_last: bool,
    seed: int | None,
) -> Any:
    if iterable:
        return torch_data.endless() if wants_torch else samplers.EndlessSampler()
    if place is not None:
        fields = {"num_replicas": place[1], "rank": place[0], "shuffle": shuffle, "drop_last": drop_last}
        return torch_data.distributed_sampler(dataset, seed=seed or 0, **fields)
    if not wants_torch:
        return samplers.RandomSampler(dataset) if shuffle else samplers.SequentialSampler(dataset)
    return torch_data.shuffled(dataset, generator) if shuffle else torch_data.sequential(dataset)


def say_too_many(num_workers: int, kind: str) -> None:
    """Torch's warning, for the same reason."""
    cpus = available_cpus() if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
    if num_workers > cpus:
        warnings.warn(
            f"This DataLoader will create {num_workers} worker {kind} in total. Our suggested max number of worker in "
            f"current system is {cpus}, which is smaller than what this DataLoader is going to create. Please be aware "
            "that excessive worker creation might get DataLoader running slow or even freeze, lower the worker number "
            "to avoid potential slowness/freeze if necessary.",
            UserWarning,
            stacklevel=notices.users_level(),
        )


def sharded(rank: Any, world_size: Any) -> tuple[int, int] | None:
    """(rank, world size) where the user wants the dataset divided; torch does not divide by itself."""
    if rank is None and world_size is None:
        return None
    place = settings.place(rank, world_size)
    if place[0] >= place[1]:
        raise ConfigError(f"rank: expected one below world_size={place[1]}, got {place[0]}")
    return place if place[1] > 1 else None


def rank() -> int:
    """Of this process, where there are several: told with each failure."""
    found = torch_arrays.distributed()
    if found is None:
        text = os.environ.get("RANK", "")
        return int(text) if text.isdecimal() else 0
    return found[0]


def world_size() -> int:
    found = torch_arrays.distributed()
    if found is None:
        text = os.environ.get("WORLD_SIZE", "")
        return int(text) if text.isdecimal() else 1
    return found[1]
