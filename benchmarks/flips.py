"""How much damage each format lets through: one byte of a file is changed, at random places, and the file decoded.

    python benchmarks/flips.py [--flips 400]

Prints the table of docs/decode.md: of the changed files, how many forebay refuses, how many decode to the same pixels,
and how many decode to others without a word; and the same for Pillow. Everything is seeded.
"""

import argparse
import io
import pathlib
import sys
import tempfile
import warnings
from typing import Any

import numpy
from PIL import Image

import forebay as fb

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python" / "tests"))
import folders

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("JPEG", {"quality": 90}),
    "PNG": ("PNG", {}),
    "WebP, lossy": ("WEBP", {"quality": 80}),
    "WebP, lossless": ("WEBP", {"lossless": True}),
    "GIF": ("GIF", {}),
    "BMP": ("BMP", {}),
    "TIFF, uncompressed": ("TIFF", {}),
    "TIFF, LZW": ("TIFF", {"compression": "tiff_lzw"}),
    "TIFF, deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "TIFF, zstd": ("TIFF", {"compression": "zstd"}),
    "TIFF, JPEG": ("TIFF", {"compression": "jpeg"}),
    "PPM": ("PPM", {}),
}


def by_forebay(path: str) -> Any:
    """The pixels of the one picture below a folder."""
    return numpy.asarray(fb.ImageFolder(path)[0][0])


def by_pillow(path: str) -> Any:
    """The same, by Pillow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numpy.asarray(Image.open(next(pathlib.Path(path).rglob("*.*"))).convert("RGB"))


def shares(encoded: bytes, flips: int, decode: Any, errors: Any, folder: pathlib.Path) -> tuple[float, float, float]:
    """Refused, the same, silently different."""
    file = folder / "a" / "picture.jpg"  # formats are known by content
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(encoded)
    expected = decode(str(folder))
    random = numpy.random.default_rng(7)
    counts = [0, 0, 0]
    for _ in range(flips):
        changed = bytearray(encoded)
        changed[random.integers(len(encoded))] ^= random.integers(1, 256)
        file.write_bytes(changed)
        try:
            got = decode(str(folder))
        except errors:
            counts[0] += 1
        else:
            counts[1 if got.shape == expected.shape and (got == expected).all() else 2] += 1
    refused, same, other = (count / flips for count in counts)
    return refused, same, other


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=400, help="changed files of each format")
    flips = parser.parse_args().flips
    picture = Image.fromarray(folders.pixels(3, 160, 120))
    print("| format | refused | same pixels | other pixels | Pillow: refused | same | other |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, options) in FORMATS.items():
            buffer = io.BytesIO()
            picture.save(buffer, kind, **options)
            cells = []
            for decode, errors in ((by_forebay, fb.ForebayError), (by_pillow, Exception)):
                found = shares(buffer.getvalue(), flips, decode, errors, pathlib.Path(folder))
                cells += [f"{share:.0%}".replace("%", " %") for share in found]
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
