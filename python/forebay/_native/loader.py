"""The loader for forebay's own datasets: torch's arguments and meaning, the native engine behind them."""

import dataclasses
import itertools
import json
import math
import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from forebay._arrays import numpy_arrays, python_values, torch_arrays, torchvision_data
from forebay._forebay import Engine, Sampling
from forebay._native.delivery import Delivery
from forebay._native.iteration import Given, Iteration
from forebay._options import resume, settings
from forebay._options.gil import is_free_threaded
from forebay._record import notices
from forebay._record.failures import Failure, Failures, Report
from forebay.datasets.joined import Concatenation
from forebay.datasets.native import NativeDataset, become_torch_dataset
from forebay.errors import ConfigError, StateMismatchError, StoppedError
from forebay.samplers import NativeSampler

# Of a state; what else it has to have, and in which form, the engine says.
_STATE_KEYS = frozenset(("version", "dataset", "epoch", "step", "position"))


class NativeLoader:
    """The implementation of a `DataLoader` for forebay's own datasets.

    `num_workers` counts threads: `None` means one for each CPU, 0 means one. What only worker processes have has no
    effect, and batches always come in order.
    """

    def __init__(self, given: settings.Settings) -> None:
        self._order = settings.Order(
            given.batch_size, bool(given.shuffle), given.sampler, given.batch_sampler, bool(given.drop_last)
        )
        cpu_threads = settings.check_workers(
            given.num_workers, given.prefetch_factor, given.persistent_workers, given.timeout
        )
        settings.choice("workers", given.workers, "auto", "threads")
        settings.optional_callable("worker_init_fn", given.worker_init_fn)
        settings.optional_callable("collate_fn", given.collate_fn)
        self._patience = settings.Patience.of(given.stall_seconds, given.timeout)
        self._dataset, self._base = _unwrap(given.dataset)
        is_remote = self._dataset._is_remote
        sampling = self._sampling(given.sampler)
        batch_size = given.batch_size or 1
        self._ahead = settings.prefetch_batches(given.prefetch_factor, cpu_threads, batch_size, is_remote)
        self._made_with = self._base._parts()
        wants_torch = settings.output_module(given.output) == "torch"
        self._form = settings.Form.of(given.dtype, given.memory_format, given.decode, wants_torch)
        # A user's order includes the division among ranks; the rank is recorded with each failure.
        self._given_place = (given.rank, given.world_size)
        self._place = settings.place(given.rank, given.world_size)
        options = self._options(given, cpu_threads) | {"sampling": sampling}
        if sampling is not None and given.shuffle == "auto":
            options["shuffle_window"] = None  # a mixture has no blocks that would be read one after the other
        ragged = settings.Ragged.of(given.ragged, given.pad_value)
        self._dataset._check_form(self._form, given.collate_fn is None and self._order.batch_size is not None)
        if wants_torch:
            torch_arrays.load()
            become_torch_dataset()
        self._engine = Engine(self._dataset._index, self._dataset._recipe(self._form), options)
        copier = None if given.device is None else _copier(given.device, wants_torch)
        is_pinned = copier is not None or (bool(given.pin_memory) and wants_torch and _can_pin())
        self._delivery = Delivery(
            dataset=self._dataset,
            output=torch_arrays if wants_torch else numpy_arrays,
            form=self._form,
            ragged=ragged,
            collate_fn=given.collate_fn,
            is_batched=given.batch_size is not None,
            is_pinned=is_pinned,
            with_ids=bool(given.with_ids),
            copier=copier,
            # Batches of the user's own order may have any size.
            lends_to=self._engine if is_pinned and not self._order.is_given else None,
            made_by=self._dataset._made_by(),
        )
        self._first_failure = notices.FirstFailure(
            self._engine.failures, self._engine.ledger_error, self._engine.cache_notice, self._engine.repaired
        )
        self._process: int | None = None
        self._is_closed = False
        self._resumed: _Resumed | None = None
        self._resumed_before: _Resumed | None = None
        # Of what a pass begins with; threads may begin passes of one loader.
        self._lock = threading.RLock()
        # Not a WeakSet: its callbacks are Python code that runs whenever an iteration ends, and swallow a Ctrl-C.
        self._iterations: list[weakref.ref[Iteration]] = []
        self._say_costs(given.collate_fn, given.worker_init_fn)
        # What the loader shows of its arguments in another form than they were given in.
        self.shown = {
            "batch_size": None if given.batch_sampler is not None else given.batch_size,
            "drop_last": self._order.drop_last,
            "num_workers": cpu_threads if given.num_workers is None else given.num_workers,
            "seed": options["seed"],
            "rank": self._place[0],
            "world_size": self._place[1],
        }

    def _sampling(self, sampler: Any) -> Sampling | None:
        """Which samples an epoch has, where the dataset or a sampler of forebay's own says."""
        sampling = self._dataset._sampling()
        if sampling is not None and self._order.is_given:
            raise ConfigError(
                "sampler and batch_sampler: expected none beside a mixture, which has its own order, got one"
            )
        if not isinstance(sampler, NativeSampler):
            return sampling
        # The order is the loader's own, of which the sampler says what an epoch has.
        self._order = dataclasses.replace(self._order, sampler=None)
        return sampler._sampling(self._dataset._index)

    def _options(self, given: settings.Settings, cpu_threads: int) -> dict[str, Any]:
        """What the engine takes, in its own units."""
        whole, hedge = settings.whole, given.hedge
        return {
            "batch_size": given.batch_size or 1,
            "shuffle": self._order.shuffle,
            "shuffle_window": settings.shuffle_window(
                given, self._dataset._index.block_count, self._dataset._is_remote or self._dataset._index.is_packed
            ),
            "drop_last": self._order.drop_last,
            "seed": settings.seed(given.seed, given.generator),
            "cpu_threads": cpu_threads,
            "io_threads": None if given.io_threads is None else whole("io_threads", given.io_threads, least=1),
            "prefetch_batches": self._ahead,
            "prefetch_shrinks": given.prefetch_factor is None and not self._dataset._is_remote,
            "memory_budget": settings.memory_budget(given.memory_budget),
            "max_sample_bytes": settings.memory_budget(given.max_sample_bytes, "max_sample_bytes"),
            "on_error": settings.choice("on_error", given.on_error, "raise", "replace", "skip"),
            "max_failures": settings.max_failures(given.max_failures),
            "retries": None if given.retries is None else whole("retries", given.retries, bits=32),
            "deadline_seconds": settings.optional_seconds("deadline_seconds", given.deadline_seconds),
            "hedge": hedge if isinstance(hedge, str) else settings.optional_seconds("hedge", hedge),
            "max_lost_threads": whole("max_lost_threads", given.max_lost_threads, bits=32),
            "ledger": settings.path("ledger", given.ledger),
            "isolate": settings.choice("isolate", given.isolate, "auto", "always", "never"),
            "rank": self._place[0],
            "world_size": self._place[1],
        }

    def _say_costs(self, collate_fn: Any, worker_init_fn: Any) -> None:
        in_threads = "it runs under the GIL, where threads overlap only as far as it releases the GIL"
        if is_free_threaded():
            in_threads = "several threads run it at the same time, and none of it is as fast as what is native"
        in_loop = "it runs in your loop's thread, between two batches"
        for argument, name in self._dataset._python_calls():
            notices.python_callable(argument, name, in_threads)
        if (target_transform := self._dataset.target_transform) is not None:
            notices.python_callable("target_transform", python_values.name_of(target_transform), in_loop)
        if collate_fn is not None:
            notices.python_callable("collate_fn", python_values.name_of(collate_fn), in_loop)
        if worker_init_fn is not None:
            warnings.warn(
                "worker_init_fn is not called: there are no worker processes",
                UserWarning,
                stacklevel=notices.users_level(),
            )

    def begin(self, loader: object) -> Iterator[Any]:
        """Begins the next epoch, or resumes from a loaded state."""
        with self._lock:
            return self._begin(loader)

    def _begin(self, loader: object) -> Iterator[Any]:
        if self._is_closed:
            raise StoppedError("the loader was closed", hint="construct another one, or close it later")
        self._check_unchanged()
        if self._engine.is_unused():  # the next pass is that one again
            self._resumed = self._resumed_before
        # The sampler's own `iter` is called before the run begins: if it fails, a loaded state is still there.
        given = Given(self._batches(), self._ahead + 1) if self._order.is_given else None
        self._delivery.lend()
        run = self._engine.begin() if given is None else self._engine.begin_given()
        self._resumed_before, self._resumed = self._resumed, None
        self._process = os.getpid()
        iteration = Iteration(run, loader, self._delivery, given, self._patience, self._first_failure)
        self._iterations = [weakref.ref(living) for living in (*self._living(), iteration)]
        return iteration

    def _check_unchanged(self) -> None:
        """Refuses changes to the dataset since the loader was constructed, which would have no effect."""
        for name, now in self._base._parts().items():
            if self._made_with[name] is not now:
                raise ConfigError(
                    f"dataset.{name}: expected the one the loader was made with, got another one set since",
                    hint="construct the loader again after changing the dataset",
                )
        # Given values stay; the others come from the process group, once there is one.
        found = torch_arrays.distributed() or self._place
        place = tuple(there if given is None else given for given, there in zip(self._given_place, found, strict=True))
        if place != self._place:
            raise ConfigError(
                f"the loader was made for rank {self._place[0]} of {self._place[1]}, and the process group that was "
                f"initialised since says rank {place[0]} of {place[1]}",
                hint="construct the loader after torch.distributed.init_process_group, or pass rank= and world_size=",
            )

    def _living(self) -> list[Iteration]:
        return [iteration for known in self._iterations if (iteration := known()) is not None]

    def _batches(self) -> Iterator[Any]:
        """The user's own order as batches of indices, from where a loaded state was taken."""
        done = self._resumed or _Resumed(0, 0, 0)
        if self._order.batch_sampler is not None:
            return itertools.islice(self._order.batch_sampler, done.step, None)
        # Indices, not batches: the batch size may be another one now.
        sampler = () if self._order.sampler is None else self._order.sampler
        indices = itertools.islice(sampler, done.position, None)
        return _batched(indices, self._order.batch_size or 1, self._order.drop_last)

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        if self._order.batch_sampler is not None:
            return len(self._order.batch_sampler)  # type: ignore[arg-type]
        if self._order.sampler is None:
            return self._engine.steps
        samples, size = len(self._order.sampler), self._order.batch_size or 1  # type: ignore[arg-type]
        return samples // size if self._order.drop_last else math.ceil(samples / size)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass that of `epoch`; a loaded state of the same epoch stays in force."""
        with self._lock:
            self._engine.set_epoch(settings.whole("epoch", epoch))
            if self._resumed and self._resumed.epoch != epoch:
                self._resumed = None

    def state_dict(self) -> dict[str, Any]:
        """The resume point: a small dict of JSON values. What the loop has got counts, not what was prefetched."""
        state: dict[str, Any] = json.loads(self._engine.state())
        return state | {"sampler": True} if self._order.is_given else state

    def load_state_dict(self, state_dict: Mapping[str, Any], *, skip_steps: range | None = None) -> None:
        """Resumes from a state, on any number of ranks and threads; refuses one of another dataset.

        `skip_steps` leaves steps of that epoch out, without reading them: those that made the loss explode, say.
        A fresh pass over a sampler begins behind as many indices as were handed out, one over a batch_sampler behind
        as many batches: the order has to be the same again.
        """
        first, end = settings.steps("skip_steps", skip_steps)
        if skip_steps is not None and self._order.is_given:
            raise ConfigError("skip_steps: expected an order of the loader's own, got a sampler")
        state = resume.check(state_dict, _STATE_KEYS)
        has_sampler = bool(state.pop("sampler", False))
        try:
            text = json.dumps(state)
        except (TypeError, ValueError) as error:
            raise StateMismatchError(f"the state: expected JSON values only ({error})") from None
        if has_sampler != self._order.is_given:
            ours, its = ("one", "none") if self._order.is_given else ("none", "one")
            raise StateMismatchError(
                f"the state belongs to another order: sampler or batch_sampler: this loader has {ours}, the state {its}"
            )
        with self._lock:
            self._engine.load_state(text, first, end)
            self._resumed = _Resumed(int(state["epoch"]), int(state["step"]), int(state["position"]))

    @property
    def failures(self) -> Failures:
        """What failed so far, oldest first."""
        return Failures(map(Failure.from_line, self._engine.failures()))

    def report(self) -> Report:
        """What failed, why, what to do, and the balance of each epoch."""
        return Report(self._engine.report())

    def stats(self) -> dict[str, Any]:
        """Where time went: each stage's items, busy and waiting seconds and quantiles, and a verdict in one word."""
        stats = self._engine.stats()
        sources = self._dataset._counted(stats.pop("delivered_by_part"))
        return stats if sources is None else stats | {"sources": sources}

    def in_flight(self) -> list[dict[str, Any]]:
        """Samples in progress, longest first: path, index, stage, thread, attempt, elapsed seconds, mount."""
        return [item for iteration in self._living() for item in iteration.in_flight()]

    def explain(
        self, step: int, epoch: int | None = None, *, world_size: int | None = None, rank: int | None = None
    ) -> list[dict[str, Any]]:
        """Which samples make up a step, for any world size, without reading any.

        For a delivered step, the samples actually delivered: `index` is the substitute if `planned` was replaced, and
        skipped samples are left out. With a ledger, this covers earlier runs and other ranks.
        """
        if self._order.is_given:
            raise ConfigError("explain: expected an order of the loader's own, got a sampler")
        rows = self._engine.explain(
            settings.whole("step", step),
            None if epoch is None else settings.whole("epoch", epoch),
            None if world_size is None else settings.whole("world_size", world_size, least=1, bits=32),
            None if rank is None else settings.whole("rank", rank, bits=32),
        )
        # What a batch has for a label, before `target_transform`.
        for row in rows:
            row["label"] = self._dataset.label_of(row.pop("scalars"))
            if isinstance(self._dataset, Concatenation):
                row["source"] = self._dataset.source_of(row["index"])
        return rows

    def close(self) -> None:
        """Stops every thread and waits for them. Reports and state stay readable; iterating again is refused."""
        self._is_closed = True
        if self._is_forked():
            return
        # All of them stop before any is waited for.
        for iteration in self._living():
            iteration.abandon()
        self._engine.close()
        self._first_failure.look_at_ledger()

    def _is_forked(self) -> bool:
        """Whether this is a forked child, which has the objects, but not the threads."""
        return self._process not in (None, os.getpid())

    def abandon(self) -> None:
        """Stops the threads without waiting for them: `close()` or the exit does."""
        self._is_closed = True
        if not self._is_forked():
            for iteration in self._living():
                iteration.abandon()

    @property
    def epoch(self) -> int:
        """The epoch that the state is in."""
        return int(json.loads(self._engine.state())["epoch"])


class _Resumed(NamedTuple):
    """How many samples of a sampler's order are skipped when a state is resumed."""

    epoch: int
    step: int
    position: int


def _batched(indices: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    batch = []
    for index in indices:
        batch.append(index)
        if len(batch) == size:
            yield batch
            batch = []
    if batch and not drop_last:
        yield batch


def _copier(device: Any, wants_torch: bool) -> torch_arrays.Copier:
    if not wants_torch:
        raise ConfigError('device: expected output="torch" beside it, got "numpy"')
    return torch_arrays.Copier(device)


def _can_pin() -> bool:
    if torch_arrays.can_pin():
        return True
    warnings.warn(
        "pin_memory: expected an accelerator, got none: memory is not pinned",
        UserWarning,
        stacklevel=notices.users_level(),
    )
    return False


def _check_methods(dataset: Any, base: type) -> None:
    """Refuses a subclass whose way to give samples would never be asked."""
    for name in ("__getitem__", "__getitems__", "__len__"):
        if getattr(type(dataset), name, None) is not getattr(base, name, None):
            raise ConfigError(
                f"dataset: expected {base.__name__}'s own {name}, got {type(dataset).__qualname__}.{name}, which would "
                "never be called: samples are read and decoded natively",
                hint="do what it does in transform, target_transform or collate_fn; with_ids=True gives indices, and "
                "subset() chooses samples",
            )


def is_native(dataset: Any) -> bool:
    """Whether it is one of forebay's own datasets, or a `torch.utils.data.Subset` of one."""
    while torch_arrays.subset_class(dataset) is not None:
        dataset = dataset.dataset
    return isinstance(dataset, NativeDataset)


def _unwrap(dataset: Any) -> tuple[NativeDataset, NativeDataset]:
    """The dataset below any number of `torch.utils.data.Subset`s, and below torchvision's wrapper: with their samples
    chosen, and as it is."""
    chosen: list[int] | None = None
    while (subset := torch_arrays.subset_class(dataset)) is not None:
        _check_methods(dataset, subset)
        indices = list(dataset.indices)
        chosen = indices if chosen is None else [indices[position] for position in chosen]
        dataset = dataset.dataset
    plain = torchvision_data.unwrapped(dataset)
    if plain is None:
        plain = dataset
    elif not torchvision_data.are_joint(plain.transforms, plain.transform, plain.target_transform):
        raise ConfigError(
            "dataset: expected transforms of transform and target_transform alone in torchvision's wrapper, got "
            f"{plain.transforms!r}, which would never be called",
            hint="give transform and target_transform to the dataset when it is made",
        )
    _check_methods(plain, NativeDataset)
    return (plain if chosen is None else plain.subset(chosen)), dataset
