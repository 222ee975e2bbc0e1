"""The table of what each format supports (docs/decode.md): one file for each row, and what becomes of it."""

import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import folders
import forebay as fb
from forebay import errors

DOCUMENT = Path(__file__).parents[3] / "docs" / "decode.md"
GOLDEN = DOCUMENT.parents[1] / "crates" / "forebay-decode" / "tests" / "golden" / "decode"
WIDTH, HEIGHT = 21, 17


def picture(mode: str = "RGB") -> Image.Image:
    base = Image.fromarray(folders.pixels(3, WIDTH, HEIGHT, 4))
    if mode in ("RGBA", "LA"):
        return base.convert(mode)
    return base.convert("RGB").convert(mode)


def saved(kind: str, mode: str = "RGB", **options: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        picture(mode).save(buffer, kind, **options)
        return buffer.getvalue()

    return make


def frames(kind: str, **options: Any) -> Callable[[], bytes]:
    return saved(kind, save_all=True, append_images=[picture().rotate(90), picture().rotate(180)], **options)


def turned(kind: str, **options: Any) -> Callable[[], bytes]:
    exif = Image.Exif()
    exif[274] = 6
    return saved(kind, exif=exif, **options)


def array(kind: str, values: Any, **options: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, kind, **options)
        return buffer.getvalue()

    return make


def golden(name: str) -> Callable[[], bytes]:
    """What Pillow does not write."""
    return (GOLDEN / name).read_bytes


def tagged(kind: str, tag: int, value: int) -> Callable[[], bytes]:
    """A TIFF of which one tag says something else."""

    def make() -> bytes:
        data = bytearray(saved(kind)())
        entry = data.index(struct.pack("<HHI", tag, 3, 1))
        data[entry + 8 : entry + 10] = struct.pack("<H", value)
        return bytes(data)

    return make


def progressive_of_12_bits() -> bytes:
    data = bytearray(saved("JPEG")())
    data[data.index(b"\xff\xc0") + 4] = 12
    return bytes(data)


def damaged_animation() -> bytes:
    data = bytearray(frames("PNG")())
    last = data.rindex(b"fcTL")
    data[last + 7] ^= 8
    return bytes(data)


GREY_16 = numpy.arange(WIDTH * HEIGHT, dtype=numpy.uint16).reshape(HEIGHT, WIDTH)
FLOATS = GREY_16.astype(numpy.float32) / 3

# Rows of the table, by format and kind.
FILES: dict[tuple[str, str], Callable[[], bytes]] = {
    ("JPEG", "baseline, any subsampling"): saved("JPEG", subsampling="4:2:0"),
    ("JPEG", "progressive"): saved("JPEG", progressive=True),
    ("JPEG", "arithmetic"): golden("jpeg-arithmetic.jpg"),
    ("JPEG", "lossless, grey or RGB"): golden("jpeg-lossless-grey.jpg"),
    ("JPEG", "grey"): saved("JPEG", "L"),
    ("JPEG", "CMYK, YCCK"): saved("JPEG", "CMYK"),
    ("JPEG", "EXIF orientation"): turned("JPEG"),
    ("JPEG", "ICC profile"): saved("JPEG", icc_profile=b"profile" * 20),
    ("JPEG", "12 bits"): progressive_of_12_bits,
    ("PNG", "grey, palette, RGB, with and without alpha"): saved("PNG", "RGBA"),
    ("PNG", "1, 2, 4, 8 bits"): saved("PNG", "1"),
    ("PNG", "16 bits"): array("PNG", GREY_16),
    ("PNG", "interlaced"): golden("png-interlaced-rgb-8.png"),
    ("PNG", "animation (APNG)"): frames("PNG"),
    ("PNG", "animation, damaged"): damaged_animation,
    ("PNG", "EXIF orientation, ICC profile, gamma"): turned("PNG", icc_profile=b"profile" * 20),
    ("WebP", "lossy, lossless, alpha"): saved("WEBP", "RGBA", lossless=True),
    ("WebP", "animation"): frames("WEBP"),
    ("WebP", "EXIF orientation, ICC profile"): turned("WEBP"),
    ("GIF", "palettes, transparency, interlaced"): saved("GIF", "P", transparency=3, interlace=1),
    ("GIF", "animation"): frames("GIF"),
    ("BMP", "1, 4, 8, 16, 24, 32 bits, run lengths"): saved("BMP", "P"),
    ("TIFF", "uncompressed, PackBits, LZW, deflate"): saved("TIFF", compression="tiff_lzw"),
    ("TIFF", "LZMA, zstd"): saved("TIFF", compression="zstd"),
    ("TIFF", "fax: Modified Huffman, Group 3, Group 4"): saved("TIFF", "1", compression="group4"),
    ("TIFF", "JPEG, in one plane"): saved("TIFF", "YCbCr", compression="jpeg"),
    ("TIFF", "grey of 1, 2, 4, 8, 12, 16, 32 bits, floats"): array("TIFF", FLOATS),
    ("TIFF", "palette, RGB, CMYK, alpha, also in separate planes"): saved("TIFF", "CMYK"),
    ("TIFF", "YCbCr, chroma of up to 4×2 pixels"): saved("TIFF", "YCbCr"),
    ("TIFF", "predictors 2 and 3"): saved("TIFF", compression="tiff_lzw", tiffinfo={317: 2}),
    ("TIFF", "strips, tiles, BigTIFF"): saved("TIFF", big_tiff=True),
    ("TIFF", "several pages"): frames("TIFF"),
    ("TIFF", "orientation"): saved("TIFF", tiffinfo={274: 6}),
    ("TIFF", "CIE Lab"): saved("TIFF", "LAB"),
    ("TIFF", "JPEG of the old kind, WebP, JPEG 2000 inside"): tagged("TIFF", 259, 50001),
    ("PNM", "PBM, PGM, PPM, as text and as bytes, up to 16 bits"): saved("PPM", "L"),
    ("PNM", "PAM, PFM"): array("PPM", FLOATS),
    ("others", "AVIF, HEIF, JPEG 2000, JPEG XL"): saved("JPEG2000"),
}


def rows() -> list[tuple[str, str, str]]:
    """Format, kind and claim of each row of the table."""
    section = DOCUMENT.read_text().split("## What each format supports", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return [(form, kind, claim) for form, kind, claim in found if form not in ("format", "---")]


def test_every_row_has_its_file() -> None:
    assert [(form, kind) for form, kind, _ in rows()] == list(FILES)


@pytest.mark.parametrize(("form", "kind", "claim"), rows(), ids=lambda text: text)
def test_the_table_holds(form: str, kind: str, claim: str, tmp_path: Path) -> None:
    path = tmp_path / "a" / "picture.jpg"
    path.parent.mkdir()
    path.write_bytes(FILES[form, kind]())
    dataset = fb.ImageFolder(tmp_path)
    if claim.startswith("no"):
        with pytest.raises(errors.UndecodableError, match="may well be good: forebay does not decode") as raised:
            dataset[0]
        assert "delete" not in raised.value.hint
        return
    assert claim.startswith("yes"), claim
    with Image.open(path) as picture:
        expected = numpy.asarray(picture.convert("RGB")).astype(int)
    got = numpy.asarray(dataset[0][0]).astype(int)
    assert got.shape == expected.shape
    assert abs(got - expected).max() <= (2 if "JPEG" in form + kind else 0)
