"""Messages between processes: one packet each, over a pair of unix sockets, with descriptors beside it if need be.

A message too long for a packet goes into an unnamed file in memory, and the packet carries that file.
"""

import array
import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

# What a packet may hold: under the kernel's usual limit for one sender (net.core.wmem_default, 208 KiB).
PACKET_BYTES = 96 * 1024
# More than the prefetched results of a worker fit in, where the kernel allows it.
_QUEUE_BYTES = 1 << 20
# The kernel passes at most 253 descriptors at a time.
MAX_FDS = 240
# Between two attempts to send where too many descriptors are under way. Not measured.
_CROWDED_SECONDS = 0.01
_ELSEWHERE = 0x80
# As plain numbers: combining flags of an enumeration costs more than the call they are for.
_NO_SIGNAL, _NO_WAIT = int(socket.MSG_NOSIGNAL), int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC, _TRUNCATED = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_LENGTH = struct.Struct("<Q")
_ANCILLARY_BYTES = socket.CMSG_SPACE((MAX_FDS + 1) * array.array("i").itemsize)


class BrokenMessageError(Exception):
    """What the other side sent cannot be read safely."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither inherited by programs that are executed."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
    return ends


class Connection:
    """One end. The result of `receive` is valid until the next call."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)
        self._memory = bytearray(PACKET_BYTES + 64)
        self._view = memoryview(self._memory)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        """Closes this copy of the end; the other side hears of it when there is no other one."""
        self._end.close()

    def hang_up(self) -> None:
        """Closes the end for all processes that have a copy of it, such as forked children."""
        with contextlib.suppress(OSError):  # the other side was faster
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def send(self, kind: int, parts: Sequence[Any], fds: Sequence[int] = (), is_patient: bool = True) -> bool:
        """Whether it was sent: without patience it is not, where the other side is behind, or where descriptors of too
        many messages are on their way.

        Raises `BrokenPipeError` or `ConnectionResetError` when there is no other side.
        """
        total = sum(len(part) for part in parts)
        flags = _NO_SIGNAL if is_patient else _NO_SIGNAL | _NO_WAIT
        if total <= PACKET_BYTES:
            return self._send([bytes((kind,)), *parts], fds, flags)
        file = os.memfd_create("forebay-message", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", buffering=0, closefd=False) as out:
                for part in parts:
                    rest = memoryview(part)
                    while rest:
                        rest = rest[out.write(rest) :]
            return self._send([bytes((kind | _ELSEWHERE,)), _LENGTH.pack(total)], [*fds, file], flags)
        finally:
            os.close(file)

    def _send(self, parts: Sequence[Any], fds: Sequence[int], flags: int) -> bool:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                self._end.sendmsg(parts, beside, flags)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                if flags & _NO_WAIT:
                    return False
                # All processes of a user may have as many descriptors under way as one of them may have open. It is
                # over when one is received, or, when the other side is gone, with a broken pipe.
                time.sleep(_CROWDED_SECONDS)
            else:
                return True

    def has_room(self, timeout_seconds: float) -> bool:
        """Waits until a message without descriptors can be sent; `False` if that takes longer than the timeout."""
        poll = select.poll()
        poll.register(self._end, select.POLLOUT)
        return bool(poll.poll(max(0.0, timeout_seconds) * 1000))

    def peek(self, size_bytes: int) -> tuple[int, bytes]:
        """(kind, content) of the message that `receive` will return next, up to so many bytes; (-1, b"") at the end."""
        told = self._end.recv(1 + size_bytes, socket.MSG_PEEK)
        return (told[0] & ~_ELSEWHERE, told[1:]) if told else (-1, b"")

    def receive(self, is_patient: bool = True) -> tuple[int, Any, list[int]] | None:
        """(kind, content, descriptors), or `None` where nothing has come yet; `EOFError` when nothing will.

        Raises `BrokenMessageError` where the file that a long message is in holds less than the message says.
        """
        flags = _CLOSE_ON_EXEC if is_patient else _CLOSE_ON_EXEC | _NO_WAIT
        try:
            length, beside, told, _ = self._end.recvmsg_into([self._view], _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other side closed without reading everything. The kernel reports that once, before the data which that
            # side had sent.
            return self.receive(is_patient)
        fds: list[int] = []
        for level, kind, data in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                fds.extend(numbers)
        if not length:
            raise EOFError
        kind = self._memory[0]
        if told & _TRUNCATED:
            # This process may open no more descriptors, so what they carried is lost.
            for fd in fds:
                os.close(fd)
            return kind & ~_ELSEWHERE, None, []
        if kind & _ELSEWHERE:
            if length != 1 + _LENGTH.size or not fds:
                raise BrokenMessageError(
                    f"message: expected its length and a file, got {length} bytes, {len(fds)} files"
                )
            content = _contents(fds.pop(), *_LENGTH.unpack(self._view[1:length]))
            return kind & ~_ELSEWHERE, content, fds
        return kind, self._view[1:length], fds


def _contents(fd: int, size_bytes: int) -> memoryview:
    """Reads a file in memory and closes it."""
    with open(fd, "rb", buffering=0) as file:
        found_bytes = os.fstat(fd).st_size
        if size_bytes > found_bytes:
            raise BrokenMessageError(f"message: expected {size_bytes} bytes, got {found_bytes}")
        file.seek(0)
        content = memoryview(bytearray(size_bytes))
        rest = content
        while len(rest):
            if not (read_bytes := file.readinto(rest)):
                raise BrokenMessageError(f"message: expected {size_bytes} bytes, got {size_bytes - len(rest)}")
            rest = rest[read_bytes:]
    return content
