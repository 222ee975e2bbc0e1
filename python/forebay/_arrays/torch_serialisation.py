"""Tensors between processes: how they are pickled, and how a worker stacks them straight into a block.

It imports torch only where the program already has, or where tensors are wanted.
"""

import importlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from forebay._arrays.optional_packages import imported
from forebay._arrays.torch_arrays import load


def reduced(obj: Any, is_sharing: bool = False) -> Any:
    """What pickles a tensor with its bytes beside the pickle; `NotImplemented` for anything else.

    With `is_sharing`, a tensor in shared memory stays one: both sides see what either writes.
    """
    torch = imported("torch")
    if torch is None:
        return NotImplemented
    if not isinstance(obj, torch.Tensor):
        return _shared_storage(torch, obj) if is_sharing else NotImplemented
    kind = type(obj)
    if is_sharing and (obj.device.type != "cpu" or obj.is_shared()):
        return importlib.import_module("torch.multiprocessing.reductions").reduce_tensor(obj)
    if obj.layout is not torch.strided or obj.device.type != "cpu" or obj.is_quantized or obj.is_nested:
        return NotImplemented
    if kind is not torch.Tensor:
        if kind.__reduce_ex__ is not torch.Tensor.__reduce_ex__:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return _rebuilt_subclass, (kind, obj.detach().as_subclass(torch.Tensor), obj.requires_grad, vars(obj))
    if obj.is_conj() or obj.is_neg():
        obj = obj.resolve_conj().resolve_neg()
    if obj.requires_grad and not obj.is_leaf:
        raise RuntimeError(
            "a tensor that requires grad and is not a leaf cannot be sent to another process: "
            "call detach() on it in the dataset or the collate function"
        )
    flat, shape, strides = obj.detach(), tuple(obj.shape), None
    if not flat.is_contiguous():
        if _is_dense(flat):
            strides = flat.stride()
            flat = flat.as_strided((flat.numel(),), (1,))
        else:
            flat = flat.contiguous()
    if not flat.numel():
        return _rebuilt_empty, (obj.dtype, shape, obj.requires_grad)
    memory = pickle.PickleBuffer(flat.reshape(-1).view(torch.uint8).numpy())
    return _rebuilt, (memory, obj.dtype, shape, strides, obj.requires_grad)


def _shared_storage(torch: Any, obj: Any) -> Any:
    """The memory of a tensor that is shared already: its descriptor goes along."""
    if isinstance(obj, torch.UntypedStorage) and obj.is_shared():
        return importlib.import_module("torch.multiprocessing.reductions").reduce_storage(obj)
    if isinstance(obj, torch.storage.TypedStorage) and obj._untyped_storage.is_shared():
        return importlib.import_module("torch.multiprocessing.reductions").reduce_typed_storage(obj)
    return NotImplemented


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill their memory without gaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _rebuilt(memory: Any, dtype: Any, shape: tuple[int, ...], strides: Any, requires_grad: bool) -> Any:
    tensor = load().frombuffer(memory, dtype=dtype)
    tensor = tensor.view(shape) if strides is None else tensor.as_strided(shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuilt_empty(dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    return load().empty(shape, dtype=dtype, requires_grad=requires_grad)


def _rebuilt_subclass(kind: type, tensor: Any, requires_grad: bool, fields: dict[str, Any]) -> Any:
    made = tensor.as_subclass(kind)
    made.__dict__.update(fields)
    return made.requires_grad_() if requires_grad else made


def stack_into(memory_for: Callable[[int], Any | None], least_bytes: int) -> None:
    """Makes `default_collate` in this process stack tensors into memory that `memory_for(size_bytes)` gives.

    Torch's own would take it from `/dev/shm`. Where there is none, or too little to be worth it, tensors are stacked
    as outside of a worker.
    """
    torch = load()
    module = importlib.import_module("torch.utils.data._utils.collate")
    original = module.default_collate_fn_map[torch.Tensor]

    def collate(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            return original(batch, collate_fn_map=collate_fn_map)  # which says why not
        size_bytes = first.numel() * first.element_size() * len(batch)
        if size_bytes < least_bytes or not _is_plain(torch, batch):
            return torch.stack(list(batch), 0)
        memory = memory_for(size_bytes)
        if memory is None:
            return torch.stack(list(batch), 0)
        out = torch.frombuffer(memory[:size_bytes], dtype=first.dtype).view(len(batch), *first.shape)
        return torch.stack(list(batch), 0, out=out)

    module.default_collate_fn_map[torch.Tensor] = collate


def _is_plain(torch: Any, batch: Sequence[Any]) -> bool:
    first = batch[0]
    return all(
        type(item) is torch.Tensor
        and item.dtype is first.dtype
        and item.shape == first.shape
        and item.device.type == "cpu"
        and not item.requires_grad
        for item in batch
    )
