"""A cache whose disk fails with EIO, EDQUOT and EROFS, on a file system that does so when told: no sample fails, what
can be read is read, and it is said once."""

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cache import COUNT, entries, storage

import faultfs
import forebay as fb
from forebay import transforms as T
from missing import missing

Digests = Callable[[Any], list[str]]


@pytest.fixture
def disk_fs() -> Iterator[faultfs.FaultFs]:
    """A disk for a cache: a mount that can be written to."""
    if problem := faultfs.why_not():
        missing("fuse", problem)
    source = Path(tempfile.mkdtemp(prefix="forebay-disk-"))
    mounted = faultfs.FaultFs(source, writable=True)
    try:
        yield mounted
    finally:
        mounted.close()
        shutil.rmtree(source)


class Run:
    """Epochs of one dataset in front of a cache, compared with those without it."""

    def __init__(self, folder: Path, plain: T.Compose, digests: Digests, disk_fs: faultfs.FaultFs, limit: str) -> None:
        self.expected = digests(fb.DataLoader(fb.ImageFolder(folder, transform=plain), batch_size=5))
        self.dataset = fb.ImageFolder(folder, transform=plain, cache=disk_fs.root / "cache", cache_bytes=limit)
        self._digests = digests

    def fill(self, count: int) -> None:
        """Keeps the first samples."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with fb.DataLoader(self.dataset.subset(range(count)), batch_size=4) as loader:
                assert sum(len(labels) for _, labels in loader) == count

    def epochs(self, count: int) -> tuple[dict[str, Any], list[str]]:
        """What was counted in so many epochs, and what was said of the disk. Nothing else may be."""
        with (
            fb.DataLoader(self.dataset, batch_size=5, on_error="raise", retries=0) as loader,
            warnings.catch_warnings(record=True) as told,
        ):
            warnings.simplefilter("always")
            before = storage(loader)
            for _ in range(count):
                assert self._digests(loader) == self.expected
            assert not loader.failures
            seen = {name: value - before[name] for name, value in storage(loader).items() if name.startswith("cache_")}
        said = [str(warning.message) for warning in told if "the cache" in str(warning.message)]
        assert len(said) == len(told), [str(warning.message) for warning in told]
        # That a cache should not lie on FUSE is another matter.
        return seen, [text for text in said if "which can hang" not in text]


@pytest.fixture
def run(folder: Path, plain: T.Compose, digests: Digests, disk_fs: faultfs.FaultFs) -> Run:
    return Run(folder, plain, digests, disk_fs, "10MiB")


def test_an_entry_that_cannot_be_read_is_a_miss(run: Run, disk_fs: faultfs.FaultFs) -> None:
    seen, said = run.epochs(1)
    assert (seen["cache_misses"], said) == (COUNT, [])
    for number, operation in enumerate(("open", "read")):
        victims = entries(disk_fs.source / "cache")[number * 7 : number * 7 + 7]
        before = {victim: victim.stat().st_mtime_ns for victim in victims}
        for victim in victims:
            disk_fs.rule(str(victim.relative_to(disk_fs.source)), operation, errno=errno.EIO, times=1)
        seen, said = run.epochs(1)
        assert (seen["cache_corrupt"], seen["cache_misses"], seen["cache_passes"]) == (7, 7, 0), seen
        assert said == [], "the entries were removed, and fetched again"
        assert all(victim.stat().st_mtime_ns > written for victim, written in before.items())
        disk_fs.clear()
    seen, _ = run.epochs(1)
    assert (seen["cache_misses"], seen["cache_corrupt"]) == (0, 0)


def test_an_entry_that_can_be_neither_read_nor_removed_is_passed_by(run: Run, disk_fs: faultfs.FaultFs) -> None:
    run.epochs(1)
    victims = entries(disk_fs.source / "cache")[:5]
    for victim in victims:
        disk_fs.rule(str(victim.relative_to(disk_fs.source)), "read", errno=errno.EIO)
        disk_fs.rule(str(victim.relative_to(disk_fs.source)), "change", errno=errno.EIO)
    seen, said = run.epochs(2)
    assert seen["cache_passes"] >= 10 and seen["cache_corrupt"] >= 10 and seen["cache_misses"] == 0, seen
    assert seen["cache_hits"] >= 2 * (COUNT - 5)
    (one,) = said
    assert "Input/output error" in one and "are read from the source" in one


def test_a_disk_that_cannot_be_written_to_is_told_once(run: Run, disk_fs: faultfs.FaultFs) -> None:
    disk_fs.rule("*.part", "write", errno=errno.EIO)
    seen, said = run.epochs(3)
    assert seen["cache_misses"] == 0 and seen["cache_passes"] >= 3 * COUNT, seen
    (one,) = said
    assert "Input/output error" in one and "are read from the source" in one
    assert not entries(disk_fs.source / "cache") and not list((disk_fs.source / "cache").rglob("*.part"))


@pytest.mark.parametrize("operation", ["write", "create"])
def test_over_quota_the_oldest_go_and_the_limit_shrinks(run: Run, disk_fs: faultfs.FaultFs, operation: str) -> None:
    run.fill(12)
    # Once for each file: then there is room, because others went.
    disk_fs.rule("*.part", operation, errno=errno.EDQUOT, times=1)
    seen, said = run.epochs(1)
    # Several threads at a time may take all that there is.
    assert seen["cache_evictions"] >= 2 and seen["cache_misses"] > 0, seen
    assert seen["cache_misses"] + seen["cache_passes"] >= 12 and seen["cache_corrupt"] == 0, seen
    assert seen["cache_limit_bytes"] < 0, "less than it was"
    (one,) = said
    assert "quota exceeded" in one.lower() and "are read from the source" in one
    assert len(entries(disk_fs.source / "cache")) < COUNT


def test_over_quota_for_good_files_are_passed_on(run: Run, disk_fs: faultfs.FaultFs) -> None:
    run.fill(8)
    disk_fs.rule("*.part", "write", errno=errno.EDQUOT)
    seen, said = run.epochs(3)
    assert seen["cache_misses"] == 0 and seen["cache_passes"] > 0, seen
    assert seen["cache_hits"] > 0, "what was not evicted is of use"
    assert len(said) == 1 and "quota exceeded" in said[0].lower()


def test_a_disk_that_becomes_read_only_is_read(run: Run, disk_fs: faultfs.FaultFs) -> None:
    run.fill(10)
    disk_fs.rule("*", "modify", errno=errno.EROFS)
    before = {path: path.read_bytes() for path in entries(disk_fs.source / "cache")}
    seen, said = run.epochs(2)
    assert seen["cache_hits"] >= 20 and seen["cache_passes"] >= 2 * (COUNT - 10), seen
    assert (seen["cache_misses"], seen["cache_corrupt"], seen["cache_evictions"]) == (0, 0, 0)
    assert len(said) == 1 and os.strerror(errno.EROFS) in said[0]
    assert {path: path.read_bytes() for path in entries(disk_fs.source / "cache")} == before
