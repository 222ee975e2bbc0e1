"""Provenance: `explain(step)` tells what was delivered, also in another process and of another rank."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import children
import folders
import forebay as fb
from forebay import transforms as T

TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@pytest.fixture
def damaged(folder: Path) -> fb.ImageFolder:
    dataset = fb.ImageFolder(folder, transform=TO_TENSOR)
    for index in (2, 9, 10, 17):
        folders.truncate(Path(dataset.samples[index][0]))
    return dataset


def loader_of(dataset: fb.ImageFolder, **options: Any) -> fb.DataLoader:
    return fb.DataLoader(dataset, 4, shuffle=True, with_ids=True, output="numpy", **options)


def explained(loader: fb.DataLoader, step: int, epoch: int, **options: Any) -> list[int]:
    rows = loader.explain(step, epoch, **options)
    for row in rows:
        assert set(row) == {"position", "planned", "index", "path", "label", "padded"}
        assert (row["path"], row["label"]) == loader.dataset.samples[row["index"]]
    return [row["index"] for row in rows]


def ids(batches: Iterator[Any], count: int = 1000) -> list[list[int]]:
    return [list(map(int, batch[2])) for _, batch in zip(range(count), batches, strict=False)]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_explain_equals_the_ids_of_every_delivered_step(damaged: fb.ImageFolder, on_error: Any) -> None:
    loader = loader_of(damaged, on_error=on_error)
    for epoch in range(3):
        delivered = ids(iter(loader))
        assert [explained(loader, step, epoch) for step in range(len(loader))] == delivered
    bad = {failure.index for failure in loader.failures}
    assert bad == {2, 9, 10, 17} and not bad & {index for batch in delivered for index in batch}


def test_what_is_not_delivered_yet_is_the_plan(damaged: fb.ImageFolder) -> None:
    loader = loader_of(damaged, on_error="replace")
    batches = iter(loader)
    ids(batches, 2)
    plan = [row["planned"] for step in range(len(loader)) for row in loader.explain(step)]
    assert sorted(plan) == list(range(24))
    rest = [row for step in range(2, len(loader)) for row in loader.explain(step)]
    assert all(row["index"] == row["planned"] for row in rest) and {row["index"] for row in rest} & {2, 9, 10, 17}


RESUME = """
import json, sys
import forebay as fb
from forebay import transforms as T

root, ledger, state, on_error = sys.argv[1:]
dataset = fb.ImageFolder(root, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
loader = fb.DataLoader(
    dataset, 4, shuffle=True, with_ids=True, output="numpy", on_error=on_error, ledger=ledger
)
if state:
    loader.load_state_dict(json.loads(state))
delivered = []
for images, labels, ids in loader:
    delivered.append(ids.tolist())
    if not state and len(delivered) == 3:
        break
print(json.dumps([delivered, loader.state_dict()]))
"""


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_run_of_several_processes_is_explained_as_a_whole(
    damaged: fb.ImageFolder, tmp_path: Path, on_error: Any
) -> None:
    ledger = tmp_path / "ledger.jsonl"

    def part(state: str) -> tuple[list[list[int]], dict[str, Any]]:
        ended = children.run(RESUME, damaged.root, ledger, state, on_error)
        assert ended.returncode == 0, ended.stderr
        delivered, state_after = json.loads(ended.stdout)
        return delivered, state_after

    first, state = part("")
    second, _ = part(json.dumps(state))
    asked = loader_of(damaged, on_error=on_error, ledger=ledger)
    assert [explained(asked, step, 0) for step in range(len(asked))] == first + second


def test_ranks_that_share_a_ledger_explain_each_other(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    loaders = [loader_of(damaged, on_error="replace", ledger=ledger, rank=rank, world_size=2) for rank in range(2)]
    delivered = [ids(iter(loader)) for loader in loaders]
    for asked in loaders:
        for rank in range(2):
            assert [explained(asked, step, 0, rank=rank) for step in range(len(asked))] == delivered[rank]


def test_a_ledger_shared_with_another_dataset_does_no_harm(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    folders.write_folder(tmp_path / "other")
    other = fb.ImageFolder(tmp_path / "other", transform=TO_TENSOR)
    for path, _ in other.samples[:6]:
        folders.empty(Path(path))
    first, second = (loader_of(dataset, on_error="replace", ledger=ledger) for dataset in (damaged, other))
    # The same positions fail in both, and the other's lines are the later ones.
    delivered = [ids(iter(loader)) for loader in (first, second)]
    asked = [loader_of(dataset, on_error="replace", ledger=ledger) for dataset in (damaged, other)]
    for loader, expected in zip(asked, delivered, strict=True):
        assert [explained(loader, step, 0) for step in range(len(loader))] == expected


def test_another_seed_is_another_run(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ids(iter(loader_of(damaged, on_error="replace", ledger=ledger, seed=1)))
    asked = loader_of(damaged, on_error="replace", ledger=ledger, seed=2)
    assert all(row["index"] == row["planned"] for step in range(len(asked)) for row in asked.explain(step))


def test_a_repaired_file_is_explained_as_it_was_delivered_last(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    before = ids(iter(loader_of(damaged, on_error="replace", ledger=ledger)))
    for index in (2, 9, 10, 17):
        folders.picture(index).save(damaged.samples[index][0], quality=90)
    again = loader_of(damaged, on_error="replace", ledger=ledger)
    assert [explained(again, step, 0) for step in range(len(again))] == before
    after = ids(iter(again))
    assert sorted(index for batch in after for index in batch) == list(range(24))
    for asked in (again, loader_of(damaged, ledger=ledger)):
        assert [explained(asked, step, 0) for step in range(len(asked))] == after
