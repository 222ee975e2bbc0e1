"""A proxy that breaks answers on purpose, between a client and a real server. Bytes of requests pass unchanged, so that
signatures stay valid."""

import asyncio
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple
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
    """Listens on loopback in a thread of its own. Rules are for GETs of objects; in a storm all requests get 503."""

    def __init__(self, upstream: int, rule: Rule | None = None, seed: int = 0) -> None:
        self.rule, self.storm_until, self.latency = rule, 0.0, (0.0, 0.0)
        self.seen: list[Seen] = []
        self.waiting, self.max_waiting = 0, 0
        self.body_bytes = 0  # of objects, as they were sent on
        self._upstream, self._random, self._asked = upstream, random.Random(seed), Counter[str]()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        self.port = self._server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        self._loop.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _shut(self) -> None:
        self._server.close()
        # Connections that were waiting to be accepted begin only now.
        while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)
        for _ in range(3):
            await asyncio.sleep(0)  # transports close in a later round

    def faults(self) -> Counter[str]:
        return Counter(seen.fault for seen in self.seen if seen.fault)

    def reads(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "GET" and seen.key.endswith(".jpg")]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.waiting += 1
                self.max_waiting = max(self.max_waiting, self.waiting)
                try:
                    fault = self._judge(head)
                    await asyncio.sleep(self._random.uniform(*self.latency))
                    if fault in REFUSALS:
                        writer.write(REFUSALS[fault])
                        await writer.drain()
                        continue
                    upstream = upstream or await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 20)
                    upstream[1].write(head)
                    if not await self._answer(upstream[0], writer, head, fault):
                        return
                finally:
                    self.waiting -= 1
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass  # either end has gone, or the proxy is closed: so does the other
        finally:
            for end in (writer, upstream[1] if upstream else None):
                if end is not None:
                    await _close(end)

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

    async def _answer(self, upstream: Any, writer: asyncio.StreamWriter, request: bytes, fault: str | None) -> bool:
        """Passes an answer on, broken as told. False when the connection is to be closed."""
        head = await upstream.readuntil(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        fields = {line.split(b":", 1)[0].lower(): line.split(b":", 1)[1].strip() for line in lines[1:]}
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            body = await _chunked(upstream)
            lines = [line for line in lines if not line.lower().startswith(b"transfer-encoding")]
            lines.append(b"Content-Length: %d" % len(body))
        elif request.startswith(b"HEAD"):
            body = b""
        else:
            body = await upstream.readexactly(int(fields.get(b"content-length", b"0")))
        if fault in ("empty", "short"):
            body = b"" if fault == "empty" else body[: self._random.randrange(1, max(2, len(body)))]
            lines = [line for line in lines if not line.lower().startswith(b"content-length")]
            lines.append(b"Content-Length: %d" % len(body))
        elif fault == "etag":
            lines = [line for line in lines if not line.lower().startswith(b"etag")]
            lines.append(b'ETag: "%032x"' % self._random.getrandbits(128))
        if fault in ("reset", "truncate", "stall"):
            body = body[: self._random.randrange(1, max(2, len(body)))]
        if b"list-type=2" not in request.split(b"\r\n", 1)[0]:
            self.body_bytes += len(body)
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        await writer.drain()
        if fault == "stall":
            await asyncio.sleep(600)
        if fault == "reset":
            await asyncio.sleep(0.02)  # what was sent arrives before the reset does
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return fault not in ("reset", "truncate")


async def _close(writer: asyncio.StreamWriter) -> None:
    """What is written still goes out, unless nobody takes it."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), 1)
    except (TimeoutError, OSError, asyncio.CancelledError):
        writer.transport.abort()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body


_SLOW = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
REFUSALS = {
    "503": b"HTTP/1.1 503 Service Unavailable\r\nx-amz-request-id: storm\r\nContent-Length: %d\r\n\r\n" % len(_SLOW)
    + _SLOW,
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "429": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
}
