"""Records of one size in larger files: which there are, what they hold, what is left out, how they are labelled."""

import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import forebay as fb

# Records in each file; the one of 0 has a header and nothing else.
COUNTS = (5, 0, 7, 1)


def values(record: int) -> numpy.ndarray[Any, Any]:
    return numpy.arange(6, dtype=numpy.float32).reshape(2, 3) + 10 * record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """13 records of 24 bytes in four files, each after 16 bytes."""
    folder, record = tmp_path / "records", 0
    for number, count in enumerate(COUNTS):
        path = folder / ("x" if number < 2 else "y") / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"".join(values(record + place).tobytes() for place in range(count))
        path.write_bytes(b"a header of 16 b" + content)
        record += count
    return folder


def opened(root: Path, **more: Any) -> fb.Records:
    return fb.Records(root, **{"dtype": "float32", "shape": (2, 3), "header_bytes": 16} | more)


def test_every_record_is_a_sample(root: Path) -> None:
    dataset = opened(root)
    assert len(dataset) == 13
    assert all(numpy.array_equal(dataset[record].numpy(), values(record)) for record in range(13))
    loader = fb.DataLoader(dataset, batch_size=4, shuffle=True, with_ids=True)
    for _ in range(2):
        seen = []
        for batch, ids in loader:
            assert batch.dtype == torch.float32 and batch.shape[1:] == (2, 3)
            assert all(
                numpy.array_equal(row.numpy(), values(int(record))) for row, record in zip(batch, ids, strict=True)
            )
            seen += ids.tolist()
        assert sorted(seen) == list(range(13))


def test_records_go_by_their_file_and_offset(root: Path) -> None:
    dataset = opened(root)
    assert dataset.paths[0] == f"{root}/x/0.bin@16"
    assert dataset.paths[5:7] == [f"{root}/y/2.bin@16", f"{root}/y/2.bin@40"]


def test_what_is_no_whole_record_is_left_out_and_said(root: Path) -> None:
    with (root / "y" / "3.bin").open("ab") as file:
        file.write(b"12345")
    (root / "y" / "4.bin").write_bytes(b"short")
    dataset = opened(root)
    assert len(dataset) == 13
    assert dataset.notes == [
        (f"{root}/x/1.bin", "has no records"),
        (f"{root}/y/3.bin", "ends with 5 bytes of a record of 24, which are left out"),
        (f"{root}/y/4.bin", "has no records: its header takes 16 bytes, and it has 5"),
    ]
    assert dataset.subset([0]).notes == dataset.notes


def test_a_file_cut_after_it_was_opened_costs_the_records_that_are_gone(root: Path) -> None:
    dataset = opened(root)
    with (root / "y" / "2.bin").open("r+b") as file:
        file.truncate(16 + 3 * 24 + 11)
    loader = fb.DataLoader(dataset, batch_size=1, on_error="skip", with_ids=True)
    assert [int(ids[0]) for _, ids in loader] == [0, 1, 2, 3, 4, 5, 6, 7, 12]
    assert [(failure.index, failure.code, failure.offset) for failure in loader.failures] == [
        (record, "corrupt", 16 + (record - 5) * 24) for record in (8, 9, 10, 11)
    ]


def test_labels_are_of_the_file_or_of_each_record(root: Path, tmp_path: Path) -> None:
    by_directory = opened(root, labels="directory")
    assert (by_directory.classes, by_directory.targets) == (["x", "y"], [0] * 5 + [1] * 8)
    paths = [root / "y" / "3.bin", root / "x" / "0.bin"]
    assert opened(paths, labels="directory").targets == [1] + [0] * 5
    assert opened(root, labels=list(range(100, 113)))[6][1] == 106
    with pytest.raises(fb.errors.ConfigError, match="expected 13 values"):
        opened(root, labels=[1, 2, 3, 4])
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("path,score\ny/3.bin,0.5\nx/0.bin,2.5\n")
    assert opened(root, manifest=manifest, labels="score").targets == [0.5] + [2.5] * 5


def test_without_a_type_records_are_bytes_and_without_a_shape_rows(root: Path) -> None:
    as_bytes = fb.Records(root, record_bytes=24, header_bytes=16)
    assert as_bytes[12] == values(12).tobytes()
    rows = fb.Records(root, dtype=torch.float32, record_bytes=24, header_bytes=16)
    assert rows.shape == (6,) and rows[3].tolist() == values(3).ravel().tolist()
    single = fb.Records(root, dtype="float32", shape=(), header_bytes=16)
    assert len(single) == 13 * 6 and single[7].item() == 11.0
    big = root / "big.dat"
    big.write_bytes(numpy.array([[1, 2], [3, 4]], ">u4").tobytes())
    assert fb.Records([big], dtype="uint32", shape=[2], endian="big")[1].tolist() == [3, 4]


def test_a_dataset_is_pickled_and_bound_to_its_state(root: Path) -> None:
    dataset = opened(root)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[9], dataset[9])
    loader = fb.DataLoader(dataset, batch_size=2, shuffle=True, seed=3)
    whole = [batch.tolist() for batch in loader]
    state = loader.state_dict()
    next(iter(loader))
    # As many records, but others: after a header of another size.
    moved = fb.DataLoader(opened(root, header_bytes=12), batch_size=2, shuffle=True, seed=3)
    with pytest.raises(fb.errors.StateMismatchError):
        moved.load_state_dict(state)
    (root / "y" / "3.bin").write_bytes(b"a header of 16 b" + bytes(48))
    with pytest.raises(fb.errors.StateMismatchError):
        pickle.loads(pickle.dumps(dataset))
    assert len(whole) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "record_bytes: expected the size of a record, or dtype=… and shape=…, got neither"),
        ({"dtype": "float32"}, "shape: expected shape=…, or record_bytes=… that is a multiple of 4"),
        ({"dtype": "float32", "record_bytes": 6}, "multiple of 4, which is what one float32 takes, got 6"),
        ({"dtype": "float32", "shape": (2, 3), "record_bytes": 20}, r"record_bytes: expected 24, .* got 20"),
        ({"dtype": "float32", "shape": (2, -1)}, "shape: expected at least 1, got -1"),
        ({"dtype": "float64", "shape": (2**40, 2**40)}, r"shape: expected one below 2\*\*63"),
        ({"shape": (2, 3)}, r"shape: expected dtype=… beside it"),
        ({"record_bytes": 0}, "record_bytes: expected at least 1, got 0"),
        ({"record_bytes": 4, "header_bytes": -1}, "header_bytes: expected at least 0, got -1"),
        ({"record_bytes": 4, "endian": "middle"}, "endian"),
        ({"record_bytes": 4, "verify": "checksum"}, "verify: expected None: checksums are of whole files"),
    ],
)
def test_wrong_arguments_are_refused(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.errors.ConfigError, match=message):
        fb.Records(root, **options)


def test_a_missing_file_and_files_without_records_are_said_at_once(root: Path) -> None:
    with pytest.raises(fb.errors.NotFoundError, match=r"gone\.bin"):
        fb.Records([root / "x" / "0.bin", root / "gone.bin"], record_bytes=24)
    with pytest.raises(fb.errors.NotFoundError, match=r"no record was found in 4 files: .*0\.bin. ends with 136 bytes"):
        fb.Records(root, record_bytes=1000)
