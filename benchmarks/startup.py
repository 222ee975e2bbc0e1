"""Seconds to the first batch of Python datasets, and the memory of all processes: forebay beside torch's `fork`.

    make bench-startup

Each run is a process of its own, in turns, and medians are compared. Writes benchmarks/results/startup.md. Fails only
if it cannot run, or if two runs did not deliver the same; a slow result is a result.
"""

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import bench
import processes

HERE = Path(__file__).resolve().parent
WORKERS, BATCH = 4, 8
LOADERS = {"torch": "torch DataLoader (fork)", "forebay": "forebay DataLoader"}
DATASETS = {"light": "imports torch", "heavy": "imports torch, torchvision and pandas"}
# The loader is used at once; was made a second before; is used at once, and FOREBAY_EARLY_WORKERS is set.
MADE_BEFORE_SECONDS = {"cold": 0.0, "ready": 1.0, "early": 0.0}
RUNS = [
    f"{loader}-{dataset}-{when}"
    for dataset in DATASETS
    for when in MADE_BEFORE_SECONDS
    for loader in LOADERS
    if (loader, when) != ("torch", "early")
]


def one(name: str) -> dict[str, Any]:
    """One loader, in this process: two passes."""
    loader_name, dataset_name, when = name.split("-")
    if when == "early":
        os.environ["FOREBAY_EARLY_WORKERS"] = "1"
        import forebay  # before what takes long
    import heavy
    import light
    import torch

    import forebay

    dataset: Any = light.Light() if dataset_name == "light" else heavy.Heavy()
    loader_class: Any = torch.utils.data.DataLoader if loader_name == "torch" else forebay.DataLoader
    began = time.perf_counter()
    loader = loader_class(dataset, BATCH, num_workers=WORKERS)
    made = time.perf_counter() - began
    time.sleep(MADE_BEFORE_SECONDS[when])
    told: dict[str, Any] = {"made": made, "total": 0}
    for number in (1, 2):
        began = time.perf_counter()
        batches = iter(loader)
        first = next(batches)
        told[f"first_{number}"] = time.perf_counter() - began
        if number == 2:
            family = processes.family(os.getpid())
            told |= {"pss": sum(processes.pss(process)[0] for process in family), "processes": len(family)}
        told["total"] += int(first.sum()) + sum(int(batch.sum()) for batch in batches)
    return told


def measure(rounds: int) -> dict[str, list[dict[str, Any]]]:
    """All rounds, in turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for number in range(rounds):
        for name in bench.drawn(RUNS, number):
            told = bench.run([sys.executable, str(HERE / "startup.py"), "--one", name])
            found[name].append(told)
            said = f"first {told['first_1']:.2f} s, second pass {told['first_2']:.2f} s, {told['pss'] / 1e6:.0f} MB"
            print(f"round {number}  {name:20} {said}", flush=True)
    totals = {run["total"] for runs in found.values() for run in runs}
    if len(totals) != 1:
        raise SystemExit(f"expected the same from every loader in every round, got {sorted(totals)}")
    return found


def spread(values: list[float]) -> str:
    """The median, and the range in brackets."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def import_seconds() -> float:
    """What `import torch` takes in a fresh interpreter."""
    script = "import json, time; began = time.perf_counter(); import torch; "
    script += "print(json.dumps({'seconds': time.perf_counter() - began}))"
    return median(bench.run([sys.executable, "-c", script])["seconds"] for _ in range(5))


def page(rounds: int, found: dict[str, list[dict[str, Any]]], torch_seconds: float) -> str:
    """The result as Markdown."""
    lines = [
        "# Time to the first batch of Python datasets",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/startup.py`. {bench.machine()}.",
        "",
        f"{WORKERS} workers, batches of {BATCH}. {rounds} rounds, each run in a process of its own, in turns; medians, "
        "and the range in brackets. *First batch* is from `iter(loader)` to the first batch, of a loader that was made "
        "just before, of one that was made a second before, and of one that was made just before with "
        "`FOREBAY_EARLY_WORKERS=1` and forebay imported before torch; *second pass* is the same for the pass "
        "after it. *PSS* is that of all processes in the second pass. "
        f"`import torch` takes {torch_seconds:.2f} s here.",
        "",
        "| dataset | loader | first batch, s | made a second before, s | started at import, s | second pass, s | "
        "PSS, MB | to torch's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset, described in DATASETS.items():
        for loader, label in LOADERS.items():
            cold, ready = found[f"{loader}-{dataset}-cold"], found[f"{loader}-{dataset}-ready"]
            early = [run["first_1"] for run in found.get(f"{loader}-{dataset}-early", [])]
            memory = median(run["pss"] for run in cold + ready)
            beside = median(run["pss"] for kind in ("cold", "ready") for run in found[f"torch-{dataset}-{kind}"])
            lines.append(
                f"| {dataset}: {described} | {label} | {spread([run['first_1'] for run in cold])} | "
                f"{spread([run['first_1'] for run in ready])} | {spread(early) if early else ''} | "
                f"{spread([run['first_2'] for run in cold + ready])} | "
                f"{memory / 1e6:.0f} | {'' if loader == 'torch' else f'{memory / beside:.2f}'} |"
            )
    lines += [
        "",
        "The aims are a first batch within 1.2 s, within 0.5 s where the loader was made a second before, and 1.15 "
        "times torch's memory. The training process is never forked, so workers come from another interpreter, which "
        "has to import torch once: a first batch cannot be earlier than that, unless the import has begun before, and "
        "the memory of that interpreter is on top of torch's ([decision "
        "0040](../../docs/decisions/0040-template.md)).",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description="seconds to the first batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "startup.md")
    parser.add_argument("--one", choices=RUNS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one)))
        return
    text = page(arguments.rounds, measure(arguments.rounds), import_seconds())
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
