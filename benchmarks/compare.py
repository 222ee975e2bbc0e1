"""`make bench-peers`: forebay beside the loaders that do the same job; writes benchmarks/results/peers.md.

Each contender has an environment and a process of its own, installed and converted before anything is timed; they run
in turns, and what is compared are the ratios of each round. Memory is sampled in runs of its own, because to sample it
takes time from the loaders: as fast as each goes, and where all are taken from at the same pace. A peer that cannot be
installed or run keeps its row, with the reason.
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
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import bench
import photos
import processes
from peers import environments
from peers.contenders import CONTENDERS, Contender
from peers.environments import UnavailableError

LIMIT_SECONDS = 300
GRACE_SECONDS = 5
AHEAD = 4  # batches ahead of the loop while memory is sampled, by all workers together: torch's default for two
PACE = 0.6  # of the slowest, while memory is sampled: slow enough for each to have all made that it makes ahead
FORM = "(3, 224, 224)"
ABSENT = [
    "FFCV 1.0.2, the newest release, does not install with pip alone: there is no wheel, and its `setup.py` asks",
    "`pkg-config` for the C++ libraries `opencv4` and `libturbojpeg` before anything else (`RuntimeError: Could not",
    "find required package: opencv.`). It also reads a format of its own, into which the pictures are to be written.",
]


class Memory(NamedTuple):
    """Of one run, in bytes."""

    imported: int
    pss: int
    pss_and_shared_memory: int


class Row:
    """A contender in this run: where it is, what was measured, or why not."""

    def __init__(self, name: str, contender: Contender, arguments: argparse.Namespace, folder: Path) -> None:
        self.name, self.contender = name, contender
        self.module = self.contender.module or name
        self.python = Path(sys.executable)
        self.results: list[dict[str, Any]] = []
        self.memory: dict[bool, list[Memory]] = {False: [], True: []}  # by whether it was taken from at a pace
        self.conversion_seconds: float | None = None
        self.unavailable = ""
        self._arguments, self.folder = arguments, folder
        try:
            self._prepare()
        except UnavailableError as error:
            self._give_up(error)

    def _prepare(self) -> None:
        """Installs it, and converts for it."""
        if self.contender.packages:
            self.python = self._installed(self.module, self.contender.packages)
        if self.contender.is_converted:
            self._convert(self.module, self.python)

    def _installed(self, module: str, packages: tuple[str, ...]) -> Path:
        """The interpreter that has these."""
        environments.ensure(self._arguments.environments / module, packages)
        return environments.python(self._arguments.environments / module)

    def _convert(self, module: str, python: Path) -> None:
        """Once for all runs; how long it took is kept beside the data."""
        target = self.folder.with_name(f"{self.folder.name}-{module}")
        stamp = target.with_name(target.name + ".complete")
        if not stamp.exists():
            print(f"converting for {module} into {target}", flush=True)
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            started = time.perf_counter()
            call([str(python), str(bench.HERE / "convert.py"), module, str(self.folder), str(target)])
            stamp.write_text(f"{time.perf_counter() - started:.1f}", "utf-8")
        self.conversion_seconds = float(stamp.read_text("utf-8"))
        self.folder = target

    def attempt(self, what: Callable[[Any], None], argument: Any) -> None:
        """Does one of the following; one that failed once is not run again, and has the reason in its row."""
        if self.unavailable:
            return
        try:
            what(argument)
        except UnavailableError as error:
            self._give_up(error)

    def time(self, epochs: int) -> None:
        """One run as fast as it goes, and one of the first epoch alone."""
        result, _ = self._call(epochs)
        self._check(result, epochs)
        first, _ = self._call("first")
        result["rate"], result["first_rate"] = (one["images"] / one["seconds"] for one in (result, first))
        self.results.append(result)
        print(
            f"{self.name:26} {result['rate']:7.0f} images/s, {result['first_rate']:5.0f} in the first epoch  "
            f"{bench.processor(result):>5} us of processor  first batch {result['first_batch_seconds']:5.2f} s  "
            f"{result['images']} delivered  mean {result['mean']:.3f} deviation {result['deviation']:.3f}",
            flush=True,
        )

    def sample(self, pace: float) -> None:
        """One run in which memory is sampled, at a pace or, without one, as fast as it goes; all contenders have as
        many batches ahead of the loop."""
        epochs = 0 if pace else 1
        result, memory = self._call(epochs, pace, is_sampled=True)
        self._check(result, epochs)
        assert memory is not None
        seen = Memory(result["imported"]["pss"], *memory.peaks(result["ended"]))
        self.memory[pace > 0].append(seen)
        amounts = "  ".join(f"{name} {amount / 1e6:.0f} MB" for name, amount in seen._asdict().items())
        print(f"{self.name:26} {amounts}", flush=True)

    def _call(
        self, epochs: int | str, pace: float = 0.0, is_sampled: bool = False, **more: Any
    ) -> tuple[dict[str, Any], processes.Sampler | None]:
        options = self.contender.options | ({"ahead": AHEAD} if is_sampled else {}) | more
        line = [str(self.python), str(bench.HERE / "contender.py"), self.module, str(self.folder)]
        line += [str(self._arguments.threads), str(epochs), json.dumps(options), str(pace)]
        output, memory = call(line, is_sampled)
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result, memory

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
        "| loader | first epoch, images/s | images/s | forebay is | delivered per run | mean, deviation | "
        "what differs |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = next((row.results for row in rows if row.name == "forebay"), [])
    for row in rows:
        title, differs = row.contender.title, row.contender.differs or "nothing"
        reason = row.unavailable.replace("|", "/")
        if not row.results:
            lines.append(f"| {title} | did not run: {reason} | | | | | {differs} |")
            continue
        if reason:
            differs += f"; failed after {len(row.results)} runs: {reason}"
        ratio = "" if row.name == "forebay" else bench.beside(ours, row.results)
        result = row.results[0]
        lines.append(
            f"| {title} | {bench.spread(row.results, 'first_rate')} | {bench.spread(row.results, 'rate')} | {ratio} | "
            f"{result['images']} | {result['mean']:.3f}, {result['deviation']:.3f} | {differs} |"
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


def memory_table(rows: list[Row], is_paced: bool) -> list[str]:
    """How much of it, all in all and beside torch's DataLoader in the same round."""
    lines = [
        "| loader | peak PSS | after imports | above imports | of torch's | with waiting shared memory | of torch's |",
        "|---|---|---|---|---|---|---|",
    ]
    torch = next((row.memory[is_paced] for row in rows if row.name == "torch"), [])
    for row in rows:
        runs = row.memory[is_paced]
        if not runs:
            continue
        peak, imported = median(run.pss for run in runs), median(run.imported for run in runs)
        line = f"| {row.contender.title} | {peak / 1e6:.0f} MB | {imported / 1e6:.0f} MB |"
        for place in range(2):
            ratios = [
                above_imports(run)[place] / above_imports(other)[place] for run, other in zip(runs, torch, strict=False)
            ]
            share = "" if row.name == "torch" else bench.paired(ratios)
            line += f" {median(above_imports(run)[place] for run in runs) / 1e6:.0f} MB | {share} |"
        lines.append(line)
    return lines


def above_imports(run: Memory) -> tuple[int, int]:
    """The memory that the loader itself added at its peak, without and with what waits in shared memory."""
    return run.pss - run.imported, run.pss_and_shared_memory - run.imported


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
        "peer's own environment over the same torch; medians, and the range in brackets. What forebay is of another is "
        "the median of the rounds' ratios, and in brackets the interval that holds it with a probability of 95 % (with "
        "fewer than six rounds: all that was seen). Mean and deviation are of all values of epoch 0: a loader that "
        "delivered something else would show.",
        "",
        "The first epoch is timed from the making of the loader on, in runs of its own. In it forebay knows no picture "
        "yet; later it knows them by landmarks ([why](../../docs/decisions/0025-landmarks.md)), which one row does "
        "without.",
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
        "## Memory at full speed",
        "",
        *memory_table(rows, is_paced=False),
        "",
        f"## Memory, where all deliver {pace:.0f} images/s",
        "",
        *memory_table(rows, is_paced=True),
        "",
        f"{arguments.memory_rounds} rounds each, sampled every 20 ms in runs of their own, until the last batch is",
        f"there. All have {AHEAD} batches of 39 MB ahead of the loop, as torch has by default with two workers",
        "(TurboLoader has no setting for it). In the second table batches are taken at the same pace from each",
        f"({PACE} of the rate of the slowest), as by a model that is slower than its loader: each has all made that it",
        "makes ahead. The peak is that of the sum of the proportional set sizes (`Pss` in",
        "`/proc/PID/smaps_rollup`, which counts shared pages once) of all processes. Most of it is Python with torch",
        "and its libraries, whatever the loader; what the process had after all imports, before the loader was made,",
        "is in the next column, and what the loader itself added, in all its processes, in the one after it. Batches",
        "that worker processes have put into shared memory and that no process has touched yet are in no set size;",
        "they are added in the column after that. A peer that maps its data file counts the pages it has touched.",
        "Landmarks are in forebay's; the row without them says how much they take.",
        "",
        "## Not among them",
        "",
        *ABSENT,
        "",
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="forebay beside its peers: images/s, first batch, memory")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs per round")
    parser.add_argument("--memory-rounds", type=int, default=5)
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
    rows = [Row(name, CONTENDERS[name], arguments, folder) for name in arguments.contenders]
    # Inherited: some peers start a thread for each processor, whatever they are told.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    for number in range(arguments.rounds):
        print(f"round {number}", flush=True)
        for row in bench.drawn(rows, number):
            row.attempt(row.time, arguments.epochs)
    if not any(row.results for row in rows):
        sys.exit("none of the contenders ran: see above")
    pace = PACE * min(row.middle("rate") for row in rows if row.results)
    for number in range(arguments.memory_rounds):
        for speed in (0.0, pace):
            print(f"memory, round {number}, {f'at {speed:.0f} images/s' if speed else 'at full speed'}", flush=True)
            for row in bench.drawn(rows, number):
                row.attempt(row.sample, speed)
    text = page(arguments, rows, sum(sizes) / len(sizes), pace)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
