"""Files of tokens: which files are understood, which windows there are, where documents end, how they are packed."""

import itertools
import json
import pickle
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import forebay as fb

LENGTH = 8
# Of documents, and of files.
LENGTHS = (3, 11, 1, 0, 20, 7, 8, 2)
EOD = 60_000


def tokens_of(count: int, dtype: str = "uint16") -> numpy.ndarray[Any, Any]:
    return numpy.arange(count, dtype=dtype)


def raw(path: Path, tokens: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.asarray(tokens).tofile(path)
    return path


def megatron(path: Path, documents: Sequence[Any], code: int = 8, marks: Sequence[int] | None = None) -> Path:
    """A `.bin` with its `.idx`, as Megatron's IndexedDatasetBuilder writes them."""
    raw(path, numpy.concatenate(documents))
    lengths = [len(document) for document in documents]
    item = documents[0].itemsize
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(marks or lengths) + (marks is None))
    index += numpy.array(lengths, "<i4").tobytes()
    index += (numpy.cumsum([0, *lengths[:-1]]) * item).astype("<i8").tobytes()
    index += numpy.array(range(len(lengths) + 1) if marks is None else marks, "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return path


def datatrove(path: Path, documents: Sequence[Any]) -> Path:
    raw(path, numpy.concatenate(documents))
    ends = numpy.cumsum([len(document) for document in documents]).astype("<u8")
    path.with_name(path.name + ".index").write_bytes(ends.tobytes())
    return path


def shard(samples: Sequence[bytes], between: bytes = b"") -> bytes:
    """What MDS and LitData begin with, and the samples."""
    start = 4 * (len(samples) + 2) + len(between)
    offsets = numpy.cumsum([start, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + between + b"".join(samples)


def litdata(folder: Path, chunks: Sequence[Sequence[Any]], **config: Any) -> Path:
    folder.mkdir()
    listed = []
    for number, documents in enumerate(chunks):
        content = shard([document.tobytes() for document in documents])
        (folder / f"chunk-0-{number}.bin").write_bytes(content)
        dim = sum(map(len, documents))
        chunk = {"chunk_bytes": len(content), "chunk_size": len(documents), "dim": dim}
        listed.append({**chunk, "filename": f"chunk-0-{number}.bin"})
    kind = {"data_format": ["no_header_tensor:16"], "item_loader": "TokensLoader", "encryption": None}
    index = {"chunks": listed, "config": {**kind, "compression": None, **config}}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def mds(folder: Path, shards: Sequence[Sequence[Any]], encoding: str, **more: Any) -> Path:
    folder.mkdir()
    listed = []
    for number, documents in enumerate(shards):
        heads = {"bytes": b"", "ndarray:uint16": None}
        samples = []
        for document in documents:
            shape = struct.pack("<BB", 1 << 2, len(document)) if heads[encoding] is None else b""
            body = shape + document.tobytes()
            samples.append(struct.pack("<I", len(body)) + struct.pack("<q", number) + body)
        content = shard(samples, between=b"{} of the writer")
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(content)
        columns = {"column_names": ["id", "tokens"], "column_encodings": ["int", encoding], "column_sizes": [8, None]}
        file = {"basename": name, "bytes": len(content), "hashes": {}}
        facts = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None, "zip_data": None}
        listed.append({**facts, **columns, "samples": len(documents), "raw_data": file, **more})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder


def documents_of(dtype: str = "uint16", lengths: Sequence[int] = LENGTHS) -> list[numpy.ndarray[Any, Any]]:
    """Documents of consecutive numbers, so that each token is another one."""
    return [part.astype(dtype) for part in numpy.split(numpy.arange(sum(lengths)), numpy.cumsum(lengths)[:-1])]


def rows(dataset: Any) -> list[list[int]]:
    return [dataset[index]["tokens"].tolist() for index in range(len(dataset))]


def check_windows(dataset: fb.Tokens, stream: Any, length: int = LENGTH, stride: int | None = None) -> None:
    stream, stride = numpy.asarray(stream).astype("int64"), stride or length
    starts = range(0, len(stream) - length, stride)
    assert dataset.token_count == len(stream) and len(dataset) == len(starts)
    for index, start in enumerate(starts):
        sample = dataset[index]
        assert sample["tokens"].tolist() == stream[start : start + length].tolist()
        assert sample["targets"].tolist() == stream[start + 1 : start + length + 1].tolist()
        assert sample["tokens"].dtype == sample["targets"].dtype == torch.int64


def test_files_are_one_stream_and_windows_cross_them(tmp_path: Path) -> None:
    stream, start = tokens_of(100), 0
    for number, count in enumerate((13, 0, 1, 50, 36)):
        raw(tmp_path / "files" / f"{number}.bin", stream[start : start + count])
        start += count
    dataset = fb.Tokens(tmp_path / "files", LENGTH)
    check_windows(dataset, stream)
    assert dataset.paths[:3] == [f"{tmp_path}/files/0.bin@{offset}" for offset in (0, 16)] + [
        f"{tmp_path}/files/3.bin@4"
    ]
    assert dataset.notes == [
        (f"{tmp_path}/files/1.bin", "has no tokens"),
        (f"{tmp_path}/files/4.bin", "ends with 3 tokens that make no whole window, and are left out"),
    ]
    loader = fb.DataLoader(dataset, batch_size=4, shuffle=True, with_ids=True)
    for _ in range(2):
        seen = []
        for batch, ids in loader:
            assert batch["tokens"].shape == batch["targets"].shape == (len(ids), LENGTH)
            assert batch["targets"].is_contiguous() and torch.equal(batch["tokens"] + 1, batch["targets"])
            assert torch.equal(batch["tokens"][:, 0], ids * LENGTH)
            seen += ids.tolist()
        assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64"])
def test_tokens_of_every_type(tmp_path: Path, dtype: str) -> None:
    stream = tokens_of(60, dtype)
    check_windows(fb.Tokens(raw(tmp_path / "a.bin", stream), LENGTH, dtype=dtype), stream)
    numpy.save(tmp_path / "b.npy", stream)
    check_windows(fb.Tokens([tmp_path / "b.npy"], LENGTH, dtype=getattr(numpy, dtype)), stream)
    for token_dtype in ("int32", "uint16"):
        dataset = fb.Tokens(tmp_path / "b.npy", LENGTH, token_dtype=token_dtype)
        assert str(dataset[3]["tokens"].dtype) == f"torch.{token_dtype}"
        assert dataset[3]["tokens"].tolist() == stream[24:32].tolist()


def test_where_files_are_and_what_they_are_called(tmp_path: Path) -> None:
    stream = tokens_of(40)
    for name in ("a/train_0.bin", "a/train_1.bin", "b/val_0.bin"):
        raw(tmp_path / name, stream)
    count = len(fb.Tokens([tmp_path / "a/train_0.bin"], LENGTH))
    assert count == len(fb.Tokens(tmp_path / "a/train_0.bin", LENGTH)) == 4
    for given, files in (("a/*.bin", 2), ("*/train_*.bin", 2), ("**/*_0.bin", 2), ("**/*.bin", 3), ("a/*_1.b*", 1)):
        assert fb.Tokens(f"{tmp_path}/{given}", LENGTH).token_count == files * 40, given
    with pytest.raises(fb.errors.NotFoundError, match="no file of tokens is called"):
        fb.Tokens(f"{tmp_path}/a/x*.bin", LENGTH)
    manifest = tmp_path / "files.csv"
    manifest.write_text("path\na/train_1.bin\nb/val_0.bin\n")
    assert fb.Tokens(tmp_path, LENGTH, manifest=manifest).token_count == 80


def test_strides_tails_and_no_targets(tmp_path: Path) -> None:
    stream = tokens_of(30)
    path = raw(tmp_path / "a.bin", stream)
    for stride in (1, 3, 8, 13):
        check_windows(fb.Tokens(path, LENGTH, stride=stride), stream, stride=stride)
    padded = fb.Tokens(path, LENGTH, tail="pad", pad=7)
    assert len(padded) == 4 and padded.notes == []
    assert padded[3]["tokens"].tolist() == [24, 25, 26, 27, 28, 29, 7, 7]
    assert padded[3]["targets"].tolist() == [25, 26, 27, 28, 29, -100, -100, -100]
    alone = fb.Tokens(path, 10, targets=False)
    assert [alone[index].tolist() for index in range(3)] == stream.reshape(3, 10).tolist()
    batch = next(iter(fb.DataLoader(alone, batch_size=3)))
    assert batch.tolist() == stream.reshape(3, 10).tolist()


def test_llm_c_and_half_tokens(tmp_path: Path) -> None:
    stream = tokens_of(33)
    header = numpy.zeros(256, "<i4")
    header[:3] = 20240520, 1, 33
    path = tmp_path / "fineweb_train_000001.bin"
    path.write_bytes(header.tobytes() + stream.tobytes())
    check_windows(fb.Tokens(path, LENGTH), stream)
    path.write_bytes(header.tobytes() + stream[:-1].tobytes())
    with pytest.raises(fb.errors.CorruptError, match=r"expected 33 tokens by its header, got 32"):
        fb.Tokens(path, LENGTH)
    odd = tmp_path / "odd.bin"
    odd.write_bytes(stream.tobytes() + b"!")
    dataset = fb.Tokens(odd, LENGTH)
    check_windows(dataset, stream)
    assert dataset.notes == [(str(odd), "ends with 1 bytes of a token of 2, which are left out")]


def check_documents(dataset: fb.Tokens, lengths: Sequence[int]) -> None:
    """Position, targets and boundaries of every window of a stream of consecutive numbers."""
    ends = set(numpy.cumsum(lengths).tolist())
    for index in range(len(dataset)):
        sample = dataset[index]
        first = int(sample["tokens"][0])
        bounds = [0, *(place for place in range(1, LENGTH) if first + place in ends), LENGTH]
        assert sample["cu_seqlens"].tolist() == bounds and sample["cu_seqlens"].dtype == torch.int32
        starts = [max(bound for bound in bounds if bound <= place) for place in range(LENGTH)]
        assert sample["position_ids"].tolist() == [place - start for place, start in enumerate(starts)]
        targets = [-100 if first + place + 1 in ends else first + place + 1 for place in range(LENGTH)]
        assert sample["targets"].tolist() == targets


def test_documents_of_every_format(tmp_path: Path) -> None:
    by_type = {dtype: documents_of(dtype) for dtype in ("uint16", "uint32", "int32", "int64")}
    stream = numpy.concatenate(by_type["uint16"])
    full = [length for length in LENGTHS if length]
    made = {
        "megatron": megatron(tmp_path / "m" / "a_text_document.bin", by_type["uint16"]),
        "megatron, by its index": tmp_path / "m" / "a_text_document.idx",
        "megatron, int32": megatron(tmp_path / "m32" / "a.bin", by_type["int32"], code=4),
        "datatrove": datatrove(tmp_path / "d" / "a.ds", by_type["uint16"]),
        "datatrove, uint32": datatrove(tmp_path / "d32" / "a.ds", by_type["uint32"]),
        "litdata": litdata(tmp_path / "l", [by_type["int32"][:3], by_type["int32"][3:]]),
        "mds of bytes": mds(tmp_path / "s", [by_type["int64"][:5], by_type["int64"][5:]], "bytes"),
        "mds of arrays": mds(tmp_path / "t", [by_type["uint16"]], "ndarray:uint16"),
    }
    for name, root in made.items():
        if name != "megatron, by its index":
            check_windows(fb.Tokens(root.parent if root.suffix in (".bin", ".ds") else root, LENGTH), stream)
        check_windows(fb.Tokens(root, LENGTH), stream)
        dataset = fb.Tokens(root, LENGTH, documents=True)
        check_documents(dataset, full)
        check_documents(fb.Tokens(root, LENGTH, documents=True, stride=3), full)
        packed = fb.Tokens(root, LENGTH, documents="pack")
        seen = Counter(token for row in packed_pieces(packed) for piece in row for token in piece)
        assert seen == Counter(stream.tolist()), name


GOLDEN = Path(__file__).parent.parent / "golden" / "tokens"


@pytest.mark.parametrize("kind", sorted(path.name for path in GOLDEN.iterdir()))
def test_files_of_the_formats_own_writers_are_read_as_by_their_own_readers(kind: str) -> None:
    """Golden files (python/tests/golden/make_tokens.py)."""
    wanted = json.loads((GOLDEN / kind / "expected.json").read_text())
    stream, lengths = wanted["stream"], wanted["documents"]
    dataset = fb.Tokens(GOLDEN / kind, LENGTH)
    check_windows(dataset, stream)
    (note,) = dataset.notes
    assert "3 tokens that make no whole window" in note[1]
    if lengths is None:
        with pytest.raises(fb.errors.ConfigError, match="has no index of its documents"):
            fb.Tokens(GOLDEN / kind, LENGTH, documents=True)
        return
    assert sum(lengths) == len(stream)
    check_documents(fb.Tokens(GOLDEN / kind, LENGTH, documents=True), lengths)
    packed = fb.Tokens(GOLDEN / kind, LENGTH, documents="pack")
    seen = Counter(token for row in packed_pieces(packed) for piece in row for token in piece)
    assert seen == Counter(stream)


def test_sequences_of_one_document(tmp_path: Path) -> None:
    path = megatron(tmp_path / "a.bin", documents_of(), marks=[0, 2, 5, 8])
    check_documents(fb.Tokens(path, LENGTH, documents=True), [14, 21, 17])


def test_documents_end_at_a_token(tmp_path: Path) -> None:
    parts = [numpy.append(part, EOD) for part in documents_of(lengths=(5, 12, 3, 20)) if len(part)]
    stream = numpy.concatenate(parts).astype("uint16")
    path = raw(tmp_path / "a.bin", stream)
    dataset = fb.Tokens(path, LENGTH, documents=True, eod=EOD)
    for index in range(len(dataset)):
        sample = dataset[index]
        ends = [place + 1 for place, token in enumerate(sample["tokens"].tolist()) if token == EOD]
        assert sample["cu_seqlens"].tolist() == sorted({0, *ends, LENGTH})
        assert all(sample["targets"][end - 1] == -100 for end in ends)
    packed = fb.Tokens(path, LENGTH, documents="pack", eod=EOD)
    pieces = [piece for row in packed_pieces(packed) for piece in row]
    assert Counter(token for piece in pieces for token in piece) == Counter(stream.tolist())
    assert all(EOD not in piece[:-1] for piece in pieces)
    with pytest.raises(fb.errors.ConfigError, match="has no index of its documents"):
        fb.Tokens(path, LENGTH, documents=True)


def packed_pieces(dataset: fb.Tokens) -> list[list[list[int]]]:
    """The pieces of each sample, without padding."""
    made = []
    for index in range(len(dataset)):
        sample = dataset[index]
        bounds, mask = sample["cu_seqlens"].tolist(), sample["loss_mask"]
        assert torch.equal(mask, sample["targets"] != -100) and bounds[0] == 0 and bounds[-1] == LENGTH
        pieces = []
        for start, end in itertools.pairwise(bounds):
            tokens, targets = sample["tokens"][start:end].tolist(), sample["targets"][start:end].tolist()
            assert sample["position_ids"][start:end].tolist() == list(range(end - start))
            is_padding = tokens[0] == dataset.pad and set(targets) == {-100} and (end == LENGTH)
            if not is_padding:
                assert targets[:-1] == tokens[1:]
                pieces.append(tokens)
        made.append(pieces)
    return made


def test_packing_is_the_same_for_any_ranks_threads_and_resumes(tmp_path: Path) -> None:
    generator = numpy.random.default_rng(5)
    lengths = numpy.clip(generator.lognormal(2.5, 1, 400), 1, 200).astype(int).tolist()
    documents = [part + 1 for part in documents_of("int32", lengths)]
    path = megatron(tmp_path / "a.bin", documents, code=4)
    dataset = fb.Tokens(path, 64, documents="pack", pad=0)
    tokens, fill = sum(lengths), sum(lengths) / (64 * len(dataset))
    assert fill >= 0.97
    samples = {}
    for threads in (1, 3):
        loader = fb.DataLoader(dataset, batch_size=4, shuffle=True, seed=3, num_workers=threads, with_ids=True)
        seen: Counter[int] = Counter()
        for batch, ids in loader:
            rows = zip(
                ids.tolist(), batch["tokens"].tolist(), batch["targets"].tolist(), batch["cu_seqlens"], strict=True
            )
            for index, row, targets, bounds in rows:
                made = (row, targets, bounds.tolist())
                assert samples.setdefault(index, made) == made
                seen.update(token for token in row if token)
                # A document that was cut goes on with its next token.
                ends = {int(document[-1]) for document in documents}
                assert all(
                    (target == -100) == (token in ends) for token, target in zip(row, targets, strict=True) if token
                )
        assert sum(seen.values()) == tokens and set(seen.values()) == {1}
    whole = [ids.tolist() for _, ids in fb.DataLoader(dataset, batch_size=4, shuffle=True, seed=3, with_ids=True)]
    options = {"shuffle": True, "seed": 3, "with_ids": True}
    ranks = [fb.DataLoader(dataset, batch_size=2, rank=rank, world_size=2, **options) for rank in range(2)]
    together = [[ids.tolist() for _, ids in loader] for loader in ranks]
    dealt = [first + second for first, second in zip(*together, strict=True)]
    assert [sorted(batch) for batch in dealt][:-1] == [sorted(batch) for batch in whole][:-1]
    loader = fb.DataLoader(dataset, batch_size=4, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = fb.DataLoader(dataset, batch_size=4, **options)
    resumed.load_state_dict(loader.state_dict())
    assert [ids.tolist() for _, ids in resumed] == whole[3:]
    other = fb.DataLoader(fb.Tokens(path, 64, documents="pack", pack_seed=1), batch_size=4, **options)
    with pytest.raises(fb.errors.StateMismatchError):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("documents", [False, True, "pack"])
def test_token_datasets_are_concatenated_and_mixed(tmp_path: Path, documents: Any) -> None:
    one = megatron(tmp_path / "one.bin", documents_of())
    two = megatron(tmp_path / "two.bin", [part + 1000 for part in documents_of("int32")], code=4)
    both = [fb.Tokens(path, LENGTH, documents=documents) for path in (one, two)]
    alone = [dataset[index] for dataset in both for index in range(len(dataset))]
    for joined in (fb.concat(both), fb.mix(both, weights=[0.5, 0.5])):
        seen = set()
        for batch, ids in fb.DataLoader(joined, batch_size=4, shuffle=True, seed=2, with_ids=True):
            for place, index in enumerate(ids.tolist()):
                seen.add(index)
                for name, column in batch.items():
                    assert column[place].tolist() == alone[index][name].tolist(), name
        assert len(seen) == len(alone)


def test_a_token_beyond_the_vocabulary_is_damage_with_a_place(tmp_path: Path) -> None:
    stream = tokens_of(41)
    stream[20] = 500
    path = raw(tmp_path / "a.bin", stream)
    dataset = fb.Tokens(path, LENGTH, vocab_size=41)
    with pytest.raises(
        fb.errors.CorruptError, match=r"has the token 500 at byte 8 of its piece \(expected one below 41\)"
    ):
        dataset[2]
    loader = fb.DataLoader(dataset, batch_size=2, on_error="replace")
    assert sum(len(batch["tokens"]) for batch in loader) == 5
    (failure,) = loader.failures
    assert (failure.path, failure.offset, failure.code, failure.attempts) == (str(path), 32, "corrupt", 2)
    with pytest.raises(fb.errors.CorruptError):
        list(fb.DataLoader(dataset, batch_size=2))


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.bin", tokens_of(41))
    dataset = fb.Tokens(path, LENGTH)
    raw(path, tokens_of(30))
    with pytest.raises(fb.errors.ForebayError):
        dataset[0]


def test_pickles_copies_and_subsets(tmp_path: Path) -> None:
    path = megatron(tmp_path / "a.bin", documents_of())
    dataset = fb.Tokens(path, LENGTH, documents=True)
    twin = pickle.loads(pickle.dumps(dataset))
    chosen = twin.subset([4, 1])
    assert rows(chosen) == [rows(dataset)[4], rows(dataset)[1]]
    assert chosen[0]["cu_seqlens"].tolist() == dataset[4]["cu_seqlens"].tolist()
    mapped = fb.Tokens(path, LENGTH, transform=lambda sample: sample["tokens"].sum())
    assert [int(mapped[index]) for index in range(2)] == [28, 92]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda index: index[:18] + struct.pack("<Q", 1 << 60) + index[26:], "1152921504606846976 sequences"),
        (lambda index: index[:34] + struct.pack("<i", -3) + index[38:], "has -3 tokens"),
        (lambda index: index[:-1], "is truncated"),
        (lambda index: index[:17] + b"\x09" + index[18:], "elements of type 9"),
        (lambda index: b"PK" + index, "is no index of Megatron's"),
        (
            lambda index: index[: 34 + 8 * 4 + 8] + struct.pack("<q", 1 << 40) + index[34 + 8 * 4 + 16 :],
            "at byte 1099511627776",
        ),
    ],
)
def test_a_damaged_megatron_index_is_refused(tmp_path: Path, damage: Any, match: str) -> None:
    path = megatron(tmp_path / "a.bin", documents_of())
    index = path.with_suffix(".idx")
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(fb.errors.CorruptError, match=match) as caught:
        fb.Tokens(path, LENGTH, documents=True)
    assert caught.value.path == str(index)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    path = megatron(tmp_path / "m" / "a.bin", documents_of())
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(fb.errors.CorruptError, match="in a file of 102 bytes"):
        fb.Tokens(path, LENGTH)
    trove = datatrove(tmp_path / "a.ds", documents_of())
    trove.write_bytes(trove.read_bytes()[:-2])
    with pytest.raises(fb.errors.CorruptError, match="has 102 bytes"):
        fb.Tokens(trove, LENGTH)
    chunks = litdata(tmp_path / "l", [documents_of("int32")], encryption={"level": "chunk"})
    with pytest.raises(fb.errors.ForebayError, match="encrypted"):
        fb.Tokens(chunks, LENGTH)
    zipped = {"compression": "zstd", "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": 3, "hashes": {}}}
    shards = mds(tmp_path / "s", [documents_of()], "ndarray:uint16", **zipped)
    assert len(fb.Tokens(shards, LENGTH)) == 6
    (shards / "shard.00000.mds").unlink()
    with pytest.raises(fb.errors.ForebayError, match="only compressed with zstd"):
        fb.Tokens(shards, LENGTH)
    raw(tmp_path / "x" / "a.bin", tokens_of(20))
    numpy.save(tmp_path / "x" / "b.npy", tokens_of(20, "int32"))
    with pytest.raises(fb.errors.ConfigError, match="has tokens of int32"):
        fb.Tokens(tmp_path / "x", LENGTH)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sequence_length": 0}, "sequence_length: expected at least 1"),
        ({"stride": 0}, "stride: expected at least 1"),
        ({"documents": "packed"}, "documents: expected True"),
        ({"documents": "pack", "stride": 3}, "stride: expected None"),
        ({"eod": 3}, "eod: expected documents"),
        ({"dtype": "float32"}, "dtype: expected one of"),
        ({"token_dtype": "float32"}, "token_dtype: expected one of"),
        ({"tail": "keep"}, "tail: expected one of"),
        ({"vocab_size": 0}, "vocab_size: expected at least 1"),
        ({"token_dtype": "uint16", "pad": 70_000}, "pad: expected 0 to 65535"),
        ({"labels": "directory"}, "labels: expected None"),
        ({"verify": "checksum"}, "verify: expected None"),
        ({"sequence_length": 100}, "which make no sample of 100"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    raw(tmp_path / "a.bin", tokens_of(50))
    with pytest.raises(fb.errors.ForebayError, match=match):
        fb.Tokens(tmp_path, **{"sequence_length": LENGTH, **options})
