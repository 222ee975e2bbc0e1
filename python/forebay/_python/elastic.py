"""Resuming a map-style dataset that ranks divide among them on another number of ranks."""

from typing import Any

from forebay._arrays import torch_data
from forebay._options import samplers
from forebay.errors import StateMismatchError

# A sampler of a sampler of a sampler.
_MAX_DEPTH = 8


def world_size(loader: Any) -> int:
    """How many ranks divide the order, as far as its sampler says so."""
    part = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    for _ in range(_MAX_DEPTH):
        count = getattr(part, "num_replicas", None)
        if isinstance(count, int) and count > 0:
            return count
        part = getattr(part, "sampler", None)
    return 1


def converted(state: dict[str, Any], loader: Any, is_own_batches: bool) -> dict[str, Any]:
    """The state for the current number of ranks: all of them skip samples that were delivered to any of them.

    The number of steps stays as it is.
    """
    before, now, order = state.get("world_size"), world_size(loader), state["order"]
    if before in (None, now) or state["finished"] or "next" in state:
        return state
    if "sampler" in order or "iterator" in order:  # it says itself where it is
        return state
    got = order["count"] * before
    if got == 0:
        return state
    told = f"the state was taken on {before} rank{'s' * (before > 1)}, and this loader runs on {now}"
    hint = f"resume with world_size={before}, or from the end of an epoch, where any number of ranks can resume"
    if not _is_known(loader, is_own_batches) or "begun_at" in order:
        raise StateMismatchError(f"{told}: their orders are not parts of one shared order", hint=hint)
    if state.get("early") or state.get("since"):
        cause = "in_order=False" if state.get("early") else "snapshot_every_n_steps"
        why = f"with {cause} it is rank-specific and cannot be resumed on another number of ranks"
        raise StateMismatchError(f"{told}: {why}", hint=hint)
    if got % now:
        why = f"{got} delivered samples cannot be split evenly across {now} ranks"
        raise StateMismatchError(f"{told}: {why}", hint=hint)
    return state | {"order": order | {"count": got // now}, "position": got // now, "world_size": now}


def _is_known(loader: Any, is_own_batches: bool) -> bool:
    """Whether rank r of n takes samples r, r + n, r + 2n … of an order that all of them share."""
    is_plain = type(loader.sampler) is samplers.SequentialSampler or torch_data.is_dividing(loader.sampler)
    return is_own_batches and is_plain
