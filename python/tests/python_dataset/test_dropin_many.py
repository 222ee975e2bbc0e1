"""Datasets that are asked for several samples at once: `__getitems__`, and so every `Subset`."""

import errno
import random
from typing import Any

import pytest
import torch
from torch.utils import data

import forebay as fb
import python_datasets as datasets


class Listed(data.Dataset[Any]):
    """Takes an index or a list of them, and draws a random number for each."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return torch.tensor(index)
        return index, random.randrange(10**9)


class Together(Listed):
    """Gives lists of samples."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Whole(Listed):
    """Gives batches that are made already."""

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        return {"indices": torch.tensor(indices)}


class FlakyTogether(datasets.Flaky):
    """Fails as a batch, too."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("make", [lambda: data.Subset(Listed(), range(8)), Together], ids=["Subset", "__getitems__"])
def test_a_sampler_of_batches_asks_for_lists_as_in_torch(make: Any) -> None:
    order: Any = data.BatchSampler(data.SequentialSampler(range(8)), 4, False)
    made, expected = (kind(make(), batch_size=None, sampler=order) for kind in (fb.DataLoader, data.DataLoader))
    assert [batch.tolist() for batch in made] == [batch.tolist() for batch in expected] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.Subset(datasets.Flaky(), range(4)),
        lambda: data.Subset(data.Subset(datasets.Flaky(), range(4)), range(4)),
        FlakyTogether,
        lambda: data.Subset(FlakyTogether(), range(4)),
    ],
    ids=["Subset", "Subset of a Subset", "__getitems__", "Subset of __getitems__"],
)
def test_an_error_that_passes_is_tried_again(make: Any) -> None:
    loader = fb.DataLoader(make(), batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]]
    (failure,) = loader.failures
    assert (failure.index, failure.errno, failure.outcome) == (2, errno.EIO, "recovered")


def test_an_error_in_a_subset_says_the_sample() -> None:
    loader = fb.DataLoader(data.Subset(datasets.Bad(8, {6: ValueError("no")}), range(4, 8)), batch_size=4)
    with pytest.raises(ValueError, match="no") as raised:
        next(iter(loader))
    assert "sample 2, position 2 of batch 0 of epoch 0" in "\n".join(raised.value.__notes__)


@pytest.mark.parametrize("make", [lambda: data.Subset(Listed(), range(8)), Together], ids=["Subset", "__getitems__"])
def test_random_numbers_of_a_seed_are_those_of_the_sample(make: Any) -> None:
    def drawn(batch_size: int) -> dict[int, int]:
        loader = fb.DataLoader(make(), batch_size=batch_size, seed=3)
        return {int(index): int(number) for indices, numbers in loader for index, number in zip(indices, numbers)}

    assert drawn(2) == drawn(4) == drawn(3)
    assert len(set(drawn(2).values())) == 8


@pytest.mark.parametrize("seed", [None, 3])
def test_batches_that_a_dataset_makes_itself_stay_whole(seed: int | None) -> None:
    loader = fb.DataLoader(Whole(), batch_size=4, collate_fn=lambda batch: batch, seed=seed)
    assert [batch["indices"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
