"""`make bench-peers`: forebay beside the loaders that do the same job; writes benchmarks/results/peers.md.

Each contender has an environment and a process of its own, installed and converted before anything is timed; they run
in turns, and medians are compared. Memory is sampled in runs of its own, because to sample it takes time from the
loaders. A peer that cannot be installed or run keeps its row, with the reason.
"""

import argparse
import dataclasses
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
from typing import Any

import bench
import photos
import processes
from peers import environments
from peers.environments import Unavailable

LIMIT_SECONDS = 300
FORM = "(3, 224, 224)"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A row: what runs, in which environment, and in what it differs from the others."""

    title: str
    differs: str = ""
    module: str = ""  # of `peers`, or a name that contender.py knows; its own name if it is not given
    packages: tuple[str, ...] = ()  # none: it runs in the base environment
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_converted: bool = False


CROP_ONLY = "decodes the crop only"
V2 = "decodes with torchvision.io, transforms v2"
CONTENDERS = {
    "forebay": Contender("forebay", f"{CROP_ONLY}; pixels as torchvision's"),
    "forebay-1": Contender("forebay, 1 thread", "half of the others' threads", "forebay", options={"num_workers": 1}),
    "torch": Contender("torch DataLoader, PIL, transforms v1"),
    "torch_v2": Contender("torch DataLoader, torchvision.io, transforms v2"),
    "opencv": Contender(
        "torch DataLoader, OpenCV", "INTER_AREA where the crop shrinks", packages=("opencv-python-headless==5.0.0.93",)
    ),
    "turboloader": Contender(
        "TurboLoader",
        f"tar; {CROP_ONLY}; scaled decoding and no filter against aliasing: not the same pixels",
        packages=("turboloader==2.39.0",),
        is_converted=True,
    ),
    "turboloader-antialias": Contender(
        "TurboLoader, antialias=True",
        f"tar; {CROP_ONLY}",
        "turboloader",
        packages=("turboloader==2.39.0",),
        options={"antialias": True},
        is_converted=True,
    ),
    "dali": Contender(
        "NVIDIA DALI, CPU only",
        f"{CROP_ONLY}; shuffles within a buffer of 1024",
        packages=("nvidia-dali-cuda130==2.4.0",),
    ),
    "spdl": Contender("SPDL", "decodes, crops and scales with FFmpeg, in YUV", packages=("spdl==0.8.0",)),
    "datago": Contender(
        "datago",
        "no random crop: the middle square, resized; flip and normalise by torch in the consumer",
        packages=("datago==2026.10.1",),
    ),
    "webdataset": Contender(
        "WebDataset",
        f"16 tars; {V2}; shuffles within a buffer of 1000",
        packages=("webdataset==1.0.2",),
        is_converted=True,
    ),
    "litdata": Contender("LitData", f"its own chunks; {V2}", packages=("litdata==0.2.76",), is_converted=True),
    "mosaicml": Contender(
        "MosaicML Streaming", f"MDS shards; {V2}", packages=("mosaicml-streaming==0.13.0",), is_converted=True
    ),
}


class Row:
    """A contender in this run: where it is, what was measured, or why not."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        self.name, self.contender = name, CONTENDERS[name]
        self.module = self.contender.module or name
        environment = arguments.environments / self.module
        self.python = environments.python(environment) if self.contender.packages else Path(sys.executable)
        self.results: list[dict[str, Any]] = []
        self.peaks: list[dict[str, int]] = []
        self.conversion_seconds: float | None = None
        self.unavailable = ""
        self._arguments, self.folder = arguments, folder
        try:
            if self.contender.packages:
                environments.ensure(environment, self.contender.packages)
            if self.contender.is_converted:
                self._convert()
        except Unavailable as error:
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

    def run(self, epochs: int, is_sampled: bool) -> None:
        """One run; a contender that failed once is not run again."""
        if self.unavailable:
            return
        numbers = [str(self.folder), str(self._arguments.threads), str(epochs), json.dumps(self.contender.options)]
        try:
            output, peak = call([str(self.python), str(bench.HERE / "contender.py"), self.module, *numbers], is_sampled)
            result: dict[str, Any] = json.loads(output.splitlines()[-1])
            self._check(result, epochs)
        except Unavailable as error:
            self._give_up(error)
            return
        if is_sampled:
            self.peaks.append(peak | {"imported": result["imported"]["pss"]})
        else:
            result["rate"] = result["images"] / result["seconds"]
            self.results.append(result)
        print(
            f"{self.name:22} {result['images'] / result['seconds']:7.0f} images/s  {bench.processor(result):>5} us of "
            f"processor  first batch {result['first_batch_seconds']:5.2f} s  {result['images']} delivered  "
            f"mean {result['mean']:.3f} deviation {result['deviation']:.3f}  "
            + (f"PSS {peak['Pss'] / 1e6:.0f} MB" if is_sampled else ""),
            flush=True,
        )

    def _check(self, result: dict[str, Any], epochs: int) -> None:
        """A rate is no rate if something else was delivered."""
        expected = epochs * self._arguments.count
        if result["images"] != expected:
            raise Unavailable(f"expected {expected} images, got {result['images']}")
        if not result["form"].startswith(FORM) or not result["form"].endswith("float32"):
            raise Unavailable(f"expected images of {FORM} float32, got {result['form']}")

    def _give_up(self, error: Unavailable) -> None:
        self.unavailable = str(error)
        print(f"{self.name}: {error}", flush=True)

    def middle(self, key: str) -> float:
        """The median of what the runs told."""
        return median(float(result[key]) for result in self.results)


def call(line: list[str], is_sampled: bool = False) -> tuple[str, dict[str, int]]:
    """What a program prints, and the peak of its memory if it is sampled. Nothing that it started outlives it."""
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        peak = processes.Peak(process) if is_sampled else None
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"had not finished after {LIMIT_SECONDS} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # as it should be
                pass
            highest = peak.wait() if peak else {}
    if process.returncode != 0:
        raise Unavailable(f"exit status {process.returncode}: {environments.last_line(errors)}")
    return output, highest


def rate_table(rows: list[Row], threads: int) -> list[str]:
    """How fast, and what exactly."""
    lines = [
        "| loader | images/s | forebay is | delivered per run | mean, deviation | what differs |",
        "|---|---|---|---|---|---|",
    ]
    ours = next((row.middle("rate") for row in rows if row.name == "forebay" and row.results), None)
    for row in rows:
        title, differs = row.contender.title, row.contender.differs or "nothing"
        if row.unavailable:
            lines.append(f"| {title} | did not run: {row.unavailable.replace('|', '/')} | | | | {differs} |")
            continue
        rates = [result["rate"] for result in row.results]
        ratio = "" if ours is None or row.name == "forebay" else f"{ours / median(rates):.2f}x"
        result = row.results[0]
        lines.append(
            f"| {title} | {median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) | {ratio} | {result['images']} | "
            f"{result['mean']:.3f}, {result['deviation']:.3f} | {differs} |"
        )
    return lines


def cost_table(rows: list[Row]) -> list[str]:
    """What it takes."""
    lines = [
        "| loader | first batch | with imports | peak PSS | above imports | of torch's | processor, 1,000 images |",
        "|---|---|---|---|---|---|---|",
    ]
    torch = next((above(row) for row in rows if row.name == "torch" and row.peaks), None)
    for row in rows:
        if row.unavailable or not row.peaks:
            continue
        first = row.middle("first_batch_seconds")
        total = median(result["first_batch_seconds"] + result["imported"]["seconds"] for result in row.results)
        share = "" if torch is None or row.name == "torch" else f"{above(row) / torch:.2f}"
        peak = median(peak["Pss"] for peak in row.peaks)
        used = median(result["processor_seconds"] / result["images"] * 1000 for result in row.results)
        lines.append(
            f"| {row.contender.title} | {first:.2f} s | {total:.2f} s | {peak / 1e6:.0f} MB | "
            f"{above(row) / 1e6:.0f} MB | {share} | {used:.2f} s |"
        )
    return lines


def above(row: Row) -> float:
    """The memory that the loader itself added at its peak."""
    return median(peak["Pss"] - peak["imported"] for peak in row.peaks)


def page(arguments: argparse.Namespace, rows: list[Row], mean_bytes: float) -> str:
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
        f"{arguments.epochs} timed epochs after one that is not. Each run is a process of its own, in turns, with the "
        "peer's own environment over the same torch; medians, and the range in brackets. Mean and deviation are of "
        "all values of epoch 0: a loader that delivered something else would show.",
        "",
        f"What needs another format was converted before, with the JPEGs as they are: {told or 'nothing'}.",
        "",
        *rate_table(rows, arguments.threads),
        "",
        "## What it takes",
        "",
        *cost_table(rows),
        "",
        "The first batch is timed from the call that makes the dataset and the loader; with imports, from the start of",
        "the process. Memory is the highest sum of the proportional set sizes (`Pss` in `/proc/PID/smaps_rollup`: shared",
        "pages are counted once) of the contender's processes, sampled every 20 ms in runs of their own that are not",
        "timed. Most of it is Python with torch and its libraries, whatever the loader; so the second column leaves out",
        "what the process had after all imports, before the loader was made, and the third compares that with torch's",
        "DataLoader (PIL). Peers that map their data file count its pages, too. Processor time is of all processes, in",
        "the timed epochs.",
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
    folder = (arguments.data / f"photos-{arguments.count}").absolute()
    arguments.environments = arguments.environments.absolute()
    photos.ensure(folder, arguments.count)
    sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
    rows = [Row(name, arguments, folder) for name in arguments.contenders]
    # Inherited: some peers start a thread for each processor, whatever they are told.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    for number in range(arguments.rounds):
        print(f"round {number}", flush=True)
        turn = number % len(rows)
        for row in rows[turn:] + rows[:turn]:
            row.run(arguments.epochs, is_sampled=False)
    for _ in range(arguments.memory_rounds):
        print("memory", flush=True)
        for row in rows:
            row.run(1, is_sampled=True)
    text = page(arguments, rows, sum(sizes) / len(sizes))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
