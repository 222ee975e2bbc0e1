"""Programs that stay and take turns, so that whatever slows the machine down for a second or longer slows all of them
alike: the way to see differences that are smaller than what the machine does to a single run.

A rival prints "ready", and a line of JSON for each line it reads, which says how many epochs it is to deliver:
`contender.py` and the examples of crates/forebay, with `-` for the number of epochs.
"""

import json
import os
import subprocess
from typing import Any


class Rival:
    """A program that delivers when it is told to."""

    def __init__(self, line: list[str]) -> None:
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        assert self._output.readline() == "ready\n", f"it did not start: {line}"

    def bind(self, processors: set[int]) -> None:
        """To these processors, with all of its threads."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setaffinity(int(thread), processors)

    def deliver(self, epochs: int = 1) -> dict[str, Any]:
        """Its turn; what it tells of it."""
        print(epochs, file=self._input, flush=True)
        told: dict[str, Any] = json.loads(self._output.readline())
        if "user_seconds" in told:
            told["processor_seconds"] = told["user_seconds"] + told["system_seconds"]
        return told

    def close(self) -> None:
        """Waits for its end."""
        self._input.close()
        assert self._process.wait() == 0, "it ended with an error"
