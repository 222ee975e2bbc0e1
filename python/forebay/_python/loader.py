"""The loader for Python datasets: torch's meaning of everything, workers behind it."""

import contextlib
import copy
import functools
import os
import random
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from forebay._arrays import torch_data
from forebay._options import contract as _contract
from forebay._options import resume
from forebay._options.gil import is_free_threaded
from forebay._options.policy import Policy
from forebay._options.settings import Patience
from forebay._python import elastic
from forebay._python import order as _order
from forebay._python.passes import Pass, Setup
from forebay._python.progress import Progress
from forebay._python.workers.job import Job, Workers
from forebay._python.workers.process import spare_fork_servers
from forebay._python.workers.process.fetch import is_stateful
from forebay._python.workers.process.inline import InlineWorkers
from forebay._python.workers.process.processes import ProcessWorkers
from forebay._python.workers.process.threads import ThreadWorkers
from forebay._python.workers.transport import serialisation
from forebay._record import books, notices
from forebay._record.failures import Failures, Report
from forebay.errors import ConfigError, StateMismatchError, StoppedError

_VERSION = 1
_STATE_KEYS = frozenset(("forebay", "epoch", "step", "position", "finished", "order", "shard_count"))
# How long `close` waits for a thread that begins a pass.
_CLOSE_SECONDS = 5.0
_CLOSED = "this iteration was closed, with its loader"


def _nothing() -> None:
    pass


def _rest(workers: ProcessWorkers, resting: list[ProcessWorkers]) -> None:
    """Ends the workers of a pass; what they were forked from waits for the next one."""
    workers.rest()
    resting.append(workers)


class PythonLoader:
    """The implementation of a `DataLoader` for Python datasets.

    It holds what outlives a pass: epoch, books, workers that stay, a loaded state. What a pass is made of is read from
    the loader's attributes when it begins, as in torch.
    """

    def __init__(self, contract: _contract.Contract, policy: Policy) -> None:
        # Guards the start of a pass: several threads may begin passes of one loader, and ask for its state. It is never
        # held while waiting for a batch.
        self._lock = threading.RLock()
        self._is_iterable = contract.is_iterable
        # What the loader made itself, to be recognized: subclasses put others in its place, and wrap it.
        self._own_sampler = contract.sampler if contract.is_own_order else None
        self._own_batches = contract.batch_sampler if contract.is_own_batches else None
        self._policy = policy
        rank = _contract.rank() if policy.place is None else policy.place[0]
        self.books = books.Books(rank, policy.max_failures, policy.ledger)
        self.epoch = 0
        self.length_told: int | None = None
        self._resumed: dict[str, Any] | None = None
        self._passes: list[weakref.ref[Pass]] = []
        # Of the pass that was begun last, which may be gone.
        self._progress: Progress | None = None
        # Workers that stay from pass to pass.
        self._staying: tuple[Workers, Job, list[int]] | None = None
        # Idle fork servers.
        self._resting: list[ProcessWorkers] = []
        # Fork servers with persistent workers.
        self._kept: list[ProcessWorkers] = []
        for groups in (self._resting, self._kept):
            weakref.finalize(self, spare_fork_servers.leave, groups).atexit = False
        # Those that worked for it, whose counts are still told when a pass is over; last, that of the last pass.
        self._worker_groups: list[Workers] = []
        # What a state taken between two passes promises about the next one, and the generators' seeds at that time, if
        # nothing had been drawn from them; `None` if the state was loaded, which holds in any case.
        self._promised: dict[str, Any] | None = None
        self._seeds_then: list[int | None] | None = None
        # The pass that began last, and what had been promised about it.
        self._unused: tuple[Progress, weakref.ref[Pass], tuple[int, Any, Any]] | None = None
        # Whether the dataset was searched for values that behave differently in a worker.
        self._is_looked_at = False
        self._is_closed = False
        self._process: int | None = None
        if policy.on_error == "skip" and (policy.place is not None or _contract.world_size() > 1):
            raise ConfigError(
                'on_error: expected "raise" or "replace" on several ranks, got "skip": ranks that skip different '
                "samples make different numbers of steps, and wait for each other for ever"
            )

    def prepare(self, loader: Any) -> None:
        """Starts what takes seconds to be ready, where it will be needed."""
        if self.kind(loader) == "processes":
            spare_fork_servers.prepare(self._policy.output)

    def begin(self, loader: Any) -> Pass:
        """The next pass, or what is left of the one a loaded state was taken in."""
        with self._lock:
            self._check_open()
            made = self._begin(loader)
        if self._is_closed:  # by another thread, which did not know of this pass
            made.close()
            self._check_open()
        return made

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoppedError("the loader was closed", hint="construct another one, or close it later")

    def _begin(self, loader: Any) -> Pass:
        self._forget_unused()
        before = self.epoch, self._resumed, self._promised
        resumed, self._resumed = self._resumed, None
        finished = resumed if resumed is not None and resumed["finished"] else None
        if finished is not None:
            self.epoch, resumed = finished["epoch"] + 1, None
            self._promised = finished.get("next")
        if resumed is not None:
            self.epoch = resumed["epoch"]
            if "next" in resumed:  # taken before the pass began
                self._promised, resumed = resumed["next"], None
        promised, self._promised = self._promised, None
        if promised is not None and self._is_seeded_since(loader):
            promised = None
        epoch, self.epoch = self.epoch, self.epoch + 1
        if loader.persistent_workers:
            self._close_passes(
                "this iteration was closed: persistent_workers work for one at a time, and another began"
            )
        order = self._order(loader, epoch)
        self._begin_order(loader, order, epoch, finished, resumed)
        setup = self._setup(loader, order, epoch, resumed, finished, promised)
        made = Pass(setup, loader)
        self._process = os.getpid()
        self._passes = [known for known in self._passes if known() is not None] + [weakref.ref(made)]
        self._progress = setup.progress
        self._unused = setup.progress, weakref.ref(made), before
        # Processes are used again, so that these are few; others live for a pass.
        kept = [
            workers
            for workers in self._worker_groups
            if isinstance(workers, ProcessWorkers) and workers is not setup.workers
        ]
        self._worker_groups = [*kept, setup.workers]
        return made

    def _forget_unused(self) -> None:
        """A pass that was dropped before a batch was asked for does not count: libraries make one to see if they can.

        The next one is of the same epoch, and resumes from the same state.
        """
        unused, self._unused = self._unused, None
        if unused is None or self._resumed is not None:
            return
        progress, made, before = unused
        if made() is None and not progress.is_begun and self.epoch == progress.epoch + 1:
            self.epoch, self._resumed, promised = before
            self._promised = self._promised or promised

    def _order(self, loader: Any, epoch: int) -> Any:
        if self._is_iterable:
            return _order.Endless(loader.batch_size)
        key = _order.keyed(self._policy.seed, epoch, "order")
        if loader.batch_sampler is None:
            return _order.Order(loader.sampler, None, False, key)
        if self._has_own_batches(loader):
            return _order.Order(loader.sampler, loader.batch_size, loader.drop_last, key)
        return _order.Order(loader.batch_sampler, None, False, key)

    def _has_own_batches(self, loader: Any) -> bool:
        return loader.batch_sampler is None or loader.batch_sampler is self._own_batches

    def _has_own_order(self, loader: Any) -> bool:
        is_own = self._own_sampler is not None and loader.sampler is self._own_sampler
        return is_own and self._has_own_batches(loader) and not self._is_iterable

    def _begin_order(self, loader: Any, order: Any, epoch: int, finished: Any, resumed: Any) -> None:
        if self._policy.place is not None and self._own_sampler is not None and not self._is_iterable:
            self._own_sampler.set_epoch(epoch)
        if finished is not None:
            order.finish(finished["order"])
        if resumed is None:
            order.begin()

    def _seeds(self, loader: Any) -> list[int | None]:
        if self._policy.output != "torch":
            return []
        sampler = loader.sampler if _order.is_shuffling(loader.sampler) else loader
        return [torch_data.fresh_seed(part.generator) for part in (loader, sampler)]

    def _is_seeded_since(self, loader: Any) -> bool:
        """Whether a generator was seeded after the next pass was promised: then that decides, as it does in torch."""
        if (then := self._seeds_then) is None:
            return False
        return any(now not in (None, before) for now, before in zip(self._seeds(loader), then, strict=True))

    def _base_seed(self, loader: Any, epoch: int) -> int:
        seed = _order.keyed(self._policy.seed, epoch, "workers")
        if seed is not None:
            return seed
        if self._policy.output == "torch":
            return torch_data.draw_base_seed(loader.generator)
        return random.getrandbits(62)

    def _setup(self, loader: Any, order: Any, epoch: int, resumed: Any, finished: Any, promised: Any) -> Setup:
        policy, count = self._policy, loader.num_workers
        kind = self.kind(loader)
        stays = kind != "inline" and loader.persistent_workers
        is_renewed = stays and self._staying is not None and resumed is None
        pipe_seed = torch_data.begin_pipe(loader.dataset, loader.generator, is_here=count == 0)
        if promised is not None:
            base_seed = promised["base_seed"]
        elif is_renewed and self._staying is not None:
            base_seed = self._staying[1].base_seed
        else:
            base_seed = self._base_seed(loader, epoch)
        if resumed is not None:
            base_seed = resumed["base_seed"]
            order.restore(resumed["order"])
        elif promised is not None and promised["order"] is not None:
            order.restore(promised["order"])
        elif count > 0 and not is_renewed:
            order.begin()  # torch does, twice: samplers that draw random numbers then draw them twice
            torch_data.pass_over_seed(loader.dataset, loader.generator)
        shard_count = count if resumed is None or not self._is_iterable else resumed["shard_count"]
        default = torch_data.collate_function(loader.batch_sampler is not None) if policy.output == "torch" else None
        job = Job(
            dataset=loader.dataset,
            collate_fn=None if loader.collate_fn is default else loader.collate_fn,
            worker_init_fn=torch_data.worker_init(loader.dataset, loader.worker_init_fn),
            is_iterable=self._is_iterable,
            is_batched=loader.batch_sampler is not None,
            drop_last=bool(loader.drop_last),
            shard_count=shard_count,
            base_seed=base_seed,
            seed=policy.seed,
            on_error=policy.on_error,
            max_attempts=policy.retries + 1,
            output=policy.output,
            pipe_seed=pipe_seed,
            deadline_seconds=policy.deadline_seconds,
            known_bad=self.books.known_bad(),
        )
        shards = list(range(max(1, shard_count)))
        states = self._states(loader, resumed, finished, shards, kind)
        workers, release = self._workers(kind, job, shards, states, stays)
        progress = Progress(
            epoch=epoch,
            base_seed=base_seed,
            shard_count=shard_count,
            shards=shards,
            is_iterable=self._is_iterable,
            has_states=self._is_iterable or is_stateful(loader.dataset),
            snapshot_every=policy.snapshot_every,
            states_now=workers.shard_states if isinstance(workers, InlineWorkers) else None,
        )
        ahead = 1 if kind == "inline" else max(1, loader.prefetch_factor or 0) * max(1, len(shards))
        return Setup(
            workers=workers,
            release=release,
            kind=kind,
            job=job,
            order=order,
            epoch=epoch,
            ahead=ahead,
            shards=shards,
            in_order=bool(loader.in_order) or kind == "inline",
            account=self.books.begin(epoch, None if resumed is None else resumed.get("books")),
            patience=Patience(policy.stall_seconds, float(loader.timeout) or float("inf")),
            replaces_from=self._replaces_from(loader),
            pin_device=torch_data.pin_device(loader.pin_memory, loader.pin_memory_device)
            if policy.output == "torch"
            else None,
            with_ids=policy.with_ids,
            copier=policy.copier,
            progress=progress,
            length_told=self.length_told,
            resumed=resumed,
        )

    def kind(self, loader: Any) -> str:
        if loader.num_workers == 0:
            if loader.timeout:
                raise ConfigError(
                    "timeout: expected 0 with num_workers=0, where the loop itself makes the batches, got "
                    f"{loader.timeout!r}"
                )
            return "inline"
        if self._policy.workers == "threads":
            return "threads"
        # Threads cannot seed what all of them draw from, so that `seed` could not be kept to, and a data pipe has one
        # iterator at a time.
        is_bound = self._policy.seed is not None or torch_data.is_pipe(loader.dataset)
        if self._policy.workers == "auto" and is_free_threaded() and not is_bound:
            return "threads"
        return "processes"

    def _workers(
        self, kind: str, job: Job, shards: list[int], states: list[Any] | None, stays: bool
    ) -> tuple[Workers, Callable[[], None]]:
        """Running workers, and the function to call at the end of the pass: it closes them, or keeps them."""
        if stays and self._staying is not None:
            workers, _, before = self._staying
            if before == shards:
                # Their random numbers continue, too.
                changes: dict[str, Any] = {} if job.pipe_seed is None else {"pipe_seed": job.pipe_seed}
                workers.renew(changes | ({"known_bad": job.known_bad} if job.known_bad else {}), states)
                return workers, _nothing
            self._end_staying()
        is_chosen = kind == "threads" and self._policy.workers == "auto"
        if (kind == "processes" or is_chosen) and not self._is_looked_at:
            self._is_looked_at = True
            if is_chosen:
                notices.shared(serialisation.held(job.dataset))
            else:
                notices.handles(serialisation.handles(job.dataset))
        workers = self._new_workers(kind)
        try:
            workers.start(job, shards, states)
        except BaseException:
            workers.close()
            raise
        if stays:
            self._staying = workers, job, shards
            self._kept[:] = [workers] if isinstance(workers, ProcessWorkers) else []
            return workers, _nothing
        if isinstance(workers, ProcessWorkers):
            return workers, functools.partial(_rest, workers, self._resting)
        return workers, workers.close

    def _end_staying(self) -> None:
        staying, self._staying = self._staying, None
        if staying is not None and isinstance(staying[0], ProcessWorkers):
            self._kept.clear()
            _rest(staying[0], self._resting)
        elif staying is not None:
            staying[0].close()

    def _new_workers(self, kind: str) -> Workers:
        policy = self._policy
        if kind == "inline":
            return InlineWorkers()
        if kind == "threads":
            return ThreadWorkers(policy.deadline_seconds, policy.memory_budget)
        if (resting := spare_fork_servers.popped(self._resting)) is not None:
            return resting
        return spare_fork_servers.take(policy.deadline_seconds, policy.memory_budget, policy.max_worker_memory)

    def _states(self, loader: Any, resumed: Any, finished: Any, shards: list[int], kind: str) -> list[Any] | None:
        """The states from which the shards resume."""
        if resumed is not None:
            told = resumed.get("shards")
            if told and self._is_iterable:
                return list(told)
            # The state of a map-style dataset is not divided: every worker resumes from the state of its shard.
            return [told[shard % len(told)] for shard in shards] if told else None
        # Objects that live on between passes continue from where the last pass left them.
        if finished is not None and finished.get("shards") and (kind == "inline" or loader.persistent_workers):
            told = finished["shards"]
            if len(told) == len(shards):
                return [None if state is None else state | {"finished": True} for state in told]
        return None

    def _replaces_from(self, loader: Any) -> tuple[int, int] | None:
        if not self._has_own_order(loader) or self._policy.on_error != "replace":
            return None
        return self._policy.seed or 0, len(loader.dataset)

    def state(self, loader: Any) -> dict[str, Any]:
        """The resume point: what the loop has got counts, not what was prefetched."""
        while True:
            latest = self._latest()
            with latest.at_rest() if latest is not None else contextlib.nullcontext(), self._lock:
                if latest is self._latest():  # no thread has begun another one meanwhile
                    return self._state(loader, latest)

    def _latest(self) -> Pass | None:
        """The pass that was begun last, if it is still there."""
        living = self._living()
        return living[-1] if living and living[-1].progress is self._progress else None

    def _state(self, loader: Any, latest: Pass | None) -> dict[str, Any]:
        if self._resumed is not None:
            return copy.deepcopy(self._resumed)
        if self._progress is None or self._progress.is_finished:
            self._promise(loader)  # first: a dataset may tell the process's random numbers in its state
        if latest is not None:
            told = latest.state()
        elif self._progress is not None:
            told = self._progress.state()
        else:
            told = {"epoch": self.epoch, "step": 0, "position": 0, "finished": False, "order": {"count": 0}}
            told |= {"base_seed": None, "shard_count": loader.num_workers}
        if told["finished"] or self._progress is None:
            told["next"] = self._promise(loader)
        divided = {} if self._is_iterable else {"world_size": elastic.world_size(loader)}
        return {"forebay": _VERSION, **self._identity(loader), **divided, **told}

    def _promise(self, loader: Any) -> dict[str, Any]:
        """Decides what decides the next pass, as torch would when it begins: drawn once, and kept to."""
        if self._promised is None:
            stays = loader.persistent_workers and self._staying is not None
            seed = self._staying[1].base_seed if stays and self._staying is not None else None
            base_seed = self._base_seed(loader, self.epoch) if seed is None else seed
            order = None
            if not self._is_iterable and self._policy.seed is None and _order.is_shuffling(loader.sampler):
                draw = self._order(loader, self.epoch)
                draw.decide()
                order = draw.state()
            self._promised, self._seeds_then = {"base_seed": base_seed, "order": order}, self._seeds(loader)
        return self._promised

    def _identity(self, loader: Any) -> dict[str, Any]:
        length = None
        if hasattr(type(loader.dataset), "__len__") and not self._is_iterable:
            length = len(loader.dataset)
        kind = type(loader.dataset)
        return {"dataset": f"{kind.__module__}.{kind.__qualname__}", "length": length}

    def load(self, loader: Any, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a state, with any number of workers and ranks; refuses one of another dataset."""
        with self._lock:
            self._load(loader, state_dict)

    def _load(self, loader: Any, state_dict: Mapping[str, Any]) -> None:
        # First, because a state that is refused must change nothing.
        is_given = state_dict is not None and not (isinstance(state_dict, Mapping) and not state_dict)
        state = copy.deepcopy(resume.check(state_dict, _STATE_KEYS)) if is_given else None
        self._progress = self._promised = self._unused = self._seeds_then = None
        if self._staying is not None:  # they are in the midst of another pass
            self._close_passes("this iteration was closed: load_state_dict ended its persistent_workers")
            self._end_staying()
        if state is None:
            self._resumed = None
            return
        if state["forebay"] != _VERSION:
            raise StateMismatchError(f"expected a state of version {_VERSION}, got version {state['forebay']!r}")
        books.check_state(state.get("books"))
        ours = self._identity(loader)
        other = [
            f"{name}: this loader has {ours[name]}, the state {state.get(name)}"
            for name in ours
            if state.get(name) != ours[name]
        ]
        if other:
            raise StateMismatchError("the state belongs to another dataset: " + "; ".join(other))
        self._resumed = elastic.converted(state, loader, self._has_own_batches(loader))

    def length(self, loader: Any) -> int:
        """Batches in a pass; the length that an iterable dataset reports is remembered, and compared with what it
        yields.
        """
        if not self._is_iterable:
            return len(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        length = self.length_told = len(loader.dataset)
        if loader.batch_size is None:
            return length
        size = int(loader.batch_size)
        return length // size if loader.drop_last else -(-length // size)

    def _worker_stats(self) -> dict[str, Any]:
        told = [workers.stats() for workers in self._worker_groups]
        if not told:
            return {}
        counts = {name: sum(each[name] for each in told) for name in ("restarts", "recycled")}
        return told[-1] | counts

    def report(self) -> Report:
        workers = self._worker_stats()
        text = self.books.report()
        if workers.get("restarts"):
            text += f"workers: {workers['restarts']} died or hung, and others took over their samples\n"
        if workers.get("recycled"):
            text += f"workers: {workers['recycled']} grew too large, and were replaced between two samples\n"
        return Report(text)

    def explain(self, loader: Any, step: int, epoch: int | None) -> list[dict[str, Any]]:
        """The samples of a step, as planned; with what became of them, where they were delivered."""
        if not self._has_own_order(loader):
            raise ConfigError("explain: expected an order of the loader's own, got a sampler or an iterable dataset")
        begun = self._progress
        wanted = epoch if epoch is not None else (self.epoch if begun is None else begun.epoch)
        order = self._order(loader, wanted)
        if begun is not None and begun.epoch == wanted:
            order.restore(begun.where.order | {"count": 0})
        elif _order.is_shuffling(loader.sampler) and self._policy.seed is None:
            raise ConfigError(
                f"explain: expected the epoch of the last pass, or a loader with a seed, got epoch {wanted}: its order "
                "depends on the generator's state when it begins"
            )
        elif self._policy.place is not None:
            loader.sampler.set_epoch(wanted)
        planned: Any = None
        for _ in range(step + 1):
            try:
                planned = order.next()
            except StopIteration:
                raise ConfigError(f"step: expected one below {len(loader)}, got {step}") from None
        rows = planned if loader.batch_sampler is not None else [planned]
        lost = {
            failure.position: failure
            for failure in self.books.failures
            if failure.epoch == wanted and failure.outcome in ("replaced", "skipped")
        }
        first = step * (loader.batch_size or 1)
        told = []
        for place, index in enumerate(rows):
            failure = lost.get(first + place)
            if failure is None or failure.outcome == "replaced":
                given = index if failure is None else failure.substitute
                told.append({"position": first + place, "planned": index, "index": given})
        return told

    def in_flight(self) -> list[dict[str, Any]]:
        return [item for one in self._living() for item in one.in_flight()]

    def stats(self) -> dict[str, Any]:
        """Where time went, and what became of the workers."""
        # Those of the last pass, when none is under way any more.
        known = [one.progress for one in self._living()] or ([] if self._progress is None else [self._progress])
        waits = sorted(wait for progress in known for wait in progress.waits)
        return {
            "samples": self.books.sample_count,
            "failed": self.books.failed_count,
            "wait_seconds": sum(waits),
            "wait_quantiles": {
                name: waits[min(len(waits) - 1, int(len(waits) * share))] if waits else 0.0
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            },
            "workers": self._worker_stats(),
        }

    @property
    def failures(self) -> Failures:
        return self.books.failures

    def set_epoch(self, loader: Any, epoch: int) -> None:
        with self._lock:
            # At its end a state is that of the next epoch, too.
            if (told := self._resumed) is not None and epoch not in (told["epoch"], told["epoch"] + told["finished"]):
                self._resumed = None
            if self.epoch != epoch:
                self._promised = None
            self.epoch = epoch
        for part in (loader.batch_sampler, loader.sampler):
            if callable(setter := getattr(part, "set_epoch", None)):
                setter(epoch)

    def _close_passes(self, why: str | None = None) -> None:
        for one in self._living():
            one.close(why)

    def _living(self) -> list[Pass]:
        return [one for known in self._passes if (one := known()) is not None]

    def close(self) -> None:
        """Ends every worker. Reports and state stay readable; iterating again is refused."""
        self._is_closed = True
        if self._process not in (None, os.getpid()):
            return
        self._close_passes(_CLOSED)
        # A thread that begins a pass at this moment is waited for, but not for ever.
        is_ours = self._lock.acquire(timeout=_CLOSE_SECONDS)
        try:
            self._close_passes(_CLOSED)
            self._end_staying()
            while (resting := spare_fork_servers.popped(self._resting)) is not None:
                resting.close()
            self.books.close()
        finally:
            if is_ours:
                self._lock.release()
