"""Worker threads: what they share with the process and what they do not, how far they go ahead, and what hangs."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch.utils import data

import forebay as fb
import worker_runs
from forebay._options.gil import is_free_threaded
from forebay._python.workers.process.batch_memory import weigh

THREADS: dict[str, Any] = {"num_workers": 2, "workers": "threads"}
MIB = 1 << 20
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*worker creation.*:UserWarning", "ignore:no batch for:RuntimeWarning"),
]


needs_generators = pytest.mark.skipif(
    "rng" not in getattr(data._utils.worker.WorkerInfo, "__dataclass_fields__", {}),
    reason="this torch gives workers no generators of their own",
)


class Drawing(data.Dataset[Any]):
    """Each sample is what the worker's own generators gave."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        info = data.get_worker_info()
        assert info is not None and info.rng is not None
        number = int(torch.randint(0, 10**9, (1,), generator=info.rng.torch_generator))
        drawn: Any = info.rng.numpy_generator
        return info.rng.random_generator.randrange(10**9), int(drawn.integers(10**9)), number


def drawn(**arguments: Any) -> list[Any]:
    loader = fb.DataLoader(Drawing(), batch_size=3, collate_fn=list, **(THREADS | arguments))
    return [sample for batch in loader for sample in batch]


@needs_generators
def test_random_numbers_of_a_worker_go_on_from_batch_to_batch() -> None:
    samples = drawn()
    assert len(set(samples)) == len(samples)


@needs_generators
def test_with_a_seed_samples_do_not_depend_on_the_threads_and_nobody_else_is_seeded() -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state()  # type: ignore[index]
    once = drawn(seed=5)
    assert once == drawn(seed=5, num_workers=3)
    assert len(set(once)) == len(once) and once != drawn(seed=6)
    after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state()  # type: ignore[index]
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


class Heavy:
    """Samples of 1 MiB; counts how many were made."""

    def __init__(self) -> None:
        self.made = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> numpy.ndarray[Any, Any]:
        with self._lock:
            self.made += 1
        return numpy.zeros(MIB, numpy.uint8)


@pytest.mark.parametrize(("budget", "most"), [(None, 16), ("8MiB", 8), (1, 2)])
def test_the_budget_bounds_what_is_prepared_ahead(budget: Any, most: int) -> None:
    dataset = Heavy()
    loader = fb.DataLoader(dataset, prefetch_factor=8, memory_budget=budget, **THREADS)
    passed = iter(loader)
    assert worker_runs.wait_until(lambda: dataset.made >= most)
    time.sleep(0.2)  # for those that should not come
    assert dataset.made == most
    for count in range(1, 33):
        next(passed)
        if count + most < 32:
            assert worker_runs.wait_until(lambda: dataset.made >= count + most)
        assert dataset.made <= count + most, f"{dataset.made} made when {count} were delivered"
    assert list(passed) == []


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("forebay-worker")}


def test_threads_that_wait_for_room_let_a_loader_go() -> None:
    before = workers()
    dataset = Heavy()
    loader = fb.DataLoader(dataset, prefetch_factor=8, memory_budget=1, persistent_workers=True, **THREADS)
    passed = iter(loader)
    assert worker_runs.wait_until(lambda: dataset.made == 2)
    assert len(list(iter(loader))) == 32, "what was prepared for another pass takes no room"
    del passed
    last = iter(loader)
    next(last)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 3
    assert worker_runs.wait_until(lambda: workers() <= before)


def test_batches_are_weighed_whatever_they_hold() -> None:
    class Mine:
        def __init__(self) -> None:
            self.field = torch.zeros(MIB, dtype=torch.uint8)

    for value in (
        torch.zeros(MIB // 8, dtype=torch.float64),
        {"a": [numpy.zeros(MIB // 2, numpy.uint8)] * 2},
        (b"x" * (MIB // 2), "y" * (MIB // 2)),
        Mine(),
        Image.new("RGB", (1024, 1024 // 3 + 1)),
        list(range(MIB // (8 + sys.getsizeof(1000)))),  # larger where there is no GIL
        [bytes(1024)] * 1000,
    ):
        assert MIB <= weigh(value) * 1.05 <= 1.3 * MIB, type(value)

    class Hostile:
        @property
        def nbytes(self) -> int:
            raise RuntimeError("not now")

    nested: list[Any] = []
    nested.append(nested)
    assert weigh([Hostile(), nested, None, 1.5, "x"]) < 10_000


released = threading.Event()


class Endless(data.IterableDataset[int]):
    """A stream of each worker; that of worker 1 hangs at its sample 5."""

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        shard = 0 if info is None else info.id
        for number in range(20):
            if (shard, number) == (1, 5):
                released.wait(30)
            yield 100 * shard + number


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_stream_past_its_deadline_ends_with_sample_thread_and_stack(on_error: Any) -> None:
    before = workers()
    released.clear()
    loader = fb.DataLoader(Endless(), batch_size=2, deadline_seconds=0.3, on_error=on_error, **THREADS)
    passed = iter(loader)
    assert [next(passed).tolist() for _ in range(5)] == [[0, 1], [100, 101], [2, 3], [102, 103], [4, 5]]
    said = "sample 5 of the stream of worker 1 took longer than deadline_seconds=0.3 in .* thread forebay-worker-1"
    with pytest.raises(fb.errors.DeadlineError, match=said) as raised:
        next(passed)
    assert raised.value.index == 5 and "released.wait" in (raised.value.detail or "")
    assert next(passed).tolist() == [6, 7], "the other stream goes on"
    with pytest.raises(fb.errors.DeadlineError):
        next(passed)
    assert [(failure.index, failure.code) for failure in loader.failures] == [(5, "timeout")]
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 3, "nobody waits for a thread that was written off"
    released.set()
    assert worker_runs.wait_until(lambda: workers() <= before)


def test_workers_that_stay_have_another_thread_for_a_stream_that_was_given_up() -> None:
    released.clear()
    loader = fb.DataLoader(Endless(), batch_size=2, deadline_seconds=0.3, persistent_workers=True, **THREADS)
    with pytest.raises(fb.errors.DeadlineError):
        list(loader)
    released.set()
    assert sorted(number for batch in loader for number in batch.tolist()) == [*range(20), *range(100, 120)]
    loader.close()


def test_a_long_wait_for_a_stream_names_sample_thread_and_line() -> None:
    released.clear()
    loader = fb.DataLoader(Endless(), batch_size=2, stall_seconds=0.3, **THREADS)
    passed = iter(loader)
    said = r"(?s)no batch for .*worker 1 \(thread forebay-worker-1\) has worked on sample 5.*released\.wait"
    with pytest.warns(RuntimeWarning, match=said):
        for count in range(6):
            if count == 5:
                threading.Timer(1.0, released.set).start()
            next(passed)
    loader.close()


def test_a_long_start_is_named_with_its_line() -> None:
    released.clear()

    class Slow(data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            released.wait(30)
            return iter(range(3))

    loader = fb.DataLoader(Slow(), num_workers=1, workers="threads", stall_seconds=0.3)
    passed = iter(loader)
    threading.Timer(1.0, released.set).start()
    with pytest.warns(RuntimeWarning, match=r"(?s)no batch for .*worker 0 is starting.*released\.wait"):
        next(passed)
    loader.close()


def test_an_exit_in_worker_init_fn_is_told() -> None:
    def leave(shard: int) -> None:
        raise SystemExit(f"worker {shard} leaves")

    with pytest.raises(SystemExit, match="worker 0 leaves"):
        next(iter(fb.DataLoader(range(4), worker_init_fn=leave, **THREADS)))


@pytest.mark.parametrize(("enabled", "kind"), [(None, "processes"), (True, "processes"), (False, "threads")])
def test_where_python_runs_without_a_gil_threads_are_preferred(
    enabled: bool | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sys._is_gil_enabled", raising=False)
    if enabled is not None:
        monkeypatch.setattr("sys._is_gil_enabled", lambda: enabled, raising=False)
    assert is_free_threaded() is (kind == "threads")
    loader = fb.DataLoader(range(4), num_workers=2)
    assert loader._loader.kind(loader) == kind  # type: ignore[union-attr]
    seeded = fb.DataLoader(range(4), num_workers=2, seed=1)
    assert seeded._loader.kind(seeded) == "processes", "threads could not keep to it"  # type: ignore[union-attr]
    asked = fb.DataLoader(range(4), num_workers=2, workers="processes")
    assert asked._loader.kind(asked) == "processes"  # type: ignore[union-attr]
    if kind == "threads":
        assert [int(batch) for batch in loader] == [0, 1, 2, 3]
        assert loader.stats()["workers"]["kind"] == "threads"


class Holding:
    """Has an open file, and a lock for it or none."""

    def __init__(self, is_guarded: bool) -> None:
        self.file = open(__file__, "rb")  # noqa: SIM115
        if is_guarded:
            self.lock = threading.Lock()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_without_a_gil_what_threads_would_share_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    dataset = Holding(is_guarded=False)
    loader = fb.DataLoader(dataset, num_workers=2)
    said = r"dataset\.file → BufferedReader on .*workers are threads.*threading\.local\(\).*workers=\"processes\""
    with pytest.warns(RuntimeWarning, match=said):
        list(loader)
    list(loader)  # a warning would be an error
    guarded = Holding(is_guarded=True)
    list(fb.DataLoader(guarded, num_workers=2))
    list(fb.DataLoader(dataset, **THREADS))  # asked for
    dataset.file.close()
    guarded.file.close()


class Tensors(data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        assert data.get_worker_info() is not None
        return torch.full((1000,), index), numpy.full(1000, index)


@pytest.mark.parametrize("collate_fn", [None, lambda samples: data.default_collate(samples)])
def test_batches_of_threads_are_plain_memory_and_nothing_of_dev_shm(collate_fn: Any) -> None:
    batches = list(fb.DataLoader(Tensors(), batch_size=4, collate_fn=collate_fn, **THREADS))
    assert [part[:, 0].tolist() for batch in batches for part in batch] == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2
    assert not any(part.is_shared() for batch in batches for part in batch)
