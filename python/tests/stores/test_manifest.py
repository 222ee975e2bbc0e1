"""Manifests: the same samples, batches and states as from the folder, without listing it."""

import copy
import functools
import http.server
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas
import pyarrow.parquet
import pytest

import folders
import forebay as fb
import objectstore
from forebay import errors
from forebay import transforms as T

PLAIN = T.Compose([T.Resize((16, 16)), T.ToTensor()])


def scan(root: object, output: object, *more: str, status: int = 0) -> dict[str, Any]:
    """Runs the command as a user would."""
    command = [sys.executable, "-m", "forebay", "scan", str(root), "-o", str(output), "--json", *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    return dict(json.loads(ended.stdout))


@pytest.fixture
def manifest(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "train.parquet"
    scan(folder, path)
    return path


def test_it_is_the_folder(
    folder: Path, manifest: Path, augment: T.Compose, digests: Callable[[Any], list[str]]
) -> None:
    scanned, listed = fb.ImageFolder(folder, transform=augment), fb.ImageFolder(manifest=manifest, transform=augment)
    assert listed.samples == scanned.samples
    assert (listed.classes, listed.class_to_idx) == (scanned.classes, scanned.class_to_idx)
    assert (listed.root, len(listed)) == (str(folder), 24)
    loaders = [fb.DataLoader(dataset, batch_size=5, shuffle=True, seed=3) for dataset in (scanned, listed)]
    steps = [iter(loader) for loader in loaders]
    first = [next(step) for step in steps]
    assert digests(first[:1]) == digests(first[1:])
    # A state of either is one of the other.
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    for loader, state in zip(loaders, reversed(states), strict=True):
        loader.load_state_dict(state)
    rest = [digests(loader) for loader in loaders]
    assert rest[0] == rest[1]
    assert len(rest[0]) == 19


def test_what_is_written_is_read_by_pandas(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep.parquet"
    seen = scan(folder, path, "--deep")
    assert (seen["samples"], seen["classes"], seen["files_read"], seen["is_new"]) == (24, 2, 24, True)
    frame = pandas.read_parquet(path)
    columns = ["path", "class", "label", "size_bytes", "mtime_ns", "width", "height", "format", "xxh3"]
    assert list(frame.columns) == columns
    dataset = fb.ImageFolder(folder)
    assert [str(folder / name) for name in frame["path"]] == [name for name, _ in dataset.samples]
    assert list(frame["label"]) == dataset.targets
    for row in frame.itertuples():
        known = (folder / row.path).stat()
        assert (row.size_bytes, row.mtime_ns) == (known.st_size, known.st_mtime_ns)
        assert (row.width, row.height, row.format) == (folders.WIDTH, folders.HEIGHT, "JPEG")
        assert len(row.xxh3) == 16
    told = {key.decode(): value.decode() for key, value in pyarrow.parquet.read_metadata(path).metadata.items()}
    assert (told["forebay.version"], told["forebay.root"]) == (fb.__version__, str(folder))
    state = fb.DataLoader(fb.ImageFolder(folder, PLAIN), batch_size=4).state_dict()
    assert told["forebay.fingerprint"] == state["dataset"]["fingerprint"] == fb.Manifest(path).fingerprint


def test_a_row_that_is_repeated_without_end_is_refused(folder: Path, tmp_path: Path) -> None:
    path, count = tmp_path / "bomb.parquet", 3_000_000
    row = {"path": "cat/0000.jpg", "class": "cat"}
    cells = {name: pyarrow.DictionaryArray.from_arrays(pyarrow.repeat(0, count), [text]) for name, text in row.items()}
    pyarrow.parquet.write_table(pyarrow.table(cells), path)
    assert path.stat().st_size * 100 < count
    with pytest.raises(fb.errors.ConfigError, match="repeats its rows too often"):
        fb.ImageFolder(folder, manifest=path)


def test_what_pandas_writes_is_read(folder: Path, manifest: Path, tmp_path: Path) -> None:
    frame = pandas.read_parquet(manifest)
    chosen = frame[frame["class"] == "dog"].sample(frac=1, random_state=1)
    chosen["note"] = "mine"
    path = tmp_path / "chosen.parquet"
    chosen.to_parquet(path)
    dataset = fb.ImageFolder(folder, transform=PLAIN, manifest=path)
    assert [name for name, _ in dataset.samples] == [str(folder / name) for name in chosen["path"]]
    assert (set(dataset.targets), dataset.class_to_idx) == ({1}, {"dog": 1})
    assert sum(len(labels) for _, labels in fb.DataLoader(dataset, batch_size=5)) == 12
    # Missing sizes make floats of a column of whole numbers.
    frame["size_bytes"] = [None, *frame["size_bytes"][1:]]
    assert frame["size_bytes"].dtype == float
    frame.to_parquet(path)
    assert fb.ImageFolder(folder, manifest=path)[0][1] == 0


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_lists_that_people_write(folder: Path, ending: str) -> None:
    names = [os.path.relpath(name, folder) for name, _ in fb.ImageFolder(folder).samples]
    frame = pandas.DataFrame({"path": names, "class": [os.path.dirname(name) for name in names]})
    path = folder / f"list.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    by_class = fb.ImageFolder(manifest=path, transform=PLAIN)
    assert by_class.samples == fb.ImageFolder(folder).samples
    states = [
        fb.DataLoader(dataset, batch_size=4, seed=0).state_dict()
        for dataset in (by_class, fb.ImageFolder(folder, PLAIN))
    ]
    assert states[0] == states[1]
    frame["label"] = [7 if name.startswith("cat") else 3 for name in names]
    del frame["class"]
    frame.to_csv(folder / "labels.csv", index=False)
    by_label = fb.ImageFolder(manifest=folder / "labels.csv")
    assert (by_label.classes, by_label.class_to_idx, set(by_label.targets)) == (["3", "7"], {"3": 3, "7": 7}, {3, 7})


def test_it_starts_without_the_tree(folder: Path, manifest: Path) -> None:
    folder.rename(folder.with_name("away"))
    dataset = fb.ImageFolder(manifest=manifest, transform=PLAIN)
    assert (len(dataset), dataset.classes) == (24, ["cat", "dog"])
    with pytest.raises(errors.NotFoundError):
        next(iter(fb.DataLoader(dataset, batch_size=4)))
    moved = fb.ImageFolder(folder.with_name("away"), manifest=manifest, transform=PLAIN)
    assert sum(len(labels) for _, labels in fb.DataLoader(moved, batch_size=4)) == 24


def test_a_manifest_can_be_looked_at_and_handed_over(folder: Path, manifest: Path) -> None:
    opened = fb.Manifest(manifest)
    assert (len(opened), opened.root, opened.recorded_root) == (24, str(folder), str(folder))
    assert (opened.classes, opened.class_to_idx) == (["cat", "dog"], {"cat": 0, "dog": 1})
    assert opened.columns == ["path", "class", "label", "size_bytes", "mtime_ns"]
    assert (opened.version, len(opened.fingerprint)) == (fb.__version__, 32)
    assert repr(opened) == f"Manifest({str(manifest)!r}: 24 samples of 2 classes in {str(folder)!r})"
    for dataset in (fb.ImageFolder(opened), fb.ImageFolder(manifest=opened), fb.DatasetFolder(opened)):
        assert dataset.samples == fb.ImageFolder(folder).samples
    assert fb.ImageFolder("/elsewhere", manifest=opened).samples[0][0] == "/elsewhere/cat/0000.jpg"
    assert fb.Manifest(manifest, root="/elsewhere").root == "/elsewhere"


def test_it_is_pickled_and_copied(folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(manifest.parent)
    dataset = fb.ImageFolder(manifest=manifest.name, transform=PLAIN).subset([5, 3, 1])
    monkeypatch.chdir("/")
    for twin in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset), copy.deepcopy(dataset)):
        assert twin.samples == dataset.samples
        assert twin[0][0].equal(dataset[0][0])
    loaders = [fb.DataLoader(twin, batch_size=2, seed=1) for twin in (dataset, pickle.loads(pickle.dumps(dataset)))]
    assert loaders[0].state_dict() == loaders[1].state_dict()
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 5_000
    (folder / "dog" / "0001.jpg").rename(folder / "dog" / "other.jpg")
    scan(folder, manifest)
    with pytest.raises(errors.StateMismatchError, match="expected the samples it had when it was pickled"):
        pickle.loads(pickled)


def test_what_is_stale_is_named_and_goes_through_on_error(folder: Path, manifest: Path, tmp_path: Path) -> None:
    dataset = fb.ImageFolder(manifest=manifest, transform=PLAIN)
    grown, touched = folder / "cat" / "0002.jpg", folder / "dog" / "0005.jpg"
    size = grown.stat().st_size
    with grown.open("ab") as file:
        file.write(b"\0")
    os.utime(touched, ns=(0, touched.stat().st_mtime_ns + 1))
    with pytest.raises(errors.StaleError, match=rf"expected {size} bytes, got {size + 1}") as raised:
        list(fb.DataLoader(dataset, batch_size=4, num_workers=1))
    assert raised.value.path == str(grown)
    assert raised.value.stage == "fetch"
    assert "forebay scan" in raised.value.hint
    with pytest.raises(errors.StaleError, match=r"modification time moved by 0\.000000 s"):
        dataset[dataset.samples.index((str(touched), 1))]
    ledger = tmp_path / "ledger.jsonl"
    loader = fb.DataLoader(dataset, batch_size=4, on_error="replace", ledger=ledger)
    assert sum(len(labels) for _, labels in loader) == 24
    failures = [failure for failure in loader.failures if failure.epoch == 0]
    assert sorted(failure.path for failure in failures) == sorted([str(grown), str(touched)])
    assert {(failure.code, failure.attempts) for failure in failures} == {("stale", 1)}, "and not read twice in vain"
    loader.close()
    # What a scan finds is what was written to, and then all is well.
    seen = scan(folder, manifest)
    assert (sorted(seen["changed"]), seen["added"], seen["deleted"]) == (["cat/0002.jpg", "dog/0005.jpg"], [], [])
    again = fb.DataLoader(fb.ImageFolder(manifest=manifest, transform=PLAIN), batch_size=4)
    assert sum(len(labels) for _, labels in again) == 24


def rot(path: Path) -> None:
    """Changes a comment of a JPEG, as storage does: what it decodes to, its size and its time stay."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    assert data[6:11] == b"JFIF\0"
    data[14] ^= 1  # its density
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_checksums_find_what_no_decoder_sees(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep.parquet"
    scan(folder, output, "--deep")
    rotten = sorted(folder.rglob("*.jpg"))[3]
    rot(rotten)
    plain = fb.ImageFolder(manifest=output, transform=PLAIN)
    assert len(list(fb.DataLoader(plain, batch_size=4))) == 6, "without it nothing is noticed"
    checked = fb.ImageFolder(manifest=output, transform=PLAIN, verify="checksum")
    assert checked.verify == "checksum"
    for dataset in (checked, pickle.loads(pickle.dumps(checked)), checked.subset(range(8))):
        with pytest.raises(errors.CorruptError, match=r"expected checksum [0-9a-f]{16}, got [0-9a-f]{16}") as raised:
            list(fb.DataLoader(dataset, batch_size=4))
        assert raised.value.path == str(rotten)
        assert raised.value.attempts == 2, "one fresh read first"
    with fb.DataLoader(checked, batch_size=4, on_error="replace", seed=1) as loader:
        assert sum(len(labels) for _, labels in loader) == 24
        (failure,) = loader.failures
        assert (failure.code, failure.path, failure.outcome) == ("corrupt", str(rotten), "replaced")
    with pytest.raises(errors.CorruptError, match="checksum"):
        checked[3]
    scan(folder, output, "--deep")  # finds nothing changed: size and time are the same
    os.utime(rotten)
    scan(folder, output, "--deep")
    again = fb.ImageFolder(manifest=output, transform=PLAIN, verify="checksum")
    assert len(list(fb.DataLoader(again, batch_size=4))) == 6, "scanned again, it is what it has to be"


def test_checksums_that_cannot_be_had_are_refused_at_once(folder: Path, manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="has none") as raised:
        fb.ImageFolder(manifest=manifest, verify="checksum")
    assert "forebay scan" in raised.value.hint and "--deep" in raised.value.hint
    with pytest.raises(errors.ConfigError, match="got a folder") as raised:
        fb.ImageFolder(folder, verify="checksum")
    assert "--deep" in raised.value.hint
    with pytest.raises(errors.ConfigError, match="expected None or"):
        fb.ImageFolder(manifest=manifest, verify="md5")
    with pytest.raises(errors.ConfigError, match="default loader"):
        fb.ImageFolder(manifest=manifest, verify="checksum", loader=str)


def test_a_second_scan_reads_what_changed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep.parquet"
    scan(folder, path, "--deep")
    before = pandas.read_parquet(path).set_index("path")
    changed = sorted(folder.rglob("*.jpg"))[:10]
    for number, name in enumerate(changed):
        folders.picture(100 + number).save(name, quality=90)
    seen = scan(folder, path, "--deep")
    assert (seen["files_read"], len(seen["changed"])) == (10, 10)
    after = pandas.read_parquet(path).set_index("path")
    differs = after["xxh3"] != before["xxh3"]
    assert sorted(after.index[differs]) == [os.path.relpath(name, folder) for name in changed]
    assert scan(folder, path, "--deep")["files_read"] == 0


def test_hostile_files_are_refused(folder: Path, manifest: Path, tmp_path: Path) -> None:
    frame = pandas.read_parquet(manifest)

    def refused(match: str, **columns: Any) -> None:
        path = tmp_path / "hostile.parquet"
        frame.assign(**columns).to_parquet(path)
        with pytest.raises(errors.ForebayError, match=match) as raised:
            fb.ImageFolder(manifest=path, root=folder)
        assert raised.value.path == str(path)
        assert raised.value.hint

    names = list(frame["path"])
    refused(r"row 1 \(the first is 0\), column \"path\".*absolute", path=[names[0], "/etc/passwd", *names[2:]])
    refused(r"row 23 .*leads out of it", path=[*names[:-1], "cat/../../x.jpg"])
    refused(r'column "path" of the wrong type \(expected text', path=range(24))
    refused(r'column "label" of the wrong type \(expected whole numbers', label=["x"] * 24)
    refused(r"row 0 .*column \"label\": expected a whole number from 0", label=[-1] * 24)
    refused(r"row 0 .*column \"label\": expected a whole number, got 0.5", label=[0.5] * 24)
    refused(r"row 5 .*column \"path\": expected a path, got none", path=[*names[:5], None, *names[6:]])
    content = manifest.read_bytes()
    for cut in (0, 4, 100, len(content) // 2, len(content) - 1):
        short = tmp_path / "short.parquet"
        short.write_bytes(content[:cut])
        with pytest.raises(errors.CorruptError, match="is not a whole Parquet file"):
            fb.Manifest(short)
    with pytest.raises(errors.NotFoundError):
        fb.Manifest(tmp_path / "none.parquet")
    with pytest.raises(errors.ConfigError, match=r"expected \.parquet, \.csv or \.jsonl"):
        fb.Manifest(folder / "cat" / "0000.jpg")


def test_wrong_arguments_are_refused(folder: Path, manifest: Path) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'root'"):
        fb.ImageFolder()
    with pytest.raises(errors.ConfigError, match="expected a folder or a URL, or manifest"):
        fb.ImageFolder(None)
    with pytest.raises(errors.ConfigError, match="is_valid_file: expected none with a manifest"):
        fb.ImageFolder(manifest=manifest, is_valid_file=lambda path: True)
    with pytest.raises(errors.ConfigError, match="expected one, got two"):
        fb.ImageFolder(fb.Manifest(manifest), manifest=manifest)
    with pytest.raises(errors.ConfigError, match="storage_options: expected none for a directory"):
        fb.ImageFolder(manifest=manifest, storage_options={"key": "x"})

    class Own(fb.ImageFolder):
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            return ["dog"], {"dog": 0}

    with pytest.raises(errors.ConfigError, match="find_classes: expected none with a manifest"):
        Own(manifest=manifest)


def test_empty_classes_keep_their_place(folder: Path, tmp_path: Path) -> None:
    (folder / "cow").mkdir()
    path = tmp_path / "train.parquet"
    scan(folder, path, "--allow-empty")
    scanned = fb.ImageFolder(folder, PLAIN, allow_empty=True)
    listed = fb.ImageFolder(transform=PLAIN, manifest=path)
    assert listed.class_to_idx == scanned.class_to_idx == {"cat": 0, "cow": 1, "dog": 2}
    states = [fb.DataLoader(dataset, batch_size=4, seed=0).state_dict() for dataset in (scanned, listed)]
    assert states[0] == states[1]


def test_a_bucket_a_folder_and_a_manifest_give_the_same(
    store: objectstore.ObjectStore,
    folder: Path,
    manifest: Path,
    tmp_path: Path,
    augment: T.Compose,
    digests: Callable[[Any], list[str]],
) -> None:
    store.put_folder(folder, "manifest/train")
    arguments = [word for name, value in store.options.items() for word in ("--storage-option", f"{name}={value}")]
    path = tmp_path / "s3.parquet"
    seen = scan("s3://bucket/manifest/train", path, *arguments, "--deep")
    assert (seen["samples"], seen["files_read"], seen["root"]) == (24, 24, "s3://bucket/manifest/train")
    frame, local = pandas.read_parquet(path), pandas.read_parquet(manifest)
    assert list(frame["size_bytes"]) == list(local["size_bytes"])
    assert frame["etag"].str.len().min() > 8
    assert not frame["etag"].str.contains('"').any()
    assert list(frame["path"]) == list(local["path"])
    assert objectstore.SECRET.encode() not in path.read_bytes()
    datasets = [
        fb.ImageFolder(folder, transform=augment),
        fb.ImageFolder(manifest=manifest, transform=augment),
        fb.ImageFolder("s3://bucket/manifest/train", augment, manifest=path, storage_options=store.options),
        fb.ImageFolder("s3://bucket/manifest/train", augment, manifest=manifest, storage_options=store.options),
        fb.ImageFolder(folder, augment, manifest=path),
        fb.ImageFolder("s3://bucket/manifest/train", augment, storage_options=store.options),
    ]
    loaders = [fb.DataLoader(dataset, batch_size=5, shuffle=True, seed=3) for dataset in datasets]
    results = [(digests(loader), loader.state_dict()) for loader in loaders]
    assert all(result == results[0] for result in results)
    assert len(results[0][0]) == 24

    # Of the objects that were written to, the etag tells; the same bytes written again are the same.
    names = [str(name) for name in frame["path"]]
    store.put(f"manifest/train/{names[0]}", (folder / names[0]).read_bytes())
    flipped = bytearray((folder / names[1]).read_bytes())
    flipped[-1] ^= 1
    store.put(f"manifest/train/{names[1]}", bytes(flipped))
    # The root is named because it is not where the manifest is; it is the recorded one, so that etags count.
    dataset = fb.ImageFolder("s3://bucket/manifest/train", augment, manifest=path, storage_options=store.options)
    assert dataset[0][1] == 0
    with pytest.raises(errors.StaleError, match="its etag changed"):
        dataset[1]
    again = scan("s3://bucket/manifest/train", path, *arguments, "--deep")
    assert (again["changed"], again["files_read"], again["added"]) == ([names[1]], 1, [])


def test_a_bucket_is_listed_once(store: objectstore.ObjectStore, folder: Path, tmp_path: Path) -> None:
    import faultproxy

    store.put_folder(folder, "once/train")
    proxy = faultproxy.FaultProxy(store.port)
    options = store.options | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}
    arguments = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    try:
        scan("s3://bucket/once/train", tmp_path / "m.parquet", *arguments)
        assert len(proxy.seen) == 3, "the root and two classes; no object was asked for"
        scan("s3://bucket/once/train", tmp_path / "m.parquet", *arguments, "--deep")
        assert len(proxy.seen) == 6 + 24
    finally:
        proxy.close()


def bitmap(size: int) -> bytes:
    """A picture of one pixel with much behind it."""
    head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0" + bytes(24) + b"\1\2\3\0"
    return head + random.Random(0).randbytes(size - len(head))


def test_a_manifest_lies_in_a_bucket(
    store: objectstore.ObjectStore,
    folder: Path,
    tmp_path: Path,
    augment: T.Compose,
    digests: Callable[[Any], list[str]],
) -> None:
    (folder / "dog" / "large.bmp").write_bytes(bitmap((8 << 20) + 5))  # more than is read at a time
    store.put_folder(folder, "shelf/train")
    arguments = [word for name, value in store.options.items() for word in ("--storage-option", f"{name}={value}")]
    local, url = tmp_path / "local.parquet", "s3://bucket/shelf/made of it/train.parquet"
    seen = scan("s3://bucket/shelf/train", url, *arguments, "--deep")
    assert (seen["output"], seen["is_new"], seen["files_read"]) == (url, True, 25)
    query = "&".join(f"{name}={quote(store.options[name], safe='')}" for name in ("key", "secret", "region"))
    again = scan("s3://bucket/shelf/train", f"{url}?{query}", *arguments, "--deep")
    assert (again["output"], again["is_new"], again["files_read"]) == (url, False, 0)
    assert (again["added"], again["deleted"], again["changed"]) == ([], [], [])

    manifest = fb.Manifest(url, storage_options=store.options)
    assert (len(manifest), manifest.path, manifest.root) == (25, url, "s3://bucket/shelf/train")
    scan(folder, local, "--deep")
    assert manifest.fingerprint == fb.Manifest(local).fingerprint
    assert manifest.columns == [*fb.Manifest(local).columns[:5], "etag", *fb.Manifest(local).columns[5:]]
    datasets = [
        fb.ImageFolder(folder, transform=augment),
        fb.ImageFolder(manifest=url, transform=augment, storage_options=store.options),
        fb.ImageFolder(folder, augment, manifest=manifest),
    ]
    datasets.append(pickle.loads(pickle.dumps(datasets[1])))
    results = [digests(fb.DataLoader(dataset, batch_size=5, shuffle=True, seed=3)) for dataset in datasets]
    assert all(result == results[0] for result in results)
    # What it says of the bytes is what the files say, in pieces or not.
    mirror = [sys.executable, "-m", "forebay", "mirror", "s3://bucket/shelf/made of it", str(tmp_path / "copy")]
    assert subprocess.run([*mirror, *arguments], capture_output=True, check=False).returncode == 0
    frames = [pandas.read_parquet(path) for path in (tmp_path / "copy" / "train.parquet", local)]
    for column in ("path", "size_bytes", "width", "height", "xxh3"):
        assert list(frames[0][column]) == list(frames[1][column])

    # A change is seen from there as well.
    store.put("shelf/train/cat/new.jpg", (folder / "cat" / "0000.jpg").read_bytes())
    changed = scan("s3://bucket/shelf/train", url, *arguments, "--deep")
    assert (changed["added"], changed["files_read"], changed["deleted"]) == (["cat/new.jpg"], 1, [])
    with pytest.raises(errors.StateMismatchError):
        pickle.loads(pickle.dumps(manifest))


def test_a_bucket_is_for_the_manifest_alone(
    store: objectstore.ObjectStore, folder: Path, tmp_path: Path, digests: Callable[[Any], list[str]]
) -> None:
    def arguments(option: str, **more: str) -> list[str]:
        return [word for name, value in (store.options | more).items() for word in (option, f"{name}={value}")]

    url = "s3://bucket/alone.parquet"
    assert scan(folder, url, *arguments("--storage-option"))["is_new"]
    assert not scan(folder, url, *arguments("--output-option"))["is_new"]
    with pytest.raises(errors.ConfigError, match="says that its samples are elsewhere") as elsewhere:
        fb.ImageFolder(manifest=url, transform=PLAIN, storage_options=store.options)
    assert f'pass root="{folder}"' in elsewhere.value.hint
    dataset = fb.ImageFolder(folder, PLAIN, manifest=url, storage_options=store.options)
    assert dataset.root == str(folder)
    assert digests(fb.DataLoader(dataset, batch_size=5)) == digests(
        fb.DataLoader(fb.ImageFolder(folder, PLAIN), batch_size=5)
    )

    def refused(output: str, *more: str) -> str:
        command = [sys.executable, "-m", "forebay", "scan", str(folder), "-o", output, *more]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1, ended.stderr
        assert objectstore.SECRET not in ended.stderr
        assert "written to" not in ended.stdout
        return ended.stderr

    wrong = refused(url, *arguments("--output-option", secret="wrong-secret-wrong-secret"))
    assert '"s3://bucket/alone.parquet"' in wrong
    assert "403" in wrong
    store.put("thesis.parquet", b"my thesis")
    assert "it will not be overwritten" in refused("s3://bucket/thesis.parquet", *arguments("--output-option"))


def test_a_deep_scan_takes_memory_for_pieces_and_not_for_files(tmp_path: Path) -> None:
    measure = """
import pathlib, sys
from forebay._forebay import run_cli
status = run_cli(sys.argv[1:])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(status)
"""

    def peak(root: Path, *more: str) -> int:
        """The most memory that a scan had, by the kernel's word."""
        command = [sys.executable, "-c", measure, "scan", str(root), "-o", str(root / "m.parquet"), *more]
        return int(subprocess.run(command, capture_output=True, check=True).stderr)

    size = int(os.environ.get("FOREBAY_TEST_LARGE_FILE_BYTES", 200 << 20))
    for number in range(4):
        path = tmp_path / "a" / f"{number}.bmp"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bitmap(100))
        os.truncate(path, size)  # takes no space
    plain, deep = peak(tmp_path), peak(tmp_path, "--deep")
    print(f"plain {plain >> 20} MiB, deep {deep >> 20} MiB, 4 files of {size >> 20} MiB")
    assert deep - plain < 128 << 20, "a piece of 8 MiB for each, where whole files would take 800"


def test_a_web_server_needs_a_manifest(folder: Path, manifest: Path, digests: Callable[[Any], list[str]]) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            root = f"http://127.0.0.1:{server.server_address[1]}"
            dataset = fb.ImageFolder(root, transform=PLAIN, manifest=manifest)
            local = fb.ImageFolder(folder, transform=PLAIN)
            loaders = [fb.DataLoader(each, batch_size=5, seed=1, shuffle=True) for each in (local, dataset)]
            assert digests(loaders[0]) == digests(loaders[1])
            loaders[1].close()
        finally:
            server.shutdown()
            thread.join()


def test_the_example_of_the_guide_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scan(folder, tmp_path / "train.parquet")
    guide = Path(__file__).parents[3] / "docs" / "manifest.md"
    (block,) = re.findall(r"^```py\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, str(guide), "exec"), names)
    assert capsys.readouterr().out.startswith(f"24 {folder} ['cat', 'dog'] ['path', 'class', ")
    assert names["dataset"][0][0].shape == (3, 24, 32)


def test_a_hundred_thousand_samples_open_at_once(tmp_path: Path) -> None:
    root = tmp_path / "data"
    folders.write_folder(root, 8)
    names = [os.path.relpath(name, root) for name, _ in fb.ImageFolder(root).samples]
    many = [*names, *(f"n{number // 1000:05}/{number:08}.jpg" for number in range(100_000))]
    frame = pandas.DataFrame({"path": many, "class": [os.path.dirname(name) for name in many]})
    path = tmp_path / "many.parquet"
    frame.to_parquet(path)
    started = time.perf_counter()
    dataset = fb.ImageFolder(root, transform=PLAIN, manifest=path)
    assert time.perf_counter() - started < 2
    assert len(dataset) == 100_008
    loader = fb.DataLoader(dataset, batch_size=8)
    assert next(iter(loader))[0].shape == (8, 3, 16, 16)
    loader.close()
    shutil.rmtree(root)


def test_of_a_manifest_and_a_cache_the_newer_one_is_believed(
    folder: Path, manifest: Path, tmp_path: Path, digests: Callable[[Any], list[str]]
) -> None:
    def load(**given: Any) -> fb.DataLoader:
        dataset = fb.ImageFolder(transform=PLAIN, manifest=manifest, **given)
        # The caller's own order: no next epoch is begun, so that hits are counted exactly.
        return fb.DataLoader(dataset, batch_size=4, on_error="raise", sampler=range(24))

    cached = functools.partial(load, cache=tmp_path / "cache")
    first = digests(cached())
    assert first == digests(load())
    changed = sorted(folder.rglob("*.jpg"))[3]
    folders.picture(99).save(changed)
    scan(folder, manifest)
    loader = cached()
    second = digests(loader)
    assert second == digests(load()) != first
    storage = loader.stats()["storage"]
    assert (storage["cache_hits"], storage["cache_misses"]) == (24, 1), "one was there, and is older than the manifest"
    twin = pickle.loads(pickle.dumps(loader.dataset))
    assert digests(fb.DataLoader(twin, batch_size=4)) == second
