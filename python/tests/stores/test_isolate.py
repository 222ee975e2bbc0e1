"""Reading in reader processes: the same batches, and this process continues whatever a reader meets."""

import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import children
import folders
import forebay as fb
from forebay import transforms as T
from forebay.errors import ConfigError

PROGRAM = """
    import os, signal, sys, time
    import forebay as fb
    from forebay import transforms as T

    def readers():
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                name, _, rest = open(f"/proc/{name}/stat").read().rpartition(")")
            except OSError:
                continue
            number, _, comm = name.partition(" (")
            if comm == "forebay-reader" and int(rest.split()[1]) == os.getpid():
                found.append(int(number))
        return found

    dataset = fb.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((24, 32)), T.ToTensor()]))
    loader = fb.DataLoader(dataset, 2, isolate="always", output="numpy", num_workers=1, io_threads=2, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
"""


@pytest.fixture
def dataset(folder: Path, plain: T.Compose) -> fb.ImageFolder:
    return fb.ImageFolder(folder, transform=plain)


@pytest.fixture(autouse=True)
def _no_other_readers() -> None:
    """Loaders of tests before this one may be garbage that nobody has collected yet."""
    gc.collect()
    _others.clear()
    _others.update(readers_of(os.getpid()))


_others: set[int] = set()


def readers_of(process: int) -> list[int]:
    """The readers that this process started since the test began, zombies included."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            head, _, rest = Path(f"/proc/{name}/stat").read_text().rpartition(")")
        except OSError:
            continue
        is_reader = head.endswith("(forebay-reader") and int(rest.split()[1]) == process
        if is_reader and int(name) not in _others:
            found.append(int(name))
    return found


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def soon(holds: Callable[[], bool], seconds: float = 2.0) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def child(folder: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Runs the program with an end of its own."""
    return lambda end: children.start(PROGRAM + end, folder, stderr=None)


def test_batches_are_the_same_and_readers_leave_with_the_loader(
    dataset: fb.ImageFolder, digests: Callable[[Any], list[str]]
) -> None:
    plainly = digests(fb.DataLoader(dataset, 4, shuffle=True, isolate="never"))
    with fb.DataLoader(dataset, 4, shuffle=True, isolate="always") as loader:
        assert digests(loader) == plainly
        storage = loader.stats()["storage"]
        assert storage["isolated"] and storage["readers_alive"] == storage["readers_started"] >= 1
        # The next epoch is read ahead: another reader may begin between two looks.
        alive = [loader.stats]
        assert soon(lambda: len(readers_of(os.getpid())) == alive[0]()["storage"]["readers_alive"], 20)
        alive.clear()  # it keeps the loader
    del loader
    assert readers_of(os.getpid()) == []


def test_the_storage_is_shown(dataset: fb.ImageFolder, folder: Path) -> None:
    storage = fb.DataLoader(dataset).stats()["storage"]
    assert Path(folder).is_relative_to(storage["mount"])
    assert storage["filesystem"] and storage["isolated"] is False


def test_the_setting_and_the_environment_are_checked(
    dataset: fb.ImageFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="isolate: expected one of"):
        fb.DataLoader(dataset, isolate="sometimes")
    monkeypatch.setenv("FOREBAY_ISOLATE", "always")
    assert fb.DataLoader(dataset, isolate="never").stats()["storage"]["isolated"]
    scanned = fb.ImageFolder(folder)
    assert len(scanned) == len(dataset) and scanned[0][0].size == (folders.WIDTH, folders.HEIGHT)
    monkeypatch.setenv("FOREBAY_ISOLATE", "sometimes")
    with pytest.raises(ConfigError, match="FOREBAY_ISOLATE in the environment: isolate: expected"):
        fb.ImageFolder(folder)


def test_a_killed_reader_costs_nothing_but_a_count(tmp_path: Path, plain: T.Compose) -> None:
    folders.write_folder(tmp_path, 60)
    dataset = fb.ImageFolder(tmp_path, transform=plain)
    with fb.DataLoader(dataset, 2, isolate="always", io_threads=2, prefetch_factor=1, num_workers=1) as loader:
        seen = 0
        for images, _ in loader:
            seen += len(images)
            for reader in readers_of(os.getpid())[:1] if seen % 10 == 0 else ():
                os.kill(reader, signal.SIGKILL)
        assert seen == 60
        storage = loader.stats()["storage"]
        assert storage["readers_died"] >= 1
        assert all(failure.outcome == "recovered" for failure in loader.failures)


def test_a_reader_that_hangs_is_replaced_within_the_deadline(dataset: fb.ImageFolder) -> None:
    loader = fb.DataLoader(
        dataset, 2, isolate="always", io_threads=1, num_workers=1, prefetch_factor=1, deadline_seconds=0.3,
        on_error="replace",
    )  # fmt: skip
    batches = iter(loader)
    next(batches)
    (reader,) = readers_of(os.getpid())
    os.kill(reader, signal.SIGSTOP)
    assert sum(len(images) for images, _ in batches) == len(dataset) - 2
    (failure,) = loader.failures
    assert (failure.code, failure.outcome, failure.stage) == ("timeout", "replaced", "fetch")
    assert failure.message.split("did not answer within ")[1].startswith("0.3 s (")
    assert loader.stats()["storage"]["readers_written_off"] == 1
    loader.close()


def test_descriptors_and_threads_are_flat(tmp_path: Path, plain: T.Compose) -> None:
    folders.write_folder(tmp_path, 100)
    dataset = fb.ImageFolder(tmp_path, transform=plain)

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    with fb.DataLoader(dataset, 10, isolate="always", io_threads=2) as loader:
        list(loader)
        before = held()
        for _ in range(5):
            list(loader)
        assert held() == before


def test_a_closed_loader_has_no_child_and_no_descriptor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_ISOLATE", "always")
    done = children.run(
        """
    import os, sys
    import forebay as fb
    from forebay import transforms as T

    def ours():
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        for task in os.listdir("/proc/self/task"):
            children += open(f"/proc/self/task/{task}/children").read().split()
        return len(set(children)), sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1])

    transform = T.Compose([T.Resize((24, 32)), T.ToTensor()])
    before = ours()
    dataset = fb.ImageFolder(sys.argv[1], transform=transform)
    loaders = [fb.DataLoader(dataset, 4, output="numpy", num_workers=1, io_threads=4) for _ in range(2)]
    for loader in loaders:
        list(loader)
    assert ours()[0] >= 2
    for loader in loaders:
        loader.close()
    assert ours() == before, (ours(), before)
    # The dataset is as good as new.
    assert dataset[0][0].shape == (3, 24, 32) and len(list(fb.DataLoader(dataset, 24, output="numpy"))) == 1
    """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "end", ["sys.exit(0)", "os._exit(0)", "loader.close(); sys.exit(0)", "os.kill(os.getpid(), 9)"]
)
def test_the_process_ends_at_once_while_a_reader_hangs(child: Callable[[str], subprocess.Popen[str]], end: str) -> None:
    process = child(
        f"""
    stopped = readers()
    for reader in stopped:
        os.kill(reader, signal.SIGSTOP)
    # The batches that are ready run out; then a thread waits for a stopped reader.
    while batches._run.next(0.3) is not False:
        pass
    assert any(item["stage"] == "fetch" and item["elapsed_seconds"] > 0.2 for item in loader.in_flight())
    print(*readers(), flush=True)
    {end}
    """
    )
    assert process.stdout is not None
    readers = [int(number) for number in process.stdout.readline().split()]
    assert readers
    told = time.monotonic()
    assert process.wait(timeout=20) in (0, -9)
    assert time.monotonic() - told < 2
    assert soon(lambda: not any(map(is_alive, readers)))


def test_a_forked_child_reads_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_ISOLATE", "always")
    done = children.run(
        """
    import os, sys
    import forebay as fb
    dataset = fb.ImageFolder(sys.argv[1])
    size = dataset[0][0].size
    child = os.fork()
    if child == 0:
        os._exit(0 if dataset[1][0].size == size else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert dataset[2][0].size == size
    """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
