"""Where a pass over a Python dataset is, as its state tells it. Outlives the pass: a loop may be left any time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay._record.books import empty as empty_books


@dataclass
class Where:
    """Where the pass is, as its state tells it."""

    step: int = 0
    position: int = 0
    order: dict[str, Any] = field(default_factory=dict)
    shards: dict[int, Any] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    last_shard: int = -1
    # Tasks that were delivered before earlier ones: `in_order=False`.
    early: set[int] = field(default_factory=set)
    number: int = 0
    # What became of the samples handed over so far.
    books: dict[str, int] = field(default_factory=empty_books)

    def copy(self) -> "Where":
        return Where(
            self.step,
            self.position,
            self.order,
            dict(self.shards),
            set(self.ended),
            self.last_shard,
            set(self.early),
            self.number,
            dict(self.books),
        )


@dataclass
class Progress:
    """What a pass has handed over, counted at the user's side: what is prefetched does not count."""

    epoch: int
    base_seed: int
    shard_count: int
    shards: list[int]
    is_iterable: bool
    # The dataset has states of its own, told with the batches every so many tasks; 0: never.
    has_states: bool
    snapshot_every: int
    # Without workers the dataset is in this process, and is asked directly.
    states_now: Callable[[], list[Any]] | None
    where: Where = field(default_factory=Where)
    # Whether a batch was ever asked for.
    is_begun: bool = False
    is_finished: bool = False
    # How long the loop waited for each batch.
    waits: list[float] = field(default_factory=list)
    _snapshot: Where | None = None
    _since: int = 0
    # With `in_order=False`: the order's state after each task that came before its turn.
    _orders: dict[int, Any] = field(default_factory=dict)

    def begin(self, order: dict[str, Any]) -> None:
        """Begins a whole pass."""
        self.where.order = order
        self._snapshot = self.where.copy() if self._is_sparse else None

    def know_order(self, order: dict[str, Any]) -> None:
        """Takes note of what decides the order, where nothing of it was handed over yet."""
        for where in (self.where, self._snapshot):
            if where is not None and where.number == 0 and "begun_at" in order:
                where.order = {"count": 0, "begun_at": order["begun_at"]}

    def resume(self, state: dict[str, Any]) -> int:
        """Begins where a state was taken. Returns how many later batches were already delivered."""
        where = self.where
        where.step, where.position, where.order = state["step"], state["position"], state["order"]
        where.number = state.get("number", where.step)
        where.early = set(state.get("early", ()))
        for shard, told in zip(self.shards, state.get("shards") or [], strict=False):
            where.shards[shard] = told
        where.ended = set(state.get("ended", ()))
        where.last_shard = state.get("last_shard", -1)
        # A state of an older version has none: then only what comes after it is counted.
        where.books = dict(state.get("books") or empty_books())
        self._snapshot = where.copy() if self._is_sparse else None
        return int(state.get("since", 0))

    @property
    def _is_sparse(self) -> bool:
        return self.has_states and self.states_now is None and self.snapshot_every != 1

    def hand_over(self, number: int, shard: int, order: Any, position: int, told: Any, in_order: bool) -> None:
        """Counts a batch, or one of which nothing was left: `position` is that behind it."""
        where = self.where
        if in_order:
            where.number, where.order, where.position = number + 1, order, position
        else:
            where.early.add(number)
            self.remember(number, order, position)
            while where.number in where.early:
                where.early.discard(where.number)
                where.order, where.position = self._orders.pop(where.number)
                where.number += 1
        where.last_shard = shard
        if told is not None:
            where.shards[shard] = told
        self._take_snapshot(number)

    def remember(self, number: int, order: Any, position: int) -> None:
        """Notes where the order is behind a task that comes, or came, before its turn."""
        self._orders[number] = order, position

    def count_batch(self) -> None:
        self.where.step += 1
        self._since += 1

    @property
    def wants_last_states(self) -> bool:
        """Whether the shards have to be asked at the end: states are told seldom, and no stream's end brings them."""
        return self._is_sparse and not self.is_iterable

    def end_shard(self, number: int, shard: int, told: Any) -> None:
        """Counts the end of a shard's iterable, or only takes its last state."""
        if told is not None:
            self.where.shards[shard] = told
        if not self.is_iterable:
            return
        self.where.ended.add(shard)
        self.where.number = number + 1
        self._take_snapshot(number)

    def wants_state(self, number: int) -> bool:
        """Whether a task shall tell the state of its dataset: those before a snapshot, one of each shard."""
        if not self.has_states or self.states_now is not None or not self.snapshot_every:
            return False
        return -(number + 1) % self.snapshot_every < len(self.shards)

    def _take_snapshot(self, number: int) -> None:
        if not self._is_sparse:
            self._since = 0
        elif self.snapshot_every and (number + 1) % self.snapshot_every == 0:
            self._since, self._snapshot = 0, self.where.copy()

    def finish(self) -> None:
        """The pass came to its end."""
        self.is_finished = True
        if self._is_sparse:
            self._since, self._snapshot = 0, self.where.copy()

    def state(self) -> dict[str, Any]:
        """Few JSON values, and the states of the user's own objects."""
        where = self.where if self._snapshot is None else self._snapshot
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "step": where.step,
            "position": where.position,
            "number": where.number,
            "finished": self.is_finished,
            "order": where.order,
            "base_seed": self.base_seed,
            "shard_count": self.shard_count,
            "books": dict(where.books),
        }
        if self.has_states:
            now = None if self.states_now is None else self.states_now()
            state["shards"] = [where.shards.get(shard) for shard in self.shards] if now is None else now
        if self.is_iterable:
            state |= {"ended": sorted(where.ended), "last_shard": where.last_shard}
        if where.early:
            state["early"] = sorted(where.early)
        if self._since:
            state["since"] = self._since
        return state
