"""Every dataset under the same promises. A row of `KINDS` is all that a new one needs."""

import gc
import gzip
import hashlib
import io
import itertools
import json
import os
import resource
import struct
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow import parquet

import faultfs
import folders
import forebay as fb
import objectstore
import shardfiles
from forebay import transforms as T
from missing import missing

COUNT, BATCH = 30, 4
# 7 % of them.
DAMAGED = (5, 19)
AUGMENT = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])
OTHERWISE = T.Compose([T.Resize((16, 16)), T.RandomHorizontalFlip(), T.ToTensor()])


def as_jpeg(path: Path, number: int) -> None:
    folders.picture(number, 24, 20).save(path, "JPEG", quality=90)


def as_text(path: Path, number: int) -> None:
    path.write_text(f"Zeile {number}: größer\n" * (1 + number % 3))


def as_floats(path: Path, number: int) -> None:
    path.write_bytes((numpy.arange(6, dtype="<f4") + number).tobytes())


def as_record(path: Path, number: int) -> None:
    path.write_bytes(b"head" + (numpy.arange(6, dtype=">i2") + number).tobytes())


def as_line(path: Path, number: int) -> None:
    path.write_text(f"Zeile {number}: größer\r\n")


def as_packed_line(path: Path, number: int) -> None:
    path.write_bytes(gzip.compress(f"Zeile {number}\n".encode()))


def as_json_line(path: Path, number: int) -> None:
    path.write_text(json.dumps({"text": f"Zeile {number}", "ids": [number] * (1 + number % 3)}) + "\n\n")


def as_csv(path: Path, number: int) -> None:
    path.write_text(f'name,number\n"Zeile\n{number}",{number}\n')


def as_shard(path: Path, number: int) -> None:
    picture = io.BytesIO()
    folders.picture(number, 24, 20).save(picture, "JPEG", quality=90)
    fields = {"cls": b"%d" % number, "jpg": picture.getvalue(), "txt": b"a" * (1 + number % 3)}
    with tarfile.open(path, "w") as archive:
        for name, content in fields.items():
            member = tarfile.TarInfo(f"{number:05}.{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def as_mds(path: Path, number: int) -> None:
    picture = io.BytesIO()
    folders.picture(number, 24, 20).save(picture, "JPEG", quality=90)
    columns: shardfiles.Columns = {
        "image": ("jpeg", None, picture.getvalue()),
        "label": ("int", 8, struct.pack("<q", number)),
        "text": ("str", None, b"a" * (2 + number % 3)),
    }
    shardfiles.write_mds(path.parents[1], columns, f"{path.parent.name}/{path.name}")


def as_tfrecord(path: Path, number: int) -> None:
    picture = io.BytesIO()
    folders.picture(number, 24, 20).save(picture, "PNG")
    record = shardfiles.example({"image": picture.getvalue(), "label": number, "text": b"a" * (1 + number % 3)})
    path.write_bytes(shardfiles.framed(record))


def as_parquet(path: Path, number: int, compression: str = "none") -> None:
    picture = io.BytesIO()
    folders.picture(number, 24, 20).save(picture, "PNG")
    image = pyarrow.array([{"bytes": picture.getvalue(), "path": None}])
    rows = pyarrow.table({"image": image, "label": [number], "text": ["a" * (20 + number % 3)]})
    says = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
    rows = rows.replace_schema_metadata({"huggingface": says})
    parquet.write_table(rows, path, compression=compression, use_dictionary=False, write_statistics=False)


def as_packed_parquet(path: Path, number: int) -> None:
    as_parquet(path, number, "zstd")


def rot_parquet(path: Path) -> None:
    """Other bytes in its text, which are as good a text."""
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(3)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def as_array(path: Path, number: int) -> None:
    numpy.save(path, numpy.full((1 + number % 3, 2), number))


def as_archive(path: Path, number: int) -> None:
    numpy.savez_compressed(path, x=numpy.full((2, 3), number), y=numpy.float32(number))


def as_tokens(path: Path, number: int) -> None:
    (numpy.arange(12, dtype="<u2") + number).tofile(path)


def beyond_the_vocabulary(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"\xff\xff")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xfc")


def spoil(path: Path) -> None:
    """Another byte in its midst, which is no UTF-8, no JSON and no number."""
    content = bytearray(path.read_bytes())
    content[-2] = 0xFC
    path.write_bytes(content)


def rot(path: Path) -> None:
    """Another byte in its midst, with the same size and time."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rot_text(path: Path) -> None:
    """Another byte in a text, which is as good a text."""
    content = bytearray(path.read_bytes())
    content[content.rindex(b".txt") + 512 - len("00000")] ^= 1
    path.write_bytes(content)


def as_cyrillic(path: Path, number: int) -> None:
    path.write_text(f"строка {number}\n" * (1 + number % 3), encoding="cp1251")


def no_cyrillic(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x98")


class TextDataset:
    """A Python dataset of the same files."""

    def __init__(self, root: str | Path) -> None:
        self.paths = sorted(str(path) for path in Path(root).rglob("*.txt"))

    def __getitem__(self, index: int) -> tuple[str, int]:
        with open(self.paths[index], encoding="utf-8") as file:
            return file.read(), index % 2

    def __len__(self) -> int:
        return len(self.paths)


class ComposedDataset:
    """A Python dataset that takes its samples from one of forebay's: from URLs and caches, too."""

    def __init__(self, root: str | Path, **more: Any) -> None:
        self.texts = fb.TextFiles(root, labels="directory", **more)

    def __getitem__(self, index: int) -> tuple[str, int]:
        text, label = self.texts[index]
        return text.upper(), label

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Kind:
    """A dataset, and how to make and damage its files."""

    ending: str
    write: Callable[[Path, int], None]
    damage: Callable[[Path], None]
    dataset: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    # What a damaged file is called; a Python dataset raises an exception of its own.
    code: str = "corrupt"
    is_native: bool = True
    # Whether forebay reads its files, of URLs and through caches as well.
    is_read_by_forebay: bool = True
    # Whether it finds samples inside of files: those of a file that is damaged before that would not be planned.
    is_indexed: bool = False
    # Whether its files are compressed.
    is_unpacked: bool = False
    # Whether its files are mapped into memory, which those of other machines and of FUSE are not.
    is_mapped: bool = False
    # How often damage is read, by a first loader and by one that has the ledger of the first.
    attempts: tuple[int, int] = (2, 0)
    # How many caches it has in memory: one for each dataset that it consists of.
    caches: int = 1
    # How many reads a sample takes.
    reads: int = 1


KINDS = {
    "ImageFolder": Kind(".jpg", as_jpeg, cut, lambda root, **more: fb.ImageFolder(root, AUGMENT, **more)),
    "ImageFiles": Kind(".jpg", as_jpeg, cut, lambda root, **more: fb.ImageFiles(root, AUGMENT, **more)),
    "TextFiles": Kind(".txt", as_text, no_text, lambda root, **more: fb.TextFiles(root, labels="directory", **more)),
    "TextFiles, by Python's codec": Kind(
        ".txt", as_cyrillic, no_cyrillic, lambda root, **more: fb.TextFiles(root, encoding="cp1251", **more)
    ),
    "BinaryFiles": Kind(
        ".bin", as_floats, cut, lambda root, **more: fb.BinaryFiles(root, dtype="float32", shape=(2, 3), **more)
    ),
    "NpyFiles": Kind(".npy", as_array, cut, fb.NpyFiles, {"ragged": "pad", "pad_value": -1}),
    "NpzFiles": Kind(".npz", as_archive, cut, fb.NpzFiles),
    "Records": Kind(
        ".bin",
        as_record,
        cut,
        lambda root, **more: fb.Records(root, dtype="int16", shape=(2, 3), endian="big", header_bytes=4, **more),
        is_indexed=True,
        # A file's length is looked at before anything is read, so there is nothing to read twice, or to remember.
        attempts=(1, 1),
    ),
    "Records mmap": Kind(
        ".bin",
        as_record,
        cut,
        lambda root, **more: fb.Records(
            root, dtype="int16", shape=(2, 3), endian="big", header_bytes=4, mmap=True, **more
        ),
        is_indexed=True,
        attempts=(1, 1),
        is_mapped=True,
    ),
    # Without targets the windows are those of single files.
    "Tokens": Kind(
        ".bin",
        as_tokens,
        beyond_the_vocabulary,
        lambda root, **more: fb.Tokens(root, 12, targets=False, vocab_size=1000, **more),
    ),
    "Tokens mmap": Kind(
        ".bin",
        as_tokens,
        beyond_the_vocabulary,
        lambda root, **more: fb.Tokens(root, 12, targets=False, vocab_size=1000, mmap=True, **more),
        is_mapped=True,
    ),
    "TextLines": Kind(".txt", as_line, spoil, lambda root, **more: fb.TextLines(root, labels="directory", **more)),
    "TextLines of gzip": Kind(
        # The last segments stay in memory, whatever else keeps them.
        ".txt.gz",
        as_packed_line,
        rot,
        fb.TextLines,
        is_indexed=True,
        attempts=(2, 2),
        is_unpacked=True,
    ),
    "JsonLines": Kind(
        ".jsonl",
        as_json_line,
        spoil,
        lambda root, **more: fb.JsonLines(root, fields=("text", "ids"), **more),
        {"ragged": "list"},
    ),
    "Csv": Kind(".csv", as_csv, spoil, lambda root, **more: fb.Csv(root, dtypes={"number": "int64"}, **more)),
    "concat": Kind(
        ".jpg",
        as_jpeg,
        cut,
        lambda root, **more: fb.concat(
            [fb.ImageFiles(f"{root}/a", AUGMENT, **more), fb.ImageFiles(f"{root}/b", OTHERWISE, **more)]
        ),
        caches=2,
    ),
    "mix": Kind(
        ".txt",
        as_text,
        no_text,
        # In equal parts, so that an epoch has every sample once, as all others have.
        lambda root, **more: fb.mix(
            [(fb.TextFiles(f"{root}/a", **more), 0.5), (fb.TextFiles(f"{root}/b", max_bytes="1MiB", **more), 0.5)]
        ),
        caches=2,
    ),
    "Shards": Kind(
        ".tar",
        as_shard,
        rot_text,
        lambda root, **more: fb.Shards(root, fields=("jpg", "cls", "txt"), transform=AUGMENT, **more),
        is_indexed=True,
    ),
    "Shards, MDS": Kind(
        ".mds",
        as_mds,
        spoil,
        lambda root, **more: fb.Shards(root, fields=("image", "label", "text"), transform=AUGMENT, **more),
    ),
    "Shards, TFRecord": Kind(
        ".tfrecord",
        as_tfrecord,
        spoil,
        lambda root, **more: fb.Shards(root, fields=("image", "label", "text"), transform=AUGMENT, **more),
    ),
    "Shards, Parquet": Kind(
        ".parquet",
        as_parquet,
        rot_parquet,
        lambda root, **more: fb.Shards(root, fields=("image", "label", "text"), transform=AUGMENT, **more),
        is_indexed=True,
    ),
    "Shards, compressed Parquet": Kind(
        ".parquet",
        as_packed_parquet,
        rot_parquet,
        lambda root, **more: fb.Shards(root, fields=("image", "label", "text"), transform=AUGMENT, **more),
        is_indexed=True,
        attempts=(2, 2),
        is_unpacked=True,
        reads=3,
    ),
    "a Python dataset": Kind(".txt", as_text, no_text, TextDataset, {"num_workers": 0}, "user_code", False, False),
    "a composed Python dataset": Kind(".txt", as_text, no_text, ComposedDataset, {"num_workers": 0}, "corrupt", False),
}
NATIVE = [name for name, kind in KINDS.items() if kind.is_native]
# What torch says of workers of a Python dataset.
MORE_THAN_PROCESSORS = pytest.mark.filterwarnings("ignore:This DataLoader will create")
READ_BY_FOREBAY = [name for name, kind in KINDS.items() if kind.is_read_by_forebay]
ANYWHERE = [name for name, kind in KINDS.items() if not kind.is_mapped]


# Datasets that were made before their files were damaged, by folder.
INDEXED: dict[Path | str, Any] = {}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of each kind the folder of good files, and one of which some are damaged."""
    made = {}
    for name, kind in KINDS.items():
        base = tmp_path_factory.mktemp("kind")
        for folder in ("good", "damaged"):
            for number in range(COUNT):
                path = base / folder / ("a" if number < COUNT // 2 else "b") / f"{number:03}{kind.ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                kind.write(path, number)
        if kind.is_indexed:
            INDEXED[base / "damaged"] = kind.dataset(base / "damaged")
        for path in sorted((base / "damaged").rglob(f"*{kind.ending}")):
            if int(path.name[:3]) in DAMAGED:
                kind.damage(path)
        made[name] = (base / "good", base / "damaged")
    return made


def loader(name: str, root: Path | str, dataset: dict[str, Any] | None = None, **options: Any) -> fb.DataLoader:
    kind = KINDS[name]
    made = INDEXED[root] if root in INDEXED else kind.dataset(root, **(dataset or {}))
    # A seed of its own makes a Python dataset's samples independent of where they are made, too.
    given = {"batch_size": BATCH, "shuffle": True, "seed": 7} | kind.options | options
    return fb.DataLoader(made, **given)


def digest(batch: Any) -> str:
    """Of everything that is in a batch."""
    columns = batch if isinstance(batch, list | tuple) else [batch]
    content = [column.numpy().tobytes() if hasattr(column, "numpy") else repr(column).encode() for column in columns]
    shapes = [tuple(getattr(column, "shape", ())) for column in columns]
    return hashlib.blake2b(b"".join(content) + repr(shapes).encode(), digest_size=8).hexdigest()


def digests(batches: Iterable[Any]) -> list[str]:
    return [digest(batch) for batch in batches]


@MORE_THAN_PROCESSORS
@pytest.mark.parametrize("name", KINDS)
def test_an_epoch_is_the_same_on_any_number_of_threads(name: str, trees: dict[str, tuple[Path, Path]]) -> None:
    # A Python dataset has worker processes, too, which cost seconds: test_dropin_state.py has those.
    counts, more = ((1, 2, 5), {}) if KINDS[name].is_native else ((0, 1, 2, 5), {"workers": "threads"})
    whole = [digests(loader(name, trees[name][0], num_workers=count, **more)) for count in counts]
    assert all(each == whole[0] for each in whole) and len(set(whole[0])) == len(whole[0])


@pytest.mark.parametrize("name", KINDS)
def test_it_resumes_exactly_after_every_step(name: str, trees: dict[str, tuple[Path, Path]]) -> None:
    options = {"on_error": "replace"}
    whole = digests(loader(name, trees[name][1], **options))
    running = loader(name, trees[name][1], **options)
    for step, _ in enumerate(running, start=1):
        state = json.loads(json.dumps(running.state_dict()))
        resumed = loader(name, trees[name][1], **options)
        resumed.load_state_dict(state)
        assert digests(resumed) == whole[step:], f"after step {step}"
    assert step == len(whole)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("name", KINDS)
def test_ranks_share_an_epoch_and_a_state(name: str, world_size: int, trees: dict[str, tuple[Path, Path]]) -> None:
    def ranks(count: int, state: Any = None) -> list[fb.DataLoader]:
        made = [
            loader(name, trees[name][0], batch_size=1, with_ids=True, rank=rank, world_size=count)
            for rank in range(count)
        ]
        if state is not None:
            for each in made:
                each.load_state_dict(state)
        return made

    def ids(batches: Iterable[tuple[Any, ...]]) -> list[int]:
        return [int(batch[-1][0]) for step in batches for batch in step]

    def whole(loaders: list[fb.DataLoader]) -> list[int]:
        return ids(zip(*loaders, strict=True))

    order = whole(ranks(1))
    assert sorted(order) == list(range(COUNT))
    # A native state of one rank may be loaded by any number; torch's sampler, which deals a Python dataset, has
    # another order for one rank than for several.
    is_native = KINDS[name].is_native
    before, after = (1, world_size) if is_native else (world_size, world_size % 3 + 2)
    halfway = ranks(before)
    got = ids(itertools.islice(zip(*halfway, strict=True), 12 // before))
    rest = whole(ranks(after, halfway[0].state_dict()))
    if is_native:
        assert whole(ranks(world_size))[:COUNT] == order and rest[: COUNT - 12] == order[12:]
    else:
        assert set(whole(ranks(world_size))) == set(order) == {*got, *rest}
        assert len(got) == len(set(got)) == 12 and len(rest) - len(set(rest)) <= after


@pytest.mark.parametrize("on_error", ["raise", "replace", "skip"])
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_met_as_the_policy_says_and_the_books_balance(
    name: str, on_error: str, trees: dict[str, tuple[Path, Path]]
) -> None:
    damaged = loader(name, trees[name][1], on_error=on_error, with_ids=True)
    if on_error == "raise":
        with pytest.raises((OSError, UnicodeDecodeError)) as raised:
            list(damaged)
        if KINDS[name].is_native:
            assert isinstance(raised.value, fb.ForebayError) and raised.value.code == KINDS[name].code
            assert Path(str(raised.value.path)).name[:3] in ("005", "019")
        return
    delivered = [int(index) for batch in damaged for index in batch[-1]]
    assert len(delivered) == (COUNT if on_error == "replace" else COUNT - len(DAMAGED))
    assert not set(delivered) & set(DAMAGED)
    failures = damaged.failures
    assert {failure.index for failure in failures} == set(DAMAGED)
    assert {failure.code for failure in failures} == {KINDS[name].code}
    assert {failure.outcome for failure in failures} == {"replaced" if on_error == "replace" else "skipped"}
    report = str(damaged.report())
    kept = f"delivered {COUNT - len(DAMAGED)}"
    assert f"planned {COUNT} = {kept}" in report, report


@pytest.mark.parametrize("name", NATIVE)
def test_what_is_known_to_be_bad_is_not_read_again(
    name: str, trees: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    for attempts in KINDS[name].attempts:
        each = loader(name, trees[name][1], on_error="replace", ledger=ledger)
        list(each)
        each.close()
        assert {failure.attempts for failure in each.failures} == {attempts}
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert {Path(line["path"]).name[:3] for line in lines} == {"005", "019"}


@pytest.mark.parametrize("name", KINDS)
def test_epochs_leave_descriptors_and_memory_as_they_are(name: str, trees: dict[str, tuple[Path, Path]]) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def epochs() -> None:
        """Three of them. Closed, the loader reads nothing of the next one while descriptors are counted."""
        with loader(name, trees[name][1], on_error="replace") as each:
            for _ in range(3):
                list(each)

    epochs()
    gc.collect()  # what earlier tests left
    before, memory = descriptors(), [resident()]
    gc.freeze()  # what is loaded is not looked at again, which would take most of the time
    try:
        for _ in range(5):
            epochs()
            gc.collect()
            memory.append(resident())
    finally:
        gc.unfreeze()
    assert descriptors() == before
    # What leaks grows in every stretch; an allocator that takes another arena does so in one.
    assert min(after - earlier for earlier, after in itertools.pairwise(memory)) < 1 << 20, memory


@pytest.fixture(scope="module")
def hanging_fs(trees: dict[str, tuple[Path, Path]]) -> Iterator[faultfs.FaultFs]:
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    mounted = faultfs.FaultFs(next(iter(trees.values()))[0].parent.parent)
    yield mounted
    mounted.close()


@MORE_THAN_PROCESSORS
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_file_that_hangs_is_replaced_within_its_deadline(
    name: str, trees: dict[str, tuple[Path, Path]], hanging_fs: faultfs.FaultFs
) -> None:
    root = hanging_fs.root / trees[name][0].relative_to(hanging_fs.source)
    more = {} if KINDS[name].is_native else {"num_workers": 2, "workers": "threads"}
    each = loader(name, root, on_error="replace", deadline_seconds=1.0, **more)
    hanging_fs.rule(f"*{KINDS[name].ending}-never", "read", hang=True)  # a rule that meets nothing
    hanging_fs.rule(f"*/good/a/003{KINDS[name].ending}", "read", hang=True)
    started = time.monotonic()
    try:
        assert sum(1 for _ in each) == -(-COUNT // BATCH)
        assert time.monotonic() - started < 20
        (failure,) = each.failures
        assert (failure.code, failure.outcome) == ("timeout", "replaced")
        assert failure.index == 3
        if KINDS[name].is_native:
            assert Path(failure.path).name == f"003{KINDS[name].ending}"
        each.close()
        assert time.monotonic() - started < 25
    finally:
        hanging_fs.clear()
        hanging_fs.release()


@pytest.mark.parametrize("name", [name for name in READ_BY_FOREBAY if name in ANYWHERE])
def test_an_object_store_and_a_cache_give_the_same(
    name: str, trees: dict[str, tuple[Path, Path]], store: objectstore.ObjectStore, tmp_path: Path
) -> None:
    here = digests(loader(name, trees[name][0]))
    prefix = name.lower().replace(" ", "-")
    store.put_folder(trees[name][0], prefix)
    url, options = f"s3://bucket/{prefix}", {"storage_options": store.options}
    assert digests(loader(name, url, options)) == here
    cached = options | {"cache": tmp_path / "cache", "cache_bytes": "1GiB"}
    assert digests(loader(name, url, cached)) == here
    again = loader(name, url, cached)
    assert digests(again) == here
    if KINDS[name].is_native:
        storage = again.stats()["storage"]
        # Batches of the next epoch are prefetched.
        assert storage["cache_misses"] == 0 and storage["cache_hits"] >= COUNT


# Mapped files are in memory already.
@pytest.mark.parametrize("name", [name for name in READ_BY_FOREBAY if name in ANYWHERE])
def test_a_cache_in_memory_reads_each_file_once_and_gives_the_same(
    name: str, trees: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    plain, cached = (loader(name, trees[name][0], given) for given in ({}, {"cache": "memory", "cache_bytes": "64MiB"}))
    for _ in range(3):
        assert digests(cached) == digests(plain)
    if not KINDS[name].is_native:
        return  # what a Python dataset reads by itself, no loader counts
    storage = cached.stats()["storage"]
    reads, is_unpacked = COUNT * KINDS[name].reads, KINDS[name].is_unpacked
    assert (storage["cache_misses"], storage["cache_passes"]) == (reads, 0)
    assert storage["cache_hits"] >= (0 if is_unpacked else 2 * reads)
    assert 0 < storage["cache_bytes"] <= storage["cache_limit_bytes"] == KINDS[name].caches * (64 << 20)
    # What does not fit is read again, and nothing is evicted for it.
    small = loader(name, trees[name][0], {"cache": "memory", "cache_bytes": storage["cache_bytes"] // 3})
    assert digests(small) == digests(loader(name, trees[name][0]))
    storage = small.stats()["storage"]
    assert storage["cache_passes"] > 0 and storage["cache_bytes"] <= storage["cache_limit_bytes"]


def test_a_cache_in_memory_has_nothing_to_revalidate(trees: dict[str, tuple[Path, Path]]) -> None:
    with pytest.raises(fb.errors.ConfigError, match="cache_revalidate"):
        fb.TextFiles(trees["TextFiles"][0], cache="memory", cache_revalidate=True)
