"""Images/s by the number of threads, of the loader and of its bare kernels; writes benchmarks/results/scaling.md.

Each number is a process of its own, in turns; the loader's rate beside the kernels' says what the loader adds, and the
rate beside that of one thread what the threads do to each other. Processors that share a core do not make two.
"""

import argparse
import datetime
import os
from pathlib import Path
from statistics import median

import bench
import photos


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
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "scaling.md")
    return parser.parse_args()


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(arguments.rounds):
        for threads in arguments.threads:
            epochs = max(1, arguments.epochs * threads // max(arguments.threads))
            for name in ("forebay", "kernel"):
                line = bench.command(name, arguments.kernel, folder, threads, epochs)
                told = bench.run(line)
                assert told["images"] == epochs * arguments.count
                rate = told["images"] / told["seconds"]
                rates.setdefault((name, threads), []).append(rate)
                print(f"round {number}  {name:8}  {threads:2} threads  {rate:7.0f} images/s", flush=True)
    lines = [
        "# Scaling",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/scaling.py`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{arguments.count} JPEGs of {photos.WIDTH}x{photos.HEIGHT} in the page cache, RandomResizedCrop(224), flip, "
        f"ToTensor, Normalize, batches of 64; medians of {arguments.rounds} rounds.",
        "",
        "| threads | forebay, images/s | of one thread times threads | the bare kernels, images/s | "
        "of one thread times threads | forebay of the kernels |",
        "|---|---|---|---|---|---|",
    ]
    first = {name: median(rates[name, arguments.threads[0]]) / arguments.threads[0] for name in ("forebay", "kernel")}
    for threads in arguments.threads:
        loader, kernel = median(rates["forebay", threads]), median(rates["kernel", threads])
        lines.append(
            f"| {threads} | {loader:.0f} | {loader / threads / first['forebay']:.2f} | {kernel:.0f} | "
            f"{kernel / threads / first['kernel']:.2f} | {loader / kernel:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
