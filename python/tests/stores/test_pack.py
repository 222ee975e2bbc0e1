"""`forebay pack`: what is in shards is what was in the source, for forebay, for tarfile, and over a network."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

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
    # Other bytes of the same length: whoever reads them sees no samples.
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
        proxy.rule = lambda key, asked, chance: fault if key.endswith(".jpg") and chance.random() < 0.2 else None
        given = {**store.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        options = [part for name, value in given.items() for part in ("--storage-option", f"{name}={value}")]
        pack(f"s3://bucket/faults/{fault}", tmp_path / "there", *options)
        assert proxy.faults()[fault] >= 1
        proxy.rule = lambda key, asked, chance: "404" if key.endswith("/0007.jpg") else None
        told = pack(f"s3://bucket/faults/{fault}", tmp_path / "fewer", *options, status=1)
    finally:
        proxy.close()
    pack(folder, tmp_path / "here")
    assert members(tmp_path / "there") == members(tmp_path / "here")
    assert [failure["code"] for failure in told["failures"]] == ["not_found"] and told["packed"] == 23
