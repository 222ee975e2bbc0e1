"""Faults of all kinds, switched on and off by a seeded generator, on a mount that fails as told."""

import errno
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faultfs import FaultFs

ERRNOS = {
    "open": (errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT),
    "read": (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ENOMEM, errno.ETIMEDOUT, errno.ECONNRESET, errno.EINVAL),
    "getattr": (errno.EIO, errno.ESTALE, errno.ENOTCONN),
    "lookup": (errno.EIO, errno.ENOTCONN, errno.ENOENT),
}
# Shorter than the deadlines of four samples, after which a run takes the storage for dead.
MAX_STOP_SECONDS = 1.5


def readers_of(processes: set[int]) -> list[int]:
    """The reader processes of these ranks."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            head, _, rest = Path(f"/proc/{name}/stat").read_text().rpartition(")")
        except OSError:
            continue
        if head.endswith("(forebay-reader") and int(rest.split()[1]) in processes:
            found.append(int(name))
    return found


def readers_left(ranks: set[int]) -> list[int]:
    """The reader processes of ranks that may have ended: a reader is told whose it is."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"forebay-reader" and len(words) > 1 and words[1].isdigit() and int(words[1]) in ranks:
            found.append(int(name))
    return found


class Faults:
    """A thread that breaks and repairs the storage. Everything it does is counted."""

    def __init__(self, fs: FaultFs, seed: int, ranks: Callable[[], set[int]]) -> None:
        self.counts: Counter[str] = Counter()
        self._fs = fs
        self._random = random.Random(seed)
        self._ranks = ranks
        self._files = sorted(path for path in fs.source.rglob("*.jpg"))
        self._originals = {path: path.read_bytes() for path in self._files}
        self._over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        actions = {
            self._errno: 6, self._delay: 4, self._hang: 3, self._content: 4, self._attributes: 3, self._damage: 2,
            self._repair: 4, self._stop_server: 1, self._kill_reader: 3, self._stop_reader: 1, self._clear: 5,
        }  # fmt: skip
        try:
            while not self._over.wait(self._random.uniform(0.05, 0.8)):
                (action,) = self._random.choices(list(actions), list(actions.values()))
                action()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """No more faults, and none in force."""
        self._over.set()
        self._thread.join()
        self._fs.resume()
        self._fs.clear()
        if self.error:
            raise self.error

    def _pattern(self) -> str:
        """Some files: one, a few, or a tenth."""
        path = str(self._random.choice(self._files).relative_to(self._fs.source))
        return self._random.choice((path, path[:-5] + "?" + path[-4:], f"*{self._random.randrange(10)}.jpg"))

    def _times(self) -> int | None:
        return self._random.choice((1, 2, 5, None))

    def _errno(self) -> None:
        operation = self._random.choice(list(ERRNOS))
        number = self._random.choice(ERRNOS[operation])
        self._fs.rule(self._pattern(), operation, errno=number, times=self._times())
        self.counts[f"errno from {operation}"] += 1

    def _delay(self) -> None:
        operation = self._random.choice(("open", "read", "getattr"))
        self._fs.rule(self._pattern(), operation, delay=self._random.uniform(0.01, 0.3), times=self._times())
        self.counts["delay"] += 1

    def _hang(self) -> None:
        # Not lookup: the kernel looks names of a directory up one after the other, so all of it would hang.
        path = str(self._random.choice(self._files).relative_to(self._fs.source))
        operation = self._random.choice(("open", "read", "getattr"))
        self._fs.rule(path, operation, hang=True, times=self._times())
        self.counts[f"hang in {operation}"] += 1

    def _content(self) -> None:
        kind = self._random.choice(("short", "garbage", "pieces"))
        at = self._random.randrange(1, 1500)
        self._fs.rule(self._pattern(), "read", times=self._times(), **{kind: at})  # type: ignore[arg-type]
        self.counts[f"content: {kind}"] += 1

    def _attributes(self) -> None:
        times = self._times()
        if self._random.random() < 0.5:
            self._fs.rule(self._pattern(), "getattr", size=self._random.choice((0, 1000, 1 << 40)), times=times)
            self.counts["false size"] += 1
        else:
            self._fs.rule(self._pattern(), "getattr", mtime_moves=True, grows=self._random.randrange(2), times=times)
            self.counts["changing file"] += 1

    def _damage(self) -> None:
        path = self._random.choice(self._files)
        whole = self._originals[path]
        path.write_bytes(self._random.choice((b"", b"<html>404</html>", whole[: len(whole) // 2])))
        self.counts["file damaged"] += 1

    def _repair(self) -> None:
        for path in self._files:
            if path.stat().st_size != len(self._originals[path]):
                path.write_bytes(self._originals[path])
                self.counts["file repaired"] += 1
                return

    def _stop_server(self) -> None:
        self._fs.pause()
        self._over.wait(self._random.uniform(0.1, MAX_STOP_SECONDS))
        self._fs.resume()
        self.counts["server stopped"] += 1

    def _signal_reader(self, number: int) -> bool:
        readers = readers_of(self._ranks())
        if not readers:
            return False
        try:
            os.kill(self._random.choice(readers), number)
        except ProcessLookupError:
            return False
        return True

    def _kill_reader(self) -> None:
        self.counts["reader killed"] += self._signal_reader(signal.SIGKILL)

    def _stop_reader(self) -> None:
        self.counts["reader stopped"] += self._signal_reader(signal.SIGSTOP)

    def _clear(self) -> None:
        self._fs.clear()
        # What was read as garbage twice is known as bad until the file changes: in time, no file would be read.
        for path in self._files:
            os.utime(path)
        self.counts["all cleared"] += 1


def write_source(root: Path, count: int, example: bytes) -> None:
    """Pictures with distinct names; what is in them does not matter here."""
    shutil.rmtree(root, ignore_errors=True)
    for number in range(count):
        path = root / f"class {number % 3}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(example)
