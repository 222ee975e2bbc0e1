"""A mount that fails as told: `tests/faultfs`, built, mounted, asked and taken away again whatever happens."""

import ctypes
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from missing import missing

ROOT = Path(__file__).parents[2]
MNT_DETACH = 2
# How long anything of it may take before it is a bug of its own.
PATIENCE_SECONDS = 10


@functools.cache
def why_not() -> str | None:
    """What is missing for a mount here, if anything."""
    if not os.path.exists("/dev/fuse"):
        return "FUSE cannot be mounted: there is no /dev/fuse"
    if os.geteuid() != 0 and not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "FUSE cannot be mounted: this is not root, and there is no fusermount3"
    if not shutil.which("cargo"):
        return "faultfs cannot be built: there is no cargo"
    return None


@functools.cache
def program() -> str:
    """The path of the program, built if it has to be."""
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "checked", "--message-format", "json"]
    # With the workspace's features, so that the crates are used that `make test-rust` has built for its tests.
    command += ["--workspace", "--exclude", "forebay-python", "--bin", "faultfs"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    messages = map(json.loads, built.stdout.splitlines())
    (executable,) = (message["executable"] for message in messages if message.get("executable"))
    return str(executable)


class FaultFs:
    """A mounted folder. What is written to `source` shows at `root`; rules are about paths below it.

    With `history`, a folder, what a power cut would leave is written there after every change.
    """

    def __init__(self, source: Path, *, writable: bool = False, history: Path | None = None) -> None:
        self.source = source
        # Not pytest's folder: the name of a socket may have 107 bytes.
        self._place = Path(tempfile.mkdtemp(prefix="faultfs-"))
        self.root = self._place / "mount"
        self.root.mkdir()
        control = self._place / "control"
        command = [program(), str(source), str(self.root), str(control)] + ["writable"] * (writable or bool(history))
        if history:
            command.append(str(history))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        if self.process.stdout.readline() != "ready\n":
            problem = self.process.stderr.read().strip()
            self.close()
            if "not permitted" in problem or "Permission denied" in problem:
                missing("fuse", f"it cannot be mounted: {problem}")
            raise RuntimeError(problem)
        self._device = mounts()[str(self.root)]
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(PATIENCE_SECONDS)
        self._control.connect(str(control))
        self._answers = self._control.makefile("r")

    def _ask(self, *words: str) -> str:
        self._control.sendall("\t".join(words).encode() + b"\n")
        answer = self._answers.readline()
        if not answer or answer.startswith("error"):
            raise RuntimeError(answer or "faultfs has gone")
        return answer.rstrip("\n")

    def rule(
        self,
        pattern: str,
        operation: str,
        *,
        errno: int | None = None,
        times: int | None = None,
        delay: float | None = None,
        hang: bool = False,
        size: int | None = None,
        short: int | None = None,
        garbage: int | None = None,
        pieces: int | None = None,
        mtime_moves: bool = False,
        grows: int | None = None,
    ) -> None:
        """Makes calls on matching paths go wrong, from now on, `times` times for each path.

        `operation` is open, read, lookup, getattr, stat (both of these) or readdir; of a mount that can be written to
        write, create (files and directories), change (whatever else) or modify (all three). `delay` is in seconds,
        `size` is what stat claims. With `mtime_moves` each getattr shows the file written a second later than the
        last one, with `grows` so many bytes larger, `times` times: it changes while it is read. The others are false
        content, which holds from an open to its close, and `times` counts opens: the file ends at byte `short`, is
        inverted from byte `garbage` on, comes in `pieces` of so many bytes.
        """
        options = {
            "errno": errno,
            "times": times,
            "delay_ms": None if delay is None else round(delay * 1000),
            "size": size,
            "ends_at": short,
            "garbage_from": garbage,
            "pieces_of": pieces,
            "grows_by": grows,
        }
        words = [f"{name}={value}" for name, value in options.items() if value is not None]
        switches = {"hang": hang, "mtime_moves": mtime_moves}
        words += [name for name, is_on in switches.items() if is_on]
        self._ask("rule", operation, pattern, *words)

    def clear(self) -> None:
        """Removes all rules; hanging calls continue."""
        self._ask("clear")

    def release(self) -> None:
        """Hanging calls continue, and no further call hangs."""
        self._ask("release")

    def hanging(self) -> int:
        """How many requests hang now."""
        return int(self._ask("hanging"))

    def counts(self) -> dict[tuple[str, str], int]:
        """How often (operation, path) was called, since the mount."""
        counts = {}
        line = self._ask("counts")
        while line:
            operation, path, count = line.split("\t")
            counts[operation, path] = int(count)
            line = self._answers.readline().rstrip("\n")
        return counts

    def pause(self) -> None:
        """Stops the server as a whole: no request is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Unmounts; whatever still waits for an answer gets an error."""
        process = self.process
        if process.poll() is None:
            self.resume()
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            abort(self._device)
            process.kill()
            process.wait(PATIENCE_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        if hasattr(self, "_control"):
            self._answers.close()
            self._control.close()
        if str(self.root) in mounts():
            ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(self.root), MNT_DETACH)
        assert str(self.root) not in mounts()
        shutil.rmtree(self._place)


def mounts() -> dict[str, int]:
    """The number of each mount's device: for FUSE also the name of its connection. Asks no mount."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {fields[4]: int(fields[2].split(":")[1]) for fields in lines}


CONNECTIONS = Path("/sys/fs/fuse/connections")


def abort(device: int) -> None:
    """The last resort: the kernel answers for the server."""
    with control():
        (CONNECTIONS / str(device) / "abort").write_text("1")


@contextmanager
def control() -> Iterator[None]:
    """The kernel's own view of all FUSE mounts, mounted inside where it is not mounted anyway."""
    if str(CONNECTIONS) in mounts():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(CONNECTIONS), b"fusectl", 0, None) != 0:
        missing("fuse", f"fusectl cannot be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(os.fsencode(CONNECTIONS), MNT_DETACH)


@contextmanager
def stalls() -> Iterator[list[str]]:
    """What is said about long waits inside."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in said if "no batch for" in str(warning.message)]
