"""Two builds of forebay against each other: `versions.py BEFORE AFTER`, each a folder with the package in it (`python`
of a checkout, with an extension module built by `make develop`). Writes benchmarks/results/versions.md.

Each build is a process of its own, and both take turns epoch by epoch (rivals.py), on the pictures and with the
settings of `make bench`. Processes differ, too (where their memory lies, for one thing), so this is done with several
sets of them; a set's result is the median of its turns' ratios.
"""

import argparse
import datetime
import os
from pathlib import Path
from statistics import median
from typing import Any

import bench
import photos
from rivals import Rival

ROWS = ("forebay", "without-landmarks", "unguarded", "guarded", "damaged", "isolated", "half", "bytes", "fast")


def contenders(row: str, arguments: argparse.Namespace, folder: Path) -> dict[Path, Rival]:
    """Both builds, ready."""
    line = bench.command(row, Path(), folder, arguments.threads, "-")
    rivals = {
        build: Rival(["env", f"PYTHONPATH={build.resolve()}", *line]) for build in (arguments.before, arguments.after)
    }
    for rival in rivals.values():
        rival.wait_ready()
    return rivals


def measured(row: str, arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Of each set: the ratios of the rates and of the processor times, both rates, both peaks of memory."""
    sets = []
    for number in range(arguments.sets):
        rivals = contenders(row, arguments, folder)
        turns: dict[Path, list[dict[str, Any]]] = {build: [] for build in rivals}
        for turn in range(arguments.turns):
            for build in bench.drawn(rivals, number * arguments.turns + turn):
                turns[build].append(rivals[build].deliver(arguments.epochs))
        peaks = {build: rival.peak_bytes() for build, rival in rivals.items()}
        for rival in rivals.values():
            rival.close()
        before, after = turns[arguments.before], turns[arguments.after]
        if len({turn["hash"] for turn in before + after}) != 1:
            raise SystemExit(f"{row}: the builds did not deliver the same")

        def ratio(value: Any, before: Any = before, after: Any = after) -> float:
            return median(value(new) / value(old) for old, new in zip(before, after, strict=True))

        rates = [median(turn["images"] / turn["seconds"] for turn in each) for each in (before, after)]
        sets.append(
            {
                "hash": after[0]["hash"],
                "rate": ratio(lambda turn: turn["images"] / turn["seconds"]),
                "processor": ratio(lambda turn: turn["processor_seconds"] / turn["images"]),
                "memory": peaks[arguments.after] / peaks[arguments.before],
                "rates": rates,
                "peaks": list(peaks.values()),
            }
        )
        print(f"{row:18} set {number}: {sets[-1]['rate']:.3f} of {rates[0]:.0f} images/s", flush=True)
    return sets


def page(arguments: argparse.Namespace, rows: dict[str, list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    lines = [
        "# Two builds of forebay",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/versions.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"Before: {arguments.names[0]}. After: {arguments.names[1]}. {arguments.count} pictures of 500x375 in the page "
        f"cache, {arguments.threads} threads; {arguments.sets} sets of two processes, which take {arguments.turns} "
        f"turns of {arguments.epochs} epochs each. Both deliver the same bytes. Ratios are those of after to before: "
        "the median of the sets, and in brackets the interval that holds it with a probability of 95 % (with fewer "
        "than six sets: all that was seen).",
        "",
        "| loader | images/s before | after | rate | processor time | peak memory |",
        "|---|---|---|---|---|---|",
    ]
    for row, sets in rows.items():
        before, after = (f"{median(one['rates'][side] for one in sets):.0f}" for side in (0, 1))
        ratios = " | ".join(bench.paired([one[key] for one in sets]) for key in ("rate", "processor", "memory"))
        lines.append(f"| {bench.NAMES[row]} | {before} | {after} | {ratios} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs both builds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--names", nargs=2, required=True, metavar=("BEFORE", "AFTER"), help="what they are called")
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS)
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sets", type=int, default=9)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    arguments = parser.parse_args()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    photos.ensure_damaged(folder.with_name(folder.name + "-damaged"), folder)
    rows = {row: measured(row, arguments, folder) for row in arguments.rows}
    (bench.HERE / "results" / "versions.md").write_text(page(arguments, rows), "utf-8")


if __name__ == "__main__":
    main()
