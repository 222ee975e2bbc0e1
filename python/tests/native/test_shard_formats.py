"""Shards of other formats than tar, as their own writers write them (python/tests/golden/make_shards.py)."""

import io
import json
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import forebay as fb
from forebay import errors
from forebay import transforms as T
from shardfiles import write_mds

GOLDEN = Path(__file__).parent.parent / "golden" / "shards"
ROOTS = {
    "mds": str(GOLDEN / "mds"),
    "litdata": str(GOLDEN / "litdata"),
    "litdata_rows": str(GOLDEN / "litdata_rows"),
    "tfrecord": str(GOLDEN / "tfrecord" / "train.tfrecord-*"),
    "arrow": str(GOLDEN / "arrow"),
    "parquet": str(GOLDEN / "parquet" / "train-*-of-*.parquet"),
}
# Fields that a list of any length has to be asked for.
ARROW = ("image", "text", "long", "ids", "box", "weight", "flag", "raw", "small")
FIELDS = {
    "tfrecord": {name: name for name in ("box", "image/class/label", "image/encoded", "weight")} | {"ids": "ids[]"},
    # One column is of a type that is not read, and one has a null.
    "arrow": {name: name for name in ARROW},
    "parquet": {name: name for name in (*ARROW, "bytes", "meta.source", "meta.year")},
}
SAMPLES = 7


def expected(kind):
    return json.loads((GOLDEN / kind / "expected.json").read_text())


def check(name, value, wanted, tolerance=0):
    """Whether a value is what the format's own reader gives."""
    if isinstance(wanted, dict) and "pixels" in wanted:
        pixels = np.asarray(wanted["pixels"], np.uint8)
        pixels = np.stack([pixels] * 3, -1) if pixels.ndim == 2 else pixels
        difference = np.abs(np.asarray(value).astype(int) - pixels)
        assert difference.max(initial=0) <= tolerance, name
    elif isinstance(wanted, dict) and "bytes" in wanted:
        assert value == bytes.fromhex(wanted["bytes"]), name
    elif isinstance(wanted, dict) and "dtype" in wanted:
        array = np.asarray(value)
        assert str(array.dtype) == wanted["dtype"], name
        assert np.array_equal(array, np.array(wanted["values"], wanted["dtype"])), name
    elif isinstance(wanted, bool | int | float):
        assert value.item() == wanted, name
        assert type(value.item()) is type(wanted), name
    else:
        assert value == wanted, name


@pytest.mark.parametrize("kind", ROOTS)
def test_samples_are_those_of_the_formats_own_reader(kind):
    dataset = fb.Shards(ROOTS[kind], fields=FIELDS.get(kind))
    assert (len(dataset), dataset.notes) == (SAMPLES, [])
    for index, wanted in enumerate(expected(kind)):
        sample = dataset[index]
        if kind not in FIELDS:
            assert list(sample) == list(wanted)
        for name, value in sample.items():
            # libjpeg-turbo's and Pillow's pixels of a JPEG are the same but for rounding.
            check(f"{name} of sample {index}", value, wanted[name], tolerance=2 if name == "jpeg" else 0)


@pytest.mark.parametrize("index", [None, "wds2idx"])
def test_archives_by_webdatasets_writer_are_read_as_by_its_reader(index):
    """With an index of their own, and with that of DALI's tool."""
    dataset = fb.Shards(GOLDEN / "webdataset", index=index)
    wanted = expected("webdataset")
    assert (len(dataset), dataset.notes) == (SAMPLES, [])
    for number, sample in enumerate(wanted):
        got = dataset[number]
        assert got.keys() == sample.keys()
        for name, value in got.items():
            check(f"{name} of sample {number}", value, sample[name])
    paths = [path.removeprefix(f"{GOLDEN}/webdataset/") for path in dataset.paths]
    assert (paths[0], paths[5]) == ("train-000000.tar#0/sample0000.bin", "train-000001.tar#1/sample0005.bin")


@pytest.mark.parametrize("kind", ROOTS)
def test_batches_have_the_fields_of_their_samples(kind):
    picture = {"mds": "pixels", "tfrecord": "image/encoded"}.get(kind, "image")
    label = {"tfrecord": "image/class/label", "arrow": "weight", "parquet": "weight"}.get(kind, "label")
    transform = T.Compose([T.CenterCrop(4), T.ToTensor()])
    dataset = fb.Shards(ROOTS[kind], transform, fields=(picture, label))
    with fb.DataLoader(dataset, batch_size=3, shuffle=True, seed=5, num_workers=2) as loader:
        batches = list(loader)
    assert [tuple(images.shape) for images, _ in batches] == [(3, 3, 4, 4), (3, 3, 4, 4), (1, 3, 4, 4)]
    labels = [number for _, numbers in batches for number in numbers.tolist()]
    wanted = [sample[label] for sample in expected(kind)]
    assert sorted(labels) == sorted(value["values"] if isinstance(value, dict) else value for value in wanted)
    order = [labels.index(number) for number in sorted(labels)]
    images = np.concatenate([images.numpy() for images, _ in batches])
    for index in range(SAMPLES):
        assert np.array_equal(images[order[index]], dataset[index][0].numpy())


def test_a_field_alone_goes_to_its_place_in_the_batch():
    dataset = fb.Shards(ROOTS["mds"], fields="fixed")
    with fb.DataLoader(dataset, batch_size=7) as loader:
        (batch,) = loader
    assert np.array_equal(batch.numpy(), np.stack([np.full((2, 3), index / 2, np.float32) for index in range(7)]))


def test_a_copy_and_a_pickle_have_the_same_samples(tmp_path):
    for kind, root in ROOTS.items():
        dataset = fb.Shards(root, fields=FIELDS.get(kind))
        again = pickle.loads(pickle.dumps(dataset))
        assert (len(again), again.paths) == (SAMPLES, dataset.paths)
        assert list(again[2]) == list(dataset[2])
    shards = Path(shutil.copytree(GOLDEN / "mds", tmp_path / "mds"))
    fb.Shards(shards, index=True)
    assert (shards / "forebay.index").exists()
    kept = fb.Shards(shards, fields="label")
    assert [kept[index].item() for index in range(SAMPLES)] == [index - 3 for index in range(SAMPLES)]
    assert kept.paths[0].endswith("shard.00000.mds#0")


def test_bytes_are_pictures_where_transforms_say_so(tmp_path):
    """Pictures that MDS has as bytes: `transform` says what they are."""
    encoded = io.BytesIO()
    Image.new("RGB", (6, 5), (10, 20, 30)).save(encoded, "PNG")
    columns = {"image": ("bytes", None, encoded.getvalue()), "label": ("int", 8, struct.pack("<q", 7))}
    write_mds(tmp_path, columns)
    assert fb.Shards(tmp_path)[0]["image"] == encoded.getvalue()
    image, label = fb.Shards(tmp_path, T.ToTensor(), fields=("image", "label"))[0]
    assert (tuple(image.shape), label.item()) == ((3, 5, 6), 7)
    assert fb.Shards(tmp_path, fields="label", transforms={"label": lambda label: label + 1})[0].item() == 8
    assert fb.Shards(tmp_path, decode=False)[0]["label"] == struct.pack("<q", 7)


def test_pickled_columns_are_named_and_never_loaded(tmp_path):
    write_mds(tmp_path, {"object": ("pkl", None, pickle.dumps({1})), "label": ("int", 8, bytes(8))})
    with pytest.raises(errors.ConfigError, match="'object' holds a pickled object, which is not read"):
        fb.Shards(tmp_path)
    assert fb.Shards(tmp_path, fields="label")[0].item() == 0
    assert fb.Shards(tmp_path, fields="object", transforms={"object": len})[0] == len(pickle.dumps({1}))
    with pytest.raises(errors.ConfigError, match="expected names among object, label, got nothing"):
        fb.Shards(tmp_path, fields="nothing")


def test_damaged_shards_lose_their_own_samples(tmp_path):
    shards = Path(shutil.copytree(GOLDEN / "mds", tmp_path / "mds"))
    whole = len(fb.Shards(shards))
    second = shards / "shard.00001.mds"
    second.write_bytes(second.read_bytes()[:3000])
    dataset = fb.Shards(shards, fields="label")
    assert len(dataset) == whole
    assert any("cannot be read" in note for _, note in dataset.notes)
    with fb.DataLoader(dataset, batch_size=1, on_error="skip") as loader:
        read = [batch.item() for batch in loader]
        report = loader.failures
    assert len(read) + len(report) == whole
    assert report
    assert {failure.code for failure in report} == {"corrupt"}
    assert all(failure.path.endswith("shard.00001.mds") for failure in report)
    second.write_bytes(b"")
    left_out = fb.Shards(shards, fields="label")
    assert any("samples are left out" in note for _, note in left_out.notes)
    assert 0 < len(left_out) < whole
    second.unlink()
    with pytest.raises(errors.NotFoundError, match=r"shard\.00001\.mds"):
        fb.Shards(shards)


def test_records_that_are_damaged_fail_and_the_others_are_found(tmp_path):
    file = tmp_path / "a.tfrecord"
    content = bytearray((GOLDEN / "tfrecord" / "train.tfrecord-00000-of-00002").read_bytes())
    first = 16 + struct.unpack_from("<Q", content)[0]
    content[first + 40] ^= 1  # in the second record
    file.write_bytes(content)
    dataset = fb.Shards(file, fields="weight")
    assert len(dataset) == 4
    with pytest.raises(errors.CorruptError, match="checksum"):
        dataset[1]
    assert dataset[2].item() == 0.5
    content[first] ^= 1  # its length
    file.write_bytes(content)
    dataset = fb.Shards(file, fields="weight")
    assert [dataset[index].item() for index in range(len(dataset))] == [0, 0.5, 0.75]
    ((path, note),) = dataset.notes
    assert (path, f"bytes {first}.." in note) == (str(file), True)


def test_records_that_are_no_examples_are_bytes():
    dataset = fb.Shards(ROOTS["tfrecord"], decode=False)
    content = (GOLDEN / "tfrecord" / "train.tfrecord-00000-of-00002").read_bytes()
    length = struct.unpack_from("<Q", content)[0]
    assert dataset[0]["record"] == content[12 : 12 + length]


def test_a_feature_of_another_length_says_how_to_name_it():
    dataset = fb.Shards(ROOTS["tfrecord"], fields="ids")
    assert dataset[0].item() == 2**40
    with pytest.raises(errors.CorruptError, match=r"has 4 values \(expected 1, as in the first example\)") as error:
        dataset[3]
    assert '"ids[]"' in error.value.hint
    with fb.DataLoader(fb.Shards(ROOTS["tfrecord"], fields="ids[]"), batch_size=7, ragged="list") as loader:
        (batch,) = loader
    assert [len(ids) for ids in batch] == [1, 2, 3, 4, 5, 6, 7]


def test_what_is_not_read_says_what_it_is(tmp_path):
    for name, content, part in [
        ("a.parquet", b"PAR1" + bytes(20), "has no footer that can be read"),
        ("index.json", b"{}", "is no index of shards"),
    ]:
        directory = tmp_path / name.partition(".")[0]
        directory.mkdir()
        (directory / name).write_bytes(content)
        with pytest.raises((errors.NotFoundError, errors.UndecodableError, errors.CorruptError), match=part):
            fb.Shards(directory)
    packed = tmp_path / "b.tfrecord"
    packed.write_bytes(b"\x1f\x8b" + bytes(30))
    with pytest.raises(errors.UndecodableError, match="looks like a file compressed with gzip"):
        fb.Shards(packed)
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    zip_data = {"basename": "shard.00000.mds.zstd", "bytes": 3, "hashes": {}}
    write_mds(zipped, {"label": ("int", 8, bytes(8))}, compression="zstd", zip_data=zip_data)
    assert len(fb.Shards(zipped)) == 1
    (zipped / "shard.00000.mds").unlink()
    with pytest.raises(errors.UndecodableError, match="only in its compressed form") as error:
        fb.Shards(zipped)
    assert "streaming" in error.value.hint


def test_columns_of_arrow_that_are_not_read_and_values_that_are_not_there_say_so(tmp_path):
    with pytest.raises(errors.ConfigError, match="'nested' holds a struct, which is not read"):
        fb.Shards(GOLDEN / "arrow")
    dataset = fb.Shards(GOLDEN / "arrow", fields="label")
    assert [dataset[index].item() for index in range(SAMPLES - 1)] == [1, 2, 3, 0, 1, 2]
    with pytest.raises(errors.CorruptError, match=r"data-00001-of-00002\.arrow#2\.label.*has no value \(null\)"):
        dataset[SAMPLES - 1]
    with fb.DataLoader(dataset, batch_size=2, on_error="skip") as loader:
        assert sum(len(batch) for batch in loader) == SAMPLES - 1
        assert [failure.member for failure in loader.failures] == ["2.label"]
    assert fb.Shards(GOLDEN / "arrow", fields="text", decode=False)[4] == "größer 4".encode()


def test_arrow_files_of_any_writer_are_read(tmp_path):
    """Several record batches, offsets that are not at 0, the file format, and types that `datasets` does not write."""
    rows = 1000
    table = pa.table(
        {
            "number": pa.array(range(rows), pa.uint16()),
            "text": pa.array([str(row) if row % 3 else None for row in range(rows)], pa.large_string()),
            "lists": pa.array([[row] * (row % 4) for row in range(rows)], pa.large_list(pa.float64())),
            "flag": pa.array([row % 5 == 0 for row in range(rows)]),
            "when": pa.array([0] * rows, pa.timestamp("us")),
            "words": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
            "behind": pa.array([bytes([row % 256]) * (row % 7) for row in range(rows)], pa.binary()),
        }
    )
    with pa.ipc.new_stream(tmp_path / "stream.arrow", table.schema) as writer:
        writer.write_table(table.slice(1, 400), max_chunksize=77)
    with pa.ipc.new_file(tmp_path / "file.arrow", table.schema) as writer:
        writer.write_table(table.slice(401), max_chunksize=300)
    names = ("number", "lists", "flag", "behind")
    dataset = fb.Shards([tmp_path / "stream.arrow", tmp_path / "file.arrow"], fields=names)
    assert (len(dataset), dataset.notes) == (rows - 1, [])
    for row in range(1, rows):
        number, lists, flag, behind = dataset[row - 1]
        assert (number.item(), lists.tolist(), flag.item()) == (row, [row] * (row % 4), row % 5 == 0)
        assert behind == bytes([row % 256]) * (row % 7)
    texts = fb.Shards(tmp_path / "stream.arrow", fields="text")
    assert texts[0] == "1"
    with pytest.raises(errors.CorruptError, match="null"):
        texts[2]
    with pa.ipc.new_file(
        tmp_path / "packed.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(table)
    with pytest.raises(errors.UndecodableError, match="record batches that are compressed"):
        fb.Shards(tmp_path / "packed.arrow")
    other = pa.table({"number": pa.array([1], pa.int64())})
    with pa.ipc.new_stream(tmp_path / "other.arrow", other.schema) as writer:
        writer.write_table(other)
    with pytest.raises(errors.UndecodableError, match="has other columns"):
        fb.Shards([tmp_path / "stream.arrow", tmp_path / "other.arrow"], fields="number")


def test_a_directory_of_several_datasets_names_the_way(tmp_path):
    shutil.copytree(GOLDEN / "arrow", tmp_path / "train")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(errors.UndecodableError, match="several datasets") as error:
        fb.Shards(tmp_path)
    assert "train" in error.value.hint
    assert len(fb.Shards(tmp_path / "train", fields="text")) == SAMPLES


def test_columns_that_differ_in_case_alone_are_two(tmp_path):
    rows = pa.table({"Label": [1, 2], "label": [3, 4]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    both = fb.Shards(tmp_path / "a.arrow")
    assert [{name: value.item() for name, value in both[row].items()} for row in range(2)] == rows.to_pylist()
    assert fb.Shards(tmp_path / "a.arrow", fields="label")[1].item() == 4
