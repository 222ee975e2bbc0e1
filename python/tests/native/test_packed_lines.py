"""Lines of compressed files: read from their midst, the same as those of plain ones."""

import gzip
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import forebay as fb


def lines_of(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"{number} " + " ".join(str(draw.randrange(10**6)) for _ in range(40)) for number in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A file of several segments, one of several members, a plain one."""
    root = tmp_path_factory.mktemp("corpus")
    parts = [lines_of(15_000, 1), lines_of(9_000, 2), lines_of(50, 3)]
    (root / "a.txt.gz").write_bytes(gzip.compress("\n".join(parts[0]).encode()))
    members = ("\n".join(parts[1][at : at + 300]) + "\n" for at in range(0, 9_000, 300))
    (root / "b.txt.GZ").write_bytes(b"".join(gzip.compress(member.encode()) for member in members))
    (root / "c.txt").write_text("\n".join(parts[2]))
    return root, [line for part in parts for line in part]


def samples(dataset: Any, **options: Any) -> list[str]:
    return [line for batch in fb.DataLoader(dataset, batch_size=100, **options) for line in batch]


def test_lines_of_compressed_files_are_those_of_plain_ones(corpus: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, lines = corpus
    dataset = fb.TextLines(root, index=tmp_path / "index")
    assert len(dataset) == len(lines)
    assert samples(dataset) == lines
    assert dataset[14_999] == lines[14_999]
    assert dataset.paths[14_999].endswith("a.txt.gz#line 15000")
    some = dataset.subset(range(0, len(lines), 97))
    assert sorted(samples(some, shuffle=True, num_workers=3)) == sorted(lines[::97])
    assert samples(pickle.loads(pickle.dumps(some))) == lines[::97]


def test_zstd_is_read_by_its_frames(tmp_path: Path) -> None:
    lines = lines_of(12_000, 4)
    codec = pyarrow.Codec("zstd")
    text = [("\n".join(lines[at : at + 2_000]) + "\n").encode() for at in range(0, 12_000, 2_000)]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(codec.compress(part, asbytes=True) for part in text))
    dataset = fb.TextLines(path, extensions=".zst")
    assert len(dataset) == 12_000 and dataset[7_777] == lines[7_777]
    assert sorted(samples(dataset.subset(range(0, 12_000, 101)), shuffle=True)) == sorted(lines[::101])
    path.write_bytes(codec.compress(b"\n" * (65 << 20), asbytes=True))
    with pytest.raises(fb.ForebayError, match="more than 64 MiB that cannot be divided") as raised:
        fb.TextLines(path, extensions=".zst")
    assert "pzstd" in raised.value.hint


def test_its_index_and_its_seek_table_are_kept(corpus: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, lines = corpus
    index, seek = tmp_path / "index", tmp_path / "index.seek"
    fb.TextLines(root, index=index)
    times = {path: path.stat() for path in (index, seek)}
    again = fb.TextLines(root, index=index)
    assert {path: path.stat().st_mtime_ns for path in times} == {path: at.st_mtime_ns for path, at in times.items()}
    assert again[20_000] == lines[20_000]
    seek.write_bytes(seek.read_bytes()[:-20])
    assert fb.TextLines(root, index=index)[20_000] == lines[20_000]
    assert seek.stat().st_size == times[seek].st_size


def test_a_cache_keeps_what_is_compressed(corpus: tuple[Path, list[str]]) -> None:
    root, lines = corpus
    dataset = fb.TextLines(root, cache="memory", cache_bytes="64MiB")
    loader = fb.DataLoader(dataset, batch_size=100)
    for _ in range(2):
        assert [line for batch in loader for line in batch] == lines
    assert loader.stats()["storage"]["cache_bytes"] < sum(path.stat().st_size for path in root.iterdir()) * 1.1


def test_bytes_that_rot_cost_their_segment_and_are_named(corpus: tuple[Path, list[str]], tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes((corpus[0] / "a.txt.gz").read_bytes())
    dataset = fb.TextLines(path)
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    loader = fb.DataLoader(dataset, batch_size=1, on_error="skip", with_ids=True)
    delivered = {int(ids[0]): line for (line,), ids in loader}
    assert all(line == corpus[1][number] for number, line in delivered.items())
    lost = len(dataset) - len(delivered)
    # Segments are of a megabyte, and each of them has about 3,600 of these lines.
    assert 2_000 < lost < 6_000 and len(loader.failures) == lost
    assert {failure.code for failure in loader.failures} == {"corrupt"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "is truncated"),
        (lambda content: content[:-8] + bytes(4) + content[-4:], "its own checksum does not fit"),
        (lambda content: b"plain text\n", "is neither gzip nor zstd"),
        (lambda content: content + b"more", "no gzip where a member should begin"),
    ],
)
def test_a_damaged_file_is_refused_before_any_thread_starts(tmp_path: Path, damage: Any, message: str) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress("\n".join(lines_of(2_000, 5)).encode())))
    with pytest.raises(fb.ForebayError, match=message) as raised:
        fb.TextLines(path)
    assert raised.value.path == str(path)


def test_a_compressed_file_without_the_ending_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(fb.ForebayError, match="is compressed with gzip") as raised:
        fb.TextLines(tmp_path)
    assert ".gz" in raised.value.hint
    (tmp_path / "a.txt").rename(tmp_path / "a.jsonl.gz")
    with pytest.raises(fb.ForebayError, match="is not JSON"):
        fb.JsonLines(tmp_path)[0]
