"""Shards: which samples archives have, what their fields become, what damage costs, how their index is kept."""

import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest

import folders
import forebay as fb
from forebay import transforms as T
from forebay.datasets import patterns
from forebay.errors import ConfigError, CorruptError, NotFoundError, StateMismatchError


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    folders.picture(number, 20, 16).save(file, "JPEG")
    return file.getvalue()


def npy(number: int) -> bytes:
    file = io.BytesIO()
    numpy.save(file, numpy.full((2, 3), number))
    return file.getvalue()


def pack(path: Path, members: Iterable[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def fields_of(number: int) -> dict[str, bytes]:
    return {
        "jpg": jpeg(number),
        "cls": b"%d\n" % number,
        "txt": f"größer {number}".encode(),
        "json": json.dumps({"n": number}).encode(),
        "npy": npy(number),
        "bin": bytes([number] * number),
    }


def numbered(numbers: Iterable[int], *names: str) -> list[tuple[str, bytes]]:
    return [(f"{number:05}.{name}", fields_of(number)[name]) for number in numbers for name in names]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two archives with five samples of every field each."""
    folder = tmp_path_factory.mktemp("base") / "shards"
    folder.mkdir()
    for shard in range(2):
        pack(folder / f"train-{shard:03}.tar", numbered(range(shard * 5, shard * 5 + 5), *fields_of(0)))
    return folder


def samples(dataset: Any, **options: Any) -> list[Any]:
    """All samples of an epoch in order, by their own loader."""
    return list(fb.DataLoader(dataset, batch_size=None, **options))


def contents(dataset: Any) -> list[dict[str, bytes]]:
    return samples(dataset, output="numpy")


def test_fields_are_decoded_by_their_names(shards: Path) -> None:
    dataset = fb.Shards(shards, transform=T.ToTensor())
    first = dataset[3]
    assert list(first) == ["jpg", "cls", "txt", "json", "npy", "bin"] and len(dataset) == 10
    assert first["jpg"].shape == (3, 16, 20) and first["cls"].item() == 3 and first["cls"].dtype.is_signed
    assert (first["txt"], first["json"], first["bin"]) == ("größer 3", {"n": 3}, b"\3\3\3")
    assert first["npy"].tolist() == [[3] * 3] * 2
    batch = next(iter(fb.DataLoader(dataset, batch_size=4)))
    assert batch["jpg"].shape == (4, 3, 16, 20) and batch["cls"].tolist() == [0, 1, 2, 3]
    assert batch["txt"][3] == "größer 3" and batch["json"] == [{"n": number} for number in range(4)]
    assert dataset.paths[7] == f"{shards}/train-001.tar#00007.jpg" and dataset.notes == []
    raw = fb.Shards(shards, decode=False)
    assert contents(raw) == [fields_of(number) for number in range(10)]


def test_a_sample_is_a_tuple_a_dict_or_its_only_field(shards: Path) -> None:
    pair = fb.Shards(shards, fields=("jpg", "cls"), transform=T.ToTensor())
    image, label = pair[4]
    assert image.shape == (3, 16, 20) and label.item() == 4
    images, labels = next(iter(fb.DataLoader(pair, batch_size=3)))
    assert images.shape == (3, 3, 16, 20) and labels.tolist() == [0, 1, 2]
    (images, labels), ids = next(iter(fb.DataLoader(pair, batch_size=3, shuffle=True, with_ids=True)))
    assert labels.tolist() == ids.tolist()
    assert fb.Shards(shards, fields="txt")[1] == "größer 1"
    assert fb.Shards(shards, fields=["txt"])[1] == ("größer 1",)
    named = fb.Shards(shards, fields={"label": "id;cls", "caption": "txt"}, transforms={"txt": str.upper})
    assert {name: str(value) for name, value in named[2].items()} == {"label": "tensor(2)", "caption": "GRÖSSER 2"}
    lists = fb.DataLoader(fb.Shards(shards, fields=("txt", "cls")), batch_size=2, collate_fn=list)
    assert next(iter(lists))[1][0] == "größer 1"


def test_wrong_fields_and_transforms_are_refused(shards: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"fields": ()}, "fields"),
        ({"fields": ("jpg", "jpg")}, "fields"),
        ({"fields": 3}, "fields"),
        ({"fields": "jpg;txt"}, "alternatives of one kind"),
        ({"fields": "txt", "transform": T.ToTensor()}, "a field of pictures"),
        ({"transforms": {"png": str}}, "transforms"),
        ({"transforms": {"txt": 3}}, "transforms"),
        ({"index": 3}, "index"),
        ({"verify": "checksum"}, "verify"),
    ):
        with pytest.raises(ConfigError, match=message):
            fb.Shards(shards, **options)
    with pytest.raises(ConfigError, match="a command"):
        fb.Shards("pipe:cat x.tar")
    with pytest.raises(ConfigError, match="end in tensors"):
        fb.DataLoader(fb.Shards(shards, fields="jpg"), batch_size=2)
    pickled = pack(tmp_path / "a.tar", [("1.pth", pickle.dumps(3)), ("1.txt", b"")])
    with pytest.raises(ConfigError, match="pickled"):
        fb.Shards(pickled)
    assert fb.Shards(pickled, transforms={"pth": pickle.loads})[0]["pth"] == 3
    assert fb.Shards(pickled, fields="pth", decode=False)[0] == pickle.dumps(3)
    gzipped = tmp_path / "b.tar"
    with tarfile.open(gzipped, "w:gz"):
        pass
    with pytest.raises(fb.ForebayError, match="compressed with gzip"):
        fb.Shards(gzipped)


NAMES = ["a/1.txt", "a/1.cls", f"{'long/' * 40}2.txt", f"{'long/' * 40}2.cls", "ü/3.txt", "ü/3.cls"]


@pytest.mark.parametrize("kind", ["ustar", "gnu", "pax", "GNU tar, gnu", "GNU tar, posix"])
def test_archives_of_every_format_are_read(kind: str, tmp_path: Path) -> None:
    # What ustar cannot name is left out of it.
    names = [name for name in NAMES if kind != "ustar" or len(name) < 100]
    archive = tmp_path / "a.tar"
    if kind.startswith("GNU tar"):
        if shutil.which("tar") is None:
            pytest.skip("no tar")
        for name in names:
            path = tmp_path / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
        form = kind.rpartition(" ")[2]
        command = ["tar", f"--format={form}", "-cf", archive, "-C", tmp_path / "files", *names]
        subprocess.run(command, check=True)
    else:
        formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
        pack(archive, [(name, name.encode()) for name in names], formats[kind])
    dataset = fb.Shards(archive, fields=("txt", "cls"), decode=False)
    assert [field.decode() for sample in samples(dataset) for field in sample] == names
    assert dataset.notes == []
    assert dataset.paths == [f"{archive}#{name}" for name in names[::2]]


def test_a_sample_that_lacks_a_field_is_planned_and_fails(tmp_path: Path) -> None:
    members = numbered(range(6), "txt", "cls")
    del members[5]  # 00002.cls
    dataset = fb.Shards(pack(tmp_path / "a.tar", members), fields=("txt", "cls"))
    assert len(dataset) == 6
    with pytest.raises(CorruptError, match=r"has no field \(expected cls, got txt\)"):
        dataset[2]
    loader = fb.DataLoader(dataset, batch_size=2, on_error="skip")
    assert [label for _, labels in loader for label in labels.tolist()] == [0, 1, 3, 4, 5]
    (failure,) = loader.failures
    assert (failure.index, failure.code, failure.member) == (2, "corrupt", "00002.cls")


def test_keys_that_come_again_are_other_samples(tmp_path: Path) -> None:
    dataset = fb.Shards(pack(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3"), ("a.TXT", b"4")]))
    assert [each["txt"] for each in samples(dataset)] == ["1", "2", "3"]
    assert [Path(path).name for path in dataset.paths] == ["a.tar#a.txt", "a.tar#b.txt", "a.tar#a@2048.txt"]
    assert "1 samples with the key of another one" in dataset.notes[0][1]


def test_a_byte_that_rots_costs_its_sample_and_nothing_else(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "shards")
    path = tmp_path / "shards" / "train-001.tar"
    dataset = fb.Shards(tmp_path / "shards", fields=("jpg", "txt"), transform=T.ToTensor())
    content = bytearray(path.read_bytes())
    content[content.index("größer 7".encode())] ^= 1
    path.write_bytes(content)
    ledger = tmp_path / "ledger.jsonl"
    for attempts in (2, 0):
        with fb.DataLoader(dataset, batch_size=2, on_error="skip", ledger=ledger, with_ids=True) as loader:
            delivered = [index for *_, ids in loader for index in ids.tolist()]
        assert delivered == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        (failure,) = loader.failures
        assert failure.index == 7 and failure.attempts == attempts
        assert "is not what it was (expected xxh3" in failure.message or attempts == 0
    line = json.loads(ledger.read_text().splitlines()[0])
    assert (line["path"], line["member"]) == (str(path), "00007.txt")
    # A picture that could still be decoded is as damaged.
    content[content.index(fields_of(8)["jpg"]) + 400] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="is not what it was"):
        dataset[8]


def test_damaged_archives_deliver_the_rest_and_say_what_is_lost(shards: Path, tmp_path: Path) -> None:
    content = bytearray((shards / "train-000.tar").read_bytes())
    cut = tmp_path / "cut.tar"
    cut.write_bytes(content[: content.index(b"00004.jpg") + 600])
    dataset = fb.Shards(cut, fields=("jpg", "cls"), transform=T.ToTensor())
    assert len(dataset) == 5 and "the archive ends in a member), among them of 00004.jpg" in dataset.notes[0][1]
    with pytest.raises(CorruptError, match="was cut off") as raised:
        dataset[4]
    assert str(raised.value.path) == f"{cut}#00004.jpg"
    header = content.index(b"00002.cls")
    content[header + 125] ^= 1
    flipped = tmp_path / "flipped.tar"
    flipped.write_bytes(content)
    dataset = fb.Shards(flipped, fields=("cls",))
    assert dataset.notes[0][1].startswith(f"is damaged: bytes {header}..{header + 1024} are lost")
    assert "presumably 00002.cls" in dataset.notes[0][1]
    loader = fb.DataLoader(dataset, batch_size=None, on_error="skip")
    assert [label.item() for (label,) in loader] == [0, 1, 3, 4]
    none = tmp_path / "none.tar"
    none.write_bytes(b"no archive" * 1000)
    with pytest.raises(NotFoundError, match="no sample was found in 1 shards"):
        fb.Shards(none)
    # One among others is noted.
    assert len(fb.Shards([none, flipped])) == 5


def test_the_index_is_kept_and_made_again(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(shards, tmp_path / "shards")
    root, kept = tmp_path / "shards", tmp_path / "kept.index"
    beside = root / "forebay.index"

    def found(**options: Any) -> list[str]:
        return [sample["txt"] for sample in samples(fb.Shards(root, fields={"txt": "txt"}, **options))]

    expected = found()
    assert not beside.exists()
    assert found(index=True) == found(index=kept) == expected
    # The same file whatever its place, found beside the shards without being asked for, and for a part of them.
    assert beside.read_bytes() == kept.read_bytes()
    written = beside.stat().st_mtime_ns
    archive = root / "train-000.tar"
    stat, content = archive.stat(), archive.read_bytes()
    # Of the same size and time: it is not looked at again, and its samples are compared with the index.
    archive.write_bytes(content.replace("größer 1".encode(), "größer 9".encode()))
    os.utime(archive, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for dataset in (fb.Shards(root, fields="txt"), fb.Shards(root / "train-{000,001}.tar", fields="txt")):
        with pytest.raises(CorruptError, match="is not what it was"):
            dataset[1]
    os.utime(archive, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert found()[1] == "größer 9" and beside.stat().st_mtime_ns == written
    assert found(index=True)[1] == "größer 9" and beside.stat().st_mtime_ns != written
    for damaged in (b"", beside.read_bytes()[:-9], b"forebay index 9\n"):
        kept.write_bytes(damaged)
        assert found(index=kept)[2:] == expected[2:] and kept.read_bytes() == beside.read_bytes()
    kept.write_bytes(b"a letter")
    with pytest.raises(ConfigError, match="not overwritten"):
        found(index=kept)
    beside.write_bytes(b"a letter")
    assert found()[2:] == expected[2:] and beside.read_bytes() == b"a letter"
    assert "was not used" in fb.Shards(root).notes[0][1]


def wds2idx(archive: Path) -> list[str]:
    """The lines that DALI's tool writes about an archive."""
    lines: dict[str, list[str]] = {}
    with tarfile.open(archive) as members:
        for member in members:
            key, _, field = member.name.partition(".")
            lines.setdefault(key, []).append(f"{field} {member.offset_data} {member.size} {member.name}")
    return [f"v1.2 {len(lines)}", *map(" ".join, lines.values())]


def test_an_index_by_wds2idx_is_used_if_it_fits(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "shards")
    root = tmp_path / "shards"
    for archive in root.glob("*.tar"):
        archive.with_suffix(".idx").write_text("\n".join(wds2idx(archive)) + "\n")
    dataset = fb.Shards(root, decode=False, index="wds2idx")
    assert contents(dataset) == [fields_of(number) for number in range(10)] and dataset.notes == []
    (root / "train-000.idx").write_text("v1.2 1000000000\n")
    (root / "train-001.idx").unlink()
    dataset = fb.Shards(root, decode=False, index="wds2idx")
    assert contents(dataset) == [fields_of(number) for number in range(10)]
    notes = sorted(f"{Path(path).name} {message}" for path, message in dataset.notes)
    assert "expected 1000000000 samples, got 0" in notes[0] and notes[1].startswith("train-001.idx was not used")
    # It has no checksums: an archive that changes is another one.
    (root / "train-000.idx").write_text("\n".join(wds2idx(root / "train-000.tar")))
    dataset = fb.Shards(root / "train-000.tar", fields="txt", index="wds2idx")
    os.utime(root / "train-000.tar", (0, 0))
    with pytest.raises(fb.ForebayError) as raised:
        dataset[0]
    assert raised.value.code == "stale"


def test_names_stand_for_many_archives(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards.parent)
    name = shards.name
    for root, count in (
        (f"{name}/train-*.tar", 10),
        (f"{shards}/train-00[1-9].tar", 5),
        (f"{name}/train-00?.tar", 10),
        ("**/train-*.tar", 10),
        (f"{name}/train-{{000..001}}.tar", 10),
        (f"{name}/{{train-000,train-001}}.tar", 10),
        (f"{name}/train-001.tar", 5),
        ([f"{name}/train-001.tar", f"{name}/train-*0.tar"], 10),
        (f"file://{shards}/train-*.tar", 10),
        (name, 10),
    ):
        dataset = fb.Shards(root, fields="cls")
        assert len(dataset) == count, root
        assert len(pickle.loads(pickle.dumps(dataset))) == count
    with pytest.raises(NotFoundError, match="no file matches"):
        fb.Shards(f"{name}/test-*.tar")
    with pytest.raises(ConfigError, match="at most"):
        fb.Shards("train-{000000..999999999}.tar")
    assert patterns.in_braces("{08..11}-{a,b{1,2}}") == [
        f"{number}-{letter}" for number in ("08", "09", "10", "11") for letter in ("a", "b1", "b2")
    ]
    assert patterns.in_braces("{3..1}{x}{") == ["3{x}{", "2{x}{", "1{x}{"]
    assert patterns.in_braces("{-1..1}") == ["-1", "0", "1"]


def test_a_shuffle_is_one_of_all_samples(shards: Path) -> None:
    dataset = fb.Shards(shards, fields=("cls", "txt"))
    order = [int(label) for label, _ in samples(dataset, shuffle=True, seed=3)]
    assert sorted(order) == list(range(10)) and {number // 5 for number in order[:5]} == {0, 1}
    subset = dataset.subset([7, 2])
    assert [text for _, text in samples(subset)] == ["größer 7", "größer 2"]
    # An order is that of its archives and its fields.
    state = fb.DataLoader(dataset, batch_size=2).state_dict()
    fb.DataLoader(fb.Shards(shards, fields=("cls", "txt")), batch_size=2).load_state_dict(state)
    with pytest.raises(StateMismatchError):
        fb.DataLoader(fb.Shards(shards, fields=("txt", "cls")), batch_size=2).load_state_dict(state)
