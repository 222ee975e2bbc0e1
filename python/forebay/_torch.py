"""The hand-over to torch, and the only place where torch is imported: for a loader that gives tensors, never before."""

import functools
import importlib
import importlib.util
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forebay._forebay import Array
from forebay._modules import imported


@functools.cache  # asked for every sample
def is_available() -> bool:
    """Whether torch can be imported; does not import it."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def load() -> Any:
    """Imports torch. Loaders do it before their threads start, which would all wait for it at their first sample."""
    return importlib.import_module("torch")


def _loaded() -> Any | None:
    """Torch, if somebody imported it: only then can an object be one of its."""
    return imported("torch")


def tensor(array: Array) -> Any:
    """The same memory as a tensor, without a copy."""
    torch = load()
    return torch.frombuffer(array, dtype=getattr(torch, array.dtype)).view(array.shape)


def integers(values: Sequence[int]) -> Any:
    torch = load()
    return torch.tensor(values, dtype=torch.int64)


def collate(values: Sequence[Any]) -> Any:
    """One batch of many values, as `torch.utils.data.DataLoader` makes it."""
    return load().utils.data.default_collate(values)


def is_tensor(value: object) -> bool:
    torch = _loaded()
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> Any:
    """A tensor's memory as an array; a copy only if it is not contiguous and on the CPU already."""
    plain = value.detach().as_subclass(load().Tensor)
    return plain.cpu().contiguous().numpy()


def subset_class(dataset: object) -> type | None:
    """`torch.utils.data.Subset`, if the dataset is one."""
    torch = _loaded()
    return torch.utils.data.Subset if torch is not None and isinstance(dataset, torch.utils.data.Subset) else None


def can_pin() -> bool:
    return bool(load().cuda.is_available())


def pin(value: Any) -> Any:
    """The value with every tensor in it moved to pinned memory, so that it is copied to the GPU in the background."""
    if hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {key: pin(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pin, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(pin, value))
    return value


def distributed() -> tuple[int, int] | None:
    """(rank, world size) of the process group, if there is one."""
    module = imported("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module.get_rank(), module.get_world_size()


def draw_seed() -> int:
    """A seed for one call, from torch's generator where torch is used: `torch.manual_seed` governs it."""
    torch = _loaded()
    if torch is None:
        return random.getrandbits(63)
    return int(torch.randint(0, 2**63 - 1, (1,)).item())
