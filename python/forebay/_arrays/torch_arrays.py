"""Conversion to torch, and the only module that imports torch: for a loader that returns tensors, never before."""

import functools
import importlib
import importlib.util
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay._arrays.optional_packages import imported
from forebay._forebay import Array, Engine
from forebay.errors import ConfigError


@functools.cache  # asked for every sample
def is_available() -> bool:
    """Whether torch can be imported; does not import it."""
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


@functools.cache  # asked for every tensor
def load() -> Any:
    """Imports torch. Loaders do it before their threads start, which would all wait for it at their first sample."""
    return importlib.import_module("torch")


def _loaded() -> Any | None:
    """Torch, if the program has imported it: only then can an object be a tensor."""
    return imported("torch")


def tensor(array: Array) -> Any:
    """The same memory as a tensor, without a copy; a view of the lender's memory, if it was lent."""
    torch = load()
    dtype = getattr(torch, array.dtype)
    if 0 in array.shape:  # a buffer of no bytes is refused
        return torch.empty(array.shape, dtype=dtype)
    if array.lender is None:
        flat = torch.frombuffer(array, dtype=dtype)
    else:
        flat = array.lender[: math.prod(array.shape) * dtype.itemsize].view(dtype)
    if not array.is_interleaved:
        return flat if len(array.shape) == 1 else flat.view(array.shape)
    batch, channels, height, width = array.shape
    return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)


def convert(value: Any, dtype: str | None, is_channels_last: bool) -> Any:
    """A tensor of a batch, or of one sample, in another type and order."""
    if dtype is not None:
        value = value.to(getattr(load(), dtype))
    if is_channels_last:
        value = value.movedim(-3, -1).contiguous().movedim(-1, -3)
    return value


def element_bytes(value: Any, dtype: str) -> bytes:
    """One element of this type."""
    torch = load()
    return bytes(torch.tensor([value]).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes())


def as_nested(tensors: Sequence[Any]) -> Any:
    """Tensors that differ in their first dimension as one nested tensor."""
    torch = load()
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


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


def content(value: Any) -> bytes:
    """The bytes of a tensor, element by element, whatever its type."""
    torch = load()
    flat = value.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def worker_info(worker: int, count: int, dataset: Any) -> Any:
    """What `torch.utils.data.get_worker_info()` says from now on in this process."""
    module: Any = importlib.import_module("torch.utils.data._utils.worker")
    info = module.WorkerInfo(id=worker, num_workers=count, seed=worker, dataset=dataset) if count else None
    module._worker_info = info
    return info


def subset_class(dataset: object) -> type | None:
    """`torch.utils.data.Subset`, if the dataset is one."""
    torch = _loaded()
    return torch.utils.data.Subset if torch is not None and isinstance(dataset, torch.utils.data.Subset) else None


def can_pin() -> bool:
    return bool(load().cuda.is_available())


def lend(engine: Engine) -> None:
    """Lends the engine pinned memory to write its next batches to.

    It is torch's own, so that torch's allocator guards it: once the batch is dropped, its memory is used again when
    every copy from it has ended.
    """
    torch, size_bytes = load(), engine.batch_bytes or 0
    for _ in range(engine.blocks_wanted if size_bytes else 0):
        block = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=can_pin())
        engine.lend(block.data_ptr(), size_bytes, block)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """The value with every tensor in it changed."""
    if is_tensor(value):
        return change(value)
    if hasattr(value, "pin_memory") and hasattr(value, "to"):
        return change(value)  # a batch of the user's own kind, as torch allows it
    if isinstance(value, Mapping):
        return {key: _map(change, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(change, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map(change, item) for item in value)
    return value


def pin(value: Any) -> Any:
    """The value with every tensor in it in pinned memory, so that it is copied to the GPU in the background."""
    return _map(lambda item: item if is_tensor(item) and item.is_pinned() else item.pin_memory(), value)


class Copier:
    """Copies batches to a GPU on a stream of its own, beside what the training step does there."""

    def __init__(self, device: Any) -> None:
        torch = load()
        try:
            self._device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device: expected one that torch knows, got {device!r} ({error})") from None
        if self._device.type != "cuda" or not torch.cuda.is_available():
            there = f"{torch.cuda.device_count()} of them" if torch.cuda.is_available() else "none here"
            raise ConfigError(f"device: expected a CUDA device ({there}), got {device!r}")
        self._stream = torch.cuda.Stream(self._device)

    def start(self, value: Any) -> tuple[Any, Any]:
        """Begins the copy of every tensor. Returns the results and the event of their completion."""
        with load().cuda.stream(self._stream):
            copied = _map(lambda item: item.to(self._device, non_blocking=True), value)
            return copied, self._stream.record_event()

    def finish(self, copied: Any, event: Any) -> Any:
        """Makes whatever the caller does on the device wait for the copy; nothing waits here."""
        stream = load().cuda.current_stream(self._device)
        stream.wait_event(event)
        # Made on another stream: its memory must not be used again before this one is done with it.
        _map(lambda item: item.record_stream(stream) if is_tensor(item) else None, copied)
        return copied


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
