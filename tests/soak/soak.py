"""Loads for minutes while everything fails: storage, readers, ranks. Ends with a proof, or says what broke.

A group of ranks loads from one FUSE mount, step by step together. Faults of all kinds come and go. Ranks are killed
with SIGKILL at random moments; the group then goes on from the last saved state, as another number of ranks. What holds
to the end: every epoch's books balance, every planned sample of every epoch was handed over once (or replaced, and then
the ledger names it), every killed process is reaped at once, and no process grew. Prints a summary in Markdown.
"""

import argparse
import io
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))

from accounts import Accounts, Ledger, Life
from rank import STOPPED
from summary import summary

import faultfs
import folders
import forebay as fb
from faults import Faults, readers_of, write_source
from forebay import transforms as T

COUNT, BATCH = 240, 4
OPTIONS: dict[str, Any] = {
    "batch_size": BATCH,
    "shuffle": True,
    "seed": 11,
    "on_error": "replace",
    "deadline_seconds": 1.0,
    "stall_seconds": 5.0,
    "retries": 2,
    "num_workers": 1,
    "io_threads": 4,
}
# A step that takes longer is a hang: four deadlines in a row, and a machine that is busy with other things.
PATIENCE_SECONDS = 60.0
REAP_SECONDS = 2.0


class BrokenPromiseError(Exception):
    """What must not happen."""


class RankEndedError(Exception):
    """A rank closed its standard output: it has ended, or is about to."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


class Group:
    """Ranks that make steps together."""

    def __init__(self, number: int, world: int, root: Path, ledger: Path, state: dict[str, Any] | None) -> None:
        program = str(Path(__file__).with_name("rank.py"))
        self.world = world
        self.lives = [Life(f"group {number}, rank {rank} of {world}") for rank in range(world)]
        self.errors = tempfile.TemporaryFile("w+")
        self.processes = [
            subprocess.Popen(
                [sys.executable, program, str(root), str(ledger),
                 json.dumps(OPTIONS | {"rank": rank, "world_size": world}), json.dumps(state)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, bufsize=1,
            )
            for rank in range(world)
        ]  # fmt: skip

    def gather(self) -> list[dict[str, Any]]:
        """One line of every rank; raises `RankEndedError` when one of them has none to say any more."""
        lines: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                assert isinstance(process.stdout, io.TextIOWrapper)
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(lines) < self.world:
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(self.world)) - set(lines))
                    raise BrokenPromiseError(f"ranks {missing} said nothing for {PATIENCE_SECONDS:.0f} s")
                for key, _ in ready:
                    # A rank says one line and waits for the answer, so nothing is left in the buffer.
                    text = key.fileobj.readline()  # type: ignore[union-attr]
                    if not text.endswith("\n"):
                        raise RankEndedError(key.data)
                    lines[key.data] = json.loads(text)
                    selector.unregister(key.fileobj)
        return [lines[rank] for rank in range(self.world)]

    def answer(self, word: str) -> None:
        """To every rank; one that was killed meanwhile is noticed when it says nothing."""
        for process in self.processes:
            try:
                assert process.stdin is not None
                process.stdin.write(word + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass

    def end(self) -> tuple[float, list[int]]:
        """Kills whoever is left. How long it took until the last one was reaped, and how each had ended."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        started = time.monotonic()
        for process in self.processes:
            try:
                process.wait(REAP_SECONDS)
            except subprocess.TimeoutExpired:
                raise BrokenPromiseError(f"rank {process.pid} was not reaped within {REAP_SECONDS:.0f} s") from None
        seconds = time.monotonic() - started
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                try:
                    assert pipe is not None
                    pipe.close()
                except BrokenPipeError:
                    pass
        return seconds, [process.returncode for process in self.processes]

    def said(self) -> str:
        """What the ranks wrote to standard error."""
        self.errors.seek(0)
        return self.errors.read()


class Soak:
    """One run."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.place = place
        example = place / "example"
        (path,) = folders.write_folder(example, 1)
        write_source(place / "source", COUNT, path.read_bytes())
        self.ledger_path = place / "ledger.jsonl"
        self.ledger = Ledger(self.ledger_path)
        planned = fb.ImageFolder(place / "source", transform=T.ToTensor())
        # Of one rank: the order is the same for any number.
        self.accounts = Accounts(
            fb.DataLoader(planned, BATCH, shuffle=True, seed=11, rank=0, world_size=1), self.ledger
        )
        self.lives: list[Life] = []
        self.pids: set[int] = set()
        self.ends: Counter[str] = Counter()
        self.worlds: Counter[int] = Counter()
        self.slowest_reap = 0.0
        self.slowest_step = 0.0
        self.reader_peak_bytes = 0
        self.group: Group | None = None
        self.faults: Faults | None = None

    def run(self, seconds: float) -> None:
        """Until the time is over and an epoch ends."""
        fs = faultfs.FaultFs(self.place / "source")
        try:
            self.faults = Faults(fs, self.seed, self._ranks)
            until, state, world, number = time.monotonic() + seconds, None, 3, 0
            is_over = False
            while not is_over:
                number += 1
                self.worlds[world] += 1
                is_over, state = self._live(number, world, fs.root, state, until)
                world = self.random.choice([other for other in (1, 2, 3, 4) if other != world])
        finally:
            if self.group is not None:
                for process in self.group.processes:
                    process.kill()
            if self.faults is not None:
                self.faults.end()
            fs.close()

    def _ranks(self) -> set[int]:
        return {process.pid for process in self.group.processes} if self.group else set()

    def _live(
        self, number: int, world: int, root: Path, state: dict[str, Any] | None, until: float
    ) -> tuple[bool, dict[str, Any] | None]:
        """One group, from its start to its end; whether all is over, and the state that was saved last."""
        self.ledger.begin()
        # The steps of the last group that were made, but not by all, count as not made.
        self.accounts.position = state["position"] if state else 0
        group = self.group = Group(number, world, root, self.ledger_path, state)
        self.lives += group.lives
        self.pids |= {process.pid for process in group.processes}
        killed_at = time.monotonic() + self.random.choice((self.random.uniform(2, 10), self.random.uniform(15, 75)))
        victim: int | None = None
        while True:
            asked = time.monotonic()
            try:
                lines = group.gather()
            except RankEndedError as ended:
                self._bury(group, ended.rank, victim)
                return False, state
            self.slowest_step = max(self.slowest_step, time.monotonic() - asked)
            if lines[0]["kind"] == "step":
                self.accounts.enter_step(lines)
                state = lines[0]["state"]
            else:
                self.accounts.enter_epoch(lines)
                state = dict(state or {}, epoch=lines[0]["epoch"] + 1, step=0, position=0)
                state["books"] = dict.fromkeys(state["books"], 0)
                for rank, (life, line) in enumerate(zip(group.lives, lines, strict=True)):
                    life.samples.append(line["held"] | {"failures": self.ledger.by_rank[rank]})
                self._measure_readers()
                if time.monotonic() > until:
                    group.answer("stop")
                    return self._finish(group), None
            group.answer("go")
            if victim is None and time.monotonic() > killed_at and time.monotonic() < until:
                # In the middle of whatever it does next; the others are found waiting for it.
                victim = self.random.randrange(world)
                os.kill(group.processes[victim].pid, signal.SIGKILL)

    def _finish(self, group: Group) -> bool:
        for process in group.processes:
            status = process.wait(REAP_SECONDS * 5)
            if status != 0:
                raise BrokenPromiseError(f"a rank that was told to stop ended with {status}:\n{group.said()}")
        group.end()
        self.ends["told to stop"] += 1
        self.group = None
        return True

    def _bury(self, group: Group, ended: int, victim: int | None) -> None:
        """How it ended: killed by this program, or stopped by itself for a reason that it gives."""
        started = time.monotonic()
        try:
            group.processes[ended].wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokenPromiseError(f"rank {ended} did not end within {REAP_SECONDS:.0f} s") from None
        seconds, statuses = group.end()
        self.slowest_reap = max(self.slowest_reap, seconds, time.monotonic() - started)
        bad = [status for status in statuses if status not in (-signal.SIGKILL, STOPPED)]
        if bad or (victim is None and STOPPED not in statuses):
            raise BrokenPromiseError(f"ranks ended with {statuses}:\n{group.said()}")
        codes = sorted({line.split(":")[0] for line in group.said().splitlines() if line[:1].islower()})
        self.ends["a rank killed" if victim is not None else f"stopped by itself: {', '.join(codes)}"] += 1
        self.group = None

    def _measure_readers(self) -> None:
        for reader in readers_of(self._ranks()):
            try:
                pages = int(Path(f"/proc/{reader}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            self.reader_peak_bytes = max(self.reader_peak_bytes, pages * os.sysconf("SC_PAGESIZE"))

    def check(self) -> None:
        """What can be said at the end only."""
        self.ledger.look()
        grown = [
            f"{life.name}: {life.grown()} {life.growth()}" for life in self.lives if life.is_judged and life.grown()
        ]
        if grown:
            raise BrokenPromiseError("not flat:\n" + "\n".join(grown))
        if self.accounts.epochs < 1:
            raise BrokenPromiseError("no epoch was finished")


def main() -> int:
    """Status 0: everything held. 1: something broke. 2: it cannot be run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; a new one each time by default")
    parser.add_argument("--output", type=Path, help="a file for the summary, beside standard output")
    given = parser.parse_args()
    if why_not := faultfs.why_not():
        print(f"the soak cannot be run: {why_not}", file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    problem = None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as place:
        soak = Soak(Path(place), seed)
        try:
            soak.run(given.seconds)
            soak.check()
        except (BrokenPromiseError, AssertionError) as error:
            problem = error
        text = summary(soak, time.monotonic() - started, problem)
    print(text)
    if given.output:
        given.output.write_text(text)
    if problem is not None:
        raise problem
    return 0


if __name__ == "__main__":
    sys.exit(main())
