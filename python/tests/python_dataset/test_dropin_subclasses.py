"""Subclasses as libraries have them: loaders whose workers never end, attributes of their own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

import forebay as fb


class Repeat:
    """A sampler that begins again at its end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def past_the_rule(loader: Any) -> None:
    """As Ultralytics does it."""
    object.__setattr__(loader, "batch_sampler", Repeat(loader.batch_sampler))


def between(loader: Any) -> None:
    """As timm does it."""
    loader._DataLoader__initialized = False
    if loader.batch_sampler is None:
        loader.sampler = Repeat(loader.sampler)
    else:
        loader.batch_sampler = Repeat(loader.batch_sampler)
    loader._DataLoader__initialized = True


def endless(base: Any, change: Any) -> Any:
    class Endless(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.count = super().__len__()
            change(self)
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return self.count  # type: ignore[no-any-return]

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    return Endless


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (past_the_rule, {"batch_size": 4}),
        (past_the_rule, {"batch_size": 4, "num_workers": 1}),
        (between, {"batch_size": 4}),
        (between, {"batch_size": None}),
    ],
    ids=["Ultralytics", "Ultralytics, in a worker", "timm", "timm, without batches"],
)
def test_a_loader_that_never_ends_gives_what_torchs_gives(change: Any, options: dict[str, Any]) -> None:
    given = []
    for base in (fb.DataLoader, data.DataLoader):
        torch.manual_seed(3)
        loader = endless(base, change)(range(10), shuffle=True, **options)
        given.append([[torch.as_tensor(batch).tolist() for batch in loader] for _ in range(3)])
        del loader
    assert given[0] == given[1]
    assert [len(epoch) for epoch in given[0]] == ([10] * 3 if options["batch_size"] is None else [3] * 3)


def test_what_is_put_in_place_of_the_order_is_not_explained_or_replaced_from_as_ones_own() -> None:
    loader = fb.DataLoader(range(10), batch_size=4)
    past_the_rule(loader)
    with pytest.raises(fb.errors.ConfigError, match="an order of the loader's own"):
        loader.explain(0)


def test_the_rule_holds_again_afterwards() -> None:
    loader = fb.DataLoader(range(10), batch_size=4)
    between(loader)
    with pytest.raises(fb.errors.ConfigError, match="batch_sampler attribute should not be set"):
        loader.batch_sampler = None
    assert len(list(zip(loader._get_iterator(), range(9), strict=False))) == 9


def test_attributes_of_a_subclass_stay_its_own() -> None:
    class Named(fb.DataLoader):
        decode = "mine"  # type: ignore[assignment]

        def __init__(self, *args: Any, **options: Any) -> None:
            self.seed, self.rank, self.shuffle = 5, 3, "sometimes"  # type: ignore[assignment]
            super().__init__(*args, **options)

        @property
        def world_size(self) -> int:  # type: ignore[override]
            return 8

    loader = Named(range(4), seed=7)
    assert (loader.seed, loader.rank, loader.shuffle, loader.world_size, loader.decode) == (
        5,
        3,
        "sometimes",
        8,
        "mine",
    )
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]
    plain = fb.DataLoader(range(4), seed=7)
    assert (plain.seed, plain.rank, plain.shuffle, plain.world_size) == (7, 0, False, 1)
