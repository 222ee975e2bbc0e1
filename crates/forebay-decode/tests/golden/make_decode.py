"""Makes the golden files of the decoders: encoded pictures, and the RGB that Pillow decodes them to (as PPM).

    python make_decode.py /path/to/cjpeg

`cjpeg` is libjpeg-turbo's (3.0 or later); the build of `turbojpeg-sys` leaves one in its `out/bin`. It is needed for
what Pillow cannot write: odd subsamplings, arithmetic coding, several scans, lossless, 12 bits.
Everything is seeded. Made with Pillow 13.0.0.
"""

import io
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent / "decode"
CJPEG = sys.argv[1]
RNG = np.random.default_rng(20261115)


def photo(width: int, height: int) -> np.ndarray:
    """Something with the spectrum of a photograph, and colours."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    power = np.maximum(np.hypot(fy, fx), 1 / max(width, height)) ** -1.3
    shared = RNG.standard_normal((height, width))
    planes = []
    for _ in range(3):
        plane = np.fft.ifft2(np.fft.fft2(shared + 0.6 * RNG.standard_normal((height, width))) * power).real
        planes.append((plane - plane.mean()) / plane.std() * 60 + 128)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def keep(name: str, encoded: bytes, reference: bool = True) -> None:
    """Writes the encoded picture, and what Pillow makes of it."""
    (HERE / name).write_bytes(encoded)
    if reference:
        rgb = Image.open(io.BytesIO(encoded)).convert("RGB")
        ppm = f"P6\n{rgb.width} {rgb.height}\n255\n".encode() + rgb.tobytes()
        (HERE / f"{name}.ppm").write_bytes(ppm)


def pillow(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def cjpeg(rgb: np.ndarray, *options: str, maximum: int = 255) -> bytes:
    """Runs cjpeg on a PPM; `maximum` above 255 makes samples of 16 bits."""
    header = f"P6\n{rgb.shape[1]} {rgb.shape[0]}\n{maximum}\n".encode()
    with tempfile.NamedTemporaryFile(suffix=".ppm") as ppm:
        ppm.write(header + (rgb if maximum < 256 else rgb.astype(">u2")).tobytes())
        ppm.flush()
        return subprocess.run([CJPEG, *options, ppm.name], check=True, capture_output=True).stdout


def without(jpeg: bytes, marker: int) -> bytes:
    """A JPEG without the segments of a kind."""
    at, rest = 2, jpeg[:2]
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        rest += jpeg[at:end] if jpeg[at + 1] != marker else b""
        at = end
    return rest + jpeg[at:]


def jpegs() -> None:
    rgb = photo(37, 29)
    image = Image.fromarray(rgb)
    for name, sampling in {"444": 0, "422": 1, "420": 2}.items():
        keep(f"jpeg-{name}.jpg", pillow(image, "JPEG", quality=90, subsampling=sampling))
        progressive = pillow(image, "JPEG", quality=90, subsampling=sampling, progressive=True)
        keep(f"jpeg-{name}-progressive.jpg", progressive)
    for name, sampling in {"440": "1x2", "411": "4x1", "441": "1x4", "410": "4x2"}.items():
        keep(f"jpeg-{name}.jpg", cjpeg(rgb, "-quality", "90", "-sample", sampling))
    keep("jpeg-440-progressive.jpg", cjpeg(rgb, "-quality", "90", "-sample", "1x2", "-progressive"))
    keep("jpeg-grey.jpg", pillow(image.convert("L"), "JPEG", quality=90))
    keep("jpeg-grey-progressive.jpg", pillow(image.convert("L"), "JPEG", quality=90, progressive=True))
    # One component with a sampling of 2x2: legal, and without meaning.
    grey = bytearray(pillow(image.convert("L"), "JPEG", quality=90))
    grey[grey.index(b"\xff\xc0") + 11] = 0x22
    keep("jpeg-grey-2x2.jpg", bytes(grey))
    keep("jpeg-rgb.jpg", pillow(image, "JPEG", quality=90, keep_rgb=True))
    keep("jpeg-restart.jpg", pillow(image, "JPEG", quality=90, restart_marker_blocks=2))
    keep("jpeg-arithmetic.jpg", cjpeg(rgb, "-quality", "90", "-arithmetic"))
    keep("jpeg-arithmetic-progressive.jpg", cjpeg(rgb, "-quality", "90", "-arithmetic", "-progressive"))
    keep("jpeg-lossless.jpg", cjpeg(rgb, "-lossless", "1"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as scans:
        scans.write("0; 1; 2;")
        scans.flush()
        keep("jpeg-three-scans.jpg", cjpeg(rgb, "-quality", "90", "-scans", scans.name))
    # Progressive, and never finished: the coefficients that no scan brings are smoothed over.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as scans:
        scans.write("0,1,2: 0-0, 0, 0; 0: 1-5, 0, 2; 1: 1-63, 0, 1; 2: 1-63, 0, 1;")
        scans.flush()
        keep("jpeg-coarse-progressive.jpg", cjpeg(rgb, "-quality", "90", "-progressive", "-scans", scans.name))
    ink = np.dstack([photo(37, 29), photo(37, 29)[..., :1]])
    cmyk = pillow(Image.fromarray(ink, "CMYK"), "JPEG", quality=90)
    keep("jpeg-cmyk.jpg", cmyk)
    adobe = cmyk.index(b"Adobe")
    ycck = bytearray(cmyk)
    ycck[adobe + 11] = 2
    keep("jpeg-ycck.jpg", bytes(ycck))
    keep("jpeg-cmyk-no-adobe.jpg", cmyk[: adobe - 4] + cmyk[adobe + 12 :])
    # A thumbnail with its own end marker, in a segment before the data.
    thumbnail = pillow(Image.fromarray(photo(16, 12)), "JPEG", quality=50)
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 8) + b"Exif\0\0" + thumbnail
    plain = pillow(image, "JPEG", quality=90)
    keep("jpeg-thumbnail.jpg", plain[:2] + segment + plain[2:])
    # A frame of a motion JPEG: without Huffman tables, which are the ones that the standard suggests.
    keep("jpeg-motion.jpg", without(plain, 0xC4))

    # Larger ones, for damage and regions: no reference is stored.
    large = photo(229, 173)
    keep("large-420.jpg", pillow(Image.fromarray(large), "JPEG", quality=93), False)
    keep("large-progressive.jpg", pillow(Image.fromarray(large), "JPEG", quality=85, progressive=True), False)
    keep("unsupported-12-bit.jpg", cjpeg(photo(16, 16).astype(np.uint16) * 16, "-precision", "12", maximum=4095), False)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(samples: np.ndarray, bits: int) -> bytes:
    """Rows of samples (height × width × channels), packed, each row padded to a byte."""
    height = samples.shape[0]
    if bits == 16:
        return b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    flat = samples.reshape(height, -1)
    as_bits = (flat[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return b"".join(b"\0" + np.packbits(row.reshape(-1)).tobytes() for row in as_bits)


def png(samples: np.ndarray, bits: int, colour: int, extra: bytes = b"", interlaced: bool = False) -> bytes:
    height, width = samples.shape[:2]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
        parts = [samples[y::dy, x::dx] for x, y, dx, dy in passes]
        raw = b"".join(packed(part, bits) for part in parts if part.size)
    else:
        raw = packed(samples, bits)
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    data = zlib.compress(raw, 9)
    middle = len(data) // 2
    body = chunk(b"IDAT", data[:middle]) + chunk(b"IDAT", data[middle:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + body + chunk(b"IEND", b"")


def pngs() -> None:
    rgb = photo(21, 17)
    wide = RNG.integers(0, 65536, (17, 21, 4)).astype(np.uint16)
    # Half of them small, so that clipping and shifting give different greys.
    wide[::2] >>= 8
    colours = RNG.integers(0, 256, (256, 3)).astype(np.uint8)
    for bits in (1, 2, 4, 8):
        indices = RNG.integers(0, 1 << bits, (17, 21, 1)).astype(np.uint8)
        keep(f"png-grey-{bits}.png", png(indices, bits, 0))
        palette = chunk(b"PLTE", colours[: 1 << bits].tobytes())
        keep(f"png-palette-{bits}.png", png(indices, bits, 3, palette))
    indices = RNG.integers(0, 256, (17, 21, 1)).astype(np.uint8)
    short = chunk(b"PLTE", colours[:100].tobytes()) + chunk(b"tRNS", bytes(range(0, 200, 2)))
    keep("png-palette-short-transparent.png", png(indices % 100, 8, 3, short))
    keep("png-grey-transparent.png", png(indices, 8, 0, chunk(b"tRNS", b"\0\x40")))
    keep("png-grey-16.png", png(wide[..., :1], 16, 0))
    keep("png-rgb-8.png", png(rgb, 8, 2))
    keep("png-rgb-transparent.png", png(rgb, 8, 2, chunk(b"tRNS", b"\0\x40\0\x40\0\x40")))
    keep("png-rgb-16.png", png(wide[..., :3], 16, 2))
    keep("png-grey-alpha-8.png", png(np.dstack([indices, rgb[..., :1]]), 8, 4))
    keep("png-grey-alpha-16.png", png(wide[..., :2], 16, 4))
    keep("png-rgba-8.png", png(np.dstack([rgb, indices]), 8, 6))
    keep("png-rgba-16.png", png(wide, 16, 6))
    keep("png-filtered.png", pillow(Image.fromarray(photo(40, 30)), "PNG"))
    keep("png-interlaced-rgb-8.png", png(rgb, 8, 2, interlaced=True))
    keep("png-interlaced-grey-1.png", png(indices & 1, 1, 0, interlaced=True))
    keep("png-interlaced-palette-4.png", png(indices & 15, 4, 3, chunk(b"PLTE", colours[:16].tobytes()), True))
    keep("png-interlaced-rgba-16.png", png(wide, 16, 6, interlaced=True))
    frames = [Image.fromarray(photo(21, 17)) for _ in range(2)]
    keep("png-animated.png", pillow(frames[0], "PNG", save_all=True, append_images=frames[1:]))


def large_webps() -> None:
    """Large enough that a region of them is far from the edges; drawn from a picture that is there already."""
    large = Image.open(HERE / "large-420.jpg").convert("RGB")
    keep("large-lossy.webp", pillow(large, "WEBP", quality=70), False)
    keep("large-lossless.webp", pillow(large.crop((0, 0, 161, 131)), "WEBP", lossless=True), False)


def webps() -> None:
    rgb = photo(37, 29)
    alpha = np.dstack([rgb, photo(37, 29)[..., :1]])
    keep("webp-lossy.webp", pillow(Image.fromarray(rgb), "WEBP", quality=80))
    keep("webp-lossless.webp", pillow(Image.fromarray(photo(21, 17)), "WEBP", lossless=True))
    keep("webp-lossy-alpha.webp", pillow(Image.fromarray(alpha), "WEBP", quality=80, exact=True))
    keep("webp-lossless-alpha.webp", pillow(Image.fromarray(alpha[:17, :21]), "WEBP", lossless=True, exact=True))
    frames = [Image.fromarray(photo(37, 29)) for _ in range(2)]
    animated = pillow(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=60)
    keep("webp-animated.webp", animated)
    # The same on a larger canvas, its first frame at (6, 4): offsets are stored halved.
    moved = bytearray(animated)
    canvas = moved.index(b"VP8X") + 12
    moved[canvas : canvas + 6] = (47).to_bytes(3, "little") + (37).to_bytes(3, "little")
    frame = moved.index(b"ANMF") + 8
    moved[frame : frame + 6] = (3).to_bytes(3, "little") + (2).to_bytes(3, "little")
    keep("webp-animated-offset.webp", bytes(moved))


def gifs() -> None:
    colours = RNG.integers(0, 256, (256, 3)).astype(np.uint8)

    def indexed(highest: int) -> Image.Image:
        image = Image.fromarray(RNG.integers(0, highest, (17, 21)).astype(np.uint8), "P")
        image.putpalette(colours[:highest].tobytes())
        return image

    def save(image: Image.Image, **options) -> bytearray:
        return bytearray(pillow(image, "GIF", **{"interlace": 0, "optimize": False, **options}))

    def descriptor(data: bytearray) -> int:
        return data.index(b",", 13 + (3 << ((data[10] & 7) + 1)))

    keep("gif-256.gif", bytes(save(indexed(256))))
    keep("gif-2.gif", bytes(save(indexed(2))))
    keep("gif-interlaced.gif", bytes(save(indexed(256), interlace=1)))
    keep("gif-transparent.gif", bytes(save(indexed(16), transparency=3)))
    for name, options in {"offset": {}, "offset-transparent": {"transparency": 5}}.items():
        data = save(indexed(16), **options)
        data[6:10] = struct.pack("<HH", 30, 25)
        at = descriptor(data)
        data[at + 1 : at + 5] = struct.pack("<HH", 4, 6)
        keep(f"gif-{name}.gif", bytes(data))
    data = save(indexed(16))
    data[6:10] = struct.pack("<HH", 10, 40)
    keep("gif-frame-beyond-canvas.gif", bytes(data))
    # The global palette made a local one.
    data = save(indexed(16))
    at, size = descriptor(data), 3 << ((data[10] & 7) + 1)
    table, flags = data[13 : 13 + size], data[10]
    local = data[: at + 9] + bytes([0x80 | (flags & 7)]) + table + data[at + 10 :]
    local[10] &= 0x7F
    keep("gif-local-palette.gif", bytes(local[:13] + local[13 + size :]))
    frames = [indexed(16) for _ in range(3)]
    keep("gif-animated.gif", pillow(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40))


def bmp(width, height, bits, data, compression=0, palette=b"", masks=b"", top_down=False, colours=0, header=40):
    size = 14 + header + len(masks) + len(palette)
    rows = -height if top_down else height
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, width, rows, 1, bits, compression, len(data), 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", size + len(data), 0, 0, size) + info + masks + palette + data


def bmps() -> None:
    width, height = 21, 17
    colours = RNG.integers(0, 256, (256, 4)).astype(np.uint8)
    colours[:, 3] = 0

    def rows(flat: np.ndarray) -> bytes:
        flat = flat.reshape(height, -1)
        padding = np.zeros((height, -flat.shape[1] % 4), np.uint8)
        return np.hstack([flat, padding]).tobytes()

    for bits in (1, 4, 8):
        indices = RNG.integers(0, 1 << bits, (height, width, 1)).astype(np.uint8)
        as_bits = (indices >> np.arange(bits - 1, -1, -1, dtype=np.uint8)) & 1
        flat = np.packbits(as_bits.reshape(height, -1), axis=1)
        keep(f"bmp-{bits}.bmp", bmp(width, height, bits, rows(flat), palette=colours[: 1 << bits].tobytes()))
    keep("bmp-8-top-down.bmp", bmp(width, height, 8, rows(flat), palette=colours.tobytes(), top_down=True))
    keep("bmp-8-os2.bmp", bmp(width, height, 8, rows(flat), palette=colours[:, :3].tobytes(), header=12))
    few = flat % 100
    keep("bmp-8-few.bmp", bmp(width, height, 8, rows(few), palette=colours[:100].tobytes(), colours=100))
    rgb = photo(width, height)
    keep("bmp-24.bmp", bmp(width, height, 24, rows(rgb)))
    keep("bmp-24-top-down.bmp", bmp(width, height, 24, rows(rgb), top_down=True))
    four = RNG.integers(0, 256, (height, width, 4)).astype(np.uint8)
    keep("bmp-32.bmp", bmp(width, height, 32, rows(four)))
    for name, masks in {
        "rgba": (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
        "bgra": (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    }.items():
        v4 = struct.pack("<IIII", *masks) + bytes(108 - 40 - 16)
        keep(
            f"bmp-32-{name}.bmp",
            bmp(width, height, 32, rows(four), 3, masks=v4, header=108).replace(
                struct.pack("<I", 14 + 108 + len(v4)), struct.pack("<I", 14 + 108), 1
            ),
        )
    two = rows(four[..., :2])
    keep("bmp-16.bmp", bmp(width, height, 16, two))
    keep("bmp-16-565.bmp", bmp(width, height, 16, two, 3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F)))
    keep("bmp-16-555.bmp", bmp(width, height, 16, two, 3, masks=struct.pack("<III", 0x7C00, 0x3E0, 0x1F)))

    def run_lengths(half_bytes: bool) -> bytes:
        """Every kind of code: runs, literals, end of line, a jump."""
        data = b""
        highest = 16 if half_bytes else 256
        for row in range(height):
            if row == 5:
                data += bytes([0, 2, 4, 0])
                x = 4
            else:
                x = 0
            while x < width - 3:
                count = int(min(RNG.integers(1, 8), width - 3 - x))
                if count >= 3 and RNG.integers(2):
                    literal = RNG.integers(0, highest, count).astype(np.uint8)
                    if half_bytes:
                        nibbles = np.append(literal, [0] * (count % 2)).astype(np.uint8)
                        stored = (nibbles[::2] << 4 | nibbles[1::2]).tobytes()
                    else:
                        stored = literal.tobytes()
                    data += bytes([0, count]) + stored + b"\0" * (len(stored) % 2)
                else:
                    data += bytes([count, int(RNG.integers(0, 256))])
                x += count
            data += b"\0\0"
        return data + b"\0\1"

    keep("bmp-rle8.bmp", bmp(width, height, 8, run_lengths(False), 1, palette=colours.tobytes()))
    keep("bmp-rle4.bmp", bmp(width, height, 4, run_lengths(True), 2, palette=colours[:16].tobytes()))


def tiff(width: int, height: int, strips: list[bytes], tags: dict[int, tuple[int, list[int]]], order="<") -> bytes:
    """A TIFF with these strips (or tiles, when the tags say so); `tags` maps number to type and values.

    Types are 3 (16 bits), 4 (32 bits) and 5 (fractions, whose common divisor is the last value).
    """
    tags = {256: (4, [width]), 257: (4, [height]), **tags}
    where, lengths = (324, 325) if 322 in tags else (273, 279)
    offsets, at = [], 8
    for strip in strips:
        offsets.append(at)
        at += len(strip)
    tags[where], tags[lengths] = (4, offsets), (4, [len(strip) for strip in strips])
    entries, extra = b"", b""
    after = at + 2 + 12 * len(tags) + 4
    for tag, (kind, values) in sorted(tags.items()):
        if kind == 5:
            *numbers, divisor = values
            pairs = [part for number in numbers for part in (number, divisor)]
            content = struct.pack(f"{order}{len(pairs)}I", *pairs)
        else:
            content = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(content) > 4:
            place = struct.pack(f"{order}I", after + len(extra))
            extra += content
        else:
            place = content.ljust(4, b"\0")
        entries += struct.pack(f"{order}HHI", tag, kind, len(values) - (kind == 5)) + place
    mark = b"II" if order == "<" else b"MM"
    head = mark + struct.pack(f"{order}HI", 42, at)
    return head + b"".join(strips) + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + extra


def tiffs() -> None:
    width, height = 21, 17
    rgb = photo(width, height)
    image = Image.fromarray(rgb)
    for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        keep(f"tiff-rgb-{name}.tif", pillow(image, "TIFF", compression=name))
        keep(f"tiff-grey-{name}.tif", pillow(image.convert("L"), "TIFF", compression=name))
    for name in ("tiff_lzw", "tiff_adobe_deflate"):
        keep(f"tiff-differenced-{name}.tif", pillow(image, "TIFF", compression=name, tiffinfo={317: 2}))
    keep("tiff-strips.tif", pillow(image, "TIFF", compression="tiff_lzw", tiffinfo={278: 4}))
    keep("tiff-1.tif", pillow(image.convert("1"), "TIFF"))
    keep("tiff-white-is-zero-1.tif", pillow(image.convert("1"), "TIFF", tiffinfo={262: 0}))
    keep("tiff-white-is-zero-8.tif", pillow(image.convert("L"), "TIFF", tiffinfo={262: 0}))
    keep("tiff-palette.tif", pillow(image.quantize(200), "TIFF"))
    keep("tiff-palette-lzw.tif", pillow(image.quantize(40), "TIFF", compression="tiff_lzw"))
    alpha = np.dstack([rgb, photo(width, height)[..., :1]])
    keep("tiff-rgba.tif", pillow(Image.fromarray(alpha), "TIFF"))
    keep("tiff-grey-alpha.tif", pillow(Image.fromarray(alpha).convert("LA"), "TIFF"))
    keep("tiff-cmyk.tif", pillow(Image.fromarray(alpha, "CMYK"), "TIFF", compression="tiff_lzw"))
    wide = RNG.integers(0, 65536, (height, width, 4)).astype(np.uint16)
    wide[::2] >>= 8
    keep("tiff-grey-16.tif", pillow(Image.fromarray(wide[..., 0]), "TIFF"))
    keep("tiff-grey-16-lzw.tif", pillow(Image.fromarray(wide[..., 0]), "TIFF", compression="tiff_lzw"))
    numbers = RNG.integers(-300, 600, (height, width))
    keep("tiff-grey-32.tif", pillow(Image.fromarray(numbers.astype(np.int32)), "TIFF"))
    keep("tiff-float.tif", pillow(Image.fromarray((numbers / 1.7).astype(np.float32)), "TIFF"))
    for name, order in {"little": "<", "big": ">"}.items():
        three = wide[..., :3].astype(f"{order}u2").tobytes()
        tags = {258: (3, [16] * 3), 259: (3, [1]), 262: (3, [2]), 277: (3, [3]), 278: (4, [height])}
        keep(f"tiff-rgb-16-{name}.tif", tiff(width, height, [three], tags, order))
        grey = wide[..., 0].astype(f"{order}u2").tobytes()
        tags = {258: (3, [16]), 259: (3, [1]), 262: (3, [1]), 277: (3, [1]), 278: (4, [height])}
        keep(f"tiff-grey-16-{name}.tif", tiff(width, height, [grey], tags, order))
        signed = (wide[..., 0] % 1000).astype(np.int16) - 400
        keep(
            f"tiff-grey-16-signed-{name}.tif",
            tiff(width, height, [signed.astype(f"{order}i2").tobytes()], {**tags, 339: (3, [2])}, order),
        )
    ink = wide.astype("<u2").tobytes()
    tags = {258: (3, [16] * 4), 259: (3, [1]), 262: (3, [5]), 277: (3, [4]), 278: (4, [height])}
    keep("tiff-cmyk-16.tif", tiff(width, height, [ink], tags))
    tags = {258: (3, [8] * 4), 259: (3, [1]), 262: (3, [2]), 277: (3, [4]), 278: (4, [height]), 338: (3, [1])}
    keep("tiff-premultiplied.tif", tiff(width, height, [alpha.tobytes()], tags))
    keep("tiff-rgbx.tif", tiff(width, height, [alpha.tobytes()], {**tags, 338: (3, [0])}))
    tags = {258: (3, [8] * 3), 259: (3, [1]), 262: (3, [2]), 277: (3, [3]), 278: (4, [height]), 284: (3, [2])}
    keep("tiff-planar.tif", tiff(width, height, [rgb[..., c].tobytes() for c in range(3)], tags))
    # Tiles of 16 × 16, the last ones padded.
    padded = np.zeros((32, 32, 3), np.uint8)
    padded[:height, :width] = rgb
    tiles = [padded[y : y + 16, x : x + 16].tobytes() for y in (0, 16) for x in (0, 16)]
    tags = {258: (3, [8] * 3), 259: (3, [1]), 262: (3, [2]), 277: (3, [3]), 322: (4, [16]), 323: (4, [16])}
    keep("tiff-tiles.tif", tiff(width, height, tiles, tags))
    packed_tiles = {**tags, 259: (3, [8])}
    keep("tiff-tiles-deflate.tif", tiff(width, height, [zlib.compress(tile) for tile in tiles], packed_tiles))
    for bits in (2, 4):
        samples = RNG.integers(0, 1 << bits, (height, width)).astype(np.uint8)
        as_bits = (samples[..., None] >> np.arange(bits - 1, -1, -1, dtype=np.uint8)) & 1
        data = np.packbits(as_bits.reshape(height, -1), axis=1).tobytes()
        for name, photometric in {"black": 1, "white": 0}.items():
            tags = {258: (3, [bits]), 259: (3, [1]), 262: (3, [photometric]), 277: (3, [1]), 278: (4, [height])}
            keep(f"tiff-{name}-is-zero-{bits}.tif", tiff(width, height, [data], tags))
        colours = RNG.integers(0, 65536, 3 << bits).tolist()
        tags = {258: (3, [bits]), 259: (3, [1]), 262: (3, [3]), 277: (3, [1]), 278: (4, [height]), 320: (3, colours)}
        keep(f"tiff-palette-{bits}.tif", tiff(width, height, [data], tags))
    tags = {258: (3, [1]), 259: (3, [1]), 262: (3, [1]), 266: (3, [2]), 277: (3, [1]), 278: (4, [height])}
    bits = np.packbits(rgb[..., 0] > 128, axis=1).tobytes()
    keep("tiff-reversed-bits.tif", tiff(width, height, [bits], tags))
    for orientation in range(2, 9):
        small = Image.fromarray(rgb[:5, :7])
        keep(f"tiff-orientation-{orientation}.tif", pillow(small, "TIFF", tiffinfo={274: orientation}))
    pages = [image, Image.fromarray(photo(9, 9))]
    keep("tiff-pages.tif", pillow(pages[0], "TIFF", save_all=True, append_images=pages[1:]))


def shared_chroma(ycbcr: np.ndarray, across: int, down: int) -> bytes:
    """Luma and chroma as TIFF stores them: of each group of pixels all luma, then one pair of chroma."""
    height, width = ycbcr.shape[:2]
    padded = np.pad(ycbcr, ((0, -height % down), (0, -width % across), (0, 0)), "edge")
    data = b""
    for y in range(0, padded.shape[0], down):
        for x in range(0, padded.shape[1], across):
            group = padded[y : y + down, x : x + across]
            data += group[..., 0].tobytes() + group[0, 0, 1:].tobytes()
    return data


def more_tiffs() -> None:
    """What libtiff decodes for Pillow: fax, JPEG, LZMA, zstd, luma and chroma; and what is stored in unusual ways."""
    width, height = 43, 17
    rgb = photo(width, height)
    image = Image.fromarray(rgb)
    bits = image.convert("1")
    for name, options in {
        "rle": {"compression": "tiff_ccitt"},
        "group3": {"compression": "group3"},
        "group3-filled": {"compression": "group3", "tiffinfo": {292: 4}},
        "group3-relative": {"compression": "group3", "tiffinfo": {292: 1}},
        "group4": {"compression": "group4"},
        "group4-strips": {"compression": "group4", "tiffinfo": {278: 5}},
        "group4-white-is-zero": {"compression": "group4", "tiffinfo": {262: 0}},
    }.items():
        keep(f"tiff-fax-{name}.tif", pillow(bits, "TIFF", **options))
    # Long runs, of more than one code each, and lines without any change.
    page = np.zeros((7, 2700), bool)
    page[1:3, 30:2690] = page[4, ::700] = page[5:] = True
    for name in ("tiff_ccitt", "group3", "group4"):
        keep(f"tiff-fax-{name}-long.tif", pillow(Image.fromarray(page), "TIFF", compression=name))
    strip = Image.open(io.BytesIO(pillow(bits, "TIFF", compression="group4")))
    offset, length = strip.tag_v2[273][0], strip.tag_v2[279][0]
    data = pillow(bits, "TIFF", compression="group4")[offset : offset + length]
    turned = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    tags = {258: (3, [1]), 259: (3, [4]), 262: (3, [1]), 266: (3, [2]), 277: (3, [1]), 278: (4, [height])}
    keep("tiff-fax-reversed-bits.tif", tiff(width, height, [turned], tags))

    for name, picture in {"rgb": image, "grey": image.convert("L"), "ycbcr": image.convert("YCbCr")}.items():
        keep(f"tiff-jpeg-{name}.tif", pillow(picture, "TIFF", compression="jpeg", quality=90))
    keep("tiff-jpeg-strips.tif", pillow(image, "TIFF", compression="jpeg", tiffinfo={278: 8}))
    ink = Image.fromarray(np.dstack([rgb, photo(width, height)[..., :1]]), "CMYK")
    keep("tiff-jpeg-cmyk.tif", pillow(ink, "TIFF", compression="jpeg"))
    # Whole JPEGs of 4:2:0 as tiles, each with markers that say YCbCr, in a TIFF that says so as well.
    padded = Image.fromarray(np.pad(rgb, ((0, 15), (0, 5), (0, 0)), "edge"))
    boxes = [(x, y, x + 16, y + 16) for y in (0, 16) for x in (0, 16, 32)]
    tiles = [pillow(padded.crop(box), "JPEG", quality=90, subsampling=2) for box in boxes]
    tags = {258: (3, [8] * 3), 259: (3, [7]), 262: (3, [6]), 277: (3, [3]), 322: (4, [16]), 323: (4, [16])}
    keep("tiff-jpeg-tiles.tif", tiff(width, height, tiles, {**tags, 530: (3, [2, 2])}))

    for name in ("lzma", "zstd"):
        keep(f"tiff-{name}.tif", pillow(image, "TIFF", compression=name))
        keep(f"tiff-{name}-strips.tif", pillow(image, "TIFF", compression=name, tiffinfo={278: 4, 317: 2}))
    keep("tiff-big.tif", pillow(image, "TIFF", big_tiff=True))
    keep("tiff-big-lzw-strips.tif", pillow(image, "TIFF", big_tiff=True, compression="tiff_lzw", tiffinfo={278: 3}))

    ycbcr = np.asarray(image.convert("YCbCr"))
    tags = {258: (3, [8] * 3), 259: (3, [8]), 262: (3, [6]), 277: (3, [3]), 278: (4, [height])}
    for across, down in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2)):
        data = zlib.compress(shared_chroma(ycbcr, across, down))
        keep(f"tiff-ycbcr-{across}-{down}.tif", tiff(width, height, [data], {**tags, 530: (3, [across, down])}))
    keep("tiff-ycbcr-raw.tif", tiff(width, height, [ycbcr.tobytes()], {**tags, 259: (3, [1]), 530: (3, [1, 1])}))
    # Video's range, and its coefficients, as fractions.
    video = {529: (5, [2126, 7152, 722, 10000]), 532: (5, [16, 235, 128, 240, 128, 240, 1])}
    keep("tiff-ycbcr-video.tif", tiff(width, height, [zlib.compress(shared_chroma(ycbcr, 2, 2))], {**tags, **video}))

    twelve = RNG.integers(0, 4096, (height, width + 1))
    twelve[::2] >>= 5
    high, low = twelve[:, ::2], twelve[:, 1::2]
    packed = np.stack([high >> 4, (high & 15) << 4 | low >> 8, low & 255], -1).astype(np.uint8).reshape(height, -1)
    tags = {259: (3, [1]), 262: (3, [1]), 277: (3, [1]), 278: (4, [height])}
    odd = packed[:, : (width * 12 + 7) // 8].tobytes()
    keep("tiff-grey-12.tif", tiff(width, height, [odd], {**tags, 258: (3, [12])}))
    keep(
        "tiff-white-is-zero-16.tif",
        tiff(width, height, [twelve[:, 1:].astype("<u2").tobytes()], {**tags, 258: (3, [16]), 262: (3, [0])}),
    )
    numbers = RNG.integers(-300, 600, (height, width)).astype(np.int32)
    differences = np.diff(numbers, axis=1, prepend=np.int32(0)).astype("<i4").tobytes()
    tags = {**tags, 258: (3, [32]), 259: (3, [8]), 317: (3, [2]), 339: (3, [2])}
    keep("tiff-differenced-32.tif", tiff(width, height, [zlib.compress(differences)], tags))
    floats = (numbers / 1.7).astype("<f4")
    differences = np.diff(floats.view("<u4"), axis=1, prepend=np.uint32(0)).astype("<u4").tobytes()
    keep("tiff-differenced-float.tif", tiff(width, height, [zlib.compress(differences)], {**tags, 339: (3, [3])}))
    planes = floats.view(np.uint8).reshape(height, width, 4)[..., ::-1].transpose(0, 2, 1).reshape(height, -1)
    split = np.diff(planes, axis=1, prepend=np.uint8(0)).astype(np.uint8).tobytes()
    keep("tiff-split-float.tif", tiff(width, height, [zlib.compress(split)], {**tags, 317: (3, [3]), 339: (3, [3])}))
    wide = RNG.integers(0, 65536, (height, width, 4)).astype("<u2")
    tags = {258: (3, [16] * 3), 259: (3, [8]), 262: (3, [2]), 277: (3, [3]), 278: (4, [height]), 284: (3, [2])}
    planes = [zlib.compress(wide[..., c].tobytes()) for c in range(4)]
    keep("tiff-planar-16.tif", tiff(width, height, planes[:3], tags))
    four = {**tags, 258: (3, [16] * 4), 262: (3, [5]), 277: (3, [4])}
    keep("tiff-planar-cmyk-16.tif", tiff(width, height, planes, four))
    tags = {258: (3, [8] * 2), 259: (3, [8]), 262: (3, [1]), 277: (3, [2]), 284: (3, [2]), 338: (3, [0])}
    planes = [zlib.compress(rgb[..., c].tobytes()) for c in range(2)]
    keep("tiff-planar-extra.tif", tiff(width, height, planes, {**tags, 278: (4, [height]), 339: (3, [2, 2])}))
    tags = {258: (3, [8, 8, 8, 1]), 259: (3, [1]), 262: (3, [2]), 277: (3, [3]), 278: (4, [height])}
    keep("tiff-more-bits-than-samples.tif", tiff(width, height, [rgb.tobytes()], tags))
    tags = {258: (3, [8] * 3), 259: (3, [1]), 262: (3, [8]), 277: (3, [3]), 278: (4, [height])}
    keep("unsupported-lab.tif", tiff(width, height, [rgb.tobytes()], tags), False)
    keep("unsupported-old-jpeg.tif", tiff(width, height, [rgb.tobytes()], {**tags, 259: (3, [6])}), False)


def more_jpegs_and_pngs() -> None:
    """Lossless grey; and animations that are damaged, of which the first picture is not."""
    grey = photo(21, 17)[..., 1]
    for name, options in {"": "1", "-predictor-7": "7", "-shifted": "4,2"}.items():
        with tempfile.NamedTemporaryFile(suffix=".pgm") as pgm:
            pgm.write(b"P5\n21 17\n255\n" + grey.tobytes())
            pgm.flush()
            run = subprocess.run([CJPEG, "-lossless", options, pgm.name], check=True, capture_output=True)
        keep(f"jpeg-lossless-grey{name}.jpg", run.stdout)
    frames = [Image.fromarray(photo(21, 17)) for _ in range(3)]
    animated = pillow(frames[0], "PNG", save_all=True, append_images=frames[1:])
    chunks, at = [], 8
    while at < len(animated):
        (length,) = struct.unpack(">I", animated[at : at + 4])
        chunks.append((animated[at + 4 : at + 8], animated[at + 8 : at + 8 + length]))
        at += 12 + length
    places = {kind: [place for place, (other, _) in enumerate(chunks) if other == kind] for kind in (b"fcTL", b"fdAT")}
    swapped = list(chunks)
    first, second = places[b"fcTL"][1], places[b"fcTL"][2]
    swapped[first], swapped[second] = swapped[second], swapped[first]
    damaged = list(chunks)
    place = places[b"fdAT"][0]
    damaged[place] = (b"fdAT", damaged[place][1][:4] + bytes(len(damaged[place][1]) - 4))
    for name, parts in {"order": swapped, "data": damaged}.items():
        body = b"".join(chunk(kind, data) for kind, data in parts)
        keep(f"png-animated-damaged-{name}.png", b"\x89PNG\r\n\x1a\n" + body)


def pnms() -> None:
    """Each kind as text and as bytes. Named .pnm, because .ppm are the references."""
    width, height = 13, 9
    size = f"{width} {height}\n"

    def text(samples: np.ndarray) -> str:
        return "".join(" ".join(map(str, row.ravel())) + "\n" for row in samples)

    bits = RNG.integers(0, 2, (height, width)).astype(np.uint8)
    keep("pnm-bits-text.pnm", f"P1\n# spaces\n{size}{text(bits)}".encode())
    keep("pnm-bits-dense-text.pnm", f"P1\n{size}{text(bits).replace(' ', '')}".encode())
    keep("pnm-bits.pnm", f"P4\n{size}".encode() + np.packbits(bits, axis=1).tobytes())
    for highest in (1, 7, 100, 255, 256, 1000, 65535):
        wide = RNG.integers(0, highest + 1, (height, width, 3))
        # Grey of 16 bits is cut off at 255 of 65535: some of it has to be that dark.
        grey = np.where(bits == 1, wide[..., 0], wide[..., 0] >> 8)
        kind = np.uint8 if highest < 256 else ">u2"
        head = f"{size}# white\n{highest}\n"
        keep(f"pnm-grey-{highest}-text.pnm", f"P2 {head}{text(grey)}".encode())
        keep(f"pnm-grey-{highest}.pnm", f"P5\t{head}".encode() + grey.astype(kind).tobytes())
        keep(f"pnm-rgb-{highest}.pnm", f"P6\r{head}".encode() + wide.astype(kind).tobytes())
        if highest in (7, 1000):
            keep(f"pnm-rgb-{highest}-text.pnm", f"P3 {head}{text(wide)}".encode())
    above = RNG.integers(0, 256, (height, width)).astype(np.uint8)
    keep("pnm-grey-above.pnm", f"P5 {size}100\n".encode() + above.tobytes())


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for old in HERE.iterdir():
        old.unlink()
    for make in (jpegs, pngs, webps, large_webps, gifs, bmps, tiffs, pnms, more_tiffs, more_jpegs_and_pngs):
        make()
    total = sum(path.stat().st_size for path in HERE.iterdir())
    print(f"{len(list(HERE.iterdir()))} files, {total} bytes")
