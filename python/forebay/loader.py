"""The loader: torch's arguments and meaning. Behind it the native engine, or workers for Python datasets."""

import atexit
import os
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, ClassVar, Literal

from forebay._forebay import end_calls
from forebay._native import dump_signal
from forebay._native.iteration import IMPATIENT
from forebay._native.loader import NativeLoader, is_native
from forebay._options import contract as _contract
from forebay._options import settings
from forebay._options.policy import Policy
from forebay._options.settings import Settings
from forebay._python.loader import PythonLoader
from forebay._record.failures import Failures, Report
from forebay.errors import ConfigError

# Not a WeakSet: it cannot be iterated while other threads create loaders.
_open: "set[weakref.ref[DataLoader]]" = set()

# Attributes that cannot be changed on torch's loader, either.
_FIXED = frozenset(("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"))


class DataLoader:
    """Gives the batches of a dataset: torch's `DataLoader`, with nothing else to change.

    Every argument of `torch.utils.data.DataLoader` is accepted. Its meaning depends on the dataset:

    - forebay's own (`ImageFolder`, `TextFiles`, `BinaryFiles`, `NpyFiles`, `Records`, …) are read natively, by threads.
      `num_workers` counts them: `None` means one for each CPU, 0 means one. Arguments for
      worker processes (`worker_init_fn`, `multiprocessing_context`) have no effect, and batches always come in order.
    - any other is a Python dataset, and everything is as in torch: the same batches from the same seeds, made in
      `num_workers` workers under supervision, or in your loop with 0, which is the default.

    A native `sampler` (`WeightedSampler`, `BalancedSampler`) and a mixture of datasets (`mix`) are orders of the
    loader's own: they resume exactly on any number of ranks, which share them.

    Beyond torch's arguments:

    - `on_error`: `"raise"` (default), `"replace"` by a deterministic substitute, or `"skip"` (one rank only)
    - `max_failures`: a count, or a fraction judged after 100 samples, of failures in an epoch that ends the run
    - `ledger`: a JSONL file that failures are appended to; native: files known to be bad are not read again until they
      change
    - `deadline_seconds`, `retries`: how long and how often a failing sample is tried. Native: by default 60 and 3 on
      disks, 120 and 6 on network and FUSE mounts. Python datasets: 600 in a worker (`float("inf")`: none), none in
      your own loop, and 3 retries of errors that may pass (`EIO`, `ESTALE`, …)
    - `stall_seconds`: a batch that takes longer is waited for on, with a warning of what is being waited for
    - `memory_budget`: bytes or text like `"8GiB"` that what is prepared ahead may take; by default a quarter of the
      available memory
    - `seed`: the key of order and augmentation. Native: `generator.initial_seed()` if a generator is given. Python
      datasets: every sample is seeded by (seed, epoch, index), whatever the workers; without it there are torch's
      streams
    - `rank`, `world_size`: native: taken from torch.distributed or the launcher's environment by default. Python
      datasets are divided only if they are given, as torch's are by a sampler only
    - `device`: a CUDA device that batches are delivered on, copied from pinned memory beside your training step
    - `output` (`"torch"` or `"numpy"`)
    - `with_ids`: the index of each sample in `dataset`, that of the substitute where one was replaced. Native batches
      are [images, labels, ids], and `collate_fn` gets (sample, target, index); those of a Python dataset (batch, ids)

    Only for Python datasets:

    - `workers`: `"processes"`, `"threads"`, or `"auto"` (default): threads where Python runs without a GIL
    - `max_worker_memory`: bytes or text; a worker process that grows beyond it is replaced between two samples, and the
      current batch is made again
    - `snapshot_every_n_steps`: how often workers tell the state of a dataset that has one (`state_dict`)

    Only native:

    - `max_sample_bytes`: bytes or text; a file that takes more to read and decode has failed, and `on_error` decides
      what takes its place. By default `memory_budget`
    - `hedge`: a read that takes this many seconds, or longer than `"p99"` of all reads, gets a second one beside it
    - `max_lost_threads`: reads that may be stuck in the kernel, in threads or reader processes, before the run stops
    - `isolate`: read in small processes that may be lost, so that storage that hangs cannot hang this one: `"auto"`
      (default: where the dataset's mount can hang, such as NFS and FUSE), `"always"` or `"never"`
    - `dtype` (`"float32"`, `"float16"`, `"bfloat16"`, `"uint8"` or torch's), `memory_format` (`"contiguous"` or
      `"channels_last"`): what images are in a batch, written so at once. `"uint8"` is for transforms that end without
      floats
    - `decode`: `"fast"` decodes of a JPEG that is resized only as much detail as the result can show: other pixels, by
      about a level, in less time. `"faithful"` (default) gives Pillow's
    - `ragged`: what arrays of different shapes become in a batch: `"list"`, `"pad"` (one tensor as large as the
      largest, with `pad_value`, 0, where an array has no element) or `"nested"` (torch's nested tensor). Without it
      they have to have one shape. Batches have the form that is asked for even where shapes happen to be the same
    - `io_threads`
    - `shuffle`: `"global"` is as True. `"window"` permutes blocks (files of lines, shards, segments of compressed
      files), and mixes the samples of `shuffle_window` (16) of them at a time: long reads, and each block is needed
      once. `"auto"` is `"window"` on object stores and for compressed files, and `"global"` elsewhere;
      `stats()["order"]` says which

    >>> import forebay as fb
    >>> from forebay import transforms as T
    >>> dataset = fb.ImageFolder("data/train", transform=T.Compose([T.Resize((32, 32)), T.ToTensor()]))
    >>> loader = fb.DataLoader(dataset, batch_size=4, shuffle=True, on_error="replace", output="numpy")
    >>> for images, labels in loader:
    ...     assert images.shape[1:] == (3, 32, 32)
    >>> report = loader.report()
    no sample failed
    epoch 0: planned 8 = delivered 8 + replaced 0 + skipped 0

    Anything with `__getitem__` and `__len__` is a Python dataset:

    >>> squares = [number * number for number in range(6)]
    >>> [batch.tolist() for batch in fb.DataLoader(squares, batch_size=3)]
    [[0, 1, 4], [9, 16, 25]]
    """

    # `DataLoader[int]` in annotations, as with torch's.
    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)

    dataset: Any
    batch_size: int | None
    shuffle: bool
    sampler: Any
    batch_sampler: Any
    num_workers: int
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
    seed: int | None
    rank: int
    world_size: int
    with_ids: bool
    dtype: Any
    memory_format: Any
    decode: str
    ragged: str | None
    pad_value: float
    snapshot_every_n_steps: int | None
    _loader: NativeLoader | PythonLoader
    # The arguments as they were given, and as they were shown.
    _given: Settings
    _made: dict[str, Any]

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Literal["global", "window", "auto"] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_error: Literal["raise", "replace", "skip"] = "raise",
        max_failures: int | float | None = None,
        ledger: str | os.PathLike[str] | None = None,
        deadline_seconds: float | None = None,
        stall_seconds: float = 30.0,
        retries: int | None = None,
        memory_budget: int | str | None = None,
        max_sample_bytes: int | str | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle_window: int | None = None,
        workers: Literal["auto", "processes", "threads"] = "auto",
        output: Literal["auto", "torch", "numpy"] | None = None,
        io_threads: int | None = None,
        with_ids: bool = False,
        isolate: Literal["auto", "always", "never"] = "auto",
        hedge: float | str | None = None,
        max_lost_threads: int = 256,
        device: Any = None,
        dtype: Any = None,
        memory_format: Any = None,
        decode: Literal["faithful", "fast"] = "faithful",
        ragged: Literal["list", "pad", "nested"] | None = None,
        pad_value: float = 0,
        max_worker_memory: int | str | None = None,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        everything = dict(locals())
        del everything["self"]
        given = Settings(**everything)
        dump_signal.from_environment()
        if is_native(dataset):
            native = NativeLoader(given)
            self._show(given, native.shown)
            self._finish(native)
            return
        policy = Policy.of(given)
        wants_torch = policy.output == "torch"
        contract = _contract.sign(given, wants_torch=wants_torch, place=policy.place, seed=policy.seed)
        if contract.is_iterable and with_ids:
            raise ConfigError("with_ids: expected a dataset with indices, got an iterable one")
        place = {
            "rank": _contract.rank() if rank is None else rank,
            "world_size": _contract.world_size() if world_size is None else world_size,
        }
        self._show(given, vars(contract) | {"seed": policy.seed} | place)
        python = PythonLoader(contract, policy)
        if contract.num_workers:
            _contract.say_too_many(contract.num_workers, "threads" if python.kind(self) == "threads" else "processes")
            python.prepare(self)
        self._finish(python)

    def _show(self, given: Settings, completed: Mapping[str, Any]) -> None:
        """Sets the arguments as attributes, after checks and defaults."""
        shown = vars(given) | {"shuffle": bool(given.shuffle), "with_ids": bool(given.with_ids)} | dict(completed)
        names = [name for name in _SHOWN if name in _TORCHS or self.__initialized or not self._is_taken(name)]
        made = {name: shown[name] for name in names}
        for name, value in (made | {"_given": given, "_made": made}).items():
            object.__setattr__(self, name, value)

    def _is_taken(self, name: str) -> bool:
        """Whether a subclass has something of its own by a name that torch's loader does not have."""
        return name in self.__dict__ or hasattr(type(self), name)

    def _finish(self, loader: NativeLoader | PythonLoader) -> None:
        object.__setattr__(self, "_loader", loader)
        self.__initialized = True
        _open.add(weakref.ref(self, _open.discard))

    def __setattr__(self, name: str, value: Any) -> None:
        """Torch's rule: attributes that determine the order cannot be changed later. Subclasses that repeat it for ever
        change them nevertheless, past this method or with `_DataLoader__initialized = False`, and the change takes
        effect.
        """
        is_fixed = self.__initialized or isinstance(self.__dict__.get("_loader"), NativeLoader)
        if name in _FIXED and is_fixed:
            raise ConfigError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "multiprocessing_context" and isinstance(self.__dict__.get("_loader"), PythonLoader):
            value = _contract.check_context(value, self.num_workers)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """A copy is constructed from the same arguments, in any process: it has its own workers, descriptors, epochs
        and books. Attributes set later, and those of a subclass, are copied.
        """
        own = {name: value for name, value in self.__dict__.items() if name not in _PRIVATE}
        changed = {name: value for name, value in own.items() if self._made.get(name, _PRIVATE) is not value}
        return {"given": vars(self._given), "changed": changed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        DataLoader.__init__(self, **state["given"])
        self.__dict__.update(state["changed"])

    # Attributes of torch's class that libraries use. Torch keeps a pass with persistent workers there.
    _iterator: Any = None
    # The same name as in torch's class.
    __initialized = False

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def _engine(self) -> Any:
        return self._loader._engine  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, or resumes from a loaded state."""
        return self._loader.begin(self)

    def _get_iterator(self) -> Iterator[Any]:
        return self._loader.begin(self)

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        if isinstance(self._loader, NativeLoader):
            return len(self._loader)
        return self._loader.length(self)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass that of `epoch`; a loaded state of the same epoch stays in force."""
        if isinstance(self._loader, NativeLoader):
            self._loader.set_epoch(epoch)
        else:
            self._loader.set_epoch(self, settings.whole("epoch", epoch))

    def state_dict(self) -> dict[str, Any]:
        """The resume point: a small dict of JSON values. It counts delivered batches, not prefetched ones.

        It includes the `state_dict` of a Python dataset, its iterator or its sampler, if they have one.
        """
        return self._loader.state_dict() if isinstance(self._loader, NativeLoader) else self._loader.state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, skip_steps: range | None = None) -> None:
        """Resumes from a state, on any number of ranks, threads and workers; refuses one of another dataset.

        `skip_steps` skips steps of that epoch without reading them: those that made the loss explode, say.
        A resumed pass over a sampler skips the indices that were already delivered, one over a batch_sampler the
        batches: the order has to be the same as before, unless the sampler has a state of its own.
        """
        if isinstance(self._loader, NativeLoader):
            self._loader.load_state_dict(state_dict, skip_steps=skip_steps)
            return
        if skip_steps is not None:
            raise ConfigError("skip_steps: expected one of forebay's own datasets, got a Python dataset")
        self._loader.load(self, state_dict)

    @property
    def failures(self) -> Failures:
        """Failures so far, oldest first."""
        return self._loader.failures

    def report(self) -> Report:
        """Prints what failed, why, what to do, and the books of each epoch. Returns the text, too."""
        text = self._loader.report()
        print(text, end="")
        return text

    def stats(self) -> dict[str, Any]:
        """Where the time went. Native: each stage's items, busy and waiting seconds and quantiles, and a verdict in one
        word. Python datasets: how long the loop waited for batches, and what became of the workers.
        """
        return self._loader.stats()

    def in_flight(self) -> list[dict[str, Any]]:
        """Samples in progress, longest first.

        Native: path, index, stage, thread, attempt, elapsed seconds, mount. Python datasets: shard, pid, number of the
        batch, index, since_seconds, stage.
        """
        return self._loader.in_flight()

    def explain(
        self, step: int, epoch: int | None = None, *, world_size: int | None = None, rank: int | None = None
    ) -> list[dict[str, Any]]:
        """Which samples make up a step, for any world size, without reading any.

        For a delivered step, the samples actually delivered: `index` is the substitute if `planned` was replaced, and
        skipped samples are left out. With a ledger, this covers earlier runs and other ranks. The order of a Python
        dataset is known for passes that have begun, and for others if it does not depend on torch's generators: in
        order, or with a `seed`.
        """
        if isinstance(self._loader, NativeLoader):
            return self._loader.explain(step, epoch, world_size=world_size, rank=rank)
        if world_size is not None or rank is not None:
            raise ConfigError("explain: expected neither rank nor world_size for a Python dataset")
        told = None if epoch is None else settings.whole("epoch", epoch)
        return self._loader.explain(self, settings.whole("step", step), told)

    def close(self) -> None:
        """Stops every worker and waits for them. Reports and state stay readable; iterating again is refused."""
        self._loader.close()

    def __repr__(self) -> str:
        length = f" of {len(self.dataset)} samples" if hasattr(type(self.dataset), "__len__") else ""
        shown = {
            "dataset": f"<{type(self.dataset).__name__}{length}>",
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "on_error": repr(self.on_error),
            "epoch": self._loader.epoch,
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the loader. After an interrupt or a timeout it does not wait for the threads; `close()` or the exit
        does.
        """
        if isinstance(error, IMPATIENT) and isinstance(self._loader, NativeLoader):
            self._loader.abandon()
        else:
            self.close()


# Attributes in the class annotations.
_SHOWN = [name for name in DataLoader.__annotations__ if not name.startswith("_")]
# Attributes that a copy does not share.
_PRIVATE = frozenset(("_loader", "_given", "_made", "_DataLoader__initialized"))
# The shown attributes that torch's loader has, too.
_TORCHS = frozenset(_SHOWN[: _SHOWN.index("on_error")]) - {"shuffle"}


def _close_all() -> None:
    loaders = [loader for known in _open.copy() if (loader := known()) is not None]
    # All of them are stopped before any is waited for, so that together they take no longer than one.
    for loader in loaders:
        if isinstance(loader._loader, NativeLoader):
            loader._loader.abandon()
    for loader in loaders:
        loader.close()
    end_calls()


atexit.register(_close_all)
