"""Pinned batches and delivery on a GPU. What needs no GPU is tested without; the rest says that it is skipped."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import folders
import forebay as fb
from forebay import transforms as T
from forebay.errors import ConfigError, CorruptError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
BATCH = 5


@pytest.fixture
def dataset(folder: Path, augment: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(folder, transform=augment)


def lending(dataset: fb.ImageFolder, **settings: Any) -> fb.DataLoader:
    """A loader that writes to memory of torch's: pinned where there is a GPU."""
    loader = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, **settings)
    loader._loader._delivery = dataclasses.replace(loader._loader._delivery, lends_to=loader._engine)
    return loader


def epochs(loader: fb.DataLoader, count: int) -> Iterator[Any]:
    for _ in range(count):
        yield from loader


def test_batches_are_written_to_lent_memory_and_are_the_same(dataset: fb.ImageFolder) -> None:
    plain = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3)
    loader = lending(dataset)
    whole = loader._engine.batch_bytes
    kept = []
    for (images, labels), (expected, targets) in zip(epochs(loader, 3), epochs(plain, 3), strict=True):
        assert torch.equal(images, expected) and torch.equal(labels, targets)
        # The last batch of an epoch is smaller, and a part of the same memory.
        assert images.untyped_storage().nbytes() == whole and images.is_contiguous()
        kept.append((images, images.clone()))
    assert all(torch.equal(images, copy) for images, copy in kept), "what the user holds is nobody else's"
    assert loader._engine.blocks_wanted <= 1, "as much is lent as was taken"


def test_lent_memory_survives_the_loader(dataset: fb.ImageFolder) -> None:
    loader = lending(dataset)
    images, _ = next(iter(loader))
    copy = images.clone()
    loader.close()
    del loader
    assert torch.equal(images, copy)


def test_a_device_that_is_not_there_is_refused(dataset: fb.ImageFolder) -> None:
    for device in ("cpu", "nonsense", 3.5, *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(ConfigError, match="device: expected"):
            fb.DataLoader(dataset, device=device)
    with pytest.raises(ConfigError, match='expected output="torch"'):
        fb.DataLoader(dataset, device="cuda", output="numpy")


@needs_gpu
def test_pinned_batches_are_not_copied(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(dataset, BATCH, pin_memory=True)
    for images, labels in epochs(loader, 2):
        assert images.is_pinned() and labels.is_pinned()
        assert images.untyped_storage().nbytes() == loader._engine.batch_bytes


@needs_gpu
def test_pinned_memory_is_not_written_to_while_it_is_copied(dataset: fb.ImageFolder) -> None:
    expected = [images for images, _ in epochs(fb.DataLoader(dataset, BATCH, shuffle=True, seed=3), 6)]
    loader = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, pin_memory=True)
    stream, copies = torch.cuda.Stream(), []
    for images, _ in epochs(loader, 6):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # the copy waits, while the loader goes on
            copies.append(images.to("cuda", non_blocking=True))
        del images
    torch.cuda.synchronize()
    assert all(torch.equal(copy.cpu(), images) for copy, images in zip(copies, expected, strict=True))


@needs_gpu
@pytest.mark.parametrize("form", [{}, {"dtype": "bfloat16", "memory_format": "channels_last"}])
def test_batches_come_on_the_device(dataset: fb.ImageFolder, form: dict[str, Any]) -> None:
    plain = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, with_ids=True, **form)
    loader = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, with_ids=True, device="cuda", **form)
    for batch, expected in zip(epochs(loader, 3), epochs(plain, 3), strict=True):
        assert all(part.is_cuda for part in batch) and batch[0].stride() == expected[0].stride()
        assert all(torch.equal(part.cpu(), other) for part, other in zip(batch, expected, strict=True))


@needs_gpu
def test_the_state_counts_what_was_handed_over_not_what_is_on_its_way(dataset: fb.ImageFolder) -> None:
    whole = [images.cpu() for images, _ in fb.DataLoader(dataset, BATCH, shuffle=True, seed=3)]
    loader = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, device="cuda")
    for step, _ in enumerate(loader):
        assert loader.state_dict()["step"] == step + 1
        if step == 2:
            state = loader.state_dict()
            break
    resumed = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, device="cuda")
    resumed.load_state_dict(state)
    rest = [images.cpu() for images, _ in resumed]
    assert len(rest) == len(whole) - 3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(rest, whole[3:], strict=True))


@needs_gpu
def test_what_fails_ahead_is_said_when_it_is_its_turn(folder: Path, plain: T.Compose) -> None:
    dataset = fb.ImageFolder(folder, transform=plain)
    folders.truncate(Path(dataset.samples[BATCH][0]))
    batches = iter(fb.DataLoader(dataset, BATCH, device="cuda"))
    assert next(batches)[0].is_cuda
    with pytest.raises(CorruptError):
        next(batches)


class Numbers(torch.utils.data.Dataset[Any]):
    """A dataset of Python code."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"content": torch.full((3, 64, 64), float(index)), "index": index}


@needs_gpu
@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_python_datasets_are_pinned(workers: Any) -> None:
    loader = fb.DataLoader(Numbers(), BATCH, num_workers=2, workers=workers, pin_memory=True)
    for _ in range(2):
        batches = list(loader)
        assert all(batch["content"].is_pinned() and batch["index"].is_pinned() for batch in batches)
        assert torch.cat([batch["content"][:, 0, 0, 0] for batch in batches]).tolist() == list(range(40))


@needs_gpu
@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_python_datasets_come_on_the_device(workers: Any, pin_memory: bool) -> None:
    loader = fb.DataLoader(Numbers(), BATCH, num_workers=2, workers=workers, pin_memory=pin_memory, device="cuda")
    for _ in range(2):
        batches = list(loader)
        assert all(batch["content"].is_cuda and batch["index"].is_cuda for batch in batches)
        assert torch.cat([batch["content"][:, 0, 0, 0] for batch in batches]).tolist() == list(range(40))
