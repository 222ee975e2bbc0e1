"""What a crew of worker processes has: its nursery, the workers, and the shards they work for."""

import contextlib
import json
import os
import pickle
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import process, spawn
from typing import Any

from forebay._workers import blocks, imports, nursery, parcel, slate, wire
from forebay._workers.autopsy import Death
from forebay._workers.growth import Growth
from forebay._workers.job import Job, Task
from forebay._workers.surroundings import Surroundings
from forebay.errors import WorkerDiedError

# How long a nursery may take to end its workers, and the kernel to end a nursery: two seconds in all.
_CLOSE_SECONDS = 1.5
_REAP_SECONDS = 0.5
# How long the nursery may take to read a message before it is ended: it reads within milliseconds unless it is stopped
# or stuck in the kernel.
_TELL_SECONDS = 5.0
# Killed, and stuck in the kernel: reaped when it has let go of them.
_unreaped: list[subprocess.Popen[bytes]] = []


@dataclass
class Hired:
    """A worker process, from here."""

    key: int
    shard: int
    wire: wire.Wire
    board: slate.Slate
    dump: int
    # What it is told first, until it is.
    hello: bytes | None = None
    tenancy: blocks.Tenancy = field(default_factory=blocks.Tenancy)
    growth: Growth = field(default_factory=Growth)
    looked: float = 0.0
    hired: float = field(default_factory=time.monotonic)
    # Results in blocks that it was not yet told we took.
    owed: int = 0
    is_at_end: bool = False
    recycling: str | None = None
    # What it had in hand when it was first past its deadline, and when that was.
    suspect: tuple[tuple[int, ...], float, int] | None = None
    # When it was killed, or will be.
    killed: float | None = None
    verdict: Death | None = None

    def close(self, is_ours: bool = True) -> None:
        """Ends what is between it and us; in a forked child, whose worker it is not, only the copies there."""
        if is_ours:
            self.wire.hang_up()
        else:
            self.wire.close()
        os.close(self.dump)


@dataclass
class Seat:
    """A shard, whoever works for it."""

    shard: int
    state: Any
    # Unfinished, in order; the first so many were sent to its worker.
    tasks: deque[Task] = field(default_factory=deque)
    sent: int = 0
    worker: Hired | None = None
    last: tuple[int, int] = (0, -1)
    streams: tuple[bytes, bytes, bytes] | None = None
    fruitless: int = 0
    deaths: dict[tuple[int, int], list[Death]] = field(default_factory=dict)
    given_up: dict[tuple[int, int], list[Death]] = field(default_factory=dict)
    refusal: tuple[WorkerDiedError, str] | None = None


class House:
    """Everything that has to be given back, in one place that outlives the crew."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.process: subprocess.Popen[bytes] | None = None
        self.wire: wire.Wire | None = None
        self.workers: dict[int, Hired] = {}
        self._next_key = 0
        self.job: parcel.SealedJob | None = None
        # What the job needs imported and around it: a digest, and a file that says it.
        self.needs: tuple[bytes, int] | None = None
        self.is_job_sent = False
        # Whether the nursery may have forked anything.
        self._is_used = False

    def close(self) -> None:
        """Ends the nursery, and with it all workers. In a forked child it only closes the child's own copies."""
        for each in self.workers.values():
            each.close(is_ours=os.getpid() == self.owner)
        self.workers.clear()
        self.close_nursery()
        self._close_job()

    def open(self, modules: list[str]) -> int:
        """Starts the nursery, which imports these first; gives the descriptor it is heard at."""
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        here = Surroundings.here()
        told = {
            "pid": os.getpid(),
            "path": here.path,
            "argv": here.arguments,
            "modules": modules,
            "authkey": bytes(process.current_process().authkey).hex(),
        }
        ours, theirs = wire.pair()
        try:
            with open(os.memfd_create("forebay-boot", os.MFD_CLOEXEC), "wb") as file:
                file.write(json.dumps(told).encode())
                file.flush()
                flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
                command = [os.fsdecode(spawn.get_executable()), *flags, "-c", nursery.BOOT]
                passed = theirs.fileno(), file.fileno()
                self.process = subprocess.Popen(
                    [*command, *map(str, passed)], pass_fds=passed, stdin=subprocess.DEVNULL
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.wire, self.is_job_sent, self._is_used = wire.Wire(ours), False, False
        return ours.fileno()

    def tell(self, kind: int, content: bytes, fds: list[int] | None = None) -> bool:
        """Tells the nursery; if it is gone, that is noticed when it is listened to.

        `False` where descriptors cannot be sent now: those on their way to us may be in the way, so nobody waits here.
        A nursery that does not read its messages is killed; a new one is started when its end is noticed.
        """
        if self.wire is None:
            return True
        until = time.monotonic() + _TELL_SECONDS
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not self.wire.send(kind, [content], fds or [], is_patient=False):
                if fds:
                    return False
                if not self.wire.has_room(until - time.monotonic()) and self.process is not None:
                    self.process.kill()
                    break
        return True

    def take_job(self, job: Job) -> None:
        """Pickles a job, for the nursery and its workers, and notes what is around this process now."""
        self.job = parcel.SealedJob(job)
        digest, content = imports.Imports.of(self.job.modules, job.output).sealed()
        told = os.memfd_create("forebay-needs", os.MFD_CLOEXEC)
        self.needs = digest, told
        with open(told, "wb", closefd=False) as file:
            file.write(content)

    def send_job(self) -> bool:
        """Whether the nursery has the job, or will have."""
        if self.job is None or self.needs is None:
            raise AssertionError("no job to send")
        if self.is_job_sent:
            return True
        most = wire.MAX_FDS - 1
        if len(self.job.handles) > most:
            raise pickle.PicklingError(
                f"a dataset may hold {most} pipes and shared memories, got {len(self.job.handles)}"
            )
        digest, told = self.needs
        self.is_job_sent = self.tell(nursery.JOB, digest, [self.job.fd, told, *self.job.handles])
        self._is_used = self._is_used or self.is_job_sent
        return self.is_job_sent

    def spawn(self, shard: int) -> Hired | None:
        """Has a worker forked, which waits to be told what to do; `None` where that cannot be done now."""
        if not self.send_job():
            return None
        ours, theirs = wire.pair()
        board = dump = -1
        new = None
        try:
            board = blocks.create(slate.SIZE_BYTES, "forebay-slate")
            dump = os.memfd_create("forebay-dump", os.MFD_CLOEXEC)
            key = self._next_key
            if self.tell(nursery.SPAWN, parcel.dumps(key), [theirs.fileno(), board, dump]):
                self._next_key += 1
                new = self.workers[key] = Hired(key, shard, wire.Wire(ours), slate.Slate(board), dump)
        finally:
            theirs.close()
            if board >= 0:
                os.close(board)
            if new is None:
                ours.close()
                if dump >= 0:
                    os.close(dump)
        return new

    def drop_job(self) -> None:
        """Frees what the job holds, here and in the nursery: a dataset may be most of the memory there is."""
        if self.job is not None:
            self._close_job()
            self.tell(nursery.JOB, b"")

    def _close_job(self) -> None:
        if self.job is not None:
            self.job.close()
            self.job = None
        if self.needs is not None:
            os.close(self.needs[1])
            self.needs = None
        self.is_job_sent = False

    def close_nursery(self) -> None:
        is_ours = os.getpid() == self.owner
        if self.wire is not None:
            if is_ours:
                self.wire.hang_up()
            else:
                self.wire.close()
            self.wire = None
        if self.process is not None:
            if not is_ours:
                self.process.returncode = 0  # somebody else's child
                return
            if not self._is_used:
                self.process.kill()  # it may be importing, and has nothing to put in order
            if not _has_ended(self.process, _CLOSE_SECONDS):
                self.process.kill()
                if not _has_ended(self.process, _REAP_SECONDS):
                    _unreaped.append(self.process)
            self.process = None


def _has_ended(process: subprocess.Popen[bytes], timeout_seconds: float) -> bool:
    """Waits for a process, but not for ever."""
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
