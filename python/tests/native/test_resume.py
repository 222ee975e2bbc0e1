"""Promise 3: restored after any step, on any ranks and threads, the rest of the epoch is bit-identical."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import folders
import forebay as fb
from forebay import transforms as T

Digests = Callable[[Iterable[Any]], list[str]]

COUNT, BATCH = 60, 4
THREADS = (1, 2, 5)
WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures, 4 of them (7 %) bad in different ways."""
    root = tmp_path_factory.mktemp("damaged")
    paths = folders.write_folder(root, COUNT)
    for path, damage in zip(
        paths[5::15], (folders.truncate, folders.empty, folders.text, folders.truncate), strict=True
    ):
        damage(path)
    return root


def loaders(root: Path, world: int, threads: int, **options: Any) -> list[fb.DataLoader]:
    """One loader for each rank."""
    transform = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])
    dataset = fb.ImageFolder(root, transform=transform)
    return [
        fb.DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            seed=7,
            on_error="replace",
            num_workers=threads,
            rank=rank,
            world_size=world,
            **options,
        )
        for rank in range(world)
    ]


def remaining(ranks: list[fb.DataLoader], digests: Digests) -> tuple[list[str], list[dict[str, Any]]]:
    """The global sequence of what all ranks still deliver, and the state after each step."""
    sequence: list[str] = []
    states = []
    for step in zip(*ranks, strict=True):
        for batch in step:
            sequence += digests([batch])
        states.append(json.loads(json.dumps(ranks[0].state_dict())))
    return sequence, states


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("world", WORLDS)
def test_every_step_resumes_exactly(damaged: Path, digests: Digests, world: int, threads: int) -> None:
    expected, _ = remaining(loaders(damaged, 1, 1), digests)
    assert len(expected) == COUNT
    sequence, states = remaining(loaders(damaged, world, threads), digests)
    # A last step that does not fill every rank is padded beyond the dataset's length.
    assert sequence[:COUNT] == expected
    choose = random.Random(world * 10 + threads)
    for made, state in enumerate(states[:-1], start=1):
        assert (state["step"], state["position"]) == (made, made * BATCH * world)
        others = {(world, threads), (choose.choice(WORLDS), choose.choice(THREADS))}
        for other_world, other_threads in others:
            ranks = loaders(damaged, other_world, other_threads)
            for loader in ranks:
                loader.load_state_dict(state)
            rest, _ = remaining(ranks, digests)
            left = COUNT - state["position"]
            assert rest[:left] == expected[state["position"] :], (made, other_world, other_threads)
            assert len(rest) - left < other_world


def test_the_end_of_an_epoch_is_the_start_of_the_next(damaged: Path, digests: Digests) -> None:
    (first,) = loaders(damaged, 1, 2)
    digests(first)
    state = first.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)
    (second,) = loaders(damaged, 1, 1)
    second.load_state_dict(state)
    assert digests(second) == digests(first)


def test_what_was_prefetched_does_not_count(damaged: Path) -> None:
    (loader,) = loaders(damaged, 1, 2, prefetch_factor=8)
    iterator = iter(loader)
    assert loader.state_dict()["step"] == 0
    next(iterator)
    next(iterator)
    assert loader.state_dict()["step"] == 2


def test_the_books_of_a_resumed_epoch_balance(damaged: Path, digests: Digests) -> None:
    (first,) = loaders(damaged, 1, 2)
    iterator = iter(first)
    for _ in range(6):
        next(iterator)
    state = first.state_dict()
    (second,) = loaders(damaged, 1, 2)
    second.load_state_dict(state)
    digests(second)
    assert "epoch 0: planned 60 = delivered 56 + replaced 4 + skipped 0" in second.report()


def test_set_epoch_keeps_a_state_of_the_same_epoch_only(damaged: Path) -> None:
    (first,) = loaders(damaged, 1, 2)
    next(iter(first))
    state = first.state_dict()
    (second,) = loaders(damaged, 1, 2)
    second.load_state_dict(state)
    second.set_epoch(0)
    assert second.state_dict()["step"] == 1
    second.set_epoch(3)
    assert (second.state_dict()["epoch"], second.state_dict()["step"]) == (3, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, "seed: this loader has 7, the state 8"),
        ({"shuffle": False}, "shuffle"),
        ({"dataset": {"samples": 61, "classes": 2, "fingerprint": "x"}}, "samples: this loader has 60, the state 61"),
        ({"version": 99}, "version"),
    ],
)
def test_the_state_of_something_else_is_refused_with_what_differs(
    damaged: Path, change: dict[str, Any], named: str
) -> None:
    (loader,) = loaders(damaged, 1, 1)
    with pytest.raises(fb.errors.StateMismatchError, match=named):
        loader.load_state_dict(loader.state_dict() | change)


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"epoch": object()}])
def test_what_is_no_state_is_refused(damaged: Path, state: dict[str, Any]) -> None:
    (loader,) = loaders(damaged, 1, 1)
    with pytest.raises(fb.errors.StateMismatchError):
        loader.load_state_dict(state)


class Sabotage:
    """Works, but for one call."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return value


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), StopIteration()], ids=repr)
@pytest.mark.parametrize("order", [{}, {"sampler": range(COUNT)}], ids=["planned", "sampler"])
@pytest.mark.parametrize("place", ["collate_fn", "target_transform"])
def test_a_batch_that_the_loop_never_got_does_not_count(
    damaged: Path, error: BaseException, order: dict[str, Any], place: str
) -> None:
    transform = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    broken = Sabotage(3 if place == "collate_fn" else 2 * BATCH + 2, error)
    targets = broken if place == "target_transform" else None
    dataset = fb.ImageFolder(damaged, transform=transform, target_transform=targets)
    collate_fn = broken if place == "collate_fn" else None
    loader = fb.DataLoader(dataset, BATCH, on_error="replace", collate_fn=collate_fn, **order)
    got = 0
    with pytest.raises((type(error), RuntimeError)):
        for _ in loader:
            got += 1
    state = loader.state_dict()
    assert (got, state["step"], state["position"]) == (2, 2, 2 * BATCH)
    loader.load_state_dict(state)
    assert sum(1 for _ in loader) == COUNT // BATCH - 2


def test_a_sampler_is_passed_over_up_to_the_step(damaged: Path, digests: Digests) -> None:
    dataset = fb.ImageFolder(damaged, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    order = list(range(0, COUNT, 2))

    def make() -> fb.DataLoader:
        return fb.DataLoader(dataset, BATCH, sampler=order, on_error="replace")

    reference = make()
    expected, following = digests(reference), digests(reference)
    first = make()
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = make()
    second.load_state_dict(first.state_dict())
    assert digests(second) == expected[3 * BATCH :]
    assert digests(second) == following, "the following epoch is a whole one again"


def sampled(root: Path, batch_size: int, **options: Any) -> fb.DataLoader:
    dataset = fb.ImageFolder(root, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    return fb.DataLoader(dataset, batch_size, on_error="replace", **options)


def advance(loader: fb.DataLoader, steps: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


@pytest.mark.parametrize("other", [1, 3, 7, 12])
def test_a_sampler_goes_on_with_another_batch_size(damaged: Path, digests: Digests, other: int) -> None:
    order = random.Random(3).sample(range(COUNT), 31)
    expected = digests(sampled(damaged, 4, sampler=order))
    state = advance(sampled(damaged, 4, sampler=order), 3)
    assert (state["step"], state["position"], state["sampler"]) == (3, 12, True)
    second = sampled(damaged, other, sampler=order)
    second.load_state_dict(state)
    assert digests(second) == expected[12:]


@pytest.mark.parametrize("other", [1, 3, 7, 12])
def test_a_planned_order_goes_on_with_another_batch_size(damaged: Path, digests: Digests, other: int) -> None:
    expected = digests(sampled(damaged, 4, shuffle=True))
    second = sampled(damaged, other, shuffle=True)
    second.load_state_dict(advance(sampled(damaged, 4, shuffle=True), 3))
    assert digests(second) == expected[12:]


def test_a_batch_sampler_is_passed_over_by_batches(damaged: Path, digests: Digests) -> None:
    batches = [[1, 2, 3], [23], [5, 4], [9]]
    expected = digests(sampled(damaged, 1, batch_sampler=batches))
    state = advance(sampled(damaged, 1, batch_sampler=batches), 2)
    assert (state["step"], state["position"]) == (2, 4)
    second = sampled(damaged, 1, batch_sampler=batches)
    second.load_state_dict(state)
    assert digests(second) == expected[4:]


def test_batches_skipped_whole_count_in_the_state_of_a_sampler(tmp_path: Path) -> None:
    paths = folders.write_folder(tmp_path, 6, classes=("a",))
    for path in paths[2:4]:
        folders.empty(path)
    dataset = fb.ImageFolder(tmp_path, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    loader = fb.DataLoader(dataset, 2, sampler=range(6), on_error="skip")
    iterator = iter(loader)
    positions = []
    for _ in iterator:
        state = loader.state_dict()
        positions.append((state["step"], state["position"]))
    assert positions == [(1, 2), (3, 6)]


def test_a_state_of_a_sampler_is_for_samplers_only(damaged: Path) -> None:
    given, planned = sampled(damaged, 4, sampler=range(COUNT)), sampled(damaged, 4)
    assert "sampler" not in planned.state_dict()
    with pytest.raises(fb.errors.StateMismatchError, match=r"sampler.*: this loader has none, the state one"):
        planned.load_state_dict(given.state_dict())
    with pytest.raises(fb.errors.StateMismatchError, match=r"sampler.*: this loader has one, the state none"):
        given.load_state_dict(planned.state_dict())
    assert given.state_dict()["step"] == 0


class Moody:
    """A sampler whose first pass fails at once."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        if self.passes == 1:
            raise ZeroDivisionError("mine")
        return iter(range(COUNT))


def test_a_pass_that_fails_to_begin_does_not_lose_the_state(damaged: Path, digests: Digests) -> None:
    expected = digests(sampled(damaged, 4, sampler=range(COUNT)))
    state = advance(sampled(damaged, 4, sampler=range(COUNT)), 3)
    loader = sampled(damaged, 4, sampler=Moody())
    loader.load_state_dict(state)
    with pytest.raises(ZeroDivisionError, match="mine"):
        iter(loader)
    assert digests(loader) == expected[12:]


@pytest.mark.parametrize("order", [{}, {"sampler": range(COUNT)}], ids=["planned", "sampler"])
def test_a_pass_that_is_dropped_at_once_does_not_count(damaged: Path, digests: Digests, order: dict[str, Any]) -> None:
    """Training libraries ask for one to see whether they can."""
    expected = digests(sampled(damaged, 4, **order))
    loader = sampled(damaged, 4, **order)
    iter(loader)
    assert digests(loader) == expected
    loader.load_state_dict(advance(sampled(damaged, 4, **order), 3))
    iter(loader)
    iter(loader)
    assert digests(loader) == expected[12:]


def test_steps_may_be_left_out(damaged: Path, digests: Digests) -> None:
    (reference,) = loaders(damaged, 1, 2)
    expected, following = digests(reference), digests(reference)
    state = advance(loaders(damaged, 1, 2)[0], 2)
    for skipped, kept in (
        (range(4, 7), [2, 3, *range(7, 15)]),
        (range(3), [*range(3, 15)]),
        (range(10, 99), [*range(2, 10)]),
        (range(5, 5), [*range(2, 15)]),
        (None, [*range(2, 15)]),
    ):
        (loader,) = loaders(damaged, 1, 2)
        loader.load_state_dict(state, skip_steps=skipped)
        got = digests(loader)
        assert got == [one for step in kept for one in expected[step * BATCH : (step + 1) * BATCH]], skipped
        assert digests(loader) == following, "the next epoch is a whole one again"


@pytest.mark.parametrize("wrong", [3, [3, 4], range(0, 6, 2), range(6, 3, -1), range(-2, 3), slice(3), range(2**64)])
def test_steps_to_leave_out_are_a_range(damaged: Path, wrong: Any) -> None:
    (loader,) = loaders(damaged, 1, 1)
    with pytest.raises(fb.errors.ConfigError, match=r"skip_steps.*: expected"):
        loader.load_state_dict(loader.state_dict(), skip_steps=wrong)


def test_steps_of_a_sampler_cannot_be_left_out(damaged: Path) -> None:
    loader = sampled(damaged, 4, sampler=range(COUNT))
    with pytest.raises(fb.errors.ConfigError, match="skip_steps: expected an order of the loader's own, got a sampler"):
        loader.load_state_dict(loader.state_dict(), skip_steps=range(2))


@pytest.mark.parametrize("threads", [1, 3])
def test_damage_that_only_some_crops_reach_resumes_exactly(tmp_path: Path, threads: int) -> None:
    for path in folders.write_folder(tmp_path, 24, width=64, height=48)[::3]:
        data = bytearray(path.read_bytes())
        end = len(data) - 2  # the end marker, which is always looked at
        data[end - len(data) // 5 : end - 8] = bytes(len(data) // 5 - 8)
        path.write_bytes(data)

    def make() -> fb.DataLoader:
        dataset = fb.ImageFolder(tmp_path, transform=T.Compose([T.RandomCrop(16), T.ToTensor()]))
        return fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, on_error="replace", num_workers=threads)

    whole = make()
    epochs, states = [], []
    for _ in range(4):
        states.append(whole.state_dict())
        epochs.append([images for images, _ in whole])
    failed = [{failure.path for failure in whole.failures if failure.epoch == epoch} for epoch in range(4)]
    assert all(failed) and len(set(map(frozenset, failed))) > 1, "some crops reach the damage, others do not"
    for epoch in (1, 2, 3):
        fresh = make()
        fresh.load_state_dict(states[epoch])
        got = [images for images, _ in fresh]
        assert all(map(torch.equal, got, epochs[epoch])) and len(got) == len(epochs[epoch]), epoch
