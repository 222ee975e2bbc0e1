"""`make bench-manifest`: how long it takes to make a manifest of a million files, to open it, and to renew it.

Each is a process of its own, in turns, with warm caches; medians and ranges. Writes benchmarks/results/manifest.md.
Fails only if it cannot run, or if what is counted is wrong; a slow result is a result.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import bench
from scan import filesystem, make, resident_kilobytes

HERE = Path(__file__).resolve().parent
BATCH = 256


def draw(path: Path) -> None:
    """A small picture."""
    from PIL import Image

    Image.new("RGB", (64, 48), (40, 80, 120)).save(path, quality=90)


def scan(folder: Path, output: Path, *more: str) -> dict[str, Any]:
    """The command, as users call it."""
    command = [sys.executable, "-m", "forebay", "scan", str(folder), "-o", str(output), "--json", *more]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(ended.stdout))


def once(what: str, source: str) -> dict[str, Any]:
    """Opens the manifest, or scans the folder, and takes the first batch, in this process."""
    import torch  # noqa: F401  # what the first batch would import

    import forebay as fb
    from forebay import transforms

    chain = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    before, started = resident_kilobytes(), time.perf_counter()
    dataset = fb.ImageFolder(manifest=source) if what == "open" else fb.ImageFolder(source)
    opened, kept = time.perf_counter() - started, resident_kilobytes() - before
    dataset.transform = chain
    with fb.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=0) as loader:
        images, _ = next(iter(loader))
        batch = time.perf_counter() - started
    index = dataset._index.memory_bytes
    return {
        "samples": len(dataset), "seconds": opened, "batch": batch, "images": len(images), "index": index,
        "kept": kept * 1024,
    }  # fmt: skip


def run(what: str, source: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", what, "--data", str(source)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))


def touch(folder: Path, count: int) -> list[str]:
    """Gives files other bytes, each an inode of its own."""
    changed = []
    for directory in sorted(folder.iterdir())[:count]:
        path = sorted(directory.iterdir())[1]
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content + b"\0")
        changed.append(str(path.relative_to(folder)))
    return changed


def measure(arguments: argparse.Namespace, folder: Path, output: Path) -> dict[str, list[dict[str, Any]]]:
    """All rounds."""
    rounds: dict[str, list[dict[str, Any]]] = {"scan": [], "renew": [], "folder": [], "open": []}
    for number in range(arguments.rounds):
        output.unlink(missing_ok=True)
        results = {"scan": scan(folder, output), "renew": scan(folder, output)}
        results |= {"folder": run("folder", folder), "open": run("open", output)}
        for name, result in results.items():
            if result["samples"] != arguments.files:
                raise SystemExit(f"{name}: expected {arguments.files} samples, got {result['samples']}")
            rounds[name].append(result)
        print(
            f"round {number}  " + "  ".join(f"{name} {row['seconds']:.3f} s" for name, row in results.items()),
            flush=True,
        )
    rounds["deep"] = [scan(folder, output, "--deep")]
    changed = touch(folder, 10)
    rounds["changed"] = [scan(folder, output, "--deep")]
    (renewed,) = rounds["changed"]
    if (renewed["files_read"], sorted(renewed["changed"])) != (10, sorted(changed)):
        raise SystemExit(f"expected the 10 files that changed to be read, got {renewed['files_read']}")
    return rounds


def page(arguments: argparse.Namespace, rounds: dict[str, list[dict[str, Any]]], kind: str) -> str:
    """The result as Markdown."""

    def cell(name: str, what: str) -> str:
        values = [row[what] for row in rounds[name]]
        spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
        return f"{median(values):.3f}{spread}"

    size, index, kept = (median(row[what] for row in rounds[name]) for name, what in
                         (("scan", "size_bytes"), ("open", "index"), ("open", "kept")))  # fmt: skip
    (deep,), (changed,) = rounds["deep"], rounds["changed"]
    lines = [
        "# Manifests",
        "",
        f"Measured {datetime.date.today()} by `make bench-manifest`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.files:,} files, {arguments.each:,} in each class, on {kind}, in the page cache; "
        f"{arguments.rounds} rounds, each step a process of its own; medians, and the range in brackets. Opening is "
        f"counted from the call, without imports; the first batch is {BATCH} random samples of the whole. "
        f"The load of the machine was {arguments.load:.1f} before and {os.getloadavg()[0]:.1f} after.",
        "",
        "| what | seconds | until the first batch |",
        "|---|---|---|",
        f"| `ImageFolder(manifest=…)` | {cell('open', 'seconds')} | {cell('open', 'batch')} |",
        f"| `ImageFolder(folder)`, which lists | {cell('folder', 'seconds')} | {cell('folder', 'batch')} |",
        f"| `forebay scan`: list, examine, write | {cell('scan', 'seconds')} | |",
        f"| the same again, nothing changed | {cell('renew', 'seconds')} | |",
        f"| `forebay scan --deep`: {deep['files_read']:,} files read | {cell('deep', 'seconds')} | |",
        f"| the same again, 10 files changed: {changed['files_read']} read | {cell('changed', 'seconds')} | |",
        "",
        f"The manifest has {size / 1e6:.1f} MB ({size / arguments.files:.1f} bytes a row). The index takes "
        f"{index / arguments.files:.1f} bytes a sample as it counts itself, of which the names of the files are "
        f"{arguments.name_bytes:.1f}; the process grows by {kept / arguments.files:.1f} while it opens it.",
        "",
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="how long it takes to make, open and renew a manifest")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=1000, help="files of a class")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the tree is made, and removed again")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "manifest.md")
    parser.add_argument("--one", choices=["open", "folder"], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    if arguments.one:
        print(json.dumps(once(arguments.one, str(arguments.data))))
        return
    arguments.load = os.getloadavg()[0]
    arguments.data.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="manifest-", dir=arguments.data))
    try:
        folder = work / "train"
        make(folder, arguments.files, arguments.each, draw)
        names = [name for directory in sorted(folder.iterdir())[:10] for name in os.listdir(directory)]
        arguments.name_bytes = sum(map(len, names)) / len(names)
        text = page(arguments, measure(arguments, folder, work / "train.parquet"), filesystem(folder))
    finally:
        shutil.rmtree(work)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
