"""5 % of the files hang for ever: the epoch takes the time that arithmetic predicts, and the process always ends.

The arithmetic. A stuck file keeps its I/O thread for `deadline_seconds`; the other threads go on, up to the last of the
batches prepared at a time. A substitute hangs as often as any file, so that H stuck files, a fraction p of all, make
W = H / (1 - p) waits. With T0, the seconds of an epoch without stuck files,

    T = T0 + deadline_seconds * ceil(W / min(io_threads, h))

where h is how many stuck files are in reach: the one that holds delivery up, and a fraction p of the other files of the
batches prepared at a time; threads beyond them find nothing more to read. Here h is 13 and there are 8 threads, so the
threads are the limit: 106 waits, 14 deadlines.
"""

import json
import math
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import children
import faultfs
import folders
import forebay as fb
from faultfs import FaultFs
from forebay import transforms as T
from missing import missing

COUNT, EVERY = 2000, 20
BATCH, BATCHES_AHEAD, IO_THREADS = 64, 4, 8
DEADLINE_SECONDS = 1.0
TO_TENSOR = T.Compose([T.Resize((16, 16)), T.ToTensor()])
# What the kernel has no way out of, in turn; the names of the files say which.
CALLS = ("open", "getattr", "read")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures, of which each twentieth is named after the call that will hang in it."""
    root = tmp_path_factory.mktemp("hangs")
    originals = folders.write_folder(root / "originals", 10, width=32, height=24)
    contents = [path.read_bytes() for path in originals]
    shown = root / "shown"
    for number in range(COUNT):
        call = CALLS[number // EVERY % len(CALLS)] if number % EVERY == 7 else "fine"
        path = shown / f"class {number % 2}" / f"{number:04}-{call}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[number % len(contents)])
    return shown


@pytest.fixture
def hanging_fs(source: Path) -> Iterator[FaultFs]:
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    mounted = FaultFs(source)
    yield mounted
    mounted.close()


def hang(fs: FaultFs) -> None:
    for call in CALLS:
        fs.rule(f"*-{call}.jpg", call, hang=True)


def load(dataset: fb.ImageFolder, ledger: Path) -> tuple[fb.DataLoader, float]:
    loader = fb.DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        on_error="replace",
        deadline_seconds=DEADLINE_SECONDS,
        io_threads=IO_THREADS,
        ledger=ledger,
    )
    started = time.monotonic()
    assert sum(len(labels) for _, labels in loader) == COUNT
    return loader, time.monotonic() - started


@pytest.mark.timeout(90)
def test_an_epoch_with_5_percent_stuck_takes_the_time_predicted(hanging_fs: FaultFs, tmp_path: Path) -> None:
    dataset = fb.ImageFolder(hanging_fs.root, transform=TO_TENSOR)
    stuck = {path for path, _ in dataset.samples if not path.endswith("-fine.jpg")}
    assert len(dataset) == COUNT and len(stuck) == COUNT // EVERY
    loader, baseline_seconds = load(dataset, tmp_path / "none.jsonl")
    assert not loader.failures
    loader.close()

    hang(hanging_fs)
    ledger = tmp_path / "ledger.jsonl"
    loader, seconds = load(dataset, ledger)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sorted(line["path"] for line in lines) == sorted(stuck), "each once, and no other"
    assert {(line["code"], line["outcome"]) for line in lines} == {("timeout", "replaced")}
    (books,) = loader._engine.books()
    assert (books["planned"], books["delivered"], books["replaced"]) == (COUNT, COUNT - len(stuck), len(stuck))

    storage = loader.stats()["storage"]
    # Every reader that was given up is still where it was left; the next epoch's may wait already.
    assert len(stuck) <= storage["readers_lost"] == storage["readers_written_off"] <= hanging_fs.hanging()
    waits = math.ceil(len(stuck) / (1 - 1 / EVERY))
    at_once = min(IO_THREADS, 1 + (BATCHES_AHEAD * BATCH - 1) / EVERY)
    predicted = baseline_seconds + DEADLINE_SECONDS * math.ceil(waits / at_once)
    told = f"{seconds:.2f} s, predicted {predicted:.2f} s, {baseline_seconds:.2f} s of it without stuck files"
    print(told)
    assert predicted / 1.5 <= seconds <= predicted * 1.5, told
    loader.close()


# Stops in an epoch with readers given up and readers being waited for, says so, and ends as it is told.
PROGRAM = """
    import os, sys, time
    import forebay as fb
    from forebay import transforms as T

    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((16, 16)), T.ToTensor()]))
    # Without torch, whose own end takes a second on a busy machine.
    options = dict(on_error="replace", deadline_seconds=0.5, io_threads=8, num_workers=1, output="numpy")
    loader = fb.DataLoader(dataset, 64, shuffle=True, **options)
    for batch in loader:
        if loader.stats()["storage"]["readers_lost"] >= 8:
            break
    else:
        raise AssertionError("the epoch ended")
    batches = iter(loader)
    next(batches)
    while not any(item["stage"] == "fetch" and item["elapsed_seconds"] > 0.1 for item in loader.in_flight()):
        time.sleep(0.001)
    print("stuck", flush=True)
    exec(sys.stdin.readline())
"""


@pytest.mark.parametrize("end", ["os._exit(3)", "sys.exit(3)", "kill -9"])
def test_the_process_ends_and_is_reaped_while_reads_are_stuck(hanging_fs: FaultFs, end: str) -> None:
    hang(hanging_fs)
    child = subprocess.Popen(
        children.command(PROGRAM, hanging_fs.root),
        env=children.environment(PYTHONWARNINGS="ignore"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == "stuck\n"
        assert hanging_fs.hanging() >= 8
        told = time.monotonic()
        if end == "kill -9":
            child.send_signal(signal.SIGKILL)
        else:
            child.stdin.write(end + "\n")
            child.stdin.flush()
        ended = child.wait(timeout=2)
        print(f"{end}: reaped after {time.monotonic() - told:.2f} s")
        # The reads are where they were: it did not end because the storage came back.
        assert hanging_fs.hanging() >= 8
    finally:
        hanging_fs.clear()
        child.kill()
        child.communicate(timeout=faultfs.PATIENCE_SECONDS)
    assert ended == (-signal.SIGKILL if end == "kill -9" else 3)
