"""Files without their end (docs/decode.md): cut at every byte, and damaged after the picture, against Pillow."""

import io
import random
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import folders
import forebay as fb
from forebay import errors

WIDTH, HEIGHT = 29, 23
# What each is, in the words of the table.
DECODED, REFUSED = "decoded", "refused"


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    (image or folders.picture(5, WIDTH, HEIGHT)).save(file, kind, **options)
    return file.getvalue()


def few_colours() -> Image.Image:
    return folders.picture(5, WIDTH, HEIGHT).quantize(16)


def animation(kind: str) -> bytes:
    later = [few_colours().rotate(90), few_colours().rotate(180)]
    return encoded(kind, few_colours(), save_all=True, append_images=later)


def by_pillow(data: bytes) -> Any:
    """All pixels, or `None` where Pillow has an error."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return numpy.asarray(image.convert("RGB"))
    except (OSError, SyntaxError):
        return None


def by_forebay(root: Path, files: Sequence[bytes]) -> list[Any]:
    """The same of forebay for each file; damage is the only error there may be."""
    (root / "a").mkdir()
    for number, data in enumerate(files):
        (root / "a" / f"{number:06}.jpg").write_bytes(data)
    dataset = fb.ImageFolder(root)
    pictures = []
    for number in range(len(files)):
        try:
            pictures.append(numpy.asarray(dataset[number][0]))
        except errors.CorruptError:
            pictures.append(None)
    return pictures


def cuts(data: bytes) -> list[bytes]:
    """The file cut at every byte, and whole at last."""
    return [data[:length] for length in range(1, len(data) + 1)]


def chunks(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG without an animation, by kind."""
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        found[png[at + 4 : at + 8]] = png[at : at + 12 + length]
        at += 12 + length
    return found


def text_chunk() -> bytes:
    body = b"tEXtComment\0" + b"x" * 20
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def same(picture: Any, expected: Any) -> bool:
    return picture is not None and expected is not None and numpy.array_equal(picture, expected)


GIFS = {
    "one frame": encoded("GIF", few_colours()),
    "interlaced": encoded("GIF", few_colours(), interlace=1),
    "many blocks": encoded("GIF"),
    "animation": animation("GIF"),
    "transparent": encoded("GIF", few_colours(), transparency=3),
    "one pixel": encoded("GIF", few_colours().crop((0, 0, 1, 1))),
}


@pytest.mark.parametrize("kind", list(GIFS))
def test_a_gif_cut_at_any_byte_is_delivered_exactly_where_pillow_reads_it(tmp_path: Path, kind: str) -> None:
    files = cuts(GIFS[kind])
    pictures, expected = by_forebay(tmp_path, files), [by_pillow(data) for data in files]
    assert [p is not None for p in pictures] == [e is not None for e in expected]
    delivered = [picture for picture in pictures if picture is not None]
    # At least the end of the chain of blocks and the trailer can be missing.
    assert 3 <= len(delivered) < len(files)
    assert all(same(picture, expected[-1]) for picture in delivered)


@pytest.mark.parametrize("kind", list(GIFS))
def test_whatever_follows_the_first_frame_of_a_gif_it_is_delivered(tmp_path: Path, kind: str) -> None:
    data = GIFS[kind]
    end = next(length for length, cut in enumerate(cuts(data), 1) if by_pillow(cut) is not None)
    seeded = random.Random(1)
    tails = [seeded.randbytes(seeded.randrange(1, 60)) for _ in range(50)]
    files = [data[:end] + tail for tail in [b"", bytes(40), b"\xff" * 40, b",", b"!\xf9\xff", *tails]]
    pictures = by_forebay(tmp_path, files)
    assert all(same(picture, by_pillow(data)) for picture in pictures)
    # Pillow looks at as little of it.
    assert all(same(by_pillow(file), by_pillow(data)) for file in files)


PNGS = {
    "plain": encoded("PNG"),
    "palette": encoded("PNG", few_colours()),
    "text after the picture": encoded("PNG").replace(chunks(encoded("PNG"))[b"IEND"], text_chunk())
    + chunks(encoded("PNG"))[b"IEND"],
    "animation": animation("PNG"),
}


def data_end(png: bytes) -> int:
    """Where the last chunk of the picture's own data ends, checksum and all."""
    start = png.rindex(b"IDAT") - 4
    return start + 12 + int(struct.unpack(">I", png[start : start + 4])[0])


@pytest.mark.parametrize("kind", list(PNGS))
def test_a_png_is_delivered_where_all_of_its_data_is_there_with_its_checksums(tmp_path: Path, kind: str) -> None:
    data = PNGS[kind]
    end, whole = data_end(data), by_pillow(data)
    pictures = by_forebay(tmp_path, cuts(data))
    assert [length for length, picture in enumerate(pictures, 1) if picture is not None] == [*range(end, len(data) + 1)]
    assert all(same(picture, whole) for picture in pictures[end - 1 :])
    # Pillow asks for no checksum. It does ask for the rest of a chunk that follows, if that has begun.
    read = [length for length, cut in enumerate(cuts(data), 1) if by_pillow(cut) is not None]
    assert {*read} >= {end, len(data)} and end - 16 < min(read) < end


@pytest.mark.parametrize("kind", list(PNGS))
def test_whatever_follows_the_data_of_a_png_it_is_delivered(tmp_path: Path, kind: str) -> None:
    data = PNGS[kind]
    picture, end_chunk = data[: data_end(data)], chunks(PNGS["plain"])[b"IEND"]
    seeded = random.Random(2)
    tails = [end_chunk[:-1] + b"x", b"\0\0\1\0" + end_chunk[4:], bytes(3), bytes(40), b"\xff" * 40]
    files = [picture + tail for tail in [*tails, *(seeded.randbytes(seeded.randrange(1, 60)) for _ in range(50))]]
    pictures = by_forebay(tmp_path, files)
    assert all(same(delivered, by_pillow(data)) for delivered in pictures)


def test_a_png_cut_between_chunks_of_its_data_is_truncated(tmp_path: Path) -> None:
    """An end that is added to it must not make a damaged picture of a cut one, nor a good one."""
    data = encoded("PNG")
    parts, image = chunks(data), chunks(data)[b"IDAT"][8:-4]
    bodies = [b"IDAT" + image[at : at + 200] for at in range(0, len(image), 200)]
    split = [struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) for body in bodies]
    head = data[:8] + parts[b"IHDR"]
    (tmp_path / "a").mkdir()
    for count in range(len(split)):
        (tmp_path / "a" / f"{count:03}.png").write_bytes(head + b"".join(split[:count]))
    (tmp_path / "a" / "whole.png").write_bytes(head + b"".join(split))
    dataset = fb.ImageFolder(tmp_path)
    for index in range(len(split)):
        with pytest.raises(errors.CorruptError, match="is truncated"):
            dataset[index]
    assert same(numpy.asarray(dataset[len(split)][0]), by_pillow(data))


ENDS = {
    "baseline": encoded("JPEG"),
    "progressive": encoded("JPEG", progressive=True),
    "restarts": encoded("JPEG", restart_marker_blocks=2),
    "lossy": encoded("WEBP"),
    "lossless": encoded("WEBP", lossless=True),
    "with EXIF": encoded("WEBP", exif=b"Exif\0\0" + b"x" * 31),
    "animation": animation("WEBP"),
}


@pytest.mark.parametrize("kind", list(ENDS))
def test_a_jpeg_or_webp_without_its_last_bytes_is_refused_as_by_pillow(tmp_path: Path, kind: str) -> None:
    files = cuts(ENDS[kind])[:-1]
    assert all(picture is None for picture in by_forebay(tmp_path, files))
    assert all(by_pillow(data) is None for data in files)


def test_a_jpeg_whose_end_marker_was_overwritten_is_refused_though_pillow_reads_it(tmp_path: Path) -> None:
    """Zeros in place of the end marker look like zeros in place of the last rows, which Pillow reads as well."""
    data = ENDS["baseline"]
    files = [data[:-2] + bytes(64), data[:-40] + bytes(2000)]
    assert by_forebay(tmp_path, files) == [None, None]
    kept, overwritten = (by_pillow(file) for file in files)
    assert same(kept, by_pillow(data)) and overwritten is not None and not same(overwritten, by_pillow(data))


# Rows of the table, by format and what is missing: a file, and whether the whole picture is in it.
ROWS = {
    ("GIF", "what follows the first frame"): GIFS["animation"][:-300],
    ("GIF", "pixels of the first frame"): GIFS["one frame"][:-20],
    ("PNG", "what follows the picture's data"): PNGS["plain"][:-12],
    ("PNG", "the checksum of the picture's data"): PNGS["plain"][:-16],
    ("PNG", "pixels"): PNGS["plain"][:-60],
    ("JPEG", "the end marker, as the last bytes of the file"): ENDS["baseline"][:-2],
    ("JPEG", "the end marker, with other bytes in its place"): ENDS["baseline"][:-2] + bytes(64),
    ("WebP", "anything that the container counts, also after the picture"): ENDS["with EXIF"][:-4],
}


def rows() -> dict[tuple[str, str], tuple[str, str]]:
    """What the table says of forebay and of Pillow."""
    document = Path(__file__).parents[3] / "docs" / "decode.md"
    section = document.read_text().split("## Files without their end", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {(form, what): (ours, theirs) for form, what, ours, theirs in found if form not in ("format", "---")}


def test_every_row_has_its_file() -> None:
    assert list(rows()) == list(ROWS)


@pytest.mark.parametrize("row", list(ROWS), ids=", ".join)
def test_the_table_holds(tmp_path: Path, row: tuple[str, str]) -> None:
    (picture,), expected = by_forebay(tmp_path, [ROWS[row]]), by_pillow(ROWS[row])
    told = [REFUSED if found is None else DECODED for found in (picture, expected)]
    assert [claim.split(":")[0] for claim in rows()[row]] == told
    assert picture is None or same(picture, expected)
