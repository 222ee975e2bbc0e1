"""What guarding against failures costs when nothing fails, and when 5 % of the files are damaged; writes
benchmarks/results/policies.md.

The loaders, each in a process of its own, take turns epoch by epoch (rivals.py). Processes differ, too (where their
memory lies, for one thing), so this is done with many sets of them; a set's result is the median of its epochs' ratios,
and the interval is that of the sets' medians.
"""

import argparse
import datetime
import itertools
import json
from pathlib import Path
from statistics import median
from typing import Any

import bench
import photos
from rivals import Rival

RAISE = '`on_error="raise"`'
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    RAISE: ("", {"on_error": "raise"}),
    '`on_error="replace"`, no file is damaged': ("", {"on_error": "replace"}),
    '`on_error="replace"`, 5 % of the files are damaged (known since epoch 0)': ("-damaged", {"on_error": "replace"}),
}


def ratios(told: list[dict[str, list[dict[str, Any]]]], name: str, what: str) -> str:
    """What a policy takes of what "raise" takes: the median of the sets' medians, with its interval."""
    each = [
        median(our[what] / their[what] for our, their in zip(epochs[name], epochs[RAISE], strict=True))
        for epochs in told
    ]
    low, high = bench.interval(each)
    return f"{median(each):.4f} ({low:.4f} to {high:.4f})"


def compete(arguments: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The epochs of one set of processes; the order changes from turn to turn."""
    rivals = {}
    for name, (suffix, options) in POLICIES.items():
        pictures = folder.with_name(folder.name + suffix)
        line = bench.command("forebay", Path(), pictures, arguments.threads, "-")
        rivals[name] = Rival([*line, json.dumps(options)])
    for rival in rivals.values():
        rival.wait_ready()
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in rivals}
    for order in itertools.islice(itertools.cycle(itertools.permutations(rivals)), arguments.epochs):
        for name in order:
            told[name].append(rivals[name].deliver())
    for rival in rivals.values():
        rival.close()
    return told


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="what guarding against failures costs")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--sets", type=int, default=16, help="sets of processes")
    parser.add_argument("--epochs", type=int, default=24, help="timed epochs of each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "policies.md")
    return parser.parse_args()


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    photos.ensure_damaged(folder.with_name(folder.name + "-damaged"), folder)
    told: list[dict[str, list[dict[str, Any]]]] = []
    for number in range(arguments.sets):
        told.append(compete(arguments, folder))
        for name, epochs in told[-1].items():
            used = median(epoch["processor_seconds"] / epoch["images"] for epoch in epochs) * 1e6
            print(f"set {number}  {used:6.1f} us of processor an image  {name}", flush=True)
    lines = [
        "# Policies",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/policies.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; {arguments.threads} threads; {arguments.sets} sets of processes that "
        f"take turns for {arguments.epochs} epochs each, after one that is not timed. Medians; in brackets the "
        "interval that holds the median of such sets with a probability of 95 %.",
        "",
        '| policy | images/s | seconds, of those of "raise" | processor, an image | of that of "raise" | delivered |',
        "|---|---|---|---|---|---|",
    ]
    for name in POLICIES:
        compared = ["", ""]
        if name != RAISE:
            compared = [ratios(told, name, what) for what in ("seconds", "processor_seconds")]
        results = [epoch for epochs in told for epoch in epochs[name]]
        rate = median(result["images"] / result["seconds"] for result in results)
        used = median(result["processor_seconds"] / result["images"] for result in results) * 1e6
        delivered = sum(result["images"] for result in results)
        lines.append(f"| {name} | {rate:.0f} | {compared[0]} | {used:.1f} us | {compared[1]} | {delivered} |")
    text = "\n".join(lines) + "\n"
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
