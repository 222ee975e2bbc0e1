"""Loaders and their iterators in several threads at once: true of any Python, and put to the test by one without a GIL.

`FOREBAY_RACE_ROUNDS` makes every test go on for longer.
"""

import os
import random
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import children
import forebay as fb
import worker_runs
from forebay import transforms as T

ROUNDS = int(os.environ.get("FOREBAY_RACE_ROUNDS", "1"))
COUNT, BATCH = 96, 4
KINDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 3, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}
pytestmark = [
    pytest.mark.timeout(60 * (1 + ROUNDS)),
    pytest.mark.filterwarnings("ignore:.*worker creation.*:UserWarning", "ignore:no batch for:RuntimeWarning"),
]
is_free_threaded_build = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Numbers:
    """Sample `i` is `i`, after a little work of the interpreter's own; those of `broken` raise."""

    def __init__(self, broken: frozenset[int] = frozenset()) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise KeyError(f"sample {index} is broken")
        return index + sum(range(50)) - 1225


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs it in so many threads, which begin together, and gives what they gave; their errors are the test's."""
    given: list[Any] = [None] * count
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(place: int) -> None:
        try:
            gate.wait(20)
            given[place] = work(place)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(count)]
    for thread in started:
        thread.start()
    until = time.monotonic() + 100
    for thread in started:
        thread.join(max(0.0, until - time.monotonic()))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in started), "a thread is stuck"
    return given


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("forebay-worker")}


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """With a GIL it changes hands a hundred times as often, so that threads meet."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def rounds(kind: str) -> range:
    return range(ROUNDS * (2 if kind == "processes" else 5))


@pytest.mark.skipif(not is_free_threaded_build, reason="this Python has a GIL")
@pytest.mark.parametrize("modules", ["forebay", "torch, forebay"])
def test_importing_it_leaves_the_gil_off(modules: str) -> None:
    program = f"import sys, {modules}; sys.exit(sys._is_gil_enabled())"
    ended = children.run(f"import warnings; warnings.simplefilter('error', RuntimeWarning); {program}")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(not is_free_threaded_build, reason="this Python has a GIL")
def test_where_there_is_no_gil_workers_are_threads() -> None:
    loader = fb.DataLoader(Numbers(), batch_size=BATCH, num_workers=2)
    assert [value for batch in loader for value in batch.tolist()] == list(range(COUNT))
    assert loader.stats()["workers"]["kind"] == "threads"


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_of_several_threads_gives_each_batch_to_one_of_them(kind: str) -> None:
    for _ in rounds(kind):
        loader = fb.DataLoader(Numbers(), batch_size=BATCH, **KINDS[kind])
        shared = iter(loader)
        given = in_threads(4, lambda _: [batch.tolist() for batch in shared])
        assert all(batches == sorted(batches) for batches in given), "what one of them gets is in order"
        assert sorted(value for batches in given for batch in batches for value in batch) == list(range(COUNT))
        (book,) = loader._loader.books.epochs.values()  # type: ignore[union-attr]
        assert (book["planned"], book["delivered"]) == (COUNT, COUNT)
        assert loader.state_dict()["finished"] and next(shared, None) is None
        loader.close()


def test_a_native_iterator_of_several_threads_gives_each_batch_to_one_of_them(folder: Path, plain: T.Compose) -> None:
    loader = fb.DataLoader(fb.ImageFolder(folder, transform=plain), batch_size=2, with_ids=True, num_workers=2)
    for epoch in range(5 * ROUNDS):
        shared = iter(loader)
        given = in_threads(4, lambda _: [ids.tolist() for _, _, ids in shared])
        assert sorted(index for batches in given for ids in batches for index in ids) == list(range(24))
        assert loader._engine.books()[epoch]["delivered"] == 24
    loader.close()


class Telling(Numbers):
    """Counts what was asked of it, and tells it: without workers its state has to fit the loader's."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state["asked"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_taken_while_another_thread_goes_on_is_exact(kind: str) -> None:
    for _ in rounds(kind):
        loader = fb.DataLoader(Telling(), batch_size=BATCH, shuffle=True, seed=7, **KINDS[kind])
        shared, is_over, has_begun = iter(loader), threading.Event(), threading.Barrier(3)

        def work(place: int) -> list[Any]:
            if place == 0:
                has_begun.wait(30)
                batches = [batch.tolist() for batch in shared]
                is_over.set()
                return batches
            states = [loader.state_dict()]
            has_begun.wait(30)
            while not is_over.wait(0.001):  # without a pause they would have the processors for themselves
                states.append(loader.state_dict())
            return states

        batches, *told = in_threads(3, work)
        for states in told:
            steps = [state["step"] for state in states]
            assert steps == sorted(steps)
            for state in states:
                assert state["position"] == BATCH * state["step"] == state["order"]["count"]
                if kind == "inline":
                    assert state["shards"][0]["dataset"]["asked"] == state["position"]
        state = random.choice([state for states in told for state in states if not state["finished"]])
        again = fb.DataLoader(Telling(), batch_size=BATCH, shuffle=True, seed=7)
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == batches[state["step"] :]
        loader.close()


def test_a_native_state_taken_while_another_thread_goes_on_is_exact(folder: Path, plain: T.Compose) -> None:
    def made() -> Any:
        return fb.DataLoader(
            fb.ImageFolder(folder, transform=plain), batch_size=2, shuffle=True, seed=7, with_ids=True, num_workers=2
        )

    loader, is_over, has_begun = made(), threading.Event(), threading.Barrier(2)
    shared = iter(loader)

    def work(place: int) -> list[Any]:
        if place == 0:
            has_begun.wait(30)
            batches = [ids.tolist() for _, _, ids in shared]
            is_over.set()
            return batches
        states = [loader.state_dict()]
        has_begun.wait(30)
        while not is_over.wait(0.001):  # without a pause they would have the processors for themselves
            states.append(loader.state_dict())
        return states

    batches, states = in_threads(2, work)
    assert all(state["position"] == 2 * state["step"] for state in states)
    again = made()
    again.load_state_dict(state := states[len(states) // 2])
    if state["epoch"] == 0:
        assert [ids.tolist() for _, _, ids in again] == batches[state["step"] :]
    loader.close()


released = threading.Event()


class Stuck(Numbers):
    """Sample 6 waits until the test lets it go."""

    def __getitem__(self, index: int) -> int:
        if index == 6:
            released.wait(30)
        return index


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_closed_by_another_thread_a_waiting_one_leaves_with_an_error(kind: str) -> None:
    released.clear()
    before = workers()
    loader = fb.DataLoader(Stuck(), batch_size=2, **(KINDS[kind] | {"num_workers": 1}))
    shared = iter(loader)
    assert [next(shared).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    seen: list[Any] = []

    def wait() -> None:
        try:
            seen.append(next(shared))
        except fb.errors.StoppedError as error:
            seen.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert worker_runs.wait_until(lambda: any(item["index"] == 6 for item in loader.in_flight()))
    threading.Timer(1.0, released.set).start()  # a thread cannot be ended
    loader.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert isinstance(seen[0], fb.errors.StoppedError) and "closed" in str(seen[0])
    with pytest.raises(fb.errors.StoppedError, match="closed"):
        next(shared)
    assert worker_runs.wait_until(lambda: workers() <= before)


def test_closed_by_another_thread_a_loop_without_workers_finishes_its_batch_first() -> None:
    released.clear()
    loader = fb.DataLoader(Stuck(), batch_size=2)
    shared = iter(loader)
    got: list[Any] = []
    ended: list[str] = []

    def loop() -> None:
        try:
            got.extend(batch.tolist() for batch in shared)
        except fb.errors.StoppedError as error:
            ended.append(str(error))

    looping = threading.Thread(target=loop, daemon=True)
    looping.start()
    assert worker_runs.wait_until(lambda: any(item["index"] == 6 for item in loader.in_flight()))
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    released.set()
    closing.join(10)
    looping.join(10)
    assert not closing.is_alive() and not looping.is_alive()
    assert got == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(ended) == 1 and "closed" in ended[0]


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_of_several_threads_do_not_meet(kind: str) -> None:
    before = workers()

    def work(place: int) -> int:
        total = 0
        for _ in rounds(kind):
            loader = fb.DataLoader(Numbers(), batch_size=BATCH, shuffle=True, seed=place, **KINDS[kind])
            total += sum(value for batch in loader for value in batch.tolist())
            loader.close()
        return total

    count = 2 if kind == "processes" else 4  # each of them imports torch
    assert in_threads(count, work) == [len(rounds(kind)) * sum(range(COUNT))] * count
    assert worker_runs.wait_until(lambda: workers() <= before)


@pytest.mark.parametrize("kind", ["inline", "threads"])
def test_passes_of_one_loader_in_several_threads_are_whole(kind: str) -> None:
    loader = fb.DataLoader(Numbers(), batch_size=BATCH, shuffle=True, seed=1, **KINDS[kind])

    def work(place: int) -> list[list[int]]:
        return [sorted(value for batch in loader for value in batch.tolist()) for _ in rounds(kind)]

    for passes in in_threads(4, work):
        assert all(values == list(range(COUNT)) for values in passes)
    books = loader._loader.books  # type: ignore[union-attr]
    assert sorted(books.epochs) == list(range(4 * len(rounds(kind)))), "each of them is an epoch of its own"
    assert all(book["delivered"] == COUNT for book in books.epochs.values())
    loader.close()


def test_iterators_that_are_dropped_let_their_threads_go() -> None:
    before = workers()

    def work(place: int) -> None:
        for count in range(10 * ROUNDS):
            loader = fb.DataLoader(Numbers(), batch_size=BATCH, **KINDS["threads"])
            passed = iter(loader)
            for _ in range(count % 3):
                next(passed)

    in_threads(4, work)
    assert worker_runs.wait_until(lambda: workers() <= before)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_reaches_one_thread_and_the_others_go_on(kind: str) -> None:
    broken = frozenset((5, 30, 31, 77))
    lost = {value for index in broken for value in range(index // BATCH * BATCH, index // BATCH * BATCH + BATCH)}
    for _ in rounds(kind):
        loader = fb.DataLoader(Numbers(broken), batch_size=BATCH, **KINDS[kind])
        shared = iter(loader)

        def work(place: int) -> tuple[list[int], list[str]]:
            got, errors = [], []
            while True:
                try:
                    got += next(shared).tolist()
                except StopIteration:
                    return got, errors
                except KeyError as error:
                    errors.append(str(error))

        given = in_threads(4, work)
        assert sorted(value for got, _ in given for value in got) == sorted(set(range(COUNT)) - lost)
        assert sum(len(errors) for _, errors in given) == 3, "of the batches of 5, of 30 and 31, and of 77"
        loader.close()


def test_a_replacement_is_counted_once_whichever_thread_gets_it(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    loader: Any = fb.DataLoader(
        Numbers(frozenset(range(0, COUNT, 3))),
        batch_size=BATCH,
        on_error="replace",
        retries=0,
        ledger=ledger,
        **KINDS["threads"],
    )
    for _ in range(ROUNDS):
        in_threads(4, lambda _: sum(1 for _ in loader))  # four passes at a time
    books = loader._loader.books
    assert all((book["replaced"], book["delivered"]) == (32, 64) for book in books.epochs.values())
    assert books.failed_count == len(loader.failures) == len(ledger.read_text().splitlines()) == 4 * 32 * ROUNDS
    loader.close()


def test_each_worker_thread_knows_who_it_is_from_its_first_sample_on() -> None:
    """In a process of its own: torch's function is changed at the first use."""
    program = """
    from torch.utils import data
    import forebay as fb

    class Shards(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return iter([-1] if info is None else range(info.id, 40, info.num_workers))

    loader = fb.DataLoader(Shards(), batch_size=None, num_workers=8, workers="threads")
    got = sorted(int(value) for value in loader)
    assert got == list(range(40)), got
    """
    for _ in range(ROUNDS):
        ended = children.run(program)
        assert ended.returncode == 0, ended.stderr


class Deep(Numbers):
    """Its stack changes all the time."""

    def __getitem__(self, index: int) -> int:
        return index + 0 * self._down(1 + index % 40)

    def _down(self, depth: int) -> int:
        return depth if depth == 0 else self._down(depth - 1)


def test_what_threads_have_in_hand_may_be_asked_while_they_work() -> None:
    for _ in range(3 * ROUNDS):
        loader = fb.DataLoader(Deep(), batch_size=BATCH, **KINDS["threads"])
        is_over = threading.Event()

        def work(place: int) -> int:
            if place == 0:
                total = sum(len(batch) for _ in range(10) for batch in loader)
                is_over.set()
                return total
            asked = 0
            while not is_over.wait(0.001):
                for item in loader.in_flight():
                    assert item["stage"] in ("start", "transform", "assemble") and isinstance(item["stack"], str)
                    asked += 1
                loader.stats()
                repr(loader)
            return asked

        given = in_threads(3, work)
        assert given[0] == 10 * COUNT
        loader.close()
