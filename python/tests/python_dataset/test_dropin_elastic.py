"""States of a Python dataset that ranks divide, resumed on another number of ranks."""

from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

import forebay as fb


def loader(rank: int, world_size: int, length: int = 24, **options: Any) -> fb.DataLoader:
    return fb.DataLoader(range(length), rank=rank, world_size=world_size, **options)


def with_sampler(rank: int, world_size: int, length: int = 24, shuffle: bool = False, **options: Any) -> fb.DataLoader:
    """As it is done with torch."""
    sampler: Any = DistributedSampler(range(length), world_size, rank, shuffle=shuffle, seed=4)  # type: ignore[arg-type]
    return fb.DataLoader(range(length), sampler=sampler, **options)


def state_after(steps: int, made: fb.DataLoader) -> tuple[list[int], dict[str, Any]]:
    passed = iter(made)
    given = [int(index) for _ in range(steps) for index in next(passed)]
    return given, made.state_dict()


@pytest.mark.parametrize("make", [loader, with_sampler])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("before", "now"), [(4, 2), (2, 4), (4, 3), (3, 4)])
def test_another_number_of_ranks_gives_what_was_not_given(make: Any, shuffle: bool, before: int, now: int) -> None:
    options = {"batch_size": 4, "shuffle": shuffle} | ({"seed": 4} if make is loader else {})
    taken = [state_after(3, make(rank, before, 96, **options)) for rank in range(before)]
    rest = []
    for rank in range(now):
        again = make(rank, now, 96, **options)
        again.load_state_dict(taken[rank % before][1])
        assert again.state_dict()["step"] == taken[0][1]["step"]
        rest += torch.cat(list(again)).tolist()
    assert sorted(rest + [index for given, _ in taken for index in given]) == list(range(96))


@pytest.mark.parametrize("now", [1, 2])
def test_a_single_rank_goes_on_where_nothing_is_shuffled(now: int) -> None:
    _, state = state_after(2, loader(0, 3 - now, 12))
    again = loader(0, now, 12)
    again.load_state_dict(state)
    assert torch.cat(list(again)).tolist() == (list(range(4, 12)) if now == 1 else [2, 4, 6, 8, 10])


def test_what_cannot_be_divided_is_refused_with_what_to_do() -> None:
    _, state = state_after(1, loader(0, 4))
    said = r"taken on 4 ranks, .* runs on 3: 4 delivered samples"
    with pytest.raises(fb.errors.StateMismatchError, match=said) as raised:
        loader(0, 3).load_state_dict(state)
    assert "world_size=4" in raised.value.hint


def test_orders_that_are_not_parts_of_one_are_refused() -> None:
    _, shuffled = state_after(2, loader(0, 2, shuffle=True, seed=1))
    _, single = state_after(2, loader(0, 1, shuffle=True, seed=1))
    for state, other in ((shuffled, loader(0, 1, shuffle=True, seed=1)), (single, loader(0, 2, shuffle=True, seed=1))):
        with pytest.raises(fb.errors.StateMismatchError, match="not parts of one shared order"):
            other.load_state_dict(state)
    batches: Any = data.BatchSampler(DistributedSampler(range(24), 4, 0), 2, False)  # type: ignore[arg-type,var-annotated]
    _, state = state_after(1, fb.DataLoader(range(24), batch_sampler=batches))
    batches.sampler = DistributedSampler(range(24), 2, 0)  # type: ignore[arg-type]
    with pytest.raises(fb.errors.StateMismatchError, match="not parts of one shared order"):
        fb.DataLoader(range(24), batch_sampler=batches).load_state_dict(state)


def test_the_end_of_an_epoch_is_a_point_for_any_number_of_ranks() -> None:
    done = loader(0, 4, shuffle=True, seed=1)
    list(done)
    parts = [loader(rank, 3, shuffle=True, seed=1) for rank in range(3)]
    for part in parts:
        part.load_state_dict(done.state_dict())
    assert sorted(int(index) for part in parts for batch in part for index in batch) == list(range(24))
    assert [part.state_dict()["epoch"] for part in parts] == [1, 1, 1]
