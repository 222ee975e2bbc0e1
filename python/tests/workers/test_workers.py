"""Worker processes when all is well: what they are told, what comes back, how they begin again."""

import collections
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import children
import worker_runs
from forebay._python.workers.job import END, Raised, Task

FOLDERS = [children.TESTS, str(Path(__file__).parent)]

Pair = collections.namedtuple("Pair", "left right")


class Ticket:
    def __init__(self, number: int) -> None:
        self.number = number


class WithArguments(Exception):
    """Its constructor wants something else than its arguments."""

    def __init__(self, code: int, *, path: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.path = code, path


class Everything:
    """Samples of all sorts, by index."""

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            return {"a": torch.ones(3), "b": ["x", ("y", np.arange(4))], "c": None, "d": b"bytes"}
        if index == 2:
            return Pair(torch.zeros(2, dtype=torch.bfloat16), Ticket(5))
        if index == 3:
            return torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1), torch.arange(10)[::3]
        if index == 4:
            return torch.empty(0, 3), torch.tensor(7), torch.tensor([True]), torch.tensor([1 + 2j]).conj()
        if index == 5:
            return np.asfortranarray(np.arange(12).reshape(3, 4)), np.arange(20)[::2], np.array("text")
        if index == 6:
            return torch.ones(2, requires_grad=True), torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(1))
        if index == 7:
            raise WithArguments(3, path="somewhere")
        if index == 8:
            raise SystemExit(4)
        if index == 9:
            return threading.Lock()
        if index == 10:
            return torch.rand(300_000), np.random.rand(300_000), "x" * 400_000
        if index == 11:
            return torch.channels_last, torch.ones(2, 3, 64, 64).to(memory_format=torch.channels_last)
        if index == 12:
            raise OSError(5, "Input/output error", "/data/x.jpg")
        raise KeyError(index)


@pytest.fixture(scope="module")
def everything() -> dict[int, Any]:
    job = worker_runs.job(Everything(), is_batched=False, collate_fn=_same, shard_count=1)
    with worker_runs.running(job) as workers:
        made = worker_runs.results(workers, [Task(number, 0, number, 0) for number in range(13)])
        return {result.number: result.value for result in made}


def _same(value: Any) -> Any:
    return value


def test_samples_arrive_as_they_were_made(everything: dict[int, Any]) -> None:
    first = everything[1]
    assert torch.equal(first["a"], torch.ones(3))
    assert first["b"][0] == "x"
    assert first["b"][1][1].tolist() == [0, 1, 2, 3]
    assert (first["c"], first["d"]) == (None, b"bytes")
    assert type(everything[2]) is Pair
    assert everything[2].left.dtype is torch.bfloat16
    assert type(everything[2].right) is Ticket
    permuted, strided = everything[3]
    assert torch.equal(permuted, torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1))
    assert permuted.stride() == torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1).stride()
    assert strided.tolist() == [0, 3, 6, 9]
    empty, scalar, flag, conjugate = everything[4]
    assert (empty.shape, scalar.item(), flag.item(), conjugate.item()) == ((0, 3), 7, True, 1 - 2j)
    fortran, stepped, text = everything[5]
    assert fortran.flags.f_contiguous
    assert fortran.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert (stepped.tolist(), str(text)) == (list(range(0, 20, 2)), "text")
    leaf, sparse, parameter = everything[6]
    assert leaf.requires_grad
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert type(parameter) is torch.nn.Parameter
    assert [len(part) for part in everything[10]] == [300_000, 300_000, 400_000]
    assert everything[11][1].is_contiguous(memory_format=torch.channels_last)


def test_what_arrives_can_be_written_to(everything: dict[int, Any]) -> None:
    for tensor in (everything[1]["a"], everything[10][0], everything[3][0]):
        tensor += 1
    everything[10][1][0] = 5.0


def test_exceptions_keep_class_and_fields(everything: dict[int, Any]) -> None:
    raised = everything[7]
    assert isinstance(raised, Raised)
    assert type(raised.exception) is WithArguments
    assert (raised.exception.code, raised.exception.path, str(raised.exception)) == (3, "somewhere", "code 3")
    assert "in __getitem__" in raised.traceback
    assert raised.index == 7
    assert isinstance(everything[8].exception, SystemExit)
    assert isinstance(everything[0].exception, KeyError)
    error = everything[12].exception
    assert type(error) is OSError
    assert (error.errno, error.filename) == (5, "/data/x.jpg")


def test_what_cannot_be_sent_is_an_error_of_its_batch_alone(everything: dict[int, Any]) -> None:
    raised = everything[9]
    assert isinstance(raised, Raised)
    assert isinstance(raised.exception, TypeError)
    assert "cannot pickle" in str(raised.exception)
    assert "cannot be sent from its worker" in str(raised.exception)


class Counting:
    """Tells what its worker is like."""

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return {
            "id": info.id,
            "count": info.num_workers,
            "seed": torch.initial_seed(),
            "info_seed": info.seed,
            "threads": torch.get_num_threads(),
            "is_main": multiprocessing.current_process().name == "MainProcess",
            "directory": str(Path.cwd()),
            "variable": os.environ.get("FOREBAY_TEST"),
            "blas": os.environ.get("OPENBLAS_NUM_THREADS"),
            "path": list(sys.path),
            "argv": list(sys.argv),
        }


def test_a_worker_is_as_torch_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOREBAY_TEST", "yes")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    job = worker_runs.job(Counting(), collate_fn=_same, shard_count=2)
    with worker_runs.running(job) as workers:
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 2)))
    for number, batch in enumerate(made):
        sample = batch[0]
        assert (sample["id"], sample["count"]) == (number % 2, 2)
        assert sample["seed"] == sample["info_seed"] == 1234 + number % 2
        assert (sample["threads"], sample["is_main"]) == (1, False)
        assert (sample["directory"], sample["variable"], sample["blas"]) == (str(tmp_path), "yes", None)
        assert sample["argv"] == sys.argv
        assert set(sys.path) - {""} <= set(sample["path"])


class Seeded:
    def __getitem__(self, index: int) -> Any:
        import random

        return random.random(), np.random.rand(), torch.rand(())


def test_streams_are_those_of_torch() -> None:
    generator = torch.Generator()
    generator.manual_seed(11)
    stock = torch.utils.data.DataLoader(Seeded(), sampler=range(32), batch_size=4, num_workers=2, generator=generator)
    expected = list(stock)
    generator.manual_seed(11)
    base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    job = worker_runs.job(Seeded(), base_seed=base_seed)
    with worker_runs.running(job) as workers:
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 32, 4)))
    for ours, theirs in zip(made, expected, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(ours, theirs, strict=True))


def test_another_epoch_with_the_same_workers() -> None:
    job = worker_runs.job(list(range(64)), output="numpy")
    with worker_runs.running(job) as workers:
        first = worker_runs.results(workers, worker_runs.tasks(job, 64, 8))
        pids = [row["pid"] for row in workers.stats()["workers"]]
        # An epoch that is broken off: its results never show.
        for task in worker_runs.tasks(job, 32, 2):
            workers.submit(task)
        assert workers.receive(10) is not None
        workers.renew({}, None)
        second = worker_runs.results(workers, worker_runs.tasks(job, 64, 8, epoch=1))
        assert [row["pid"] for row in workers.stats()["workers"]] == pids
        assert workers.stats()["restarts"] == 0
        workers.start(job, [0, 1], None)
        third = worker_runs.results(workers, worker_runs.tasks(job, 64, 8))
        assert not {row["pid"] for row in workers.stats()["workers"]} & set(pids)
    for made in (first, second, third):
        assert worker_runs.flat(result.value for result in made) == list(range(64))


class Numbered:
    """An iterable with a state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Any:
        while self.next < 40:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def test_an_iterable_goes_on_from_a_state() -> None:
    job = worker_runs.job(Numbered(), is_iterable=True, shard_count=1, output="numpy")
    with worker_runs.running(job) as workers:
        workers.submit(Task(0, 0, 16, 0, wants_state=True))
        result = workers.receive(30)
    assert result is not None
    assert result.value.tolist() == list(range(16))
    with worker_runs.running(job, [result.state]) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 40, 16))
    assert made[0].value.tolist() == list(range(16, 32))
    assert made[1].value.tolist() == list(range(32, 40))
    assert made[2].value is END


def boom(shard: int) -> None:
    raise ValueError(f"no worker {shard}")


def test_what_worker_init_fn_raises_comes_with_the_first_batch() -> None:
    job = worker_runs.job(list(range(8)), worker_init_fn=boom, output="numpy")
    with worker_runs.running(job) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 8, 4))
        assert workers.stats()["restarts"] == 0
    assert [str(result.value.exception) for result in made] == ["no worker 0", "no worker 1"]


def test_a_dataset_that_cannot_be_pickled_is_refused_before_anything_starts() -> None:
    before = set(worker_runs.children())
    workers = worker_runs.ProcessWorkers()
    with pytest.raises((TypeError, pickle.PicklingError), match="cannot pickle"):
        workers.start(worker_runs.job([threading.Lock()]), [0], None)
    assert set(worker_runs.children()) == before
    workers.close()


class Shared:
    """Primitives of multiprocessing, and a tensor in shared memory."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.count, self.queue, self.lock = context.Value("i", 0), context.Queue(), context.Lock()
        self.tensor = torch.zeros(4).share_memory_()
        self.big = np.arange(1 << 20)

    def __getitem__(self, index: int) -> int:
        with self.lock, self.count.get_lock():
            self.count.value += 1
        self.queue.put(index)
        self.tensor[index % 4] += 1
        return int(self.big[index])


def test_queues_locks_and_shared_tensors_reach_the_workers() -> None:
    dataset = Shared()
    job = worker_runs.job(dataset, output="numpy")
    with worker_runs.running(job) as workers:
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 32, 4)))
        got = sorted(dataset.queue.get(timeout=10) for _ in range(32))
    assert worker_runs.flat(made) == got == list(range(32))
    assert dataset.count.value == 32
    assert dataset.tensor.tolist() == [8, 8, 8, 8]
    dataset.queue.close()


SCRIPT = """
    # No `if __name__ == "__main__"`, and everything is defined here.
    import collections, enum, os, sys
    from dataclasses import dataclass
    sys.path[:0] = {folders!r}
    import worker_runs

    class Colour(enum.Enum):
        RED = 1

    @dataclass
    class Sample:
        number: int
        colour: Colour

    Point = collections.namedtuple("Point", "x y")
    factor = 3

    class Squares:
        def __getitem__(self, index):
            return Sample(index * factor, Colour.RED), Point(index, (lambda: index)())

    def main():
        class Local:
            pass

        class Inner(Squares):
            def __getitem__(self, index):
                return *super().__getitem__(index), Local()

        offset = 5
        job = worker_runs.job(Inner(), collate_fn=lambda samples: (offset, samples), output="numpy")
        with worker_runs.running(job) as workers:
            made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 4)))
        method = Sample.__init__
        for first, samples in made:
            assert first == 5
            for sample, point, local in samples:
                assert type(sample) is Sample and sample.colour is Colour.RED
                assert type(point) is Point and sample.number == 3 * point.x
                assert type(local) is Local
        assert Sample.__init__ is method
        print("starts", os.getpid())

    main()
"""


def test_a_plain_script_with_lambdas_and_local_classes(tmp_path: Path) -> None:
    ended = children.run(SCRIPT.format(folders=FOLDERS))
    assert ended.returncode == 0, ended.stderr
    # Once: workers do not run the script again.
    assert ended.stdout.count("starts") == 1
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(folders=FOLDERS)))

    again = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=children.environment(),
        timeout=40,
        check=False,
    )
    assert again.returncode == 0, again.stderr


class Talking:
    def __getitem__(self, index: int) -> int:
        import warnings

        if index == 3:
            print("said on stdout")
            warnings.warn("said as a warning", stacklevel=1)
        return index


TALK = """
    import sys
    sys.path[:0] = {folders!r}
    import worker_runs
    from test_workers import Talking

    job = worker_runs.job(Talking(), output="numpy")
    with worker_runs.running(job) as workers:
        worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 4)))
"""


def test_what_workers_print_reaches_the_user() -> None:
    ended = children.run(TALK.format(folders=FOLDERS))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "said on stdout\n"
    assert ended.stderr.count("UserWarning: said as a warning") == 1


def test_in_flight_says_what_each_worker_has_in_hand(tmp_path: Path) -> None:
    job = worker_runs.job(Waiting(tmp_path), output="numpy")
    with worker_runs.running(job) as workers:
        for task in worker_runs.tasks(job, 16, 8):
            workers.submit(task)
        assert workers.receive(0.0) is None
        assert worker_runs.wait_until(lambda: len(found(workers)) == 2, 30)
        rows = found(workers)
        assert [(row["shard"], row["number"], row["index"]) for row in rows] == [(0, 0, 5), (1, 1, 13)]
        assert {row["pid"] for row in rows} <= set(worker_runs.children())
        (tmp_path / "go").touch()
        assert workers.receive(10) is not None
        assert workers.receive(10) is not None


def found(workers: Any) -> list[dict[str, Any]]:
    return [row for row in workers.in_flight() if row["stage"] == "transform" and row["index"] in (5, 13)]


class Waiting:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "go"

    def __getitem__(self, index: int) -> int:
        if index in (5, 13):
            assert worker_runs.wait_until(self._file.exists, 30)
        return index
