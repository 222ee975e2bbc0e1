"""Real faults on a real mount: what each policy makes of them. `docs/faults.md` is this run's table.

`FOREBAY_WRITE_FAULTS=1` writes it anew; otherwise the last test compares it with what happened, but for the times.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import children
import faultfs
import forebay as fb
from faultfs import FaultFs, stalls
from forebay import transforms as T
from missing import missing

DOCUMENT = Path(__file__).parents[3] / "docs" / "faults.md"
COUNT, BATCH = 24, 4
# The file that faults are about, and where it is in the order, which is not shuffled.
VICTIM, INDEX = "cat/0010.jpg", 5
TO_TENSOR = T.Compose([T.Resize((24, 32)), T.ToTensor()])

Rule = Callable[[FaultFs], None]


@dataclass
class Row:
    """What a fault came to under a policy."""

    fault: str
    policy: str
    delivered: int
    replaced: int
    skipped: int
    reported: str
    seconds: float

    def words(self) -> str:
        return (
            f"| {self.fault} | {self.policy} | {self.delivered} | {self.replaced} | {self.skipped} | {self.reported} |"
        )


@dataclass
class Matrix:
    """The rows of a run, and how long an epoch takes when nothing fails."""

    rows: list[Row] = field(default_factory=list)
    baseline_seconds: float = 0.0

    def enter(self, fault: str, loader: fb.DataLoader, policy: str, reported: str, seconds: float) -> None:
        books = loader._engine.books()[-1]
        lost = max(0.0, seconds - self.baseline_seconds)
        self.rows.append(Row(fault, policy, books["delivered"], books["replaced"], books["skipped"], reported, lost))


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


def dataset(fs: FaultFs) -> fb.ImageFolder:
    found = fb.ImageFolder(fs.root, transform=TO_TENSOR)
    assert found.samples[INDEX][0] == str(fs.root / VICTIM)
    return found


def delivered(batches: Any) -> int:
    return sum(len(labels) for _, labels in batches)


def balanced(loader: fb.DataLoader) -> dict[str, int]:
    """The books of the epoch that ended: every sample is in them once."""
    books = loader._engine.books()[-1]
    assert books["planned"] == COUNT == books["delivered"] + books["replaced"] + books["skipped"]
    return books


def opens(fs: FaultFs, path: str = VICTIM) -> int:
    return fs.counts().get(("open", path), 0)


def test_without_a_fault_nothing_is_reported(fault_fs: FaultFs, matrix: Matrix) -> None:
    found = dataset(fault_fs)
    delivered(fb.DataLoader(found, BATCH))  # imports torch
    loader = fb.DataLoader(found, BATCH)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    matrix.baseline_seconds = time.monotonic() - started
    assert balanced(loader)["delivered"] == COUNT and not loader.failures
    matrix.enter("none", loader, "raise", "nothing", matrix.baseline_seconds)


# What passes by itself.


@dataclass
class Passing:
    """A fault that goes away: the sample is delivered, after so many attempts."""

    fault: str
    rules: Sequence[dict[str, Any]]
    code: str
    errno: int | None
    attempts: int
    hint: str = ""

    @property
    def reported(self) -> str:
        # Attempts that ran out of something are not counted while other reads may have it.
        by = "" if self.code == "exhausted" else f" by attempt {self.attempts}"
        return f"`{self.code}`, recovered{by}"


def twice(operation: str, number: int, code: str = "unavailable", hint: str = "") -> Passing:
    name = errno.errorcode[number]
    rules = [{"operation": operation, "errno": number, "times": 2}]
    return Passing(f"{name} from {operation}, twice", rules, code, number, 3, hint)


PASSING = [
    twice("read", errno.EIO, hint="faultfs"),
    twice("read", errno.ESTALE, hint="faultfs"),
    twice("read", errno.EAGAIN),
    twice("read", errno.ETIMEDOUT, "timeout", hint="faultfs"),
    twice("read", errno.ENOTCONN, hint="faultfs"),
    twice("read", errno.ECONNRESET, hint="faultfs"),
    twice("read", errno.ENOMEM, "exhausted", hint="MiB left"),
    twice("open", errno.EIO, hint="faultfs"),
    # The kernel tries an open again by itself, once.
    Passing(
        "ESTALE from open, four times",
        [{"operation": "open", "errno": errno.ESTALE, "times": 4}],
        "unavailable",
        errno.ESTALE,
        3,
        "faultfs",
    ),
    twice("open", errno.EAGAIN),
    twice("open", errno.ETIMEDOUT, "timeout", hint="faultfs"),
    twice("open", errno.EMFILE, "exhausted", hint="descriptors"),
    twice("open", errno.ENFILE, "exhausted", hint="file-nr"),
    twice("getattr", errno.EIO, hint="faultfs"),
    twice("lookup", errno.ENOTCONN, hint="faultfs"),
    Passing("the file ends early, once", [{"operation": "read", "short": 1000, "times": 1}], "unavailable", None, 2),
    Passing("the file reads as empty, once", [{"operation": "read", "short": 0, "times": 1}], "unavailable", None, 2),
    Passing("the size is said to be 0, once", [{"operation": "getattr", "size": 0, "times": 1}], "changed", None, 2),
    Passing(
        "garbage from the middle on, once", [{"operation": "read", "garbage": 800, "times": 1}], "corrupt", None, 2
    ),
    Passing("nothing but garbage, once", [{"operation": "read", "garbage": 0, "times": 1}], "undecodable", None, 2),
    Passing(
        "the size is said to be 1,000, once", [{"operation": "getattr", "size": 1000, "times": 1}], "changed", None, 2
    ),
    Passing(
        "EIO from open twice, then the file ends early once",
        [{"operation": "open", "errno": errno.EIO, "times": 2}, {"operation": "read", "short": 1000, "times": 1}],
        "unavailable",
        errno.EIO,
        4,
    ),
]


@pytest.mark.parametrize("case", PASSING, ids=lambda case: case.fault)
def test_what_passes_is_delivered(fault_fs: FaultFs, matrix: Matrix, case: Passing) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH)
    for rule in case.rules:
        fault_fs.rule(VICTIM, **rule)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    assert balanced(loader)["delivered"] == COUNT
    (failure,) = loader.failures
    assert (failure.path, failure.index, failure.outcome) == (str(fault_fs.root / VICTIM), INDEX, "recovered")
    assert (failure.code, failure.errno) == (case.code, case.errno)
    assert failure.attempts == case.attempts or case.code == "exhausted"
    assert case.hint in failure.hint
    matrix.enter(case.fault, loader, "raise", case.reported, seconds)


UNNOTICED = [
    ("EINTR from read, twice", {"operation": "read", "errno": errno.EINTR, "times": 2}),
    ("EINTR from open, twice", {"operation": "open", "errno": errno.EINTR, "times": 2}),
    ("reads give 100 bytes at a time", {"operation": "read", "pieces": 100}),
]


@pytest.mark.parametrize(("fault", "rule"), UNNOTICED, ids=[fault for fault, _ in UNNOTICED])
def test_what_is_no_fault_is_not_reported(fault_fs: FaultFs, matrix: Matrix, fault: str, rule: dict[str, Any]) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH)
    fault_fs.rule(VICTIM, **rule)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    assert balanced(loader)["delivered"] == COUNT and not loader.failures
    matrix.enter(fault, loader, "raise", "nothing", time.monotonic() - started)


def test_eintr_for_ever_is_a_failure(fault_fs: FaultFs) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace", retries=2, deadline_seconds=0.5, timeout=1.5)
    fault_fs.rule(VICTIM, "read", errno=errno.EINTR)
    try:
        assert delivered(loader) == COUNT
    finally:
        fault_fs.clear()
    assert balanced(loader)["replaced"] == 1


def test_every_file_fails_twice_and_every_file_is_delivered(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, io_threads=8)
    fault_fs.rule("*.jpg", "read", errno=errno.ESTALE, times=2)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    balanced(loader)
    assert [(failure.index, failure.outcome, failure.attempts) for failure in loader.failures] == [
        (index, "recovered", 3) for index in range(COUNT)
    ]
    matrix.enter(
        "ESTALE from read, twice for every file", loader, "raise", "`unavailable`, recovered by attempt 3", seconds
    )


def test_an_outage_shorter_than_the_retries_costs_time_only(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, retries=8)
    fault_fs.rule("*.jpg", "read", errno=errno.EIO)
    ending = threading.Timer(1.0, fault_fs.clear)
    ending.start()
    started = time.monotonic()
    assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    ending.join()
    assert balanced(loader)["delivered"] == COUNT
    assert loader.failures and {failure.outcome for failure in loader.failures} == {"recovered"}
    matrix.enter("EIO from every read, for 1 s", loader, "raise, retries=8", "`unavailable`, recovered", seconds)


# What stays.


@dataclass
class Lasting:
    """A fault that does not go away: the policy decides, and says what it was."""

    fault: str
    rule: dict[str, Any]
    code: str
    errno: int | None
    attempts: int
    hint: str
    stage: str = "fetch"


RETRIES = 2


def always(operation: str, number: int, code: str, attempts: int, hint: str) -> Lasting:
    name = errno.errorcode[number]
    rule = {"operation": operation, "errno": number}
    return Lasting(f"{name} from {operation}", rule, code, number, attempts, hint)


LASTING = [
    always("read", errno.EIO, "unavailable", 3, "(fuse from faultfs)"),
    always("open", errno.ESTALE, "unavailable", 3, "(fuse from faultfs)"),
    always("read", errno.ETIMEDOUT, "timeout", 3, "(fuse from faultfs)"),
    always("lookup", errno.ENOTCONN, "unavailable", 3, "(fuse from faultfs)"),
    always("getattr", errno.EIO, "unavailable", 3, "(fuse from faultfs)"),
    always("open", errno.ENOENT, "not_found", 1, "scanned"),
    always("open", errno.EACCES, "denied", 1, "owner"),
    always("read", errno.EINVAL, "unavailable", 1, ""),
    Lasting("the file ends early", {"operation": "read", "short": 1000}, "unavailable", None, 3, "cut the read short"),
    Lasting("the file reads as empty", {"operation": "read", "short": 0}, "unavailable", None, 3, "cut the read short"),
    Lasting("the size is said to be 0", {"operation": "getattr", "size": 0}, "corrupt", None, 2, "restore", "decode"),
    Lasting(
        "the size is said to be 4 TiB", {"operation": "getattr", "size": 1 << 42}, "unavailable", None, 3, "cut the"
    ),
    Lasting(
        "garbage from the middle on", {"operation": "read", "garbage": 800}, "corrupt", None, 2, "restore", "decode"
    ),
    Lasting(
        "nothing but garbage", {"operation": "read", "garbage": 0}, "undecodable", None, 2, "does not decode", "decode"
    ),
]


@pytest.mark.parametrize("case", LASTING, ids=lambda case: case.fault)
def test_what_lasts_is_replaced_left_out_or_raised(fault_fs: FaultFs, matrix: Matrix, case: Lasting) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, **case.rule)
    for policy, outcome in (("replace", "replaced"), ("skip", "skipped"), ("raise", "raised")):
        loader = fb.DataLoader(found, BATCH, on_error=policy, retries=RETRIES)
        started = time.monotonic()
        if policy == "raise":
            with pytest.raises(fb.ForebayError) as raised:
                list(loader)
            error = raised.value
            assert (error.path, error.index) == (str(fault_fs.root / VICTIM), INDEX)
            assert (error.code, error.stage, error.errno) == (case.code, case.stage, case.errno)
            assert error.attempts == case.attempts and case.hint in error.hint
        else:
            assert delivered(loader) == COUNT - (policy == "skip")
            books = balanced(loader)
            assert (books["replaced"], books["skipped"]) == (policy == "replace", policy == "skip")
        seconds = time.monotonic() - started
        (failure,) = loader.failures
        assert (failure.path, failure.index, failure.outcome) == (str(fault_fs.root / VICTIM), INDEX, outcome)
        assert (failure.code, failure.stage, failure.errno) == (case.code, case.stage, case.errno)
        assert failure.attempts == case.attempts and case.hint in failure.hint
        tries = "attempt" if case.attempts == 1 else "attempts"
        matrix.enter(case.fault, loader, policy, f"`{failure.code}`, {outcome} after {case.attempts} {tries}", seconds)


def test_a_file_that_somebody_writes_to_is_reported_and_not_remembered(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace")
    # A read takes long enough for the file to be touched in it many times.
    fault_fs.rule(VICTIM, "read", delay=0.3)
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.01):
            os.utime(fault_fs.source / VICTIM)

    writer = threading.Thread(target=write)
    writer.start()
    started = time.monotonic()
    try:
        assert delivered(loader) == COUNT
    finally:
        done.set()
        writer.join()
    seconds = time.monotonic() - started
    assert balanced(loader)["replaced"] == 1
    (failure,) = loader.failures
    assert (failure.code, failure.stage, failure.attempts) == ("changed", "fetch", 2)
    assert "changed while it was read (its modification time moved by" in failure.message and "rename" in failure.hint
    matrix.enter("somebody writes to the file", loader, "replace", "`changed`, replaced after 2 attempts", seconds)
    fault_fs.clear()
    assert delivered(loader) == balanced(loader)["delivered"] == COUNT


def test_a_file_found_corrupt_is_not_opened_in_the_next_epoch(fault_fs: FaultFs) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace")
    fault_fs.rule(VICTIM, "read", garbage=800)
    list(loader)
    before = opens(fault_fs)
    assert before == 2
    list(loader)
    assert opens(fault_fs) == before
    assert [failure.code for failure in loader.failures] == ["corrupt", "corrupt"]


def test_a_file_whose_size_was_false_is_read_again_when_it_is_true(fault_fs: FaultFs, tmp_path: Path) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, "getattr", size=0)
    ledger = tmp_path / "ledger.jsonl"
    first = fb.DataLoader(found, BATCH, on_error="replace", ledger=ledger)
    list(first)
    assert balanced(first)["replaced"] == 1
    fault_fs.clear()
    second = fb.DataLoader(found, BATCH, on_error="replace", ledger=ledger)
    assert delivered(second) == balanced(second)["delivered"] == COUNT


def test_a_storage_error_puts_nothing_into_quarantine(fault_fs: FaultFs, tmp_path: Path) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, "read", errno=errno.EIO)
    ledger = tmp_path / "ledger.jsonl"
    list(fb.DataLoader(found, BATCH, on_error="replace", retries=0, ledger=ledger))
    fault_fs.clear()
    loader = fb.DataLoader(found, BATCH, on_error="replace", ledger=ledger)
    assert delivered(loader) == balanced(loader)["delivered"] == COUNT
    assert not loader.failures


def test_the_ledger_has_a_line_for_each(fault_fs: FaultFs, tmp_path: Path) -> None:
    found = dataset(fault_fs)
    fault_fs.rule("cat/0002.jpg", "read", errno=errno.EIO, times=1)
    fault_fs.rule("cat/0004.jpg", "open", errno=errno.EACCES)
    fault_fs.rule("dog/0001.jpg", "read", garbage=800)
    ledger = tmp_path / "ledger.jsonl"
    loader = fb.DataLoader(found, BATCH, on_error="replace", ledger=ledger)
    assert delivered(loader) == COUNT
    balanced(loader)
    assert [(failure.code, failure.outcome) for failure in loader.failures] == [
        ("unavailable", "recovered"),
        ("denied", "replaced"),
        ("corrupt", "replaced"),
    ]
    assert len(ledger.read_text().splitlines()) == 3


def test_too_many_failures_end_the_run(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace", retries=0, max_failures=2)
    fault_fs.rule("dog/*.jpg", "read", errno=errno.EIO)
    started = time.monotonic()
    with pytest.raises(fb.errors.TooManyFailuresError, match="max_failures allows 2"):
        list(loader)
    seconds = time.monotonic() - started
    matrix.enter(
        "EIO from read for half of the files", loader, "replace, max_failures=2", "`too_many_failures`", seconds
    )


def test_one_deadline_covers_all_pieces_of_a_large_file(fault_fs: FaultFs) -> None:
    large = fault_fs.source / VICTIM
    large.write_bytes(large.read_bytes() + bytes(6 << 20))  # what follows the end of a JPEG is benign
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace", retries=0, deadline_seconds=1.5)
    # Each piece of 1 MiB takes less than the deadline, all of them more.
    fault_fs.rule(VICTIM, "read", delay=0.4)
    assert delivered(loader) == COUNT and balanced(loader)["replaced"] == 1
    (failure,) = loader.failures
    assert (failure.code, failure.stage, failure.attempts) == ("timeout", "fetch", 1)
    assert 1.5 <= failure.elapsed_seconds < 3
    assert 1 < fault_fs.counts()["read", VICTIM] < 7, "some pieces came, and not all"


def test_the_deadline_ends_the_attempts(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, on_error="replace", retries=100, deadline_seconds=0.5)
    fault_fs.rule(VICTIM, "read", errno=errno.EIO)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    (failure,) = loader.failures
    assert balanced(loader)["replaced"] == 1 and seconds < 2
    assert failure.code == "unavailable" and 3 <= failure.attempts < 10 and failure.elapsed_seconds <= 0.5
    policy = "replace, retries=100, deadline_seconds=0.5"
    matrix.enter("EIO from read", loader, policy, "`unavailable`, replaced by the deadline", seconds)


# The scan.


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("directory", ["", "dog"], ids=["root", "class"])
def test_a_directory_that_cannot_be_listed_is_named(
    fault_fs: FaultFs, matrix: Matrix, number: int, directory: str
) -> None:
    fault_fs.rule(directory, "readdir", errno=number)
    started = time.monotonic()
    with pytest.raises(OSError) as raised:
        fb.ImageFolder(fault_fs.root)
    seconds = time.monotonic() - started
    error = raised.value
    assert isinstance(error, fb.ForebayError)
    assert error.path is not None and Path(error.path) == fault_fs.root / directory
    assert (error.errno, error.stage) == (number, "scan")
    assert error.code == ("denied" if number == errno.EACCES else "unavailable")
    assert number == errno.EACCES or "(fuse from faultfs)" in error.hint
    fault = f"{errno.errorcode[number]} from readdir of {'a class' if directory else 'the root'}"
    matrix.rows.append(Row(fault, "scan", 0, 0, 0, f"`{error.code}`, raised with the directory's path", seconds))


def test_a_directory_that_cannot_be_listed_once_is_listed_again(fault_fs: FaultFs) -> None:
    fault_fs.rule("dog", "readdir", errno=errno.ESTALE, times=1)
    assert len(dataset(fault_fs)) == COUNT


# Slowness.


def test_latency_is_hidden_by_reading_at_once(fault_fs: FaultFs, matrix: Matrix) -> None:
    delay, io_threads, epochs = 0.05, 16, 8
    fault_fs.rule("*.jpg", "open", delay=delay)
    loader = fb.DataLoader(dataset(fault_fs), BATCH, io_threads=io_threads, prefetch_factor=8, num_workers=2)
    started = time.monotonic()
    for _ in range(epochs):
        assert delivered(loader) == COUNT
        balanced(loader)
    seconds = time.monotonic() - started
    # So many files, so many at once, each so late; the rest of an epoch's work comes on top.
    ideal = epochs * COUNT / io_threads * delay
    assert not loader.failures
    assert ideal / seconds >= 0.6, f"{seconds:.2f} s for {ideal:.2f} s"
    fault = f"every open takes {delay * 1000:.0f} ms; {epochs} epochs, {io_threads} io_threads"
    matrix.enter(fault, loader, "raise", "nothing", seconds)


def test_a_slow_file_delays_its_own_batch_only(fault_fs: FaultFs, matrix: Matrix) -> None:
    fault_fs.rule(VICTIM, "read", delay=1.0, times=1)
    loader = fb.DataLoader(dataset(fault_fs), BATCH, prefetch_factor=8, num_workers=2)
    started = time.monotonic()
    arrivals = []
    for _ in loader:
        arrivals.append(time.monotonic() - started)
    seconds = time.monotonic() - started
    late = INDEX // BATCH
    assert balanced(loader)["delivered"] == COUNT and not loader.failures
    assert max(arrivals[:late]) < 0.8 and arrivals[late] >= 1.0
    # The others were ready when it came.
    assert arrivals[-1] - arrivals[late] < 0.3
    matrix.enter("one file takes 1 s", loader, "raise", "nothing", seconds)


def test_a_hang_is_named_and_waited_for(fault_fs: FaultFs, matrix: Matrix) -> None:
    fault_fs.rule(VICTIM, "read", hang=True)
    loader = fb.DataLoader(dataset(fault_fs), BATCH, stall_seconds=0.5)
    releasing = threading.Timer(2.0, fault_fs.release)
    releasing.start()
    started = time.monotonic()
    with stalls() as said:
        assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    releasing.join()
    assert 2 <= len(said) <= 4
    for words in ("no batch for 0.5 s", str(fault_fs.root / VICTIM), "stage fetch", "thread forebay-io-", "attempt 1"):
        assert words in said[0]
    assert balanced(loader)["delivered"] == COUNT and not loader.failures
    matrix.enter(
        "a read hangs for 2 s", loader, "raise, stall_seconds=0.5", "a warning names file, stage and thread", seconds
    )


@pytest.mark.parametrize("operation", ["read", "open"])
def test_what_hangs_for_ever_is_replaced_at_its_deadline(fault_fs: FaultFs, matrix: Matrix, operation: str) -> None:
    found = dataset(fault_fs)
    stuck = sorted(path for path, _ in found.samples)[::8]
    for path in stuck:
        fault_fs.rule(str(Path(path).relative_to(fault_fs.root)), operation, hang=True)
    loader = fb.DataLoader(found, BATCH, on_error="replace", deadline_seconds=0.5, retries=0, io_threads=4)
    started = time.monotonic()
    assert delivered(loader) == COUNT
    seconds = time.monotonic() - started
    # A thread waits for one stuck file at a time, and a substitute may be another stuck one.
    assert seconds < 0.5 * (2 * len(stuck)) + 2
    assert {failure.path for failure in loader.failures} == set(stuck)
    assert {(failure.code, failure.outcome) for failure in loader.failures} == {("timeout", "replaced")}
    assert balanced(loader)["replaced"] == len(stuck)
    matrix.enter(
        f"3 of 24 {operation}s hang for ever", loader, "replace", "`timeout`, replaced at the deadline", seconds
    )
    loader.close()
    fault_fs.release()


@pytest.mark.parametrize("operation", ["open", "getattr", "lookup"])
def test_a_hang_before_the_first_byte_is_named_too(fault_fs: FaultFs, operation: str) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, operation, hang=True)
    # One read at a time: the kernel looks up names of one directory one after the other, so others would hang with it.
    loader = fb.DataLoader(found, BATCH, stall_seconds=0.2, io_threads=1)
    releasing = threading.Timer(1.0, fault_fs.release)
    releasing.start()
    with stalls() as said:
        assert delivered(loader) == COUNT
    releasing.join()
    assert f'"{fault_fs.root / VICTIM}" (stage fetch, thread forebay-io-0' in said[0]


def test_what_hangs_is_in_flight(fault_fs: FaultFs) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, "open", hang=True)
    loader = fb.DataLoader(found, BATCH)
    batches = iter(loader)
    next(batches)
    while not fault_fs.hanging() or len(loader.in_flight()) > 1:
        time.sleep(0.01)
    (stuck,) = loader.in_flight()
    assert (stuck["path"], stuck["index"], stuck["stage"]) == (str(fault_fs.root / VICTIM), INDEX, "fetch")
    assert stuck["thread"].startswith("forebay-io-") and stuck["attempt"] == 1
    fault_fs.release()
    assert delivered(batches) == COUNT - BATCH


def test_leaving_the_loop_does_not_wait_for_what_hangs(fault_fs: FaultFs) -> None:
    found = dataset(fault_fs)
    fault_fs.rule(VICTIM, "open", hang=True)
    with fb.DataLoader(found, BATCH) as loader:
        for _ in loader:
            while not fault_fs.hanging():
                time.sleep(0.01)
            break
        started = time.monotonic()
    # A grace of 2 s for reads that are only slow; then the thread is left behind.
    assert time.monotonic() - started < 5 and fault_fs.hanging() == 1
    fault_fs.release()


def test_a_server_that_stops_for_5_seconds_is_waited_for(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(
        dataset(fault_fs), BATCH, prefetch_factor=1, num_workers=1, stall_seconds=1.0, deadline_seconds=30
    )
    started = time.monotonic()
    batches = iter(loader)
    seen = delivered([next(batches)])
    fault_fs.pause()
    continuing = threading.Timer(5.0, fault_fs.resume)
    continuing.start()
    with stalls() as said:
        seen += delivered(batches)
    seconds = time.monotonic() - started
    continuing.join()
    assert seen == COUNT and seconds >= 5
    assert "no batch for 1.0 s" in said[0] and "stage fetch" in said[0]
    assert balanced(loader)["delivered"] == COUNT and not loader.failures
    policy = "raise, stall_seconds=1, deadline_seconds=30"
    matrix.enter("the server is stopped for 5 s", loader, policy, "a warning names the files", seconds)


# The mount itself: files that change, its life and death.


def test_a_file_changes_while_it_is_looked_at(fault_fs: FaultFs) -> None:
    path, true = fault_fs.root / VICTIM, os.stat(fault_fs.source / VICTIM)
    fault_fs.rule(VICTIM, "getattr", mtime_moves=True, grows=10, times=2)
    with open(path, "rb") as file:
        looks = [os.fstat(file.fileno()) for _ in range(4)]
        assert file.read() == (fault_fs.source / VICTIM).read_bytes()
    # Opening takes a look of its own where the kernel wants one; the changes end, and what they made of it stays.
    seconds = [round((look.st_mtime_ns - true.st_mtime_ns) / 1e9) for look in looks]
    assert seconds[0] in (1, 2) and seconds[1:] == [2, 2, 2]
    assert [look.st_size - true.st_size for look in looks] == [10 * count for count in seconds]
    other = fault_fs.root / "cat/0000.jpg"
    assert os.stat(other).st_mtime_ns == os.stat(fault_fs.source / "cat/0000.jpg").st_mtime_ns
    with pytest.raises(RuntimeError, match="expected a rule for getattr"):
        fault_fs.rule(VICTIM, "read", mtime_moves=True)


def test_a_server_that_dies_is_an_error_of_every_file_left(fault_fs: FaultFs, matrix: Matrix) -> None:
    loader = fb.DataLoader(dataset(fault_fs), BATCH, retries=1)
    fault_fs.rule(VICTIM, "read", hang=True)
    started = time.monotonic()
    batches = iter(loader)
    next(batches)
    while not fault_fs.hanging():
        time.sleep(0.01)
    fault_fs.process.kill()
    with pytest.raises(fb.errors.UnavailableError) as raised:
        list(batches)
    seconds = time.monotonic() - started
    assert (raised.value.index, raised.value.errno, raised.value.attempts) == (INDEX, errno.ENOTCONN, 2)
    assert "(fuse from faultfs)" in raised.value.hint and "remount" in raised.value.hint
    matrix.enter(
        "the server is killed during a read", loader, "raise", "`unavailable`, the hint says to remount", seconds
    )


def test_closing_the_mount_frees_what_hangs(fault_fs: FaultFs) -> None:
    path = fault_fs.root / VICTIM
    fault_fs.rule(VICTIM, "open", hang=True)
    met = []

    def read() -> None:
        try:
            path.read_bytes()
        except OSError as error:
            met.append(error.errno)

    reader = threading.Thread(target=read)
    reader.start()
    while not fault_fs.hanging():
        time.sleep(0.01)
    fault_fs.process.terminate()
    reader.join(faultfs.PATIENCE_SECONDS)
    assert met and met[0] in (errno.ECONNABORTED, errno.ENOTCONN)
    fault_fs.process.wait(faultfs.PATIENCE_SECONDS)
    assert str(fault_fs.root) not in faultfs.mounts()


def test_no_mount_outlives_its_owner(folder: Path) -> None:
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    # A process with a thread in a call that hangs cannot be reaped, and keeps its pipes open: until the mount has gone.
    program = """
        import sys, threading, time
        from pathlib import Path
        from faultfs import FaultFs, stalls
        fs = FaultFs(Path(sys.argv[1]))
        fs.rule("cat/0010.jpg", "open", hang=True)
        threading.Thread(target=open, args=(fs.root / "cat/0010.jpg",), daemon=True).start()
        while not fs.hanging():
            time.sleep(0.01)
        print(fs.root, flush=True)
        time.sleep(60)
    """
    path = os.pathsep.join([children.PACKAGE, children.TESTS])
    owner = children.start(program, folder, env=children.environment(PYTHONPATH=path), stderr=None)
    assert owner.stdout is not None
    root = Path(owner.stdout.readline().strip())
    assert str(root) in faultfs.mounts()
    owner.kill()
    owner.communicate(timeout=faultfs.PATIENCE_SECONDS)
    # The server may still be a moment from its own end.
    while str(root) in faultfs.mounts():
        time.sleep(0.01)
    shutil.rmtree(root.parent, ignore_errors=True)


# The document.

OPENING = f"""\
# Faults

What the loader makes of real faults: a folder of {COUNT} pictures in batches of {BATCH} on a FUSE mount that fails as
told (`tests/faultfs`). Unless the fault says otherwise it is about one file. Written by
`python/tests/faults/test_faults.py` with `FOREBAY_WRITE_FAULTS=1`; every run of the tests compares all but the times.

Where an epoch ends, delivered + replaced + skipped is {COUNT}, what was planned. Where it ends with an error (`raise`,
too many failures), they count the batches handed over before. Where only the scan was made, there was no epoch.
Time lost is measured against an epoch without faults.

| fault | `on_error` | delivered | replaced | skipped | reported | time lost |
|---|---|---|---|---|---|---|
"""


def test_the_document_says_what_happened(fault_fs: FaultFs, matrix: Matrix, request: pytest.FixtureRequest) -> None:
    if os.environ.get("FOREBAY_WRITE_FAULTS"):
        lines = [f"{row.words()} {row.seconds:.1f} s |\n" for row in matrix.rows]
        DOCUMENT.write_text(OPENING + "".join(lines))
    text = DOCUMENT.read_text()
    assert text.startswith(OPENING)
    written = [line.rsplit("|", 2)[0] + "|" for line in text.removeprefix(OPENING).splitlines()]
    happened = [row.words() for row in matrix.rows]
    assert [line for line in happened if line not in written] == []
    config = request.config
    is_whole = not (config.option.keyword or config.option.lf or any("::" in part for part in config.args))
    if is_whole:
        assert written == happened
        assert len(written) >= 25
