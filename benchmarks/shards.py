"""`make bench-shards`: forebay beside other loaders on shards, tokens and lines as these write or read them; writes
benchmarks/results/shards.md.

Each contender has an environment and a process of its own, as in compare.py. Before anything is timed one epoch of each
is compared with forebay's, sample by sample. Then they run in turns, and what is compared are the ratios of each round.
Memory is sampled in a run of its own. `--only tar,tokens` measures these sections anew and keeps the others. A
contender that cannot run keeps its row, with the reason.
"""

import argparse
import datetime
import os
import signal
import sys
from pathlib import Path
from typing import Any

import bench
import compare
import numpy as np
import processes
import shard_data
import shard_pages
import shard_requests
from peers.environments import UnavailableError
from peers.shard_contenders import SECTIONS, Row, Section

FAR = 3.0  # levels of 255: what decoders and filters differ by is less, another picture is more


class Run(compare.Row):
    """A contender of a section: what it delivered and how fast, or why not."""

    contender: Row

    def __init__(self, name: str, section: Section, arguments: argparse.Namespace) -> None:
        self.section, self.checked, self.verdict, self.peak = section, {}, "", 0
        self.difference: float | None = None
        super().__init__(name, section.rows[name], arguments, arguments.data)

    def _prepare(self) -> None:
        count = {"tokens": self._arguments.tokens, "lines": self._arguments.lines}
        self.folder = shard_data.ENSURE[self.section.data](
            self._arguments.data, count.get(self.section.data, self._arguments.count)
        )
        if self.contender.reads:
            self._convert(self.contender.reads, self._installed(self.contender.reads, self.contender.reads_packages))
            self.conversion_seconds = None  # it is the peer's
        super()._prepare()

    def size(self) -> str:
        """How many pictures, and how large."""
        sizes = [
            file.stat().st_size for file in (self._arguments.data / f"photos-{self._arguments.count}").rglob("*.jpg")
        ]
        return f"{len(sizes)} of {sum(sizes) / len(sizes) / 1000:.0f} KB on average"

    def check(self, first: "Run") -> None:
        """One epoch, compared with that of the section's first row."""
        if first.unavailable:
            raise UnavailableError("forebay cannot read this")
        if not self.contender.is_checked:
            self.verdict = "drawn at random: not compared"
            return
        self.checked, _ = self._call("check", check=self.section.check)
        ours, theirs = first.checked, self.checked
        if ours["count"] != theirs["count"]:
            raise UnavailableError(f"expected {ours['count']} samples as forebay, got {theirs['count']}")
        if ours["hash"] == theirs["hash"]:
            self.verdict = "the same"
            return
        if not ours["kept"] or ours["kept"].keys() != theirs["kept"].keys():
            raise UnavailableError(f"expected the samples of forebay, {ours['hash']}, got {theirs['hash']}")
        pairs = [np.subtract(ours["kept"][number], theirs["kept"][number]) for number in ours["kept"]]
        self.difference = float(np.abs(pairs).mean())
        if self.difference > FAR:
            raise UnavailableError(
                f"expected pictures as forebay's, got some that differ by {self.difference:.1f} levels"
            )
        self.verdict = f"the same pictures; other pixels, by {self.difference:.2f} levels"

    def time(self, epochs: int) -> None:
        """One run."""
        del epochs
        turn = self.section.turn
        result, _ = self._call(f"first+{self.contender.epochs}" if turn == "first" else turn)
        result["rate"] = result["images"] / result["seconds"]
        if "first_seconds" in result:
            result["first_rate"] = result["first_images"] / result["first_seconds"]
            self._check_labels(result)
        self.results.append(result)
        print(
            f"{self.section.title[:24]:24} {self.name:22} {result['rate']:8.0f} /s, {result.get('first_rate', 0):6.0f} "
            f"in the first epoch, first batch {result['first_batch_seconds']:.2f} s",
            flush=True,
        )

    def _check_labels(self, result: dict[str, Any]) -> None:
        """A rate is no rate if something else was delivered."""
        count = self._arguments.count
        epochs = 1 + self.contender.epochs
        got = (result["first_images"] + result["images"], result["labels"])
        if got != (expected := (count * epochs, count * (count - 1) // 2 * epochs)):
            raise UnavailableError(f"expected samples and the sum of their numbers as {expected}, got {got}")

    def sample(self, pace: float) -> None:
        """One run in which memory is sampled, as fast as it goes; all have as many batches ahead of the loop."""
        del pace
        result, memory = self._call("first+0" if self.section.turn == "first" else "for+1", is_sampled=True)
        assert isinstance(memory, processes.Sampler)
        self.peak = memory.peaks(result["ended"])[1] - result["imported"]["pss"]


def bandwidth(path: Path, threads: int) -> float:
    """GB/s of copying a file's bytes by so many threads, from the page cache into memory that was touched before: what
    the machine can do at most with them."""
    from concurrent.futures import ThreadPoolExecutor
    from time import perf_counter

    source = np.array_split(np.fromfile(path, np.uint8), threads)
    targets = [np.ones_like(part) for part in source]
    with ThreadPoolExecutor(threads) as pool:
        rates = []
        for _ in range(5):
            started = perf_counter()
            list(pool.map(np.copyto, targets, source))
            rates.append(sum(map(len, source)) / (perf_counter() - started) / 1e9)
    return float(np.median(rates))


def measure(arguments: argparse.Namespace, names: list[str]) -> dict[str, list[Run]]:
    """All contenders of these sections."""
    runs = {name: [Run(row, SECTIONS[name], arguments) for row in SECTIONS[name].rows] for name in names}
    # Inherited: some peers start a thread for each processor, whatever they are told.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    for rows in runs.values():
        for row in rows:
            row.attempt(row.check, rows[0])
    everyone = [row for rows in runs.values() for row in rows]
    for number in range(arguments.rounds):
        print(f"round {number}", flush=True)
        for row in bench.drawn(everyone, number):
            row.attempt(row.time, 0)
    if not arguments.without_memory:
        for row in everyone:
            row.attempt(row.sample, 0)
    return runs


def parse() -> argparse.Namespace:
    """The arguments."""
    known = [*SECTIONS, shard_requests.NAME]
    parser = argparse.ArgumentParser(description="forebay beside its peers, on shards, tokens and lines")
    parser.add_argument("--only", help=f"sections, with commas between them, of {', '.join(known)}")
    parser.add_argument("--count", type=int, default=1000, help="pictures")
    parser.add_argument("--tokens", type=int, default=500_000_000)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-memory", action="store_true", help="does not sample it")
    parser.add_argument("--data", type=Path, default=bench.HERE / "data", help="where what is read is, or will be")
    parser.add_argument("--environments", type=Path, default=bench.HERE / "peers" / ".envs")
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "shards.md")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",") if arguments.only else known
    if unknown := [name for name in arguments.only if name not in known]:
        parser.error(f"--only: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    arguments.data, arguments.environments = arguments.data.absolute(), arguments.environments.absolute()
    return arguments


def main() -> None:
    """Makes, installs, converts, compares, measures, prints and writes."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # an exception, which ends the contender too
    runs = measure(arguments, [name for name in SECTIONS if name in arguments.only])
    stamp = f"Measured {datetime.date.today()}, {arguments.rounds} rounds. {bench.machine()}. {bench.versions()}"
    made = {}
    for name, rows in runs.items():
        copied = 0.0
        if SECTIONS[name].data == "tokens":
            copied = bandwidth(rows[0].folder / "tokens.bin", arguments.threads)
        made[name] = shard_pages.section(SECTIONS[name], rows, stamp, copied)
    if shard_requests.NAME in arguments.only:
        made[shard_requests.NAME] = shard_requests.section(arguments, stamp)
    text = shard_pages.page(arguments.output, made)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
