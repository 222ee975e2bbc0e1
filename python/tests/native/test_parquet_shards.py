"""Parquet files as shards, as pyarrow and `datasets` write them: values, damage, and what is refused."""

import io
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import forebay as fb
from forebay import errors
from forebay import transforms as T

GOLDEN = Path(__file__).parent.parent / "golden" / "shards" / "parquet"
ROWS = 700


def words(row: int) -> str:
    return f"wörter {row % 17} " * (row % 5)


def maybe(every: int, row: int, value: Any) -> Any:
    return None if row % every == 0 else value


def table() -> pa.Table:
    numbers = {
        **{f"int{bits}": (-(2 ** (bits - 1)) + 1, getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": (2**bits - ROWS % 100 - 100, getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)},
    }
    rng = np.random.default_rng(3)
    return pa.table(
        {
            **{
                name: pa.array([first + row % 100 for row in range(ROWS)], kind)
                for name, (first, kind) in numbers.items()
            },
            "float16": pa.array(np.arange(ROWS).astype(np.float16)),
            "float32": pa.array(rng.random(ROWS).astype(np.float32)),
            "float64": pa.array(rng.random(ROWS)),
            "bool": pa.array([row % 3 == 0 for row in range(ROWS)]),
            "text": pa.array([words(row) for row in range(ROWS)]),
            "large_text": pa.array([words(row) * 2 for row in range(ROWS)], pa.large_string()),
            "binary": pa.array([bytes([row % 256]) * (row % 300) for row in range(ROWS)], pa.binary()),
            "fixed": pa.array([bytes([row % 256]) * 16 for row in range(ROWS)], pa.binary(16)),
            "number_or_not": pa.array([maybe(7, row, row) for row in range(ROWS)], pa.int64()),
            "text_or_not": pa.array([maybe(5, row, words(row)) for row in range(ROWS)]),
            "bool_or_not": pa.array([maybe(5, row, row % 2 == 0) for row in range(ROWS)]),
            "nothing": pa.array([None] * ROWS, pa.float32()),
            "list": pa.array([list(range(row % 11)) for row in range(ROWS)], pa.list_(pa.int32())),
            "bytes": pa.array([list(range(row % 11)) for row in range(ROWS)], pa.list_(pa.uint8())),
            "list_or_not": pa.array(
                [maybe(6, row, [None] if row % 6 == 1 else [row / 2] * (row % 4)) for row in range(ROWS)],
                pa.list_(pa.float64()),
            ),
            "pair": pa.array([[row, row + 1] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
            "struct": pa.array([maybe(4, row, {"a": row, "inner": {"b": f"x{row}"}}) for row in range(ROWS)]),
            "lists": pa.array([[[row]] for row in range(ROWS)]),
            "map": pa.array([[("key", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64())),
            "when": pa.array(range(ROWS), pa.timestamp("us")),
            "money": pa.array([None] * ROWS, pa.decimal128(9, 2)),
        }
    )


TABLE = table()
OTHERS = ("struct", "lists", "map", "when", "money")
NAMES = [name for name in TABLE.column_names if name not in OTHERS] + ["struct.a", "struct.inner.b"]


def plain(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else value.tolist()


def value_of(row: dict[str, Any], name: str) -> Any:
    """What pyarrow reads; `None` for what has failed."""
    value: Any = row
    for part in name.split("."):
        value = None if value is None else value[part]
    return None if isinstance(value, list) and None in value else value


def read(dataset: Any, index: int) -> Any:
    try:
        return plain(dataset[index])
    except errors.CorruptError as error:
        assert "has no value (null)" in str(error)
        return None


def compare(path: Path, names: Any = tuple(NAMES), step: int = 7) -> None:
    """Whether every column has the values that pyarrow reads from the same file."""
    rows = pq.read_table(path).to_pylist()
    for name in names:
        dataset = fb.Shards(path, fields=name)
        assert (len(dataset), dataset.notes) == (len(rows), [])
        wanted = [value_of(row, name) for row in rows[::step]]
        assert [read(dataset, index) for index in range(0, len(rows), step)] == wanted, name


FORMS = list(itertools.product(["none", "snappy", "gzip", "zstd"], ["1.0", "2.0"], [True, False]))


@pytest.mark.parametrize(("compression", "version", "dictionary"), FORMS)
def test_values_are_those_that_pyarrow_reads(tmp_path, compression, version, dictionary):
    """Several row groups, several pages in each, and rows of lists that go on in the next page."""
    path = tmp_path / "a.parquet"
    pages = {"row_group_size": 400, "data_page_size": 600, "write_batch_size": 64}
    form = {"compression": compression, "data_page_version": version, "use_dictionary": dictionary}
    pq.write_table(TABLE, path, **form, **pages)
    compare(path)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize(
    ("encoding", "names"),
    [
        ("DELTA_BINARY_PACKED", ("int8", "int32", "int64", "uint16", "uint64", "number_or_not", "list")),
        ("DELTA_LENGTH_BYTE_ARRAY", ("text", "binary", "text_or_not", "large_text")),
        ("DELTA_BYTE_ARRAY", ("text", "binary", "text_or_not", "fixed")),
        ("BYTE_STREAM_SPLIT", ("float16", "float32", "float64", "int32", "int64", "fixed", "number_or_not")),
        ("RLE", ("bool", "bool_or_not")),
    ],
)
def test_values_of_every_encoding_are_read(tmp_path, compression, encoding, names):
    path = tmp_path / "a.parquet"
    leaf = {"list": "list.list.element"}
    encodings = {leaf.get(name, name): encoding for name in names}
    chosen = TABLE.select(list(names))
    pages = {"row_group_size": 500, "data_page_size": 500, "write_page_checksum": True}
    pq.write_table(chosen, path, use_dictionary=False, column_encoding=encodings, compression=compression, **pages)
    used = {
        encoding
        for group in range(pq.ParquetFile(path).metadata.num_row_groups)
        for encoding in pq.ParquetFile(path).metadata.row_group(group).column(0).encodings
    }
    assert encoding in used
    compare(path, names)


def test_numbers_have_the_type_of_their_column(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for name in [
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    ]:
        assert str(fb.Shards(tmp_path / "a.parquet", fields=name)[1].numpy().dtype) == name
    assert fb.Shards(tmp_path / "a.parquet", fields="list")[5].numpy().dtype == np.int32


def test_batches_of_compressed_columns_are_the_rows(tmp_path):
    """Every row once, whatever the order, by several threads."""
    for number in range(3):
        pq.write_table(
            TABLE.slice(number * 200, 200), tmp_path / f"train-{number:05}-of-00003.parquet", row_group_size=64
        )
    dataset = fb.Shards(tmp_path, fields={"number": "float64", "text": "text", "list": "bytes"})
    rows = {row["float64"]: row for row in TABLE.to_pylist()[:600]}
    for shuffle in (False, True, "window", "auto"):
        with fb.DataLoader(dataset, batch_size=50, shuffle=shuffle, num_workers=2, ragged="list") as loader:
            batches = list(loader)
        read = [
            (number.item(), text, values.tolist())
            for batch in batches
            for number, text, values in zip(batch["number"], batch["text"], batch["list"], strict=True)
        ]
        assert len(read) == 600
        assert all(rows[number]["text"] == text and rows[number]["bytes"] == values for number, text, values in read)
        assert len({number for number, _, _ in read}) == 600


def test_pictures_of_datasets_are_pictures(tmp_path):
    dataset = fb.Shards(GOLDEN, T.Compose([T.CenterCrop(4), T.ToTensor()]), fields=("image", "weight"))
    with fb.DataLoader(dataset, batch_size=7) as loader:
        ((images, weights),) = loader
    assert (tuple(images.shape), weights.tolist()) == ((7, 3, 4, 4), [index / 4 for index in range(7)])
    raw = fb.Shards(GOLDEN, fields="image", decode=False)[3]
    assert np.asarray(Image.open(io.BytesIO(raw))).shape == (5, 6, 3)
    # Without what `datasets` writes about its columns they are two fields of a struct.
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(GOLDEN / "train-00000-of-00002.parquet").replace_schema_metadata(), bare)
    assert fb.Shards(bare, fields="image.bytes")[0] == fb.Shards(GOLDEN, fields="image", decode=False)[0]
    assert fb.Shards(bare, T.ToTensor(), fields="image.bytes")[0].shape == (3, 5, 6)


def test_columns_that_are_not_read_and_codecs_that_are_not_known_say_so(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    for name, what in {
        "lists": "a list of something else than numbers",
        "map": "a map",
        "when": "dates or times",
        "money": "decimals",
    }.items():
        with pytest.raises(errors.ConfigError, match=f"{name!r} holds {what}, which is not read"):
            fb.Shards(path, fields=name)
    with pytest.raises(errors.ConfigError, match="expected names among int8, int16"):
        fb.Shards(path, fields="nothing_there")
    packed = tmp_path / "b.parquet"
    pq.write_table(TABLE.select(["int8", "text"]), packed, compression={"int8": "snappy", "text": "brotli"})
    assert fb.Shards(packed, fields="int8")[1].item() == -126
    assert fb.Shards(packed, fields="int8", index=tmp_path / "kept")[1].item() == -126
    with pytest.raises(errors.ConfigError, match="'text' holds values compressed with Brotli, which is not read"):
        fb.Shards(packed)
    both = [tmp_path / "c.parquet", packed]
    pq.write_table(TABLE.select(["int8", "text"]), both[0])
    with pytest.raises(errors.UndecodableError, match=r"b\.parquet.* compressed with Brotli") as error:
        fb.Shards(both, fields="text")
    assert 'compression="snappy"' in error.value.hint
    other = tmp_path / "d.parquet"
    pq.write_table(pa.table({"int8": pa.array([1], pa.int32())}), other)
    with pytest.raises(errors.UndecodableError, match="has other columns, or other types of them"):
        fb.Shards([path, other], fields="int8")


def test_files_that_are_no_samples_are_refused(tmp_path):
    path = tmp_path / "secret.parquet"
    content = bytearray((GOLDEN / "train-00000-of-00002.parquet").read_bytes())
    content[-4:] = b"PARE"
    path.write_bytes(content)
    with pytest.raises(errors.UndecodableError, match="is encrypted"):
        fb.Shards(path)
    manifest = tmp_path / "manifest.parquet"
    pq.write_table(pa.table({"path": ["a.png"]}).replace_schema_metadata({"forebay.version": "0.1.0"}), manifest)
    with pytest.raises(errors.UndecodableError, match="is a manifest") as error:
        fb.Shards(manifest)
    assert "manifest=" in error.value.hint


def test_a_manifest_in_parquet_names_files_in_parquet(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "data")
    names = sorted(path.name for path in GOLDEN.glob("*.parquet"))
    pq.write_table(pa.table({"path": names}), tmp_path / "manifest.parquet")
    dataset = fb.Shards(tmp_path / "data", fields="long", manifest=tmp_path / "manifest.parquet")
    assert [dataset[index] for index in range(7)] == [f"long {index}" for index in range(7)]
    assert (tmp_path / "manifest.parquet.index").exists()
    again = fb.Shards(tmp_path / "data", fields="weight", manifest=tmp_path / "manifest.parquet")
    assert again[6].item() == 1.5


def test_an_index_that_is_kept_has_all_columns(tmp_path):
    shards = Path(shutil.copytree(GOLDEN, tmp_path / "data"))
    first = fb.Shards(shards, fields="weight", index=True)
    assert (shards / "forebay.index").exists()
    kept = (shards / "forebay.index").stat()
    other = fb.Shards(shards, fields=("long", "image"), index=True)
    assert (other[6][0], first[6].item()) == ("long 6", 1.5)
    assert (shards / "forebay.index").stat().st_mtime_ns == kept.st_mtime_ns
    beside = fb.Shards(shards, fields="flag")
    assert [beside[index].item() for index in range(7)] == [index % 2 == 0 for index in range(7)]


def test_damage_costs_the_samples_that_it_is_in(tmp_path):
    """Two hundred bytes flipped after the index was made, one at a time."""
    names = ("image", "text", "ids", "weight")
    good_file = GOLDEN / "train-00001-of-00002.parquet"
    content = good_file.read_bytes()
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    kept = fb.Shards(path, fields=names, decode=False)
    good = [tuple(map(str, kept[index])) for index in range(len(kept))]
    rng, damaged_epochs = random.Random(7), 0
    for _ in range(200):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with fb.DataLoader(kept, batch_size=1, on_error="skip", collate_fn=lambda samples: samples) as loader:
            read = [tuple(map(str, batch[0])) for batch in loader]
            failed = len(loader.failures)
        assert len(read) + failed == len(good) == 3
        assert all(sample in good for sample in read)
        damaged_epochs += failed > 0
    assert damaged_epochs > 5


def test_damage_before_the_index_is_made_is_planned_and_said(tmp_path):
    path = tmp_path / "a.parquet"
    form = {"compression": "snappy", "row_group_size": 100, "data_page_size": 100, "write_batch_size": 10}
    pq.write_table(TABLE.select(["text", "int64"]), path, use_dictionary=False, write_page_checksum=True, **form)
    content, rows = path.read_bytes(), TABLE.to_pylist()
    last = pq.ParquetFile(path).metadata.row_group(6).column(0).data_page_offset
    rng, lost_epochs = random.Random(5), 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[rng.randrange(4, last)] ^= 4
        other = tmp_path / "b.parquet"
        other.write_bytes(damaged)
        dataset = fb.Shards(other, fields=("text", "int64"), decode=False)
        assert len(dataset) == ROWS
        with fb.DataLoader(dataset, batch_size=ROWS, on_error="skip", collate_fn=lambda samples: samples) as loader:
            read = [sample for batch in loader for sample in batch]
            failed = len(loader.failures)
        assert len(read) + failed == ROWS
        wanted = {(row["text"].encode(), row["int64"].to_bytes(8, "little", signed=True)) for row in rows}
        assert all(tuple(sample) in wanted for sample in read), "pages have checksums"
        assert (failed > 0) == bool(dataset.notes)
        lost_epochs += failed > 0
    assert lost_epochs > 30


def test_a_file_without_a_footer_costs_itself(tmp_path):
    shards = Path(shutil.copytree(GOLDEN, tmp_path / "data"))
    first = shards / "train-00000-of-00002.parquet"
    first.write_bytes(first.read_bytes()[:-9])
    dataset = fb.Shards(shards, fields="long")
    assert [dataset[index] for index in range(len(dataset))] == ["long 4", "long 5", "long 6"]
    (path, note), _ = dataset.notes
    assert (path, "its samples are left out" in note) == (str(first), True)
    with pytest.raises(
        errors.CorruptError, match=r"train-00000-of-00002\.parquet.*has no footer that can be read"
    ) as error:
        fb.Shards(first)
    assert "footer" in error.value.hint


def test_the_same_files_with_other_columns_are_not_joined(tmp_path):
    """What is unpacked lies elsewhere for each of them."""
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    texts, numbers = fb.Shards(path, fields="text"), fb.Shards(path, fields="binary")
    joined = fb.concat([texts, fb.Shards(path, fields="text")])
    assert (joined[3], joined[ROWS + 4]) == (words(3), words(4))
    with pytest.raises(errors.ConfigError, match="unpacked by two of the datasets"):
        fb.concat([numbers, texts])


def test_the_order_of_auto_does_not_depend_on_the_columns_or_on_the_index(tmp_path):
    """A state has to be good for a run that has an index, or reads fewer columns."""
    rows = pa.table({"plain": [bytes([row]) for row in range(100)], "packed": list(range(100))})
    file = tmp_path / "a.parquet"
    pq.write_table(rows, file, compression={"plain": "none", "packed": "snappy"}, use_dictionary=False)
    orders = []
    for fields, index in (
        ("plain", None),
        ("packed", None),
        (("plain", "packed"), None),
        ("plain", tmp_path / "index"),
    ):
        with fb.DataLoader(fb.Shards(file, fields=fields, index=index), batch_size=7, shuffle="auto", seed=3) as loader:
            orders.append((loader.stats()["order"], [loader.explain(step)[0]["index"] for step in range(len(loader))]))
    assert orders[0][0]["kind"] == "window"
    assert all(order == orders[0] for order in orders)
