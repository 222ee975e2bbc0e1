"""A machine short of memory: 512 MiB for pictures of 12 MP and 16 threads, and the budget is found by itself."""

import os
from pathlib import Path

import numpy
import pytest
from PIL import Image

import cgroups
import children
import folders

WIDTH, HEIGHT, COUNT = 4000, 3000, 32
MIB = 1 << 20
LIMIT = 512 * MIB

# torch is imported in the group, too: what it takes is not there for pictures.
PROGRAM = """
    import sys
    import torch
    import forebay as fb
    from forebay import transforms as T

    for path in sys.argv[3:]:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((224, 224)), T.ToTensor()]))
    budget = {"memory_budget": sys.argv[2]} if sys.argv[2] else {}
    loader = fb.DataLoader(dataset, 4, shuffle=True, num_workers=16, **budget)
    delivered = sum(len(labels) for _, labels in loader)
    print(delivered, len(loader.failures))
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One picture under many names."""
    root = tmp_path_factory.mktemp("photographs")
    (root / "a").mkdir()
    tiles = numpy.tile(folders.pixels(0, WIDTH // 8, HEIGHT // 8), (8, 8, 1))
    Image.fromarray(tiles).save(root / "a" / "0.jpg", quality=90)
    for number in range(1, COUNT):
        os.link(root / "a" / "0.jpg", root / "a" / f"{number}.jpg")
    return root


@pytest.mark.timeout(120)
def test_512_mib_are_enough_for_12_mp_and_16_threads(photographs: Path, tmp_path: Path) -> None:
    # Files that were read before fill the group to its limit: the kernel gives their pages back when they are needed,
    # so the budget must not take them for used.
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 2 * LIMIT)
    with cgroups.limited(LIMIT) as group:
        done = children.run(PROGRAM, photographs, "", large, prefix=group.prefix, seconds=100)
        killed, peak = group.kill_count(), group.peak_bytes()
    assert (done.returncode, killed) == (0, 0), done.stderr
    assert done.stdout.split() == [str(COUNT), "0"]
    assert peak > 0.9 * LIMIT, "the page cache was not the group's"


@pytest.mark.timeout(120)
def test_without_the_budget_they_are_not(photographs: Path) -> None:
    """The test above can fail: the same loader that believes in 4 GiB is killed."""
    with cgroups.limited(LIMIT) as group:
        done = children.run(PROGRAM, photographs, "4GiB", prefix=group.prefix, seconds=100)
        killed = group.kill_count()
    assert (done.returncode, killed) == (-9, 1), done.stdout
