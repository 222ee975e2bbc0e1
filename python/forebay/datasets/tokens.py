"""Files of tokens as samples for language models: windows of them, or documents packed together (docs/tokens.md)."""

import fnmatch
import os
from collections.abc import Callable
from dataclasses import InitVar, field
from typing import Any

from forebay import _forebay
from forebay._options import settings, storage
from forebay.datasets.file_dataset import with_arguments
from forebay.datasets.parts import PartsDataset
from forebay.errors import ConfigError, NotFoundError

# Of files, and of batches.
_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64", "int16", "int8", "uint64")
_TOKEN_DTYPES = ("int64", "int32", "uint16")


@with_arguments
class Tokens(PartsDataset):
    """Tokens of language models: rows of `sequence_length`, with the tokens that follow as targets.

    All files are one stream of tokens, in order. What a file is, is found out from it: raw numbers (nanoGPT's `.bin`,
    of `dtype`, by default `uint16`), llm.c's with their header, Megatron's `.bin` with its `.idx`, datatrove's `.ds`,
    NumPy's arrays of one dimension, and the shards of MosaicML's MDS and of LitData, by their `index.json` (`column` is
    that of MDS which has the tokens).

    A sample is a dict of `tokens` and, with `targets`, of `targets`: the token that follows each of them. Without
    targets it is the tokens alone. Windows begin `stride` apart (by default `sequence_length`) and cross files. Tokens
    behind the last whole window are in `notes`; with `tail="pad"` they make a shorter one, filled up with `pad`, whose
    targets are -100.

    With `documents=True` a sample also has `position_ids`, which begin at 0 in each document, and `cu_seqlens`, where
    its documents begin and end; the last token of a document has no target (-100). Where documents end is in
    Megatron's, datatrove's and the shards' indexes; elsewhere `eod` is the token that ends them. With
    `documents="pack"` each sample is made of whole documents: longer ones are cut, no token is lost or doubled, and
    `loss_mask` says which positions count. `pack_seed` is for another packing.

    A token that is not below `vocab_size` is damage. `token_dtype` is the type of `tokens` in batches: `int64`, `int32`
    or `uint16`. Targets are `int64`.

    >>> import forebay as fb
    >>> dataset = fb.Tokens("data/tokens/train.bin", 8)
    >>> len(dataset), dataset[1]["tokens"].tolist(), dataset[1]["targets"].tolist()
    (12, [8, 9, 10, 11, 12, 13, 14, 15], [9, 10, 11, 12, 13, 14, 15, 16])
    """

    _EXTENSIONS = (".bin", ".ds", ".npy", "index.json")

    transform: InitVar[Callable[[Any], Any] | None] = None
    target_transform: Callable[[Any], Any] | None = None
    sequence_length: int = field(default=0, kw_only=False)
    dtype: Any = None
    stride: int | None = None
    targets: InitVar[bool] = True
    tail: str = "drop"
    documents: bool | str = False
    eod: int | None = None
    pad: int = 0
    pack_seed: int = 0
    token_dtype: Any = "int64"
    vocab_size: int | None = None
    column: str | None = None

    def __post_init__(self, root: Any, *arguments: Any) -> None:
        *given, has_targets = arguments
        self._has_targets = bool(has_targets)
        _, labels, options, *_ = given
        if isinstance(labels, str):
            raise _no_labels(labels)
        if isinstance(root, str | os.PathLike):
            name = os.fspath(root)
            # A single file is a list of one, by its name: whether it is a folder would be a question to the storage.
            if "*" in name:
                root = _matching(name, self._endings(), options)
            elif name.lower().endswith((*self._endings(), ".idx")):
                root = [root]
        super().__post_init__(root, *given)

    def _endings(self) -> tuple[str, ...]:
        given = self._EXTENSIONS if self.extensions is None else self.extensions
        return tuple(ending.lower() for ending in ([given] if isinstance(given, str) else given))

    def _check(self) -> None:
        super()._check()
        self.sequence_length = settings.whole("sequence_length", self.sequence_length, least=1, bits=31)
        if self.dtype is not None:
            self.dtype = settings.named("dtype", self.dtype, {name: name for name in _DTYPES})
        self.token_dtype = settings.named("token_dtype", self.token_dtype, {name: name for name in _TOKEN_DTYPES})
        settings.choice("tail", self.tail, "drop", "pad")
        if not (isinstance(self.documents, bool) or self.documents == "pack"):
            raise ConfigError(f'documents: expected True, False or "pack", got {self.documents!r}')
        if self.documents == "pack" and self.stride is not None:
            raise ConfigError(f'stride: expected None with documents="pack", which has no windows, got {self.stride!r}')
        if self.stride is not None:
            self.stride = settings.whole("stride", self.stride, least=1)
        if self.eod is not None:
            self.eod = settings.whole("eod", self.eod, least=-(2**63))
            if not self.documents:
                raise ConfigError(f'eod: expected documents=True or documents="pack" beside it, got {self.eod!r} alone')
        if self.vocab_size is not None:
            self.vocab_size = settings.whole("vocab_size", self.vocab_size, least=1)
        self.pad = settings.whole("pad", self.pad, least=-(2**63))
        self.pack_seed = settings.whole("pack_seed", self.pack_seed)

    def _set_up(self) -> None:
        super()._set_up()
        self._restore()

    def _restore(self) -> None:
        # Not before its files are known: they say what their tokens are.
        if hasattr(self, "_stored"):
            super()._restore()

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        if self._manifest is not None and self._manifest._labels:
            raise _no_labels(self._manifest._labels)
        documents = "packed" if self.documents == "pack" else "marked" if self.documents else "ignored"
        index, self._stored, self._token_count = files.tokens(
            self.dtype,
            self.column,
            self.sequence_length,
            self.sequence_length if self.stride is None else self.stride,
            self._has_targets,
            self.tail == "pad",
            documents,
            self.eod,
            self.pack_seed,
        )
        return index

    def _ragged_columns(self) -> frozenset[str]:
        # Where documents begin differs from sample to sample.
        return frozenset({"cu_seqlens"})

    @property
    def token_count(self) -> int:
        """How many tokens the files have together."""
        return self._token_count

    def _made_content(self) -> _forebay.Recipe:
        is_packed = self.documents == "pack"
        return _forebay.Recipe.tokens(
            self._stored,
            self.token_dtype,
            self.sequence_length,
            self._has_targets,
            is_packed or (bool(self.documents) and self.eod is None),
            self.eod,
            is_packed,
            self.pad,
            self.vocab_size,
        )


def _no_labels(labels: Any) -> ConfigError:
    return ConfigError(
        f"labels: expected None or a value for each sample, got {labels!r}",
        hint="windows of tokens cross files, so labels of files are none of theirs",
    )


def _matching(pattern: str, endings: tuple[str, ...], options: Any) -> list[str]:
    """The files that a pattern names, sorted. `*` is a part of a name, `**` any number of directories."""
    head, _, rest = pattern.partition("*")
    base, _, first = head.rpartition("/")
    root, options = storage.root(base or ("/" if pattern.startswith("/") else "."), options)
    index = _forebay.scan_files(root, list(endings), True, options)
    prefix = root.rstrip("/") + "/"
    parts = f"{first}*{rest}".split("/")
    paths = [path for path in index.paths() if _matches(path.removeprefix(prefix).split("/"), parts)]
    if not paths:
        raise NotFoundError(f'no file of tokens is called "{pattern}"', path=pattern)
    return paths


def _matches(names: list[str], parts: list[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return _matches(names, parts[1:]) or (bool(names) and _matches(names[1:], parts))
    return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
