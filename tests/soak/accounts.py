"""The proof: every position of every epoch was handed over once, as planned or as the ledger says; nothing grew."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import forebay as fb

MIB = 1 << 20
# What may differ between the first and the last fifth of a process's life, after its first tenth.
RESIDENT_GROWTH, RESIDENT_SLACK_BYTES = 1.05, 4 * MIB
# A loader remembers its failures, up to 100,000 of them, and each takes this much at most (measured: 0.6 KiB).
FAILURE_BYTES = 1 << 10
# Reads under way hold a descriptor or two when they are counted, and so does every reader that lives.
SLACK, READER_FDS = 4, 2
MIN_SAMPLES = 20


class Ledger:
    """The shared ledger, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self.lines, self.outcomes = 0, Counter[str]()
        # Of the ranks that live now.
        self.by_rank: Counter[int] = Counter()
        self._substitutes: dict[tuple[int, int, int, int], int] = {}

    def begin(self) -> None:
        """A new group of ranks: what the last one wrote and never reported is no longer of interest."""
        self.look()
        self._substitutes.clear()
        self.by_rank.clear()

    def look(self) -> None:
        """Takes in what was written since."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for text in whole.splitlines():
            if not text:
                continue
            line = json.loads(text)
            self.lines += 1
            self.outcomes[line.get("outcome", "")] += 1
            self.by_rank[line.get("rank", 0)] += 1
            if line.get("outcome") == "replaced":
                key = (line["rank"], line["epoch"], line["step"], line["position"])
                self._substitutes[key] = line["substitute"]

    def substitute(self, rank: int, epoch: int, step: int, position: int) -> int | None:
        """What took a sample's place."""
        return self._substitutes.get((rank, epoch, step, position))


class Accounts:
    """What was handed over in steps that every rank has made."""

    def __init__(self, planner: fb.DataLoader, ledger: Ledger) -> None:
        self._planner, self._ledger = planner, ledger
        self._order: tuple[int, list[int]] = (-1, [])
        self.count = len(planner.dataset)
        self.position = 0
        self.epochs = self.steps = self.samples = self.replaced = self.padded = 0

    def order(self, epoch: int) -> list[int]:
        """The samples of an epoch, as planned."""
        if self._order[0] != epoch:
            steps = range(len(self._planner))
            rows = [row for step in steps for row in self._planner.explain(step, epoch=epoch)]
            self._order = epoch, [row["index"] for row in rows if not row["padded"]]
            assert sorted(self._order[1]) == list(range(self.count))
        return self._order[1]

    def enter_step(self, lines: list[dict[str, Any]]) -> None:
        """A step that every rank has made; lines are in the order of ranks."""
        made = {(line["epoch"], line["step"]) for line in lines}
        assert len(made) == 1, f"the ranks are not at the same step: {made}"
        ((epoch, step),) = made
        self._ledger.look()
        order = self.order(epoch)
        for rank, line in enumerate(lines):
            for index in line["ids"]:
                # Positions beyond the last one are padding, from the start of the order.
                planned = order[self.position % self.count]
                substitute = self._ledger.substitute(rank, epoch, step, self.position)
                expected = planned if substitute is None else substitute
                where = f"epoch {epoch}, step {step}, rank {rank}, position {self.position}"
                assert index == expected, f"{where}: expected {expected}, got {index}"
                self.replaced += substitute is not None
                self.samples += 1
                self.position += 1
        self.steps += 1
        for line in lines:
            assert line["state"]["position"] in (min(self.position, self.count), self.position), line["state"]

    def enter_epoch(self, lines: list[dict[str, Any]]) -> None:
        """The end of an epoch: it was whole, and each rank's books balance."""
        padding = self.position - self.count
        assert 0 <= padding < len(lines), f"{self.position} of {self.count} samples were handed over"
        for books in (line["books"] for line in lines if line["books"]):
            assert books["planned"] == books["delivered"] + books["replaced"] + books["skipped"], books
            assert books["skipped"] == 0, books
        self.padded += padding
        self.position = 0
        self.epochs += 1


class Life:
    """What one rank's process held, at the end of each of its epochs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[dict[str, int]] = []

    @property
    def is_judged(self) -> bool:
        """Whether it lived long enough."""
        return len(self.samples) >= MIN_SAMPLES

    def _medians(self, name: str) -> tuple[float, float]:
        values = [sample[name] for sample in self.samples]
        tenth = len(values) // 10
        early, late = values[tenth : 3 * tenth], values[-2 * tenth :]
        return statistics.median(early), statistics.median(late)

    def growth(self) -> dict[str, tuple[float, float]]:
        """(early, late) of each resource."""
        return {name: self._medians(name) for name in ("resident_bytes", "fds", "threads", "alive", "failures")}

    def grown(self) -> list[str]:
        """What did not stay flat."""
        growth = self.growth()
        early, late = growth["resident_bytes"]
        remembered = (growth["failures"][1] - growth["failures"][0]) * FAILURE_BYTES
        allowed = early * RESIDENT_GROWTH + RESIDENT_SLACK_BYTES + remembered
        found = [] if late <= allowed else ["resident_bytes"]
        more_readers = max(0, growth["alive"][1] - growth["alive"][0])
        for name, allowed in (("fds", SLACK + READER_FDS * more_readers), ("threads", SLACK)):
            if growth[name][1] > growth[name][0] + allowed:
                found.append(name)
        return found
