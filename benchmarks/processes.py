"""What a process and all those it started use, out of /proc: memory and processor time."""

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECONDS = 0.02


def family(root: int) -> list[int]:
    """The process and its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for process in filter(str.isdecimal, os.listdir("/proc")):
        fields = _stat(int(process))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(process))
    found = [root]
    for process in found:  # grows while it is walked
        found += children.get(process, [])
    return found


def processor_seconds() -> float:
    """What this process and those it started have used, in user code and in the kernel: steadier than a clock where
    others work, too. Those that have ended count for the one that waited for them."""
    own = os.times()
    ticks = 0
    for process in family(os.getpid())[1:]:
        fields = _stat(process)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return time.process_time() + own.children_user + own.children_system + ticks / os.sysconf("SC_CLK_TCK")


def started_ago(process: int) -> float:
    """Seconds since a process was started, to a hundredth."""
    fields = _stat(process)
    assert fields is not None, f"process {process} has ended"
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def pss(process: int) -> tuple[int, int]:
    """The proportional set size of a process in bytes, where pages that several share are counted once in all, and
    the part of it that is shared memory; zeros for a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines()
    except OSError:
        return 0, 0
    amounts = {name: int(amount.split()[0]) * 1024 for name, _, amount in (line.partition(":") for line in lines[1:])}
    return amounts["Pss"], amounts["Pss_Shmem"]


def shared_memory(processes: list[int]) -> int:
    """Bytes of the files in /dev/shm that the processes have open. What waits there for another process is mapped by
    none, and in no process's set size."""
    device = os.stat("/dev/shm").st_dev
    files: dict[int, int] = {}
    for process in processes:
        try:
            for number in os.listdir(f"/proc/{process}/fd"):
                status = os.stat(f"/proc/{process}/fd/{number}")
                if status.st_dev == device:
                    files[status.st_ino] = status.st_blocks * 512
        except OSError:  # it has ended, or closed the file
            continue
    return sum(files.values())


class Sampled(NamedTuple):
    """The memory of some processes at a moment, in bytes."""

    at: float
    pss: int
    pss_and_shared_memory: int


class Sampler:
    """Samples the memory of a running process and its descendants until it ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._samples: list[Sampled] = []
        self._process = process
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while self._process.poll() is None:
            processes = family(self._process.pid)
            sizes = [pss(process) for process in processes]
            total, shared = (sum(amounts) for amounts in zip(*sizes, strict=True))
            all_shared = max(shared, shared_memory(processes))
            self._samples.append(Sampled(time.monotonic(), total, total - shared + all_shared))
            time.sleep(SAMPLE_SECONDS)

    def wait(self) -> None:
        """Until the process has ended and no sample is being taken."""
        self._thread.join()

    def peaks(self, until: float) -> tuple[int, int]:
        """The most of each until a moment of `time.monotonic()`, which is the same in all processes. When Python ends
        libraries touch memory that they never used before, some 100 MB of it: that is no loader's."""
        samples = [sample for sample in self._samples if sample.at <= until]
        return max(sample.pss for sample in samples), max(sample.pss_and_shared_memory for sample in samples)


def _stat(process: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; None for a process that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
