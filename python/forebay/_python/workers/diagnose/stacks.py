"""Stacks of other threads, while they run.

Walking the frames of a running thread from Python code crashes sooner or later (seen with 3.11). `faulthandler` stops
all threads for its own dump, so the dump is parsed here.
"""

import faulthandler
import linecache
import os
import re
import threading
from collections.abc import Iterable

_HEAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+).*\(most recent call first\):$")
_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)$')


def of(threads: Iterable[threading.Thread | None]) -> dict[threading.Thread | None, str]:
    """The stack of each of them, innermost line last; empty for one that has ended."""
    asked: dict[threading.Thread | None, int] = {
        thread: thread.ident for thread in threads if thread is not None and thread.ident is not None
    }
    told = _parsed(_dump())
    return {thread: told.get(ident, "") for thread, ident in asked.items()}


def _dump() -> str:
    """What `faulthandler` writes of all threads; at most 100 of them, at most 100 calls of each."""
    fd = os.memfd_create("forebay-stacks", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(fd, all_threads=True)
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")
    finally:
        os.close(fd)


def _parsed(text: str) -> dict[int, str]:
    """Such a dump as `traceback` would have written it, by the number of the thread.

    >>> _parsed('Thread 0x0000a1 [worker] (most recent call first):\\n  File "b.py", line 2 in inner\\n')
    {161: '  File "b.py", line 2, in inner'}
    """
    found: dict[int, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            lines = found[int(head[1], 16)] = []
        elif call := _LINE.match(line):
            code = linecache.getline(call[1], int(call[2])).strip()
            lines.insert(0, f'  File "{call[1]}", line {call[2]}, in {call[3]}' + (f"\n    {code}" if code else ""))
    return {ident: "\n".join(lines) for ident, lines in found.items()}
