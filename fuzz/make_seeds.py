"""Makes the seeds of the targets that are not pictures: `python fuzz/make_seeds.py`. Pictures have golden files.

Manifests come from the libraries that people write them with, in every encoding that those have.
"""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

import forebay as fb

SEEDS = Path(__file__).resolve().parent / "seeds"
# How an index tells of the lengths of one annotation: their number, where the first begins, and that it has one byte.
ONE = struct.pack("<QQB", 1, 0, 0)


def write(target: str, name: str, content: bytes | str) -> None:
    """One seed."""
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def parquet() -> None:
    """Manifests by Arrow and DuckDB."""
    rows = 12
    paths = [f"class-{number % 3}/picture-{number:04}.jpg" for number in range(rows)]
    table = pa.table(
        {
            "path": paths,
            "class": [path.split("/")[0] for path in paths],
            "label": pa.array([number % 3 for number in range(rows)], pa.int64()),
            "size_bytes": pa.array([None if number == 4 else 1000 + number for number in range(rows)], pa.int64()),
            "mtime_ns": pa.array([1_700_000_000_000_000_000 + number for number in range(rows)], pa.int64()),
            "etag": [None if number % 2 else f"etag-{number}" for number in range(rows)],
            "xxh3": [f"{number:016x}" for number in range(rows)],
            "width": pa.array([float(number) for number in range(rows)], pa.float64()),
            "height": pa.array([7] * rows, pa.int32()),
            "format": ["JPEG"] * rows,
        }
    )
    texts = ("path", "class", "etag", "xxh3", "format")
    numbers = ("label", "size_bytes", "mtime_ns")
    options = {
        "default": {},
        "uncompressed": {"compression": "none", "use_dictionary": False},
        "plain-snappy": {"use_dictionary": False},
        "version-2-pages": {"data_page_version": "2.0"},
        "version-2-plain": {"data_page_version": "2.0", "use_dictionary": False, "compression": "none"},
        "small-groups": {"row_group_size": 5},
        "small-pages": {"data_page_size": 1, "write_batch_size": 2, "use_dictionary": False},
        "no-statistics": {"write_statistics": False, "store_schema": False},
        "page-index": {"write_page_index": True},
        "delta-lengths": {
            "use_dictionary": False,
            "column_encoding": dict.fromkeys(texts, "DELTA_LENGTH_BYTE_ARRAY")
            | dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        },
        "delta-strings": {
            "use_dictionary": False,
            "compression": "none",
            "column_encoding": dict.fromkeys(texts, "DELTA_BYTE_ARRAY") | {"width": "BYTE_STREAM_SPLIT"},
        },
    }
    for name, chosen in options.items():
        out = io.BytesIO()
        pq.write_table(table, out, **chosen)
        write("parquet", f"arrow-{name}.parquet", out.getvalue())
    out = io.BytesIO()
    pq.write_table(table.select(["path", "label"]), out, compression="none", store_schema=False)
    write("parquet", "two-columns.parquet", out.getvalue())
    nested = table.append_column("extra", pa.array([{"a": [1, 2], "b": {"c": "x"}}] * rows))
    out = io.BytesIO()
    pq.write_table(nested.select(["path", "label", "extra"]), out)
    write("parquet", "nested.parquet", out.getvalue())
    for version in ("v1", "v2"):
        path = SEEDS / "parquet" / f"duckdb-{version}.parquet"
        source = "select 'a/' || i || '.jpg' as path, 'a' as class, i as label from range(5) t(i)"
        duckdb.sql(f"copy ({source}) to '{path}' (format parquet, parquet_version '{version}')")


def texts() -> None:
    """Lists that people write."""
    write("csv", "plain.csv", "path,class\ncat/1.jpg,cat\ndog/2.jpg,dog\n")
    write("csv", "quotes.csv", '\ufefflabel,path,note\r\n3,"a,""b""\r\n.jpg",x\r\n\r\n1,./c/d.jpg,""\r\n3,e.jpg,')
    write("csv", "facts.csv", "path,class,label,size_bytes,mtime_ns,etag\na.jpg,x,0,5,-7,abc\nb.jpg,y,1,,,\n")
    write(
        "jsonl", "plain.jsonl", '{"path": "b/1.jpg", "class": "b", "more": [1]}\n\n{"class":"a","path":"a/\\u00fc.jpg"}'
    )
    write(
        "jsonl",
        "facts.jsonl",
        '{"path":"a.jpg","label":3,"size_bytes":7,"mtime_ns":-5,"etag":"x"}\n{"path":"b.jpg","label":4,"etag":null}\n',
    )


def state() -> None:
    """A loader's state."""
    books = {"planned": 8, "delivered": 7, "replaced": 1, "skipped": 0}
    identity = {"samples": 100, "classes": 3, "fingerprint": "0123456789abcdef0123456789abcdef"}
    numbers = {"version": 1, "order": 1, "dataset": identity, "seed": 3, "shuffle": True, "drop_last": False}
    numbers |= {"batch_size": 4, "world_size": 2, "epoch": 1, "step": 2, "position": 16, "books": books}
    write("state", "middle.json", json.dumps(numbers))
    write("state", "end.json", json.dumps(numbers | {"position": 100, "step": 13, "drop_last": True, "shuffle": False}))


def ledger() -> None:
    """Lines of a ledger."""
    failure = {"path": "cat/1.jpg", "index": 7, "code": "corrupt", "stage": "decode", "errno": None, "attempts": 2}
    failure |= {"elapsed_seconds": 0.5, "message": "is truncated", "hint": "copy it again", "detail": None, "epoch": 1}
    failure |= {"step": 2, "position": 3, "rank": 0, "outcome": "replaced", "substitute": 9, "size_bytes": 100}
    failure |= {"mtime_ns": 5, "unix_seconds": 1.7e9}
    odd = failure | {"path": "cat/\ufffd.jpg", "path_bytes": "6361742fff2e6a7067", "outcome": "stalled", "errno": 5}
    write("ledger", "two.jsonl", json.dumps(failure) + "\n" + json.dumps(odd) + "\n")
    write("ledger", "torn.jsonl", json.dumps(failure, separators=(",", ":")) + '\n{"path":"x')


def cache_entry() -> None:
    """Entries whose checksums the target puts right."""
    for name, content, key in (
        ("small", b"some content", b"\0/cat/1.jpg\0whole"),
        ("empty", b"", b"http://store\0s3://bucket/a b\0whole"),
        ("range", b"x" * 700, b"id\0" + b"/long" * 150 + b"\x000-700"),
    ):
        footer = struct.pack("<8sIIQQqQQ", b"forebay\xfb", 1, len(key), len(content), len(content), -5, 0, 0)
        write("cache_entry", name, content + key + footer)


def npy() -> None:
    """Arrays by NumPy: in both orders of bytes and of elements, without elements, of kinds that are not read."""
    rows = np.arange(6, dtype="<i2").reshape(2, 3)
    arrays = {
        "rows": rows,
        "columns": np.asfortranarray(rows.astype(">f4")),
        "single": np.array(3.5),
        "empty": np.zeros((0, 7), "?"),
        "records": np.zeros(2, [("a", "<f4"), ("b", "<i8")]),
        "complex": np.zeros(2, "<c8"),
    }
    for name, array in arrays.items():
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        write("npy", name, file.getvalue())
    file = io.BytesIO()
    np.lib.format.write_array(file, rows, version=(3, 0))
    write("npy", "version-3", file.getvalue())
    for name, save in {"stored": np.savez, "deflated": np.savez_compressed}.items():
        file = io.BytesIO()
        save(file, x=rows, y=np.arange(3), z=np.array("text"))
        write("npz", name, file.getvalue())
    tensors = {"x": np.ones((2, 3), np.float16), "y": np.array(7)}
    write("safetensors", "two", safetensors.numpy.save(tensors, {"format": "np"}))


LINES = {
    "text": "one\r\ntwo\n\nthree",
    "mark": "\ufeffone\nn\0l\n",
    "json": '{"a": 1}\n\n [2]\n',
    "quotes": 'a,b\n"x\ny",1\n"open,2\n3,"z"\n"p\nq",4\n',
    "semicolons": '"h""1";h2\n\n1;"2"\n',
}


def packed() -> None:
    """Compressed files, and a table of their segments."""
    text = LINES["quotes"].encode() * 20
    write("packed", "member.gz", gzip.compress(text, mtime=0))
    write("packed", "members.gz", gzip.compress(text, mtime=0) + gzip.compress(b"", mtime=0) + bytes(100))
    frame = pa.Codec("zstd").compress(text, asbytes=True)
    write("packed", "frames.zst", frame + b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + frame)
    # The file's size; zstd or gzip, unpacked bytes, segments; place, start, hash and state of each.
    words = [0, 150, 2, 0, 0, 1, 2**64 - 1, 60, 100, 2, 3 | 5 << 8 | 2 << 16]
    write("seek_table", "two", struct.pack("<H11Q", 100, *words) + zlib.compress(b"window")[2:4])


def lines() -> None:
    """Files of lines, and the indexes that datasets keep of them."""
    for name, text in LINES.items():
        write("lines", name, text)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.txt" for name in LINES]
        for path in paths:
            path.write_text(LINES[path.stem], newline="")
            os.utime(path, (1_700_000_000, 1_700_000_000))
        kept = Path(folder) / "index"
        for name, make in {
            "text": lambda: fb.TextLines(paths, index=kept),
            "json": lambda: fb.JsonLines(paths, index=kept),
            "csv": lambda: fb.Csv(paths, header=False, index=kept),
        }.items():
            make()
            write("line_index", name, kept.read_bytes())
            kept.unlink()


def archive(kind: int, *, damaged: bool = False) -> bytes:
    """A small archive, or the same with bytes that are missing and bytes that are too many."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as made:
        for name, content in {
            "a/1.txt": b"one",
            "a/1.cls": b"7",
            f"{'long/' * 30}2.seg.png" if kind != tarfile.USTAR_FORMAT else "2.seg.png": b"x" * 600,
            "3.bin": bytes(512),
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("1.lnk")
        link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
        made.addfile(link)
    content = file.getvalue()[: file.getvalue().rindex(b"etc/passwd") + 1500]
    return content[:1000] + b"garbage" + content[1000:-300] if damaged else content


def shards() -> None:
    """Archives, and the indexes of them."""
    formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for name, kind in formats.items():
        write("tar", name, archive(kind))
    write("tar", "damaged", archive(tarfile.USTAR_FORMAT, damaged=True))
    write("wds2idx", "index", b"v1.2 2\ntxt 512 3 a/1.txt cls 1536 1 a/1.cls\nbin 4096 512 3.bin\n")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ustar", "damaged"):
            path = Path(folder) / f"{name}.tar"
            path.write_bytes((SEEDS / "tar" / name).read_bytes())
            os.utime(path, (1_700_000_000, 1_700_000_000))
        fb.Shards(folder, index=True, fields="txt")
        write("shard_index", "two", (Path(folder) / "forebay.index").read_bytes())


def landmarks() -> None:
    """Lists of a picture's landmarks, as an index has them, with the picture: those that it has, and wrong ones."""
    picture = SEEDS.parents[1] / "crates/forebay-decode/tests/golden/decode/jpeg-444.jpg"
    content = picture.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as made:
            made.add(picture, "1.jpg")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        fb.Shards(folder, index=True, landmarks=True, fields="jpg")
        index = (Path(folder) / "forebay.index").read_bytes()
    write("shard_index", "landmarks", index)
    # At the end: one length, of one byte, and as many bytes.
    (own,) = (index[-8 - size : -8] for size in range(1, 256) if index[-26 - size : -8 - size] == ONE + bytes([size]))
    for name, listed in {
        "own": own,
        "none": b"",
        "before_the_data": bytes([3, 1, 1, 8, 0, 0, 0]),
        "at_the_end": bytes([3, 9]) + varint(len(content)) + bytes([63, 5, 6, 7]),
        "many": bytes([1]) + bytes([1, 9, 40, 3]) * 150,
    }.items():
        write("landmarks", name, struct.pack("<H", len(listed)) + listed + content)


def varint(number: int) -> bytes:
    """A number of up to 14 bits."""
    return bytes([number & 127 | 128, number >> 7])


def tokens() -> None:
    """Indexes and headers of files of tokens."""

    def index(code: int, lengths: list[int], marks: list[int], item: int) -> bytes:
        head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(marks))
        places = np.cumsum([0, *lengths[:-1]]) * item if lengths else np.zeros(0)
        return (
            head
            + np.array(lengths, "<i4").tobytes()
            + places.astype("<i8").tobytes()
            + np.array(marks, "<i8").tobytes()
        )

    write("megatron", "sequences", index(8, [3, 0, 4], [0, 1, 2, 3], 2))
    write("megatron", "documents", index(4, [1, 1, 1], [0, 2, 3], 4))
    write("megatron", "none", index(8, [], [0], 2))

    def shard(samples: list[bytes]) -> bytes:
        offsets = np.cumsum([4 * (len(samples) + 2), *map(len, samples)]).astype("<u4")
        return struct.pack("<I", len(samples)) + offsets.tobytes() + b"".join(samples)

    def mds(encoding: str, size: int | None, content: bytes) -> bytes:
        columns = {"column_names": ["tokens"], "column_encodings": [encoding], "column_sizes": [size]}
        file = {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}}
        facts = {"version": 2, "format": "mds", "compression": None, "hashes": [], "zip_data": None}
        listed = [{**facts, **columns, "samples": 2, "raw_data": file}]
        return json.dumps({"version": 2, "shards": listed}).encode() + b"\0" + content

    rows = [np.arange(count, dtype="<u2").tobytes() for count in (4, 4)]
    write("token_shards", "fixed", mds("ndarray:uint16:4", 8, shard(rows)))
    with_sizes = [struct.pack("<I", 8) + row for row in rows]
    write("token_shards", "bytes", mds("bytes", None, shard(with_sizes)))
    with_shapes = [struct.pack("<IBB", 10, 1 << 2, 4) + row for row in rows]
    write("token_shards", "arrays", mds("ndarray:uint16", None, shard(with_shapes)))
    config = {
        "data_format": ["no_header_tensor:20"],
        "item_loader": "TokensLoader",
        "compression": None,
        "encryption": None,
    }
    chunk = {"filename": "chunk-0-0.bin", "chunk_size": 2, "chunk_bytes": len(shard(rows)), "dim": 8}
    listed = json.dumps({"chunks": [chunk], "config": config}).encode()
    write("token_shards", "litdata", listed + b"\0" + shard(rows))

    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 4
    write("token_heads", "llm-c", header.tobytes() + rows[0])
    file = io.BytesIO()
    np.save(file, np.arange(5, dtype="<u2"))
    write("token_heads", "npy", file.getvalue())


def records() -> None:
    """Shards of other formats, as their own writers wrote them: the golden ones of the tests."""
    golden = Path(__file__).resolve().parents[1] / "python" / "tests" / "golden" / "shards"
    for kind in ("mds", "litdata"):
        write("shard_directory", kind, (golden / kind / "index.json").read_bytes())
    write("chunk_table", "mds", (golden / "mds" / "shard.00002.mds").read_bytes())
    write("chunk_table", "litdata", (golden / "litdata" / "chunk-0-1.bin").read_bytes())
    file = (golden / "tfrecord" / "train.tfrecord-00001-of-00002").read_bytes()
    write("tfrecord", "good", file)
    write("tfrecord", "damaged", file[:100] + b"\xff" * 40 + file[140:-7])
    write("arrow", "stream", (golden / "arrow" / "data-00001-of-00002.arrow").read_bytes())
    write("parquet_shard", "huggingface", (golden / "parquet" / "train-00001-of-00002.parquet").read_bytes())
    rows = pa.table(
        {
            "text": ["a", "bc", None, "a"],
            "number": pa.array([1, 2, 3, None], pa.int16()),
            "list": [[1], None, [2, 3], []],
            "flag": [True, False, None, True],
        }
    )
    encodings = {"text": "DELTA_BYTE_ARRAY", "number": "DELTA_BINARY_PACKED"}
    for name, options in {
        "plain": {"compression": "none", "use_dictionary": False},
        "snappy": {"compression": "snappy"},
        "gzip": {"compression": "gzip", "data_page_version": "2.0"},
        "zstd": {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True},
        "delta": {"compression": "none", "use_dictionary": False, "column_encoding": encodings},
    }.items():
        packed = io.BytesIO()
        pq.write_table(rows, packed, write_statistics=False, store_schema=False, row_group_size=3, **options)
        write("parquet_shard", name, packed.getvalue())
    length = int.from_bytes(file[:8], "little")
    write("example", "features", file[12 : 12 + length])
    grey = struct.pack("<III", 3, 2, 1) + b"L" + bytes(range(6))
    for name, field in {
        "pixels": grey,
        "mds_array": bytes([17, 2 << 2, 2, 1, 1, 0, 2, 0]),
        "numpy": struct.pack("<IIII", 1, 2, 2, 1) + bytes(4),
        "tensor": struct.pack(">IIII", 13, 2, 2, 1) + bytes(4),
    }.items():
        write("record", name, field)
        write("record", f"{name}_field", struct.pack("<II", 2, len(field)) + b"abc" + field)


def parity() -> None:
    """Sidecars of two small files, whole and damaged."""
    with tempfile.TemporaryDirectory() as folder:
        for name, size in (("one_block", 700), ("three_blocks", 9_000)):
            file = Path(folder) / name
            file.write_bytes(bytes(at * at % 251 for at in range(size)))
            subprocess.run([sys.executable, "-m", "forebay", "parity", str(file)], check=True, capture_output=True)
            made = Path(f"{file}.parity").read_bytes()
            write("parity", name, made)
        write("parity", "damaged", made[:30] + b"\xff" * 3 + made[33:4_000])


if __name__ == "__main__":
    shards()
    landmarks()
    parity()
    records()
    lines()
    packed()
    tokens()
    parquet()
    texts()
    state()
    ledger()
    cache_entry()
    npy()
