"""Images/s by the number of threads, of the loader and of its bare kernels; writes benchmarks/results/scaling.md.

All of them, each a process of its own, take turns (rivals.py), bound to as many processors as they have threads that
decode, to others in every turn: a processor of a shared machine is not as fast as the next one. The loader's rate
beside the kernels' says what the loader adds. A rate beside that of one thread in the same turn says what is lost on
the way from one to many, by the loader and by the machine: clocks sink when all processors work, processors may be
halves of a core, and memory is shared. As many processes with one thread each, which share nothing but the machine,
lose what the machine takes: the rate beside theirs says what the threads do to each other.

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
from rivals import Crowd, Rival

NAMES = {
    "forebay": "forebay",
    "load": "the loader without Python",
    "kernel": "the bare kernels",
    "spin": "arithmetic without memory",
}
Key = tuple[str, int, int]  # a contender, its processes and the threads of each
Told = dict[Key, list[dict[str, Any]]]


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="images/s by the number of threads")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1, help="in a turn of one or two threads; more in proportion")
    cpus = len(os.sched_getaffinity(0))
    steps = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    parser.add_argument("--threads", type=int, nargs="+", default=steps)
    parser.add_argument("--processes", type=int, nargs="*", default=steps[-1:], help="as many with one thread each")
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--programs", type=Path, default=bench.ROOT / "target" / "release" / "examples")
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "scaling.md")
    return parser.parse_args()


def row(key: Key, told: Told) -> list[str]:
    """What was measured of a contender."""
    name, processes, threads = key
    processors = processes * threads
    rate = {key: [result["images"] / result["seconds"] for result in results] for key, results in told.items()}

    def beside(other: Key, scale: float = 1.0) -> str:
        if other == key or other not in rate:
            return ""
        ratios = [our / their * scale for our, their in zip(rate[key], rate[other], strict=True)]
        low, high = bench.interval(ratios)
        return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"

    def each(what: str) -> float:
        return median(result[what] / result["images"] for result in told[key])

    cells = [f"{processes} x {threads}", NAMES[name], f"{median(rate[key]):.0f}"]
    cells += [beside((name, 1, 1), 1 / processors), beside((name, processors, 1))]
    cells.append("" if name == "spin" else beside(("kernel", processes, threads)))
    processor, seconds = each("processor_seconds"), each("seconds") * processors
    # Of several processes not all end at the same time.
    idle = f"{1 - processor / seconds:.1%}" if processes == 1 else ""
    starved = f"{each('starved_seconds') / seconds:.1%}" if "starved_seconds" in told[key][0] else ""
    return [*cells, f"{processor * 1e6:.0f}", idle, starved]


def page(arguments: argparse.Namespace, turns: int, told: Told) -> str:
    """The result as Markdown."""
    lines = [
        "# Scaling",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/scaling.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; processes x threads, bound to as many processors; medians of {turns} "
        "turns, and of their ratios; in brackets the interval that holds a ratio's median with a probability of 95 %. "
        "On the right what an image takes, how much of the processors' time nobody used, and for how much of it "
        "threads had nothing to decode.",
        "",
        "| | | images/s | of one thread times threads | of as many processes | of the kernels | us of processor | idle "
        "| no work |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row(key, told))} |" for key in told]
    return "\n".join(lines) + "\n"


def start(key: Key, arguments: argparse.Namespace, folder: Path) -> Rival | Crowd:
    """Starts a contender."""
    name, processes, threads = key
    if name == "forebay":
        line = bench.command(name, Path(), folder, threads, "-")
    else:
        what = arguments.count if name == "spin" else folder
        line = [str(arguments.programs / name), str(what), str(threads), "-"]
    return Rival(line) if processes == 1 else Crowd(line, processes)


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    shapes = [(1, threads) for threads in arguments.threads]
    shapes += [(processes, 1) for processes in arguments.processes]
    rivals = {
        (name, *shape): start((name, *shape), arguments, folder) for shape in shapes for name in arguments.contenders
    }
    for rival in rivals.values():
        rival.wait_ready()
    told: Told = {key: [] for key in rivals}
    processors = sorted(os.sched_getaffinity(0))
    for turn in range(arguments.turns):
        for key in bench.drawn(rivals, turn):
            name, processes, threads = key
            wanted = processes * threads
            rivals[key].bind([processors[(turn * wanted + index) % len(processors)] for index in range(wanted)])
            result = rivals[key].deliver(max(1, arguments.epochs * threads // 2))
            told[key].append(result)
            rate = result["images"] / result["seconds"]
            print(f"turn {turn}  {name:8}  {processes:2} x {threads:2}  {rate:7.0f} images/s", flush=True)
        text = page(arguments, turn + 1, told)
        arguments.output.write_text(text, "utf-8")  # after each turn: one can stop when it has been enough
    for rival in rivals.values():
        rival.close()
    print("\n" + text)


if __name__ == "__main__":
    main()
