"""Proof 8: under a budget of 64 MiB and pictures of 40 MP, the peak stays under the budget and one sample, if such
samples are allowed at all."""

import shutil
from pathlib import Path

import numpy
import pytest
from PIL import Image

import children
import forebay as fb
from forebay import transforms as T
from forebay.errors import ConfigError, ExhaustedError

WIDTH, HEIGHT = 8000, 5000
MIB = 1 << 20
# What is not data: thread stacks and arenas, libraries' own tables.
SLACK = 24 * MIB

PROGRAM = """
    import sys
    import forebay as fb
    from forebay import transforms as T

    def peak():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((64, 64)), T.ToTensor()]))
    loader = fb.DataLoader(
        dataset, 2, num_workers=4, io_threads=4, memory_budget="64MiB", max_sample_bytes="256MiB", output="numpy"
    )
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = peak()
    delivered = sum(len(labels) for _, labels in loader)
    print(delivered, peak() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    (root / "a").mkdir()
    row = numpy.linspace(0, 255, WIDTH).astype(numpy.uint8)
    Image.fromarray(numpy.broadcast_to(row[None, :, None], (HEIGHT, WIDTH, 3))).save(root / "a" / "0.jpg", quality=50)
    for number in range(1, 6):
        shutil.copy(root / "a" / "0.jpg", root / "a" / f"{number}.jpg")
    return root


@pytest.mark.timeout(120)
def test_the_peak_stays_under_the_budget_and_one_sample(large: Path) -> None:
    done = children.run(PROGRAM, large, seconds=100)
    assert done.returncode == 0, done.stderr
    delivered, grown = map(int, done.stdout.split())
    one_sample = WIDTH * HEIGHT * 3 + (large / "a" / "0.jpg").stat().st_size
    assert delivered == 6
    assert grown < 64 * MIB + one_sample + SLACK, f"{grown / MIB:.0f} MiB"


def test_a_sample_above_max_sample_bytes_is_refused_by_name(large: Path) -> None:
    dataset = fb.ImageFolder(large, transform=T.Compose([T.Resize((64, 64)), T.ToTensor()]))
    with pytest.raises(ExhaustedError, match="needs too much memory for one sample") as refused:
        next(iter(fb.DataLoader(dataset, 2, memory_budget="64MiB", output="numpy")))
    assert refused.value.path == str(large / "a" / "0.jpg")
    assert "max_sample_bytes" in refused.value.hint
    assert f"expected at most {64 * MIB} bytes" in str(refused.value)


def test_max_sample_bytes_is_for_files_that_forebay_reads() -> None:
    with pytest.raises(ConfigError, match="max_sample_bytes: expected none for a Python dataset, got '1GiB'"):
        fb.DataLoader([1, 2, 3], max_sample_bytes="1GiB")
