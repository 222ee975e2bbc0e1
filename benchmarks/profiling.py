"""`make bench-profile`: where the loader's processor time goes, and what it allocates; benchmarks/results/profile.md.

The loader runs without Python (`crates/forebay/examples/load.rs`) on the pictures of `make bench`. Counts are of the
epochs after the first one and hardly depend on what else the machine does. Shares of processor time come from `perf`
(Debian: linux-perf), by its software clock, which works in virtual machines too; without it that table is left out.
"""

import argparse
import datetime
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import bench
import photos

# A stage, and what its functions are called; the first that fits counts. `threads` are those that it is looked for in.
STAGES = [
    ("reading files, in the kernel", "io", r"^k:"),
    ("reading files, their headers", "io", ""),
    ("the consumer: a check of epoch 0", "load", r"load::main|copy_from_slice"),
    ("page faults", "", r"^k:.*(page|fault|clear_|pte|vma|mmap|unmap|charge|folio|lru|memcg)"),
    ("waiting, waking, locks", "", r"^k:|futex|[Cc]ondvar|[Mm]utex|^syscall|clock_gettime|[Bb]ell"),
    ("allocating", "", r"malloc|calloc|realloc|^free$|_int_free|__libc_|alloc::|memalign|tcache|unlink_chunk"),
    ("entropy decoding", "", r"bmi2_|plain_|huffman|symbol|decode_mcu|refill|fill_bit|derived_tbl|walk|_exactly"),
    ("inverse DCT", "", r"idct"),
    ("upsampling, colours", "", r"upsample|ycc_|_rgb|color_convert|merged"),
    ("resizing", "", r"ops::resize"),
    ("flip, float, normalise", "", r"pipeline::tail"),
    ("copying and zeroing", "", r"memcpy|memmove|memset|memchr"),
    ("the loader itself", "", r"forebay::|forebay_core|forebay_store|forebay_format|BinaryHeap|hash|^__rust|std::"),
    ("the rest of a JPEG: markers, tables, rows", "", ""),
]


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="where the loader's processor time goes, and what it allocates")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--epochs", type=int, default=4, help="epochs that are counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--load", type=Path, default=bench.ROOT / "target" / "release" / "examples" / "load")
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "profile.md")
    return parser.parse_args()


def samples(line: list[str]) -> list[tuple[str, str, int]]:
    """Thread, function (`k:` before those of the kernel) and how often it was seen there; none without `perf`."""
    if shutil.which("perf") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        record = ["perf", "record", "-q", "-e", "task-clock", "-F", "999", "-o", data, *line]
        recorded = subprocess.run(record, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if recorded.returncode != 0:
            print(f"perf could not record: {recorded.stderr.strip()}")
            return []
        report = ["perf", "report", "-i", data, "--stdio", "-n", "-t", ";", "--sort", "comm,dso,symbol"]
        told = subprocess.run(report, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = []
    for row in told.splitlines():
        fields = [field.strip() for field in row.split(";")]
        if row.startswith("#") or len(fields) < 5:
            continue
        kind, _, name = fields[4].partition(" ")
        found.append((fields[2], ("k:" if kind == "[k]" else "") + name.strip(), int(fields[1])))
    return found


def stage_of(thread: str, function: str) -> str:
    """The first stage that fits."""
    return next(
        stage
        for stage, where, names in STAGES
        if (not where or thread.startswith(f"forebay-{where}") or thread == where) and re.search(names, function)
    )


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    return ["", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])]


def allocations(told: dict[str, Any]) -> list[str]:
    """What an image takes of the machine."""
    images = told["images"]
    each = {
        role: {kind: count / images for kind, count in counts.items()} for role, counts in told["allocations"].items()
    }
    each["together"] = {kind: sum(counts[kind] for counts in each.values()) for kind in ("rust", "c", "bytes")}
    names = {"io": "threads that read", "cpu": "threads that decode", "consumer": "the consumer and others"}
    rows = [
        [names.get(role, role), f"{counts['rust']:.3f}", f"{counts['c']:.3f}", f"{counts['bytes']:.0f}"]
        for role, counts in each.items()
    ]
    return [
        "",
        "## Allocations",
        "",
        f"An image, over {images} of them after the first epoch: calls of `malloc` and its kin, those of "
        "C libraries included.",
        *table(["threads", "by Rust", "by C", "bytes"], rows),
        "",
        "And of the kernel: "
        + ", ".join(f"{told[name] / images:.3f} {name.replace('_', ' ')}" for name in ("page_faults", "waits"))
        + ". The mutex that all threads share is taken five times an image; the waits say how often anything had to "
        "wait, for it or for work.",
    ]


def shares(seen: list[tuple[str, str, int]], told: dict[str, Any]) -> list[str]:
    """Where processor time goes."""
    if not seen:
        return ["", "## Processor time", "", "`perf` is not installed, or may not record here."]
    stages = dict.fromkeys((stage for stage, _, _ in STAGES), 0)
    functions: dict[str, int] = {}
    left_out = STAGES[2][0]
    for thread, function, count in seen:
        stage = stage_of(thread, function)
        stages[stage] += count
        if stage != left_out:
            functions[function] = functions.get(function, 0) + count
    del stages[left_out]
    total = sum(stages.values())
    each = (told["user_seconds"] + told["system_seconds"]) / told["images"] * 1e6
    by_share = sorted(stages.items(), key=lambda item: -item[1])
    by_function = sorted(functions.items(), key=lambda item: -item[1])[:20]
    share = [[stage, f"{count / total:.1%}", f"{count / total * each:.0f}"] for stage, count in by_share]
    top = [[f"`{name.removeprefix('k:')}`", f"{count / total:.1%}"] for name, count in by_function]
    return [
        "",
        "## Processor time",
        "",
        f"{total} looks, one each millisecond of processor time; an image takes {each:.0f} us of it without `perf`.",
        *table(["stage", "share", "us an image"], share),
        *table(["function", "share"], top),
    ]


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    line = [str(arguments.load), str(folder), str(arguments.threads), str(arguments.epochs)]
    told = bench.run(line)
    lines = [
        "# Profile",
        "",
        f"Measured {datetime.date.today()} by `make bench-profile`. {bench.machine()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; {arguments.threads} threads; the loader without Python.",
        *allocations(told),
        *shares(samples(line), told),
    ]
    text = "\n".join(lines) + "\n"
    arguments.output.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
