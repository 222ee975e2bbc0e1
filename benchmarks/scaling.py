"""Images/s by the number of threads, of the loader and of its bare kernels; writes benchmarks/results/scaling.md.

All of them, each a process of its own, take turns (rivals.py), bound to as many processors as they have threads that
decode, to others in every turn: a processor of a shared machine is not as fast as the next one. The loader's rate
beside the kernels' says what the loader adds, and the rate beside that of one thread in the same turn what the threads
do to each other. `spin` says what any program can keep: processors that share a core do not make two, and clocks sink
when all work.

The loader is `forebay` as Python users run it, and `load` as Rust users do: `--contenders load kernel spin` needs no
torch and no extension, only programs (`cargo build --release --package forebay --examples`).
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

NAMES = {
    "forebay": "forebay",
    "load": "the loader without Python",
    "kernel": "the bare kernels",
    "spin": "arithmetic without memory",
}


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="images/s by the number of threads")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1, help="in a turn of one or two threads; more in proportion")
    cpus = len(os.sched_getaffinity(0))
    steps = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    parser.add_argument("--threads", type=int, nargs="+", default=steps)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--programs", type=Path, default=bench.ROOT / "target" / "release" / "examples")
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "scaling.md")
    return parser.parse_args()


def row(name: str, threads: int, told: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    """What was measured of a contender with so many threads."""
    rate = {key: [result["images"] / result["seconds"] for result in results] for key, results in told.items()}
    first = min(threads for _, threads in told)

    def beside(other: tuple[str, int], scale: float = 1.0) -> str:
        if other == (name, threads) or other not in rate:
            return ""
        ratios = [our / their * scale for our, their in zip(rate[name, threads], rate[other], strict=True)]
        low, high = bench.interval(ratios)
        return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"

    def each(what: str) -> float:
        return median(result[what] / result["images"] for result in told[name, threads])

    cells = [str(threads), NAMES[name], f"{median(rate[name, threads]):.0f}", beside((name, first), first / threads)]
    cells.append("" if name == "spin" else beside(("kernel", threads)))
    processor, seconds = each("processor_seconds"), each("seconds") * threads
    starved = "" if "starved_seconds" not in told[name, threads][0] else f"{each('starved_seconds') / seconds:.1%}"
    return [*cells, f"{processor * 1e6:.0f}", f"{1 - processor / seconds:.1%}", starved]


def page(arguments: argparse.Namespace, turns: int, told: dict[tuple[str, int], list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    lines = [
        "# Scaling",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/scaling.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; bound to as many processors as threads; medians of {turns} turns, and "
        "of their ratios; in brackets the interval that holds a ratio's median with a probability of 95 %. On the "
        "right what an image takes, how much of the time of as many processors nobody used, and for how much of it "
        "threads had nothing to decode.",
        "",
        "| threads | | images/s | of one thread times threads | of the kernels | us of processor | idle | no work |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {' | '.join(row(name, threads, told))} |" for threads in arguments.threads for name in arguments.contenders
    ]
    return "\n".join(lines) + "\n"


def command(name: str, arguments: argparse.Namespace, folder: Path, threads: int) -> list[str]:
    """How a contender is started."""
    if name == "forebay":
        return bench.command(name, Path(), folder, threads, "-")
    what = arguments.count if name == "spin" else folder
    return [str(arguments.programs / name), str(what), str(threads), "-"]


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    rivals = {
        (name, threads): Rival(command(name, arguments, folder, threads))
        for threads in arguments.threads
        for name in arguments.contenders
    }
    told: dict[tuple[str, int], list[dict[str, Any]]] = {key: [] for key in rivals}
    processors = sorted(os.sched_getaffinity(0))
    for turn in range(arguments.turns):
        keys = list(rivals)
        for name, threads in keys[turn % len(keys) :] + keys[: turn % len(keys)]:
            rival = rivals[name, threads]
            rival.bind({processors[(turn * threads + index) % len(processors)] for index in range(threads)})
            result = rival.deliver(max(1, arguments.epochs * threads // 2))
            told[name, threads].append(result)
            rate = result["images"] / result["seconds"]
            print(f"turn {turn}  {name:8}  {threads:2} threads  {rate:7.0f} images/s", flush=True)
        text = page(arguments, turn + 1, told)
        arguments.output.write_text(text, "utf-8")  # after each turn: one can stop when it has been enough
    for rival in rivals.values():
        rival.close()
    print("\n" + text)


if __name__ == "__main__":
    main()
