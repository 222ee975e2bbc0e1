"""Manifests: the samples of a folder in one file, so that the folder need not be listed (docs/manifest.md)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from forebay import _forebay
from forebay._options import storage
from forebay._record import notices
from forebay.errors import ConfigError, StateMismatchError


class Manifest:
    """The samples that a manifest names: for `ImageFolder(manifest=…)` and `DatasetFolder(manifest=…)`.

    `path` is a Parquet file that `forebay scan` or another tool wrote, or a CSV or JSONL file with `path` and `class`
    or `label`; a path or a URL. `root` says where the samples are. It is needed where the manifest records another
    server or bucket than its own, because a manifest may not choose who is sent credentials. Where it is not the
    recorded one, only sizes are compared when samples are read, and not times or etags, because those of a copy are
    others. Opening it touches the manifest and nothing else.

    `labels` names the column that samples are labelled with, or several, or none (`()`); `"class"`, which is the
    default, means the columns `class` and `label`. Others than that are for `ImageFiles`, `TextFiles` and the like.

    Pickled, it takes its path along, not its samples. Storage options are pickled too, keys and all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        root: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        labels: str | Sequence[str] = "class",
    ) -> None:
        self._labels = labels if isinstance(labels, str) else tuple(labels)
        text = os.fspath(path)
        # Options may be those of either URL.
        self._storage_options = storage.flat(storage_options or {}) or None
        if storage.is_url(text):
            self.path, self._storage_options = storage.root(text, self._storage_options)
        else:
            self.path = os.path.abspath(os.path.expanduser(text))
        self._given_root: str | None = None
        if root is not None:
            is_url = storage.is_url(os.fspath(root))
            self._given_root, options = storage.root(root, self._storage_options if is_url else None)
            self._storage_options = options or self._storage_options
        self._open()
        if self._storage_options and not (storage.is_url(self.path) or storage.is_url(self.root)):
            raise ConfigError(f"storage_options: expected none for a directory, got {sorted(self._storage_options)}")
        self._fingerprint = self.fingerprint

    def _open(self) -> None:
        self._index = self._opened()

    def _opened(self, with_checksums: bool = False) -> _forebay.Index:
        try:
            columns = [self._labels] if isinstance(self._labels, str) else list(self._labels)
            chosen = None if self._labels == "class" else columns
            return _forebay.open_manifest(self.path, self._given_root, self._storage_options, with_checksums, chosen)
        finally:
            notices.servers()

    def _with_checksums(self) -> _forebay.Index:
        """Its samples with what their bytes have to be, for `verify="checksum"`."""
        index = self._opened(with_checksums=True)
        if not index.has_checksums:
            raise ConfigError(
                f'verify: expected a manifest with checksums (a column xxh3), got "{self.path}", which has none',
                path=self.path,
                hint="make them with `forebay scan ROOT -o NAME.parquet --deep`, which reads every file once",
            )
        if index.fingerprint != self.fingerprint:
            raise StateMismatchError(f'"{self.path}": expected the samples it had when it was opened, got others')
        return index

    def _at(self, root: str | os.PathLike[str] | None, options: Mapping[str, Any] | None) -> "Manifest":
        """The same file for another root, or with other options."""
        given = self._given_root if root is None else root
        return Manifest(self.path, given, self._storage_options if options is None else options, labels=self._labels)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_index"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()
        if self.fingerprint != self._fingerprint:
            raise StateMismatchError(
                f'"{self.path}": expected the samples it had when it was pickled, got others',
                path=self.path,
                hint="open the manifest anew, or leave it as it is between pickling and unpickling",
            )

    def __copy__(self) -> "Manifest":
        return self  # it never changes

    def __deepcopy__(self, memo: dict[int, Any]) -> "Manifest":
        return self

    @property
    def root(self) -> str:
        """Where the samples are: a directory or a URL."""
        return self._index.root

    @property
    def recorded_root(self) -> str | None:
        """Where they were when the manifest was made; `None` if it does not say."""
        return self._written[2]

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return self._index.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return dict(zip(self._index.classes, self._index.class_indices, strict=True))

    @property
    def columns(self) -> list[str]:
        """The names of its columns. `pandas.read_parquet(path)` shows what is in them."""
        return list(self._written[0])

    @property
    def version(self) -> str | None:
        """The version of forebay that wrote it; `None` if it was another program."""
        return self._written[1]

    @property
    def fingerprint(self) -> str:
        """A hash of every path and label, in order: what the state of a loader is bound to."""
        return self._index.fingerprint

    @property
    def _written(self) -> tuple[list[str], str | None, str | None]:
        return self._index.written or ([], None, None)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        classes = f" of {len(self._index.classes)} classes" if self._index.classes else ""
        return f"Manifest({self.path!r}: {len(self)} samples{classes} in {self.root!r})"
