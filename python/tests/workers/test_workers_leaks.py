"""Datasets that leak: the worker is exchanged before it is too large, nothing is lost, and the growth is reported."""

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import children
import forebay
import worker_runs
from forebay._python.workers.process import fork_server, worker_loop

FOLDERS = [children.TESTS, str(Path(__file__).parent)]


class Leaky:
    """Loses a megabyte and a descriptor with every sample."""

    def __init__(self, path: str) -> None:
        self._path, self._kept = path, []

    def __getitem__(self, index: int) -> Any:
        self._kept.append((np.ones(1 << 17), open(self._path)))  # noqa: SIM115
        return index, random.random(), np.random.normal()


class Tight:
    def __getitem__(self, index: int) -> Any:
        return index, random.random(), np.random.normal()


EPOCHS = """
    import os, resource, sys, warnings
    from pathlib import Path
    sys.path[:0] = {folders!r}
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    warnings.simplefilter("always")
    import worker_runs
    from test_workers_leaks import Leaky

    job = worker_runs.job(Leaky({path!r}), output="numpy")
    peak = 0
    with worker_runs.running(job, max_worker_memory=160 << 20) as workers:
        for epoch in range(10):
            made = worker_runs.results(workers, worker_runs.tasks(job, 400, 8, epoch))
            assert worker_runs.flat(result.value[0] for result in made) == list(range(400))
            for row in workers.stats()["workers"]:
                peak = max(peak, row["rss_bytes"])
                assert row["fds"] < 256
            workers.renew({{}}, None)
        stats = workers.stats()
    assert stats["restarts"] == 0
    print(stats["recycled"], peak >> 20)
    (growth, *_) = stats["growth"]
    print(round(growth["bytes_per_1000_samples"] / 2**20), round(growth["files_per_1000_samples"]))
    print(growth["files"][0][0])
"""


@pytest.mark.timeout(150)
def test_ten_epochs_of_a_leak_stay_within_their_limits(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.touch()
    ended = children.run(EPOCHS.format(folders=FOLDERS, path=str(path)), seconds=140)
    assert ended.returncode == 0, ended.stderr
    first, second, name = ended.stdout.splitlines()
    recycled, peak = map(int, first.split())
    # 4,000 MB in workers of 160 MiB at most, a batch over it at worst.
    assert recycled >= 25
    assert peak <= 160 + 16
    megabytes, files = second.split()
    assert 900 <= int(megabytes) <= 1150
    assert 900 <= int(files) <= 1100
    assert name == str(path)
    assert "uses more and more" in ended.stderr
    assert f"open files ({path}" in ended.stderr


def streams(dataset: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    job = worker_runs.job(dataset, output="numpy")
    with worker_runs.running(job, **options) as workers, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 1600, 8)))
        return made, workers.stats()


def test_exchanging_workers_leaves_content_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.touch()
    calm, _ = streams(Tight())
    leaky, stats = streams(Leaky(str(path)), max_worker_memory=128 << 20)
    assert stats["recycled"] >= 10
    assert stats["restarts"] == 0
    for left, right in zip(calm, leaky, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_descriptors_alone_are_reason_enough(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.touch()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
    try:
        made, stats = streams(Leaky(str(path)), max_worker_memory=1 << 40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert worker_runs.flat(batch[0] for batch in made) == list(range(1600))
    assert stats["recycled"] >= 8


class Quick:
    """Loses a descriptor with every sample, in no time at all."""

    def __init__(self) -> None:
        self._kept: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self._kept.append(os.open("/dev/null", os.O_RDONLY))
        return index, random.random()


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_batch_that_takes_the_last_descriptor_is_made_by_another_worker(policy: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        # The second batch of each worker does not fit.
        job = worker_runs.job(Quick(), output="numpy", on_error=policy)
        with worker_runs.running(job) as workers, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = worker_runs.results(workers, worker_runs.tasks(job, 128 * 12, 128))
            stats = workers.stats()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert worker_runs.flat(batch[0] for batch in worker_runs.values(made)) == list(range(128 * 12))
    assert not any(result.incidents for result in made)
    assert stats["restarts"] == 0 and stats["recycled"] >= 8
    assert stats["growth"][0]["files"][0][0] == "/dev/null"


class Swelling:
    """Loses 16 MiB with every sample, slowly; tells what the process has of its own."""

    def __init__(self, lost: int) -> None:
        self._lost, self._kept = lost, []

    def __getitem__(self, index: int) -> Any:
        if self._lost:
            self._kept.append(np.ones(self._lost >> 3))
            time.sleep(0.02)
        pages = Path("/proc/self/statm").read_text().split()
        return index, random.random(), (int(pages[1]) - int(pages[2])) * resource.getpagesize() >> 20


def test_a_worker_that_grows_within_a_batch_is_exchanged_within_it() -> None:
    job, calm = (worker_runs.job(Swelling(lost), output="numpy", shard_count=1) for lost in (16 << 20, 0))
    with worker_runs.running(calm) as workers:
        expected = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(calm, 64, 16)))
    # What a fresh worker has depends on what this process has imported.
    base = max(worker_runs.flat(batch[2] for batch in expected))
    with worker_runs.running(job, max_worker_memory=base + 300 << 20) as workers, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 64, 16)))
        stats = workers.stats()
    assert worker_runs.flat(batch[0] for batch in made) == list(range(64))
    assert worker_runs.flat(batch[1] for batch in made) == worker_runs.flat(batch[1] for batch in expected)
    assert stats["recycled"] >= 3 and stats["restarts"] == 0
    # Two whole batches would be 512 MiB more.
    assert max(worker_runs.flat(batch[2] for batch in made)) < base + 400


class Attended(Swelling):
    """Has a process of its own beside it, which does not end before the worker does."""

    def __getitem__(self, index: int) -> Any:
        if not self._kept:
            multiprocessing.get_context("fork").Process(target=worker_runs.outlast).start()
        return super().__getitem__(index)


def test_a_worker_that_cannot_leave_is_ended() -> None:
    """Python waits at exit for processes that were started with `multiprocessing`."""
    calm, job = (worker_runs.job(Attended(lost), output="numpy", shard_count=1) for lost in (0, 16 << 20))
    with worker_runs.running(calm) as workers:
        (only,) = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(calm, 4, 4)))
    with (
        worker_runs.running(job, max_worker_memory=max(only[2].tolist()) + 100 << 20) as workers,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 16, 4)))
        stats = workers.stats()
    assert worker_runs.flat(batch[0] for batch in made) == list(range(16))
    assert stats["recycled"] >= 1 and stats["restarts"] == 0


def test_a_limit_below_what_a_fresh_worker_needs_is_no_endless_loop() -> None:
    made, stats = streams(Tight(), max_worker_memory=1 << 20)
    assert worker_runs.flat(batch[0] for batch in made) == list(range(1600))
    assert stats["recycled"] <= 2


def test_a_worker_that_does_not_grow_is_not_reported() -> None:
    _, stats = streams(Tight())
    assert stats["growth"] == []
    for row in stats["workers"]:
        assert row["rss_bytes"] > 1 << 20
        assert row["threads"] == 1
        assert 4 <= row["fds"] <= 12


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("forebay")


def test_groups_one_after_the_other_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "PRELOADED", ())  # torch would take two seconds for each
    job = worker_runs.job(Wide(), output="numpy")
    with worker_runs.running(job) as workers:
        worker_runs.results(workers, worker_runs.tasks(job, 16, 8))
    before = fds(), mappings(), worker_runs.children()
    for _ in range(5):
        with worker_runs.running(job) as workers:
            worker_runs.results(workers, worker_runs.tasks(job, 16, 8))
    assert (fds(), mappings(), worker_runs.children()) == before


class Wide:
    def __getitem__(self, index: int) -> Any:
        return np.full(10_000, index)


class Heavy:
    """Notes, when it is sent, how many jobs there are already."""

    def __init__(self) -> None:
        self.table = np.ones(8 << 20, np.uint8)
        self.jobs: list[int] = []

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return int(self.table[index]) + index

    def __getstate__(self) -> dict[str, Any]:
        self.jobs.append(len(jobs()))
        return {"table": self.table}


def jobs() -> list[str]:
    """What of datasets on their way to workers is kept, here and where workers are forked from."""
    found = [name for name, count in worker_loop.open_files() for _ in range(count)]
    for pid in worker_runs.children():
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [name for name in found if "forebay-job" in name]


@pytest.mark.parametrize("stays", [False, True])
def test_a_dataset_is_freed_with_its_loader(stays: bool) -> None:
    dataset = Heavy()
    loader = forebay.DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=stays, workers="processes")
    assert [sum(worker_runs.flat(loader)) for _ in range(2)] == [136, 136]
    assert worker_runs.wait_until(lambda: bool(jobs()) == stays)
    known = weakref.ref(dataset)
    del loader, dataset
    gc.collect()
    assert known() is None
    assert worker_runs.wait_until(lambda: not jobs())


def test_a_dataset_is_sent_when_the_one_before_is_freed() -> None:
    dataset = Heavy()
    with worker_runs.running(worker_runs.job(dataset, output="numpy", shard_count=1)) as workers:
        workers.start(worker_runs.job(dataset, output="numpy", shard_count=1), [0], None)
    assert dataset.jobs == [0, 0]
