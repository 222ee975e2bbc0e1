"""What a loader for Python datasets needs of torch: its samplers, seeds, collation and worker info.

Beside `torch_arrays.py` and `torch_serialisation.py` the only file that imports torch.
"""

import base64
import functools
import importlib
import multiprocessing.context
import random
import threading
import warnings
import zlib
from typing import Any

from forebay._arrays.optional_packages import imported
from forebay._arrays.torch_arrays import _loaded, distributed, load
from forebay._record.notices import users_level


def default_collate(samples: Any) -> Any:
    """Torch's own."""
    return load().utils.data.default_collate(samples)


def default_convert(sample: Any) -> Any:
    """Torch's own."""
    return load().utils.data.default_convert(sample)


def dataset_class() -> type | None:
    """`torch.utils.data.Dataset`, where torch is imported."""
    data = imported("torch.utils.data")
    return getattr(data, "Dataset", None)


def concatenated(first: Any, second: Any) -> Any:
    """Two datasets as one."""
    return load().utils.data.ConcatDataset([first, second])


def seed(number: int) -> None:
    """Seeds torch's generator of the CPU, where torch is imported."""
    if (torch := _loaded()) is not None:
        torch.default_generator.manual_seed(number)


def random_state() -> Any:
    """The state of torch's generator of the CPU; `None` where torch is not imported."""
    return None if (torch := _loaded()) is None else torch.default_generator.get_state()


def set_random_state(state: Any) -> None:
    if state is not None:
        load().default_generator.set_state(state)


def use_one_thread() -> None:
    """Each worker computes with one thread: there are as many workers as wanted."""
    load().set_num_threads(1)


def _worker_module() -> Any:
    return importlib.import_module("torch.utils.data._utils.worker")


def set_worker_info(shard: int, shard_count: int, seed: int, dataset: Any) -> None:
    """What `torch.utils.data.get_worker_info()` says in this process."""
    module = _worker_module()
    module._worker_info = module.WorkerInfo(id=shard, num_workers=shard_count, seed=seed, dataset=dataset)


_of_thread = threading.local()
_changing = threading.Lock()


def thread_info(shard: int, shard_count: int, seed: int, dataset: Any) -> Any:
    """What `torch.utils.data.get_worker_info()` says in a thread that is a worker, with random numbers of its own."""
    module = _worker_module()
    numpy = imported("numpy")
    state = None if numpy is None else numpy.random.default_rng(module._generate_state(seed - shard, shard))
    generator = load().Generator()
    generator.manual_seed(seed)
    fields = {"id": shard, "num_workers": shard_count, "seed": seed, "dataset": dataset}
    if "worker_method" in getattr(module.WorkerInfo, "__dataclass_fields__", {}):  # torch 2.15 and later
        fields |= {"rng": module._RNG(random.Random(seed), generator, state), "worker_method": "thread"}
    return module.WorkerInfo(**fields)


def set_thread_info(info: Any) -> Any:
    """Sets what `get_worker_info()` returns in this thread. Returns the previous value."""
    _make_info_local(_worker_module())
    before, _of_thread.info = getattr(_of_thread, "info", None), info
    return before


def _make_info_local(module: Any) -> None:
    """Makes torch's `get_worker_info` look at the thread first.

    Torch keeps one answer for the process, and datasets hold on to the function itself (`from torch.utils.data import
    get_worker_info`), so its code is changed in place. Where no thread is a worker it answers as before.
    """
    if hasattr(module, "_forebay_code_before"):
        return

    def get_worker_info():  # type: ignore[no-untyped-def]
        info = getattr(_forebay_of_thread, "info", None)  # type: ignore[name-defined]  # noqa: F821
        return _worker_info if info is None else info  # type: ignore[name-defined]  # noqa: F821

    with _changing:
        if hasattr(module, "_forebay_code_before"):
            return
        _make_stacking_plain()
        before, module._forebay_of_thread = module.get_worker_info.__code__, _of_thread
        module.get_worker_info.__code__ = get_worker_info.__code__
        # Last, because it says that the change is made. It is kept because another thread may be about to run it:
        # without a GIL nothing else keeps it alive then.
        module._forebay_code_before = before


def _make_stacking_plain() -> None:
    """Makes `default_collate` stack tensors as outside of a worker, where a thread is one.

    In a worker torch takes memory from `/dev/shm`, and a descriptor for each batch, to hand it to another process.
    """
    known = importlib.import_module("torch.utils.data._utils.collate").default_collate_fn_map
    original = known[load().Tensor]

    def collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        info = getattr(_of_thread, "info", None)
        if info is None:
            return original(batch, collate_fn_map=collate_fn_map)
        _of_thread.info = None
        try:
            return original(batch, collate_fn_map=collate_fn_map)
        finally:
            _of_thread.info = info

    known[load().Tensor] = collate


def draw_base_seed(generator: Any) -> int:
    """The seeds that torch draws for its workers, in the same way: the same seed gives the same numbers."""
    torch = load()
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def is_iterable(dataset: Any) -> bool:
    """Whether it is one of torch's `IterableDataset`s."""
    return (torch := _loaded()) is not None and isinstance(dataset, torch.utils.data.IterableDataset)


def sequential(dataset: Any) -> Any:
    return load().utils.data.SequentialSampler(dataset)


def shuffled(dataset: Any, generator: Any) -> Any:
    return load().utils.data.RandomSampler(dataset, generator=generator)


def distributed_sampler(dataset: Any, **fields: Any) -> Any:
    return load().utils.data.distributed.DistributedSampler(dataset, **fields)


def batches(sampler: Any, batch_size: int, drop_last: bool) -> Any:
    return load().utils.data.BatchSampler(sampler, batch_size, drop_last)


def endless() -> Any:
    """The sampler that torch gives to iterable datasets."""
    return importlib.import_module("torch.utils.data.dataloader")._InfiniteConstantSampler()


def is_shuffling(sampler: Any) -> bool:
    """Whether it is torch's own `RandomSampler`, whose order a seed decides."""
    return (torch := _loaded()) is not None and type(sampler) is torch.utils.data.RandomSampler


def is_random(sampler: Any) -> bool:
    """Whether it, or a sampler that it draws from, is a torch sampler whose order differs each time."""
    if (torch := _loaded()) is None:
        return False
    known = torch.utils.data
    kinds = known.RandomSampler, known.SubsetRandomSampler, known.WeightedRandomSampler
    return isinstance(sampler, kinds) or isinstance(getattr(sampler, "sampler", None), kinds)


def is_dividing(sampler: Any) -> bool:
    """Whether it is torch's own `DistributedSampler`, or the `SequentialSampler` that it is for a single rank."""
    if (torch := _loaded()) is None:
        return False
    return type(sampler) in (torch.utils.data.SequentialSampler, torch.utils.data.distributed.DistributedSampler)


def generator(seed: int) -> Any:
    made = load().Generator()
    made.manual_seed(seed)
    return made


def generator_state(generator: Any) -> str | int:
    """The state of a generator as JSON: its seed where nothing was drawn since, else all of it."""
    torch, state = load(), generator.get_state()
    fresh = torch.Generator(device=generator.device)
    fresh.manual_seed(generator.initial_seed())
    if torch.equal(fresh.get_state(), state):
        return int(generator.initial_seed())
    return base64.b85encode(zlib.compress(state.numpy().tobytes())).decode()


def fresh_seed(generator: Any) -> int | None:
    """What a generator, by default torch's own, was seeded with, where nothing was drawn from it since."""
    state = generator_state(load().default_generator if generator is None else generator)
    return state if isinstance(state, int) else None


def set_generator_state(generator: Any, state: str | int) -> None:
    """Puts a generator where `generator_state` found one."""
    if isinstance(state, int):
        generator.manual_seed(state)
        return
    torch, raw = load(), bytearray(zlib.decompress(base64.b85decode(state)))
    generator.set_state(torch.frombuffer(raw, dtype=torch.uint8))


def start_method_context(value: Any) -> Any:
    """A multiprocessing context, from one or its name, after torch's rules and in its words."""
    torch = load()
    if isinstance(value, str):
        known = torch.multiprocessing.get_all_start_methods()
        if value not in known:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {known!r}, but got "
                f"multiprocessing_context={value!r}"
            )
        value = torch.multiprocessing.get_context(value)
    if not isinstance(value, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start method, "
            f"but got multiprocessing_context={value}"
        )
    return value


def accelerator() -> str | None:
    """The kind of accelerator that memory may be pinned for; `None` if there is none."""
    torch = load()
    if not torch.accelerator.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None else str(current.type)


def pinned(value: Any, device: str) -> Any:
    """The batch in pinned memory, as torch does it."""
    return importlib.import_module("torch.utils.data._utils.pin_memory").pin_memory(value, device)


def integers(values: Any) -> Any:
    """A tensor of indices, or the list where they are no numbers."""
    torch = load()
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return values


def collate_function(is_batched: bool) -> Any:
    """Torch's own function, by its name there: users compare it."""
    return load().utils.data.default_collate if is_batched else load().utils.data.default_convert


def is_pipe(dataset: Any) -> bool:
    """Whether it is one of torch's `IterDataPipe`s or `MapDataPipe`s."""
    torch = _loaded()
    return torch is not None and isinstance(dataset, (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe))


def begin_pipe(dataset: Any, generator: Any, is_here: bool) -> int | None:
    """Gives torch's data pipes their part of the data where they run in this process, as its own loader does, and draws
    the seed of a pass, which all ranks share.
    """
    if not is_pipe(dataset):
        return None
    torch, settings = load(), importlib.import_module("torch.utils.data.graph_settings")
    rank, world_size = distributed() or (0, 1)
    drawn = None
    if isinstance(dataset, torch.utils.data.IterDataPipe):
        seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
        if world_size > 1:
            group = torch.distributed.new_group(backend="gloo")
            torch.distributed.broadcast(seed, src=0, group=group)
        drawn = int(seed.item())
    if is_here:
        settings.apply_sharding(dataset, world_size, rank)
    return drawn


def seed_pipe(dataset: Any, seed: int) -> None:
    """Seeds everything that is random in a data pipe, before its iterator is made."""
    importlib.import_module("torch.utils.data.graph_settings").apply_random_seed(dataset, generator(seed))


def pass_over_seed(dataset: Any, generator: Any) -> None:
    """Torch draws the seed of a data pipe once more for workers, and does not use it."""
    if is_pipe(dataset) and is_iterable(dataset):
        draw_base_seed(generator)


def worker_init(dataset: Any, worker_init_fn: Any) -> Any:
    """What a worker calls first: data pipes are given their part of the data, as torch does it."""
    if not is_pipe(dataset):
        return worker_init_fn
    rank, world_size = distributed() or (0, 1)
    module = importlib.import_module("torch.utils.data.dataloader")
    return functools.partial(module._sharding_worker_init_fn, worker_init_fn, world_size, rank)


def pin_device(is_wanted: bool, name: str) -> str | None:
    """Where pinned memory is for; `None` where it is not wanted or there is no device, which torch's words say."""
    if not is_wanted:
        return None
    if name:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{name}'.",
            UserWarning,
            stacklevel=users_level(),
        )
    device = accelerator()
    if device is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            UserWarning,
            stacklevel=users_level(),
        )
    return device


def bytes_tensor(data: bytes) -> Any:
    """A tensor of bytes."""
    torch = load()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
