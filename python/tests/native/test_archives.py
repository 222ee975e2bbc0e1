"""Files with several arrays by name: .npz and .safetensors."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import forebay as fb

ARRAYS = {
    "image": numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4),
    "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "big": numpy.arange(4, dtype=">i4"),
    "half": numpy.ones(3, numpy.float16),
    "scalar": numpy.array(7),
    "none": numpy.zeros((0, 2)),
    "truth": numpy.array([True, False]),
}


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_npz_files_hold_what_numpy_wrote(tmp_path: Path, save: Any) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.npz", **ARRAYS)
    files = fb.NpzFiles(tmp_path)
    assert files.fields == tuple(ARRAYS)
    batch = next(iter(fb.DataLoader(pickle.loads(pickle.dumps(files)), batch_size=3)))
    for name, array in ARRAYS.items():
        assert numpy.array_equal(files[1][name].numpy(), array), name
        assert numpy.array_equal(batch[name][2].numpy(), array), name
    assert fb.NpzFiles(tmp_path, fields="scalar")[0].item() == 7


def test_safetensors_hold_what_their_library_wrote(tmp_path: Path) -> None:
    tensors = {
        "latent": torch.randn(4, 8, dtype=torch.bfloat16),
        "label": torch.tensor(3),
        "mask": torch.tensor([True, False]),
        "wide": torch.arange(5, dtype=torch.float64),
    }
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    sample = fb.SafetensorsFiles(tmp_path)[0]
    assert set(sample) == set(tensors)
    assert all(
        torch.equal(sample[name], tensor) and sample[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    summed = fb.SafetensorsFiles(tmp_path, lambda row: row["wide"].sum() + row["label"], fields=("wide", "label"))
    assert summed[0].item() == 13


def test_damage_is_found_by_the_checksum_and_named(tmp_path: Path) -> None:
    for number in range(4):
        numpy.savez(tmp_path / f"{number}.npz", x=numpy.full(100, number))
    content = bytearray((tmp_path / "1.npz").read_bytes())
    content[content.index(numpy.int64(1).tobytes()) + 40] ^= 1
    (tmp_path / "1.npz").write_bytes(content)
    numpy.savez(tmp_path / "2.npz", y=numpy.zeros(100))
    os.truncate(tmp_path / "3.npz", 500)
    loader = fb.DataLoader(fb.NpzFiles(tmp_path, fields="x"), batch_size=1, on_error="skip")
    assert [int(batch[0, 0]) for batch in loader] == [0]
    assert [
        (failure.code, failure.message.split('npz" ')[1].partition(", after")[0]) for failure in loader.failures
    ] == [
        ("corrupt", 'has the member "x.npy", whose checksum does not fit'),
        ("corrupt", 'has no array "x" (it has ["y"])'),
        ("corrupt", "has no end of a ZIP archive: it is truncated, or something else"),
    ]


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", x=numpy.array([{}], object))
    with pytest.raises(fb.ForebayError, match="object"):
        fb.NpzFiles(tmp_path, fields="x")[0]


def test_fields_are_looked_up_before_any_thread_starts(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(fb.ForebayError, match="no end of a ZIP archive"):
        fb.NpzFiles(tmp_path)
    with pytest.raises(fb.errors.ConfigError, match="fields: expected names that differ"):
        fb.NpzFiles(tmp_path, fields=("x", "x"))
