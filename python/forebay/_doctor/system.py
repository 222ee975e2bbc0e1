"""What Linux says about the process that reads the samples: time, memory, descriptors, and which files it opens."""

import os
import resource
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# File systems whose answer comes over a network, or from another program.
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gluster", "afs", "beegfs", "gpfs", "virtiofs")


@dataclass(frozen=True)
class Clock:
    """A moment, and what this thread had used by then."""

    wall: float
    cpu: float
    queued: float
    """Seconds that the thread could have run, but had no processor."""

    @classmethod
    def start(cls) -> "Clock":
        """Before something: its own reading is not in what is measured."""
        queued, cpu = _queued_seconds(), time.thread_time()
        return cls(time.perf_counter(), cpu, queued)

    @classmethod
    def stop(cls) -> "Clock":
        """After it."""
        wall, cpu = time.perf_counter(), time.thread_time()
        return cls(wall, cpu, _queued_seconds())

    def since(self, start: "Clock") -> dict[str, float]:
        """Seconds: `wall`, `cpu`, `queued`, and the rest: waiting for something else, as storage, a lock, a sleep."""
        wall, cpu, queued = self.wall - start.wall, self.cpu - start.cpu, self.queued - start.queued
        return {"wall": wall, "cpu": cpu, "queued": queued, "waiting": max(wall - cpu - queued, 0.0)}


def _queued_seconds() -> float:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # a kernel without these statistics
        return 0.0


def read_counts() -> dict[str, int]:
    """System calls that read, and the bytes they gave, so far."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file.read().splitlines())
        return {"calls": int(fields["syscr"]), "bytes": int(fields["rchar"])}
    except (OSError, KeyError, ValueError):
        return {"calls": 0, "bytes": 0}


def resident_bytes() -> int:
    """Memory in use by the process itself: not the pages of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> dict[int, str]:
    """Descriptors, and what each is open on."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own
            continue
    return found


def raise_descriptor_limit() -> None:
    """As many descriptors as there may be: what leaks them is to be watched for a while."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_crowded() -> bool:
    """Whether descriptors run out: some have to be left for looking at them."""
    return len(os.listdir("/proc/self/fd")) > 0.7 * min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 20_000)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def mount_of(path: str) -> tuple[str, str] | None:
    """Mount point and type of the file system below an absolute path; asks no mount, which might hang."""
    best: tuple[str, str] | None = None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best[0])):
            best = (point, after.split()[0])
    return best


def is_remote(filesystem: str) -> bool:
    """Whether a file system's name is that of a network's, or of a program's."""
    return filesystem.startswith(_REMOTE)


class Opened:
    """The files that Python code opens, by the interpreter's own audit events; native code opens without them."""

    def __init__(self) -> None:
        self._recent: dict[str, None] = {}
        self._is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_on and event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if not path.startswith("/proc/") and not path.endswith((".py", ".pyc", ".so")):
                self._recent.pop(path, None)
                self._recent[path] = None
                if len(self._recent) > 256:
                    del self._recent[next(iter(self._recent))]

    def start(self) -> None:
        """Forgets what was, and listens."""
        self._recent.clear()
        self._is_on = True

    def stop(self) -> list[str]:
        """What was opened, the last one last."""
        self._is_on = False
        return list(self._recent)


def remote_mounts(paths: Iterable[str]) -> dict[str, str]:
    """Mount point and type of what is not a local disk, among the mounts of these files."""
    found = {mount for path in paths if (mount := mount_of(path)) is not None}
    return {point: kind for point, kind in sorted(found) if is_remote(kind)}
