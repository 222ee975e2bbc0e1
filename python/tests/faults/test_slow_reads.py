"""Reads that do not come back, in threads and in reader processes, and reads that are slow: on a real mount."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from faultfs import PATIENCE_SECONDS, FaultFs
from forebay import transforms as T
from forebay.errors import ConfigError, ExhaustedError

VICTIM, COUNT, BATCH = "cat/0010.jpg", 24, 4
HERE, ELSEWHERE = "never", "always"


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def delivered(loader: fb.DataLoader) -> int:
    return sum(len(labels) for _, labels in loader)


@pytest.fixture
def dataset(fault_fs: FaultFs, plain: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(fault_fs.root, transform=plain)


def load(dataset: fb.ImageFolder, isolate: str, **settings: Any) -> fb.DataLoader:
    settings = {"on_error": "replace", "deadline_seconds": 0.5, "output": "numpy"} | settings
    return fb.DataLoader(dataset, BATCH, isolate=isolate, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", ["open", "read", "getattr"])
def test_a_thread_that_does_not_come_back_is_written_off(
    fault_fs: FaultFs, dataset: fb.ImageFolder, operation: str
) -> None:
    # The caller's own order: no next epoch is begun, which could meet the file again.
    loader = load(dataset, HERE, sampler=range(COUNT))
    fault_fs.rule(VICTIM, operation, hang=True)
    assert delivered(loader) == COUNT
    (failure,) = loader.failures
    assert (failure.path, failure.code, failure.outcome) == (str(fault_fs.root / VICTIM), "timeout", "replaced")
    assert str(fault_fs.root) in failure.message and 0.5 <= failure.elapsed_seconds < 2
    assert loader.stats()["storage"]["threads_lost"] == 1
    loader.close()
    fault_fs.release()
    wait_until(lambda: loader.stats()["storage"]["threads_lost"] == 0)
    assert loader.stats()["storage"]["threads_written_off"] == 1


@pytest.mark.parametrize(("isolate", "what"), [(HERE, "threads"), (ELSEWHERE, "reader processes")])
def test_too_many_that_do_not_come_back_end_the_run(
    fault_fs: FaultFs, dataset: fb.ImageFolder, isolate: str, what: str
) -> None:
    loader = load(dataset, isolate, max_lost_threads=2, io_threads=2)
    fault_fs.rule("cat/*", "open", hang=True)
    with pytest.raises(ExhaustedError, match=f"was given up: [3-6] {what} are stuck in the kernel") as raised:
        delivered(loader)
    listed = [line for line in str(raised.value).splitlines() if line.startswith('  "')]
    assert 3 <= len(listed) <= 6 and "max_lost_threads" in raised.value.hint
    for line in listed:
        assert f"{fault_fs.root}/cat/" in line and f'on "{fault_fs.root}" (fuse' in line and " for " in line


@pytest.mark.parametrize("isolate", [HERE, ELSEWHERE])
def test_a_slow_read_gets_a_second_one(fault_fs: FaultFs, dataset: fb.ImageFolder, isolate: str) -> None:
    loader = load(dataset, isolate, hedge=0.1, deadline_seconds=30)
    fault_fs.rule(VICTIM, "open", hang=True, times=1)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    assert time.monotonic() - started < 10 and not loader.failures
    stats = loader.stats()
    assert (stats["hedges_won"], stats["hedges"] >= 1) == (1, True)
    assert stats["storage"]["threads_written_off"] == 0


def test_a_quantile_is_learned_before_reads_are_doubled(fault_fs: FaultFs, dataset: fb.ImageFolder) -> None:
    loader = load(dataset, HERE, hedge="p99", deadline_seconds=30)
    for _ in range(5):
        assert delivered(loader) == COUNT
    before = loader.stats()["hedges_won"]
    fault_fs.rule(VICTIM, "open", hang=True, times=1)
    wait_until(lambda: delivered(loader) == COUNT and loader.stats()["hedges_won"] > before)
    assert not loader.failures


@pytest.mark.parametrize("wrong", [0, -1.0, "p0", "p100", "99", "fast"])
def test_what_is_no_hedge_is_refused(folder: Path, plain: T.Compose, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="hedge: expected"):
        fb.DataLoader(fb.ImageFolder(folder, transform=plain), hedge=wrong)


def test_defaults_depend_on_the_storage(fault_fs: FaultFs, dataset: fb.ImageFolder, plain: T.Compose) -> None:
    near = fb.DataLoader(fb.ImageFolder(fault_fs.source, transform=plain)).stats()["storage"]
    far = fb.DataLoader(dataset).stats()["storage"]
    assert (near["retries"], near["deadline_seconds"], near["isolated"]) == (3, 60.0, False)
    assert (far["retries"], far["deadline_seconds"], far["isolated"]) == (6, 120.0, True)
    assert far["max_concurrent_reads"] > near["max_concurrent_reads"]
    told = fb.DataLoader(dataset, retries=1, deadline_seconds=5, io_threads=3).stats()["storage"]
    assert (told["retries"], told["deadline_seconds"], told["max_concurrent_reads"]) == (1, 5.0, 3)
