"""A power cut after every single change to a disk: what is left is a complete file, an older one, or none.

The disk is a FUSE mount that knows which bytes and names were synced (`tests/faultfs/src/history.rs`). After each
change it writes down two outcomes: only synced names with synced bytes, and all names with synced bytes.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_mirror import mirror, write

import faultfs
import folders
import forebay as fb
from forebay import transforms as T
from missing import missing

Digests = Callable[[Any], list[str]]


@contextmanager
def disk(source: Path, history: Path) -> Iterator[Path]:
    """The root of a disk that shows `source`; outcomes of power cuts go to `history`."""
    if problem := faultfs.why_not():
        missing("fuse", problem)
    for folder in (source, history):
        folder.mkdir(exist_ok=True)
    mounted = faultfs.FaultFs(source, history=history)
    try:
        yield mounted.root
    finally:
        mounted.close()


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="forebay-cut-"))
    yield folder
    shutil.rmtree(folder)


def outcomes(history: Path) -> list[Path]:
    """What would have been left, in order: `NNNN-synced` and `NNNN-named`."""
    found = sorted(history.iterdir())
    assert {path.name.split("-")[1] for path in found} == {"synced", "named"}
    return found


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def scan(root: Path, manifest: Path) -> None:
    subprocess.run([sys.executable, "-m", "forebay", "scan", root, "-o", manifest], check=True, capture_output=True)


def test_the_disk_forgets_what_was_not_synced(place: Path) -> None:
    """That the others can fail: a file that is written without a sync, and renamed."""
    with disk(place / "source", place / "history") as root:
        (root / "new").write_bytes(b"bytes")
        (root / "new").rename(root / "name")
    last = {path.name.split("-")[1]: files(path) for path in outcomes(place / "history")}
    assert last == {"synced": {}, "named": {"name": b""}}


def test_a_mirror_leaves_complete_files_only(place: Path) -> None:
    source = write(place / "from", {"a.bin": 100, "deep/er/b.bin": 70_000, "deep/c.bin": 0, "d.bin": 5})
    whole = files(source)
    with disk(place / "disk", place / "history") as root:
        (root / "to").mkdir()
        seen = mirror(source, root / "to")
        assert seen["copied_files"] == 4
    for left in outcomes(place / "history"):
        for name, content in files(left).items():
            if not name.endswith(".part"):
                assert content == whole[str(Path(name).relative_to("to"))], f"{left.name}: {name}"
    finals = {path.name.split("-")[1]: path for path in outcomes(place / "history")}
    assert files(finals["named"] / "to") == whole
    # The test made the directory `to` itself, and did not sync its name; what the mirror made below it is synced.


def test_a_mirror_that_says_it_is_done_is_on_the_disk(place: Path) -> None:
    source = write(place / "from", {"a.bin": 100, "deep/er/b.bin": 70_000})
    (place / "disk" / "to").mkdir(parents=True)
    with disk(place / "disk", place / "history") as root:
        mirror(source, root / "to")
    finals = {path.name.split("-")[1]: path for path in outcomes(place / "history")}
    assert files(finals["synced"] / "to") == files(source)


def test_a_manifest_is_the_old_one_or_the_new_one(place: Path, folder: Path) -> None:
    (place / "disk").mkdir()
    old = place / "disk" / "train.parquet"
    scan(folder, old)
    before = old.read_bytes()
    folders.truncate(next(folder.rglob("*.jpg")))
    with disk(place / "disk", place / "history") as root:
        scan(folder, root / "train.parquet")
    after = old.read_bytes()
    assert after != before
    states = [(left / "train.parquet").read_bytes() for left in outcomes(place / "history")]
    assert set(states) == {before, after}
    assert states[-1] == after


def test_a_cache_never_gives_wrong_bytes(place: Path, folder: Path, plain: T.Compose, digests: Digests) -> None:
    expected = digests(fb.DataLoader(fb.ImageFolder(folder, transform=plain), batch_size=5))

    def epoch(cache: Path) -> None:
        dataset = fb.ImageFolder(folder, transform=plain, cache=cache, cache_bytes="1MiB")
        with fb.DataLoader(dataset, batch_size=5, on_error="raise") as loader:
            assert digests(loader) == expected

    with disk(place / "disk", place / "history") as root, pytest.warns(RuntimeWarning, match="which can hang"):
        epoch(root / "cache")
    left = outcomes(place / "history")
    # Most changes are of the same kind: every tenth outcome, and the last ones.
    for state in [*left[::10], *left[-3:]]:
        epoch(state / "cache")


def test_a_ledger_that_lost_its_lines_is_begun_again(place: Path, folder: Path, plain: T.Compose) -> None:
    folders.truncate(next(folder.rglob("*.jpg")))
    dataset = fb.ImageFolder(folder, transform=plain)

    def epoch(ledger: Path) -> int:
        with fb.DataLoader(dataset, batch_size=5, on_error="replace", ledger=ledger) as loader:
            list(loader)
            return len(loader.failures)

    with disk(place / "disk", place / "history") as root:
        assert epoch(root / "ledger.jsonl") == 1
    for state in outcomes(place / "history"):
        assert epoch(state / "ledger.jsonl") == 1, state.name
        assert (state / "ledger.jsonl").read_text().count("\n") == 1
