"""How batches come back: pooled memory without a name, few descriptors, a budget in bytes."""

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import children
import worker_runs
from forebay._python.workers.transport import blocks, messages, serialisation
from forebay.errors import WorkerDiedError
from missing import missing

FOLDERS = [children.TESTS, str(Path(__file__).parent)]


class Large:
    """Tensors of a size, filled with their index."""

    def __init__(self, count: int = 1 << 16) -> None:
        self._count = count

    def __getitem__(self, index: int) -> Any:
        return torch.full((self._count,), float(index)), index


def mine(kind: str) -> list[str]:
    """What of ours is mapped in this process."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if kind in line]


def test_blocks_are_used_again() -> None:
    job = worker_runs.job(Large(), shard_count=1)
    with worker_runs.running(job) as workers:
        seen = set()

        def check(result: Any) -> None:
            values, labels = result.value
            assert values[:, 0].tolist() == labels.tolist()
            assert values[:, -1].tolist() == labels.tolist()
            seen.add(values.data_ptr())
            result.value = None

        worker_runs.results(workers, worker_runs.tasks(job, 800, 8), ahead=3, each=check)
        mapped = len(mine("forebay-block"))
    assert len(seen) <= mapped <= 8
    assert worker_runs.wait_until(lambda: not mine("forebay-block"))


def test_a_batch_that_is_kept_keeps_its_content() -> None:
    job = worker_runs.job(Large(), shard_count=2)
    with worker_runs.running(job) as workers:
        kept = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 1600, 8)))
        # Beyond so many they are copies: the number of mappings is limited, too.
        assert len(mine("forebay-block")) <= 2 * (blocks.MAX_LEASES + 16)
        assert all(row["batches_held"] <= blocks.MAX_LEASES for row in workers.stats()["workers"])
    for values, labels in kept:
        assert torch.equal(values, labels[:, None].expand_as(values).to(values.dtype))
    del values, labels, kept
    assert not mine("forebay-block")


class Cached:
    """A dataset that keeps what it returns, and returns it again."""

    def __init__(self) -> None:
        self._kept: Any = None

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << 15,), float(index))

    def collate(self, samples: list[Any]) -> Any:
        batch = torch.utils.data.default_collate(samples)
        if self._kept is None:
            self._kept = batch
        return self._kept, batch


def test_what_the_dataset_keeps_is_not_written_over() -> None:
    dataset = Cached()
    job = worker_runs.job(dataset, collate_fn=dataset.collate, shard_count=1)
    with worker_runs.running(job) as workers:

        def check(result: Any) -> None:
            kept, batch = result.value
            assert kept[:, 0].tolist() == [0, 1, 2, 3]
            assert batch[:, 7].tolist() == [result.number * 4 + step for step in range(4)]
            result.value = None

        worker_runs.results(workers, worker_runs.tasks(job, 200, 4), each=check)


KEEPER = """
    import os, resource, sys
    sys.path[:0] = {folders!r}
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    import worker_runs
    from test_workers_transport import Large

    job = worker_runs.job(Large(20_000), shard_count=4)
    with worker_runs.running(job) as workers:
        kept = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 4000, 4)))
        print(len(kept), max(map(int, os.listdir("/proc/self/fd"))))
    assert all(values[:, 5].tolist() == labels.tolist() for values, labels in kept)
"""


def unprivileged() -> tuple[str, ...]:
    """What to begin a command with, so that the kernel's limits are those of ordinary users."""
    if os.geteuid() != 0:
        return ()
    if (setpriv := shutil.which("setpriv")) is None:
        missing("setpriv", "root needs it to do without its privileges")
    return setpriv, "--bounding-set", "-sys_admin,-sys_resource"


def test_a_consumer_that_keeps_every_batch_needs_few_descriptors() -> None:
    ended = children.run(KEEPER.format(folders=FOLDERS), prefix=unprivileged())
    assert ended.returncode == 0, ended.stderr
    count, highest = map(int, ended.stdout.split())
    assert count == 1000
    assert highest < 64


class Many:
    """Samples of many tensors: each batch of them comes in as many blocks."""

    def __getitem__(self, index: int) -> Any:
        return [torch.full((2048,), index) for _ in range(24)]


CROWDED = """
    import os, resource, signal, sys
    sys.path[:0] = {folders!r}
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    import worker_runs
    from test_workers_transport import Many

    def waiting():
        return [row["pid"] for row in workers.in_flight() if row["stage"] == "deliver" and row["since_seconds"] > 0.5]

    job = worker_runs.job(Many(), shard_count=4)
    with worker_runs.running(job) as workers:
        todo = worker_runs.tasks(job, 80, 4)
        for task in todo:
            workers.submit(task)
        # 256 descriptors are on their way, and nobody takes them.
        assert worker_runs.wait_until(lambda: len(waiting()) >= 2, 30), workers.in_flight()
        os.kill(waiting()[0], signal.SIGKILL)
        found = {{}}
        while len(found) < len(todo):
            result = workers.receive(20)
            found[result.number] = [tensor[:, 5].tolist() for tensor in result.value]
            del result
        print(workers.stats()["restarts"])
    assert [found[number] for number in range(20)] == [[task.indices] * 24 for task in todo]
"""


def test_too_many_descriptors_on_their_way_are_waited_for() -> None:
    ended = children.run(CROWDED.format(folders=FOLDERS), prefix=unprivileged())
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["1"]


def test_works_where_dev_shm_is_too_small_for_anything() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        missing("mount", "a mount namespace needs root and unshare")
    # With nothing of it left, not even a semaphore could be made there.
    mount = 'mount -t tmpfs -o size=64k,nr_inodes=2 none /dev/shm && exec "$@"'
    prefix = (unshare, "-m", "--propagation", "private", "sh", "-c", f"{mount} && :", "sh")
    ended = children.run(KEEPER.format(folders=FOLDERS) + "    print(os.listdir('/dev/shm'))\n", prefix=prefix)
    if "mount:" in ended.stderr:
        missing("mount", f"nothing can be mounted here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[0].startswith("1000 ")
    assert "[]" in ended.stdout


def test_leaves_no_file_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/dev/shm"))
    job = worker_runs.job(Large(), shard_count=2)
    with worker_runs.running(job) as workers:
        worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 160, 8)))
        # torch names its blocks there for a moment, in another test's process.
        assert worker_runs.wait_until(lambda: set(os.listdir("/dev/shm")) <= before)
        assert not list(tmp_path.iterdir())
        sockets = Path("/proc/net/unix").read_text()
        assert "forebay" not in sockets


def waiting_seconds(workers: Any) -> float:
    rows = [row for row in workers.in_flight() if row["stage"] == "deliver"]
    return min((row["since_seconds"] for row in rows), default=0.0) if len(rows) == 2 else 0.0


def test_workers_wait_when_the_budget_is_used_up() -> None:
    # A batch of 4 MiB; the share of each of two workers is 10 MiB: two batches.
    job = worker_runs.job(Large(1 << 17), shard_count=2)
    with worker_runs.running(job, memory_budget=20 << 20) as workers:
        todo = worker_runs.tasks(job, 8 * 40, 8)
        for task in todo:
            workers.submit(task)
        assert worker_runs.wait_until(lambda: waiting_seconds(workers) > 0.3, 30)
        # Nothing is taken: what was made stays within the budget.
        made = sum(row["samples"] for row in workers.stats()["workers"])
        assert made <= 2 * 2 * 8
        found = {}
        for _ in todo:
            result = workers.receive(10)
            assert result is not None
            found[result.number] = result.value[1].tolist()
            del result
    assert [sample for number in range(40) for sample in found[number]] == list(range(320))


def collate_slowly(samples: list[Any]) -> Any:
    batch = torch.utils.data.default_collate(samples)
    time.sleep(0.6)
    return batch


def test_waiting_for_room_is_within_no_deadline() -> None:
    job = worker_runs.job(Large(1 << 17), collate_fn=collate_slowly, shard_count=2)
    with worker_runs.running(job, memory_budget=20 << 20, deadline_seconds=2.0) as workers:
        todo = worker_runs.tasks(job, 8 * 8, 8)
        for task in todo:
            workers.submit(task)
        # The loop is elsewhere, for longer than a sample may take.
        assert worker_runs.wait_until(lambda: waiting_seconds(workers) > 2.2, 30)
        found: list[Any] = []
        # It looks at the workers at every call.
        assert worker_runs.wait_until(
            lambda: found.append(workers.receive(0.05)) or len(list(filter(None, found))) == 8, 30
        )
        assert workers.stats()["restarts"] == 0


def test_a_batch_larger_than_the_budget_passes_alone() -> None:
    job = worker_runs.job(Large(1 << 18), shard_count=2)
    with worker_runs.running(job, memory_budget=1 << 20) as workers:
        made = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 80, 8)))
    assert worker_runs.flat(labels for _, labels in made) == list(range(80))


class Heavy:
    """Its array is large, and must not be there once for each worker."""

    def __init__(self) -> None:
        self.table = np.ones(64 << 20, np.uint8)

    def __getitem__(self, index: int) -> int:
        return int(self.table.sum()) + index - len(self.table)


def private_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Private_"))


def test_arrays_of_the_dataset_are_shared_by_all_workers() -> None:
    job = worker_runs.job(Heavy(), shard_count=4, output="numpy")
    with worker_runs.running(job) as workers:
        assert worker_runs.flat(
            worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 64, 4)))
        ) == list(range(64))
        for row in workers.stats()["workers"]:
            assert private_bytes(row["pid"]) < 48 << 20


def test_messages_of_any_length_pass() -> None:
    ours, theirs = messages.pair()
    left, right = messages.Connection(ours), messages.Connection(theirs)
    for size in (0, 1, messages.PACKET_BYTES, messages.PACKET_BYTES + 1, 3 << 20):
        data = os.urandom(size)
        assert left.send(3, [data[: size // 2], data[size // 2 :]])
        message = right.receive()
        assert message is not None
        assert (message[0], bytes(message[1]), message[2]) == (3, data, [])
    assert right.receive(is_patient=False) is None
    left.close()
    with pytest.raises(EOFError):
        right.receive()
    right.close()


def test_what_was_sent_before_the_end_arrives_whatever_was_left_unread() -> None:
    ours, theirs = messages.pair()
    left, right = messages.Connection(ours), messages.Connection(theirs)
    assert left.send(1, [b"a task that is not begun any more"])
    assert right.send(2, [b"a result"])
    right.close()
    message = left.receive(is_patient=False)
    assert message is not None and (message[0], bytes(message[1])) == (2, b"a result")
    for _ in range(2):
        with pytest.raises(EOFError):
            left.receive()
    left.close()


class Shrinking:
    """Code that truncates the memory of its own batch, and continues."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << 16,), float(index))

    def collate(self, samples: list[Any]) -> Any:
        batch = torch.utils.data.default_collate(samples)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if "forebay-block" in os.readlink(f"/proc/self/fd/{fd}"):
                    os.truncate(fd, 0)
        return batch


def test_memory_that_a_worker_sends_cannot_shrink() -> None:
    """In a process of its own: one that reads behind the end of a file in memory is killed by SIGBUS."""
    ended = children.run(f"""
        import sys
        sys.path[:0] = {FOLDERS!r}
        import worker_runs
        from test_workers_transport import Shrinking

        job = worker_runs.job(Shrinking(), collate_fn=Shrinking().collate, shard_count=1)
        with worker_runs.running(job) as workers:
            for batch in worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 4))):
                print(batch[:, -1].tolist())
    """)
    assert (ended.returncode, ended.stdout.split("\n")) == (0, ["[0.0, 1.0, 2.0, 3.0]", "[4.0, 5.0, 6.0, 7.0]", ""]), (
        ended
    )


def unsealed(size_bytes: int, name: str) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.truncate(fd, size_bytes)
    return fd


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: blocks.create(4096), "block 7: expected 8192 bytes, got 4096"),
        (lambda: unsealed(8192, "forebay-block"), "block 7: expected memory that cannot shrink"),
        (lambda: os.open("/bin/sh", os.O_RDONLY), "block 7: expected memory, got another kind of file"),
    ],
)
def test_a_block_that_is_not_safe_to_read_is_refused(make: Any, said: str) -> None:
    fd, tenancy = make(), blocks.Tenancy()
    try:
        with pytest.raises(messages.BrokenMessageError, match=said):
            tenancy.open(7, 8192, fd)
    finally:
        os.close(fd)


def use_unsealed(shard: int) -> None:
    blocks.create = unsealed


def test_a_worker_whose_messages_cannot_be_read_is_ended_and_named() -> None:
    job = worker_runs.job(Large(), worker_init_fn=use_unsealed, shard_count=1)
    with (
        worker_runs.running(job) as workers,
        pytest.raises(WorkerDiedError, match=r"worker 0( \(pid \d+\))? sent what cannot be read .*cannot shrink"),
    ):
        worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 8, 8)))


def test_a_long_message_that_is_shorter_than_told_is_refused() -> None:
    ours, theirs = messages.pair()
    left, right = messages.Connection(ours), messages.Connection(theirs)
    with open(os.memfd_create("message"), "wb") as file:
        file.write(b"short")
        file.flush()
        left._send([bytes((messages._ELSEWHERE,)), messages._LENGTH.pack(1 << 60)], [file.fileno()], 0)
    with pytest.raises(messages.BrokenMessageError, match=f"message: expected {1 << 60} bytes, got 5"):
        right.receive()
    left._send([bytes((messages._ELSEWHERE,)), messages._LENGTH.pack(8)], [], 0)
    with pytest.raises(messages.BrokenMessageError, match="expected its length and a file, got 9 bytes, 0 files"):
        right.receive()
    left.close()
    right.close()


def test_what_all_processes_map_has_its_final_size() -> None:
    job = serialisation.SealedJob(worker_runs.job(list(range(8))))
    try:
        with pytest.raises(PermissionError):
            os.truncate(job.fd, 0)
        assert fcntl.fcntl(job.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    finally:
        job.close()


def test_sizes_that_vary_do_not_pile_up() -> None:
    pool = blocks.Pool(1 << 40, lambda: None)
    sizes = np.random.default_rng(0).integers(1 << 15, 1 << 20, 300)
    for size in sizes:
        packed = serialisation.pack(0, 0, 0, np.zeros(int(size), np.uint8), pool)
        pool.sent(packed.blocks)
        for block in packed.blocks:
            pool.taken()
            pool.returned(block.number)
    assert len(pool._blocks) <= 9


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_start_up_is_no_slower_than_that_of_torch() -> None:
    """One interpreter imports torch, not one for each worker."""

    def first(make: Any) -> float:
        before = time.monotonic()
        make()
        return time.monotonic() - before

    def ours() -> None:
        job = worker_runs.job(Large(), shard_count=4)
        with worker_runs.running(job) as workers:
            for task in worker_runs.tasks(job, 64, 8):
                workers.submit(task)
            assert workers.receive(60) is not None

    def theirs() -> None:
        loader = torch.utils.data.DataLoader(
            Large(), sampler=range(64), batch_size=8, num_workers=4, multiprocessing_context="spawn"
        )
        iterator = iter(loader)
        next(iterator)
        iterator._shutdown_workers()

    mine, stock = first(ours), first(theirs)
    print(f"first batch after {mine:.2f} s, with torch's spawn {stock:.2f} s")
    assert mine < stock
