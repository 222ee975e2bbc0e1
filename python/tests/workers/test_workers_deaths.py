"""Workers that are killed, crash, leave or hang: every task has its result, and what was at fault is named."""

import contextlib
import ctypes
import gc
import os
import pdb
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cgroups
import children
import forebay as fb
import worker_runs
from forebay._options import limits
from forebay._python.workers.diagnose import post_mortem
from forebay._python.workers.job import END, Raised, Result
from forebay.errors import DeadlineError, WorkerDiedError

FOLDERS = [children.TESTS, str(Path(__file__).parent)]
KINDS = ("kill", "crash", "leave", "hang")


class Drawn:
    """Samples with random numbers of all three generators, as a dataset with augmentations has them."""

    def __init__(self, pause_seconds: float = 0.0) -> None:
        self._pause_seconds = pause_seconds

    def __getitem__(self, index: int) -> Any:
        import torch

        time.sleep(self._pause_seconds)
        # One normal number: its pair is kept by the generators, outside of their keys.
        return index, random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal(), torch.rand(())


class Deadly(Drawn):
    """Now and then a sample takes its worker down, once: a file says that it did."""

    def __init__(self, folder: Path, deadly: dict[int, str]) -> None:
        super().__init__()
        self._folder, self._deadly = folder, deadly

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        kind = self._deadly.get(index)
        if kind is not None:
            try:
                os.close(os.open(self._folder / str(index), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return sample
            fall(kind)
        return sample


def fall(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "crash":
        ctypes.string_at(0)
    elif kind == "leave":
        os._exit(7)
    elif kind == "hang":
        while True:
            pass
    elif kind == "sleep":
        time.sleep(600)


class Fatal:
    """One sample takes down every worker that tries it."""

    def __init__(self, at: int, kind: str, path: str | None = None) -> None:
        self._at, self._kind, self._path = at, kind, path

    def __getitem__(self, index: int) -> int:
        if index == self._at:
            print("a last word", file=sys.stderr)
            if self._path is not None:
                self._read()
            fall(self._kind)
        return index

    def _read(self) -> None:
        assert self._path is not None
        with open(self._path, "rb") as file:
            file.read(1)


def same(left: Any, right: Any) -> bool:
    return all(bool((a == b).all()) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    job = worker_runs.job(Drawn(), shard_count=4)
    with worker_runs.running(job) as workers:
        return worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 4000, 16)))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_makes_the_same_samples_when_workers_fall_on_the_way(seed: int, tmp_path: Path, undisturbed: list[Any]) -> None:
    chance = random.Random(seed)
    deadly = {index: chance.choice(KINDS) for index in chance.sample(range(4000), 16)}
    job = worker_runs.job(Deadly(tmp_path, deadly), shard_count=4)
    with worker_runs.running(job, deadline_seconds=0.4) as workers:
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 4000, 16), seconds=150))
        # A slow machine may take an innocent sample for one that hangs: it is made again, all the same.
        assert workers.stats()["restarts"] >= len(deadly) == len(list(tmp_path.iterdir()))
    assert len(made) == len(undisturbed)
    assert all(same(left, right) for left, right in zip(made, undisturbed, strict=True))


@pytest.mark.timeout(180)
def test_makes_the_same_samples_when_workers_are_killed_at_any_moment(undisturbed: list[Any]) -> None:
    chance = random.Random(0)
    job = worker_runs.job(Drawn(0.0002), shard_count=4, on_error="skip")
    with worker_runs.running(job) as workers:
        after = time.monotonic()

        def kill(_: Any) -> None:
            nonlocal after
            pids = [row["pid"] for row in workers.stats()["workers"] if row["pid"] and row["samples"]]
            if time.monotonic() < after or not pids:
                return
            after = time.monotonic() + 0.1 * chance.random()
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(pids), chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))

        made = worker_runs.results(workers, worker_runs.tasks(job, 4000, 16), each=kill, seconds=150)
        restarts = workers.stats()["restarts"]
        assert restarts >= 5
    assert 2 * sum(len(result.incidents) for result in made) <= restarts, "one death is no sample's fault"
    for result, expected in zip(made, undisturbed, strict=True):
        # Two deaths in the same sample are possible: then it was given up, and says so.
        assert result.incidents or same(result.value, expected)
        assert all(incident.code == "worker_died" for incident in result.incidents)


ENDINGS = {
    "kill": "was killed by SIGKILL",
    "crash": "was killed by SIGSEGV",
    "leave": "left with exit status 7",
    "hang": "did not finish within deadline_seconds=0.5",
    "sleep": "did not finish within deadline_seconds=0.5",
}
# What torch's loader says of them; it waits for those that hang.
TORCHS = {
    "kill": (
        r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly",
        r"DataLoader worker \(pid \d+\) is killed by signal: Killed\. ",
    ),
    "crash": (
        r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly",
        r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault\. ",
    ),
    "leave": (
        r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly",
        r"DataLoader worker \(pid \d+\) exited unexpectedly with exit code 7\.",
    ),
}


# In a process of its own: torch's loader keeps a handler of signals.
TORCHS_OWN = """
    import sys
    sys.path[:0] = {folders!r}
    import torch
    from test_workers_deaths import Fatal

    try:
        list(torch.utils.data.DataLoader(Fatal(0, {kind!r}), sampler=[0], num_workers=1))
    except RuntimeError as error:
        print(error, error.__cause__, sep=chr(10))
"""


@pytest.mark.parametrize("kind", TORCHS)
def test_torchs_words_are_torchs(kind: str) -> None:
    told = children.run(TORCHS_OWN.format(folders=FOLDERS, kind=kind))
    assert told.returncode == 0, told.stderr
    general, exact = TORCHS[kind]
    lines = told.stdout.splitlines()
    assert re.fullmatch(general, lines[-2])
    assert re.match(exact, lines[-1])


@pytest.mark.parametrize("kind", [*KINDS, "sleep"])
def test_names_the_sample_that_takes_down_two_workers(kind: str) -> None:
    job = worker_runs.job(Fatal(37, kind), output="numpy")
    with worker_runs.running(job, deadline_seconds=0.5) as workers:
        for count, policy in enumerate(("raise", "replace", "skip"), 1):
            job = worker_runs.job(Fatal(37, kind), on_error=policy, output="numpy")
            workers.start(job, [0, 1], None)
            made = worker_runs.results(workers, worker_runs.tasks(job, 100, 8))
            assert workers.stats()["restarts"] == 2 * count
            assert worker_runs.flat(result.value for result in made[:4] + made[5:]) == [*range(32), *range(40, 100)]
            check_named(kind, policy, made[4])


def check_named(kind: str, policy: str, result: Result) -> None:
    (incident,) = result.incidents
    assert (incident.index, incident.position, incident.code, incident.attempts) == (37, 5, "worker_died", 2)
    assert incident.stage == "transform"
    assert "sample 37 took down 2 workers" in incident.message
    assert ENDINGS[kind] in incident.message
    assert all(re.search(words, incident.message) for words in TORCHS.get(kind, ()))
    assert ("DataLoader worker" in incident.message) == (kind in TORCHS)
    assert incident.detail is not None
    assert "a last word" in incident.detail
    if kind != "kill":  # at once and without a trace
        assert "test_workers_deaths.py" in incident.detail
        assert "in fall" in incident.detail
    if policy == "raise":
        assert incident.outcome == "raised"
        assert isinstance(result.value, Raised)
        error = result.value.exception
        assert isinstance(error, WorkerDiedError)
        assert (error.index, error.code, result.value.index) == (37, "worker_died", 37)
        assert ENDINGS[kind] in str(error)
    elif policy == "replace":
        assert (incident.outcome, incident.substitute) == ("replaced", 38)
        assert result.value.tolist() == [32, 33, 34, 35, 36, 38, 38, 39]
    else:
        assert incident.outcome == "skipped"
        assert result.value.tolist() == [32, 33, 34, 35, 36, 38, 39]


def test_names_the_line_and_the_file_of_a_sample_that_hangs(tmp_path: Path) -> None:
    pipe = tmp_path / "data.bin"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # so that the reader waits in read, not in open
    try:
        job = worker_runs.job(Fatal(137, "leave", str(pipe)), on_error="skip", output="numpy")
        with worker_runs.running(job, deadline_seconds=0.5) as workers:
            made = worker_runs.results(workers, worker_runs.tasks(job, 200, 10))
    finally:
        os.close(writer)
    (incident,) = made[13].incidents
    assert incident.index == 137
    assert incident.path == str(pipe)
    assert incident.detail is not None
    source = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "file.read(1)" in text)
    assert f"line {line} in _read" in incident.detail
    assert f"it was reading {pipe}" in incident.detail


class Balloon:
    def __getitem__(self, index: int) -> int:
        if index == 20:
            held = []
            while True:
                held.append(np.ones(1 << 20))
        return index


CHILD = """
    import sys
    sys.path[:0] = {folders!r}
    import worker_runs
    from test_workers_deaths import Balloon

    job = worker_runs.job(Balloon(), on_error="skip", output="numpy", shard_count=4)
    with worker_runs.running(job, max_worker_memory=1 << 40) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 400, 8))
    (incident,) = made[2].incidents
    print(incident.index, incident.message, incident.detail)
    print(sum(result.sample_count for result in made))
"""


def test_survives_a_sample_that_takes_all_memory() -> None:
    with cgroups.limited(700 << 20) as group:
        ended = children.run(CHILD.format(folders=FOLDERS), prefix=group.prefix)
        assert ended.returncode == 0, ended.stderr
        assert group.kill_count() >= 2
    assert ended.stdout.startswith("20 sample 20 took down 2 workers")
    assert "SIGKILL (the kernel does so when memory runs out)" in ended.stdout
    assert "in __getitem__" in ended.stdout
    assert ended.stdout.rstrip().endswith("399")


class Batched:
    """A dataset that is asked for whole batches."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indices: list[int]) -> list[int]:
        if 21 in indices:
            os._exit(5)
        return indices


def test_finds_the_sample_in_a_batch_that_is_asked_for_at_once() -> None:
    job = worker_runs.job(Batched(), on_error="skip", output="numpy")
    with worker_runs.running(job) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 64, 8))
    (incident,) = made[2].incidents
    assert (incident.index, incident.outcome) == (21, "skipped")
    assert worker_runs.flat(result.value for result in made) == [index for index in range(64) if index != 21]


def crash_on_32(samples: list[int]) -> Any:
    if 32 in samples:
        ctypes.string_at(0)
    return np.array(samples)


def test_a_batch_that_cannot_be_collated_is_raised_whatever_the_policy() -> None:
    job = worker_runs.job(range(100), collate_fn=crash_on_32, on_error="replace", output="numpy")
    with worker_runs.running(job) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 64, 8))
    assert isinstance(made[4].value, Raised)
    assert "making a batch of the samples of batch 4" in str(made[4].value.exception)
    assert "crash_on_32" in str(made[4].value.exception)
    assert [isinstance(result.value, Raised) for result in made].count(True) == 1


class Unloadable:
    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: Any) -> None:
        os._exit(9)

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_gives_up_where_no_worker_can_be_started() -> None:
    job = worker_runs.job(Unloadable(), output="numpy")
    with worker_runs.running(job) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, 32, 8))
    for result in made:
        assert isinstance(result.value, Raised)
        assert isinstance(result.value.exception, WorkerDiedError)
        assert "left with exit status 9, while it started, 5 times in a row" in str(result.value.exception)
        assert ") exited unexpectedly with exit code 9." in str(result.value.exception)
        assert "__setstate__" in str(result.value.exception)


class Stream:
    """No state of its own; falls once at a sample."""

    def __init__(self, folder: Path, falls: tuple[int, ...], is_stateful: bool = False) -> None:
        self._folder, self._falls = folder, falls

    def __iter__(self) -> Any:
        import torch

        info = torch.utils.data.get_worker_info()
        for number in range(info.id, 200, info.num_workers):
            drawn = random.random(), float(np.random.normal())
            if number in self._falls:
                try:
                    os.close(os.open(self._folder / str(number), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield number, *drawn


class Counter:
    """An iterator with a state. Drawing again what was delivered would be seen in its log."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next = folder, 0

    def __iter__(self) -> Any:
        import torch

        self._shard = torch.utils.data.get_worker_info().id
        return self

    def __next__(self) -> tuple[int, float]:
        if self._next == 100:
            raise StopIteration
        with open(self._folder / f"log{self._shard}", "a") as log:
            log.write(f"{self._next}\n")
        if self._next == 55 and not (self._folder / f"fell{self._shard}").exists():
            (self._folder / f"fell{self._shard}").touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        self._next += 1
        return self._next - 1, random.random()

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def streamed(job: Any, count: int, **options: Any) -> list[Any]:
    with worker_runs.running(job, **options) as workers:
        made = worker_runs.results(workers, worker_runs.tasks(job, count, 4))
    assert [result.value for result in made if isinstance(result.value, Raised)] == []
    return [result.value for result in made if result.value is not END]


def test_a_stream_goes_on_where_its_worker_died(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    calm = streamed(worker_runs.job(Stream(tmp_path, ()), is_iterable=True), 208)
    disturbed = streamed(worker_runs.job(Stream(tmp_path / "other", (0, 41, 42, 140)), is_iterable=True), 208)
    assert len(list((tmp_path / "other").iterdir())) == 4
    assert sorted(int(number) for batch in calm for number in batch[0]) == list(range(200))
    assert all(same(left, right) for left, right in zip(calm, disturbed, strict=True))


def test_a_stream_with_a_state_is_not_drawn_again(tmp_path: Path) -> None:
    made = streamed(worker_runs.job(Counter(tmp_path), is_iterable=True), 208)
    numbers = sorted(int(number) for batch in made for number in batch[0])
    assert numbers == sorted([*range(100), *range(100)])
    for shard in (0, 1):
        log = [int(line) for line in (tmp_path / f"log{shard}").read_text().split()]
        # 52 to 55 were not delivered when it died.
        assert log == [*range(56), *range(52, 100)]


def test_a_dead_fork_server_is_replaced_too(undisturbed: list[Any]) -> None:
    job = worker_runs.job(Drawn(), shard_count=4)
    with worker_runs.running(job) as workers:
        due = [50, 120]

        def kill(result: Any) -> None:
            # Not before the one killed first was replaced: workers may send many results before they die with it.
            is_replaced = workers.stats()["fork_server_restarts"] == 2 - len(due)
            if due and is_replaced and result.number >= due[0]:
                due.pop(0)
                workers._resources.process.kill()
                workers._resources.process.wait()

        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 4000, 16), each=kill))
        assert workers.stats()["fork_server_restarts"] == 2
    assert all(same(left, right) for left, right in zip(made, undisturbed, strict=True))


def test_a_replacement_is_ready_within_milliseconds() -> None:
    import torch  # noqa: F401  what makes a fresh interpreter slow

    job = worker_runs.job(list(range(10_000)), shard_count=1)
    with worker_runs.running(job) as workers:
        times = []
        for task in worker_runs.tasks(job, 8 * 12, 8):
            workers.submit(task)
            assert workers.receive(30) is not None
            before, pid = time.monotonic(), pid_of(workers)
            os.kill(pid, signal.SIGKILL)
            assert worker_runs.wait_until(lambda: workers.receive(0.0) is None and pid_of(workers) not in (0, pid))
            times.append(time.monotonic() - before)
    print(f"replaced in {sorted(times)[len(times) // 2] * 1000:.1f} ms")
    assert sorted(times)[len(times) // 2] < 0.5


def pid_of(workers: Any) -> int:
    return int(workers.stats()["workers"][0]["pid"])


class Slow:
    """One sample never comes."""

    def __init__(self, at: int = 3) -> None:
        self._at = at

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self._at:
            LET_GO.wait(600)
        return index


# For threads, which cannot be ended.
LET_GO = threading.Event()


def deadline_of(**given: Any) -> float | None:
    return fb.DataLoader(range(4), **given)._loader._policy.deadline_seconds  # type: ignore[union-attr]


def test_workers_have_a_deadline_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline_of() == limits.DEADLINE_SECONDS == 600
    assert deadline_of(deadline_seconds=5) == 5
    assert deadline_of(deadline_seconds=float("inf")) is None
    monkeypatch.setitem(sys.modules, "debugpy", sys)
    assert deadline_of() is None, "somebody debugs this process"
    assert deadline_of(deadline_seconds=5) == 5


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_hang_ends_by_itself_although_nobody_set_a_deadline(monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    options: Any = {"batch_size": 2, "num_workers": 1, "workers": workers, "output": "numpy", "stall_seconds": 300}
    first = fb.DataLoader(Slow(at=99), **options)
    assert len(list(first)) == 4
    del first
    gc.collect()  # what workers are forked from is ready now, and left over
    monkeypatch.setattr(limits, "DEADLINE_SECONDS", 3.0)
    loader = fb.DataLoader(Slow(), **options)
    with pytest.raises((WorkerDiedError, DeadlineError), match=r"sample 3 .*deadline_seconds=3") as raised:
        list(loader)
    assert "in __getitem__" in str(raised.value.detail)
    if workers == "processes":
        assert 'float("inf")' in raised.value.hint
    LET_GO.set()
    loader.close()
    LET_GO.clear()


class SlowToArrive(Slow):
    def __setstate__(self, state: Any) -> None:
        time.sleep(600)


def test_a_worker_that_hangs_before_its_first_sample_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = r"worker 0 did not finish within 3 seconds and was killed, while it started, 2 times in a row"
    job = worker_runs.job(Slow(at=99), output="numpy", shard_count=1)
    with worker_runs.running(job, deadline_seconds=30) as workers:
        worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 8)))
        monkeypatch.setattr(limits, "DEADLINE_SECONDS", 3.0)
        workers.settings(0.2, None, None)
        job = worker_runs.job(SlowToArrive(), output="numpy", shard_count=1)
        workers.start(job, [0], None)
        with pytest.raises(WorkerDiedError, match=told) as raised:
            worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 8)))
    assert "in __setstate__" in str(raised.value.detail)


class Debugged:
    """Stops in a debugger, which waits for what somebody types."""

    def __init__(self, typed: Path) -> None:
        self._typed = typed

    def __getitem__(self, index: int) -> int:
        with open(self._typed) as stdin, open(os.devnull, "w") as stdout:
            pdb.Pdb(stdin=stdin, stdout=stdout).set_trace()
            return index + 1


def test_a_worker_in_a_debugger_may_take_any_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "typed")
    job = worker_runs.job(Debugged(tmp_path / "typed"), output="numpy", shard_count=1)
    with worker_runs.running(job, deadline_seconds=0.5) as workers:
        workers.submit(worker_runs.tasks(job, 1, 1)[0])
        with open(tmp_path / "typed", "w") as typing:  # it is in the debugger, or will be at once
            assert worker_runs.wait_until(lambda: workers.receive(0.1) is None and in_hand_seconds(workers) > 2.0, 60)
            typing.write("continue\n")
        result = workers.receive(30)
        assert workers.stats()["restarts"] == 0
    assert result is not None and result.value.tolist() == [1]


def in_hand_seconds(workers: Any) -> float:
    return max((row["since_seconds"] for row in workers.in_flight()), default=0.0)


def test_a_process_that_a_debugger_is_attached_to_is_known() -> None:
    seize = 0x4206
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        assert not post_mortem.is_debugged(child, b"")
        assert ctypes.CDLL(None).ptrace(seize, child, 0, 0) == 0
        assert post_mortem.is_debugged(child, b"")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
