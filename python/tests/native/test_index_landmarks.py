"""Landmarks in the index of shards: pictures are known from the first epoch on, with the same pixels and verdicts."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import forebay as fb
from forebay import transforms as T
from forebay.errors import ConfigError, ForebayError

# Of each four pictures two have landmarks: a progressive one has none, nor has one with restart markers.
KINDS: list[dict[str, Any]] = [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_rows": 1}]
COUNT = 12
WITH_LANDMARKS = 6


def jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((640 + number, 480 - number), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=92, **KINDS[number % 4])
    return file.getvalue()


def pack(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def members(numbers: range) -> dict[str, bytes]:
    pictures = {f"{number:05}.jpg": jpeg(number) for number in numbers}
    labels = {f"{number:05}.cls": b"%d" % number for number in numbers}
    return {name: content for pair in zip(pictures.items(), labels.items(), strict=True) for name, content in pair}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for shard in range(2):
        numbers = range(shard * COUNT // 2, (shard + 1) * COUNT // 2)
        pack(tmp_path / "shards" / f"train-{shard}.tar", members(numbers))
    return tmp_path / "shards"


def shards(root: Path, fields: Any = ("jpg", "cls"), **options: Any) -> fb.Shards:
    transform = T.Compose([T.RandomResizedCrop(96), T.ToTensor()])
    return fb.Shards(root, fields=fields, transform=transform, **options)


def loaded(dataset: Any, **options: Any) -> tuple[list[np.ndarray], int]:
    """The pictures of an epoch, and how many were decoded with landmarks."""
    settings: dict[str, Any] = {"batch_size": 4, "seed": 3, "num_workers": 2, "sampler": range(len(dataset)), **options}
    loader = fb.DataLoader(dataset, **settings)
    batches = [batch[0] if isinstance(batch, tuple | list) else batch for batch in loader]
    return [np.asarray(images) for images in batches], int(loader.stats()["landmarks"]["pictures"])


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) > 0 and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("decode", ["faithful", "fast"])
@pytest.mark.parametrize("fields", [("jpg", "cls"), "jpg", {"label": "cls", "image": "png;jpg"}])
def test_the_first_epoch_has_the_same_pixels_for_any_number_of_threads(
    root: Path, decode: str, fields: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def images(dataset: Any, **options: Any) -> tuple[list[np.ndarray], int]:
        if not isinstance(fields, dict):
            return loaded(dataset, decode=decode, **options)
        loader = fb.DataLoader(dataset, batch_size=4, seed=3, decode=decode, sampler=range(COUNT), **options)
        return [np.asarray(batch["image"]) for batch in loader], int(loader.stats()["landmarks"]["pictures"])

    expected, known = images(shards(root, fields))
    assert known == 0
    annotated = shards(root, fields, index=True, landmarks=True)
    for threads in (1, 2, 5):
        found, known = images(annotated, num_workers=threads)
        assert same(found, expected) and known == WITH_LANDMARKS
    monkeypatch.setenv("FOREBAY_LANDMARKS", "0")
    found, known = images(annotated)
    assert same(found, expected) and known == 0


def test_the_index_has_them_once_and_they_are_used_where_it_has_them(root: Path, tmp_path: Path) -> None:
    beside = root / "forebay.index"
    plain = loaded(shards(root, index=True))[0]
    before = beside.read_bytes()
    # An index without them gets them, and keeps them.
    assert loaded(shards(root, index=True, landmarks=True))[1] == WITH_LANDMARKS
    after = beside.read_bytes()
    assert len(before) + 100 < len(after) < len(before) + COUNT * 400
    written = beside.stat().st_mtime_ns
    for options, expected in [
        ({}, WITH_LANDMARKS),
        ({"index": True}, WITH_LANDMARKS),
        ({"landmarks": False}, 0),
        ({"index": True, "landmarks": False}, 0),
        ({"index": True, "landmarks": True}, WITH_LANDMARKS),
    ]:
        found, known = loaded(shards(root, **options))
        assert same(found, plain) and known == expected, options
    assert beside.stat().st_mtime_ns == written and beside.read_bytes() == after
    # Another file, made at once, is the same. A damaged one is made again.
    kept = tmp_path / "kept.index"
    shards(root, index=kept, landmarks=True)
    assert kept.read_bytes() == after
    kept.write_bytes(after[:-300])
    assert loaded(shards(root, index=kept, landmarks=True))[1] == WITH_LANDMARKS
    assert kept.read_bytes() == after
    # A new archive beside the others: only what is missing is made.
    pack(root / "train-2.tar", members(range(COUNT, COUNT + 4)))
    assert loaded(shards(root, index=True))[1] == WITH_LANDMARKS
    assert loaded(shards(root, index=True, landmarks=True))[1] == WITH_LANDMARKS + 2


def test_wrappers_and_readers_know_them_too(root: Path) -> None:
    dataset = shards(root, "jpg", index=True, landmarks=True)
    expected = [image for batch in loaded(shards(root, "jpg"), batch_size=1)[0] for image in batch]
    subset = dataset.subset([5, 0, 2, 9])
    assert loaded(subset, batch_size=4)[1] == 3
    both = dataset + dataset.subset([1])
    assert loaded(both)[1] == WITH_LANDMARKS + 1
    found, known = loaded(dataset, isolate="always", batch_size=1)
    assert known == WITH_LANDMARKS
    assert same([image for batch in found for image in batch], expected)
    assert loaded(shards(root, "jpg", labels=list(range(COUNT)), index=True))[1] == WITH_LANDMARKS


def test_changed_bytes_are_not_decoded_with_them(root: Path) -> None:
    shards(root, "jpg", index=True, landmarks=True)
    archive = root / "train-0.tar"
    content = bytearray(archive.read_bytes())
    content[2000] ^= 1
    stat = archive.stat()
    archive.write_bytes(content)
    os.utime(archive, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for options in ({}, {"landmarks": False}):
        with pytest.raises(ForebayError, match="is not what it was"):
            loaded(shards(root, "jpg", **options), sampler=[0])


def test_damaged_pictures_are_what_they_were(root: Path, tmp_path: Path) -> None:
    """Bytes that were damaged before the index was made have its checksum: the decoder's verdict is what counts."""
    sound = members(range(4))
    content = bytearray(sound["00000.jpg"])
    middle = len(content) // 2
    content[middle : middle + 4000] = bytes(4000)
    damaged = tmp_path / "damaged"
    pack(damaged / "one.tar", {**sound, "00000.jpg": bytes(content)})

    def verdicts(**options: Any) -> list[str]:
        found = []
        dataset = shards(damaged, "jpg", **options)
        for seed in range(12):
            try:
                found.append(str(sum(float(images.sum()) for images in loaded(dataset, seed=seed, sampler=[0, 1])[0])))
            except ForebayError as error:
                found.append(str(error))
        return found

    expected = verdicts()
    assert any("damaged" in verdict for verdict in expected) and not all("damaged" in verdict for verdict in expected)
    assert verdicts(index=True, landmarks=True) == expected


def test_what_cannot_be_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an index that is kept, got index=None"):
        shards(root, landmarks=True)
    with pytest.raises(ConfigError, match="an index that is kept, got index='wds2idx'"):
        shards(root, landmarks=True, index="wds2idx")
    with pytest.raises(ConfigError, match="expected True, False or None, got 'yes'"):
        shards(root, landmarks="yes")
