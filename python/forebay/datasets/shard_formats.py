"""What a folder holds that is no folder of shards, for the error about it (docs/shard-formats.md)."""

import re
from collections import Counter

from forebay import _forebay
from forebay.errors import ForebayError, NotFoundError

# As TensorFlow numbers shards: `train.tfrecord-00000-of-01024`, and `train-00000-of-01024`.
_NUMBERED = re.compile(r"-\d+-of-\d+$")

# What is known by its ending, and what to do with it.
_KNOWN = {
    ".mds": ("MDS shards without their index.json", "name the directory that has the index.json of the shards"),
    ".lance": ("a Lance dataset", "read it with pylance as a dataset in Python, or write it as Parquet or tar"),
    ".zst": ("compressed files", "unpack them first: single samples cannot be read from a compressed file"),
    ".zstd": ("compressed files", "unpack them first: single samples cannot be read from a compressed file"),
    ".gz": ("compressed files", "unpack them first: single samples cannot be read from a compressed file"),
    ".tgz": ("compressed files", "unpack them first: single samples cannot be read from a compressed file"),
}


def is_numbered(name: str) -> bool:
    """Whether a name is that of a file, whatever its ending."""
    return _NUMBERED.search(name) is not None


def explain(root: str, options: dict[str, str] | None, error: NotFoundError) -> None:
    """Raises a better error about a folder without shards, if what is in it is known."""
    try:
        found = _forebay.scan_files(root, [""], True, options).paths()
    except ForebayError:
        return  # the first error is the better one
    endings = Counter("." + name.rpartition(".")[2].lower() for name in found)
    known = [ending for ending, _ in endings.most_common() if ending in _KNOWN]
    if known:
        what, hint = _KNOWN[known[0]]
        raise NotFoundError(f'"{root}" holds {what} (expected shards)', path=root, stage="scan", hint=hint) from error
