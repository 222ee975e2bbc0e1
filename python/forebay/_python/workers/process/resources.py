"""The resources of worker processes: the fork server, a handle for each worker, and a queue for each shard."""

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

from forebay._python.workers.diagnose.growth import Growth
from forebay._python.workers.diagnose.post_mortem import Death
from forebay._python.workers.job import Job, Task
from forebay._python.workers.process import fork_server, imports
from forebay._python.workers.process.environment import Environment
from forebay._python.workers.transport import blocks, messages, serialisation, status_page
from forebay.errors import WorkerDiedError

# How long a fork server may take to end its workers, and the kernel to end a fork server: two seconds in all.
_CLOSE_SECONDS = 1.5
_REAP_SECONDS = 0.5
# How long the fork server may take to read a message before it is killed: it reads within milliseconds unless it is
# stopped or stuck in the kernel.
_TELL_SECONDS = 5.0
# Killed, and stuck in the kernel: reaped when it has let go of them.
_unreaped: list[subprocess.Popen[bytes]] = []


@dataclass
class WorkerHandle:
    """A worker process, as its loader sees it."""

    key: int
    shard: int
    connection: messages.Connection
    page: status_page.StatusPage
    dump: int
    # The first message, until it is sent.
    hello: bytes | None = None
    tenancy: blocks.Tenancy = field(default_factory=blocks.Tenancy)
    growth: Growth = field(default_factory=Growth)
    looked: float = 0.0
    started: float = field(default_factory=time.monotonic)
    # Results in blocks that it was not yet told we took.
    owed: int = 0
    is_at_end: bool = False
    recycling: str | None = None
    # Its task and sample when it first exceeded its deadline, and when that was.
    suspect: tuple[tuple[int, ...], float, int] | None = None
    # When it was killed, or will be.
    killed: float | None = None
    verdict: Death | None = None

    def close(self, is_ours: bool = True) -> None:
        """Ends what is between it and us; in a forked child, whose worker it is not, only the copies there."""
        if is_ours:
            self.connection.hang_up()
        else:
            self.connection.close()
        os.close(self.dump)


@dataclass
class ShardQueue:
    """The unfinished tasks of a shard, and the worker that has them now."""

    shard: int
    state: Any
    # Unfinished, in order; the first so many were sent to its worker.
    tasks: deque[Task] = field(default_factory=deque)
    sent: int = 0
    worker: WorkerHandle | None = None
    last: tuple[int, int] = (0, -1)
    streams: tuple[bytes, bytes, bytes] | None = None
    fruitless: int = 0
    deaths: dict[tuple[int, int], list[Death]] = field(default_factory=dict)
    given_up: dict[tuple[int, int], list[Death]] = field(default_factory=dict)
    refusal: tuple[WorkerDiedError, str] | None = None


class Resources:
    """Everything that has to be released: it outlives the `ProcessWorkers` that uses it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: messages.Connection | None = None
        self.workers: dict[int, WorkerHandle] = {}
        self._next_key = 0
        self.job: serialisation.SealedJob | None = None
        # What the job needs imported and around it: a digest, and a file that says it.
        self.needs: tuple[bytes, int] | None = None
        self.is_job_sent = False
        # Whether the fork server may have forked anything.
        self._is_used = False

    def close(self) -> None:
        """Ends the fork server, and with it all workers. In a forked child it only closes the child's own copies."""
        for each in self.workers.values():
            each.close(is_ours=os.getpid() == self.owner)
        self.workers.clear()
        self.close_fork_server()
        self._close_job()

    def open(self, modules: list[str]) -> int:
        """Starts the fork server, which imports these first. Returns the descriptor of its socket."""
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        here = Environment.current()
        told = {
            "pid": os.getpid(),
            "path": here.path,
            "argv": here.arguments,
            "modules": modules,
            "authkey": bytes(process.current_process().authkey).hex(),
        }
        ours, theirs = messages.pair()
        try:
            with open(os.memfd_create("forebay-boot", os.MFD_CLOEXEC), "wb") as file:
                file.write(json.dumps(told).encode())
                file.flush()
                flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
                command = [os.fsdecode(spawn.get_executable()), *flags, "-c", fork_server.BOOT]
                passed = theirs.fileno(), file.fileno()
                self.process = subprocess.Popen(
                    [*command, *map(str, passed)], pass_fds=passed, stdin=subprocess.DEVNULL
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.connection, self.is_job_sent, self._is_used = messages.Connection(ours), False, False
        return ours.fileno()

    def tell(self, kind: int, content: bytes, fds: list[int] | None = None) -> bool:
        """Tells the fork server; if it is gone, that is noticed when it is listened to.

        `False` where descriptors cannot be sent now: those on their way to us may be in the way, so this does not wait.
        A fork server that does not read its messages is killed; a new one is started when its end is noticed.
        """
        if self.connection is None:
            return True
        until = time.monotonic() + _TELL_SECONDS
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not self.connection.send(kind, [content], fds or [], is_patient=False):
                if fds:
                    return False
                if not self.connection.has_room(until - time.monotonic()) and self.process is not None:
                    self.process.kill()
                    break
        return True

    def take_job(self, job: Job) -> None:
        """Pickles a job, for the fork server and its workers, and notes what is around this process now."""
        self.job = serialisation.SealedJob(job)
        digest, content = imports.Imports.of(self.job.modules, job.output).sealed()
        told = os.memfd_create("forebay-needs", os.MFD_CLOEXEC)
        self.needs = digest, told
        with open(told, "wb", closefd=False) as file:
            file.write(content)

    def send_job(self) -> bool:
        """Whether the fork server has the job, or will have."""
        if self.job is None or self.needs is None:
            raise AssertionError("no job to send")
        if self.is_job_sent:
            return True
        most = messages.MAX_FDS - 1
        if len(self.job.handles) > most:
            raise pickle.PicklingError(
                f"a dataset may hold {most} pipes and shared memories, got {len(self.job.handles)}"
            )
        digest, told = self.needs
        self.is_job_sent = self.tell(fork_server.JOB, digest, [self.job.fd, told, *self.job.handles])
        self._is_used = self._is_used or self.is_job_sent
        return self.is_job_sent

    def spawn(self, shard: int) -> WorkerHandle | None:
        """Has a worker forked, which waits to be told what to do; `None` where that cannot be done now."""
        if not self.send_job():
            return None
        ours, theirs = messages.pair()
        page = dump = -1
        new = None
        try:
            page = blocks.create(status_page.SIZE_BYTES, "forebay-status")
            dump = os.memfd_create("forebay-dump", os.MFD_CLOEXEC)
            key = self._next_key
            if self.tell(fork_server.SPAWN, serialisation.dumps(key), [theirs.fileno(), page, dump]):
                self._next_key += 1
                new = self.workers[key] = WorkerHandle(
                    key, shard, messages.Connection(ours), status_page.StatusPage(page), dump
                )
        finally:
            theirs.close()
            if page >= 0:
                os.close(page)
            if new is None:
                ours.close()
                if dump >= 0:
                    os.close(dump)
        return new

    def drop_job(self) -> None:
        """Frees the job's memory, here and in the fork server: a dataset may take most of the memory."""
        if self.job is not None:
            self._close_job()
            self.tell(fork_server.JOB, b"")

    def _close_job(self) -> None:
        if self.job is not None:
            self.job.close()
            self.job = None
        if self.needs is not None:
            os.close(self.needs[1])
            self.needs = None
        self.is_job_sent = False

    def close_fork_server(self) -> None:
        is_ours = os.getpid() == self.owner
        if self.connection is not None:
            if is_ours:
                self.connection.hang_up()
            else:
                self.connection.close()
            self.connection = None
        if self.process is not None:
            if not is_ours:
                self.process.returncode = 0  # another process's child
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
