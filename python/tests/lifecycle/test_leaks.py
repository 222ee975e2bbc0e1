"""Proof 7: threads, descriptors and memory stay flat, also with few descriptors and hardly any /dev/shm."""

import os
import shutil
from pathlib import Path

import pytest

import children
import folders
from missing import missing

PROGRAM = """
    import os, sys
    import forebay as fb
    from forebay import transforms as T

    output, io_threads = sys.argv[2], int(sys.argv[3])
    sys.path.append(sys.argv[4])
    import threads
    if output == "torch":
        import torch

    others = threads.listed()  # NumPy's own
    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(24), T.ToTensor()]))

    def measured():
        threads.expect_no_more_than(others)
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return len(os.listdir("/proc/self/fd")), resident

    loader = fb.DataLoader(dataset, 2, shuffle=True, num_workers=2, io_threads=io_threads, output=output)

    def break_off(times):
        for _ in range(times):
            for number, batch in enumerate(loader):
                if number == 1:
                    break
        del batch

    def epochs(times):
        for _ in range(times):
            for batch in loader:
                pass


    # Breaking off last: nobody reads ahead then, and every descriptor that is open is one too many.
    epochs(2)
    break_off(300)
    files, resident = measured()
    epochs(20)
    break_off(2000)
    now_files, now_resident = measured()
    print(files, now_files, resident, now_resident)
    epochs(1)
    loader.close()
    threads.expect_no_more_than(others)  # no thread outlives its loader
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    folders.write_folder(root, 12)
    return root


def check(root: Path, prefix: tuple[str, ...], output: str, io_threads: int) -> None:
    done = children.run(PROGRAM, root, output, io_threads, children.TESTS, prefix=prefix, seconds=100)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    files, now_files, resident, now_resident = map(int, done.stdout.split())
    assert now_files == files
    assert now_resident < resident * 1.05, f"{resident} → {now_resident}"


@pytest.mark.timeout(120)
def test_nothing_grows(small: Path) -> None:
    check(small, (), "torch", 4)


@pytest.mark.timeout(120)
def test_nothing_grows_with_few_descriptors(small: Path) -> None:
    if not (prlimit := shutil.which("prlimit")):
        missing("prlimit", "it is not installed")
    check(small, (prlimit, "--nofile=64"), "numpy", 32)


@pytest.mark.timeout(120)
def test_nothing_grows_with_hardly_any_shared_memory(small: Path) -> None:
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or not unshare:
        missing("mount", "a mount namespace needs root and unshare")
    if os.system(f"{unshare} -m sh -c '{mount}' >/dev/null 2>&1") != 0:
        missing("mount", "mounting is not allowed here")
    check(small, (unshare, "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"), "numpy", 4)
