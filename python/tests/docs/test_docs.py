"""Everything in a document that can be wrong is executed: README, guides and docstrings."""

import doctest
import importlib
import io
import re
import struct
import tarfile
from pathlib import Path

import numpy
import pyarrow
import pytest
import safetensors.torch
import tokenizers
import torch
from pyarrow import parquet

import folders
import forebay
import shardfiles

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PACKAGE = Path(forebay.__file__).parent
SOURCES = {".".join(source.relative_to(PACKAGE).with_suffix("").parts): source for source in PACKAGE.rglob("*.py")}


@pytest.fixture(autouse=True)
def a_folder_to_work_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples call data/train, and data/val where they have one."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "val"):
        folders.write_folder(tmp_path / "data" / name, 8)
    for name, text in {
        "neg/0.txt": "too long",
        "neg/2.txt": "dull",
        "pos/1.txt": "lovely",
        "pos/3.txt": "again!",
    }.items():
        path = tmp_path / "data" / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "data" / "arrays").mkdir()
    for number in (2, 3):
        numpy.save(tmp_path / "data" / "arrays" / f"{number}.npy", numpy.ones((number, 3)))
    (tmp_path / "data" / "archives").mkdir()
    numpy.savez(tmp_path / "data" / "archives" / "1.npz", x=numpy.ones((2, 3)), y=1)
    latents = {"latent": torch.zeros(4, dtype=torch.bfloat16)}
    safetensors.torch.save_file(latents, tmp_path / "data" / "archives" / "1.safetensors")
    (tmp_path / "data" / "lines").mkdir()
    for name, text in {
        "numbers.txt": "eins\r\nzwei\ndrei",
        "pairs.jsonl": '{"text": "eins", "label": 1}\n{"text": "zwei", "label": 2}\n',
        "people.csv": 'name,age\nAda,36\n"Rex, the dog",12\n',
    }.items():
        (tmp_path / "data" / "lines" / name).write_text(text, newline="")
    words = tokenizers.models.WordLevel({"?": 0, "<|end|>": 1, "eins": 2, "zwei": 3}, unk_token="?")
    tokenizers.Tokenizer(words).save(str(tmp_path / "data" / "tokenizer.json"))
    (tmp_path / "data" / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "data" / "shards" / f"train-{shard:03}.tar", "w") as archive:
            for number in range(3 * shard, 3 * shard + 3):
                for name, content in (("txt", f"sample {number}".encode()), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:05}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    (tmp_path / "data" / "tokens").mkdir()
    numpy.arange(100, dtype="uint16").tofile(tmp_path / "data" / "tokens" / "train.bin")
    (tmp_path / "data" / "corpus").mkdir()
    (numpy.arange(1000, dtype="uint32") % 97).tofile(tmp_path / "data" / "corpus" / "0.ds")
    numpy.arange(10, 1001, 10, dtype="uint64").tofile(tmp_path / "data" / "corpus" / "0.ds.index")
    for folder in ("mds", "tfrecord"):
        (tmp_path / "data" / folder).mkdir()
    for number, text in enumerate([b"eins", b"zwei"], start=1):
        label = struct.pack("<q", number)
        columns: shardfiles.Columns = {"label": ("int", 8, label), "text": ("str", None, text)}
        shardfiles.write_mds(tmp_path / "data" / "mds", columns, f"shard.{number:05}.mds")
        record = shardfiles.framed(shardfiles.example({"label": number, "text": text}))
        (tmp_path / "data" / "tfrecord" / f"train.tfrecord-{number - 1:05}-of-00002").write_bytes(record)
    (tmp_path / "data" / "parquet").mkdir()
    rows = pyarrow.table({"text": ["eins", "zwei"], "label": [1, 2]})
    parquet.write_table(rows, tmp_path / "data" / "parquet" / "train-00000-of-00001.parquet")
    (tmp_path / "data" / "records").mkdir()
    (tmp_path / "data" / "records" / "digits.idx3-ubyte").write_bytes(bytes(16 + 10 * 4 * 4))
    (tmp_path / "data" / "cifar").mkdir()
    (tmp_path / "data" / "cifar" / "data_batch_1.bin").write_bytes(bytes(20 * 3073))


def blocks(document: Path) -> list[tuple[int, str]]:
    """Line and text of every Python block; those of one document are one program, which goes on from the README's."""
    text = document.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


WITH_EXAMPLES = [document for document in DOCUMENTS if blocks(document)]


@pytest.mark.parametrize("document", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_document_run(document: Path) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for source in dict.fromkeys([ROOT / "README.md", document]):
        for line, block in blocks(source):
            # Blank lines before it, so that a traceback names the document's own line.
            exec(compile("\n" * line + block, str(source), "exec"), names)


def test_the_readme_has_an_example() -> None:
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("name", sorted(name for name, source in SOURCES.items() if ">>>" in source.read_text()))
def test_the_examples_of_a_module_run(name: str) -> None:
    module = "forebay" if name == "__init__" else f"forebay.{name}"
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_the_public_classes_have_examples() -> None:
    for thing in (
        forebay.DataLoader,
        forebay.ImageFolder,
        forebay.ImageFiles,
        forebay.TextFiles,
        forebay.BinaryFiles,
        forebay.NpyFiles,
        forebay.NpzFiles,
        forebay.SafetensorsFiles,
        forebay.Records,
        forebay.TextLines,
        forebay.Tokens,
        forebay.JsonLines,
        forebay.Csv,
        forebay.concat,
        forebay.mix,
        forebay.WeightedSampler,
        forebay.BalancedSampler,
        forebay.Shards,
        forebay.ForebayError,
        forebay.transforms,
    ):
        assert ">>>" in (thing.__doc__ or ""), thing


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    links = [
        (document, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        if "://" not in target
    ]
    assert len(links) > 50
    assert [str(document) for document, target in links if not (document.parent / target).exists()] == []
