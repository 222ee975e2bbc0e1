"""The order of one pass over a Python dataset: which indices make up which task, and where it is.

It can say where it is after each task in a few JSON values, and begin there again: torch's own samplers from their
seed, samplers with a state from their state, all others by drawing and dropping what was handed out before.
"""

import copy
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from forebay import _forebay
from forebay._arrays import torch_data
from forebay._options import samplers
from forebay._python.workers.process import seeds
from forebay._python.workers.process.fetch import is_stateful
from forebay._record import notices


@dataclass(frozen=True)
class FromDataset:
    """Substitutes from the whole dataset, where the order is the loader's own: the ones that the engine would take for
    the same seed, epoch and position.
    """

    seed: int
    epoch: int
    # The position in the epoch of the first sample of the task.
    first_position: int
    length: int

    def candidates(self, position: int, failed: int) -> Iterator[int]:
        if self.length < 2:
            return
        place = self.first_position + position
        for attempt in itertools.count(1):
            yield _forebay.substitute(self.length, self.seed, self.epoch, place, int(failed), attempt)


@dataclass(frozen=True)
class FromBatch:
    """Substitutes from the same batch: only the user's own sampler decides which samples are used."""

    indices: list[Any]

    def candidates(self, position: int, failed: Any) -> Iterator[Any]:
        count = len(self.indices)
        others = (self.indices[(position + further) % count] for further in range(1, count))
        # A sampler may repeat a sample within a batch.
        return (other for other in others if not _is_same(other, failed))


def _is_same(index: Any, other: Any) -> bool:
    try:
        return bool(index == other)
    except Exception:  # keys may be of any kind: arrays have no single truth
        return index is other


class Draw:
    """Draws from a sampler, and knows where it is.

    As in torch, a sampler that is asked directly is asked for its iterator at once, and where there are workers twice:
    some draw random numbers then. One below a batch sampler is asked when its first index is wanted.
    """

    def __init__(self, source: Iterable[Any], key: int | None) -> None:
        self._source = source
        # Looked up once, not for every index.
        self._is_shuffling = is_shuffling(source)
        # Decides the order of a `RandomSampler`; without it the order is torch's, from the generator.
        self._key = key
        self._iterator: Iterator[Any] | None = None
        self._begun_at: str | int | None = None
        self.count = 0

    def begin(self) -> None:
        """Asks for the iterator."""
        self._iterator = iter(self._source)

    def __next__(self) -> Any:
        self.decide()
        if self._iterator is None:
            self.begin()
        item = next(self._iterator)  # type: ignore[arg-type]
        self.count += 1
        return item

    def _shuffled(self, sampler: Any, begun_at: str | int | None) -> Iterator[Any]:
        """The order of torch's `RandomSampler`, with its seed or its generator's state kept in mind."""
        known = copy.copy(sampler)
        if isinstance(sampler, samplers.RandomSampler):
            known.seed = begun_at if begun_at is not None else self._key
            known.seed = random.getrandbits(63) if known.seed is None else known.seed
            self._begun_at = known.seed
            return iter(known)
        if self._key is not None and begun_at is None:
            begun_at = self._key
        if sampler.generator is None or self._key is not None:
            # Exactly what the sampler does itself, when its first index is drawn.
            self._begun_at = torch_data.draw_base_seed(None) if begun_at is None else begun_at
            known.generator = torch_data.generator(0)
            torch_data.set_generator_state(known.generator, self._begun_at)
        else:
            if begun_at is not None:
                torch_data.set_generator_state(sampler.generator, begun_at)
            self._begun_at = torch_data.generator_state(sampler.generator)
        return iter(known)

    def decide(self) -> None:
        """Decides the order of a `RandomSampler` now, if nothing was drawn yet."""
        if self._begun_at is None and self._is_shuffling:
            self._iterator = self._shuffled(self._source, None)

    def state(self) -> dict[str, Any]:
        """The state after the last task that was drawn."""
        state: dict[str, Any] = {"count": self.count}
        if self._begun_at is not None:
            state["begun_at"] = self._begun_at
        if is_stateful(self._source):
            state["sampler"] = copy.deepcopy(self._source.state_dict())  # type: ignore[attr-defined]
        if is_stateful(self._iterator) and self._iterator is not self._source:
            state["iterator"] = copy.deepcopy(self._iterator.state_dict())  # type: ignore[union-attr]
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continues after the indices that were drawn before."""
        self.count = state["count"]
        if self._is_shuffling:
            if "begun_at" in state:
                order = self._shuffled(self._source, state["begun_at"])
                self._iterator = itertools.islice(order, self.count, None)
            return
        if "sampler" in state and is_stateful(self._source):
            self._source.load_state_dict(state["sampler"])  # type: ignore[attr-defined]
        self.begin()
        if "iterator" in state and is_stateful(self._iterator):
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[union-attr]
        if "sampler" not in state and "iterator" not in state:
            if self.count and torch_data.is_random(self._source):
                notices.random_order(type(self._source).__name__)
            self._iterator = itertools.islice(self._iterator, self.count, None)  # type: ignore[arg-type]

    def finish(self, state: dict[str, Any]) -> None:
        """Restores the sampler to its state at the end of a finished pass: the next pass continues from it."""
        if "sampler" in state and is_stateful(self._source):
            self._source.load_state_dict(state["sampler"])  # type: ignore[attr-defined]
        generator = getattr(self._source, "generator", None) if self._is_shuffling else None
        if generator is not None and self._key is None and state.get("begun_at") is not None:
            for _ in self._shuffled(self._source, state["begun_at"]):
                pass


def is_shuffling(sampler: Any) -> bool:
    """Whether it is a `RandomSampler`, whose order a seed decides."""
    return type(sampler) is samplers.RandomSampler or torch_data.is_shuffling(sampler)


class Order:
    """The tasks of one pass over a map-style dataset: lists of indices, or single ones where nothing is batched."""

    def __init__(self, source: Iterable[Any], batch_size: int | None, drop_last: bool, key: int | None) -> None:
        """`source` yields tasks; with a `batch_size` it yields indices, which are batched here."""
        self._draw = Draw(source, key)
        self._batch_size, self._drop_last = batch_size, drop_last
        # The last batch was not a full one: the sampler has said that it is at its end, and may begin again.
        self._is_over = False

    def begin(self) -> None:
        """Asks a sampler that is used directly for its iterator."""
        if self._batch_size is None:
            self._draw.begin()

    def next(self) -> Any:
        """What the next task is made of; raises `StopIteration` at the end."""
        if self._batch_size is None:
            return next(self._draw)
        if self._is_over:
            raise StopIteration
        batch: list[Any] = []
        try:
            while len(batch) < self._batch_size:
                batch.append(next(self._draw))
        except StopIteration:
            if not batch or self._drop_last:
                raise
            self._is_over = True
        return batch

    def decide(self) -> None:
        """Decides the order now, where that is done when its first index is drawn."""
        self._draw.decide()

    def state(self) -> dict[str, Any]:
        return self._draw.state() | ({"over": True} if self._is_over else {})

    def restore(self, state: dict[str, Any]) -> None:
        self._is_over = state.get("over", False)
        self._draw.restore(state)

    def finish(self, state: dict[str, Any]) -> None:
        self._draw.finish(state)


class Endless:
    """The tasks of an iterable dataset: each asks for a batch, and the dataset says when it ends."""

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size

    def begin(self) -> None:
        pass

    def next(self) -> Any:
        return self._batch_size

    def decide(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    def finish(self, state: dict[str, Any]) -> None:
        pass


def keyed(seed: int | None, epoch: int, what: str) -> int | None:
    """A number of an epoch's own, where the user gave a seed."""
    return None if seed is None else seeds.key(seed, epoch, what) >> 1
