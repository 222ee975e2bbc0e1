"""A signal makes a process print what its loaders wait for, whatever it is stuck in."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import children
import forebay as fb
from faultfs import FaultFs

VICTIM = "cat/0010.jpg"
PATIENCE_SECONDS = 30

PROLOGUE = """
import ctypes, os, signal, sys, threading, time
import forebay as fb
from forebay import transforms as T

def loader():
    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    return fb.DataLoader(dataset, 4, output="numpy")

def say(word):
    os.write(1, word.encode() + b"\\n")

"""


class Child:
    """A program that is sent signals: what it prints is read as it comes."""

    def __init__(self, program: str, *arguments: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            children.command(PROLOGUE + program, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=children.environment(**environment),
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.out, self.err = Lines(self.process.stdout), Lines(self.process.stderr)

    def ask(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    def wake(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(PATIENCE_SECONDS)
        for lines in (self.out, self.err):
            lines.reading.join(PATIENCE_SECONDS)
        return status


class Lines:
    """The lines of a pipe, read by a thread."""

    def __init__(self, pipe: IO[str]) -> None:
        self.all: list[str] = []
        self._news = threading.Condition()
        self.reading = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self.reading.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._news:
                    self.all.append(line.rstrip("\n"))
                    self._news.notify_all()

    def wait_for(self, words: str, count: int = 1) -> str:
        """The line that has these words, the `count`-th time."""

        def found() -> list[str]:
            return [line for line in self.all if words in line]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, PATIENCE_SECONDS), (words, self.all)
            return found()[count - 1]


@pytest.fixture
def started() -> Iterator[list[Child]]:
    """Children that are gone afterwards, however the test ends."""
    living: list[Child] = []
    yield living
    for child in living:
        if child.process.poll() is None:
            child.process.kill()
        child.end()


WAIT_IN_NEXT = """
{register}
for batch in loader():
    pass
say("done")
"""


def hanging(fs: FaultFs) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fs.hanging():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["called", "environment"])
def test_what_next_waits_for_is_printed(fault_fs: FaultFs, started: list[Child], how: str) -> None:
    fault_fs.rule(VICTIM, "read", hang=True)
    register = "fb.dump_on_signal(signal.SIGUSR1)" if how == "called" else ""
    environment = {"FOREBAY_DUMP_SIGNAL": "USR1"} if how == "environment" else {}
    child = Child(WAIT_IN_NEXT.format(register=register), fault_fs.root, **environment)
    started.append(child)
    hanging(fault_fs)
    for times in (1, 2):
        child.ask()
        head = child.err.wait_for(f"forebay: process {child.process.pid} got signal 10; loaders at work: 1", times)
        about = child.err.wait_for("  loader of 24 samples", times)
        line = child.err.wait_for(f'    "{fault_fs.root / VICTIM}" (stage fetch, thread forebay-io-', times)
        readers = child.err.wait_for("    reader processes: ", times)
        assert [child.err.all.index(text) for text in (head, about)] == sorted(
            child.err.all.index(text) for text in (head, about)
        )
        assert re.search(r"\(rank 0 of 1, epoch 0, step [01]\):$", about), about
        assert re.search(rf'attempt 1, for [\d.]+ s\) on "{fault_fs.root}" \(fuse from faultfs', line), line
        assert re.search(r"\d+ alive, 0 lost", readers)
    fault_fs.release()
    child.out.wait_for("done")
    assert child.end() == 0


STUCK_IN_C = """
fb.dump_on_signal(signal.SIGUSR1)
batches = iter(loader())
next(batches)
say("stuck")
# A call of C that does not return, as a collective does; PyDLL keeps the GIL, so that no Python code can run at all.
libc = {library}(None)
libc.read(0, ctypes.create_string_buffer(1), 1)
say("free")
"""


@pytest.mark.parametrize("library", ["ctypes.CDLL", "ctypes.PyDLL"])
def test_it_works_while_the_main_thread_is_stuck_in_c(fault_fs: FaultFs, started: list[Child], library: str) -> None:
    fault_fs.rule(VICTIM, "open", hang=True)
    child = Child(STUCK_IN_C.format(library=library), fault_fs.root)
    started.append(child)
    child.out.wait_for("stuck")
    hanging(fault_fs)
    child.ask()
    child.err.wait_for(f'"{fault_fs.root / VICTIM}" (stage fetch')
    assert "free" not in child.out.all, "the call was not interrupted"
    fault_fs.release()
    assert child.end() == 0


CHAIN = """
signal.signal(signal.SIGUSR1, lambda number, frame: say("handler " + str(number)))
{register}
for batch in loader():
    pass
say("done")
"""


@pytest.mark.parametrize("register", ["main", "thread"])
def test_a_handler_that_is_there_already_runs_too(fault_fs: FaultFs, started: list[Child], register: str) -> None:
    fault_fs.rule(VICTIM, "read", hang=True)
    call = "fb.dump_on_signal()"
    if register == "thread":
        call = "thread = threading.Thread(target=fb.dump_on_signal); thread.start(); thread.join()"
    child = Child(CHAIN.format(register=call), fault_fs.root)
    started.append(child)
    hanging(fault_fs)
    for times in (1, 2, 3):
        child.ask()
        # While `next()` waits: it looks at signals now and then.
        child.out.wait_for("handler 10", times)
        child.err.wait_for("loaders at work: 1", times)
    fault_fs.release()
    child.out.wait_for("done")
    assert child.end() == 0


FAULTHANDLER = """
import faulthandler
fb.dump_on_signal()
faulthandler.register(signal.SIGUSR1, chain=True)
try:
    fb.dump_on_signal()
except fb.errors.ConfigError as error:
    say(str(error))
for line in sys.stdin:
    say("awake")
"""


def test_it_gets_on_with_faulthandler(started: list[Child], folder: Path) -> None:
    """If each of the two called the other one, they would do so for ever."""
    child = Child(FAULTHANDLER, folder)
    started.append(child)
    child.out.wait_for("signal 10: another handler was installed after this one")
    for times in (1, 2, 3):
        child.ask()
        child.err.wait_for("loaders at work: 0", times)
        child.err.wait_for("most recent call first", times)
        child.wake()
        child.out.wait_for("awake", times)  # while it calls the other one, faulthandler itself is not installed
    assert child.end() == 0
    assert sum("most recent call first" in line for line in child.err.all) == 3


FORK = """
fb.dump_on_signal()
own = loader()
batches = iter(own)
next(batches)
forked = os.fork()
if forked == 0:
    if len(sys.argv) > 2:
        fb.dump_on_signal()
    say(f"child {os.getpid()}")
    sys.stdin.read()
    os._exit(0)
os.waitpid(forked, 0)
say("done")
"""


@pytest.mark.parametrize("asks", [False, True])
def test_a_forked_child_neither_dies_nor_speaks_for_its_parent(started: list[Child], folder: Path, asks: bool) -> None:
    child = Child(FORK, folder, *(["asks"] if asks else []))
    started.append(child)
    forked = int(child.out.wait_for("child ").split()[1])
    os.kill(forked, signal.SIGUSR1)
    if asks:
        # Its parent's loaders are not its own.
        child.err.wait_for(f"process {forked} got signal 10; loaders at work: 0")
    child.ask()
    child.err.wait_for(f"process {child.process.pid} got signal 10; loaders at work: 1")
    assert sum("got signal" in line for line in child.err.all) == 1 + asks
    assert child.end() == 0 and "done" in child.out.all


def test_a_loader_that_is_gone_is_not_shown(started: list[Child], folder: Path) -> None:
    program = """
fb.dump_on_signal()
with loader() as one:
    next(iter(one))
del one
say("ready")
sys.stdin.read()
"""
    child = Child(program, folder)
    started.append(child)
    child.out.wait_for("ready")
    child.ask()
    child.err.wait_for("loaders at work: 0")
    assert child.end() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, 0, 65])
def test_a_signal_that_no_program_may_take_is_refused(number: int) -> None:
    with pytest.raises(
        fb.errors.ConfigError, match=rf"signal: expected one that a program may take, got {int(number)}"
    ):
        fb.dump_on_signal(number)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("USR9", "expected a signal's name or number, got 'USR9'"), ("kill", "a program may take, got 9")],
)
def test_a_wrong_word_in_the_environment_is_refused(folder: Path, value: str, problem: str) -> None:
    ended = subprocess.run(
        children.command(PROLOGUE + "loader()", folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=children.environment(FOREBAY_DUMP_SIGNAL=value),
        check=False,
    )
    assert ended.returncode == 1
    assert "ConfigError: FOREBAY_DUMP_SIGNAL in the environment: " in ended.stderr and problem in ended.stderr
