"""Copies of a loader: pickled, sent to another process, deep-copied. Each is a loader of its own."""

import copy
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay as fb
import python_datasets as datasets


class Named(fb.DataLoader):
    """A subclass whose arguments are its own."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(range(length), batch_size=2, num_workers=1, workers="threads")
        self.name = name


class Holding:
    """A dataset that has a loader, whose batches are its samples."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return list(self.loader)[index]


@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("is_used", [False, True], ids=["fresh", "used"])
def test_a_copy_is_a_loader_of_its_own(copied: Any, is_used: bool, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    generator = torch.Generator()
    generator.manual_seed(1)
    loader = fb.DataLoader(
        datasets.Bad(8, {3: ValueError("no")}),
        batch_size=4,
        shuffle=True,
        generator=generator,
        on_error="skip",
        ledger=ledger,
    )
    if is_used:
        with pytest.warns(RuntimeWarning, match="sample 3"):
            list(loader)
    other = copied(loader)
    before = len(os.listdir("/proc/self/fd"))
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1, "its own descriptor"
    other = copied(loader)
    assert (other.batch_size, other.on_error, len(other)) == (4, "skip", 2)
    assert other.sampler is not loader.sampler and other.batch_sampler.sampler is other.sampler
    with pytest.warns(RuntimeWarning, match="sample 3"):
        assert sorted(torch.cat(list(other)).tolist()) == [0, 1, 2, 4, 5, 6, 7]
    assert len(other.failures) == 1 and len(ledger.read_text().splitlines()) == 1 + is_used


def test_what_was_set_is_copied() -> None:
    loader = Named("first", 6)
    list(loader)
    loader.num_workers = 0
    loader.prefetch_factor = None
    other = pickle.loads(pickle.dumps(loader))
    assert (type(other), other.name, other.num_workers, loader.num_workers) == (Named, "first", 0, 0)
    assert [batch.tolist() for batch in other] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError, match="send the loader"):
        pickle.dumps(iter(loader))


def test_a_dataset_that_holds_a_used_loader_can_be_sent() -> None:
    inner = fb.DataLoader(range(4), batch_size=2)
    list(inner)
    outer = fb.DataLoader(Holding(inner), num_workers=1, workers="processes")
    assert [batch.tolist() for batch in outer] == [[[0, 1]], [[2, 3]]]


def _deliver(loader: Any, queue: Any) -> None:
    queue.put([batch.tolist() for batch in loader])


def test_a_loader_is_sent_to_a_spawned_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    loader = fb.DataLoader(range(4), batch_size=2, ledger=tmp_path / "ledger.jsonl")
    list(loader)
    child = context.Process(target=_deliver, args=(loader, queue))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert queue.get() == [[0, 1], [2, 3]]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_loader_of_files_is_copied_too(folder: Path, plain: Any, tmp_path: Path) -> None:
    loader = fb.DataLoader(fb.ImageFolder(folder, transform=plain), batch_size=8, ledger=tmp_path / "ledger.jsonl")
    expected = [labels.tolist() for _, labels in loader]
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert [labels.tolist() for _, labels in other] == expected
        other.close()
    assert [labels.tolist() for _, labels in loader] == expected
