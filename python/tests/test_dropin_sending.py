"""What cannot be sent to a worker, or back from one, is named by the loader, with the change to make."""

import threading
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay._sendable import UnsendableError


class Locked:
    """Holds something that no other process can have."""

    def __init__(self) -> None:
        self.parts = [{"lock": threading.Lock()}]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Opened:
    """A file that is opened too early: workers get a copy of its text."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("r")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Files:
    """Returns the open file instead of what is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.path.open("rb")}


def test_a_dataset_that_cannot_be_sent_is_named_by_path() -> None:
    with pytest.raises(UnsendableError, match=r'dataset\.parts\[0\]\["lock"\] → _thread\.lock') as caught:
        next(iter(fb.DataLoader(Locked(), num_workers=1)))
    assert "__getstate__" in str(caught.value)


def test_a_collate_fn_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(UnsendableError, match=r"collate_fn\.<closure>\.lock → _thread\.lock"):
        next(iter(fb.DataLoader([1, 2], num_workers=1, collate_fn=lambda samples: (lock, samples))))


@pytest.mark.parametrize(("batch_size", "place"), [(None, 'sample["image"]'), (2, 'batch[0]["image"]')])
def test_a_sample_that_cannot_be_sent_back_is_named(tmp_path: Path, batch_size: int | None, place: str) -> None:
    file = tmp_path / "x.jpg"
    file.write_bytes(b"picture")
    loader = fb.DataLoader(Files(file), batch_size=batch_size, num_workers=1, collate_fn=lambda samples: samples)
    with pytest.raises(UnsendableError) as caught:
        next(iter(loader))
    assert f"{place} → BufferedReader on {file}" in str(caught.value)
    assert "return" in str(caught.value)


def test_an_open_file_is_named_before_the_first_batch(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("words")
    dataset = Opened(file)
    with pytest.warns(UserWarning, match=r"dataset\.file → TextIOWrapper on .*x\.txt") as caught:
        assert len(list(fb.DataLoader(dataset, num_workers=1))) == 4
    assert "when it is first used" in str(caught[0].message)
    dataset.file.close()
