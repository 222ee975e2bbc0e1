"""Samples/s of a dataset that is nothing but Python code, on a Python without a GIL: threads, processes, torch.

Run by the free-threaded interpreter itself, with torch and forebay in it (`make test-freethreaded` makes one):

    PYTHONPATH=python target/freethreaded/bin/python benchmarks/freethreaded.py

Each run is a process of its own, in turns, and medians are compared. Writes benchmarks/results/freethreaded.md. Fails
only if it cannot run, or if two runs did not deliver the same; a slow result is a result.
"""

import argparse
import datetime
import hashlib
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import bench
import processes

HERE = Path(__file__).resolve().parent
BATCH = 16
# (loader, workers): what the others are compared with comes first.
RUNS = {
    "forebay-1": ("forebay DataLoader", 1),
    "forebay-2": ("forebay DataLoader", 2),
    "processes-1": ('forebay DataLoader, `workers="processes"`', 1),
    "processes-2": ('forebay DataLoader, `workers="processes"`', 2),
    "torch-1": ("torch DataLoader (fork)", 1),
    "torch-2": ("torch DataLoader (fork)", 2),
}


class Counting:
    """About a millisecond of the interpreter's own work, which would hold a GIL from its beginning to its end."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        value = index
        for _ in range(8000):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        return value, index


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One loader, in this process: an epoch that is counted and hashed, then those that are timed."""
    import torch

    import forebay

    kind, _, workers = name.partition("-")
    loader_class: Any = torch.utils.data.DataLoader if kind == "torch" else forebay.DataLoader
    options: dict[str, Any] = {"workers": "processes"} if kind == "processes" else {}
    loader = loader_class(
        Counting(arguments.count), BATCH, num_workers=int(workers), persistent_workers=True, **options
    )
    digest, delivered = hashlib.blake2b(digest_size=8), 0
    for values, indices in loader:
        digest.update(values.numpy().tobytes() + indices.numpy().tobytes())
        delivered += len(indices)
    started, processor, samples = time.perf_counter(), processes.processor_seconds(), 0
    for _ in range(arguments.epochs):
        for _, indices in loader:
            samples += len(indices)
    seconds, processor = time.perf_counter() - started, processes.processor_seconds() - processor
    made_by = loader.stats()["workers"]["kind"] if kind != "torch" else "processes"
    is_free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return {
        "rate": samples / seconds,
        "at_once": processor / seconds,
        "processor": processor / samples,
        "delivered": delivered,
        "hash": digest.hexdigest(),
        "made_by": made_by,
        "is_free": is_free,
    }


def measure(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All rounds, in turns."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    script = [sys.executable, str(HERE / "freethreaded.py")]
    options = ["--count", str(arguments.count), "--epochs", str(arguments.epochs)]
    for number in range(arguments.rounds):
        for name in bench.drawn(RUNS, number):
            told = bench.run([*script, *options, "--one", name])
            rounds[name].append(told)
            print(f"round {number}  {name:12} {told['rate']:7.0f} samples/s  {told['at_once']:.2f} at once", flush=True)
    delivered = {(run["delivered"], run["hash"]) for runs in rounds.values() for run in runs}
    if len(delivered) != 1:
        raise SystemExit(f"expected the same from every loader in every round, got {sorted(delivered)}")
    if any(run["made_by"] != "threads" for run in rounds["forebay-2"]):
        raise SystemExit("expected threads where there is no GIL: is this Python free-threaded?")
    return rounds


def page(arguments: argparse.Namespace, rounds: dict[str, list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    python = sys.version.split(" (")[0]
    lines = [
        "# A Python without a GIL",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/freethreaded.py`. {bench.machine()}. Python {python}.",
        "",
        f"A dataset of {arguments.count} samples, each about a millisecond of pure Python; batches of {BATCH}; workers "
        f"that stay. {arguments.rounds} rounds, each run in a process of its own, in turns; medians, and the range in "
        f"brackets. The first epoch is counted and hashed, {arguments.epochs} after it are timed. *At once* is how "
        "many processors were in use on average, and *processor* what a sample cost of them, all processes together.",
        "",
        "| loader | workers | they are | samples/s | to one worker | at once | processor, a sample | delivered, hash |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in rounds.items():
        label, workers = RUNS[name]
        rates = [run["rate"] for run in runs]
        alone = median(run["rate"] for run in rounds[name.partition("-")[0] + "-1"])
        lines.append(
            f"| {label} | {workers} | {runs[0]['made_by']} | "
            f"{median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f}) | "
            f"{'' if workers == 1 else f'{median(rates) / alone:.2f}x'} | "
            f"{median(run['at_once'] for run in runs):.2f} | {median(run['processor'] for run in runs) * 1e6:.0f} us | "
            f"{runs[0]['delivered']}, `{runs[0]['hash']}` |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description="samples/s on a Python without a GIL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=480)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "freethreaded.md")
    parser.add_argument("--one", choices=list(RUNS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    text = page(arguments, measure(arguments))
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
