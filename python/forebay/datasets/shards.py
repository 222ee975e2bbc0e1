"""Shards: archives with many samples each (docs/shards.md)."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay import _forebay
from forebay._options import settings, storage
from forebay.datasets import patterns, shard_formats
from forebay.datasets.file_dataset import with_arguments
from forebay.datasets.native import checked_callable
from forebay.datasets.parts import PartsDataset
from forebay.datasets.shard_fields import FieldsDataset, Wanted, kind_of
from forebay.errors import ConfigError, NotFoundError

# In place of a path: the indexes that DALI's tool of this name has written beside archives.
WDS2IDX = "wds2idx"


@with_arguments
class Shards(FieldsDataset, PartsDataset):
    """Samples in archives, as WebDataset writes them: members `00042.jpg` and `00042.cls` of a tar file are a sample.

    `root` is an archive, a folder of them, a list, a URL, or a name with wildcards (`train-*.tar`) or braces
    (`train-{000..147}.tar`). Samples are read by their ranges, so a shuffle is one of all of them.

    `fields` says what a sample has: `("jpg", "cls")` makes it a tuple, `{"image": "jpg;png", "label": "cls"}` a dict
    (the first of these fields that is there), `"jpg"` the field alone. Without it a sample is a dict of the fields that
    the first one has. A sample that lacks a field has failed.

    Fields are decoded by their names: pictures, `cls` and `id` (whole numbers), `txt` (text), `json`, `npy`; others are
    bytes, and with `decode=False` all are. `transform` is for pictures, `transforms` is by field: `{"txt": tokenize}`.

    MDS (MosaicML streaming), LitData, TFRecord, Arrow (Hugging Face) and Parquet are read, too: by the directory of
    their `index.json`, or by files. What their fields are, they say themselves (docs/shard-formats.md).

    Archives are read once to make an index of them, which has a checksum of each field: `index="…"` names a file that
    keeps it, `index=True` keeps it beside the archives, and `index="wds2idx"` takes DALI's. `dataset.notes` says what
    is damaged.

    With `landmarks=True` and an index that is kept, the index also has places at which JPEGs can be decoded from, so
    that what is beside a crop is skipped from the first epoch on. Each JPEG is read and examined once for that. By
    default they are used where the index has them; with False they are not.

    Archives with a parity sidecar (`forebay parity`, docs/parity.md) are repaired while they are read, unless
    `parity=False`.

    >>> import forebay as fb
    >>> shards = fb.Shards("data/shards/train-{000..001}.tar", fields=("txt", "cls"))
    >>> len(shards), shards[0]
    (6, ('sample 0', tensor(0)))
    """

    _EXTENSIONS = (".tar", ".tfrecord", ".tfrecords", ".tfrec", ".arrow", ".parquet")

    fields: Any = None
    transforms: Mapping[str, Callable[[Any], Any]] | None = None
    decode: bool = True
    index: str | os.PathLike[str] | bool | None = None
    landmarks: bool | None = None
    parity: bool = True
    max_bytes: int | str | None = None

    def __post_init__(
        self, root: Any, transform: Any, labels: Any, storage_options: Mapping[str, Any] | None, *arguments: Any
    ) -> None:
        if isinstance(root, str | os.PathLike):
            root = self._listed([os.fspath(root)], storage_options) or root
        elif isinstance(root, Sequence) and not isinstance(root, bytes):
            root = self._listed([os.fspath(each) for each in root], storage_options) or root
        super().__post_init__(root, transform, labels, storage_options, *arguments)

    def _listed(self, given: list[str], options: Mapping[str, Any] | None) -> list[str] | None:
        """Every archive by its name; `None` for a folder."""
        found = []
        for text in given:
            if text.startswith("pipe:"):
                raise ConfigError(
                    f"root: expected paths or URLs, got a command: {text!r}",
                    hint="samples are read by their ranges, which a pipe does not have; s3://, gs:// and https:// do",
                )
            for name in patterns.in_braces(text):
                found += patterns.listed(name, options) if patterns.has_wildcards(name) else [name]
        # A single name without an archive's ending is a folder: what it is would be a question to the storage.
        is_named = found[0].lower().endswith(self._endings()) or shard_formats.is_numbered(found[0])
        is_folder = len(given) == 1 and found == given and not is_named
        return None if is_folder else found

    def _found(self) -> _forebay.Index:
        self._format = None
        if self._manifest is not None or self._paths is not None:
            return super()._found()
        if listed := _forebay.shard_directory(self._location, self._storage_options):
            if isinstance(self._labels, str):
                raise ConfigError(
                    f"labels: expected values or None for shards that an index.json lists, got {self._labels!r}",
                    hint="a label that is in each sample is a field of it",
                )
            files, self._format = listed
            return files
        try:
            return super()._found()
        except NotFoundError as error:
            shard_formats.explain(self._location, self._storage_options, error)
            raise

    def _endings(self) -> tuple[str, ...]:
        given = self._EXTENSIONS if self.extensions is None else self.extensions
        return tuple(ending.lower() for ending in ([given] if isinstance(given, str) else given))

    def _check(self) -> None:
        super()._check()
        self._given = Wanted.of(self.fields)
        self.decode, self.parity = bool(self.decode), bool(self.parity)
        self.max_bytes = self._max_bytes = settings.memory_budget(self.max_bytes, "max_bytes")
        self.transforms = dict(self.transforms or {})
        for name, transform in self.transforms.items():
            checked_callable(f"transforms[{name!r}]", transform)
        if isinstance(self.index, str | os.PathLike) and self.index != WDS2IDX:
            self.index = os.path.abspath(os.fspath(self.index))
        elif self.index not in (None, True, WDS2IDX):
            raise ConfigError(f'index: expected a path, True or "{WDS2IDX}", got {self.index!r}')
        if self.landmarks not in (None, True, False):
            raise ConfigError(f"landmarks: expected True, False or None, got {self.landmarks!r}")

    def _set_up(self) -> None:
        super()._set_up()
        self._restore()

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        self._shard_fields = None
        names = None if self._given is None else self._given.names()
        if found := self._format or files.shard_format():
            place, kept = self._place(files)
            if place == WDS2IDX:
                raise ConfigError(f'index: expected tar archives beside "{WDS2IDX}", got shards of another format')
            if self.landmarks:
                raise ConfigError("landmarks: expected tar archives, got shards of another format")
            shards, self._shard_fields = files.shards_of(found, names, place, kept, self.decode, self.parity)
            self._wanted = self._given or Wanted.all_of(self._shard_fields)
            return shards
        place, kept = self._place(files)
        if self.landmarks and place not in ("in", "kept beside"):
            raise ConfigError(
                f"landmarks: expected an index that is kept, got index={self.index!r}",
                hint="index=True keeps it beside the archives, index=… in a file of its own",
            )
        shards, fields = files.shards(names, place, kept, self._landmarks(), self.parity)
        self._wanted = self._given or Wanted.found(fields)
        return shards

    def _landmarks(self) -> bool | None:
        """Whether the index is to have landmarks; `None`: they are used if it does."""
        if self.landmarks is None:
            named = [name for names in self._given.names() for name in names] if self._given else None
            has_pictures = self.decode and (named is None or any(kind_of(name) == "image" for name in named))
            return None if has_pictures else False
        return bool(self.landmarks)

    def _place(self, files: _forebay.Index) -> tuple[str, str | None]:
        """Where the index is: where `index` says, or beside a manifest on this machine, or beside the archives."""
        if self.index == WDS2IDX:
            return "wds2idx", None
        if isinstance(self.index, str):
            return "in", self.index
        if self.index:
            if storage.is_url(files.root):
                raise ConfigError(
                    f"index: expected a path of this machine for archives at a URL, got {self.index!r}",
                    hint="give `index` the path of a file",
                )
            return "kept beside", None
        if self._manifest is None or storage.is_url(os.fspath(self._manifest.path)):
            return "beside", None
        manifest = os.fspath(self._manifest.path)
        kept, beside = manifest + ".index", os.path.join(os.path.dirname(manifest), "forebay.index")
        # What `forebay pack` writes: the index that its folder is opened by.
        return "in", beside if not os.path.exists(kept) and os.path.exists(beside) else kept
