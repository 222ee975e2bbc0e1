"""Whatever happens to a file that the process touches itself, `next()`, Ctrl-C and `close()` return: the ledger, the
cache and the manifest, with their lock held, with the owner of the lock stopped, and on a mount that does not answer.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import children
import faultfs
import folders
from missing import missing

LIMIT_SECONDS = 2.0
DEADLINE_SECONDS = 1.0
# Runs what it is told, and says how long that took and what came of it. A signal ends a command, not the program.
PROGRAM = """
    import json, os, signal, sys, time, warnings
    import forebay as fb
    from forebay import transforms as T

    said = []
    warnings.showwarning = lambda message, *rest: said.append(str(message))
    warnings.simplefilter("always")
    signalled = [0.0]

    def interrupt(number, frame):
        signalled[0] = time.monotonic()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    data, place = sys.argv[1:]
    transform = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    options = dict(on_error="replace", output="numpy", num_workers=1, prefetch_factor=1, io_threads=2)

    def tell(result, began):
        print(json.dumps([time.monotonic() - began, result]), flush=True)

    for line in sys.stdin:
        began = time.monotonic()
        try:
            # The test is told that it began, so that it can send a signal.
            if line.startswith("!"):
                print("begun", flush=True)
            exec(json.loads(line.lstrip("!")))
            tell("done", began)
        except KeyboardInterrupt:
            tell("interrupted", signalled[0])
        except fb.ForebayError as error:
            tell(f"{type(error).__name__}: {error}", began)
"""


class Child:
    """The program, and what it says."""

    def __init__(self, data: Path, place: Path) -> None:
        self.process = subprocess.Popen(
            children.command(PROGRAM, data, place),
            env=children.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _say(self, prefix: str, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(prefix + json.dumps(textwrap.dedent(code)) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, code: str) -> tuple[float, str]:
        """How long the code took, and what came of it."""
        self._say("", code)
        seconds, result = json.loads(self._hear())
        return seconds, result

    def do(self, code: str) -> None:
        assert (result := self.ask(code)[1]) == "done", result

    def interrupt(self, code: str, is_in_it: Callable[[], bool] = lambda: True) -> float:
        """Seconds from Ctrl-C to KeyboardInterrupt, in code that would go on for ever."""
        self._say("!", code)
        assert self._hear() == "begun\n"
        deadline = time.monotonic() + 20
        while not is_in_it():
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.01)
        self.process.send_signal(signal.SIGINT)
        seconds, result = json.loads(self._hear())
        assert result == "interrupted", result
        return float(seconds)

    def value(self, name: str) -> Any:
        self._say("", f"print(json.dumps({name}), flush=True)")
        value = json.loads(self._hear())
        self._hear()
        return value


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of which each third is damaged: every batch has something for the ledger."""
    root = tmp_path_factory.mktemp("matrix") / "data"
    for number, path in enumerate(folders.write_folder(root)):
        if number % 3 == 0:
            folders.truncate(path)
    return root


@pytest.fixture(scope="module")
def mounted_fs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faultfs.FaultFs]:
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    mounted = faultfs.FaultFs(tmp_path_factory.mktemp("mounted"), writable=True)
    yield mounted
    mounted.close()


@pytest.fixture
def child(data: Path, mounted_fs: faultfs.FaultFs, request: pytest.FixtureRequest) -> Iterator[Child]:
    """The program; its files are in a new directory of the mount, where a fault is one of `faulty`'s."""
    place = mounted_fs.root / request.node.name.replace("[", "-").rstrip("]").replace(" ", "-")
    place.mkdir()
    started = Child(data, place)
    yield started
    mounted_fs.clear()
    started.process.kill()
    started.process.communicate()


@contextmanager
def held(path: Path) -> Iterator[int]:
    """The file's lock, held by this process, which goes on."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield os.getpid()


@contextmanager
def stopped(path: Path) -> Iterator[int]:
    """The file's lock, held by a process that is stopped."""
    program = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"\n"
        owner.send_signal(signal.SIGSTOP)
        try:
            yield owner.pid
        finally:
            owner.kill()  # it is stopped: nothing else ends it


@contextmanager
def hung(fs: faultfs.FaultFs, path: Path) -> Iterator[None]:
    """The mount answers nothing about the file or what is in it any more."""
    name = str(path.relative_to(fs.root))
    for operation in ("open", "read", "stat", "modify", "readdir"):
        for pattern in (name, f"{name}/*"):
            fs.rule(pattern, operation, hang=True)
    try:
        yield
    finally:
        fs.clear()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LEDGER = """
    loader = fb.DataLoader(fb.ImageFolder(data, transform=transform), 2, ledger=place + "/ledger.jsonl", **options)
    batches = iter(loader)
    next(batches)
"""


def expect_ledger_goes_on(child: Child) -> None:
    """The ledger is in trouble: every step, Ctrl-C and the end are as fast as ever."""
    for _ in range(5):
        seconds, result = child.ask("next(batches)")
        assert result == "done" and seconds < LIMIT_SECONDS, (result, seconds)
    assert child.interrupt("while True: list(loader)") < LIMIT_SECONDS
    seconds, result = child.ask("loader.close()")
    assert result == "done" and seconds < LIMIT_SECONDS, (result, seconds)


@pytest.mark.parametrize("fault", [held, stopped], ids=["held lock", "stopped owner"])
def test_a_ledger_whose_lock_is_held(
    child: Child, mounted_fs: faultfs.FaultFs, fault: Callable[[Path], Any], tmp_path: Path
) -> None:
    child.do(f"place = {str(tmp_path)!r}\n" + textwrap.dedent(LEDGER))
    ledger = tmp_path / "ledger.jsonl"
    with fault(ledger) as owner:
        expect_ledger_goes_on(child)
        (said,) = [said for said in child.value("said") if "the ledger is incomplete" in said]
        assert f"has been locked by process {owner} (" in said
        assert ("which is stopped" in said) == (fault is stopped)
        # Another loader begins all the same.
        seconds, result = child.ask(LEDGER.replace("place", repr(str(tmp_path))).replace("loader", "other"))
        assert result == "done" and seconds < LIMIT_SECONDS, (result, seconds)
        child.do("del batches; other.close()")
    # What waited is written when the lock is free, and nothing is lost.
    child.do("expected = [[f.epoch, f.step, f.index] for one in (loader, other) for f in one.failures]")
    expected = child.value("expected")
    deadline = time.monotonic() + 20
    while len(lines(ledger)) < len(expected):
        assert time.monotonic() < deadline, f"{len(lines(ledger))} of {len(expected)} lines"
        time.sleep(0.01)
    written = [[line["epoch"], line["step"], line["index"]] for line in lines(ledger)]
    assert sorted(written) == sorted(expected)


def test_a_ledger_on_a_mount_that_hangs(child: Child, mounted_fs: faultfs.FaultFs) -> None:
    child.do(LEDGER)
    ledger = next(mounted_fs.root.glob("*/ledger.jsonl"))
    with hung(mounted_fs, ledger):
        expect_ledger_goes_on(child)
        (said,) = [said for said in child.value("said") if "the ledger is incomplete" in said]
        assert "has not answered for" in said
        # One that is opened now does not answer at all: that is said after the deadline, and felt by Ctrl-C before.
        opening = f"fb.DataLoader(loader.dataset, 2, ledger={str(ledger)!r}, **options, deadline_seconds={{}})"
        assert child.interrupt(opening.format(60), lambda: mounted_fs.hanging() >= 2) < LIMIT_SECONDS
        seconds, result = child.ask(opening.format(DEADLINE_SECONDS))
        assert "cannot be the ledger: it did not answer within 1.0 s" in result, result
        assert seconds < DEADLINE_SECONDS + LIMIT_SECONDS


CACHE = """
    dataset = fb.ImageFolder(data, transform=transform, cache=place + "/cache")
    loader = fb.DataLoader(dataset, 2, **options, deadline_seconds={seconds})
    batches = iter(loader)
    next(batches)
"""


def expect_cache_goes_on(child: Child, within: float) -> None:
    seconds, result = child.ask("for _ in range(4): next(batches)")
    assert result == "done" and seconds < within, (result, seconds)
    assert child.interrupt("while True:\n    try: list(loader)\n    except fb.ForebayError: pass") < LIMIT_SECONDS
    seconds, result = child.ask("loader.close()")
    assert result == "done" and seconds < LIMIT_SECONDS, (result, seconds)


@pytest.mark.parametrize("fault", [held, stopped], ids=["held lock", "stopped owner"])
def test_a_cache_whose_lock_is_held(child: Child, fault: Callable[[Path], Any], tmp_path: Path) -> None:
    child.do(f"place = {str(tmp_path)!r}\n" + textwrap.dedent(CACHE).format(seconds=60))
    (table,) = (tmp_path / "cache").glob("*/usage")
    with fault(table):
        # One wait for it, and then nothing is kept for a while.
        expect_cache_goes_on(child, 20)


def test_a_cache_on_a_mount_that_hangs(child: Child, mounted_fs: faultfs.FaultFs) -> None:
    child.do(CACHE.format(seconds=DEADLINE_SECONDS))
    with hung(mounted_fs, next(mounted_fs.root.glob("*/cache"))):
        expect_cache_goes_on(child, LIMIT_SECONDS)
        # What the cache does not give comes from the source: nothing is lost but what is damaged.
        child.do("codes = sorted({failure.code for failure in loader.failures}); seen = loader.stats()['storage']")
        assert child.value("codes") == ["corrupt"]
        assert child.value("seen")["cache_passes"] > 0
        assert any("has not answered for" in said for said in child.value("said"))
        opening = "fb.ImageFolder(data, transform=transform, cache=place + '/cache')"
        before = mounted_fs.hanging()
        assert child.interrupt(opening, lambda: mounted_fs.hanging() > before) < LIMIT_SECONDS


@pytest.fixture(scope="module")
def manifest(data: Path) -> Path:
    path = data.parent / "data.parquet"
    command = [sys.executable, "-m", "forebay", "scan", str(data), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, env=children.environment())
    return path


@pytest.mark.parametrize("fault", [held, stopped], ids=["held lock", "stopped owner"])
def test_a_manifest_whose_lock_is_held(child: Child, fault: Callable[[Path], Any], manifest: Path) -> None:
    with fault(manifest):
        seconds, result = child.ask(f"fb.ImageFolder(manifest={str(manifest)!r})")
        assert result == "done" and seconds < LIMIT_SECONDS, (result, seconds)


def test_a_manifest_on_a_mount_that_hangs(child: Child, mounted_fs: faultfs.FaultFs, manifest: Path) -> None:
    child.do("pass")
    path = Path(shutil.copyfile(manifest, mounted_fs.root / "data.parquet"))
    with hung(mounted_fs, path):
        opening = f"fb.ImageFolder(manifest={str(path)!r})"
        assert child.interrupt(opening, lambda: mounted_fs.hanging() > 0) < LIMIT_SECONDS
