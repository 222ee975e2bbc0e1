"""Programs that stay and take turns, so that whatever slows the machine down for a second or longer slows all of them
alike: the way to see differences that are smaller than what the machine does to a single run.

A rival prints "ready", and a line of JSON for each line it reads, which says how many epochs it is to deliver:
`contender.py` and the examples of crates/forebay, with `-` for the number of epochs.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Rival:
    """A program that delivers when it is told to."""

    def __init__(self, line: list[str]) -> None:
        self._line = line
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def wait_ready(self) -> None:
        """Until it has warmed up: no turn is given before all are ready."""
        assert self._output.readline() == "ready\n", f"it did not start: {self._line}"

    def bind(self, processors: list[int]) -> None:
        """To these processors, with all of its threads."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setaffinity(int(thread), processors)

    def begin(self, epochs: int) -> None:
        """Its turn begins."""
        print(epochs, file=self._input, flush=True)

    def end(self) -> dict[str, Any]:
        """Waits for the end of its turn; what it tells of it."""
        told: dict[str, Any] = json.loads(self._output.readline())
        if "user_seconds" in told:
            told["processor_seconds"] = told["user_seconds"] + told["system_seconds"]
        return told

    def deliver(self, epochs: int = 1) -> dict[str, Any]:
        """Its turn; what it tells of it."""
        self.begin(epochs)
        return self.end()

    def peak_bytes(self) -> int:
        """The most memory that it had in use so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) << 10

    def close(self) -> None:
        """Waits for its end."""
        self._input.close()
        assert self._process.wait() == 0, "it ended with an error"


class Crowd:
    """As many programs of one kind as processors, which have their turn together: nothing is shared between them but
    the machine."""

    def __init__(self, line: list[str], size: int) -> None:
        self._members = [Rival(line) for _ in range(size)]

    def wait_ready(self) -> None:
        """Until all have warmed up."""
        for member in self._members:
            member.wait_ready()

    def bind(self, processors: list[int]) -> None:
        """Each of them to one of these processors."""
        for member, processor in zip(self._members, processors, strict=True):
            member.bind([processor])

    def deliver(self, epochs: int = 1) -> dict[str, Any]:
        """The turn of all; what they tell, added up. The rate is the sum of theirs, so that one which ends late counts
        for itself only."""
        for member in self._members:
            member.begin(epochs)
        told = [member.end() for member in self._members]
        total = {
            what: sum(each[what] for each in told)
            for what in ("images", "processor_seconds", "starved_seconds")
            if what in told[0]
        }
        return total | {"seconds": total["images"] / sum(each["images"] / each["seconds"] for each in told)}

    def close(self) -> None:
        """Waits for the end of all."""
        for member in self._members:
            member.close()
