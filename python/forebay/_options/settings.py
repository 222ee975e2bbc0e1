"""The settings of a loader: torch's rules and messages first, then what the engine takes, in its own units.

Everything is checked here or in the engine's constructor, before any thread starts.
"""

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsIndex

from forebay._arrays import torch_arrays
from forebay._forebay import Pipeline, available_cpus
from forebay.errors import ConfigError

# Batches prepared ahead when nothing is said: as few as keep storage and threads busy, because they are most of the
# memory that a loader takes. On two threads two batches of 64 are as fast as four.
FEW_BATCHES, MANY_BATCHES = 2, 4
SAMPLES_AHEAD, SAMPLES_A_THREAD = 128, 16
MAX_PREFETCH_BATCHES = 64
REMOTE_SAMPLES = 512
# Longer than any run, and safe in every unit of time.
MAX_SECONDS = 1e9

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}


@dataclass(frozen=True)
class Settings:
    """The arguments of a `DataLoader`, as they were given."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | str | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int | None
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    on_error: str
    max_failures: int | float | None
    ledger: str | os.PathLike[str] | None
    deadline_seconds: float | None
    stall_seconds: float
    retries: int | None
    memory_budget: int | str | None
    max_sample_bytes: int | str | None
    seed: int | None
    rank: int | None
    world_size: int | None
    shuffle_window: int | None
    workers: str
    output: str | None
    io_threads: int | None
    with_ids: bool
    isolate: str
    hedge: float | str | None
    max_lost_threads: int
    device: Any
    dtype: Any
    memory_format: Any
    decode: str
    ragged: str | None
    pad_value: float
    max_worker_memory: int | str | None
    snapshot_every_n_steps: int | None


@dataclass(frozen=True)
class Order:
    """How samples are ordered and batched; torch's arguments, after torch's rules."""

    batch_size: int | None
    shuffle: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool

    def __post_init__(self) -> None:
        if self.sampler is not None and self.shuffle:
            raise ConfigError("sampler option is mutually exclusive with shuffle")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ConfigError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
        elif self.batch_size is None and self.drop_last:
            raise ConfigError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, least=1)
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if value is not None and not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
                raise ConfigError(f"{name}: expected an iterable of indices, got {value!r}")

    @property
    def is_given(self) -> bool:
        """Whether the user brings the order."""
        return self.sampler is not None or self.batch_sampler is not None


# Blocks that are mixed with each other where nothing is said. Not measured: of a megabyte each, so many stay in memory.
SHUFFLE_WINDOW = 16


def shuffle_window(given: Settings, block_count: int | None, is_slow: bool) -> int | None:
    """How many blocks are mixed at a time; `None` for a shuffle of everything, or none."""
    window = given.shuffle_window
    if isinstance(given.shuffle, str):
        choice("shuffle", given.shuffle, "global", "window", "auto")
    if given.shuffle == "auto":
        # By the kind of storage, and not by the time of a read: all ranks, and a resumed run, need the same order.
        return (window or SHUFFLE_WINDOW) if is_slow and block_count is not None else None
    if given.shuffle != "window":
        if window is not None:
            beside = f'shuffle="window" or "auto" beside it, got {given.shuffle!r}'
            raise ConfigError(f"shuffle_window: expected {beside}")
        return None
    if block_count is None:
        raise ConfigError(
            'shuffle: expected a dataset whose samples lie in blocks for "window"',
            hint="files of lines, records and shards are such blocks; other datasets are shuffled as a whole",
        )
    return whole("shuffle_window", SHUFFLE_WINDOW if window is None else window, least=1)


@dataclass(frozen=True)
class Form:
    """What batches are made of, where it is not what the transforms make: their type, where their channels lie, and how
    much detail of a picture they are made from."""

    dtype: str | None
    is_channels_last: bool
    is_fast: bool

    @classmethod
    def of(cls, dtype: Any, memory_format: Any, decode: Any, wants_torch: bool) -> "Form":
        name = None if dtype is None else named("dtype", dtype, _DTYPES)
        order = "contiguous" if memory_format is None else named("memory_format", memory_format, _MEMORY_FORMATS)
        if name == "bfloat16" and not wants_torch:
            raise ConfigError(
                'dtype: expected one that NumPy has, got "bfloat16"',
                hint='use output="torch", or dtype="float16" or "float32"',
            )
        is_fast = choice("decode", decode, "faithful", "fast") == "fast"
        return cls(name, order == "channels_last", is_fast)

    @property
    def is_given(self) -> bool:
        """Whether another type or order is asked for."""
        return self.dtype is not None or self.is_channels_last

    def applied(self, pipeline: Pipeline) -> Pipeline:
        """Transforms whose samples are written so."""
        if not self.is_given and not self.is_fast:
            return pipeline
        return pipeline.with_output(self.dtype, self.is_channels_last, self.is_fast)


@dataclass(frozen=True)
class Ragged:
    """How arrays of different shapes are batched."""

    kind: str | None
    pad_value: float

    @classmethod
    def of(cls, ragged: Any, pad_value: Any) -> "Ragged":
        kind = None if ragged is None else choice("ragged", ragged, "list", "pad", "nested")
        if kind != "pad" and pad_value != 0:
            raise ConfigError(f'pad_value: expected ragged="pad" beside it, got {pad_value!r} alone')
        if isinstance(pad_value, bool) or not isinstance(pad_value, int | float):
            raise ConfigError(f"pad_value: expected a number, got {pad_value!r}")
        return cls(kind, pad_value)


# By their names in torch and NumPy; torch is not imported for them.
_DTYPES = {name: name for name in ("float32", "float16", "bfloat16", "uint8")} | {"float": "float32", "half": "float16"}
_MEMORY_FORMATS = {"contiguous": "contiguous", "contiguous_format": "contiguous", "channels_last": "channels_last"}


def names(argument: str, given: Any) -> tuple[str, ...]:
    """A name, or several, all different."""
    listed = (given,) if isinstance(given, str) else tuple(given)
    if not listed or not all(isinstance(name, str) for name in listed) or len(set(listed)) != len(listed):
        raise ConfigError(f"{argument}: expected names that differ, got {given!r}")
    return listed


def named(name: str, value: Any, names: dict[str, str]) -> str:
    """One of some names, or an object of torch's or NumPy's that goes by it."""
    told = getattr(value, "__name__", None) or str(value).removeprefix("torch.")
    if told not in names:
        expected = ", ".join(f'"{item}"' for item in dict.fromkeys(names.values()))
        raise ConfigError(f"{name}: expected one of {expected}, or torch's own, got {value!r}")
    return names[told]


def whole(name: str, value: Any, least: int = 0, bits: int = 63) -> int:
    """A whole number of at least `least` and below 2**`bits`: what the engine can hold."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}: expected a whole number, got {value!r}") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    if number < least:
        raise ConfigError(f"{name}: expected at least {least}, got {value!r}")
    if number >= 2**bits:
        raise ConfigError(f"{name}: expected one below 2**{bits}, got {value!r}")
    return number


def number(name: str, value: Any, least: float = 0.0, most: float = sys.float_info.max) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        expected = f"{least:g} or more" if most == sys.float_info.max else f"{least:g} to {most:g}"
        raise ConfigError(f"{name}: expected a number of {expected}, got {value!r}")
    return float(value)


def choice(name: str, value: Any, *choices: str) -> str:
    if value not in choices:
        expected = ", ".join(f'"{item}"' for item in choices)
        raise ConfigError(f"{name}: expected one of {expected}, got {value!r}")
    return str(value)


def check_workers(num_workers: Any, prefetch_factor: Any, persistent_workers: bool, timeout: Any) -> int:
    """The number of CPU threads."""
    if num_workers is not None and whole("num_workers", num_workers, least=-(2**62)) < 0:
        raise ConfigError("num_workers option should be non-negative; use num_workers=0 for one thread.")
    if number("timeout", timeout, least=-math.inf) < 0:
        raise ConfigError("timeout option should be non-negative")
    if prefetch_factor is not None:
        if num_workers == 0:
            raise ConfigError("prefetch_factor option needs num_workers > 0, otherwise set prefetch_factor to None.")
        if whole("prefetch_factor", prefetch_factor, least=-(2**62)) < 0:
            raise ConfigError("prefetch_factor option should be non-negative")
    if persistent_workers and num_workers == 0:
        raise ConfigError("persistent_workers option needs num_workers > 0")
    return available_cpus() if num_workers is None else max(1, int(num_workers))


def prefetch_batches(prefetch_factor: SupportsIndex | None, cpu_threads: int, batch_size: int, is_remote: bool) -> int:
    """Torch counts per worker; here all threads share one line of batches."""
    if prefetch_factor is None:
        samples = max(SAMPLES_AHEAD, SAMPLES_A_THREAD * cpu_threads)
        wanted = min(MANY_BATCHES, math.ceil(samples / batch_size))
        # Where a read takes many milliseconds, hundreds have to be under way at a time, whatever the batch.
        remote = math.ceil(REMOTE_SAMPLES / batch_size) if is_remote else 0
        return min(MAX_PREFETCH_BATCHES, max(FEW_BATCHES, wanted, remote))
    return min(MAX_PREFETCH_BATCHES, max(2, operator.index(prefetch_factor) * cpu_threads))


def seconds(name: str, value: Any, most: float = sys.float_info.max) -> float:
    if number(name, value, most=most) == 0:
        raise ConfigError(f"{name}: expected more than 0, got 0")
    return float(value)


def optional_seconds(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value, most=MAX_SECONDS)


# However long a wait gets, a word is said about it this often.
_MAX_SILENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Patience:
    """How long a batch is waited for: until a word is said about it, and until it is an error."""

    stall_seconds: float
    timeout_seconds: float

    @classmethod
    def of(cls, stall_seconds: Any, timeout: float) -> "Patience":
        return cls(seconds("stall_seconds", stall_seconds), float(timeout) or math.inf)

    def until_told(self, waited: float) -> float:
        """How long to wait on, after having waited this long: as long again, but not for hours."""
        again = max(self.stall_seconds, min(waited, _MAX_SILENCE_SECONDS))
        return min(again, self.timeout_seconds - waited)


def memory_budget(value: Any, name: str = "memory_budget") -> int | None:
    """Bytes, from a number or from text like "8GiB" or "512 MB"."""
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", value.lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(f'{name}: expected bytes or text like "8GiB" or "512MB", got {value!r}')
        bytes_ = float(match[1]) * _UNITS[match[2]]
        if bytes_ >= 2**63:
            raise ConfigError(f"{name}: expected one below 2**63 bytes, got {value!r}")
        value = int(bytes_)
    return whole(name, value, least=1)


def max_failures(value: Any) -> int | float | None:
    """A whole number is a count, a float a fraction."""
    if value is None:
        return None
    is_fraction = isinstance(value, float)
    if isinstance(value, bool) or (not 0 <= value <= 1 if is_fraction else not hasattr(value, "__index__")):
        raise ConfigError(f"max_failures: expected a whole number, a fraction from 0 to 1, or None, got {value!r}")
    return float(value) if is_fraction else whole("max_failures", value)


def seed(value: Any, generator: Any) -> int:
    if generator is None:
        number = 0 if value is None else whole("seed", value, bits=64)
    elif value is not None:
        raise ConfigError("seed: expected none beside generator, got both")
    elif hasattr(generator, "initial_seed"):
        number = int(generator.initial_seed()) % 2**64
    else:
        raise ConfigError(f"generator: expected a torch.Generator, got {generator!r}")
    return number


def place(rank: Any, world_size: Any) -> tuple[int, int]:
    """(rank, world size): as given, else torch.distributed's if it is in use, else the launcher's environment."""
    if rank is None or world_size is None:
        found = torch_arrays.distributed() or _launched()
        is_one_of_many = world_size is not None and whole("world_size", world_size, least=1, bits=32) > 1
        if found is None and rank is None and is_one_of_many:
            raise ConfigError(
                f"rank: expected one beside world_size={world_size!r}, got none",
                hint="pass rank=, or construct the loader after torch.distributed.init_process_group",
            )
        found = found or (0, 1)
        rank, world_size = found[0] if rank is None else rank, found[1] if world_size is None else world_size
    return whole("rank", rank, bits=32), whole("world_size", world_size, least=1, bits=32)


def _launched() -> tuple[int, int] | None:
    if not os.environ.get("WORLD_SIZE"):
        return None
    numbers = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not text.isdecimal():
            raise ConfigError(
                f"{name}: expected a whole number in the environment beside WORLD_SIZE, got {text!r}",
                hint="pass rank= and world_size=, or start the ranks with torchrun",
            )
        numbers.append(int(text))
    return numbers[0], numbers[1]


def path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        return os.path.expanduser(os.fsdecode(value))
    except TypeError:
        raise ConfigError(f"{name}: expected a path, got {value!r}") from None


def steps(name: str, value: Any) -> tuple[int, int]:
    """(first, end) of a range of steps; `None` is an empty one."""
    if value is None:
        return 0, 0
    if not isinstance(value, range) or value.step != 1:
        raise ConfigError(f"{name}: expected a range with step 1, or None, got {value!r}")
    first = whole(f"{name}.start", value.start)
    return first, max(first, whole(f"{name}.stop", value.stop))


def optional_callable(name: str, value: Any) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}: expected a callable or None, got {value!r}")
    return value  # type: ignore[no-any-return]


def output_module(output: Any) -> str:
    """ "torch" or "numpy"; `None` and "auto" take torch where it is installed."""
    wanted = choice("output", "auto" if output is None else output, "auto", "torch", "numpy")
    if wanted == "torch" and not torch_arrays.is_available():
        raise ConfigError('output: expected torch to be installed for "torch", got no torch')
    if wanted == "auto":
        return "torch" if torch_arrays.is_available() else "numpy"
    return wanted
