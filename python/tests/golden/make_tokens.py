"""Writes the golden token files of python/tests/native/test_tokens.py with the real writers of each format.

Run once for each name, in an environment with what it needs: numpy, megatron (megatron-core 0.16), datatrove (datatrove
0.10, tokenizers), mds_arrays and mds_bytes (mosaicml-streaming 0.13), litdata (litdata 0.2):

    python python/tests/golden/make_tokens.py python/tests/golden/tokens megatron

What is written is committed. In expected.json beside it is what the format's own reader gives: the stream of all
tokens, and how many each document has, where the format has documents.
"""

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (3, 11, 1, 20, 7, 8, 2)
# All tokens, and documents that each begin with the token behind those of the one before.
TOTAL = sum(LENGTHS)
BLOCK = 13


def documents(dtype: str) -> list[Any]:
    return [part.astype(dtype) for part in np.split(np.arange(TOTAL), np.cumsum(LENGTHS)[:-1])]


def expect(directory: Path, stream: Any, lengths: list[int] | None = None) -> None:
    said = {"stream": [int(token) for token in stream], "documents": lengths}
    (directory / "expected.json").write_text(json.dumps(said, separators=(",", ":")) + "\n")


def numpy(directory: Path) -> None:
    np.save(directory / "tokens.npy", np.arange(TOTAL, dtype=np.uint32))
    expect(directory, np.load(directory / "tokens.npy"))


def megatron(directory: Path) -> None:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

    prefix = directory / "corpus_text_document"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(50_000))
    for number, document in enumerate(documents("int64")):
        builder.add_item(_tensor(document))
        if number != 1:  # the second document has two sequences
            builder.end_document()
    builder.finalize(f"{prefix}.idx")
    read = IndexedDataset(str(prefix))
    sequences = [read[index] for index in range(len(read))]
    bounds = itertools.pairwise(read.document_indices.tolist())
    lengths = [sum(map(len, sequences[first:last])) for first, last in bounds]
    expect(directory, np.concatenate(sequences), lengths)


def datatrove(directory: Path) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer
    from datatrove.utils.dataset import DatatroveFileDataset
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(number): number for number in range(TOTAL)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(directory / "words.json"))
    texts = [" ".join(map(str, document)) for document in documents("int64")]
    made = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    tokenizer = DocumentTokenizer(str(directory), str(directory / "words.json"), shuffle_documents=False)
    tokenizer.run(made, rank=0, world_size=1)
    (directory / "words.json").unlink()
    (file,) = directory.glob("*.ds")
    windows = DatatroveFileDataset(str(file), BLOCK - 1)
    stream = np.concatenate([windows[index]["input_ids"].numpy() for index in range(len(windows))])
    whole = DatatroveFileDataset(str(file), TOTAL - 1, return_positions=True)[0]
    starts = np.flatnonzero(whole["positions"].numpy() == 0)
    expect(directory, stream, np.diff([*starts, TOTAL]).tolist())


def mds(directory: Path, encoding: str, encode: Any, decode: Any) -> None:
    from streaming.base.format.mds.reader import MDSReader
    from streaming.base.format.mds.writer import MDSWriter

    with MDSWriter(out=str(directory), columns={"tokens": encoding}, size_limit=200) as writer:
        for document in documents("uint16" if encoding.startswith("nd") else "int64"):
            writer.write({"tokens": encode(document)})
    samples = []
    for shard in json.loads((directory / "index.json").read_text())["shards"]:
        reader = MDSReader.from_json(str(directory), "", shard)
        samples += [decode(reader[index]["tokens"]) for index in range(shard["samples"])]
    expect(directory, np.concatenate(samples), list(map(len, samples)))


def mds_arrays(directory: Path) -> None:
    mds(directory, "ndarray:uint16", lambda document: document, lambda array: array)


def mds_bytes(directory: Path) -> None:
    """As LLM Foundry writes them."""
    mds(directory, "bytes", lambda document: document.tobytes(), lambda data: np.frombuffer(data, np.int64))


def litdata(directory: Path) -> None:
    import litdata as lit

    lit.optimize(
        _tensor,
        documents("int32"),
        str(directory),
        chunk_size=20,
        num_workers=1,
        item_loader=lit.TokensLoader(),
        keep_data_ordered=True,
    )
    # Larger blocks would leave out what is behind the last whole one of a chunk. Its reader knows no documents: they
    # are the items that it was given.
    read = lit.StreamingDataset(str(directory), item_loader=lit.TokensLoader(block_size=1), shuffle=False)
    expect(directory, np.concatenate([read[index].numpy() for index in range(len(read))]), list(LENGTHS))


def _tensor(document: Any) -> Any:
    import torch

    return torch.from_numpy(document)


def main(target: Path, names: list[str]) -> None:
    for write in (numpy, megatron, datatrove, mds_arrays, mds_bytes, litdata):
        if write.__name__ in names:
            directory = target / write.__name__
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            write(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
