"""Proof 6: every cut is detected, and nothing intact is called cut."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import folders
import forebay as fb
from forebay import transforms as T

TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


def encoded(kind: str, image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpegs() -> dict[str, bytes]:
    picture = folders.picture(1, 160, 120)
    return {
        "baseline": encoded("JPEG", picture),
        "full chroma": encoded("JPEG", picture, subsampling=0, quality=95),
        "progressive": encoded("JPEG", picture, progressive=True),
        "grey": encoded("JPEG", picture.convert("L")),
        "restarts": encoded("JPEG", picture, restart_marker_blocks=4),
        "exif": encoded("JPEG", picture, exif=b"Exif\0\0" + b"x" * 300),
        "flat": encoded("JPEG", Image.new("RGB", (160, 120), (9, 9, 9))),
    }


def loaded(root: Path) -> tuple[fb.DataLoader, int]:
    loader = fb.DataLoader(fb.ImageFolder(root, transform=TO_TENSOR), 32, on_error="skip")
    return loader, sum(len(labels) for _, labels in loader)


@pytest.mark.parametrize("kind", list(jpegs()))
def test_every_cut_of_a_jpeg_is_detected(tmp_path: Path, kind: str) -> None:
    data = jpegs()[kind]
    (tmp_path / "a").mkdir()
    for percent in range(1, 100):
        (tmp_path / "a" / f"{percent:02}.jpg").write_bytes(data[: max(1, len(data) * percent // 100)])
    loader, delivered = loaded(tmp_path)
    failures = {os.path.basename(failure.path): failure for failure in loader.failures}
    passed = sorted({f"{percent:02}.jpg" for percent in range(1, 100)} - set(failures))
    assert not passed and delivered == 0
    for name, failure in failures.items():
        assert failure.code == "corrupt" and "truncated" in failure.message, (name, failure.message, failure.detail)


def test_nothing_intact_is_called_cut(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, data in jpegs().items():
        for tail, bytes_after in {"": b"", " zeros": b"\0" * 64, " text": b"trailing", " jpeg": data}.items():
            (tmp_path / "a" / f"{name}{tail}.jpg").write_bytes(data + bytes_after)
    loader, delivered = loaded(tmp_path)
    assert [(failure.path, failure.message, failure.detail) for failure in loader.failures] == []
    assert delivered == 4 * len(jpegs())


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_no_cut_of_another_format_is_trained_on(tmp_path: Path, kind: str) -> None:
    data = encoded(kind, folders.picture(2, 160, 120))
    (tmp_path / "a").mkdir()
    cuts = range(1, 98, 4)
    for percent in cuts:
        (tmp_path / "a" / f"{percent:02}.jpg").write_bytes(data[: max(1, len(data) * percent // 100)])
    loader, delivered = loaded(tmp_path)
    assert delivered == 0, sorted({f"{percent:02}.jpg" for percent in cuts} - {f.path[-6:] for f in loader.failures})
    assert {failure.code for failure in loader.failures} == {"corrupt"}


def test_zeroed_blocks_inside_are_noticed(tmp_path: Path) -> None:
    """What a crashed file system leaves: Pillow trains on it."""
    (tmp_path / "a").mkdir()
    data = bytearray(jpegs()["baseline"])
    middle = len(data) // 2
    data[middle : middle + 600] = bytes(600)
    (tmp_path / "a" / "1.jpg").write_bytes(data)
    loader, delivered = loaded(tmp_path)
    assert delivered == 0 and [failure.code for failure in loader.failures] == ["corrupt"]
