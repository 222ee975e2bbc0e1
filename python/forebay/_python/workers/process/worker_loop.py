"""The loop of a worker process: takes tasks, runs them, sends results, and checks its own resource usage."""

import contextlib
import errno
import faulthandler
import os
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forebay._arrays import torch_data, torch_serialisation
from forebay._pickling import sendable
from forebay._python.workers.job import Job, Raised, Result, Task
from forebay._python.workers.process import fork_server, seeds, worker_setup
from forebay._python.workers.process.fetch import Fetcher, is_stateful
from forebay._python.workers.process.random_state import Streams, restore
from forebay._python.workers.transport import messages, serialisation, status_page
from forebay._python.workers.transport.blocks import LEAST_BYTES, Pool

# To a worker.
HELLO, TASK, BEGIN, BACK = range(4)
# From a worker.
RESULT, RECYCLE = range(2)

# Makes a worker write its stack; the loader sends it before it ends one that hangs.
STACK_SIGNAL = signal.SIGRTMAX - 2
# How often a worker that is suspected of being about to die writes its stack.
_SUSPECT_SECONDS = 0.02
_LOOK_SECONDS = 0.05
# Of what descriptors there may be, the share at which a worker is exchanged.
_FD_SHARE = 0.6
_NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
# Generation, how many results were taken, how many block numbers follow.
BACK_HEAD = struct.Struct("<qII")
_BLOCK = struct.Struct("<i")


@dataclass
class Hello:
    """The first message to a worker."""

    shard: int
    generation: int
    # The last task of the shard that was delivered.
    last: int
    changes: dict[str, Any]
    state: Any
    streams: tuple[bytes, bytes, bytes] | None
    budget_bytes: int
    max_memory_bytes: int | None


def back(generation: int, taken: int, returns: list[int]) -> bytes:
    """The head of a message to a worker: what was taken, which blocks are free again."""
    return BACK_HEAD.pack(generation, taken, len(returns)) + b"".join(map(_BLOCK.pack, returns))


class _Gone(BaseException):
    """The loader is no longer there."""


class _FullError(BaseException):
    """The worker cannot continue; another one can."""


class _Meter:
    """Resource use of this process, measured between tasks, and now and then between samples."""

    def __init__(self, page: status_page.StatusPage, max_memory_bytes: int | None) -> None:
        self._page = page
        self._page_bytes = resource.getpagesize()
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_fds = soft
        self._max_fd = int(soft * _FD_SHARE) if soft != resource.RLIM_INFINITY else 1 << 30
        self._first_bytes, self._first_fds = self._memory_bytes(), self._count("fd")
        self.max_bytes = max_memory_bytes
        if max_memory_bytes is not None and self._first_bytes * 1.25 > max_memory_bytes:
            # A fresh worker would be no smaller.
            self.max_bytes = int(self._first_bytes * 1.25)
        self._looked = 0.0
        self.look(0)

    def _memory_bytes(self) -> int:
        """Private memory of this process, without shared blocks and libraries."""
        try:
            fields = os.pread(self._statm, 128, 0).split()
        except OSError:  # closed by the dataset's code
            return 0
        return (int(fields[1]) - int(fields[2])) * self._page_bytes

    def grown(self) -> tuple[int, int]:
        """By how many bytes and descriptors this process grew since it began. Asked once, when it leaves."""
        grown_bytes = self._memory_bytes() - self._first_bytes
        # Where none is left, what is open can be listed with this one.
        with contextlib.suppress(OSError):
            os.close(self._statm)
        return grown_bytes, self._count("fd") - self._first_fds

    def _count(self, what: str) -> int:
        """How many there are of what `/proc` lists of this process; with no descriptor left, as many as may be."""
        try:
            return len(os.listdir(f"/proc/self/{what}"))
        except OSError:
            return self._most_fds if what == "fd" else 1

    def look(self, samples: int) -> str | None:
        """Why this worker should be exchanged, if it should."""
        memory_bytes = self._memory_bytes()
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._page.use(memory_bytes, self._count("fd") - 1, self._count("task"), samples)
        if self.max_bytes is not None and memory_bytes > self.max_bytes:
            return f"{memory_bytes >> 20} MiB of memory, max_worker_memory is {self.max_bytes >> 20} MiB"
        try:
            lowest = os.dup(0)
        except OSError:
            return "no descriptor is left"
        os.close(lowest)
        return f"{lowest} open files" if lowest > self._max_fd else None


class Worker:
    """One process, one shard."""

    def __init__(self, end: messages.Connection, page: status_page.StatusPage, dump: int, hello: Hello) -> None:
        self._connection, self._page, self._dump = end, page, dump
        self._shard, self._generation = hello.shard, hello.generation
        self._inbox: deque[tuple[int, Any]] = deque()
        self._pool = Pool(hello.budget_bytes, self._wait_for_room)
        self._streams = Streams()
        self._job: Job | None = None
        self._fetcher: Fetcher | None = None
        self._refusal: Raised | None = None
        self._is_kept = False
        self._samples = self._tasks = 0

    # ── beginnings ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, hello: Hello, memory: Any, handles: list[int]) -> None:
        """Takes the job; an exception of the user's code is reported with every task."""

        def enter() -> Job:
            job: Job = replace(serialisation.open_job(memory, handles), **hello.changes)
            if job.output == "torch":
                torch_serialisation.stack_into(self._memory_for, LEAST_BYTES)
            worker_setup.enter_process(job, self._shard)
            return job

        self._attempt(enter, hello.state, hello.streams)
        self._note_streams(hello.generation, hello.last)
        self._meter = _Meter(self._page, hello.max_memory_bytes)

    def _attempt(self, job: Callable[[], Job], state: Any, streams: tuple[bytes, bytes, bytes] | None) -> None:
        self._refusal = None
        try:
            self._job = job()
            self._fetcher = Fetcher(self._job, self._shard, state, self._page.noter(self._look_between_samples))
            self._is_kept = self._job.is_iterable or is_stateful(self._job.dataset)
            if streams is not None:
                self._fetcher.catch_up()
                restore(streams)
        except Exception as error:
            error.add_note(f"forebay: in worker {self._shard}, before its first batch")
            self._refusal = Raised(error, "".join(traceback.format_exception(error)))

    def _renew(self, generation: int, changes: dict[str, Any], state: Any) -> None:
        def renewed() -> Job:
            if self._job is None:
                raise RuntimeError("the worker could not be started")
            job = replace(self._job, **changes)
            if "base_seed" in changes:
                seed = seeds.of_worker(job.base_seed, self._shard)
                if job.output == "torch" and job.shard_count:
                    torch_data.set_worker_info(self._shard, job.shard_count, seed, job.dataset)
            return job

        self._generation = generation
        if self._job is not None:
            self._attempt(renewed, state, None)
        self._note_streams(generation, -1)

    def _note_streams(self, generation: int, number: int) -> None:
        if self._job is not None and self._job.seed is None:
            self._page.keep(generation, number, self._streams.states())

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        """Works until the loader is gone, or until it wants another worker in its place."""
        try:
            self._run()
        except _FullError as full:
            self._page.stage(status_page.LEAVING)
            grown_bytes, grown_fds = self._meter.grown()
            told = serialisation.dumps((str(full), self._samples, grown_bytes, grown_fds, open_files()))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(RECYCLE, [told])
        return 0

    def _run(self) -> None:
        while True:
            self._page.stage(status_page.IDLE)
            while not self._inbox:
                self._pump()
            kind, content = self._inbox.popleft()
            if kind == BEGIN:
                self._page.at(status_page.STARTING, self._generation, -1)
                self._renew(*serialisation.loads(content))
                continue
            generation, suspicion, fields = serialisation.loads(content)
            if generation != self._page.wanted_generation():
                continue
            self._do(Task(*fields), generation, suspicion)
            if not self._inbox or self._inbox[0][0] != BEGIN:
                reason = self._meter.look(self._samples)
                if reason is not None and self._may_leave():
                    raise _FullError(reason)

    def _look_between_samples(self, position: int) -> None:
        """Leaves in the middle of a batch where that grows too large. Another worker makes all of the batch.

        Not in the first one: a batch that is too large by itself would never be done.
        """
        if position <= 0 or not self._tasks:
            return
        reason = self._meter.look(self._samples + position)
        if reason is not None and self._may_leave():
            self._samples += position
            raise _FullError(reason)

    def _may_leave(self) -> bool:
        """A stream that cannot say where it is would have to be drawn again from its beginning, leak and all."""
        job, fetcher = self._job, self._fetcher
        if job is None or fetcher is None:
            return False
        return not job.is_iterable or fetcher.is_resumable()

    def _do(self, task: Task, generation: int, suspicion: int) -> None:
        self._page.at(status_page.WORKING, generation, task.number)
        if suspicion:
            # It took down a worker before. Should it do so again, the last of these says where it was.
            os.lseek(self._dump, 0, os.SEEK_SET)
            os.ftruncate(self._dump, 0)
            faulthandler.dump_traceback_later(_SUSPECT_SECONDS, repeat=True, file=self._dump)
        try:
            result = self._made(task)
        finally:
            if suspicion:
                faulthandler.cancel_dump_traceback_later()
        if generation != self._page.wanted_generation():
            self._pool.end_task()
            return
        self._check_descriptors(result)
        kept = result.state
        if self._is_kept and kept is None and self._fetcher is not None:
            try:
                kept = self._fetcher.state()
            except Exception as error:
                error.add_note("forebay: raised by state_dict() of the dataset or its iterator")
                result.value = Raised(error, "".join(traceback.format_exception(error)))
        self._samples += result.sample_count
        self._tasks += 1
        packed = self._packed(task, generation, result, kept)
        del result, kept
        self._note_streams(generation, task.number)
        self._page.stage(status_page.SENDING)
        try:
            self._connection.send(RESULT, packed.parts, packed.fds)
        except (BrokenPipeError, ConnectionResetError):
            raise _Gone from None
        self._pool.sent(packed.blocks)

    def _check_descriptors(self, result: Result) -> None:
        """Leaves where samples failed because no descriptor is left: in a fresh worker they do not.

        Not with the first batch: one that needs so many by itself would never be done.
        """
        errors = [result.value.exception] if isinstance(result.value, Raised) else []
        numbers = {incident.errno for incident in result.incidents} | {getattr(each, "errno", None) for each in errors}
        if numbers & _NO_DESCRIPTOR and self._tasks and self._may_leave():
            self._samples += result.sample_count
            raise _FullError("no descriptor is left")

    def _made(self, task: Task) -> Result:
        if self._refusal is not None or self._fetcher is None:
            return Result(task.number, self._shard, self._refusal)
        try:
            return self._fetcher.fetch(task)
        except (_Gone, _FullError):
            raise
        except BaseException as error:  # SystemExit and its like must not end a worker unnoticed
            return Result(task.number, self._shard, Raised(error, "".join(traceback.format_exception(error))))

    def _packed(self, task: Task, generation: int, result: Result, kept: Any) -> serialisation.Packed:
        if isinstance(result.value, Raised):
            sent = serialisation.sent_exception(result.value.exception)
            result.value = replace(result.value, exception=sent)
        fields = list(vars(result).values())
        try:
            return serialisation.pack(task.number, self._shard, generation, (fields, kept), self._pool)
        except Exception as error:
            self._check_descriptors(Result(task.number, self._shard, Raised(error, "")))
            explained = self._explained(task, result.value, error)
            text = "".join(traceback.format_exception(explained))
            result.value = Raised(serialisation.sent_exception(explained), text)
            result.state = None
            self._pool.end_task()
            return serialisation.pack(
                task.number, self._shard, generation, (list(vars(result).values()), None), self._pool
            )

    def _explained(self, task: Task, value: Any, error: Exception) -> Exception:
        """Names the part of a finished batch that cannot be sent to the loader."""
        if isinstance(value, Raised):
            return error
        is_batch = self._job is None or self._job.is_batched
        index = None if is_batch or not isinstance(task.indices, int) else task.indices
        explained = sendable.explain(value, "batch" if is_batch else "sample", error, index=index)
        if is_batch:
            explained.add_note(f"forebay: batch {task.number}, made of the samples {task.indices}")
        return explained

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Takes one message."""
        try:
            message = self._connection.receive()
        except EOFError:
            raise _Gone from None
        if message is None:
            return
        kind, content, _ = message
        if content is None:
            raise _FullError("no descriptor is left")
        _, taken, count = BACK_HEAD.unpack_from(content)
        end = BACK_HEAD.size + count * _BLOCK.size
        for _ in range(taken):
            self._pool.taken()
        for (number,) in _BLOCK.iter_unpack(content[BACK_HEAD.size : end]):
            self._pool.returned(number)
        if kind != BACK:
            self._inbox.append((kind, bytes(content[end:])))

    def _wait_for_room(self) -> None:
        self._page.stage(status_page.WAITING)
        self._pump()
        self._page.resume()

    def _memory_for(self, size_bytes: int) -> Any | None:
        if len(self._pool.current) >= serialisation.MAX_BLOCKS:
            return None
        return self._pool.take(size_bytes)[1]


def open_files(pid: int | str = "self") -> list[tuple[str, int]]:
    """The open files of a process: (name, how often), most often first."""
    counts: Counter[str] = Counter()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                counts[os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")[0]] += 1
            except OSError:
                continue
    except OSError:
        return []
    return counts.most_common(8)


def main(fds: list[int], memory: Any, handles: list[int]) -> int:
    """Runs a worker in the process that was just forked for it; the result is its exit status."""
    end = messages.Connection(socket.socket(fileno=fds[0]))
    page = status_page.StatusPage(fds[1])
    os.close(fds[1])
    dump = fds[2]
    page.sign(os.getpid())
    page.at(status_page.STARTING, 0, -1)
    _prepare(dump)
    try:
        message = end.receive()
    except EOFError:
        return 0
    if message is None or message[1] is None:
        return 1
    hello: Hello = serialisation.loads(message[1])
    fork_server.name_process(f"forebay-w{hello.shard}")
    try:
        sys.modules["multiprocessing.process"].current_process().name = f"forebay-worker-{hello.shard}"
        worker = Worker(end, page, dump, hello)
        worker.begin(hello, memory, handles)
        return worker.run()
    except _Gone:
        return 0


def _prepare(dump: int) -> None:
    """Makes crashes report where they were, output appear at once, and the OOM killer prefer this process."""
    faulthandler.enable(dump, all_threads=True)
    faulthandler.register(STACK_SIGNAL, dump, all_threads=True)
    pid, leave = os.getpid(), os._exit

    def told_exit(status: int) -> Any:
        if os.getpid() == pid:
            faulthandler.dump_traceback(dump, all_threads=False)
        leave(status)

    os._exit = told_exit
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = int(file.read())
            file.seek(0)
            file.write(str(min(1000, score + 300)))
    except OSError:
        pass  # not every system lets it be changed: then the kernel chooses
