"""`cache="decoded"`: the same batches, from pictures that are kept as they are before the first random transform."""

from pathlib import Path
from typing import Any

import pytest
import torch

import folders
import forebay as fb
from forebay import transforms as T

RANDOM = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)]
FIXED = [T.Resize(20), T.CenterCrop(16), T.ToTensor()]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    folders.write_folder(tmp_path, 24)
    victim = sorted(tmp_path.rglob("*.*"))[3]
    victim.write_bytes(victim.read_bytes()[:100])
    return tmp_path


def loader(root: Path, transforms: list[Any], **cache: Any) -> fb.DataLoader:
    dataset = fb.ImageFolder(root, transform=T.Compose(transforms), **cache)
    return fb.DataLoader(dataset, 5, shuffle=True, seed=1, on_error="replace", num_workers=2)


def epochs(given: fb.DataLoader, count: int) -> list[torch.Tensor]:
    return [torch.cat([images for images, _ in given]) for _ in range(count)]


@pytest.mark.parametrize("transforms", [RANDOM, FIXED], ids=["random", "fixed"])
@pytest.mark.parametrize("cache_bytes", [None, "20kB"])
def test_batches_are_the_same_and_savings_are_told(
    damaged: Path, transforms: list[Any], cache_bytes: str | None
) -> None:
    plain = loader(damaged, transforms)
    cached = loader(damaged, transforms, cache="decoded", cache_bytes=cache_bytes)
    for ours, theirs in zip(epochs(cached, 3), epochs(plain, 3), strict=True):
        assert torch.equal(ours, theirs)
    stats = cached.stats()
    kept = stats["decoded_cache"]
    assert 0 < kept["bytes"] <= kept["limit_bytes"]
    assert kept["hits"] > 0 and kept["saved_read_bytes"] > 0 and kept["saved_decode_seconds"] > 0
    assert (kept["pictures"] == 23) == (cache_bytes is None), kept
    assert "decoded_cache" not in plain.stats()
    assert stats["bytes_read"] < plain.stats()["bytes_read"]


def test_what_cannot_be_kept_is_refused(damaged: Path, tmp_path: Path) -> None:
    transform = T.Compose(RANDOM)
    with pytest.raises(fb.errors.ConfigError, match='decode="fast" decodes as much as each random crop'):
        fb.DataLoader(fb.ImageFolder(damaged, transform, cache="decoded"), 4, decode="fast")
    with pytest.raises(fb.errors.ConfigError, match='expected pictures for "decoded"'):
        fb.DataLoader(fb.BinaryFiles(damaged, cache="decoded"), 4)
    with pytest.raises(fb.errors.ConfigError, match="cache_revalidate: expected a directory beside it"):
        fb.ImageFolder(damaged, transform, cache="decoded", cache_revalidate=True)
