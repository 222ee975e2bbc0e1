"""Promise 3: restored after any step, on any ranks and threads, the rest of the epoch is bit-identical."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

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
