"""Runs the probe in a fresh interpreter, and survives whatever happens to it."""

import contextlib
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, Any

from forebay._doctor.page import Page

_START = "import json, sys; s = json.loads(sys.argv[1]); sys.path[:] = s['path']; " + (
    "from forebay._doctor import probe; probe.main(s)"
)
# How often a dataset that kills or sticks its process is tried again, without the sample that did it.
_MAX_ENDS = 3
# Calls of the kernel that read from the descriptor in their first argument.
_READS = {"x86_64": (0, 17, 19, 295), "aarch64": (63, 67, 65, 69)}


@dataclass
class End:
    """A child that did not come to its own end."""

    phase: str
    index: int | None
    signal: str | None
    """The name of the signal it died by."""
    status: int | None
    is_hang: bool
    seconds: float
    """How long it had spent on that sample."""
    stack: str
    output: str
    file: str | None = None
    """What it was reading from, when it hung."""


@dataclass
class Course:
    """Findings by phase, and how often the child was lost."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    output: str = ""
    """The last of what the dataset printed."""
    seconds: float = 0.0


def examine(target: str | None, pickled: bytes | None, seconds: float, samples: int) -> Course:
    """Lets a child look at the dataset that `target` names, or that was pickled."""
    course, excluded, done = Course(), set[int](), set[str]()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        data = os.memfd_create("forebay-dataset")
        stack.callback(os.close, data)
        if pickled is not None:
            with open(data, "wb", closefd=False) as file:
                file.write(pickled)
        for _ in range(_MAX_ENDS + 1):
            settings = {
                "target": target,
                "pickle": data,
                "seconds": seconds,
                "samples": samples,
                "excluded": sorted(excluded),
                "done": sorted(done | set(course.found)),
                "path": sys.path,
            }
            end = _run(settings, course, seconds)
            if end is None:
                break
            course.ends.append(end)
            if end.phase in ("start", "load"):
                break
            # A number is no index where samples come one after the other, and two threads are two suspects.
            is_index = not course.found.get("load", {}).get("is_iterable") and end.phase != "threads"
            if end.index is not None and is_index:
                excluded.add(end.index)
            else:
                done.add(end.phase)
    course.seconds = time.monotonic() - start
    return course


def _run(settings: dict[str, Any], course: Course, seconds: float) -> End | None:
    """One child, to its end; `None` if that was its own."""
    page_descriptor = Page.create()
    receive, send = os.pipe()
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        page = Page(page_descriptor)
        stack.callback(page.close)
        stack.callback(os.close, receive)
        settings = settings | {"page": page_descriptor, "events": send}
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(page_descriptor, send, settings["pickle"]),
                start_new_session=True,  # so that what it starts can be ended with it
            )
        finally:
            os.close(send)
            os.close(page_descriptor)
        try:
            end = _watch(process, page, receive, output, course, seconds)
        finally:
            _end(process)
        course.output = _text(output)[-2000:]
        return end


def _watch(
    process: "subprocess.Popen[bytes]", page: Page, events: int, output: IO[bytes], course: Course, seconds: float
) -> End | None:
    """Takes the child's figures until it ends, dies or takes too long over one thing."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(events, selectors.EVENT_READ)
        while True:
            is_over = process.poll() is not None  # before the last look: what it had sent is still there
            if selector.select(0 if is_over else 0.1):
                chunk = os.read(events, 1 << 16)
                pending += chunk
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    course.found[event["phase"]] = event["found"]
                if not chunk:
                    break
                continue
            if is_over:
                break  # and something that it started keeps the pipe open
            phase, index, since = page.read()
            limit = max(seconds / 2, 3.0) if index is not None and page.is_warm() else max(seconds, 30.0)
            if since > limit:
                return _hung(process, page, output, limit)
    try:
        status = process.wait(5)
    except subprocess.TimeoutExpired:
        return _hung(process, page, output, 5.0)
    phase, index, since = page.read()
    if status == 0 and (phase == "done" or "load" in course.found):
        is_over = phase == "done" or not {"usage", "failed"}.isdisjoint(course.found["load"])
        if is_over:
            return None
    name = signal.Signals(-status).name if status < 0 else None
    text = _text(output)
    return End(phase, index, name, status if status >= 0 else None, False, since, _stack(text), text[-1500:])


def _hung(process: "subprocess.Popen[bytes]", page: Page, output: IO[bytes], limit: float) -> End:
    """Asks a child that makes no progress where it is; the caller ends it."""
    phase, index, since = page.read()
    file = _reading(process.pid)
    before = len(_text(output))
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGUSR2)
    patience = time.monotonic() + 2
    while len(_text(output)) == before and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.05)  # until the stack is there, or it is clear that native code does not let it be written
    text = _text(output)
    return End(phase, index, None, None, True, max(since, limit), _stack(text[before:]), text[:before][-1500:], file)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the child and its children; a process that is stuck in the kernel is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


def _text(output: IO[bytes]) -> str:
    # Not by its position: the child writes at the same one.
    size = os.fstat(output.fileno()).st_size
    start = max(size - 65536, 0)
    return os.pread(output.fileno(), 65536, start).decode(errors="replace")


def _stack(text: str) -> str:
    """The last stack that faulthandler wrote: the most recent call first, without the doctor's own frames."""
    at = max(text.rfind("Current thread"), text.rfind("Thread 0x"))
    lines = [line.strip() for line in text[max(at, 0) :].splitlines() if line.strip().startswith("File ")]
    own = [line for line in lines if "/forebay/_doctor/" not in line and '"<string>"' not in line]
    return "\n".join(own[:12])


def _reading(pid: int) -> str | None:
    """The file that the process waits for in a read, if it does."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            number, descriptor = file.read().split()[:2]
        if int(number) in _READS.get(platform.machine(), ()):
            return os.readlink(f"/proc/{pid}/fd/{int(descriptor, 16)}")
    return None
