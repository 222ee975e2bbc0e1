"""States of a loader of a Python dataset: taken after any step, resumed with any number of workers."""

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

import forebay as fb
import python_datasets as datasets

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:.*worker creation.*:UserWarning", "ignore:no batch for:RuntimeWarning"),
]

THREADS = {"num_workers": 3, "workers": "threads"}
PROCESSES = {"num_workers": 2, "workers": "processes"}


def generator(number: int) -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(number)
    return made


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))  # type: ignore[no-any-return]


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": generator(7)},
    "shuffled by a seed": lambda: {"shuffle": True, "seed": 3},
    "a sampler": lambda: {"sampler": range(12, -1, -1)},
    "a sampler with a state": lambda: {"sampler": datasets.StatefulSampler(13)},
    "without the rest": lambda: {"drop_last": True, "shuffle": True},
}


@pytest.mark.parametrize("second", [{}, THREADS], ids=["caller", "threads"])
@pytest.mark.parametrize("first", [{}, THREADS], ids=["caller", "threads"])
@pytest.mark.parametrize("order", list(ORDERS))
def test_a_pass_goes_on_exactly_after_every_step(order: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    for step in range(6):
        torch.manual_seed(5)
        loader = fb.DataLoader(range(13), batch_size=3, **(ORDERS[order]() | first))
        passed = iter(loader)
        for _ in range(min(step, len(loader))):
            next(passed)
        state = through_json(loader.state_dict())
        expected = [batch.tolist() for batch in passed]
        torch.manual_seed(99)
        again = fb.DataLoader(range(13), batch_size=3, **(ORDERS[order]() | second))
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == expected, step


def test_a_state_goes_on_in_batches_of_another_size() -> None:
    loader = fb.DataLoader(range(12), batch_size=2, shuffle=True, seed=1)
    passed = iter(loader)
    next(passed)
    again = fb.DataLoader(range(12), batch_size=5, shuffle=True, seed=1)
    again.load_state_dict(loader.state_dict())
    rest = [index for batch in passed for index in batch.tolist()]
    assert [index for batch in again for index in batch.tolist()] == rest


@pytest.mark.parametrize("make", [datasets.Stream, datasets.StatefulStream])
@pytest.mark.parametrize(("first", "second"), [(0, 3), (3, 0), (3, 1), (3, 3)])
def test_a_stream_goes_on_with_any_number_of_workers(make: Callable[..., Any], first: int, second: int) -> None:
    for step in (0, 1, 4, 7):
        loader = fb.DataLoader(make(7, 0, 12), batch_size=2, num_workers=first, workers="threads")
        passed = iter(loader)
        for _ in range(step):
            next(passed)
        state = through_json(loader.state_dict())
        expected = [batch.tolist() for batch in passed]
        again = fb.DataLoader(make(7, 0, 12), batch_size=2, num_workers=second, workers="threads")
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == expected, step
        whole = fb.DataLoader(make(7, 0, 12), batch_size=2, num_workers=second, workers="threads")
        is_whole = [batch.tolist() for batch in again] == [batch.tolist() for batch in whole]
        assert is_whole, "the pass after that is one of its own number of workers"


@pytest.mark.parametrize("make", [datasets.Stream, datasets.StatefulStream])
def test_a_stream_goes_on_in_processes(make: Callable[..., Any]) -> None:
    loader = fb.DataLoader(make(7, 9), batch_size=2, **PROCESSES)  # type: ignore[arg-type]
    passed = iter(loader)
    for _ in range(3):
        next(passed)
    state = through_json(loader.state_dict())
    expected = [batch.tolist() for batch in passed]
    for arguments in (PROCESSES, {}):
        again = fb.DataLoader(make(7, 9), batch_size=2, **arguments)  # type: ignore[arg-type]
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == expected


@pytest.mark.parametrize("every", [0, 1, 4])
def test_states_may_be_told_seldom(every: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, **THREADS, "snapshot_every_n_steps": every}
    for step in range(8):
        loader = fb.DataLoader(datasets.StatefulStream(8, 3, 9), **arguments)
        passed = iter(loader)
        for _ in range(step):
            next(passed)
        state = through_json(loader.state_dict())
        expected = [batch.tolist() for batch in passed]
        again = fb.DataLoader(datasets.StatefulStream(8, 3, 9), **arguments)
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == expected, step


@pytest.mark.parametrize(
    ("workers", "batch_size", "every"),
    [*itertools.product(["threads"], [None, 2], [0, 1, 4, 100]), ("processes", None, 100), ("processes", 2, 4)],
)
def test_a_dataset_with_a_state_goes_on_after_the_end(workers: Any, batch_size: int | None, every: int) -> None:
    arguments = {"batch_size": batch_size, "num_workers": 2, "persistent_workers": True, "workers": workers}
    loader = fb.DataLoader(datasets.Counting(23), snapshot_every_n_steps=every, **arguments)
    assert sum(batch.numel() for batch in loader) == 23
    state = through_json(loader.state_dict())
    expected = [batch.tolist() for batch in loader]
    again = fb.DataLoader(datasets.Counting(23), snapshot_every_n_steps=every, **arguments)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected
    for one in (loader, again):
        one.close()


@pytest.mark.parametrize("kind", [{}, THREADS], ids=["caller", "threads"])
@pytest.mark.parametrize("order", list(ORDERS))
def test_at_its_end_a_pass_is_over_and_the_next_one_is_the_next(order: str, kind: dict[str, Any]) -> None:
    torch.manual_seed(5)
    loader = fb.DataLoader(range(13), batch_size=3, **(ORDERS[order]() | kind))
    list(loader)
    state = through_json(loader.state_dict())
    torch.rand(3)  # whatever the user draws in between
    expected = [batch.tolist() for batch in loader]
    again = fb.DataLoader(range(13), batch_size=3, **(ORDERS[order]() | kind))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected
    assert again.state_dict()["epoch"] == 1


def test_a_state_of_a_loop_that_was_left_is_still_there() -> None:
    loader = fb.DataLoader(range(9), batch_size=2)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    again = fb.DataLoader(range(9), batch_size=2)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[6, 7], [8]]


@pytest.mark.parametrize("make", [datasets.Stream, datasets.StatefulStream, datasets.Remembering])
@pytest.mark.parametrize("kind", [{}, {"num_workers": 1, "workers": "threads"}], ids=["caller", "thread"])
def test_a_stream_whose_loop_was_left_goes_on(make: Callable[..., Any], kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(make(12), batch_size=2, **kind)
    for step, batch in enumerate(loader):
        if step == 2:
            break
    assert batch.tolist() == [4, 5]
    again = fb.DataLoader(make(12), batch_size=2, **kind)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("kind", [{}, {"num_workers": 1, "workers": "threads"}, PROCESSES], ids=str)
def test_a_state_that_was_taken_does_not_change_any_more(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(datasets.Remembering(8, 0), batch_size=2, **kind)
    passed = iter(loader)
    next(passed)
    state = loader.state_dict()
    taken = json.dumps(state)
    rest = [batch.tolist() for batch in passed]
    assert json.dumps(state) == taken
    again = fb.DataLoader(datasets.Remembering(8, 0), batch_size=2, **kind)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest
    assert json.dumps(state) == taken


def test_a_dataset_that_tells_the_process_s_random_numbers_does_not_repeat_an_order() -> None:
    class Telling(datasets.Noisy):
        def state_dict(self) -> dict[str, Any]:
            return {"torch": torch.random.get_rng_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            torch.random.set_rng_state(state["torch"])

    def epochs(loader: Any, count: int) -> list[Any]:
        return [[batch[0].tolist() for batch in loader] for _ in range(count)]

    torch.manual_seed(0)
    expected = epochs(fb.DataLoader(Telling(9), shuffle=True), 4)
    torch.manual_seed(0)
    loader = fb.DataLoader(Telling(9), shuffle=True)
    begun = epochs(loader, 2)
    again = fb.DataLoader(Telling(9), shuffle=True)
    again.load_state_dict(loader.state_dict())
    torch.manual_seed(77)
    assert begun + epochs(again, 2) == expected


def test_what_came_before_its_turn_does_not_come_again() -> None:
    loader = fb.DataLoader(range(12), num_workers=3, workers="threads", in_order=False)
    passed = iter(loader)
    got = [int(next(passed)) for _ in range(5)]
    again = fb.DataLoader(range(12), num_workers=2, workers="threads", in_order=False)
    again.load_state_dict(through_json(loader.state_dict()))
    assert sorted([*got, *(int(batch) for batch in again)]) == list(range(12))


def test_the_dataset_of_another_state_is_refused() -> None:
    state = fb.DataLoader(datasets.Noisy(5)).state_dict()
    with pytest.raises(fb.errors.StateMismatchError, match="length: this loader has 6, the state 5"):
        fb.DataLoader(datasets.Noisy(6)).load_state_dict(state)
    with pytest.raises(fb.errors.StateMismatchError, match=r"dataset: this loader has .*Many, the state .*Noisy"):
        fb.DataLoader(datasets.Many()).load_state_dict(state)
    with pytest.raises(fb.errors.StateMismatchError, match=r"got one without .*shard_count"):
        fb.DataLoader(datasets.Noisy(5)).load_state_dict({"step": 3})


def test_a_sampler_of_torchdata_goes_on() -> None:
    module = pytest.importorskip("torchdata.stateful_dataloader.sampler")
    make = lambda: module.StatefulDistributedSampler(range(20), 2, 1, shuffle=True)  # noqa: E731
    loader = fb.DataLoader(range(20), batch_size=3, sampler=make())
    passed = iter(loader)
    next(passed)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in passed]
    again = fb.DataLoader(range(20), batch_size=3, sampler=make())
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected


def test_a_state_is_small() -> None:
    loader = fb.DataLoader(data.TensorDataset(torch.zeros(100_000)), shuffle=True)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 500


@pytest.mark.parametrize("kind", [{}, {"num_workers": 2, "workers": "threads"}])
def test_a_pass_that_nobody_asked_for_a_batch_does_not_count(kind: dict[str, Any]) -> None:
    def make() -> fb.DataLoader:
        return fb.DataLoader(range(12), batch_size=2, shuffle=True, seed=3, **kind)

    def taken(loader: fb.DataLoader) -> list[list[int]]:
        return [batch.tolist() for batch in loader]

    plain = make()
    first, second = taken(plain), taken(plain)
    loader = make()
    iter(loader)  # as Lightning does, to see whether it can be iterated
    assert loader.state_dict()["epoch"] == 0
    assert taken(loader) == first
    passed = iter(loader)
    next(passed), next(passed)
    other = make()
    other.load_state_dict(loader.state_dict())
    iter(other)
    assert taken(other) == second[2:], "the state that was loaded is still there"
    del passed
    assert taken(loader) != second, "a pass that was begun counts"


class Slow(data.IterableDataset[int]):
    """Cannot say where it is, and takes its time for each sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            time.sleep(self.seconds)
            yield number


@pytest.mark.parametrize(
    "kind", [THREADS | {"num_workers": 1}, PROCESSES | {"num_workers": 1}], ids=["threads", "processes"]
)
def test_what_a_stream_draws_again_has_a_deadline_for_each_sample(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(Slow(0.0), batch_size=2)
    passed = iter(loader)
    for _ in range(5):
        next(passed)
    again = fb.DataLoader(Slow(0.25), batch_size=2, deadline_seconds=1.5, **kind)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[10, 11]]
    assert again.stats()["workers"]["restarts"] == 0


@pytest.mark.parametrize("has_generator", [False, True], ids=["torch's generator", "its own"])
@pytest.mark.parametrize("kind", [{}, THREADS], ids=["caller", "threads"])
def test_seeding_each_epoch_counts_however_often_a_state_is_taken(kind: dict[str, Any], has_generator: bool) -> None:
    def epochs(make: Any, is_checkpointed: bool = False) -> list[Any]:
        given: list[Any] = []
        mine = generator(1) if has_generator else torch.default_generator
        made = make(datasets.Noisy(8), batch_size=4, shuffle=True, generator=mine if has_generator else None)
        for epoch in range(3):
            mine.manual_seed(100 + epoch)
            given.append([batch[0].tolist() for batch in made])
            if is_checkpointed:
                made.state_dict()
        return given

    ours = functools.partial(fb.DataLoader, **kind)
    expected = epochs(data.DataLoader)
    assert epochs(ours) == epochs(ours, is_checkpointed=True) == expected


@pytest.mark.parametrize("is_generator_its_own", [False, True])
def test_a_state_of_an_epochs_end_holds_when_the_next_epoch_is_set(is_generator_its_own: bool) -> None:
    def made() -> Any:
        own = generator(2) if is_generator_its_own else None
        return fb.DataLoader(range(12), batch_size=4, shuffle=True, generator=own)

    torch.manual_seed(5)
    loader = made()
    list(loader)
    state = through_json(loader.state_dict())
    expected = [batch.tolist() for batch in loader]
    torch.manual_seed(77)
    torch.rand(1)
    again = made()
    again.load_state_dict(state)
    again.set_epoch(1)
    assert [batch.tolist() for batch in again] == expected
    again.load_state_dict(state)
    again.set_epoch(4)
    assert again.state_dict()["epoch"] == 4


@pytest.mark.parametrize(
    "order",
    [
        lambda: {"sampler": data.SubsetRandomSampler(range(12))},
        lambda: {"sampler": data.WeightedRandomSampler([1.0] * 12, 12)},
        lambda: {"batch_sampler": data.BatchSampler(data.RandomSampler(range(12)), 2, False)},
    ],
    ids=["SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler"],
)
def test_a_random_sampler_without_a_state_is_warned_of(order: Callable[[], dict[str, Any]]) -> None:
    loader = fb.DataLoader(range(12), **order())
    next(iter(loader))
    again = fb.DataLoader(range(12), **order())
    again.load_state_dict(loader.state_dict())
    with pytest.warns(RuntimeWarning, match="has no state: it starts over") as warned:
        list(again)
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_orders_that_are_the_same_again_are_not_warned_of() -> None:
    for order in ({}, {"shuffle": True}, {"sampler": range(12)}, {"batch_sampler": [[0, 1], [2, 3]]}):
        loader = fb.DataLoader(range(12), **order)
        next(iter(loader))
        again = fb.DataLoader(range(12), **order)
        again.load_state_dict(loader.state_dict())
        list(again)
