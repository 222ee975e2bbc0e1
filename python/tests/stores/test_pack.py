"""`forebay pack`: what is in shards is what was in the source, for forebay, for tarfile, and over a network."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import faultproxy
import folders
import forebay as fb
import objectstore
from forebay import transforms as T


def pack(source: object, target: object, *more: str, status: int = 0) -> Any:
    """What the command says as JSON."""
    command = [sys.executable, "-m", "forebay", "pack", str(source), "-o", str(target), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout)


def members(target: Path) -> dict[str, dict[str, bytes]]:
    """Keys, and the bytes of their fields, by the rule of WebDataset and the parser of the standard library."""
    samples: dict[str, dict[str, bytes]] = {}
    for shard in sorted(target.glob("*.tar")):
        last = None
        with tarfile.open(shard) as archive:
            for member in archive:
                assert member.isfile() and (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
                directory, _, name = member.name.rpartition("/")
                key, _, field = name.partition(".")
                key = f"{directory}/{key}" if directory else key
                assert key == last or key not in samples, f"{key} is in two places"
                content = archive.extractfile(member)
                assert content is not None and field not in samples.get(key, {})
                samples.setdefault(key, {})[field] = content.read()
                last = key
    return samples


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folders.write_folder(tmp_path / "source", 30)
    picture = sorted((tmp_path / "source").rglob("*.jpg"))[0]
    for name in ("a.b.jpg", "a.jpg", "ü 猫.jpg", "back\\slash.jpg", "n" * 150 + ".jpg", "..odd.jpg", "100%.jpg"):
        (picture.parent / name).write_bytes(picture.read_bytes())
    return tmp_path / "source"


def test_shards_give_the_samples_of_the_folder(source: Path, tmp_path: Path) -> None:
    told = pack(source, tmp_path / "shards", "--samples-per-shard", "10")
    files = fb.ImageFolder(source, transform=T.ToTensor())
    assert told["packed"] == len(files) and len(told["shards"]) == -(-len(files) // 10)
    shards = fb.Shards(tmp_path / "shards", fields=("jpg", "cls"), transform=T.ToTensor())
    assert len(shards) == len(files) and not shards.notes
    for number in range(len(files)):
        (picture, label), (expected, expected_label) = shards[number], files[number]
        assert (picture == expected).all() and label == expected_label, number
    assert json.loads((tmp_path / "shards" / "classes.json").read_text()) == files.class_to_idx
    raw = fb.Shards(tmp_path / "shards", fields=("jpg", "cls"), decode=False)
    for number, (path, _) in enumerate(files.samples):
        assert bytes(raw[number][0]) == Path(path).read_bytes(), path


def test_they_are_opened_by_their_index_alone(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "shards", "--prefix", "train")
    archive = tmp_path / "shards" / "train-000000.tar"
    # Other bytes of the same length: a reader would see no samples.
    archive.write_bytes(bytes(archive.stat().st_size))
    for place in (tmp_path / "shards", tmp_path / "shards" / "train.jsonl"):
        shards = fb.Shards(manifest=place) if place.suffix else fb.Shards(place)
        assert len(shards) == sum(1 for _ in source.rglob("*.jpg")), place
        with pytest.raises(fb.ForebayError, match="is not what it was"):
            shards[0]


def test_tarfile_reads_the_same_keys_and_bytes(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "shards", "--shard-size", "20kB", "--shuffle", "5")
    found = members(tmp_path / "shards")
    classes = {name: number for number, name in enumerate(sorted(os.listdir(source)))}
    paths = [path.relative_to(source) for path in source.rglob("*.jpg")]
    assert len(found) == len(paths)
    for path in paths:
        stem = path.name.removesuffix(".jpg").replace("%", "%25").replace(".", "%2E").replace("\\", "%5C")
        fields = found[f"{path.parent}/{stem}"]
        expected = {"jpg": (source / path).read_bytes(), "cls": str(classes[str(path.parent)]).encode()}
        assert fields == expected, path


def test_a_packed_set_is_packed_again_with_its_keys(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "shards", "--samples-per-shard", "7")
    pack(tmp_path / "shards", tmp_path / "again", "--samples-per-shard", "16")
    assert members(tmp_path / "again") == members(tmp_path / "shards")
    pack(source / sorted(os.listdir(source))[0], tmp_path / "flat", "--no-labels")
    assert all(set(fields) == {"jpg"} for fields in members(tmp_path / "flat").values())


def test_a_manifest_is_packed_and_its_checksums_are_compared(source: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "source.parquet"
    command = [sys.executable, "-m", "forebay", "scan", str(source), "-o", str(manifest), "--deep"]
    subprocess.run(command, check=True, capture_output=True)
    picture = sorted(source.rglob("*.jpg"))[3]
    status, content = picture.stat(), bytearray(picture.read_bytes())
    content[-4] ^= 1
    picture.write_bytes(content)
    os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns))
    told = pack(manifest, tmp_path / "shards", "--no-check", status=1)
    assert told["failed"] == 1 and told["failures"][0]["path"] == str(picture)
    assert told["failures"][0]["code"] == "corrupt" and "expected xxh3" in told["failures"][0]["message"]
    assert len(members(tmp_path / "shards")) == told["samples"] - 1


def test_smaller_pictures_are_those_of_resize(tmp_path: Path) -> None:
    for number, size in enumerate([(300, 200), (200, 300), (64, 64)]):
        picture = Image.effect_noise(size, 60).convert("RGB")
        exif = Image.Exif()
        exif[0x0112] = 6
        (tmp_path / "source" / "a").mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "source" / "a" / f"{number}.png", exif=exif)
    told = pack(tmp_path / "source", tmp_path / "png", "--max-side", "96")
    assert told["pictures"]["written_again"] == 2
    shards = fb.Shards(tmp_path / "png", fields="png", transform=T.ToTensor())
    files = fb.ImageFolder(tmp_path / "source", transform=T.Compose([T.Resize(None, max_size=96), T.ToTensor()]))
    assert (shards[0] == files[0][0]).all() and (shards[1] == files[1][0]).all()
    assert shards[2].shape == (3, 64, 64)
    pack(tmp_path / "source", tmp_path / "jpg", "--format", "jpeg", "--quality", "95", "--max-side", "96")
    for fields in members(tmp_path / "jpg").values():
        (tmp_path / "one.jpg").write_bytes(fields["jpg"])
        with Image.open(tmp_path / "one.jpg") as picture:
            assert picture.format == "JPEG" and max(picture.size) <= 96 and picture.getexif()[0x0112] == 6


def test_a_bucket_is_packed_and_packed_into(store: objectstore.ObjectStore, source: Path, tmp_path: Path) -> None:
    # The one name that the store does not find again.
    next(path for path in source.rglob("*.jpg") if "\\" in path.name).unlink()
    store.put_folder(source, "files/train")
    options = [f"{name}={value}" for name, value in store.options.items()]
    of_source = [part for option in options for part in ("--storage-option", option)]
    of_target = [part for option in options for part in ("--target-option", option)]
    settings = ("--shard-size", "20kB", "--threads", "8")
    here = pack(source, tmp_path / "here", *settings)
    there = pack("s3://bucket/files/train", "s3://bucket/packed", *settings, *of_source, *of_target)
    assert there["shards"] == here["shards"] and there["classes"] == here["classes"]
    again = pack("s3://bucket/files/train", "s3://bucket/packed", *settings, *of_source, *of_target)
    assert again["kept_shards"] == len(here["shards"])
    pack("s3://bucket/packed", tmp_path / "back", "--kind", "shards", "--samples-per-shard", "1000", *of_source)
    assert members(tmp_path / "back") == members(tmp_path / "here")
    shards = fb.Shards("s3://bucket/packed", fields=("jpg", "cls"), decode=False, storage_options=store.options)
    assert len(shards) == here["packed"] and not shards.notes
    for said in (json.dumps(there), json.dumps(again)):
        assert objectstore.SECRET not in said


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_network_that_fails_is_asked_again(
    store: objectstore.ObjectStore, folder: Path, tmp_path: Path, fault: str
) -> None:
    store.put_folder(folder, f"faults/{fault}")
    proxy = faultproxy.FaultProxy(store.port)
    try:
        proxy.rule = lambda key, asked, chance: fault if key.endswith("3.jpg") and asked < 2 else None
        given = {**store.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        options = [part for name, value in given.items() for part in ("--storage-option", f"{name}={value}")]
        pack(f"s3://bucket/faults/{fault}", tmp_path / "there", *options)
        assert proxy.faults()[fault] == 2 * sum(path.name.endswith("3.jpg") for path in folder.rglob("*.jpg")) > 0
        proxy.rule = lambda key, asked, chance: "404" if key.endswith("/0007.jpg") else None
        told = pack(f"s3://bucket/faults/{fault}", tmp_path / "fewer", *options, status=1)
    finally:
        proxy.close()
    pack(folder, tmp_path / "here")
    assert members(tmp_path / "there") == members(tmp_path / "here")
    assert [failure["code"] for failure in told["failures"]] == ["not_found"] and told["packed"] == 23


GOLDEN = Path(__file__).parent.parent / "golden" / "shards"
ARROW = ["image", "text", "long", "ids", "box", "weight", "flag", "raw", "small"]
# Of each format, the pattern that `fb.Shards` finds its files by, and the fields that are packed if not all are.
FORMATS: dict[str, tuple[str, list[str] | None]] = {
    "mds": ("", None),
    "litdata": ("", None),
    "litdata_rows": ("", None),
    "tfrecord": ("train.tfrecord-*", ["box", "image/class/label", "image/encoded", "weight", "ids[]"]),
    "arrow": ("", ARROW),
    "parquet": ("train-*-of-*.parquet", [*ARROW, "bytes", "meta.source", "meta.year"]),
}


def packed_names(target: Path, column: str) -> str:
    """The fields that a column has become, whatever its pictures are."""
    base = column.removesuffix("[]").replace("/", "%2f").lower()
    fields = {field for sample in members(target).values() for field in sample}
    found = sorted(field for field in fields if field == base or field.rpartition(".")[0] == base)
    assert found, (column, fields)
    return ";".join(found)


def check_equal(value: Any, expected: Any, told: str) -> None:
    assert type(value) is type(expected), told
    if isinstance(expected, str | bytes | dict | list):
        assert value == expected, told
    else:
        got, wanted = np.asarray(value), np.asarray(expected)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), told
        assert np.array_equal(got, wanted), told


@pytest.mark.parametrize("kind", FORMATS)
def test_every_value_of_other_formats_is_the_same_in_archives(kind: str, tmp_path: Path) -> None:
    pattern, fields = FORMATS[kind]
    chosen = () if fields is None else ("--fields", ",".join(fields))
    told = pack(GOLDEN / kind, tmp_path / "shards", "--samples-per-shard", "3", *chosen)
    assert (told["samples"], told["packed"], told["failed"], told["notes"]) == (7, 7, 0, [])
    wanted = None if fields is None else {name: name for name in fields}
    source = fb.Shards(str(GOLDEN / kind / pattern), fields=wanted)
    names = {name: packed_names(tmp_path / "shards", name) for name in source[0]}
    packed = fb.Shards(tmp_path / "shards", fields=names)
    as_they_are = fb.Shards(tmp_path / "shards", fields=names, decode=False)
    assert len(packed) == len(source) == 7
    for number in range(7):
        expected, sample = source[number], packed[number]
        assert list(sample) == list(expected)
        for name, value in sample.items():
            if (kind, name) == ("litdata_rows", "image"):
                # Of bytes that are pictures archives say so, by their ending.
                assert value.size == (6, value.height)
                value = as_they_are[number][name]
            check_equal(value, expected[name], f"{name} of sample {number}")
    # Numbers of any type are in a batch what they were.
    numbers = [name for name, field in names.items() if field.endswith((".cls", ".npy")) and source[0][name].ndim == 0]
    assert numbers
    of_source = fb.Shards(str(GOLDEN / kind / pattern), fields={name: name for name in numbers})
    of_packed = fb.Shards(tmp_path / "shards", fields={name: names[name] for name in numbers})
    batches = [list(fb.DataLoader(shards, batch_size=4, shuffle=True, seed=3)) for shards in (of_packed, of_source)]
    for batch, expected in zip(*batches, strict=True):
        assert list(batch) == list(expected) == numbers
        for name in numbers:
            check_equal(batch[name], expected[name], name)


def test_columns_that_are_not_read_are_refused_and_the_others_are_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forebay", "pack", str(GOLDEN / "arrow"), "-o", str(tmp_path / "shards")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and '"nested" (a struct)' in done.stderr and "--fields" in done.stderr, done.stderr
    assert not (tmp_path / "shards").exists()


def test_samples_with_a_null_are_in_the_ledger(tmp_path: Path) -> None:
    told = pack(GOLDEN / "parquet", tmp_path / "shards", "--fields", "image,label", status=1)
    assert (told["packed"], told["failed"]) == (6, 1)
    (failure,) = told["failures"]
    assert failure["code"] == "corrupt" and "has no value (null)" in failure["message"]
    ledger = (tmp_path / "shards" / "forebay-ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 1 and json.loads(ledger[0])["member"].endswith(".label")
    assert len(fb.Shards(tmp_path / "shards", fields="label.cls")) == 6


def test_bytes_that_are_pictures_become_pictures(tmp_path: Path) -> None:
    """Columns without the words of `datasets`: the first bytes of the first sample tell."""
    pictures = []
    for number in range(3):
        path = tmp_path / "one.jpg"
        Image.new("RGB", (8, 6), (number, 20, 30)).save(path, "PNG" if number == 1 else "JPEG")
        pictures.append(path.read_bytes())
    others, targets = [b"BM", b"", b"P6 "], pa.array([3, 1, 2], pa.uint8())
    table = pa.table({"picture": pictures, "other": others, "target": targets, "path": [1, 2, 3]})
    pq.write_table(table, tmp_path / "rows.parquet")
    pack(tmp_path / "rows.parquet", tmp_path / "shards")
    expected = {
        f"rows/{number:06}": {
            "other.bin": other,
            "path.npy": np.int64(number + 1),
            f"picture.{'png' if number == 1 else 'jpg'}": pictures[number],
            "target.cls": str(label).encode(),
        }
        for number, (other, label) in enumerate(zip(others, targets.to_pylist(), strict=True))
    }
    found = members(tmp_path / "shards")
    assert list(found) == list(expected)
    for key, fields in found.items():
        (tmp_path / "one.npy").write_bytes(fields["path.npy"])
        number = np.load(tmp_path / "one.npy")
        assert (number.dtype, number.shape) == (np.int64, ())
        assert {**fields, "path.npy": number} == expected[key]
    # A column of paths in text makes a manifest of it.
    text = pa.table({"path": ["nowhere.jpg"], "class": ["a"]})
    pq.write_table(text, tmp_path / "listed.parquet")
    told = pack(tmp_path / "listed.parquet", tmp_path / "listed", status=1)
    assert told["failures"][0]["path"].endswith("nowhere.jpg")
