"""Writes the golden shards of python/tests/native/test_shard_formats.py with the real writers of each format.

Run once, in an environment with mosaicml-streaming 0.13, litdata 0.2, tfrecord 1.14, datasets 5.2 and Pillow; for
`webdataset` with webdataset 1.0, and the `wds2idx.py` of NVIDIA DALI 2.4 in the path of modules:

    python python/tests/golden/make_shards.py python/tests/golden/shards

What is written is committed, with the expected values beside it as the format's own reader gives them.
"""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SAMPLES = 7


def picture(index: int, mode: str = "RGB") -> Image.Image:
    """A small picture of its own colours, of a size of its own."""
    height, width = 5 + index % 3, 6
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [(rows * 20 + index * 9) % 256, (columns * 30) % 256, (rows * columns + index) % 256]
    if mode == "L":
        return Image.fromarray(channels[0].astype(np.uint8))
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Image.Image):
        return {"mode": value.mode, "pixels": np.asarray(value).tolist()}
    if isinstance(value, np.ndarray | np.generic) or type(value).__module__ == "torch":
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_expected(directory: Path, samples: list[Any]) -> None:
    text = json.dumps([plain(sample) for sample in samples], indent=None, separators=(",", ":"))
    (directory / "expected.json").write_text(text + "\n")


def mds(directory: Path) -> None:
    from streaming.base.format.mds.reader import MDSReader
    from streaming.base.format.mds.writer import MDSWriter

    columns = {
        "png": "png",
        "jpeg": "jpeg",
        "pixels": "pil",
        "grey": "pil",
        "label": "int",
        "small": "uint8",
        "weight": "float32",
        "half": "float16",
        "text": "str",
        "digits": "str_int",
        "number": "str_float",
        "raw": "bytes",
        "meta": "json",
        "any": "ndarray",
        "typed": "ndarray:int16",
        "fixed": "ndarray:float32:2,3",
    }
    with MDSWriter(out=str(directory), columns=columns, size_limit=4096, hashes=["xxh64"]) as writer:
        for index in range(SAMPLES):
            writer.write(
                {
                    "png": picture(index),
                    "jpeg": picture(index),
                    "pixels": picture(index),
                    "grey": picture(index, "L"),
                    "label": index - 3,
                    "small": 250 + index % 5,
                    "weight": index / 3,
                    "half": index / 8,
                    "text": f"größer {index}" * (index % 3),
                    "digits": 10**index,
                    "number": index / 7,
                    "raw": bytes(range(index)),
                    "meta": {"index": index, "tags": ["a", "b"][: index % 3]},
                    "any": np.arange(2 * (index + 1), dtype=np.int32).reshape(index + 1, 2),
                    "typed": np.arange(index + 1, dtype=np.int16),
                    "fixed": np.full((2, 3), index / 2, dtype=np.float32),
                }
            )
    samples = []
    for shard in json.loads((directory / "index.json").read_text())["shards"]:
        reader = MDSReader.from_json(str(directory), "", shard)
        samples += [reader[index] for index in range(shard["samples"])]
    write_expected(directory, samples)


def litdata(directory: Path) -> None:
    import torch
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(directory), chunk_size=4)
    samples = []
    for index in range(SAMPLES):
        sample = {
            "image": picture(index),
            "label": index,
            "weight": index / 3,
            "name": f"sample {index}",
            "flag": index % 2 == 0,
            "raw": bytes(range(index)),
            "vector": np.arange(index + 1, dtype=np.float32),
            "matrix": np.arange(6, dtype=np.int16).reshape(2, 3) + np.int16(index),
            "ids": torch.arange(index + 2),
            "tensor": torch.full((2, 2), index / 4),
            "box": (index, index + 1),
        }
        writer[index] = sample
        samples.append(
            {**{name: value for name, value in sample.items() if name != "box"}, "box.0": index, "box.1": index + 1}
        )
    writer.done()
    writer.merge()
    write_expected(directory, samples)


def litdata_rows(directory: Path) -> None:
    """Bytes, texts and numbers, which `optimize` writes as an Arrow file behind the table of a chunk."""
    import litdata as lit

    inputs = list(range(SAMPLES))
    lit.optimize(row, inputs, str(directory), chunk_size=4, num_workers=1, keep_data_ordered=True)
    read = lit.StreamingDataset(str(directory), shuffle=False)
    write_expected(directory, [read[index] for index in range(SAMPLES)])


def row(index: int) -> dict[str, Any]:
    encoded = io.BytesIO()
    picture(index).save(encoded, "PNG")
    return {
        "image": encoded.getvalue(),
        "label": index - 3,
        "text": f"größer {index}" * (index % 3),
        "weight": index / 4,
    }


def tfrecord(directory: Path) -> None:
    from tfrecord.writer import TFRecordWriter

    samples = []
    for number in range(2):
        writer = TFRecordWriter(str(directory / f"train.tfrecord-{number:05}-of-00002"))
        for index in range(number * 4, min(SAMPLES, number * 4 + 4)):
            encoded = io.BytesIO()
            picture(index).save(encoded, "PNG")
            writer.write(
                {
                    "image/encoded": (encoded.getvalue(), "byte"),
                    "image/class/label": (index - 3, "int"),
                    "image/class/text": (f"class {index}".encode(), "byte"),
                    "weight": (index / 4, "float"),
                    "ids": ([2**40 + index, *range(index)], "int"),
                    "box": ([0.5, index / 8], "float"),
                }
            )
            samples.append(
                {
                    "box": np.array([0.5, index / 8], np.float32),
                    "ids": np.array([2**40 + index, *range(index)]),
                    "image/class/label": np.int64(index - 3),
                    "image/class/text": f"class {index}".encode(),
                    "image/encoded": picture(index),
                    "weight": np.float32(index / 4),
                }
            )
        writer.close()
    write_expected(directory, samples)


def arrow(directory: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    from datasets import Image as ImageFeature

    features = Features(
        {
            "image": ImageFeature(),
            "label": ClassLabel(names=["a", "b", "c", "d"]),
            "text": Value("string"),
            "long": Value("large_string"),
            "ids": Sequence(Value("int32")),
            "box": Sequence(Value("float32"), length=2),
            "weight": Value("float32"),
            "flag": Value("bool"),
            "raw": Value("binary"),
            "nested": {"a": Value("int64"), "b": Sequence(Value("string"))},
            "small": Value("uint8"),
        }
    )
    samples = [
        {
            "image": picture(index),
            "label": None if index == SAMPLES - 1 else (index + 1) % 4,
            "text": f"größer {index}" * (index % 3),
            "long": f"long {index}",
            "ids": np.arange(index, dtype=np.int32),
            "box": np.array([index, 0.5], np.float32),
            "weight": np.float32(index / 4),
            "flag": index % 2 == 0,
            "raw": bytes(range(index)),
            "nested": {"a": index, "b": ["x"] * index},
            "small": np.uint8(250 + index % 5),
        }
        for index in range(SAMPLES)
    ]
    columns = {name: [sample[name] for sample in samples] for name in features}
    Dataset.from_dict(columns, features=features).save_to_disk(str(directory), num_shards=2)
    write_expected(
        directory, [{name: value for name, value in sample.items() if name != "nested"} for sample in samples]
    )


def parquet(directory: Path) -> None:
    """As `datasets` writes it, for itself and for the Hub."""
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    from datasets import Image as ImageFeature

    features = Features(
        {
            "image": ImageFeature(),
            "label": ClassLabel(names=["a", "b", "c", "d"]),
            "text": Value("string"),
            "long": Value("large_string"),
            "ids": Sequence(Value("int32")),
            "bytes": Sequence(Value("uint8")),
            "box": Sequence(Value("float32"), length=2),
            "weight": Value("float32"),
            "flag": Value("bool"),
            "raw": Value("binary"),
            "meta": {"source": Value("string"), "year": Value("int16")},
            "nested": Sequence(Sequence(Value("int64"))),
            "small": Value("uint8"),
        }
    )
    samples = [
        {
            "image": picture(index),
            "label": None if index == SAMPLES - 1 else (index + 1) % 4,
            "text": f"größer {index}" * (index % 3),
            "long": f"long {index}",
            "ids": np.arange(index, dtype=np.int32),
            "bytes": np.arange(index % 4, dtype=np.uint8),
            "box": np.array([index, 0.5], np.float32),
            "weight": np.float32(index / 4),
            "flag": index % 2 == 0,
            "raw": bytes(range(index)),
            "meta": {"source": f"src {index % 2}", "year": 2000 + index},
            "nested": [[index]],
            "small": np.uint8(250 + index % 5),
        }
        for index in range(SAMPLES)
    ]
    columns = {name: [sample[name] for sample in samples] for name in features}
    dataset = Dataset.from_dict(columns, features=features)
    dataset.select(range(4)).to_parquet(str(directory / "train-00000-of-00002.parquet"), batch_size=3)
    dataset.select(range(4, SAMPLES)).to_parquet(str(directory / "train-00001-of-00002.parquet"))
    expected = []
    for sample in samples:
        kept = {name: value for name, value in sample.items() if name not in ("nested", "meta")}
        expected.append(kept | {"meta.source": sample["meta"]["source"], "meta.year": np.int16(sample["meta"]["year"])})
    write_expected(directory, expected)


def webdataset(directory: Path) -> None:
    """With an index by DALI's tool beside each archive."""
    import webdataset as wds
    from wds2idx import IndexCreator

    with wds.ShardWriter(str(directory / "train-%06d.tar"), maxcount=4, verbose=0) as writer:
        for index in range(SAMPLES):
            writer.write(
                {
                    "__key__": f"{index % 2}/sample{index:04}",
                    "png": picture(index),
                    "grey.png": picture(index, "L"),
                    "cls": index * 3,
                    "txt": f"größer {index}" * (index % 3),
                    "json": {"index": index, "tags": ["a", "b"][: index % 3]},
                    "npy": np.arange(6, dtype=np.int16).reshape(2, 3) + np.int16(index),
                    "bin": bytes(range(index)),
                }
            )
    archives = sorted(directory.glob("*.tar"))
    for archive in archives:
        with IndexCreator(str(archive), str(archive.with_suffix(".idx")), verbose=False) as creator:
            creator.create_index()
    read = wds.WebDataset([str(archive) for archive in archives], shardshuffle=False).decode("pil")
    samples = [{name: value for name, value in sample.items() if name[:2] != "__"} for sample in read]
    write_expected(directory, samples)


def main(target: Path, chosen: list[str]) -> None:
    for write in (mds, litdata, litdata_rows, tfrecord, arrow, parquet, webdataset):
        if not chosen or write.__name__ in chosen:
            directory = target / write.__name__
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            write(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
