"""Post-mortem of a worker that died or hangs: how it ended, its stack, its open files, its last lines on stderr."""

import os
import re
import signal
from dataclasses import dataclass

# Of x86-64 and arm64: calls whose first argument is a descriptor that data comes from.
_READS = {
    "x86_64": {0: "read", 17: "pread64", 19: "readv", 45: "recvfrom", 47: "recvmsg", 295: "preadv", 217: "getdents64"},
    "aarch64": {
        63: "read",
        67: "pread64",
        65: "readv",
        207: "recvfrom",
        212: "recvmsg",
        69: "preadv",
        61: "getdents64",
    },
}
_STDERR_LINES = 12
_HANG_HINT = (
    "the stack in the detail says where it is stuck; if it is only slow, raise deadline_seconds: "
    'float("inf") waits for ever'
)
# Frames of a debugger that waits for a person: pdb and what is made of it, debugpy, PyCharm's.
_DEBUGGERS = re.compile(r'^  File "[^"]*(?:/bdb\.py|/pdb\.py|pydevd|debugpy)[^"]*"', re.MULTILINE)
# Frames of ours: how the dataset was called is no news.
_OWN = re.compile(r'^  File "(?:[^"]*/forebay/_python/workers/[^"]*|<string>)", line .*\n?', re.MULTILINE)
# What faulthandler says above the frames of the only thread.
_HEADINGS = re.compile(r"^(?:Timeout \(.*|(?:Current t|T)hread 0x.*|Stack \(.*|\s*)\n", re.MULTILINE)


@dataclass
class Death:
    """How a worker ended."""

    shard: int
    pid: int
    how: str
    seconds: float
    stack: str = ""
    stderr: str = ""
    path: str | None = None
    files: str = ""
    # Where it was past its deadline.
    is_hang: bool = False
    exit_code: int | None = None

    def hint(self) -> str | None:
        """A hint for this kind of death; `None` for the usual one."""
        return _HANG_HINT if self.is_hang else None

    def in_torchs_words(self) -> str:
        """The sentences of torch's loader about it: scripts match them, and people search for them.

        Empty for one past its deadline, which torch waits for.
        """
        if self.is_hang or self.exit_code is None:
            return ""
        general = f"DataLoader worker (pid(s) {self.pid}) exited unexpectedly"
        if self.exit_code == 0:
            return f'in torch\'s words: "{general}"'
        if self.exit_code > 0:
            exact = f"DataLoader worker (pid {self.pid}) exited unexpectedly with exit code {self.exit_code}."
        else:
            name = signal.strsignal(-self.exit_code) or f"Unknown signal {-self.exit_code}"
            exact = f"DataLoader worker (pid {self.pid}) is killed by signal: {name}. "
        return f'in torch\'s words: "{general}", "{exact}"'

    def detail(self) -> str | None:
        """Everything that helps to find the cause, on several lines."""
        parts = []
        if self.path:
            parts.append(f"it was reading {self.path}")
        elif self.files:
            parts.append(f"it had open: {self.files}")
        if self.stack:
            parts.append(f"stack, innermost call first:\n{self.stack}")
        if self.stderr:
            parts.append(f"its last lines on stderr:\n{self.stderr}")
        return "\n".join(parts) or None


def ending(exit_code: int | None) -> str:
    """How a process ended, from its exit status."""
    if exit_code is None:
        return "is stuck in the kernel and cannot be ended"
    if exit_code >= 0:
        return f"left with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"


def hint(exit_code: int | None) -> str:
    """The most frequent cause of an exit status."""
    if exit_code == -signal.SIGKILL:
        return " (the kernel does so when memory runs out)"
    return ""


def stack_of(dump: bytes) -> str:
    """The last stack in what faulthandler wrote, without our own frames."""
    text = dump.decode(errors="replace")
    starts = [match.start() for match in re.finditer(r"^(?:Timeout \(|Fatal Python error)", text, re.MULTILINE)]
    if starts:
        text = text[starts[-1] :]
    elif currents := [match.start() for match in re.finditer(r"^(?:Current thread|Stack \()", text, re.MULTILINE)]:
        text = text[currents[-1] :]
    text = text.partition("\nExtension modules:")[0]
    text = _OWN.sub("", text)
    if len(re.findall(r"^(?:Current t|T)hread 0x", text, re.MULTILINE)) <= 1:
        text = _HEADINGS.sub("", text + "\n")
    return text.rstrip()


def is_debugged(pid: int, dump: bytes) -> bool:
    """Whether a process, whose stacks are given, is stopped in a debugger."""
    if _DEBUGGERS.search(dump.decode(errors="replace")):
        return True
    try:
        with open(f"/proc/{pid}/status") as file:
            traced = [line.split()[1] for line in file if line.startswith("TracerPid:")]
    except (OSError, IndexError):
        return False
    return traced not in ([], ["0"])


def last_lines(text: bytes) -> str:
    lines = text.decode(errors="replace").rstrip().splitlines()
    return "\n".join(lines[-_STDERR_LINES:])


def reading(pid: int) -> str | None:
    """The file that a process waits for in the kernel, if it is in a call that reads."""
    reads = _READS.get(os.uname().machine, {})
    try:
        with open(f"/proc/{pid}/syscall") as file:
            fields = file.read().split()
        if len(fields) < 2 or not fields[0].isdigit() or int(fields[0]) not in reads:
            return None
        return os.readlink(f"/proc/{pid}/fd/{int(fields[1], 16)}")
    except (OSError, ValueError):
        return None


def regular_files(pid: int) -> list[str]:
    """The files that a process has open: those with a name in a file system."""
    found = []
    try:
        for fd in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            try:
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if int(fd) > 2 and name.startswith("/") and not name.startswith(("/memfd:", "/proc/", "/dev/")):
                found.append(name)
    except OSError:
        pass
    return found
