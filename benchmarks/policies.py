"""What guarding against failures costs when nothing fails, and when 5 % of the files are damaged; writes
benchmarks/results/policies.md. With `--what checksums`: what `verify="checksum"` costs, into results/checksums.md.

The loaders, each in a process of its own, take turns epoch by epoch (rivals.py). Processes differ, too (where their
memory lies, for one thing), so this is done with many sets of them; a set's result is the median of its epochs' ratios,
and the interval is that of the sets' medians.
"""

import argparse
import datetime
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import bench
import manifest
import photos
from rivals import Rival

RAISE = '`on_error="raise"`'
OFF = "manifest with checksums, `verify=None`"

# By its name, each loader's folder and options.
Loaders = dict[str, tuple[Path, dict[str, Any]]]


@dataclass(frozen=True)
class Subject:
    """What is compared: loaders, and the one that the others are compared with."""

    title: str
    page: str
    column: str
    base: str
    base_words: str
    loaders: Callable[[Path], Loaders]
    is_same: bool
    """Whether all have to deliver the same."""


def policies(folder: Path) -> Loaders:
    """`on_error`, with and without damage."""
    damaged = folder.with_name(folder.name + "-damaged")
    photos.ensure_damaged(damaged, folder)
    return {
        RAISE: (folder, {"on_error": "raise"}),
        '`on_error="replace"`, no file is damaged': (folder, {"on_error": "replace"}),
        '`on_error="replace"`, 5 % of the files are damaged (known since epoch 0)': (damaged, {"on_error": "replace"}),
    }


def checksums(folder: Path) -> Loaders:
    """The same manifest, with its checksums compared and not."""
    listed = folder.with_suffix(".parquet")
    listed.unlink(missing_ok=True)
    manifest.scan(folder, listed, "--deep")
    dataset = {"manifest": str(listed)}
    return {
        OFF: (folder, {"on_error": "raise", "dataset": dataset}),
        'the same, `verify="checksum"`': (folder, {"on_error": "raise", "dataset": dataset | {"verify": "checksum"}}),
    }


SUBJECTS = {
    "policies": Subject("Policies", "policies.md", "policy", RAISE, '"raise"', policies, is_same=False),
    "checksums": Subject("Checksums", "checksums.md", "dataset", OFF, "`verify=None`", checksums, is_same=True),
}


def ratios(told: list[dict[str, list[dict[str, Any]]]], name: str, base: str, what: str) -> str:
    """What a loader takes of what the base takes: the median of the sets' medians, with its interval."""
    each = [
        median(our[what] / their[what] for our, their in zip(epochs[name], epochs[base], strict=True))
        for epochs in told
    ]
    low, high = bench.interval(each)
    return f"{median(each):.4f} ({low:.4f} to {high:.4f})"


def compete(arguments: argparse.Namespace, loaders: Loaders) -> dict[str, list[dict[str, Any]]]:
    """The epochs of one set of processes; the order changes from turn to turn."""
    rivals = {}
    for name, (pictures, options) in loaders.items():
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
    parser.add_argument("--what", choices=list(SUBJECTS), default="policies")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--sets", type=int, default=16, help="sets of processes")
    parser.add_argument("--epochs", type=int, default=24, help="timed epochs of each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--output", type=Path, help="the page; benchmarks/results/policies.md or checksums.md")
    return parser.parse_args()


def page(
    arguments: argparse.Namespace, subject: Subject, loaders: Loaders, told: list[dict[str, list[dict[str, Any]]]]
) -> str:
    """The result as Markdown."""
    base, words = subject.base, subject.base_words
    option = "" if arguments.what == "policies" else f" --what {arguments.what}"
    size = mean(path.stat().st_size for path in loaders[base][0].rglob("*.jpg"))
    hashes = " | hash of epoch 0" if subject.is_same else ""
    lines = [
        f"# {subject.title}",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/policies.py{option}`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, {size / 1e3:.0f} KB on average, "
        f"RandomResizedCrop(224), flip, ToTensor, Normalize, batches of 64; {arguments.threads} threads; "
        f"{arguments.sets} sets of processes that take turns for {arguments.epochs} epochs each, after one that is not "
        "timed. Medians; in brackets the interval that holds the median of such sets with a probability of 95 %.",
        "",
        f"| {subject.column} | images/s | seconds, of those of {words} | processor, an image | of that of {words} | "
        f"delivered{hashes} |",
        "|---|---|---|---|---|---|" + ("---|" if hashes else ""),
    ]
    for name in loaders:
        compared = ["", ""]
        if name != base:
            compared = [ratios(told, name, base, what) for what in ("seconds", "processor_seconds")]
        results = [epoch for epochs in told for epoch in epochs[name]]
        rate = median(result["images"] / result["seconds"] for result in results)
        used = median(result["processor_seconds"] / result["images"] for result in results) * 1e6
        delivered = sum(result["images"] for result in results)
        hashes = f" | `{results[0]['hash']}`" if subject.is_same else ""
        lines.append(f"| {name} | {rate:.0f} | {compared[0]} | {used:.1f} us | {compared[1]} | {delivered}{hashes} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    subject = SUBJECTS[arguments.what]
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    loaders = subject.loaders(folder)
    told: list[dict[str, list[dict[str, Any]]]] = []
    for number in range(arguments.sets):
        told.append(compete(arguments, loaders))
        for name, epochs in told[-1].items():
            used = median(epoch["processor_seconds"] / epoch["images"] for epoch in epochs) * 1e6
            print(f"set {number}  {used:6.1f} us of processor an image  {name}", flush=True)
    found = {epoch["hash"] for epochs in told for results in epochs.values() for epoch in results}
    if subject.is_same and len(found) != 1:
        raise SystemExit(f"expected the same pixels of all, got {len(found)} hashes: {sorted(found)}")
    text = page(arguments, subject, loaders, told)
    output = arguments.output or bench.HERE / "results" / subject.page
    output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
