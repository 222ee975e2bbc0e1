"""A pass that is closed before its end: asking it for more raises an error, and does not look like the end."""

from typing import Any

import pytest
import torch
from torch.utils import data

import forebay as fb

KINDS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1, "workers": "threads"},
    {"num_workers": 1, "workers": "processes"},
]
STAYING = {"num_workers": 1, "workers": "threads", "persistent_workers": True}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_loop_whose_loader_is_closed_does_not_end_as_if_the_data_did(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(range(8), batch_size=2, **kind)
    given = []
    with pytest.raises(fb.errors.StoppedError, match="closed, with its loader"):
        for batch in loader:
            given.append(batch.tolist())
            if len(given) == 2:
                loader.close()
    assert given == [[0, 1], [2, 3]]


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_a_pass_that_came_to_its_end_stays_there(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(range(4), batch_size=2, **kind)
    passed = iter(loader)
    assert len(list(passed)) == 2
    assert list(passed) == []
    loader.close()
    assert list(passed) == []


def test_a_second_pass_of_workers_that_stay_ends_the_first_aloud() -> None:
    torch_loader: Any = data.DataLoader(range(6), num_workers=1, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
    assert iter(torch_loader) is iter(torch_loader), "torch would hand out the same batches to both"
    del torch_loader
    loader = fb.DataLoader(range(6), **STAYING)
    with pytest.raises(fb.errors.StoppedError, match="one at a time, and another began"):
        list(zip(loader, loader, strict=True))
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3, 4, 5]


def test_two_passes_at_a_time_are_fine_where_workers_do_not_stay() -> None:
    loader = fb.DataLoader(range(4), num_workers=1, workers="threads")
    assert [(one.item(), other.item()) for one, other in zip(loader, loader, strict=True)] == [(i, i) for i in range(4)]


def test_a_pass_whose_workers_a_loaded_state_ended_says_so() -> None:
    loader = fb.DataLoader(range(6), **STAYING)
    passed = iter(loader)
    next(passed)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(fb.errors.StoppedError, match="load_state_dict"):
        next(passed)
    assert torch.cat(list(loader)).tolist() == [1, 2, 3, 4, 5]
