"""Parity: archives that rot are repaired while they are read, counted, and put back by the command."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
import objectstore
from forebay.errors import CorruptError

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "shards"
COUNT = 60


def content(number: int) -> bytes:
    return bytes((number * 7 + at * at // 3) % 251 for at in range(900 + 37 * number))


def archive(path: Path) -> bytes:
    """An archive of samples with two fields."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as packed:
        for number in range(COUNT):
            for name, data in (("bin", content(number)), ("cls", b"%d" % number)):
                info = tarfile.TarInfo(f"{number:05}.{name}")
                info.size = len(data)
                packed.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def forebay(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def with_parity(folder: Path, fraction: str = "10%") -> tuple[Path, bytes]:
    path = folder / "a.tar"
    whole = archive(path)
    made = forebay("parity", path, "--fraction", fraction)
    assert made.returncode == 0, made.stderr
    return path, whole


def rot(path: Path, change: Any) -> None:
    """Bytes that change by themselves: the file's time stays."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data) or data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def few(data: bytearray) -> None:
    """A bit in each of two samples, and one whole block: less than parity carries."""
    for number in (10, 30):
        data[data.index(content(number)) + 50] ^= 1
    start = (data.index(content(45)) + 500) // 4096 * 4096
    data[start : start + 4096] = bytes(4096)


def cut(whole: bytes) -> bytes:
    """All but the end of the last sample."""
    return whole[: whole.index(content(COUNT - 1)) + 50]


def load(dataset: Any, **options: Any) -> tuple[list[tuple[bytes, int]], fb.DataLoader, list[str]]:
    """All samples, the loader, and what was warned of."""
    loader = fb.DataLoader(dataset, batch_size=None, output="numpy", seed=3, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        samples = [(row[0], int(row[1])) for row in loader]
    return samples, loader, [str(warning.message) for warning in said]


def shards(place: Any, **options: Any) -> fb.Shards:
    return fb.Shards(place, fields=("bin", "cls"), **options)


WHOLE = [(content(number), number) for number in range(COUNT)]


@pytest.mark.parametrize("options", [{}, {"isolate": "always"}, {"cache": "memory"}], ids=str)
def test_an_archive_that_rots_is_delivered_as_it_was_and_said(tmp_path: Path, options: dict[str, Any]) -> None:
    path, whole = with_parity(tmp_path)
    cache = {"cache": options["cache"]} if "cache" in options else {}
    isolate = {"isolate": options["isolate"]} if "isolate" in options else {}
    dataset = shards(path, **cache)
    rot(path, few)
    samples, loader, said = load(dataset, **isolate)
    assert samples == WHOLE
    outcomes = [failure.outcome for failure in loader.failures]
    assert len(outcomes) >= 3 and set(outcomes) == {"recovered"}
    assert all(failure.path == str(path) and failure.code == "corrupt" for failure in loader.failures)
    assert "planned 60 = delivered 60" in loader.report().replace(" + 0 replaced + 0 skipped", "")
    stats = loader.stats()["storage"]
    assert stats["repaired"] >= 3 and stats["repaired_blocks"] >= 3 and stats["isolated"] is bool(isolate)
    notices = [text for text in said if "is damaged on its storage" in text]
    assert len(notices) == 1 and "`forebay parity --repair`" in notices[0] and str(path) in notices[0]
    assert "3 blocks of it so far" in loader.report()
    # Known by now: the next epoch reads what is damaged by its blocks at once, and nothing fails.
    failed = len(loader.failures)
    assert [(row[0], int(row[1])) for row in loader] == WHOLE and len(loader.failures) == failed
    loader.close()

    repaired = forebay("parity", "--repair", path)
    assert repaired.returncode == 0 and "all of them can be repaired" in repaired.stdout, repaired
    assert path.read_bytes() == whole
    samples, loader, said = load(shards(path))
    assert (samples, loader.failures, said, loader.stats()["storage"]["repaired"]) == (WHOLE, [], [], 0)


def test_parity_is_used_unless_it_is_switched_off(tmp_path: Path) -> None:
    path, _ = with_parity(tmp_path)
    without, using = (pickle.loads(pickle.dumps(shards(path, parity=parity))) for parity in (False, True))
    assert (without.parity, using.parity) == (False, True)
    rot(path, few)
    with pytest.raises(CorruptError):
        load(without)
    samples, loader, _ = load(without, on_error="skip")
    assert len(samples) < COUNT and set(samples) < set(WHOLE) and loader.stats()["storage"]["repaired"] == 0
    assert load(using)[0] == WHOLE


@pytest.mark.parametrize("kind", ["cut", "put in", "taken out"])
def test_bytes_that_are_missing_or_too_many_are_found_again(tmp_path: Path, kind: str) -> None:
    path, whole = with_parity(tmp_path)
    dataset = shards(path)
    changed = {
        "cut": cut(whole),
        "put in": whole[:40_000] + b"garbage" * 99 + whole[40_000:],
        "taken out": whole[:40_000] + whole[41_000:],
    }
    rot(path, lambda _: changed[kind])
    samples, loader, _ = load(dataset)
    assert samples == WHOLE and {failure.outcome for failure in loader.failures} <= {"recovered"}
    assert loader.stats()["storage"]["repaired"] > 0


def test_more_damage_than_parity_carries_fails_as_ever_and_the_hint_names_the_sidecar(tmp_path: Path) -> None:
    path, _ = with_parity(tmp_path, "2%")
    dataset = shards(path)
    rot(path, lambda data: data[:50_000] + bytes(byte ^ 9 for byte in data[50_000:]))
    samples, loader, _ = load(dataset, on_error="skip")
    failed = [failure for failure in loader.failures if failure.outcome == "skipped"]
    assert samples and len(samples) + len(failed) == COUNT and set(samples) <= set(WHOLE)
    assert all("is not what it was" in failure.message for failure in failed)
    assert all(f'{path}.parity" carries 2 damaged blocks of each group' in failure.hint for failure in failed)
    checked = json.loads(forebay("parity", "--check", "--json", path).stdout)["files"][0]
    assert checked["lost_blocks"] == checked["damaged_blocks"] > 20 and not checked["repairable"]


def test_a_sidecar_that_is_damaged_is_noted_and_costs_nothing_else(tmp_path: Path) -> None:
    path, whole = with_parity(tmp_path)
    sidecar = Path(f"{path}.parity")
    parity = bytearray(sidecar.read_bytes())
    parity[:64] = bytes(64)  # its header, of which there is a copy
    parity[300] ^= 1  # the checksums, of which there is one
    sidecar.write_bytes(parity)
    dataset = shards(path)
    rot(path, few)
    assert load(dataset)[0] == WHOLE and dataset.notes == []
    path.write_bytes(whole)
    sidecar.write_bytes(b"nothing of the kind" * 20)
    dataset = shards(path)
    assert [(name, message.split(":")[0]) for name, message in dataset.notes] == [(str(sidecar), "was not used")]
    assert load(dataset)[0] == WHOLE
    # Of another file, or of this one when it was longer.
    sidecar.write_bytes(parity)
    path.write_bytes(whole[:-5000])
    assert any("is not as long as its parity says" in message for _, message in shards(path).notes)


def test_sidecars_are_not_taken_for_shards(tmp_path: Path) -> None:
    path, _ = with_parity(tmp_path)
    for place in (tmp_path, f"{tmp_path}/a*", f"{tmp_path}/*", [path]):
        assert len(shards(place)) == COUNT


def test_records_are_repaired_as_members_are(tmp_path: Path) -> None:
    path = tmp_path / "train.tfrecord-00000-of-00001"
    shutil.copy(GOLDEN / "tfrecord" / "train.tfrecord-00001-of-00002", path)
    assert forebay("parity", path).returncode == 0
    dataset = fb.Shards([path], decode=False)
    whole = [row["record"] for row in fb.DataLoader(dataset, batch_size=None, output="numpy")]
    rot(path, lambda data: data.__setitem__(100, data[100] ^ 4))
    loader = fb.DataLoader(dataset, batch_size=None, output="numpy")
    with pytest.warns(RuntimeWarning, match="is damaged on its storage"):
        assert [row["record"] for row in loader] == whole
    assert [failure.outcome for failure in loader.failures] == ["recovered"]


def test_archives_in_an_object_store_are_repaired(store: objectstore.ObjectStore, tmp_path: Path) -> None:
    path, whole = with_parity(tmp_path)
    store.put("parity/a.tar", whole)
    store.put("parity/a.tar.parity", Path(f"{path}.parity").read_bytes())
    dataset = shards("s3://bucket/parity/a.tar", storage_options=store.options)
    damaged = bytearray(whole)
    few(damaged)
    store.put("parity/a.tar", bytes(damaged))
    samples, loader, said = load(dataset)
    assert samples == WHOLE and {failure.outcome for failure in loader.failures} == {"recovered"}
    assert loader.stats()["storage"]["repaired"] >= 3
    assert any("s3://bucket/parity/a.tar" in text for text in said)
    store.put("parity/a.tar", cut(whole))
    samples, loader, _ = load(dataset)
    assert samples == WHOLE and loader.stats()["storage"]["repaired"] > 0
    options = [text for name, value in store.options.items() for text in ("--storage-option", f"{name}={value}")]
    checked = forebay("parity", "--check", "s3://bucket/parity/a.tar", *options)
    assert checked.returncode == 1 and f"expected {len(whole)} bytes, got {len(cut(whole))}" in checked.stdout
