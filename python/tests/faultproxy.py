"""A proxy that breaks answers on purpose, between a client and a real server. Bytes of requests pass unchanged, so that
signatures stay valid."""

import fcntl
import random
import socket
import struct
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO, NamedTuple
from urllib.parse import unquote, urlsplit


class Seen(NamedTuple):
    """One request that came by."""

    at: float
    method: str
    key: str
    fault: str | None
    has_range: bool


# Chooses the fault of a request: its key, how often it was asked for before, and a source of chance.
Rule = Callable[[str, int, random.Random], str | None]


class FaultProxy:
    """Listens on loopback, a thread for each connection. Rules are for GETs of objects; in a storm all requests get
    503."""

    def __init__(self, upstream: int, rule: Rule | None = None, seed: int = 0) -> None:
        self.rule, self.storm_until, self.latency = rule, 0.0, (0.0, 0.0)
        self.seen: list[Seen] = []
        self.waiting, self.max_waiting = 0, 0
        self.stalling = 0  # requests whose client still waits for the rest
        self.body_bytes = 0  # of objects, as they were sent on
        self._upstream, self._random, self._asked = upstream, random.Random(seed), Counter[str]()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="faultproxy", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # shut down
            thread = threading.Thread(target=self._serve, args=(client,), name="faultproxy-connection", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()
        with self._lock:
            for end in self._sockets:
                _shut(end)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a connection does not end"

    def faults(self) -> Counter[str]:
        return Counter(seen.fault for seen in self.seen if seen.fault)

    def reads(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "GET" and seen.key.endswith(".jpg")]

    def _owned(self, end: socket.socket, stack: ExitStack) -> IO[bytes]:
        """The socket's stream; `close` ends its waits."""
        stack.enter_context(end)
        with self._lock:
            self._sockets.add(end)
            if self._closed.is_set():
                _shut(end)
        stack.callback(self._disown, end)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stack.enter_context(end.makefile("rb"))

    def _disown(self, end: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(end)

    def _serve(self, client: socket.socket) -> None:
        with ExitStack() as stack:
            requests = self._owned(client, stack)
            upstream: tuple[socket.socket, IO[bytes]] | None = None
            try:
                while True:
                    head = _head(requests)
                    with self._lock:
                        self.waiting += 1
                        self.max_waiting = max(self.max_waiting, self.waiting)
                        fault = self._judge(head)
                        latency = self._random.uniform(*self.latency)
                    try:
                        self._closed.wait(latency)
                        if fault in REFUSALS:
                            client.sendall(REFUSALS[fault])
                            continue
                        if fault == "silence":
                            # The server is not asked: had it closed an idle connection, the silence would end.
                            self._stall(client)
                            return
                        if upstream is None:
                            server = socket.create_connection(("127.0.0.1", self._upstream))
                            upstream = server, self._owned(server, stack)
                        upstream[0].sendall(head)
                        if not self._answer(upstream[1], client, head, fault):
                            return
                    finally:
                        with self._lock:
                            self.waiting -= 1
            except OSError:
                pass  # either end has gone, or the proxy is closed: so does the other

    def _judge(self, head: bytes) -> str | None:
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        key = unquote(urlsplit(target).path)
        has_range = b"\r\nrange:" in head.lower()
        fault = None
        if time.monotonic() < self.storm_until:
            fault = "503"
        elif self.rule and method == "GET" and "list-type=2" not in target:
            fault = self.rule(key, self._asked[key], self._random)
        self._asked[key] += 1
        self.seen.append(Seen(time.monotonic(), method, key, fault, has_range))
        return fault

    def _answer(self, upstream: IO[bytes], client: socket.socket, request: bytes, fault: str | None) -> bool:
        """Passes an answer on, broken as told. False when the connection is to be closed."""
        lines = _head(upstream)[:-4].split(b"\r\n")
        fields = {line.split(b":", 1)[0].lower(): line.split(b":", 1)[1].strip() for line in lines[1:]}
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            body = _chunked(upstream)
            lines = [line for line in lines if not line.lower().startswith(b"transfer-encoding")]
            lines.append(b"Content-Length: %d" % len(body))
        elif request.startswith(b"HEAD"):
            body = b""
        else:
            body = _exactly(upstream, int(fields.get(b"content-length", b"0")))
        with self._lock:
            cut = self._random.randrange(1, max(2, len(body)))
            tag = self._random.getrandbits(128)
        if fault in ("empty", "short"):
            body = b"" if fault == "empty" else body[:cut]
            lines = [line for line in lines if not line.lower().startswith(b"content-length")]
            lines.append(b"Content-Length: %d" % len(body))
        elif fault == "etag":
            lines = [line for line in lines if not line.lower().startswith(b"etag")]
            lines.append(b'ETag: "%032x"' % tag)
        if fault in ("reset", "truncate", "stall"):
            body = body[:cut]
        if b"list-type=2" not in request.split(b"\r\n", 1)[0]:
            with self._lock:
                self.body_bytes += len(body)
        client.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if fault == "stall":
            self._stall(client)
        if fault == "reset":
            self._wait_until_received(client)  # a reset throws away what was not
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return fault not in ("reset", "truncate", "stall")

    def _wait_until_received(self, client: socket.socket) -> None:
        """Until the other end's kernel has all that was sent."""
        while struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))[0] and not self._closed.wait(0.001):
            pass

    def _stall(self, client: socket.socket) -> None:
        """Says nothing more for as long as the client waits."""
        with self._lock:
            self.stalling += 1
        try:
            client.recv(1)  # it sends nothing before it has an answer: this is its end, or that of the proxy
        finally:
            with self._lock:
                self.stalling -= 1


def _shut(end: socket.socket) -> None:
    with suppress(OSError):  # the other end was quicker
        end.shutdown(socket.SHUT_RDWR)


def _head(stream: IO[bytes]) -> bytes:
    """A request or an answer up to its empty line."""
    lines = []
    while (line := stream.readline()) != b"\r\n":
        if not line:
            raise ConnectionResetError("the other end has closed")
        lines.append(line)
    return b"".join(lines) + line


def _exactly(stream: IO[bytes], size: int) -> bytes:
    body = stream.read(size)
    if len(body) < size:
        raise ConnectionResetError("ended within a body")
    return body


def _chunked(stream: IO[bytes]) -> bytes:
    body = b""
    while size := int(stream.readline() or b"0", 16):
        body += _exactly(stream, size)
        _exactly(stream, 2)
    stream.readline()
    return body


_SLOW = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
REFUSALS = {
    "503": b"HTTP/1.1 503 Service Unavailable\r\nx-amz-request-id: storm\r\nContent-Length: %d\r\n\r\n" % len(_SLOW)
    + _SLOW,
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "429": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
}
