"""The page of `shards.py`: a table for each section, and the sections that were not measured anew as they were."""

from pathlib import Path
from statistics import median
from typing import Any

import bench
import shard_requests
from peers.shard_contenders import SECTIONS, Section

INTRODUCTION = """# Shards, tokens and lines

By `make bench-shards`. All is in the page cache; 2 threads or worker processes, bound to as many processors. Each run
is a process of its own, in turns, with the peer's own environment over the same torch; medians, and the range in
brackets. What forebay is of another is the median of the rounds' ratios, and in brackets the interval that holds it
with a probability of 95 % (with fewer than six rounds: all that was seen); *at least* is what is wanted of it.
Pictures are synthetic JPEGs of 500x375; files with shards are those that the peer's own writer has made, with the
JPEGs as they are, and forebay reads the same files.

The first epoch is timed from the making of the loader on, the first batch, too; imports come before it. In later epochs
forebay knows its JPEGs by landmarks ([why](../../docs/decisions/0025-landmarks.md)). Memory is what all processes of a
loader have at their peak above what the process had after its imports (proportional set sizes, and shared memory that
waits in none), in one run of its own, with as many batches ahead of the loop for all.

*Samples* says what a run before the timed ones has shown: one epoch without random transforms, each sample hashed with
its label or targets, and the hashes added up, whatever their order. Where decoders or filters differ, it is the mean
difference of 8x8 pixels of 64 pictures. In timed epochs of pictures the labels are the numbers of the samples, and
their sum has to be right.
"""


def section(what: Section, rows: list[Any], stamp: str, copied: float) -> list[str]:
    """What was measured, as Markdown."""
    first = rows[0]
    if first.unavailable and not first.results:
        return [f"## {what.title}", "", f"Not measured: {first.contender.title}: {first.unavailable}", ""]
    packages = sorted({package for row in rows for package in row.contender.packages})
    versions = "".join(f", {package.replace('==', ' ')}" for package in packages)
    is_pictures = what.turn == "first"
    lines = [f"## {what.title}", "", f"{stamp}{versions}.", "", what.about]
    if is_pictures:
        seconds = {row.module: row.conversion_seconds for row in rows if row.conversion_seconds is not None}
        written = "; ".join(f"{name} wrote them in {taken:.1f} s" for name, taken in seconds.items())
        lines[-1] += f" There are {first.size()}. {written}{'.' if written else ''}"
    if copied:
        lines[-1] += f" Two threads of NumPy copy the same file in memory at {copied:.1f} GB/s."
    if first.checked:
        lines[-1] += f" forebay's samples have the hash `{first.checked['hash']}`."
    by = "first_rate" if what.data == "packed" else "rate"
    header = ["loader", f"{what.tells}{', later epochs' if is_pictures else ''}"]
    header += ["first epoch"] if is_pictures else []
    header += ["of the file", "delivered"] if what.bytes_per_sample else []
    header += [
        "the first row is",
        "at least",
        "first batch",
        "processor, a sample",
        "memory",
        "samples",
        "what differs",
    ]
    lines += ["", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join(cells(what, row, first, is_pictures, by, len(header)))} |" for row in rows]
    return [*lines, ""]


def cells(what: Section, row: Any, first: Any, is_pictures: bool, by: str, width: int) -> list[str]:
    """A row of the table."""
    title, reason = row.contender.title, row.unavailable.replace("|", "/")
    if not row.results:
        return [title, f"did not run: {reason}", *[""] * (width - 3), row.contender.differs]
    told = [title, bench.spread(row.results, "rate")]
    told += [bench.spread(row.results, "first_rate")] if is_pictures else []
    rate = row.middle("rate")
    told += [f"{rate * size / 1e9:.2f} GB/s" for size in what.bytes_per_sample or ()]
    ratios = [ours[by] / theirs[by] for ours, theirs in zip(first.results, row.results, strict=False)]
    told += (
        ["", ""]
        if row is first
        else [bench.paired(ratios, "x"), f"{row.contender.least}x" if row.contender.least else ""]
    )
    used = median(result["processor_seconds"] / result["images"] for result in row.results)
    told += [f"{row.middle('first_batch_seconds'):.2f} s", f"{used * 1e6:.{1 if used < 1e-4 else 0}f} us"]
    told += [f"{row.peak / 1e6:.0f} MB" if row.peak else "", row.verdict]
    return [*told, f"{row.contender.differs}{f'; failed later: {reason}' if reason else ''}"]


def page(path: Path, made: dict[str, list[str]]) -> str:
    """The whole page: these sections, and the others as they are there."""
    titles = {name: what.title for name, what in SECTIONS.items()} | {shard_requests.NAME: shard_requests.TITLE}
    kept = {}
    if path.exists():
        for part in path.read_text("utf-8").split("\n## ")[1:]:
            kept[part.partition("\n")[0]] = f"## {part.rstrip()}\n"
    parts = ["\n".join(made[name]) if name in made else kept.get(title, "") for name, title in titles.items()]
    return "\n".join([INTRODUCTION, *filter(None, parts)])
