"""`make bench-scan`: how long it takes to know a folder of a million files.

forebay's and torchvision's ImageFolder, `find`, os.walk and parallel walks, each in a process of its own, in turns,
with warm caches; medians are compared. Writes benchmarks/results/scan.md. Fails only if it cannot run or if two of them
do not agree about the number of files; a slow result is a result.
"""

import argparse
import datetime
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import bench

HERE = Path(__file__).resolve().parent
NAMES = {
    "forebay": "forebay ImageFolder",
    "isolated": "the same, listed by reader processes",
    "torchvision": "torchvision ImageFolder",
    "walk": "a parallel walk that only counts",
    "keep": "a parallel walk that keeps the paths, unsorted",
    "find": "`find -type f`",
    "os.walk": "Python's os.walk, counting",
}


def make(folder: Path, files: int, each: int, draw: Callable[[Path], None] = Path.touch) -> None:
    """The tree: names as in ImageNet. Hard links of one file per class, an empty one if not drawn: few inodes."""
    print(f"making {files} files below {folder}", flush=True)
    for number in range(-(-files // each)):
        directory = folder / f"n{number:08}"
        directory.mkdir(parents=True)
        first = directory / f"n{number:08}_0.JPEG"
        draw(first)
        for other in range(1, min(each, files - number * each)):
            # Not in the order of their names: no file system gives them sorted.
            os.link(first, directory / f"n{number:08}_{other * 7919 % 100_003}.JPEG")


def peak_kilobytes() -> int:
    """The most memory this process has had resident since that was last forgotten."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def resident_kilobytes() -> int:
    """The memory this process has resident now."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def scan(name: str, folder: str) -> dict[str, Any]:
    """One scan, in this process."""
    if name in ("forebay", "isolated"):
        os.environ["FOREBAY_ISOLATE"] = "always" if name == "isolated" else "never"
        from forebay import ImageFolder
    elif name == "torchvision":
        from torchvision.datasets import ImageFolder
    # Forgets the peak: importing torch takes more than any scan.
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    before, processor, started = resident_kilobytes(), time.process_time(), time.perf_counter()
    if name == "os.walk":
        files = sum(len(names) for _, _, names in os.walk(folder))
        kept: object = None
    else:
        kept = ImageFolder(folder)
        files = len(kept)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    peak, kept_kilobytes = peak_kilobytes() - before, resident_kilobytes() - before
    told = {"files": files, "seconds": seconds, "processor": processor, "peak": peak, "kept": kept_kilobytes}
    if name in ("forebay", "isolated"):
        told["index"] = kept._index.memory_bytes  # type: ignore[union-attr]
    return told


def run(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One contender, once."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", name, "--data", str(folder)]
    if name in ("walk", "keep"):
        command = [str(arguments.walk), str(folder), str(arguments.threads), *(["keep"] if name == "keep" else [])]
    elif name == "find":
        command = ["find", str(folder), "-type", "f", "-printf", "."]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    seconds = time.perf_counter() - started
    result = {"files": len(said), "seconds": seconds} if name == "find" else json.loads(said.splitlines()[-1])
    if name in ("walk", "keep", "find"):
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result["processor"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rounds of all contenders, in turns."""
    run("walk", arguments, folder)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.contenders}
    for number in range(arguments.rounds):
        for name in bench.drawn(arguments.contenders, number):
            result = run(name, arguments, folder)
            if result["files"] != arguments.files:
                raise SystemExit(f"{name}: expected {arguments.files} files, got {result['files']}")
            rounds[name].append(result)
            print(f"round {number}  {name:12}  {result['seconds']:7.3f} s", flush=True)
    return rounds


def page(arguments: argparse.Namespace, rounds: dict[str, list[dict[str, Any]]], kind: str) -> str:
    """The result as Markdown."""

    def middle(name: str, what: str) -> float:
        return median(result[what] for result in rounds[name])

    lines = [
        "# Scanning a folder",
        "",
        f"Measured {datetime.date.today()} by `make bench-scan`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.files:,} files, {arguments.each:,} in each class, on {kind}, in the page cache; "
        f"{arguments.rounds} rounds. Each run is a process of its own; medians, and the range in brackets. The "
        f"parallel walks have {arguments.threads} threads, as forebay has here. Imports are not counted, nor is what "
        "reader processes take. Memory is what the process grows by.",
        "",
        "| what | seconds | forebay takes | processor seconds | peak memory | kept memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, results in rounds.items():
        times = [result["seconds"] for result in results]
        ratio = middle("forebay", "seconds") / median(times) if name != "forebay" and "forebay" in rounds else None
        memory = (
            f"{middle(name, 'peak') / 1000:.0f} MB | {middle(name, 'kept') / 1000:.0f} MB"
            if "peak" in results[0]
            else " | "
        )
        lines.append(
            f"| {NAMES[name]} | {median(times):.3f} ({min(times):.3f} to {max(times):.3f}) | "
            f"{'' if ratio is None else f'{ratio:.2f} of it'} | {middle(name, 'processor'):.2f} | {memory} |"
        )
    if "forebay" in rounds:
        index, kept = middle("forebay", "index"), middle("forebay", "kept")
        lines += [
            "",
            f"forebay's index takes {index / arguments.files:.1f} bytes a sample as it counts itself, and "
            f"{kept * 1024 / arguments.files:.1f} as the process grows: the file's name, four bytes, and each "
            "directory once. torchvision's has a tuple and a string for each sample.",
        ]
    return "\n".join([*lines, ""])


def filesystem(folder: Path) -> str:
    """What the folder lies on."""
    told = subprocess.run(["df", "--output=fstype", str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return told.stdout.splitlines()[-1]


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="how long it takes to know a folder")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=1000, help="files of a class")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=min(max(len(os.sched_getaffinity(0)), 4), 16))
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the tree is made, and removed again")
    parser.add_argument("--contenders", nargs="+", choices=list(NAMES), default=list(NAMES))
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--walk", type=Path, default=target / "release" / "examples" / "walk")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "scan.md")
    parser.add_argument("--one", choices=list(NAMES), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    if arguments.one:
        print(json.dumps(scan(arguments.one, str(arguments.data))))
        return
    arguments.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scan-", dir=arguments.data))
    try:
        make(folder, arguments.files, arguments.each)
        text = page(arguments, measure(arguments, folder), filesystem(folder))
    finally:
        shutil.rmtree(folder)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
