"""`make bench-peers`: forebay beside the loaders that do the same job; writes benchmarks/results/peers.md.

Each contender has an environment and a process of its own, installed and converted before anything is timed; they run
in turns, and medians are compared. Memory is sampled in runs of its own, because to sample it takes time from the
loaders. A peer that cannot be installed or run keeps its row, with the reason.
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import bench
import photos
import processes
from peers import environments
from peers.contenders import CONTENDERS
from peers.environments import UnavailableError

LIMIT_SECONDS = 300
GRACE_SECONDS = 5
PACE = 0.6  # of the slowest, while memory is sampled: slow enough for each to have all made that it makes ahead
FORM = "(3, 224, 224)"


class Memory(NamedTuple):
    """Of one run, in bytes."""

    imported: int
    pss: int
    pss_and_shared_memory: int


class Row:
    """A contender in this run: where it is, what was measured, or why not."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        self.name, self.contender = name, CONTENDERS[name]
        self.module = self.contender.module or name
        environment = arguments.environments / self.module
        self.python = environments.python(environment) if self.contender.packages else Path(sys.executable)
        self.results: list[dict[str, Any]] = []
        self.memory: list[Memory] = []
        self.conversion_seconds: float | None = None
        self.unavailable = ""
        self._arguments, self.folder = arguments, folder
        try:
            if self.contender.packages:
                environments.ensure(environment, self.contender.packages)
            if self.contender.is_converted:
                self._convert()
        except UnavailableError as error:
            self._give_up(error)

    def _convert(self) -> None:
        """Once for all runs; how long it took is kept beside the data."""
        target = self.folder.with_name(f"{self.folder.name}-{self.module}")
        stamp = target.with_name(target.name + ".complete")
        if not stamp.exists():
            print(f"converting for {self.module} into {target}", flush=True)
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            started = time.perf_counter()
            call([str(self.python), str(bench.HERE / "convert.py"), self.module, str(self.folder), str(target)])
            stamp.write_text(f"{time.perf_counter() - started:.1f}", "utf-8")
        self.conversion_seconds = float(stamp.read_text("utf-8"))
        self.folder = target

    def run(self, epochs: int, pace: float = 0.0) -> None:
        """One run, as fast as it goes, or at a pace to sample the memory; one that failed once is not run again."""
        if self.unavailable:
            return
        line = [str(self.python), str(bench.HERE / "contender.py"), self.module, str(self.folder)]
        line += [str(self._arguments.threads), str(epochs), json.dumps(self.contender.options), str(pace)]
        try:
            output, memory = call(line, is_sampled=pace > 0)
            result: dict[str, Any] = json.loads(output.splitlines()[-1])
            self._check(result, epochs)
        except UnavailableError as error:
            self._give_up(error)
            return
        told = f"{self.name:22} "
        if memory:
            self.memory.append(Memory(result["imported"]["pss"], *memory.peaks(result["ended"])))
            told += "  ".join(f"{name} {amount / 1e6:.0f} MB" for name, amount in self.memory[-1]._asdict().items())
        else:
            result["rate"] = result["images"] / result["seconds"]
            self.results.append(result)
            told += (
                f"{result['rate']:7.0f} images/s  {bench.processor(result):>5} us of processor  "
                f"first batch {result['first_batch_seconds']:5.2f} s  {result['images']} delivered  "
                f"mean {result['mean']:.3f} deviation {result['deviation']:.3f}"
            )
        print(told, flush=True)

    def _check(self, result: dict[str, Any], epochs: int) -> None:
        """A rate is no rate if something else was delivered."""
        count = self._arguments.count
        expected, got = (count, epochs * count), (result["warm_up_images"], result["images"])
        if got != expected:
            raise UnavailableError(f"expected {expected} images in the first epoch and those after it, got {got}")
        if not result["form"].startswith(FORM) or not result["form"].endswith("float32"):
            raise UnavailableError(f"expected images of {FORM} float32, got {result['form']}")

    def _give_up(self, error: UnavailableError) -> None:
        self.unavailable = str(error)
        print(f"{self.name}: {error}", flush=True)

    def middle(self, key: str) -> float:
        """The median of what the runs told."""
        return median(float(result[key]) for result in self.results)


def call(line: list[str], is_sampled: bool = False) -> tuple[str, processes.Sampler | None]:
    """What a program prints, and its memory if that is sampled. Nothing that it started outlives it."""
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        memory = processes.Sampler(process) if is_sampled else None
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
            wait_for_group(process.pid)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"had not finished after {LIMIT_SECONDS} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # none is left, as it should be
                os.killpg(process.pid, signal.SIGKILL)
            if memory:
                memory.wait()
    if process.returncode != 0:
        raise UnavailableError(f"exit status {process.returncode}: {environments.last_line(errors)}")
    return output, memory


def wait_for_group(leader: int) -> None:
    """Lets what a program started tidy up after it: multiprocessing does so in a process of its own."""
    end = time.perf_counter() + GRACE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.perf_counter() < end:
            os.killpg(leader, 0)
            time.sleep(0.05)


def rate_table(rows: list[Row]) -> list[str]:
    """How fast, and what exactly."""
    lines = [
        "| loader | images/s | forebay is | delivered per run | mean, deviation | what differs |",
        "|---|---|---|---|---|---|",
    ]
    ours = next((row.middle("rate") for row in rows if row.name == "forebay" and row.results), None)
    for row in rows:
        title, differs = row.contender.title, row.contender.differs or "nothing"
        reason = row.unavailable.replace("|", "/")
        if not row.results:
            lines.append(f"| {title} | did not run: {reason} | | | | {differs} |")
            continue
        if reason:
            differs += f"; failed after {len(row.results)} runs: {reason}"
        rates = [result["rate"] for result in row.results]
        ratio = "" if ours is None or row.name == "forebay" else f"{ours / median(rates):.2f}x"
        result = row.results[0]
        lines.append(
            f"| {title} | {median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) | {ratio} | {result['images']} | "
            f"{result['mean']:.3f}, {result['deviation']:.3f} | {differs} |"
        )
    return lines


def time_table(rows: list[Row]) -> list[str]:
    """How soon, and how much work."""
    lines = [
        "| loader | first batch | with imports | processor time of 1,000 images |",
        "|---|---|---|---|",
    ]
    for row in rows:
        if row.results:
            first = row.middle("first_batch_seconds")
            total = median(result["first_batch_seconds"] + result["imported"]["seconds"] for result in row.results)
            used = median(result["processor_seconds"] / result["images"] * 1000 for result in row.results)
            lines.append(f"| {row.contender.title} | {first:.2f} s | {total:.2f} s | {used:.2f} s |")
    return lines


def memory_table(rows: list[Row]) -> list[str]:
    """How much of it, all in all and beside torch's DataLoader."""
    lines = [
        "| loader | peak PSS | after imports | above imports | of torch's | with waiting shared memory | of torch's |",
        "|---|---|---|---|---|---|---|",
    ]
    torch = next((above_imports(row) for row in rows if row.name == "torch" and row.memory), None)
    for row in rows:
        if row.memory:
            peak, imported = median(run.pss for run in row.memory), median(run.imported for run in row.memory)
            line = f"| {row.contender.title} | {peak / 1e6:.0f} MB | {imported / 1e6:.0f} MB |"
            for number, own in enumerate(above_imports(row)):
                share = "" if torch is None or row.name == "torch" else f"{own / torch[number]:.2f}"
                line += f" {own / 1e6:.0f} MB | {share} |"
            lines.append(line)
    return lines


def above_imports(row: Row) -> tuple[float, float]:
    """The memory that the loader itself added at its peak, without and with what waits in shared memory."""
    return (
        median(run.pss - run.imported for run in row.memory),
        median(run.pss_and_shared_memory - run.imported for run in row.memory),
    )


def page(arguments: argparse.Namespace, rows: list[Row], mean_bytes: float, pace: float) -> str:
    """The result as Markdown."""
    packages = sorted({package for row in rows for package in row.contender.packages})
    converted = {row.module: row.conversion_seconds for row in rows if row.conversion_seconds is not None}
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in converted.items())
    lines = [
        "# Peers",
        "",
        f"Measured {datetime.date.today()} by `make bench-peers`. {bench.machine()}. {bench.versions()}; "
        f"{', '.join(package.replace('==', ' ') for package in packages)}.",
        "",
        f"{arguments.count} synthetic JPEGs of {photos.WIDTH}x{photos.HEIGHT}, {mean_bytes / 1000:.0f} KB on average, "
        "in the page cache; RandomResizedCrop(224), flip, normalise; shuffled batches of 64 as float32 NCHW; "
        f"{arguments.threads} threads or worker processes, bound to as many processors; {arguments.rounds} rounds of "
        f"{arguments.epochs} timed epochs after two that are not. Each run is a process of its own, in turns, with the "
        "peer's own environment over the same torch; medians, and the range in brackets. Mean and deviation are of "
        "all values of epoch 0: a loader that delivered something else would show.",
        "",
        f"What needs another format was converted before, with the JPEGs as they are: {told or 'nothing'}.",
        "",
        *rate_table(rows),
        "",
        "## Start and work",
        "",
        *time_table(rows),
        "",
        "The first batch is timed from the call that makes the dataset and the loader; with imports, from the start of",
        "the process. Processor time is that of all processes in the timed epochs.",
        "",
        f"## Memory, where all deliver {pace:.0f} images/s",
        "",
        *memory_table(rows),
        "",
        "Sampled every 20 ms in runs of their own, until the last batch is there; batches of 39 MB are taken at the",
        f"same pace from each ({PACE} of the rate of the slowest), as by a model that is slower than its loader: each",
        "has all made that it makes ahead. The peak is that of the sum of the proportional set sizes (`Pss` in",
        "`/proc/PID/smaps_rollup`, which counts shared pages once) of all processes. Most of it is Python with torch",
        "and its libraries, whatever the loader; what the process had after all imports, before the loader was made,",
        "is in the next column, and what the loader itself added, in all its processes, in the one after it. Batches",
        "that worker processes have put into shared memory and that no process has touched yet are in no set size;",
        "they are added in the column after that. A peer that maps its data file counts the pages it has touched.",
        "",
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="forebay beside its peers: images/s, first batch, memory")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs per round")
    parser.add_argument("--memory-rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--data", type=Path, default=bench.HERE / "data", help="where the pictures are, or will be")
    parser.add_argument("--environments", type=Path, default=bench.HERE / "peers" / ".envs")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "peers.md")
    return parser.parse_args()


def main() -> None:
    """Installs, converts, measures, prints and writes."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # an exception, which ends the contender too
    folder = (arguments.data / f"photos-{arguments.count}").absolute()
    arguments.environments = arguments.environments.absolute()
    photos.ensure(folder, arguments.count)
    sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
    rows = [Row(name, arguments, folder) for name in arguments.contenders]
    # Inherited: some peers start a thread for each processor, whatever they are told.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    for number in range(arguments.rounds):
        print(f"round {number}", flush=True)
        for row in bench.drawn(rows, number):
            row.run(arguments.epochs)
    if not any(row.results for row in rows):
        sys.exit("none of the contenders ran: see above")
    pace = PACE * min(row.middle("rate") for row in rows if row.results)
    for number in range(arguments.memory_rounds):
        print(f"memory, round {number}, at {pace:.0f} images/s", flush=True)
        for row in rows:
            row.run(0, pace)
    text = page(arguments, rows, sum(sizes) / len(sizes), pace)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
