"""`make bench`: images/s of forebay, of torch's DataLoader, and of forebay's kernels without a loader around them, on
pictures of 500x375 and, for some of them, of 1800x1080.

Each contender runs in a process of its own, in turns, and is compared with forebay in the same round: the ratios are
what counts, because other work on the machine slows all of them alike. Writes benchmarks/results/imagefolder.md. Fails
only if it cannot run; a slow result is a result.
"""

import argparse
import datetime
import json
import math
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import photos

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = {
    "forebay": "forebay DataLoader + ImageFolder",
    "without-landmarks": "the same without landmarks (`FOREBAY_LANDMARKS=0`)",
    "unguarded": 'the same with `on_error="raise"`, no retries, no deadline',
    "guarded": "the same with a ledger, `hedge` and `max_failures`",
    "damaged": "that, where 5 % of the files are damaged (known since epoch 0)",
    "isolated": "the same, every file read by a reader process",
    "half": 'forebay with dtype="float16", memory_format="channels_last"',
    "bytes": 'forebay with dtype="uint8", without ToTensor and Normalize',
    "fast": 'forebay with decode="fast" (other pixels: docs/decode.md)',
    "torch": "torch DataLoader + torchvision ImageFolder (PIL)",
    "v2": "torch DataLoader + torchvision decode_image, transforms v2 on bytes",
    "kernel": "the bare kernel loop (no loader, files in memory)",
}
LARGE = ("forebay", "without-landmarks", "fast", "torch", "v2")


def command(name: str, kernel: Path, folder: Path, threads: int, epochs: int | str) -> list[str]:
    """How a contender is started."""
    numbers = [str(folder) + ("-damaged" if name == "damaged" else ""), str(threads), str(epochs)]
    if name == "kernel":
        return [str(kernel), *numbers]
    return [sys.executable, str(HERE / "contender.py"), name, *numbers]


def run(line: list[str]) -> dict[str, Any]:
    """What a contender tells in its last line."""
    told = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result


def measure(arguments: argparse.Namespace, folder: Path, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All rounds of all contenders, in turns."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        for name in drawn(names, number):
            line = command(name, arguments.kernel, folder, arguments.threads, arguments.epochs)
            result = run(line)
            result["rate"] = result["images"] / result["seconds"]
            if name != "kernel":  # it has no loader, which would know nothing yet
                first = run(command(name, arguments.kernel, folder, arguments.threads, "first"))
                result["first_rate"] = first["images"] / first["seconds"]
            rounds[name].append(result)
            print(
                f"round {number}  {name:17}  {result['rate']:7.0f} images/s, {result.get('first_rate', 0):5.0f} in the "
                f"first epoch  {processor(result):>5} us of processor  "
                f"{result['images']} delivered  hash {result['hash']}",
                flush=True,
            )
    return rounds


def processor(result: dict[str, Any]) -> str:
    """Microseconds of processor time an image, of all processes; the kernels alone do not say."""
    seconds = result.get("processor_seconds")
    return "" if seconds is None else f"{seconds / result['images'] * 1e6:.0f}"


def machine() -> str:
    """What it was measured on, in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()} {platform.release()}"


def versions() -> str:
    """Of everything that was compared."""
    told = [f"Python {platform.python_version()}"]
    for name in ("forebay", "torch", "torchvision", "pillow", "numpy"):
        try:
            told.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            told.append(f"{name} absent")
    return ", ".join(told)


def page(arguments: argparse.Namespace, tables: list[str]) -> str:
    """The result as Markdown."""
    return "\n".join(
        [
            "# Image folder",
            "",
            f"Measured {datetime.date.today()} by `make bench`. {machine()}. {versions()}.",
            "",
            "Synthetic JPEGs in the page cache; RandomResizedCrop(224), flip, ToTensor, Normalize; batches of 64, "
            f"shuffled; {arguments.threads} threads or worker processes; {arguments.rounds} rounds of "
            f"{arguments.epochs} timed epochs after two that are not. Each run is a process of its own; medians, and "
            "the range in brackets. What forebay is of another is the median of the rounds' ratios, and in brackets "
            "the interval that holds it with a probability of 95 % (with fewer than six rounds: all that was seen).",
            "",
            "In the timed epochs forebay knows its JPEGs by landmarks, which take the memory that is said "
            "([why](../../docs/decisions/0025-landmarks.md)), and so do the kernels. The first epoch, in which it "
            "knows none, is timed from the making of the loader on, in runs of its own.",
            "",
            *tables,
            "The hash is the sum of all 32-bit words delivered in epoch 0, whatever their order. That forebay's is",
            "the same in every round, and the same as the kernels', says that the loader delivers every sample exactly",
            "once and changes none; torch draws its random crops from another stream, so its hash is another one.",
            "",
        ]
    )


def table(title: str, rounds: dict[str, list[dict[str, Any]]]) -> str:
    """What was measured on one set of pictures."""
    lines = [
        title,
        "",
        "| loader | first epoch, images/s | images/s | forebay is | processor, an image | landmarks | "
        "delivered per run | hash of epoch 0, each round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, results in rounds.items():
        ratio = "" if name == "forebay" else beside(rounds.get("forebay", []), results)
        landmarks = median(result.get("landmark_bytes", 0) for result in results)
        delivered = ", ".join(sorted({str(result["images"]) for result in results}))
        hashes = [result["hash"] for result in results]
        hashes = f"`{hashes[0]}`, the same {len(hashes)} times" if len(set(hashes)) == 1 else ", ".join(hashes)
        used = [float(told) for told in map(processor, results) if told]
        used_text = f"{median(used):.0f} us" if used else ""
        lines.append(
            f"| {NAMES[name]} | {spread(results, 'first_rate')} | {spread(results, 'rate')} | {ratio} | {used_text} | "
            f"{f'{landmarks / 1e6:.1f} MB' if landmarks else ''} | {delivered} | {hashes} |"
        )
    return "\n".join([*lines, ""])


def spread(results: list[dict[str, Any]], key: str) -> str:
    """The median and the range of what the rounds told; nothing if they did not."""
    values = [result[key] for result in results if key in result]
    return f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})" if values else ""


def beside(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """How many times as fast ours were, round by round: what slows the machine down for minutes slows both."""
    return paired([our["rate"] / their["rate"] for our, their in zip(ours, theirs, strict=False)], "x")


def paired(ratios: list[float], unit: str = "") -> str:
    """The median of the rounds' ratios, and where it lies with a probability of 95 %."""
    if not ratios:
        return ""
    low, high = interval(ratios)
    return f"{median(ratios):.2f}{unit} ({low:.2f} to {high:.2f})"


def drawn(contenders: Iterable[Any], number: int) -> list[Any]:
    """The order of a round, another one each time. It is not rotated: what comes before has an effect (clocks sink
    under load), which would be the same one each time."""
    everyone = list(contenders)
    return random.Random(number).sample(everyone, len(everyone))


def interval(values: list[float]) -> tuple[float, float]:
    """Where the median is with a probability of 95 % or more, whatever the noise looks like (order statistics of a
    sign test); all that was seen if there are too few values."""
    count, outside, rank = len(values), 0.0, 0
    while 2 * (outside := outside + math.comb(count, rank) / 2**count) <= 0.05:
        rank += 1
    ordered = sorted(values)
    return ordered[max(rank - 1, 0)], ordered[-max(rank, 1)]


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="images/s of forebay, torch and the bare kernels")
    parser.add_argument("--count", type=int, default=1500, help="pictures")
    parser.add_argument("--large", type=int, default=200, help="pictures of 1800x1080; 0: none")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the pictures are, or will be")
    parser.add_argument("--contenders", nargs="+", choices=list(NAMES), default=list(NAMES))
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--kernel", type=Path, default=target / "release" / "examples" / "kernel")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "imagefolder.md")
    return parser.parse_args()


def title(folder: Path, size: tuple[int, int]) -> str:
    """What the pictures are."""
    sizes = [file.stat().st_size for file in folder.rglob("*.jpg")]
    return f"{len(sizes)} pictures of {size[0]}x{size[1]}, {sum(sizes) / len(sizes) / 1000:.0f} KB on average:"


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse()
    folder = arguments.data / f"photos-{arguments.count}"
    photos.ensure(folder, arguments.count)
    photos.ensure_damaged(folder.with_name(folder.name + "-damaged"), folder)
    tables = [table(title(folder, (photos.WIDTH, photos.HEIGHT)), measure(arguments, folder, arguments.contenders))]
    names = [name for name in arguments.contenders if name in LARGE]
    if names and arguments.large:
        folder = arguments.data / f"large-{arguments.large}"
        photos.ensure(folder, arguments.large, photos.LARGE)
        tables.append(table(title(folder, photos.LARGE), measure(arguments, folder, names)))
    text = page(arguments, tables)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
