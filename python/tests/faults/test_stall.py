"""Long waits: said by warning, log and ledger, with the file, the mount and how the mount fares."""

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import children
import faultfs
import forebay as fb
from faultfs import FaultFs, stalls
from forebay import transforms as T
from forebay._options.settings import Patience

TO_TENSOR = T.Compose([T.Resize((24, 32)), T.ToTensor()])
# Not shuffled: the sixth sample, in the second batch of four.
VICTIM, INDEX = "cat/0010.jpg", 5


@contextmanager
def released_after(fs: FaultFs, seconds: float) -> Iterator[None]:
    releasing = threading.Timer(seconds, fs.release)
    releasing.start()
    try:
        yield
    finally:
        releasing.join()


def lines(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def test_the_mount_of_what_hangs_is_named_with_what_waits_for_it(fault_fs: FaultFs) -> None:
    fault_fs.rule(VICTIM, "read", hang=True)
    loader = fb.DataLoader(fb.ImageFolder(fault_fs.root, transform=TO_TENSOR), 4, stall_seconds=0.3)
    with faultfs.control(), released_after(fault_fs, 1.0), stalls() as said:
        batches = iter(loader)
        next(batches)
        while not fault_fs.hanging() or len(loader.in_flight()) > 1:
            time.sleep(0.01)
        (row,) = loader.in_flight()
        list(batches)
    assert (row["mount"], row["filesystem"]) == (str(fault_fs.root), "fuse")
    found = re.search(
        rf'in flight: "{fault_fs.root / VICTIM}" \(stage fetch, thread forebay-io-\d+, attempt 1, for [\d.]+ s\) '
        rf'on "{fault_fs.root}" \(fuse from faultfs, requests waiting: (\d+)\); '
        r"reader processes: (\d+) alive, 0 lost$",
        said[0],
    )
    assert found and int(found[1]) >= 1 and int(found[2]) >= 1, said


def test_without_the_kernels_view_the_mount_is_named_all_the_same(fault_fs: FaultFs) -> None:
    if str(faultfs.CONNECTIONS) in faultfs.mounts():
        pytest.skip("fusectl is mounted here")
    fault_fs.rule(VICTIM, "open", hang=True)
    loader = fb.DataLoader(fb.ImageFolder(fault_fs.root, transform=TO_TENSOR), 4, stall_seconds=0.3)
    with released_after(fault_fs, 0.6), stalls() as said:
        list(loader)
    assert f'on "{fault_fs.root}" (fuse from faultfs)' in said[0]


def test_links_are_followed_before_anything_hangs(fault_fs: FaultFs, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(fault_fs.root)
    found = fb.ImageFolder(tmp_path / "link", transform=TO_TENSOR)
    loader = fb.DataLoader(found, 4)
    batches = iter(loader)
    fault_fs.rule(VICTIM, "read", hang=True)
    while not fault_fs.hanging():
        time.sleep(0.01)
    # A server that answers nothing at all: whoever asked the mount anything would now hang.
    fault_fs.pause()
    try:
        asked = time.monotonic()
        rows = loader.in_flight()
        assert time.monotonic() - asked < 1
    finally:
        fault_fs.resume()
    assert {(row["mount"], row["filesystem"]) for row in rows} == {(str(fault_fs.root), "fuse")}
    fault_fs.release()
    assert len(list(batches)) == 6


def test_the_ledger_has_a_line_for_each_stall_and_nothing_counts_it(fault_fs: FaultFs, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    fault_fs.rule(VICTIM, "read", hang=True)
    found = fb.ImageFolder(fault_fs.root, transform=TO_TENSOR)
    loader = fb.DataLoader(found, 4, stall_seconds=0.3, ledger=ledger, on_error="replace", max_failures=0)
    with released_after(fault_fs, 1.0), stalls() as said:
        assert sum(len(labels) for _, labels in loader) == 24
    written = lines(ledger)
    assert 2 <= len(written) == len(said)
    first = written[0]
    assert (first["outcome"], first["code"], first["stage"], first["index"]) == ("stalled", "timeout", "fetch", INDEX)
    assert (first["path"], first["attempts"], first["epoch"], first["step"]) == (str(fault_fs.root / VICTIM), 1, 0, 1)
    assert first["elapsed_seconds"] >= 0.2 and "waited 0.3 s for step 1" in first["message"]
    assert f'on "{fault_fs.root}" (fuse from faultfs' in first["detail"]
    assert fb.Failure.from_line(first).outcome == "stalled"
    assert not loader.failures and loader.report().startswith("no sample failed")
    assert loader._engine.books()[-1]["delivered"] == 24
    # The next run reads the ledger: nothing in it is about a bad file.
    again = fb.DataLoader(found, 4, ledger=ledger)
    assert sum(len(labels) for _, labels in again) == 24 and not again.failures
    assert all(row["index"] == row["planned"] for step in range(6) for row in again.explain(step, 0))
    assert len(lines(ledger)) == len(written)


def test_stalls_go_to_the_log_too(fault_fs: FaultFs, caplog: pytest.LogCaptureFixture) -> None:
    fault_fs.rule(VICTIM, "read", hang=True)
    loader = fb.DataLoader(fb.ImageFolder(fault_fs.root, transform=TO_TENSOR), 4, stall_seconds=0.3)
    with caplog.at_level(logging.WARNING, "forebay"), released_after(fault_fs, 1.0), stalls() as said:
        list(loader)
    records = [record for record in caplog.records if record.name == "forebay"]
    assert [record.getMessage() for record in records] == said and len(said) >= 2
    assert {(record.levelname, record.pathname) for record in records} == {("WARNING", __file__)}


# Every sample takes a while, so that every step stalls, several times.
SLOW = """
import sys, time, warnings
import forebay as fb

def slowly(path):
    time.sleep(0.75)
    return len(path)

{configure}
dataset = fb.DatasetFolder(sys.argv[1], slowly, (".jpg",)).subset([3, 4])
for _ in range(2):
    for batch in fb.DataLoader(dataset, 1, stall_seconds=0.2, num_workers=1, output="numpy", seed=0):
        pass
"""


def said_by(configure: str, folder: Path) -> list[str]:
    ended = children.run(SLOW.format(configure=configure), folder)
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stderr.splitlines() if "no batch for" in line]


def test_every_stall_is_shown_under_the_default_filters(folder: Path) -> None:
    said = said_by("", folder)
    # Two loaders, two steps each, 0.2 and 0.4 s into each; those of the second loader in the very words of the first.
    assert len(said) >= 8, said
    for step in (0, 1):
        for seconds in (0.2, 0.4):
            assert sum(f"no batch for {seconds} s (epoch 0, step {step})" in line for line in said) == 2, said
    assert not any("WARNING" in line for line in said)


def test_warnings_made_errors_end_the_loop(folder: Path) -> None:
    ended = children.run(SLOW.format(configure='warnings.simplefilter("error", RuntimeWarning)'), folder)
    assert ended.returncode == 1 and "RuntimeWarning: no batch for 0.2 s" in ended.stderr


def test_a_configured_log_gets_them_when_warnings_are_silenced(folder: Path) -> None:
    said = said_by('warnings.simplefilter("ignore"); import logging; logging.basicConfig()', folder)
    assert len(said) >= 8 and all(line.startswith("WARNING:forebay:no batch for") for line in said)


def test_repetitions_back_off() -> None:
    def told(stall: float, timeout: float, until: float) -> list[float]:
        patience, waited, moments = Patience.of(stall, timeout), 0.0, []
        while waited < until:
            waited += patience.until_told(waited)
            moments.append(waited)
        return moments

    assert told(30, 0, 2000) == [30, 60, 120, 240, 480, 960, 1560, 2160]
    assert told(900, 0, 2000) == [900, 1800, 2700]
    assert told(30, 100, 100) == [30, 60, 100]
