"""What forebay adds to torch's arguments for Python datasets, checked and completed."""

import math
from dataclasses import dataclass
from typing import Any

from forebay._arrays import torch_arrays
from forebay._options import contract, limits, settings
from forebay.errors import ConfigError


@dataclass(frozen=True)
class Policy:
    """How a loader of a Python dataset deals with failures, waits, memory, seeds and ranks."""

    on_error: str
    max_failures: int | float | None
    ledger: str | None
    deadline_seconds: float | None
    stall_seconds: float
    retries: int
    memory_budget: int | None
    max_worker_memory: int | None
    seed: int | None
    # (rank, world size) where the dataset is divided.
    place: tuple[int, int] | None
    workers: str
    output: str
    with_ids: bool
    copier: torch_arrays.Copier | None
    snapshot_every: int

    @classmethod
    def of(cls, given: settings.Settings) -> "Policy":
        """From what was given; refuses what only forebay's own datasets have."""
        _refuse_native(given)
        output = settings.output_module(given.output)
        if output == "torch":
            torch_arrays.load()
        if given.seed is not None and given.generator is not None:
            raise ConfigError("seed: expected none beside generator, got both")
        if given.device is not None and output != "torch":
            raise ConfigError('device: expected output="torch" beside it, got "numpy"')
        has_own_order = given.sampler is None and given.batch_sampler is None
        return cls(
            on_error=settings.choice("on_error", given.on_error, "raise", "replace", "skip"),
            max_failures=settings.max_failures(given.max_failures),
            ledger=settings.path("ledger", given.ledger),
            deadline_seconds=_deadline_seconds(given.deadline_seconds),
            stall_seconds=settings.seconds("stall_seconds", given.stall_seconds),
            retries=3 if given.retries is None else settings.whole("retries", given.retries, bits=32),
            memory_budget=settings.memory_budget(given.memory_budget),
            max_worker_memory=settings.memory_budget(given.max_worker_memory, "max_worker_memory"),
            seed=None if given.seed is None else settings.whole("seed", given.seed, bits=64),
            place=contract.sharded(given.rank, given.world_size) if has_own_order else None,
            workers=settings.choice("workers", given.workers, "auto", "processes", "threads"),
            output=output,
            with_ids=bool(given.with_ids),
            copier=None if given.device is None else torch_arrays.Copier(given.device),
            snapshot_every=settings.whole("snapshot_every_n_steps", given.snapshot_every_n_steps or 0),
        )


def _deadline_seconds(given: Any) -> float | None:
    """The deadline of a sample in a worker; `None` if it is infinite."""
    is_infinite = isinstance(given, float) and given == math.inf
    told = given if is_infinite else settings.optional_seconds("deadline_seconds", given)
    return limits.deadline_seconds(told)


def _refuse_native(given: settings.Settings) -> None:
    """Refuses what a Python dataset has to do itself."""
    allowed = {"decode": ("faithful",), "isolate": ("auto", "never"), "pad_value": (0,)}
    names = (
        "io_threads",
        "hedge",
        "max_sample_bytes",
        "dtype",
        "memory_format",
        "decode",
        "ragged",
        "pad_value",
        "isolate",
        "shuffle_window",
    )
    if given.shuffle in ("window", "auto"):
        raise ConfigError(f"shuffle: expected a truth value for a Python dataset, got {given.shuffle!r}")
    for name in names:
        value = getattr(given, name)
        if value is not None and value not in allowed.get(name, ()):
            raise ConfigError(
                f"{name}: expected none for a Python dataset, got {value!r}",
                hint="it is for forebay's own datasets (ImageFolder, DatasetFolder), which forebay reads itself",
            )
