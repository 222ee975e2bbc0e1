"""What a soak saw, in Markdown."""

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from accounts import FAILURE_BYTES, MIB, MIN_SAMPLES, READER_FDS, RESIDENT_GROWTH, RESIDENT_SLACK_BYTES, SLACK, Life

if TYPE_CHECKING:
    from soak import Soak

OPENING = """\
# Soak

The summary of one run of `make soak` (`tests/soak`): several ranks load from a FUSE mount that fails in every way that
`tests/faultfs` knows, readers and ranks are killed, and the run goes on each time from the last saved state as another
number of ranks. The ranks meet after each step.
"""


def commit() -> str:
    """Which version this was, with a word for what is not committed."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def summary(soak: "Soak", seconds: float, problem: BaseException | None) -> str:
    """The whole document."""
    accounts, ledger = soak.accounts, soak.ledger
    lives = [life for life in soak.lives if life.samples]
    judged = [life for life in lives if life.is_judged]
    readers = {name: sum(life.samples[-1][name] for life in lives) for name in ("started", "written_off", "died")}
    most_lost = max((sample["lost"] for life in lives for sample in life.samples), default=0)
    ends = ", ".join(f"{how} {count}×" for how, count in soak.ends.most_common())
    worlds = ", ".join(f"{world} ({count}×)" for world, count in sorted(soak.worlds.items()))
    kernel = platform.release().partition("-")[0]
    facts: list[tuple[object, ...]] = [
        ("result", "everything held" if problem is None else f"**broken**: {problem}"),
        ("time", f"{seconds:.0f} s"),
        ("version, seed", f"{commit()}, {soak.seed}"),
        ("machine", f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}"),
        ("groups of ranks, by size", worlds),
        ("how groups ended", ends),
        ("epochs finished", f"{accounts.epochs:,} of {accounts.count} samples, each whole: every position once"),
        ("steps made by all ranks", f"{accounts.steps:,}, the slowest after {soak.slowest_step:.1f} s"),
        ("samples handed over", f"{accounts.samples:,}, of which {accounts.replaced:,} substitutes"),
        ("lines of the ledger", f"{ledger.lines:,}: " + counted(ledger.outcomes)),
        ("a killed rank was reaped within", f"{soak.slowest_reap:.2f} s"),
        ("readers", f"{readers['started']:,} started, {readers['written_off']:,} written off, "
                    f"{readers['died']:,} died; at most {most_lost} lost at a time by a rank; "
                    f"the largest had {soak.reader_peak_bytes / MIB:.1f} MiB"),
    ]  # fmt: skip
    return "\n".join([
        OPENING,
        table(("what", "seen"), facts),
        "Faults switched on:\n",
        table(("fault", "times"), sorted(soak.faults.counts.items()) if soak.faults else []),
        f"What each process that finished {MIN_SAMPLES} epochs ({len(judged)} of {len(lives)}) held in the second and "
        "third tenth of its life,\nand in the last two tenths (medians). Allowed to grow: memory by "
        f"{RESIDENT_GROWTH - 1:.0%}, {RESIDENT_SLACK_BYTES // MIB} MiB, and {FAILURE_BYTES // 1024} KiB for each\n"
        f"failure that the loader remembers; descriptors by {SLACK} and {READER_FDS} for each reader that lives beyond "
        f"those before; threads by {SLACK}.\nThe worst:\n",
        flatness(judged),
    ])  # fmt: skip


def counted(counts: dict[str, int]) -> str:
    """ "replaced 12, recovered 3"."""
    return ", ".join(f"{name or 'other'} {count:,}" for name, count in sorted(counts.items()))


def flatness(judged: list[Life]) -> str:
    """For each resource the process that grew most."""
    rows: list[tuple[object, ...]] = []
    units = {
        "resident_bytes": ("memory", MIB, " MiB"),
        "fds": ("descriptors", 1, ""),
        "threads": ("threads", 1, ""),
    }
    for name, (title, unit, suffix) in units.items() if judged else ():
        worst = max(judged, key=lambda life: life.growth()[name][1] - life.growth()[name][0])
        early, late = (f"{value / unit:.4g}{suffix}" for value in worst.growth()[name])
        failures = "{:,.0f} to {:,.0f}".format(*worst.growth()["failures"])
        rows.append((title, early, late, worst.name, len(worst.samples), failures))
    return table(("resource", "early", "late", "process", "its epochs", "failures remembered"), rows)
