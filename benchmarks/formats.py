"""`make bench-formats`: PNG and WebP to RGB by forebay's decoders, by Pillow and by torchvision, in one thread.

Each contender decodes the same files from memory in a process of its own, in turns; processor time is compared, which
other work on the machine disturbs least. Writes benchmarks/results/formats.md. A slow result is a result.
"""

import argparse
import datetime
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import bench
import numpy as np
import photos
from PIL import Image

HERE = Path(__file__).resolve().parent
CONTENDERS = ("forebay", "Pillow", "torchvision")
FILES = 6


def large(number: int) -> Image.Image:
    """1800x1080, mirrored together from photographs as they are: enlarged, they would have no grain."""
    tiles = [np.asarray(photos.draw(100 + number * 12 + one)) for one in range(12)]
    rows = [np.concatenate(tiles[row * 4 : row * 4 + 4], axis=1) for row in range(3)]
    return Image.fromarray(np.ascontiguousarray(np.concatenate(rows)[:1080, :1800]))


def deep(number: int) -> Image.Image:
    """Grey of 16 bits."""
    grey = np.asarray(photos.draw(number).convert("L")).astype(np.uint16)
    return Image.fromarray(grey * 257)


def clear(number: int) -> Image.Image:
    """With an alpha channel."""
    picture = photos.draw(number)
    picture.putalpha(photos.draw(number + 50).convert("L"))
    return picture


# What a file is called, how it is drawn, and how Pillow saves it.
KINDS: dict[str, tuple[str, Callable[[int], Image.Image], dict[str, Any]]] = {
    "png-rgb": ("PNG, RGB, 500x375", photos.draw, {}),
    "png-rgb-large": ("PNG, RGB, 1800x1080", large, {}),
    "png-rgba": ("PNG, RGB and alpha, 500x375", clear, {}),
    "png-palette": ("PNG, palette, 500x375", lambda number: photos.draw(number).quantize(256), {}),
    "png-grey": ("PNG, grey, 500x375", lambda number: photos.draw(number).convert("L"), {}),
    "png-deep": ("PNG, grey of 16 bits, 500x375", deep, {}),
    "webp": ("WebP, lossy, 500x375", photos.draw, {"quality": 85}),
    "webp-large": ("WebP, lossy, 1800x1080", large, {"quality": 85}),
    "webp-lossless": ("WebP, lossless, 500x375", photos.draw, {"lossless": True}),
    "webp-lossless-large": ("WebP, lossless, 1800x1080", large, {"lossless": True}),
}


def draw(folder: Path) -> None:
    """Writes what is not there yet."""
    for name, (_, make, options) in KINDS.items():
        directory = folder / name
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            path = directory / f"{number}.{name.partition('-')[0]}"
            if not path.exists():
                make(number).save(path, **options)


def decoder(contender: str) -> Callable[[bytearray], Any]:
    """Bytes of a file to RGB pixels, as a dataset would do it."""
    if contender == "Pillow":
        return lambda file: Image.open(io.BytesIO(file)).convert("RGB")
    import torch
    from torchvision.io import ImageReadMode, decode_image

    torch.set_num_threads(1)

    def decode(file: bytearray) -> Any:
        return decode_image(torch.frombuffer(file, dtype=torch.uint8), mode=ImageReadMode.RGB)

    return decode


def one(decode: Callable[[bytearray], Any], folder: Path, seconds: float) -> dict[str, Any]:
    """Measures a decoder in Python, as crates/forebay/examples/decode.rs does forebay's."""
    files = [bytearray(path.read_bytes()) for path in sorted(folder.iterdir())]
    total = sum(int(np.asarray(decode(file)).sum(dtype=np.uint64)) for file in files)
    images, started = 0, time.process_time()
    while not images or time.process_time() - started < seconds:
        for file in files:
            decode(file)
            images += 1
    return {"images": images, "processor_seconds": time.process_time() - started, "sum": total}


def measure(arguments: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All rounds of all contenders on all kinds, in turns."""
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(arguments.rounds):
        for contender in bench.drawn(CONTENDERS, number):
            rest = [str(arguments.seconds), *(str(arguments.data / kind) for kind in arguments.kinds)]
            line = [sys.executable, __file__, "--one", contender, *rest]
            if contender == "forebay":
                line = [str(arguments.decode), *rest]
            told = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
            for kind, text in zip(arguments.kinds, told.stdout.splitlines(), strict=True):
                results.setdefault((kind, contender), []).append(json.loads(text))
                print(f"round {number}  {contender:12} {kind:20} {each(json.loads(text)):8.0f} us", flush=True)
    return results


def each(result: dict[str, Any]) -> float:
    """Microseconds of processor time an image."""
    return float(result["processor_seconds"] / result["images"] * 1e6)


def page(arguments: argparse.Namespace, results: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """The result as Markdown."""
    lines = [
        "# PNG and WebP",
        "",
        f"Measured {datetime.date.today()} by `make bench-formats`. {bench.machine()}. {bench.versions()}.",
        "",
        f"{FILES} files of each kind, written by Pillow with its defaults (WebP: quality 85, or lossless), from memory "
        "to RGB in one thread. Microseconds of processor time an image; each run is a process of its own; medians of "
        f"{arguments.rounds} rounds.",
        "",
        "| files | forebay | Pillow | torchvision | forebay is | pixels as Pillow's |",
        "|---|---|---|---|---|---|",
    ]
    for kind in arguments.kinds:
        used = {name: median(map(each, results[kind, name])) for name in CONTENDERS}
        sums = {name: results[kind, name][0]["sum"] for name in CONTENDERS}
        faster = min(used["Pillow"], used["torchvision"]) / used["forebay"]
        numbers = " | ".join(f"{used[name]:.0f}" for name in CONTENDERS)
        same = "the same sum" if sums["forebay"] == sums["Pillow"] else "another sum"
        lines.append(f"| {KINDS[kind][0]} | {numbers} | {faster:.2f}x the faster one | {same} |")
    return "\n".join([*lines, ""])


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="PNG and WebP by forebay, Pillow and torchvision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="processor time of each kind")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--data", type=Path, default=HERE / "data" / "formats", help="where the files are, or will be")
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    parser.add_argument("--decode", type=Path, default=target / "release" / "examples" / "decode")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "formats.md")
    parser.add_argument("--one", nargs="+", metavar=("CONTENDER SECONDS", "FOLDER"), help="one run of one of them")
    return parser.parse_args()


def main() -> None:
    """Measures, prints and writes; or measures one contender."""
    arguments = parse()
    if arguments.one:
        contender, seconds, *folders = arguments.one
        decode = decoder(contender)
        for folder in folders:
            print(json.dumps(one(decode, Path(folder), float(seconds))))
        return
    draw(arguments.data)
    text = page(arguments, measure(arguments))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
