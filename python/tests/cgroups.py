"""Control groups with a limit of memory, v1 or v2: made, asked and removed again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from missing import missing

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Group:
    """Processes that may use so much memory together, page cache included; swap is no way out."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path, self._is_v1 = path, path.is_relative_to(V1)
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if self._is_v1 else ("memory.max",)
        for name in limits:
            if (path / name).exists():
                (path / name).write_text(str(limit_bytes))
        if not self._is_v1 and (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Puts a command into the group, before it is executed."""
        return "sh", "-c", f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"', "sh"

    def peak_bytes(self) -> int:
        return int((self.path / ("memory.max_usage_in_bytes" if self._is_v1 else "memory.peak")).read_text())

    def kill_count(self) -> int:
        """How many of its processes the kernel has killed for memory."""
        text = (self.path / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


@contextmanager
def limited(limit_bytes: int) -> Iterator[Group]:
    """A group for the time of a test; it is missing where none can be made."""
    parent = V1 if V1.exists() else V2
    path = parent / f"forebay-{os.getpid()}"
    try:
        if parent is V2:
            (parent / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
    except OSError as error:
        missing("cgroup", f"no control group with a limit of memory can be made: {error}")
    try:
        yield Group(path, limit_bytes)
    finally:
        path.rmdir()
