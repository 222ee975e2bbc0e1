"""Samples of mapped files: the same ones, and whatever would be a signal is a failed sample or a refusal."""

import gzip
import io
import itertools
import os
import signal
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import children
import forebay as fb
from faultfs import FaultFs
from forebay.errors import ConfigError

# Of a file, whose content is never zero.
RECORDS, RECORD_BYTES = 4096, 1024


def write_records(path: Path) -> None:
    path.write_bytes(b"".join(bytes([1 + number % 255]) * RECORD_BYTES for number in range(RECORDS)))


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(40):
            content = f"sample {number}".encode()
            member = tarfile.TarInfo(f"{number:05}.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_lines(path: Path) -> None:
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(100)))


DATASETS: dict[str, tuple[str, Callable[[Path], None], Callable[..., Any]]] = {
    "Records": ("a.bin", write_records, lambda root, **more: fb.Records(root, record_bytes=RECORD_BYTES, **more)),
    "Tokens": ("a.bin", write_records, lambda root, **more: fb.Tokens(root, 100, **more)),
    "TextLines": ("a.txt", write_lines, fb.TextLines),
    "JsonLines": ("a.jsonl", write_lines, fb.JsonLines),
    "Csv": ("a.csv", write_lines, fb.Csv),
    "Shards": ("a.tar", write_tar, lambda root, **more: fb.Shards(root, fields="txt", **more)),
}


def settle(*paths: Path) -> None:
    """Waits until files are old enough to be mapped: the next change has another time then, whatever the clock."""
    until = time.monotonic() + 30
    while any(time.time_ns() - path.stat().st_ctime_ns < 150_000_000 for path in paths):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def listed(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: listed(value) for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        return [listed(value) for value in sample]
    return sample.tolist() if isinstance(sample, torch.Tensor) else sample


@pytest.mark.parametrize("name", DATASETS)
def test_mapped_files_give_the_same_samples(name: str, tmp_path: Path) -> None:
    file, write, dataset = DATASETS[name]
    write(tmp_path / file)
    settle(tmp_path / file)
    plain, mapped = dataset(tmp_path), dataset(tmp_path, mmap=True)
    assert listed(mapped[3]) == listed(plain[3]) and is_mapped(tmp_path / file)
    assert listed(fb.concat([mapped, mapped])[len(plain) + 2]) == listed(plain[2])
    epochs = [
        [listed(batch) for batch in fb.DataLoader(each, 7, shuffle=True, with_ids=True)] for each in (plain, mapped)
    ]
    assert epochs[0] == epochs[1]


def test_loaders_read_from_mappings_and_leave_none(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path)
    settle(path)
    loader = fb.DataLoader(fb.Records(tmp_path, record_bytes=RECORD_BYTES, mmap=True), 64)
    batches = iter(loader)
    next(batches)
    assert is_mapped(path)
    del batches, loader
    until = time.monotonic() + 30
    while is_mapped(path):
        assert time.monotonic() < until, "threads that end leave the mapping"
        time.sleep(0.01)


CUT = """
    import faulthandler, os, sys, time
    when, path = sys.argv[1:]
    if when == "before":
        faulthandler.enable()
    import forebay as fb

    size, count = 1024, 4096
    dataset = fb.Records([path], record_bytes=size, mmap=True)
    loader = fb.DataLoader(
        dataset, 32, shuffle=True, on_error="replace", with_ids=True, num_workers=3, io_threads=3, max_failures=None
    )
    whole, cut = 0, count * 3 // 4
    for epoch in range(2):
        for step, (records, ids) in enumerate(loader):
            if epoch == 0 and step == 10:
                assert path in open("/proc/self/maps").read()
                if when == "after":
                    faulthandler.enable()
                os.truncate(path, cut * size + size // 2)
            assert len(records) == 32
            for record, number in zip(records, ids.tolist()):
                assert record == bytes([1 + number % 255]) * size, f"{number}: wrong bytes"
        failures = loader.failures
        assert {failure.path for failure in failures} == {path} and len(failures) > 500, len(failures)
        assert {failure.code for failure in failures} <= {"corrupt", "changed"}, {f.code for f in failures}
        assert all(failure.offset + size > cut * size for failure in failures if failure.code == "corrupt")
    assert loader.report().count(f"planned {count} = delivered ") == 2, loader.report()
    print("lives", sorted({failure.message for failure in failures})[:2])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_cut_in_the_midst_of_an_epoch_costs_its_records(when: str, tmp_path: Path) -> None:
    """faulthandler, which ends the process at a SIGBUS, is installed before the first file is mapped, or after."""
    path = tmp_path / "a.bin"
    write_records(path)
    settle(path)
    done = children.run(CUT, when, path)
    assert done.returncode == 0 and "lives" in done.stdout, done.stderr
    assert "Fatal" not in done.stderr, done.stderr


FOREIGN = """
    import faulthandler, mmap, os, sys
    when, path = sys.argv[1:]
    faulthandler.disable()
    if when == "before":
        faulthandler.enable()
    import forebay as fb

    dataset = fb.Records([path], record_bytes=1024, mmap=True)
    assert dataset[0] and path in open("/proc/self/maps").read()
    if when == "after":
        faulthandler.enable()
        dataset[1]
    with open(path, "r+b") as file:
        foreign = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.truncate(0)
    foreign[4096]
"""


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_a_bus_error_of_other_mappings_is_faulthandlers(when: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path)
    settle(path)
    done = children.run(FOREIGN, when, path)
    assert done.returncode == -signal.SIGBUS, done
    assert done.stderr.count("Fatal Python error: Bus error") == (0 if when == "never" else 1), done.stderr


class Wrapped:
    """A Python dataset that takes its samples from mapped files, in worker processes."""

    def __init__(self, path: Path) -> None:
        self.records = fb.Records([path], record_bytes=RECORD_BYTES, mmap=True)

    def __getitem__(self, index: int) -> int:
        record = self.records[index]
        assert record == record[:1] * RECORD_BYTES
        return int(record[0])

    def __len__(self) -> int:
        return len(self.records)


def test_forked_children_and_workers_read_mapped_datasets(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path)
    settle(path)
    dataset = Wrapped(path)
    assert dataset[7] == 8 and is_mapped(path)
    for loader in (
        fb.DataLoader(dataset, 512, num_workers=2),
        torch.utils.data.DataLoader(dataset, 512, num_workers=2, multiprocessing_context="fork"),  # type: ignore[arg-type]
    ):
        got = torch.cat(list(itertools.islice(loader, 2))).tolist()
        assert got == [1 + number % 255 for number in range(1024)]


def refused(dataset: Callable[[], Any], *said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset()
    for words in said:
        assert words in str(caught.value), caught.value


def test_mounts_that_can_hang_are_refused_before_anything_is_read(fault_fs: FaultFs) -> None:
    numpy.arange(100, dtype="<u2").tofile(fault_fs.source / "a.bin")
    for root in (fault_fs.root, [fault_fs.root / "a.bin"]):
        refused(lambda root=root: fb.Tokens(root, 10, mmap=True), "mmap: expected files on disks", str(fault_fs.root))
    assert not any(operation in ("open", "read") for operation, _ in fault_fs.counts())


def test_links_to_such_mounts_are_refused(fault_fs: FaultFs, tmp_path: Path) -> None:
    numpy.arange(100, dtype="<u2").tofile(fault_fs.source / "a.bin")
    link = tmp_path / "links" / "a.bin"
    link.parent.mkdir()
    link.symlink_to(fault_fs.root / "a.bin")
    refused(lambda: fb.Tokens([link], 10, mmap=True), "mmap: expected files on disks", str(fault_fs.root), str(link))


def test_what_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    refused(lambda: fb.Tokens("https://127.0.0.1:9/a/", 10, mmap=True), "mmap: expected files of this machine")
    refused(lambda: fb.Tokens(["https://127.0.0.1:9/a.bin"], 10, mmap=True), "mmap: expected files of this machine")
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"one\n"))
    refused(lambda: fb.TextLines(tmp_path, mmap=True), "mmap: expected files as they are", str(packed))
    write_records(tmp_path / "a.bin")
    dataset = fb.Records([tmp_path / "a.bin"], record_bytes=1024, mmap=True)
    refused(lambda: fb.DataLoader(dataset, isolate="always"), 'got isolate="always"')


def test_a_changed_file_is_stale_as_without_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_lines(path)
    settle(path)
    datasets = [fb.TextLines(tmp_path, mmap=is_mapped) for is_mapped in (False, True)]
    assert datasets[1][0] == '{"n": 0}' and is_mapped(path)
    os.utime(path, (1, 1))
    codes = []
    for dataset in datasets:
        loader = fb.DataLoader(dataset, 10, on_error="skip")
        assert list(loader) == []
        codes.append({(failure.code, failure.message) for failure in loader.failures})
    assert codes[0] == codes[1] and {code for code, _ in codes[0]} == {"stale"}
