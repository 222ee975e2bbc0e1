"""The ledger: what failed, one JSON object a line, shared by epochs, runs and loaders."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import folders
import forebay as fb
from forebay import transforms as T

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
