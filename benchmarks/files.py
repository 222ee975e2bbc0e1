"""`make bench-files`: samples/s of forebay's datasets of files and of torch's DataLoader with the same reads.

100,000 small text files and `.npy` arrays of 1 MB, also by a manifest without and with `verify="checksum"`, and
pictures with `cache="decoded"`, `cache="memory"` and none. Each run is a process of its own, in turns. Writes
benchmarks/results/files.md. Fails only if it cannot run, or if two contenders did
not deliver the same; a slow result is a result.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import bench
import numpy
import photos

TEXTS, ARRAYS, PICTURES = 100_000, 400, 1500
BATCH = {"text": 256, "arrays": 16, "resized": 64, "cropped": 64}
EPOCHS = 2
TITLES = {
    "text": f"{TEXTS:,} text files of 200 bytes, in 100 directories",
    "arrays": f"{ARRAYS} .npy files of 1 MB (256x1024 float32)",
    "resized": f"{PICTURES} JPEGs of 500x375: Resize(256), CenterCrop(224), ToTensor",
    "cropped": f"{PICTURES} JPEGs of 500x375: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor",
}
NAMES = {
    ("text", "forebay"): "forebay TextFiles",
    ("text", "manifest"): "forebay TextFiles by a manifest",
    ("text", "verified"): 'the same, verify="checksum"',
    ("text", "torch"): "torch DataLoader, `open(path).read()` in `__getitem__`",
    ("arrays", "forebay"): "forebay NpyFiles",
    ("arrays", "manifest"): "forebay NpyFiles by a manifest",
    ("arrays", "verified"): 'the same, verify="checksum"',
    ("arrays", "torch"): "torch DataLoader, `numpy.load` in `__getitem__`",
    ("resized", "decoded"): 'forebay ImageFiles, cache="decoded"',
    ("resized", "memory"): 'the same, cache="memory"',
    ("resized", "forebay"): "the same without a cache",
    ("cropped", "decoded"): 'forebay ImageFiles, cache="decoded"',
    ("cropped", "memory"): 'the same, cache="memory"',
    ("cropped", "forebay"): "the same without a cache",
}

PIPELINES = {
    "resized": lambda t: [t.Resize(256), t.CenterCrop(224)],
    "cropped": lambda t: [t.RandomResizedCrop(224), t.RandomHorizontalFlip()],
}


class Texts:
    """As in many a first Dataset class: a list of paths, and `open` in `__getitem__`."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.txt"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        with open(self.paths[index], encoding="utf-8", newline="") as file:
            return file.read()


class Arrays(Texts):
    """The same with `numpy.load`."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.npy"))

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(numpy.load(self.paths[index]))


def ensure(data: Path) -> None:
    """Makes the files, if they are not there."""
    photos.ensure(data / f"photos-{PICTURES}", PICTURES)
    for name, count, write in (("files-text", TEXTS, write_text), ("files-npy", ARRAYS, write_array)):
        folder = data / name
        if folder.exists():
            continue
        making = folder.with_name(name + "-making")
        for number in range(count):
            directory = making / f"{number % 100:02}"
            directory.mkdir(parents=True, exist_ok=True)
            write(directory / f"{number:06}", number)
        making.rename(folder)
    for name, extension in (("files-text", ".txt"), ("files-npy", ".npy")):
        # Of files that were there already, nothing is read again.
        scan = ["scan", str(data / name), "-o", str(data / f"{name}.parquet"), "--extension", extension, "--deep"]
        subprocess.run([sys.executable, "-m", "forebay", *scan], check=True)


def write_text(path: Path, number: int) -> None:
    """One text."""
    path.with_suffix(".txt").write_text(f"line {number:06} of a small file\n" * 7, "utf-8")


def write_array(path: Path, number: int) -> None:
    """One array."""
    numpy.save(path, numpy.random.default_rng(number).random((256, 1024), dtype=numpy.float32))


def made(workload: str, loader: str, data: Path, workers: int) -> Any:
    """The loader."""
    import torch

    import forebay as fb
    from forebay import transforms

    options: dict[str, Any] = {"batch_size": BATCH[workload], "shuffle": True, "num_workers": workers}
    if workload in PIPELINES:
        pipeline = transforms.Compose([*PIPELINES[workload](transforms), transforms.ToTensor()])
        cache = {} if loader == "forebay" else {"cache": loader}
        return fb.DataLoader(fb.ImageFiles(data / f"photos-{PICTURES}", pipeline, **cache), seed=0, **options)
    folder = data / ("files-text" if workload == "text" else "files-npy")
    if loader != "torch":
        kind = fb.TextFiles if workload == "text" else fb.NpyFiles
        if loader == "forebay":
            return fb.DataLoader(kind(folder), **options)
        verify = "checksum" if loader == "verified" else None
        return fb.DataLoader(kind(manifest=folder.with_suffix(".parquet"), verify=verify), **options)
    dataset = Texts(folder) if workload == "text" else Arrays(folder)
    return torch.utils.data.DataLoader(dataset, persistent_workers=True, **options)


def digest(batch: Any) -> int:
    """Of all that is in a batch, whatever the order of its samples."""
    if isinstance(batch, list):
        return sum(zlib.crc32(text.encode()) for text in batch)
    return int(batch.numpy().view(numpy.uint32).sum(dtype=numpy.uint64))


def contend(workload: str, loader: str, data: Path, workers: int) -> dict[str, Any]:
    """One contender: a first epoch and later ones, each timed, then one that is hashed."""
    batches = made(workload, loader, data, workers)
    started = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    first = count / (time.perf_counter() - started)
    started, delivered = time.perf_counter(), 0
    for _ in range(EPOCHS):
        delivered += sum(len(batch) for batch in batches)
    seconds = time.perf_counter() - started
    hashed = sum(digest(batch) for batch in batches)
    return {"images": delivered, "seconds": seconds, "hash": hashed % 2**64, "count": count, "first": first}


def measure(arguments: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All rounds of all contenders, in turns, in an order that is drawn."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {name: [] for name in NAMES}
    for number in range(arguments.rounds):
        for workload, loader in bench.drawn(NAMES, number):
            line = [sys.executable, __file__, "--run", workload, loader, "--data", str(arguments.data)]
            result = bench.run([*line, "--workers", str(arguments.workers)])
            result["rate"] = result["images"] / result["seconds"]
            rounds[workload, loader].append(result)
            print(f"round {number}  {workload:9} {loader:8} {result['rate']:8.0f} samples/s", flush=True)
    return rounds


def page(arguments: argparse.Namespace, rounds: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    lines = [
        "# Datasets of files",
        "",
        f"Measured {datetime.date.today()} by `make bench-files`. {bench.machine()}. {bench.versions()}.",
        "",
        f"Files in the page cache, shuffled, {arguments.workers} threads or worker processes, {arguments.rounds} "
        f"rounds of a first epoch, {EPOCHS} later ones and one that is hashed and not timed. Each run is a process of "
        "its own; medians, and the range in brackets. The ratio is the median of the rounds' ratios, and in brackets "
        "the interval that holds it with a probability of 95 % (with fewer than six rounds: all that was seen).",
        "",
    ]
    for workload, title in TITLES.items():
        lines += [
            f"## {title}",
            "",
            "| loader | samples/s, later epochs | first epoch | the first row is | delivered | hash |",
            "|---|---|---|---|---|---|",
        ]
        names = [name for name in NAMES if name[0] == workload]
        for name in names:
            results = rounds[name]
            ratio = "" if name == names[0] else bench.beside(rounds[names[0]], results)
            told = f"{results[0]['images']} | {results[0]['hash']:016x}"
            rates = f"{bench.spread(results, 'rate')} | {bench.spread(results, 'first')}"
            lines.append(f"| {NAMES[name]} | {rates} | {ratio} | {told} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Runs all contenders, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(contend(*arguments.run, arguments.data, arguments.workers)))
        return
    ensure(arguments.data)
    rounds = measure(arguments)
    for workload in TITLES:
        told = {(one["hash"], one["count"]) for name in NAMES if name[0] == workload for one in rounds[name]}
        if len(told) != 1:
            raise SystemExit(f"{workload}: expected the same from all, got {told}")
    (bench.HERE / "results" / "files.md").write_text(page(arguments, rounds), "utf-8")


if __name__ == "__main__":
    main()
