"""`make bench-datasets`: samples/s of forebay's DataLoader and of torch's, on datasets that are Python code.

The same dataset, the same number of workers; each run is a process of its own, in turns, and medians are compared.
Writes benchmarks/results/datasets.md. Fails only if it cannot run, or if the two did not deliver the same; a slow
result is a result.
"""

import argparse
import datetime
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import bench
import numpy as np
import photos

HERE = Path(__file__).resolve().parent
LOADERS = {
    "forebay": "forebay DataLoader",
    "torch": "torch DataLoader (fork)",
    "spawn": 'torch DataLoader, `multiprocessing_context="spawn"`',
}
WORKLOADS = {
    "text": "text files of 2 KB, one read per sample",
    "images": "JPEG by Pillow, resized to 224x224 float32",
    "large": "tensors of 8 MB",
    "trivial": "some 20 us of Python per sample",
}
BATCH = {"text": 32, "images": 32, "large": 1, "trivial": 64}
COUNT = {"text": 4000, "images": 320, "large": 120, "trivial": 20_000}
EPOCHS = {"text": 5, "images": 2, "large": 5, "trivial": 3}


class Text:
    """As in many a first Dataset class: a list of paths, and `open` in `__getitem__`."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, int]:
        with open(self.paths[index], encoding="utf-8") as file:
            return file.read(), index


class Images:
    """Opened, resized and turned into floats by Pillow and NumPy."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        with Image.open(self.paths[index]) as picture:
            small = picture.convert("RGB").resize((224, 224))
        return np.asarray(small, np.float32).transpose(2, 0, 1) / 255, index


class Large:
    """Feature maps, volumes, clips: much to hand over, and little to do."""

    def __len__(self) -> int:
        return COUNT["large"]

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        return torch.full((2, 1024, 1024), float(index)), index


class Trivial:
    """What is left is the loader."""

    def __len__(self) -> int:
        return COUNT["trivial"]

    def __getitem__(self, index: int) -> tuple[float, int]:
        # Work, not time: the clock also runs while others have the processor.
        return sum(range(1500)) + index / 2, index


def ensure_texts(folder: Path) -> None:
    """Makes the text files, if they are not there."""
    if folder.exists():
        return
    making = folder.with_name(folder.name + "-making")
    making.mkdir(parents=True, exist_ok=True)
    for number in range(COUNT["text"]):
        (making / f"{number:06}.txt").write_text(f"line {number} of a small file\n" * 80, "utf-8")
    making.rename(folder)


def made(workload: str, data: Path) -> Any:
    """The dataset."""
    if workload == "text":
        return Text(data / "texts")
    if workload == "images":
        return Images(data / f"photos-{COUNT['images']}")
    return Large() if workload == "large" else Trivial()


def total(batch: Any) -> int:
    """Of all that was delivered, whatever the order."""
    content, indices = batch
    words = sum(indices.tolist())
    if isinstance(content, tuple | list):
        return int(words + sum(zlib.crc32(text.encode()) for text in content))
    view = content.numpy().reshape(-1)
    return int(words + int(view.view(np.uint32 if view.itemsize == 4 else np.uint64).sum(dtype=np.uint64)))


def tree() -> list[int]:
    """The process itself, and all that come from it."""
    parents: dict[int, list[int]] = {}
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(process))
    found = [os.getpid()]
    for process in found:
        found += parents.get(process, [])
    return found


def processor_seconds() -> float:
    """Of the whole tree, and of those in it that have ended."""
    ticks = 0
    for process in tree():
        try:
            fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_megabytes() -> float:
    """The memory of the whole tree; pages that several share count once."""
    kilobytes = 0
    for process in tree():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text("utf-8").splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def one(name: str, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One loader over one dataset, in this process."""
    import torch  # both need it, and its import is not what is measured

    loader_class: Callable[..., Any] = torch.utils.data.DataLoader
    options: dict[str, Any] = {"multiprocessing_context": "spawn"} if name == "spawn" else {}
    if name == "forebay":
        import forebay

        loader_class = forebay.DataLoader
    dataset = made(workload, arguments.data)
    torch.manual_seed(0)
    began = time.perf_counter()
    loader = loader_class(
        dataset, BATCH[workload], shuffle=True, num_workers=arguments.workers, persistent_workers=True, **options
    )
    passed = iter(loader)
    batch = next(passed)
    told: dict[str, Any] = {"first": time.perf_counter() - began}
    if name == "spawn":
        return told
    words, delivered = total(batch), len(batch[1])
    for batch in passed:
        words, delivered = words + total(batch), delivered + len(batch[1])
    started, processor, samples = time.perf_counter(), processor_seconds(), 0
    for _ in range(EPOCHS[workload]):
        for _, indices in loader:
            samples += len(indices)
    told |= {"seconds": time.perf_counter() - started, "processor": processor_seconds() - processor}
    told |= {"samples": samples, "delivered": delivered, "hash": f"{words % 2**64:016x}", "pss": pss_megabytes()}
    return told


def measure(arguments: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All rounds, in turns."""
    runs = [(name, workload) for workload in arguments.workloads for name in ("forebay", "torch")]
    runs += [("spawn", "trivial")] if "trivial" in arguments.workloads else []
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {run: [] for run in runs}
    script = [sys.executable, str(HERE / "datasets.py"), "--data", str(arguments.data)]
    for number in range(arguments.rounds):
        for name, workload in bench.drawn(runs, number):
            line = [*script, "--workers", str(arguments.workers), "--one", name, workload]
            result = bench.run(line)
            rounds[name, workload].append(result)
            rate = "" if name == "spawn" else f"{result['samples'] / result['seconds']:9.0f} samples/s"
            print(f"round {number}  {workload:8} {name:8} {rate}  first after {result['first']:.2f} s", flush=True)
    for workload in arguments.workloads:
        told = {(run["delivered"], run["hash"]) for name in ("forebay", "torch") for run in rounds[name, workload]}
        if len(told) != 1:
            raise SystemExit(f"{workload}: expected the same from both loaders in every round, got {sorted(told)}")
    return rounds


def middle(results: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    """The median."""
    return median(value(result) for result in results)


def page(arguments: argparse.Namespace, rounds: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    lines = [
        "# Python datasets",
        "",
        f"Measured {datetime.date.today()} by `make bench-datasets`. {bench.machine()}. {bench.versions()}.",
        "",
        f"The same Dataset class, shuffled, {arguments.workers} worker processes that stay; {arguments.rounds} rounds, "
        "each run in a process of its own, in turns; medians, and the range in brackets. The first epoch is counted "
        "and hashed, those after it are timed. Processor time and memory (PSS) are those of all processes together.",
        "",
        "| dataset | loader | samples/s | forebay is | processor, a sample | first batch | PSS | delivered, hash |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def rate(result: dict[str, Any]) -> float:
        return float(result["samples"] / result["seconds"])

    for (name, workload), results in rounds.items():
        first = f"{middle(results, lambda result: result['first']):.2f} s"
        if name == "spawn":
            lines.append(f"| {WORKLOADS[workload]} | {LOADERS[name]} | | | | {first} | | |")
            continue
        rates = [rate(result) for result in results]
        ratio = ""
        if name == "torch":
            ratio = f"{middle(rounds['forebay', workload], rate) / median(rates):.2f}x"
        used = middle(results, lambda result: result["processor"] / result["samples"] * 1e6)
        lines.append(
            f"| {WORKLOADS[workload]} | {LOADERS[name]} | {median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) | "
            f"{ratio} | {used:.0f} us | {first} | {middle(results, lambda result: result['pss']):.0f} MB | "
            f"{results[0]['delivered']}, `{results[0]['hash']}` |"
        )
    lines += [
        "",
        "The hash is a sum over all that was delivered, whatever its order: both loaders delivered every sample once,",
        "and the same. The first batch is counted from the making of the loader; imports come before it. What a fork",
        "saves there it takes from the training process: its threads, locks and CUDA context are not fit to be forked,",
        "which is why forebay starts fresh interpreters, as spawn does.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description="samples/s of forebay's and torch's DataLoader on Python datasets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the files are, or will be")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "datasets.md")
    parser.add_argument("--one", nargs=2, metavar=("LOADER", "DATASET"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    ensure_texts(arguments.data / "texts")
    photos.ensure(arguments.data / f"photos-{COUNT['images']}", COUNT["images"])
    text = page(arguments, measure(arguments))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
