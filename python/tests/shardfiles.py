"""Shards of other formats than tar, written by hand: a sample here and there, whatever is wrong with it.

Those of the formats' own writers are in golden/shards.
"""

import json
import struct
from pathlib import Path
from typing import Any

# Name: encoding, size where it is fixed, and bytes.
Columns = dict[str, tuple[str, int | None, bytes]]


def mds_shard(columns: Columns) -> bytes:
    """A shard of one sample."""
    sizes = b"".join(struct.pack("<I", len(data)) for _, size, data in columns.values() if size is None)
    record = sizes + b"".join(data for _, _, data in columns.values())
    return struct.pack("<III", 1, 12, 12 + len(record)) + record


def mds_listed(name: str, shard: bytes, columns: Columns, **more: Any) -> dict[str, Any]:
    """What an index.json says of such a shard."""
    return {
        "column_encodings": [encoding for encoding, _, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size, _ in columns.values()],
        "compression": None,
        "format": "mds",
        "raw_data": {"basename": name, "bytes": len(shard), "hashes": {}},
        "samples": 1,
        "version": 2,
        "zip_data": None,
        **more,
    }


def write_mds(directory: Path, columns: Columns, name: str = "shard.00000.mds", **more: Any) -> None:
    """Adds a shard of one sample to a directory and its index."""
    index = directory / "index.json"
    listed = json.loads(index.read_text())["shards"] if index.exists() else []
    shard = mds_shard(columns)
    (directory / name).write_bytes(shard)
    listed = [*listed, mds_listed(name, shard, columns, **more)]
    index.write_text(json.dumps({"version": 2, "shards": listed}))


def example(features: dict[str, bytes | float | int]) -> bytes:
    """A tf.train.Example with one value in each of its features."""

    def field(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    def feature(value: bytes | float | int) -> bytes:
        if isinstance(value, bytes):
            return field(1, field(1, value))
        if isinstance(value, float):
            return field(2, field(1, struct.pack("<f", value)))
        return field(3, field(1, varint(value)))

    entries = [field(1, field(1, name.encode()) + field(2, feature(value))) for name, value in features.items()]
    return field(1, b"".join(entries))


def varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def framed(record: bytes) -> bytes:
    """A record as it is in a TFRecord file."""
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
