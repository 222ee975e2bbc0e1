"""What forebay adds to torch's arguments for Python datasets, checked and completed."""

import math
from dataclasses import dataclass
from typing import Any

from forebay import _contract, _settings, _torch
from forebay._workers import limits
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
    copier: _torch.Copier | None
    snapshot_every: int

    @classmethod
    def of(cls, given: _settings.Settings) -> "Policy":
        """From what was given; refuses what only forebay's own datasets have."""
        _refuse_native(given)
        output = _settings.output_module(given.output)
        if output == "torch":
            _torch.load()
        if given.seed is not None and given.generator is not None:
            raise ConfigError("seed: expected none beside generator, got both")
        if given.device is not None and output != "torch":
            raise ConfigError('device: expected output="torch" beside it, got "numpy"')
        has_own_order = given.sampler is None and given.batch_sampler is None
        return cls(
            on_error=_settings.choice("on_error", given.on_error, "raise", "replace", "skip"),
            max_failures=_settings.max_failures(given.max_failures),
            ledger=_settings.path("ledger", given.ledger),
            deadline_seconds=_deadline_seconds(given.deadline_seconds),
            stall_seconds=_settings.seconds("stall_seconds", given.stall_seconds),
            retries=3 if given.retries is None else _settings.whole("retries", given.retries, bits=32),
            memory_budget=_settings.memory_budget(given.memory_budget),
            max_worker_memory=_settings.memory_budget(given.max_worker_memory, "max_worker_memory"),
            seed=None if given.seed is None else _settings.whole("seed", given.seed, bits=64),
            place=_contract.sharded(given.rank, given.world_size) if has_own_order else None,
            workers=_settings.choice("workers", given.workers, "auto", "processes", "threads"),
            output=output,
            with_ids=bool(given.with_ids),
            copier=None if given.device is None else _torch.Copier(given.device),
            snapshot_every=_settings.whole("snapshot_every_n_steps", given.snapshot_every_n_steps or 0),
        )


def _deadline_seconds(given: Any) -> float | None:
    """That of a sample in a worker; infinite, there is none."""
    is_infinite = isinstance(given, float) and given == math.inf
    told = given if is_infinite else _settings.optional_seconds("deadline_seconds", given)
    return limits.deadline_seconds(told)


def _refuse_native(given: _settings.Settings) -> None:
    """Refuses what a Python dataset has to do itself."""
    allowed = {"decode": ("faithful",), "isolate": ("auto", "never")}
    for name in ("io_threads", "hedge", "max_sample_bytes", "dtype", "memory_format", "decode", "isolate"):
        value = getattr(given, name)
        if value is not None and value not in allowed.get(name, ()):
            raise ConfigError(
                f"{name}: expected none for a Python dataset, got {value!r}",
                hint="it is for forebay's own datasets (ImageFolder, DatasetFolder), which forebay reads itself",
            )
