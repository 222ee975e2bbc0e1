"""Every format and colour mode against `Image.open(…).convert("RGB")`: JPEG within 2 levels, lossless exactly."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import folders
import forebay as fb


def picture(mode: str, **size: int) -> Image.Image:
    base = folders.picture(3, **size)
    if mode == "I;16":
        return Image.fromarray((folders.pixels(3, channels=1)[:, :, 0].astype(numpy.uint16) * 257) + 3)
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(folders.pixels(4, base.width, base.height, 1)[:, :, 0])
        base = base.convert(mode)
        base.putalpha(alpha)
        return base
    return base.convert(mode)


def png16(colour_type: int, channels: int) -> bytes:
    """A 16-bit PNG, which Pillow does not write."""
    values = folders.pixels(5, channels=channels).astype(">u2") * 257 + 99
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", folders.WIDTH, folders.HEIGHT, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def cases() -> Iterator[tuple[str, bytes, int]]:
    """Name, bytes and the largest difference allowed."""
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for progressive in (False, True):
            options = {"subsampling": subsampling, "progressive": progressive}
            yield f"jpeg {subsampling} progressive={progressive}", encoded(picture("RGB"), "JPEG", **options), 2
    for mode in ("L", "CMYK"):
        yield f"jpeg {mode}", encoded(picture(mode), "JPEG"), 2
    yield "jpeg odd size", encoded(picture("RGB", width=61, height=47), "JPEG", quality=75), 2
    yield "jpeg one pixel", encoded(picture("RGB", width=1, height=1), "JPEG"), 2
    yield "jpeg with restarts", encoded(picture("RGB"), "JPEG", restart_marker_blocks=2), 2
    yield "jpeg with trailing bytes", encoded(picture("RGB"), "JPEG") + b"trailing" * 100, 2
    turned = Image.Exif()
    turned[274] = 6
    yield "jpeg turned by exif", encoded(picture("RGB"), "JPEG", exif=turned), 2
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        yield f"png {mode}", encoded(picture(mode), "PNG"), 0
    for bits in (1, 2, 4):
        yield f"png palette of {bits} bits", encoded(picture("RGB").quantize(2**bits), "PNG", bits=bits), 0
    yield "png palette with transparency", encoded(picture("P"), "PNG", transparency=3), 0
    yield "png grey with transparency", encoded(picture("L"), "PNG", transparency=100), 0
    for colour_type, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        yield f"png 16 bits, colour type {colour_type}", png16(colour_type, channels), 0
    for mode in ("RGB", "RGBA"):
        yield f"webp lossless {mode}", encoded(picture(mode), "WEBP", lossless=True, exact=True), 0
        yield f"webp lossy {mode}", encoded(picture(mode), "WEBP", quality=80), 2
    frames = [picture("RGB"), folders.picture(9)]
    yield "webp animated", encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), 0
    for mode in ("L", "P", "1"):
        yield f"gif {mode}", encoded(picture(mode), "GIF"), 0
    yield "gif not interlaced", encoded(picture("P"), "GIF", interlace=0), 0
    yield "gif with transparency", encoded(picture("P"), "GIF", transparency=5), 0
    yield "gif animated", encoded(frames[0].convert("P"), "GIF", save_all=True, append_images=frames[1:]), 0
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"bmp {mode}", encoded(picture(mode), "BMP"), 0
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"):
        yield f"tiff {mode}", encoded(picture(mode), "TIFF"), 0
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield f"tiff {compression}", encoded(picture("RGB"), "TIFF", compression=compression), 0
    for mode in ("1", "L", "RGB", "I;16"):
        yield f"pnm {mode}", encoded(picture(mode), "PPM"), 0
    yield "pnm of two pictures", encoded(frames[0], "PPM") + encoded(frames[1], "PPM"), 0
    yield "pnm as text", b"P3 # red, dark red, then more than the picture\n2 1\n999\n999 0 0\t500 0 0\n7 7 7\n", 0
    yield "tiff of two pages", encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]), 0


CASES = list(cases())


@pytest.mark.parametrize(("data", "levels"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_pixels_are_pillows(tmp_path: Path, data: bytes, levels: int) -> None:
    path = tmp_path / "a" / "1.jpg"  # the name says nothing: content decides
    path.parent.mkdir()
    path.write_bytes(data)
    with Image.open(path) as file:
        expected = numpy.asarray(file.convert("RGB")).astype(int)
    image, _ = fb.ImageFolder(tmp_path)[0]
    ours = numpy.asarray(image).astype(int)
    assert ours.shape == expected.shape
    assert numpy.abs(ours - expected).max() <= levels


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + b"\0" * 1000)
    with pytest.raises(fb.errors.ExhaustedError, match="60000×60000"):
        fb.ImageFolder(tmp_path)[0]
