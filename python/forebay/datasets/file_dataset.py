"""What datasets of single files have in common: where the files are, and how samples are labelled (docs/files.md).

A dataset of files is a class with `@with_arguments`, whose fields are the arguments of its constructor beside those of
`FileDataset`. Its `_check` refuses wrong ones.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

from forebay import _forebay
from forebay._options import storage
from forebay._record import notices
from forebay.datasets.folder import endings_of
from forebay.datasets.native import NativeDataset, optional_callable
from forebay.errors import ConfigError
from forebay.manifest import Manifest

_Root = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Manifest

_Kind = TypeVar("_Kind")


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def with_arguments(kind: type[_Kind]) -> type[_Kind]:
    """Makes a constructor whose arguments are the fields of a class and of those above it."""
    made = dataclass(eq=False, repr=False, match_args=False, kw_only=True)(kind)
    annotations = made.__init__.__annotations__
    for name, shown in list(annotations.items()):
        if isinstance(shown, InitVar):
            # An argument and no attribute: neither is its default one.
            annotations[name] = shown.type
            if name in kind.__annotations__ and name in vars(made):
                delattr(made, name)
    return made


@with_arguments
class FileDataset(NativeDataset):
    """What the datasets of single files have in common.

    `root` says where the files are: a folder or a URL, in which every file of the right ending counts, at any depth; a
    list of paths, or of URLs of one store; or a `Manifest`. `manifest` names the files in place of a folder: a Parquet,
    CSV or JSONL file with a column `path`, below `root`.

    `labels` says what each sample is labelled with:

    - `None`: nothing. A sample is its content alone.
    - `"directory"`: the directory below the root that it is in (of a list, the directory that a file is in), numbered
      as `classes` and `class_to_idx` say.
    - values in the order of the samples: numbers, text or booleans. A dict of several such columns makes each
      target a dict.
    - with a manifest: the name of a column of it, or a list of names, which makes each target a dict. `"class"` means
      its columns `class` and `label`, as for `ImageFolder`.

    `transform` is called with each sample and `target_transform` with each target. The rest (`storage_options`,
    `cache`, `verify`, `subset`) is as with `ImageFolder`.
    """

    # Of the files that count, unless `extensions` says others; none: all.
    _EXTENSIONS: ClassVar[tuple[str, ...]] = ()

    root: InitVar[_Root | None] = field(default=None, kw_only=False)
    transform: InitVar[Callable[[Any], Any] | None] = field(default=None, kw_only=False)
    target_transform: Callable[[Any], Any] | None = field(default=None, kw_only=False)
    labels: InitVar[Any] = None
    extensions: str | Sequence[str] | None = None
    allow_empty: bool = False
    storage_options: InitVar[Mapping[str, Any] | None] = None
    cache: InitVar[str | os.PathLike[str] | None] = None
    cache_bytes: InitVar[int | str | None] = None
    cache_revalidate: InitVar[bool] = False
    manifest: InitVar[str | os.PathLike[str] | Manifest | None] = None
    verify: str | None = None

    def __post_init__(
        self,
        root: _Root | None,
        transform: Callable[[Any], Any] | None,
        labels: Any,
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_bytes: int | str | None,
        cache_revalidate: bool,
        manifest: str | os.PathLike[str] | Manifest | None,
    ) -> None:
        self._check()
        self.transform = transform
        self.extensions = self._EXTENSIONS if self.extensions is None else self.extensions
        self.allow_empty = bool(self.allow_empty)
        optional_callable("target_transform", self.target_transform)
        self._cache = storage.cache(cache, cache_bytes, cache_revalidate)
        self.classes: list[str] = []
        self._paths: list[str] | None = None
        self._manifest: Manifest | None = None
        self._labels = labels
        if isinstance(root, Manifest) or manifest is not None:
            self._open_manifest(root, manifest, storage_options, labels)
        elif root is None:
            raise ConfigError("root: expected a folder, a URL or a list of paths, or manifest=…, got neither")
        elif isinstance(root, str | os.PathLike):
            self.root, self._storage_options = storage.root(root, storage_options)
        else:
            self._list(root, storage_options)
        if self.verify is not None and (self.verify != "checksum" or self._manifest is None):
            message = 'verify: expected "checksum", and a manifest with checksums beside it'
            raise ConfigError(f"{message}, got {self.verify!r}")
        self._set_up()
        if self._manifest is None and isinstance(labels, str):
            self.classes = self._directories()
        self._targets_are = self._kind_of_targets()

    def _check(self) -> None:
        """Refuses wrong arguments of a kind of files; first of all."""

    def _open_manifest(self, root: Any, manifest: Any, options: Mapping[str, Any] | None, labels: Any) -> None:
        if isinstance(root, Manifest):
            if manifest is not None:
                raise ConfigError("manifest: expected one, got two: the first argument is a manifest, too")
            root, manifest = None, root
        if root is not None and not isinstance(root, str | os.PathLike):
            raise ConfigError("root: expected a folder or a URL beside a manifest, got a list of paths")
        columns = _columns(labels)
        if isinstance(manifest, Manifest):
            given = manifest._given_root if root is None else root
            kept = manifest._storage_options if options is None else options
            columns = manifest._labels if labels is None else columns
            manifest = Manifest(manifest.path, given, kept, labels=columns)
        else:
            manifest = Manifest(manifest, root, options, labels=columns)
        self._manifest = manifest
        self.root, self._storage_options = manifest.root, manifest._storage_options
        self.classes = manifest.classes

    def _list(self, paths: Sequence[str | os.PathLike[str]], options: Mapping[str, Any] | None) -> None:
        if isinstance(paths, bytes) or not isinstance(paths, Sequence) or not paths:
            raise ConfigError(f"root: expected a folder, a URL, or a list of at least one path, got {paths!r}")
        texts = [os.fspath(path) for path in paths]
        if storage.is_url(texts[0]):
            _, self._storage_options = storage.root(texts[0], options)
        else:
            texts = [storage.root(text, None)[0] for text in texts]
            self._storage_options = None
        self._paths = texts

    def _find(self) -> _forebay.Index:
        try:
            return self._labelled(self._found())
        finally:
            notices.servers()

    def _found(self) -> _forebay.Index:
        if self._manifest is not None:
            return self._manifest._index if self.verify is None else self._manifest._with_checksums()
        if self._paths is not None:
            index = _forebay.list_files(self._paths, self._storage_options)
            self.root = index.root
            return index
        endings = endings_of(self.extensions) if self.extensions else [""]
        options = self._storage_options
        if isinstance(self._labels, str) and self._labels == "directory":
            return _forebay.scan(self._location, endings, self.allow_empty, None, None, options)
        return _forebay.scan_files(self._location, endings, self.allow_empty, options)

    def _labelled(self, index: _forebay.Index) -> _forebay.Index:
        """The samples with the labels that were given as values."""
        if self._manifest is not None or self._labels is None:
            return index
        if isinstance(self._labels, str):
            if self._labels != "directory":
                raise ConfigError(
                    f'labels: expected "directory" or values, got {self._labels!r}',
                    hint="names of columns go with manifest=…",
                )
            if self._paths is None:
                return index
            parents = [os.path.basename(os.path.dirname(path)) for path in self._paths]
            numbers = {name: number for number, name in enumerate(sorted(set(parents)))}
            return index.labelled([("label", [numbers[name] for name in parents])])
        if isinstance(self._labels, Mapping):
            return index.labelled([(str(name), _listed(values)) for name, values in self._labels.items()])
        return index.labelled([("label", _listed(self._labels))])

    def _directories(self) -> list[str]:
        if self._paths is None:
            return self._index.classes
        return sorted({os.path.basename(os.path.dirname(path)) for path in self._paths})

    def _kind_of_targets(self) -> Any:
        if self._manifest is not None:
            columns = self._manifest._labels
            return "value" if isinstance(columns, str) else "dict" if columns else "none"
        if isinstance(self._labels, Mapping):
            return "dict"
        return "none" if self._labels is None else "value"

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        if self._manifest is not None:
            return self._manifest.class_to_idx
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def paths(self) -> list[str]:
        """The path of each sample. A copy for reading: `subset` chooses samples."""
        return self._index.paths()

    @property
    def targets(self) -> Any:
        """The labels of all samples: a list, a dict of lists where there are several, `None` where there are none."""
        columns = self._index.columns()
        if self._targets_are == "none":
            return None
        return columns if self._targets_are == "dict" else next(iter(columns.values()))

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(path, what) for everything the scan noticed that is no failure."""
        return self._index.notes


def _columns(labels: Any) -> Any:
    """Which columns of a manifest are the labels: a name, several, or none."""
    if labels is None:
        return ()
    if isinstance(labels, str):
        return labels
    names = list(labels) if isinstance(labels, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"labels: expected names of columns of the manifest, got {labels!r}",
            hint="values go with a folder or a list of paths; in a manifest they are a column",
        )
    return tuple(names)


def _listed(values: Any) -> list[Any]:
    """Values as a list of Python's own: of a list, an array, a tensor, a pandas column."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(listed, list):
        raise ConfigError(f"labels: expected one value for each sample, got {values!r}")
    return listed
