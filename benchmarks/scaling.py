"""Images/s by the number of threads, of the loader and of its bare kernels; writes benchmarks/results/scaling.md.

Each number is a process of its own, in turns, bound to as many processors as it has threads that decode; the loader's
rate beside the kernels' says what the loader adds, and the rate beside that of one thread in the same round what the
threads do to each other. Processors that share a core do not make two. A second table says where the threads' time
goes: into user code, into the kernel, or into waiting for a processor or for work.

The loader is `forebay` as Python users run it, and `load` as Rust users do: `--contenders load kernel` needs no torch
and no extension, only two programs (`cargo build --release --package forebay --example load --example kernel`).
"""

import argparse
import datetime
import os
from pathlib import Path
from statistics import median
from typing import Any

import bench
import photos

NAMES = {"forebay": "forebay", "load": "the loader without Python", "kernel": "the bare kernels"}


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="images/s by the number of threads")
    parser.add_argument("--count", type=int, default=3000, help="pictures")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs per round, for each thread")
    cpus = len(os.sched_getaffinity(0))
    steps = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    parser.add_argument("--threads", type=int, nargs="+", default=steps)
    parser.add_argument("--data", type=Path, default=bench.HERE / "data")
    parser.add_argument("--kernel", type=Path, default=bench.ROOT / "target" / "release" / "examples" / "kernel")
    parser.add_argument("--load", type=Path, default=bench.ROOT / "target" / "release" / "examples" / "load")
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "scaling.md")
    return parser.parse_args()


def rates(arguments: argparse.Namespace, told: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    """Images/s, and what is left of one thread's for each of many."""
    rate = {key: [result["images"] / result["seconds"] for result in results] for key, results in told.items()}

    def beside(ours: tuple[str, int], theirs: tuple[str, int]) -> float:
        return median(our / their for our, their in zip(rate[ours], rate[theirs], strict=True))

    names = arguments.contenders
    compared = [name for name in names if name != "kernel" and "kernel" in names]
    head = ["threads"]
    for name in names:
        head += [f"{NAMES[name]}, images/s", "of one thread times threads"]
    lines = ["", *rows([head + [f"{NAMES[name]} of the kernels" for name in compared]])]
    first = arguments.threads[0]
    for threads in arguments.threads:
        row = [str(threads)]
        for name in names:
            linear = beside((name, threads), (name, first)) * first / threads
            row += [f"{median(rate[name, threads]):.0f}", f"{linear:.2f}"]
        row += [f"{beside((name, threads), ('kernel', threads)):.2f}" for name in compared]
        lines += rows([row])[:1]
    return lines


def usage(arguments: argparse.Namespace, told: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    """Where the threads' time goes; `forebay` in Python does not tell."""
    head = [
        "threads",
        "",
        "us of user code",
        "of the kernel",
        "idle, of all threads",
        "without work",
        "page faults",
        "waits",
    ]
    lines = [
        "",
        "What an image takes; and how much of the time of as many processors nobody used, and the threads that decode "
        "had nothing to decode:",
        "",
        *rows([head]),
    ]
    for threads in arguments.threads:
        for name in arguments.contenders:
            results = told[name, threads]
            if name == "forebay":
                continue
            images = results[0]["images"]

            def each(what: str, results: list[dict[str, Any]] = results, images: int = images) -> float:
                return median(result[what] for result in results) / images

            user, system = each("user_seconds"), each("system_seconds")
            idle = 1 - (user + system) / (each("seconds") * threads)
            row = [str(threads), NAMES[name], f"{user * 1e6:.0f}", f"{system * 1e6:.0f}", f"{idle:.1%}"]
            row += [f"{each('starved_seconds') / (each('seconds') * threads):.1%}" if name == "load" else ""]
            lines += rows([[*row, f"{each('page_faults'):.2f}", f"{each('waits'):.2f}"]])[:1]
    return lines


def rows(table: list[list[str]]) -> list[str]:
    """Lines of a table in Markdown, with a rule below the first."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    told: dict[tuple[str, int], list[dict[str, Any]]] = {}
    processors = sorted(os.sched_getaffinity(0))
    for number in range(arguments.rounds):
        for threads in arguments.threads:
            os.sched_setaffinity(0, processors[:threads])  # inherited
            epochs = max(1, arguments.epochs * threads // max(arguments.threads))
            turn = number % len(arguments.contenders)
            for name in arguments.contenders[turn:] + arguments.contenders[:turn]:
                line = bench.command(name, arguments.kernel, folder, threads, epochs)
                if name == "load":
                    line = [str(arguments.load), *line[-3:]]
                result = bench.run(line)
                assert result["images"] == epochs * arguments.count
                told.setdefault((name, threads), []).append(result)
                rate = result["images"] / result["seconds"]
                print(f"round {number}  {name:8}  {threads:2} threads  {rate:7.0f} images/s", flush=True)
    os.sched_setaffinity(0, processors)
    lines = [
        "# Scaling",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/scaling.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; bound to as many processors as threads; medians of {arguments.rounds} "
        "rounds, and of their ratios.",
        *rates(arguments, told),
        *usage(arguments, told),
    ]
    text = "\n".join(lines) + "\n"
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
