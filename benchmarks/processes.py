"""What a process and all those it started use, out of /proc: memory and processor time."""

import os
import subprocess
import threading
import time
from pathlib import Path

SAMPLE_SECONDS = 0.02
PARTS = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")


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


def pss(processes: list[int]) -> dict[str, int]:
    """The proportional set size of processes, in bytes, and its parts: pages that several share are counted once."""
    total = dict.fromkeys(PARTS, 0)
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:
            name, _, amount = line.partition(":")
            if name in total:
                total[name] += int(amount.split()[0]) * 1024
    return total


class Peak:
    """Samples the memory of a running process and its descendants until it ends, and keeps the highest."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.highest = dict.fromkeys(PARTS, 0)
        self.samples = 0
        self._process = process
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while self._process.poll() is None:
            now = pss(family(self._process.pid))
            self.samples += 1
            if now["Pss"] > self.highest["Pss"]:
                self.highest = now
            time.sleep(SAMPLE_SECONDS)

    def wait(self) -> dict[str, int]:
        """The highest sum that was seen, once the process has ended."""
        self._thread.join()
        return self.highest


def _stat(process: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; None for a process that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
