"""The ledger: what failed, one JSON object a line, shared by epochs, runs and loaders."""

import json
import os
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import folders
import forebay as fb
from forebay import transforms as T
from missing import missing

TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@pytest.fixture
def damaged(folder: Path) -> fb.ImageFolder:
    dataset = fb.ImageFolder(folder, transform=TO_TENSOR)
    folders.truncate(Path(dataset.samples[2][0]))
    folders.text(Path(dataset.samples[9][0]))
    return dataset


def lines(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def run(dataset: fb.ImageFolder, ledger: Path, **options: Any) -> fb.DataLoader:
    loader = fb.DataLoader(dataset, 4, on_error="replace", ledger=ledger, **options)
    list(loader)
    return loader


def test_its_lines_have_the_names_of_failures(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    loader = run(damaged, tmp_path / "ledger.jsonl")
    written = lines(tmp_path / "ledger.jsonl")
    assert len(written) == len(loader.failures) == 2
    for line, failure in zip(written, loader.failures, strict=True):
        for field in fields(failure):
            value = getattr(failure, field.name)
            assert line.get(field.name) == value, field.name


def test_a_file_known_to_be_bad_is_not_read_again(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = run(damaged, ledger)
    second = run(damaged, ledger)
    assert [failure.index for failure in second.failures] == [2, 9]
    assert [failure.code for failure in second.failures] == ["corrupt", "undecodable"]
    assert all("not read again" in failure.hint for failure in second.failures)
    assert second.stats()["bytes_read"] < first.stats()["bytes_read"]


def test_a_file_that_changed_is_read_again(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run(damaged, ledger)
    folders.picture(99).save(damaged.samples[2][0])
    os.utime(damaged.samples[9][0], ns=(1, 1))
    (failure,) = run(damaged, ledger).failures
    assert failure.index == 9 and "not read again" not in failure.hint


def test_an_epoch_later_it_is_not_read_again_either(damaged: fb.ImageFolder) -> None:
    loader = fb.DataLoader(damaged, 4, on_error="replace")
    list(loader)
    list(loader)
    hints = [failure.hint for failure in loader.failures if failure.epoch == 1]
    assert len(hints) == 2 and all("not read again" in hint for hint in hints)


def test_the_order_is_the_same_with_and_without_quarantine(
    damaged: fb.ImageFolder, tmp_path: Path, digests: Any
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first, second = (
        digests(fb.DataLoader(damaged, 4, shuffle=True, on_error="replace", ledger=ledger)) for _ in range(2)
    )
    assert first == second


def test_raising_writes_its_line(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(fb.errors.CorruptError):
        list(fb.DataLoader(damaged, 4, ledger=ledger))
    assert [(line["index"], line["outcome"]) for line in lines(ledger)] == [(2, "raised")]


def test_a_line_torn_by_a_crash_is_passed_over_for_ever(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run(damaged, ledger)
    with open(ledger, "a") as file:
        file.write('{"path": "torn')
    for _ in range(2):
        assert len(run(damaged, ledger).failures) == 2
    assert sum(line.endswith("}") for line in ledger.read_text().splitlines()) == 6


def test_two_loaders_share_one_ledger(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    loaders = [
        fb.DataLoader(damaged, 4, on_error="replace", ledger=ledger, rank=rank, world_size=2) for rank in range(2)
    ]
    for _ in zip(*loaders, strict=True):
        pass
    assert sorted(line["index"] for line in lines(ledger)) == [2, 9]
    assert {line["rank"] for line in lines(ledger)} <= {0, 1}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB and 8 files."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = mount("-t", "tmpfs", "-o", "size=64k,nr_inodes=8", "tmpfs", place)
    if mounted.returncode != 0:
        missing("mount", f"tmpfs cannot be mounted: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_a_full_disk_costs_the_ledger_only(damaged: fb.ImageFolder, small: Path) -> None:
    ledger = small / "ledger.jsonl"
    loader = fb.DataLoader(damaged, 4, on_error="replace", ledger=ledger)
    (small / "filler").write_bytes(bytes(64 << 10))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert sum(len(labels) for _, labels in loader) == 24
    said = [str(warning.message) for warning in caught if "the ledger is incomplete" in str(warning.message)]
    assert len(said) == 1, said
    assert (
        f'the ledger is incomplete: "{ledger}" could not be appended to: No space left on device [Errno 28]' in said[0]
    )
    assert f'"{small}" (tmpfs from tmpfs) is full (bytes free: 0 of 65536, inodes free: 5)' in said[0]
    assert ledger.read_text() == "" and [failure.index for failure in loader.failures] == [2, 9] * 3
    report = loader.report()
    assert "2 files failed" in report and f'"{small}" (tmpfs from tmpfs) is full' in report
    # Room again: the lines that waited are written, each is whole, and nothing is lost.
    (small / "filler").unlink()
    list(loader)
    loader.close()
    assert [line["index"] for line in lines(ledger)] == [2, 9] * 4
    assert "the ledger is incomplete" not in loader.report()
    # What was delivered is known all the same.
    assert 2 not in [row["index"] for row in loader.explain(0, 0)]


def refused(dataset: fb.ImageFolder, ledger: Path) -> fb.ForebayError:
    with pytest.raises(fb.errors.ConfigError, match="cannot be the ledger") as raised:
        fb.DataLoader(dataset, 4, ledger=ledger)
    return raised.value


def test_a_disk_without_room_for_another_file_is_named(damaged: fb.ImageFolder, small: Path) -> None:
    for number in range(7):
        (small / str(number)).touch()
    error = refused(damaged, small / "ledger.jsonl")
    assert "No space left on device" in str(error)
    assert f'"{small}" (tmpfs from tmpfs) is full (bytes free: 65536 of 65536, inodes free: 0)' in str(error.hint)


def test_a_disk_that_is_read_only_is_named(damaged: fb.ImageFolder, small: Path) -> None:
    ledger = small / "ledger.jsonl"
    run(damaged, ledger)
    for known in (ledger, small / "other.jsonl"):
        remounted = mount("-o", "remount,ro", small)
        assert remounted.returncode == 0, remounted.stderr
        error = refused(damaged, known)
        assert "Read-only file system" in str(error)
        assert f'"{small}" (tmpfs from tmpfs) is mounted read-only' in str(error.hint) and "dmesg" in str(error.hint)
