"""How far pixels of `decode="fast"` are from those of `decode="faithful"`; writes benchmarks/results/fidelity.md.

Both loaders deliver the same crops in the same order, as bytes; the differences are counted level by level.
"""

import argparse
import datetime
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import bench
import numpy as np
import photos

import forebay as fb
from forebay import transforms as t

CHAINS: dict[str, Callable[[], list[Any]]] = {
    "`RandomResizedCrop(224)`": lambda: [t.RandomResizedCrop(224)],
    "`Resize(256)`, `CenterCrop(224)`": lambda: [t.Resize(256), t.CenterCrop(224)],
    "`RandomResizedCrop(64)`": lambda: [t.RandomResizedCrop(64)],
}


def compare(folder: Path, chain: list[Any]) -> str:
    """The columns of a row: all differences of one epoch."""
    dataset = fb.ImageFolder(folder, transform=t.Compose(chain))
    loaders = [fb.DataLoader(dataset, batch_size=50, dtype="uint8", decode=decode) for decode in ("faithful", "fast")]
    counts, noise = np.zeros(511, np.int64), []
    for (faithful, _), (fast, _) in zip(*loaders, strict=True):
        differences = fast.numpy().astype(np.int16) - faithful.numpy()
        counts += np.bincount(differences.ravel() + 255, minlength=511)
        noise += [10 * np.log10(255**2 / max(np.square(one, dtype=np.float64).mean(), 1e-9)) for one in differences]
    levels = np.arange(-255, 256)
    absolute = counts[255:].copy()
    absolute[1:] += counts[254::-1]
    within = int(np.searchsorted(np.cumsum(absolute), 0.99 * absolute.sum()))
    total, largest = counts.sum(), int(np.flatnonzero(absolute)[-1])
    mean, signed = (counts * abs(levels)).sum() / total, (counts * levels).sum() / total
    return f"{mean:.2f} | {signed:+.3f} | {within} | {largest} | {median(noise):.1f} dB | {min(noise):.1f} dB"


def main() -> None:
    """Compares, prints and writes."""
    parser = argparse.ArgumentParser(description='pixels of decode="fast" beside those of "faithful"')
    parser.add_argument("--count", type=int, default=1500, help="pictures of 500x375")
    parser.add_argument("--large", type=int, default=200, help="pictures of 1800x1080")
    parser.add_argument("--data", type=Path, default=bench.HERE / "data", help="where the pictures are, or will be")
    parser.add_argument("--output", type=Path, default=bench.HERE / "results" / "fidelity.md")
    arguments = parser.parse_args()
    lines = [
        "# Fidelity",
        "",
        f"Measured {datetime.date.today()} by `benchmarks/fidelity.py`. {bench.machine()}. {bench.versions()}.",
        "",
        'Levels of 255 between the pixels of `decode="fast"` and `decode="faithful"`, over all pixels and colours of '
        f"one epoch of {arguments.count} pictures of 500x375 and {arguments.large} of 1800x1080 (quality 90, 4:2:0); "
        "PSNR of each picture.",
        "",
        "| pictures | transforms | mean | with its sign | 99 of 100 within | largest | PSNR, median | lowest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sets = [(f"photos-{arguments.count}", arguments.count, (photos.WIDTH, photos.HEIGHT))]
    sets.append((f"large-{arguments.large}", arguments.large, photos.LARGE))
    for name, count, size in sets:
        photos.ensure(arguments.data / name, count, size)
        for title, chain in CHAINS.items():
            columns = compare(arguments.data / name, chain())
            lines.append(f"| {size[0]}x{size[1]} | {title} | {columns} |")
            print(lines[-1], flush=True)
    arguments.output.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
