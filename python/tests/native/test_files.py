"""Datasets of single files: where they come from, what they hold, how they are labelled, how batches of them look."""

import copy
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch.utils import data

import folders
import forebay as fb
from forebay import transforms as T


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    for number, content in enumerate(["zero", "größer", "two\r\n", "", "four\0"]):
        path = root / ("neg" if number < 2 else "pos") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    (root / "pos" / "notes.md").write_text("not a sample")
    return root


def only(loader: fb.DataLoader) -> Any:
    (batch,) = loader
    return batch


def test_texts_are_a_list_and_have_no_label_unless_one_is_asked_for(texts: Path) -> None:
    dataset = fb.TextFiles(texts)
    assert [dataset[index] for index in range(5)] == ["zero", "größer", "two\r\n", "", "four\0"]
    assert only(fb.DataLoader(dataset, batch_size=5)) == ["zero", "größer", "two\r\n", "", "four\0"]
    assert (dataset.classes, dataset.targets, len(dataset)) == ([], None, 5)
    batch, ids = only(fb.DataLoader(dataset, batch_size=5, with_ids=True))
    assert (batch[1], ids.tolist()) == ("größer", [0, 1, 2, 3, 4])


def test_labels_are_directories_values_or_columns(texts: Path, tmp_path: Path) -> None:
    by_directory = fb.TextFiles(texts, labels="directory")
    assert (by_directory.classes, by_directory.class_to_idx) == (["neg", "pos"], {"neg": 0, "pos": 1})
    batch, labels = only(fb.DataLoader(by_directory, batch_size=5))
    assert (batch[0], labels.tolist(), labels.dtype) == ("zero", [0, 0, 1, 1, 1], torch.int64)

    scored = fb.TextFiles(texts, labels=numpy.linspace(0, 1, 5))
    assert scored[4] == ("four\0", 1.0)
    _, scores = only(fb.DataLoader(scored, batch_size=5))
    assert scores.dtype == torch.float64 and scores.tolist() == [0, 0.25, 0.5, 0.75, 1]

    columns = {"good": [True, False, True, True, False], "name": list("abcde")}
    several = fb.TextFiles(texts, labels=columns)
    assert several[1] == ("größer", {"good": False, "name": "b"})
    assert several.targets == columns
    _, targets = only(fb.DataLoader(several, batch_size=5))
    assert targets["name"] == list("abcde") and targets["good"].tolist() == columns["good"]
    assert targets["good"].dtype == torch.bool

    shouted = fb.TextFiles(texts, str.upper, lambda target: target["name"] * 2, labels=columns)
    batch, names = only(fb.DataLoader(shouted, batch_size=5))
    assert (batch[0], list(names)) == ("ZERO", ["aa", "bb", "cc", "dd", "ee"])
    assert fb.DataLoader(several, batch_size=5).explain(0)[2]["label"] == {"good": True, "name": "c"}
    assert fb.DataLoader(fb.TextFiles(texts)).explain(0)[0]["label"] is None


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_labels_are_columns_of_a_manifest(texts: Path, tmp_path: Path, ending: str) -> None:
    rows = {"path": ["pos/2.txt", "neg/1.txt"], "stars": [4.5, 1.0], "author": ["x", "y"], "year": [2001, 1999]}
    table, manifest = pandas.DataFrame(rows), tmp_path / f"table.{ending}"
    if ending == "csv":
        table.to_csv(manifest, index=False)
    elif ending == "jsonl":
        table.to_json(manifest, orient="records", lines=True)
    else:
        table.to_parquet(manifest)
    assert fb.TextFiles(texts, manifest=manifest)[0] == "two\r\n"
    assert fb.TextFiles(texts, manifest=manifest, labels="year")[1] == ("größer", 1999)
    several = fb.TextFiles(texts, manifest=manifest, labels=["author", "stars"])
    assert several[0] == ("two\r\n", {"author": "x", "stars": 4.5})
    assert several.subset([1]).targets == {"author": ["y"], "stars": [1.0]}
    opened = fb.Manifest(manifest, texts, labels="stars")
    assert fb.TextFiles(opened).targets == [4.5, 1.0]
    assert fb.TextFiles(opened, labels=["year"]).targets == {"year": [2001, 1999]}
    if ending != "jsonl":
        with pytest.raises(fb.errors.ConfigError, match=r"has no column .*colour"):
            fb.TextFiles(texts, manifest=manifest, labels="colour")
    with pytest.raises(fb.errors.ConfigError, match="classes"):
        fb.ImageFolder(manifest=opened)


def test_files_may_be_listed(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [texts / "pos" / "2.txt", texts / "neg" / "0.txt", texts / "pos" / "2.txt"]
    dataset = fb.TextFiles(paths, labels="directory")
    assert [dataset[index] for index in range(3)] == [("two\r\n", 1), ("zero", 0), ("two\r\n", 1)]
    assert (dataset.paths, dataset.root) == ([str(path) for path in paths], str(texts))
    monkeypatch.chdir(texts)
    relative = fb.TextFiles(["neg/0.txt", "pos/2.txt"])
    assert (relative[1], relative.paths) == ("two\r\n", ["neg/0.txt", "pos/2.txt"])
    assert only(fb.DataLoader(relative, batch_size=2)) == ["zero", "two\r\n"]
    missing = fb.TextFiles(["neg/0.txt", "neg/none.txt"])
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        list(fb.DataLoader(missing, batch_size=2))


def test_encodings_are_pythons(tmp_path: Path) -> None:
    root = tmp_path / "encoded"
    root.mkdir()
    content = "Grüße, жизнь"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1251", "latin-1"):
        text = content if encoding not in ("cp1251", "latin-1") else content[:7] if encoding == "latin-1" else "жизнь"
        (root / "a.txt").write_bytes(text.encode(encoding))
        assert fb.TextFiles(root, encoding=encoding)[0] == text
        assert only(fb.DataLoader(fb.TextFiles(root, encoding=encoding), batch_size=1)) == [text]
    (root / "a.txt").write_bytes(b"gr\xfcn")
    with pytest.raises(fb.errors.CorruptError, match="is not UTF-8: byte 0xfc at 2") as raised:
        fb.TextFiles(root)[0]
    assert "errors=" in raised.value.hint and "delete" not in raised.value.hint
    for errors in ("replace", "ignore"):
        assert fb.TextFiles(root, errors=errors)[0] == b"gr\xfcn".decode("utf-8", errors)
    with pytest.raises(fb.errors.ConfigError, match="encoding: expected one that Python knows"):
        fb.TextFiles(root, encoding="klingon")
    with pytest.raises(fb.errors.ConfigError, match="encoding: expected one of text, got 'hex'"):
        fb.TextFiles(root, encoding="hex")


# Encoding, bytes that are none of it, and the first that does not fit. ASCII is decoded natively.
NO_TEXT = [
    ("ascii", b"gr\xfcn", 2),
    ("cp1251", b"abc\x98", 3),
    ("shift_jis", "\u732b".encode("shift_jis") + b"\x81", 2),
    ("utf-16", "\ufeffab".encode("utf-16-le") + b"\x00", 6),
    ("utf-16-le", b"a\x00\x00\xd8", 2),
    ("gb18030", b"ok \xff", 3),
]


@pytest.mark.parametrize(("encoding", "content", "at"), NO_TEXT)
def test_bytes_that_no_codec_takes_are_damage(tmp_path: Path, encoding: str, content: bytes, at: int) -> None:
    root, ledger = tmp_path / "encoded", tmp_path / "ledger.jsonl"
    root.mkdir()
    for number in range(8):
        (root / f"{number}.txt").write_bytes(f"{number}".encode(encoding))
    (root / "3.txt").write_bytes(content)
    dataset = fb.TextFiles(root, encoding=encoding)
    with pytest.raises(fb.errors.CorruptError) as raised:
        dataset[3]
    said = f"is not {encoding}: byte {content[at]:#04x} at {at} does not fit"
    assert said.lower() in raised.value.message.lower() and "encoding" in raised.value.hint
    options: dict[str, Any] = {"on_error": "replace", "max_failures": 1, "ledger": ledger, "num_workers": 2}
    for name, believed in (("first", 1), ("second", 0)):
        loader = fb.DataLoader(dataset, 4, **options)
        assert len([text for batch in loader for text in batch]) == 8, name
        (failure,) = loader.failures
        # Read twice before it is believed; then the ledger says so, and it is not read again.
        assert (failure.code, failure.stage, failure.path) == ("corrupt", "decode", str(root / "3.txt"))
        assert said.lower() in failure.message.lower() and failure.attempts == 2 * believed
    for errors in ("replace", "ignore"):
        assert fb.TextFiles(root, encoding=encoding, errors=errors)[3] == content.decode(encoding, errors)


def test_a_file_above_max_bytes_fails_before_it_is_read(texts: Path) -> None:
    (texts / "neg" / "0.txt").write_text("x" * 1000)
    limited = fb.TextFiles(texts, max_bytes=100)
    loader = fb.DataLoader(limited, batch_size=5, on_error="skip")
    assert len(only(loader)) == 4
    (failure,) = loader.failures
    assert failure.code == "exhausted" and "expected at most 100 bytes, got 1000" in failure.message
    assert loader.stats()["bytes_read"] < 100
    with pytest.raises(fb.errors.ExhaustedError, match="max_bytes"):
        limited[0]


def test_binary_files_are_bytes_or_arrays(tmp_path: Path) -> None:
    root = tmp_path / "binary"
    root.mkdir()
    arrays = [(numpy.arange(6).reshape(2, 3) + number).astype(">i2") for number in range(3)]
    for number, array in enumerate(arrays):
        (root / f"{number}.raw").write_bytes(array.tobytes())
    assert only(fb.DataLoader(fb.BinaryFiles(root), batch_size=3)) == [array.tobytes() for array in arrays]
    dataset = fb.BinaryFiles(root, dtype=torch.int16, shape=(2, 3), endian="big")
    assert torch.equal(dataset[1], torch.from_numpy(arrays[1].astype("i2")))
    batch = only(fb.DataLoader(dataset, batch_size=3))
    assert batch.dtype == torch.int16 and numpy.array_equal(batch.numpy(), numpy.stack(arrays))
    as_numpy = only(fb.DataLoader(dataset, batch_size=3, output="numpy"))
    assert isinstance(as_numpy, numpy.ndarray) and numpy.array_equal(as_numpy, numpy.stack(arrays))
    rows = only(fb.DataLoader(fb.BinaryFiles(root, dtype="int16", shape=(-1, 3), endian="big"), batch_size=3))
    assert rows.shape == (3, 2, 3)
    flat = fb.BinaryFiles(root, dtype="uint8")
    assert flat[0].shape == (12,)
    (root / "0.raw").write_bytes(b"12345")
    with pytest.raises(fb.errors.CorruptError, match=r"shorter than its shape says \(expected 12 bytes"):
        list(fb.DataLoader(dataset, batch_size=3))
    for wrong in (
        {"shape": (2, 3)},
        {"dtype": "int16", "shape": (2, -1)},
        {"dtype": "complex64"},
        {"endian": "middle"},
    ):
        with pytest.raises(fb.errors.ConfigError):
            fb.BinaryFiles(root, **wrong)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "uint64", "float16", "bfloat16", "float64"])
def test_arrays_have_any_type(tmp_path: Path, dtype: str) -> None:
    size = getattr(torch, dtype).itemsize
    (tmp_path / "a.raw").write_bytes(bytes(range(1, 4)) * size if dtype != "bool" else b"\1\0\1")
    dataset = fb.BinaryFiles(tmp_path, dtype=dtype)
    batch = only(fb.DataLoader(dataset, batch_size=1))
    assert batch.dtype == getattr(torch, dtype) and batch.shape == (1, 3)
    assert batch.contiguous().view(torch.uint8).numpy().tobytes() == (tmp_path / "a.raw").read_bytes()
    if dtype == "bfloat16":
        with pytest.raises(fb.errors.ConfigError, match="NumPy has not got"):
            list(fb.DataLoader(dataset, batch_size=1, output="numpy"))


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    root = tmp_path / "arrays"
    root.mkdir()
    for number in range(3):
        numpy.save(root / f"{number}.npy", numpy.full((number, 2), number, dtype="f4"))
    return root


def test_arrays_of_different_shapes_are_lists_padded_or_nested(arrays: Path) -> None:
    dataset = fb.NpyFiles(arrays)
    with pytest.raises(fb.errors.ConfigError, match="samples of different shapes") as raised:
        list(fb.DataLoader(dataset, batch_size=3))
    assert "ragged=" in raised.value.hint
    listed = only(fb.DataLoader(dataset, batch_size=3, ragged="list"))
    assert [tuple(array.shape) for array in listed] == [(0, 2), (1, 2), (2, 2)]
    padded = only(fb.DataLoader(dataset, batch_size=3, ragged="pad", pad_value=-1))
    assert padded.tolist() == [[[-1, -1], [-1, -1]], [[1, 1], [-1, -1]], [[2, 2], [2, 2]]]
    nested = only(fb.DataLoader(dataset, batch_size=3, ragged="nested"))
    assert nested.is_nested and [tuple(each.shape) for each in nested.unbind()] == [(0, 2), (1, 2), (2, 2)]
    as_numpy = only(fb.DataLoader(dataset, batch_size=3, ragged="pad", output="numpy"))
    assert as_numpy.shape == (3, 2, 2) and as_numpy.dtype == numpy.float32
    with pytest.raises(fb.errors.ConfigError, match="only torch has"):
        list(fb.DataLoader(dataset, batch_size=3, ragged="nested", output="numpy"))
    for wrong in ({"ragged": "stack"}, {"pad_value": 3}, {"ragged": "pad", "pad_value": "x"}):
        with pytest.raises(fb.errors.ConfigError):
            fb.DataLoader(dataset, **wrong)
    with pytest.raises(fb.errors.ConfigError, match="ragged"):
        fb.DataLoader([1, 2], ragged="list")


def test_batches_of_one_shape_have_the_same_form_as_others(arrays: Path) -> None:
    same = fb.NpyFiles(arrays).subset([1, 1])
    assert only(fb.DataLoader(same, batch_size=2)).shape == (2, 1, 2)
    assert [tuple(each.shape) for each in only(fb.DataLoader(same, batch_size=2, ragged="list"))] == [(1, 2)] * 2
    assert only(fb.DataLoader(same, batch_size=2, ragged="pad")).shape == (2, 1, 2)
    assert only(fb.DataLoader(same, batch_size=2, ragged="nested")).is_nested


def test_pickled_objects_in_an_array_are_refused(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(OSError, match="object"):
        fb.NpyFiles(tmp_path)[0]


def test_a_transform_gets_the_content_and_its_errors_name_the_file(arrays: Path, texts: Path) -> None:
    sums = fb.NpyFiles(arrays, transform=lambda array: array.sum())
    assert only(fb.DataLoader(sums, batch_size=3)).tolist() == [0, 2, 8]

    def tokenize(text: str) -> torch.Tensor:
        if not text:
            raise ValueError("nothing to tokenize")
        return torch.tensor([len(text)])

    tokens = fb.TextFiles(texts, tokenize, labels="directory")
    loader = fb.DataLoader(tokens, batch_size=5, on_error="skip")
    lengths, labels = only(loader)
    assert lengths.tolist() == [[4], [6], [5], [5]] and labels.tolist() == [0, 0, 1, 1]
    (failure,) = loader.failures
    assert failure.path.endswith("3.txt") and failure.code == "user_code" and "nothing to tokenize" in failure.message
    tokens.transform = str.upper
    with pytest.raises(fb.errors.ConfigError, match=r"dataset\.transform"):
        list(loader)
    collated = fb.DataLoader(fb.TextFiles(texts), batch_size=5, collate_fn=lambda rows: "|".join(rows))
    assert only(collated) == "zero|größer|two\r\n||four\0"


def test_flat_pictures_are_those_of_a_class_folder(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    folders.write_folder(root, 6)
    plain = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    images, labels = only(fb.DataLoader(fb.ImageFolder(root, plain), batch_size=6))
    flat = only(fb.DataLoader(fb.ImageFiles(root, plain), batch_size=6))
    assert torch.equal(flat, images)
    again, same = only(fb.DataLoader(fb.ImageFiles(root, plain, labels="directory"), batch_size=6))
    assert torch.equal(again, images) and torch.equal(same, labels)
    half = only(fb.DataLoader(fb.ImageFiles(root, plain), batch_size=6, dtype="float16"))
    assert half.dtype == torch.float16
    with pytest.raises(fb.errors.ConfigError, match="PIL images"):
        fb.DataLoader(fb.ImageFiles(root), batch_size=2)
    with pytest.raises(fb.errors.ConfigError, match="expected a dataset of pictures"):
        fb.DataLoader(fb.NpyFiles(root, extensions=".jpg"), dtype="float16")


@pytest.mark.parametrize("change", [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_copies_and_pickles_are_the_same_datasets(texts: Path, arrays: Path, change: Any) -> None:
    for dataset in (
        fb.TextFiles(texts, str.upper, labels={"number": list(range(5))}, encoding="cp1252"),
        fb.TextFiles(sorted(texts.rglob("*.txt")), labels="directory", max_bytes=1000),
        fb.NpyFiles(arrays).subset([2, 0]),
        fb.BinaryFiles(arrays, dtype="uint8"),
    ):
        other = change(dataset)
        assert len(other) == len(dataset) and repr(other) == repr(dataset)
        assert str(other[0]) == str(dataset[0])
        state = fb.DataLoader(dataset, batch_size=2).state_dict()
        fb.DataLoader(other, batch_size=2).load_state_dict(state)


def test_a_state_is_bound_to_the_labels_too(texts: Path) -> None:
    state = fb.DataLoader(fb.TextFiles(texts, labels=list(range(5)))).state_dict()
    fb.DataLoader(fb.TextFiles(texts, labels=list(range(5)))).load_state_dict(json.loads(json.dumps(state)))
    for labels in (None, [0, 1, 2, 3, 9], "directory", {"a": list(range(5))}):
        with pytest.raises(fb.errors.StateMismatchError):
            fb.DataLoader(fb.TextFiles(texts, labels=labels)).load_state_dict(state)


def test_they_are_datasets_of_torch(texts: Path, arrays: Path) -> None:
    first, second = fb.TextFiles(texts), fb.TextFiles(texts, labels="directory")
    for dataset in (first, second, fb.NpyFiles(arrays), fb.BinaryFiles(texts), fb.ImageFolder):
        assert isinstance(dataset, data.Dataset) or issubclass(dataset, data.Dataset)
    both = first + first
    assert isinstance(both, data.Dataset) and len(both) == 10 and both[6] == "größer"
    assert next(iter(data.DataLoader(first, batch_size=5))) == ["zero", "größer", "two\r\n", "", "four\0"]
    assert only(fb.DataLoader(data.Subset(first, [3, 0]), batch_size=2)) == ["", "zero"]


def test_wrong_settings_are_said_at_once(texts: Path, tmp_path: Path) -> None:
    config, missing = fb.errors.ConfigError, fb.errors.NotFoundError
    for error, match, make in [
        (config, "root: expected", lambda: fb.TextFiles()),
        (config, "list of at least one path", lambda: fb.TextFiles([])),
        (config, 'labels: expected "directory"', lambda: fb.TextFiles(texts, labels="column")),
        (config, "expected 5 values", lambda: fb.TextFiles(texts, labels=[1, 2])),
        (config, "verify", lambda: fb.TextFiles(texts, verify="checksum")),
        (config, "transform: expected a callable", lambda: fb.TextFiles(texts, transform=3)),
        (config, "errors", lambda: fb.TextFiles(texts, errors="surrogateescape")),
        (missing, "has no samples below it", lambda: fb.NpyFiles(texts)),
        (missing, "none", lambda: fb.TextFiles(tmp_path / "none")),
    ]:
        with pytest.raises(error, match=match):
            make()
    with pytest.raises(missing) as raised:
        fb.TextFiles(tmp_path / "none")
    assert raised.value.hint.startswith("is it the right folder?")
    with pytest.raises(TypeError, match="all of one type"):
        fb.TextFiles(texts, labels=[1, "a", 2, 3, 4])


@pytest.mark.parametrize("kind", [fb.ImageFiles, fb.TextFiles, fb.BinaryFiles, fb.NpyFiles])
def test_constructors_name_every_argument(kind: Any) -> None:
    shared = "labels extensions allow_empty storage_options cache cache_bytes cache_revalidate manifest verify"
    signature = inspect.signature(kind)
    named = {
        name: parameter for name, parameter in signature.parameters.items() if parameter.kind == parameter.KEYWORD_ONLY
    }
    assert list(signature.parameters)[:3] == ["root", "transform", "target_transform"]
    assert len(signature.parameters) == 3 + len(named) and set(shared.split()) <= set(named)
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty and "InitVar" not in str(parameter)
        assert parameter.default is not parameter.empty
    # Defaults of arguments that no attribute tells are no attributes either.
    assert not any(hasattr(kind, name) for name in ("root", "labels", "cache", "manifest", "storage_options"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        kind("data", label="directory")
