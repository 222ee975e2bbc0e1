"""A fresh interpreter, started once for a loader, from which its workers are forked.

It imports what is expensive and starts no thread: so forking it is safe, and takes milliseconds. It passes on what
workers write to stderr and keeps the end of it, and reports how each one ended. When the loader's process is gone or
closes its end, it leaves and takes the workers with it.

Modules of the user's are imported in a fork of it, the template, which then does its work and forks the workers of
this and of later passes; the fork server itself stays as it is. When a job needs other modules or another environment,
or a file of a module has changed, the template leaves and the fork server forks another one.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from forebay._python.workers.process import imports
from forebay._python.workers.process.environment import Environment
from forebay._python.workers.transport import blocks, messages, serialisation

# From the loader.
JOB, SPAWN, KILL, LEAVE = range(4)
# To the loader.
DIED, TROUBLE = range(2)

_TAIL_BYTES = 8192
_CHUNK_BYTES = 4096
# How a template ends: with the loader, for a job that needs another one, before it can fork.
_DONE, _RENEWED, _UNSAFE = 0, 75, 76
_DIGEST_BYTES = 32
# How long workers may take to leave by themselves once the loader has closed its ends.
_GRACE_SECONDS = 0.1
_REAP_SECONDS = 1.0
# How long one worker may take that leaves while others go on: at exit Python joins processes that the dataset started,
# which need not ever end.
LEAVE_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
# A worker puts its own in its place, which says where it was called.
_exit = os._exit
# Imported before the first job comes, which says what else it needs.
PRELOADED = ("numpy", "numpy.random", "torch", "torch.utils.data")
# Set in the environment, it has a fork server started when forebay is imported.
EARLY_VARIABLE = "FOREBAY_EARLY_WORKERS"
# Executed by the new interpreter: `sys.path` comes first, then this module can be found. What it is told comes in a
# file: the arguments of a program may be longer than a packet. It imports forebay as well, and wants no fork server.
BOOT = (
    f"import json, os, socket, sys; os.environ.pop({EARLY_VARIABLE!r}, None); "
    "end = socket.socket(fileno=int(sys.argv[1])); "
    "file = open(int(sys.argv[2]), 'rb'); file.seek(0); told = json.load(file); file.close(); "
    "sys.path[:] = told['path']; from forebay._python.workers.process.fork_server import main; main(end, told)"
)


class _RenewError(Exception):
    """The next job needs another template."""


class _Child:
    """A worker, as the fork server knows it."""

    def __init__(self, key: int, pid: int, stderr: int) -> None:
        self.key, self.pid, self.stderr = key, pid, stderr
        self.pidfd = os.pidfd_open(pid)
        self.tail = b""

    def heard(self, text: bytes) -> None:
        self.tail = (self.tail + text)[-_TAIL_BYTES:]


class ForkServer:
    """The loop of the process."""

    def __init__(self, end: socket.socket, parent: int) -> None:
        self._connection = messages.Connection(end)
        self._parent = parent
        self._poll = select.poll()
        self._children: dict[int, _Child] = {}
        self._by_fd: dict[int, _Child] = {}
        # Those that leave, and when they are ended, in this order.
        self._leaving: dict[int, float] = {}
        self._job: Any = None
        self._handles: list[int] = []
        # What a template was made for: a digest, the modules that it has imported.
        self._made_for: tuple[bytes, imports.Imported] | None = None
        self._known: set[str] = set()
        # Written by workers, not yet taken by our stderr.
        self._pending = bytearray()
        self._poll.register(end.fileno(), select.POLLIN)
        self._poll.register(parent, select.POLLIN)

    def run(self) -> None:
        """Serves until the loader is gone."""
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
            self._serve()

    def _serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll(self._hasten()):
                if fd == self._parent:
                    return
                if fd == self._connection.fileno():
                    self._handle_message()
                elif fd == 2:
                    self._pass_on()
                elif (child := self._by_fd.get(fd)) is not None:
                    if fd == child.pidfd:
                        self._reap(child)
                    elif not self._pending:
                        self._listen(child)

    def _handle_message(self) -> None:
        if self._made_for is not None:
            kind, digest = self._connection.peek(_DIGEST_BYTES)
            is_same = digest == self._made_for[0] and not self._made_for[1].have_changed()
            if kind == JOB and digest and not is_same:
                raise _RenewError
        message = self._connection.receive()
        if message is None:
            return
        kind, content, fds = message
        if content is None:
            raise EOFError  # no descriptor left: the loader will start another one
        if kind == JOB:
            self._take_job(bytes(content), fds)
        elif kind == SPAWN:
            self._fork(serialisation.loads(content), fds)
        elif kind == KILL:
            self._signal(*serialisation.loads(content))
        elif kind == LEAVE:
            self._leaving.setdefault(serialisation.loads(content), time.monotonic() + LEAVE_SECONDS)

    def _signal(self, key: int, number: int) -> None:
        if (child := self._children.get(key)) is not None:
            signal.pidfd_send_signal(child.pidfd, number)

    def _hasten(self) -> int | None:
        """Ends workers that took too long to exit. Returns the milliseconds until the next one has."""
        for key, until in list(self._leaving.items()):
            left = until - time.monotonic()
            if left > 0 and key in self._children:
                return int(left * 1000) + 1
            del self._leaving[key]
            self._signal(key, signal.SIGKILL)
        return None

    def _take_job(self, digest: bytes, fds: list[int]) -> None:
        """Keeps a job for later workers; without descriptors it is dropped."""
        for fd in self._handles:
            os.close(fd)
        self._job, self._handles = None, []
        if not fds:
            return
        memory, told, *handles = fds
        if self._made_for is None:
            with open(told, "rb", closefd=False) as file:
                file.seek(0)
                needs: imports.Imports = serialisation.loads(file.read())
            import_with_one_thread(name for name in needs.known if name not in self._known)
            self._known.update(needs.known)
            if needs.environment != Environment.current() or not set(needs.modules) <= sys.modules.keys():
                # First with its modules, and where that is not safe, or ends the process, without them.
                if not self._delegate(digest, needs, fds):
                    self._delegate(digest, replace(needs, modules=()), fds)
                for fd in fds:
                    os.close(fd)
                return
        os.close(told)
        size_bytes = os.fstat(memory).st_size
        self._job = blocks.Mapping(memory, size_bytes, is_private=True).array()
        os.close(memory)
        self._handles = handles

    def _delegate(self, digest: bytes, needs: imports.Imports, fds: list[int]) -> bool:
        """Has a template do all of the work until another one is needed; `False` where it cannot do it.

        Raises `EOFError` when it is the last one: the loader is gone, or the template was killed.
        """
        self.end()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        server_pid = os.getpid()
        pid = os.fork()
        if not pid:
            status = _UNSAFE
            try:
                tie_to(server_pid)
                os.close(reading)
                status = self._become_template(digest, needs, fds, writing)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writing)
        is_ready = self._is_ready(pid, reading)
        os.close(reading)
        if is_ready:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
            fds.clear()
        _, status = os.waitpid(pid, 0)
        if not is_ready:
            return not needs.modules  # without any it has no reason to end
        if os.waitstatus_to_exitcode(status) != _RENEWED:
            raise EOFError
        return True

    def _is_ready(self, pid: int, reading: int) -> bool:
        """Waits until a template can fork, or has ended; ends it when the loader is gone, whatever it imports."""
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        poll.register(self._connection.fileno(), 0)
        if reading in (fd for fd, _ in poll.poll()):
            return bool(os.read(reading, 1))
        os.kill(pid, signal.SIGKILL)
        raise EOFError

    def _become_template(self, digest: bytes, needs: imports.Imports, fds: list[int], ready: int) -> int:
        name_process("forebay-template")
        needs.environment.enter()
        imported = imports.Imported(needs.modules)
        if not imported.is_safe_to_fork:
            return _UNSAFE
        gc.collect()
        gc.freeze()
        self._made_for = digest, imported
        self._take_job(digest, fds)
        os.write(ready, b"1")
        os.close(ready)
        try:
            self.run()
        except _RenewError:
            return _RENEWED
        finally:
            self.end()
        return _DONE

    def _fork(self, key: int, fds: list[int]) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        server_pid = os.getpid()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                self._become_worker(server_pid, reading, writing)
                from forebay._python.workers.process import worker_loop

                status = worker_loop.main(fds, self._job, self._handles)
            except BaseException:
                traceback.print_exc()
            finally:
                _leave(status)
        os.close(writing)
        for fd in fds:
            os.close(fd)
        os.set_blocking(reading, False)
        child = _Child(key, pid, reading)
        self._children[key] = child
        for fd in (child.pidfd, child.stderr):
            self._by_fd[fd] = child
            self._poll.register(fd, select.POLLIN)

    def _become_worker(self, server_pid: int, reading: int, writing: int) -> None:
        """Keeps nothing of the fork server's in the new process, and ties its life to it."""
        tie_to(server_pid)
        os.dup2(writing, 2)
        os.close(writing)
        os.close(reading)
        self._connection.close()
        os.close(self._parent)
        for child in self._children.values():
            os.close(child.pidfd)
            if child.stderr >= 0:
                os.close(child.stderr)
        self._children.clear()

    def _listen(self, child: _Child) -> None:
        """Takes what a worker wrote to stderr."""
        try:
            text = os.read(child.stderr, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not text:
            self._deafen(child)
            return
        child.heard(text)
        self._pending += text
        self._pass_on()

    def _deafen(self, child: _Child) -> None:
        if child.stderr >= 0:
            self._poll.unregister(child.stderr)
            del self._by_fd[child.stderr]
            os.close(child.stderr)
            child.stderr = -1

    def _pass_on(self) -> None:
        """Writes to the real stderr as much as it takes at once; workers wait with theirs for the rest."""
        ready = select.poll()
        ready.register(2, select.POLLOUT)
        while self._pending:
            told = ready.poll(0)
            if told and not told[0][1] & select.POLLOUT:
                self._pending.clear()  # closed: it has no reader any more
                break
            if not told:
                self._poll.register(2, select.POLLOUT)
                return
            try:
                written = os.write(2, self._pending[:_CHUNK_BYTES])
            except BlockingIOError:
                self._poll.register(2, select.POLLOUT)
                return
            except OSError:
                self._pending.clear()
                break
            del self._pending[:written]
        with contextlib.suppress(KeyError):
            self._poll.unregister(2)

    def _reap(self, child: _Child) -> None:
        """Reaps a worker and says how it ended."""
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if not pid:
            return
        while child.stderr >= 0 and len(self._pending) < 1 << 20:
            try:
                text = os.read(child.stderr, _CHUNK_BYTES)
            except BlockingIOError:
                break  # a process of the worker's own still has it
            if not text:
                break
            child.heard(text)
            self._pending += text
        self._deafen(child)
        self._poll.unregister(child.pidfd)
        del self._by_fd[child.pidfd]
        os.close(child.pidfd)
        del self._children[child.key]
        self._pass_on()
        said = serialisation.dumps((child.key, child.pid, os.waitstatus_to_exitcode(status), child.tail))
        self._connection.send(DIED, [said])

    def end(self) -> None:
        """Gives workers a moment to leave by themselves, and ends the rest."""
        self._wait(_GRACE_SECONDS)
        for child in self._children.values():
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        # A worker that is stuck in the kernel is not waited for: it ends when the kernel lets it.
        self._wait(_REAP_SECONDS)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._children and (left := until - time.monotonic()) > 0:
            poll = select.poll()
            for child in self._children.values():
                poll.register(child.pidfd, select.POLLIN)
                if child.stderr >= 0:
                    poll.register(child.stderr, select.POLLIN)
            for fd, _ in poll.poll(max(1, int(left * 1000))):
                child = self._by_fd[fd]
                if fd == child.pidfd:
                    os.waitpid(child.pid, os.WNOHANG)
                    del self._children[child.key]
                else:
                    self._listen(child)


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def tie_to(parent: int) -> None:
    """Ends this process together with the one that forked it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """What `ps` and `top` call this process."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def _leave(status: int) -> None:
    """Ends a forked worker without what the fork server would do at its end."""
    try:
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util._exit_function()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        _exit(status)


def main(end: socket.socket, told: Mapping[str, Any]) -> None:
    """Runs a fork server; called in its process, with its end of the connection."""
    # Ctrl-C reaches everything at the terminal: the loader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        parent = os.pidfd_open(told["pid"])
    except ProcessLookupError:
        return
    end.set_inheritable(False)
    sys.argv[:] = told["argv"]
    name_process("forebay-forksrv")
    gc.disable()  # nearly all of what is imported stays
    _preload(told["modules"])
    main_module = sys.modules["__main__"]
    for name in ("end", "told", "file", "json", "os", "socket"):
        vars(main_module).pop(name, None)
    process = importlib.import_module("multiprocessing.process")
    process.current_process().authkey = bytes.fromhex(told["authkey"])
    gc.collect()
    gc.freeze()
    gc.enable()
    server = ForkServer(end, parent)
    try:
        server.run()
    finally:
        server.end()
    os._exit(0)


def import_with_one_thread(modules: Iterable[str]) -> None:
    # A pool of threads for each worker's matrix products would be one too many; and a fork server has none.
    is_set = "OPENBLAS_NUM_THREADS" in os.environ
    if not is_set:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    imports.import_all(modules)
    if not is_set:
        del os.environ["OPENBLAS_NUM_THREADS"]


def _preload(modules: list[str]) -> None:
    import_with_one_thread(modules)
    importlib.import_module("forebay._python.workers.process.worker_loop")
    # What every worker does first; packages that import parts of themselves at first use have done so then.
    seeds = importlib.import_module("forebay._python.workers.process.seeds")
    seeds.of_worker(0, 0)
    importlib.import_module("forebay._python.workers.process.random_state").Streams().states()
