"""Files that are samples each: pictures without class directories, texts, binary data, arrays (docs/files.md)."""

import codecs
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay import _forebay
from forebay._arrays import python_values
from forebay._options import settings, storage
from forebay._options.settings import Form
from forebay._record import notices
from forebay.datasets.folder import IMG_EXTENSIONS, endings_of
from forebay.datasets.native import NativeDataset, PictureDataset, optional_callable
from forebay.errors import ConfigError
from forebay.manifest import Manifest

# Elements that files may hold, by torch's and NumPy's names.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
# What the engine decodes itself; anything else that Python knows is decoded by Python.
_NATIVE_ENCODINGS = {"utf-8": "utf-8", "utf-8-sig": "utf-8", "ascii": "ascii", "iso8859-1": "latin-1"}

_Root = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Manifest


class FileDataset(NativeDataset):
    """What the datasets of single files have in common.

    `root` says where the files are: a folder or a URL, in which every file of the right ending counts, at any depth; a
    list of paths, or of URLs of one store; or a `Manifest`. `manifest` names the files in place of a folder: a Parquet,
    CSV or JSONL file with a column `path`, below `root`.

    `labels` says what each sample is labelled with:

    - `None`: nothing. A sample is its content alone.
    - `"directory"`: the directory below the root that it is in (of a list, the directory that a file is in), numbered
      as `classes` and `class_to_idx` say.
    - values in the order of the samples: numbers, texts or truth values. A dict of several such columns makes each
      target a dict.
    - with a manifest: the name of a column of it, or a list of names, which makes each target a dict. `"class"` means
      its columns `class` and `label`, as for `ImageFolder`.

    `transform` is called with each sample and `target_transform` with each target. The rest (`storage_options`,
    `cache`, `verify`, `subset`) is as with `ImageFolder`.
    """

    # Of the files that count, unless `extensions` says others; none: all.
    _EXTENSIONS: tuple[str, ...] = ()

    def __init__(
        self,
        root: _Root | None,
        labels: Any,
        extensions: str | Sequence[str] | None,
        target_transform: Callable[[Any], Any] | None,
        allow_empty: bool,
        storage_options: Mapping[str, Any] | None,
        cache: str | os.PathLike[str] | None,
        cache_bytes: int | str | None,
        cache_revalidate: bool,
        manifest: str | os.PathLike[str] | Manifest | None,
        verify: str | None,
    ) -> None:
        self.extensions = self._EXTENSIONS if extensions is None else extensions
        self.allow_empty = bool(allow_empty)
        self.target_transform = optional_callable("target_transform", target_transform)
        self._cache = storage.cache(cache, cache_bytes, cache_revalidate)
        self.classes: list[str] = []
        self._paths: list[str] | None = None
        self._manifest: Manifest | None = None
        self._labels = labels
        self.verify = verify
        if isinstance(root, Manifest) or manifest is not None:
            self._open_manifest(root, manifest, storage_options, labels)
        elif root is None:
            raise ConfigError("root: expected a folder, a URL or a list of paths, or manifest=…, got neither")
        elif isinstance(root, str | os.PathLike):
            self.root, self._storage_options = storage.root(root, storage_options)
        else:
            self._list(root, storage_options)
        if verify is not None and (verify != "checksum" or self._manifest is None):
            raise ConfigError(f'verify: expected "checksum", and a manifest with checksums beside it, got {verify!r}')
        self._set_up()
        if self._manifest is None and isinstance(labels, str):
            self.classes = self._directories()
        self._targets_are = self._kind_of_targets()

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


class ImageFiles(PictureDataset, FileDataset):
    """Pictures that are not sorted into class directories: all of a folder, a list of paths, or those of a manifest.

    >>> import forebay as fb
    >>> dataset = fb.ImageFiles("data/train", labels="directory")
    >>> image, label = dataset[0]
    >>> image.mode, label
    ('RGB', 0)
    >>> paths = ["data/train/cat/0000.jpg", "data/train/dog/0001.jpg"]
    >>> fb.ImageFiles(paths, labels={"age": [3.5, 12.0], "name": ["Minka", "Rex"]})[1][1]
    {'age': 12.0, 'name': 'Rex'}
    """

    _EXTENSIONS = IMG_EXTENSIONS

    def __init__(
        self,
        root: _Root | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        labels: Any = None,
        extensions: str | Sequence[str] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        self.transform = transform
        kept = (storage_options, cache, cache_bytes, cache_revalidate, manifest, verify)
        super().__init__(root, labels, extensions, target_transform, allow_empty, *kept)


class _ContentFiles(FileDataset):
    """Files whose content is a value that a Python callable may be given."""

    def __init__(
        self,
        content: _forebay.Recipe,
        transform: Callable[[Any], Any] | None,
        max_bytes: int | str | None,
        *given: Any,
    ) -> None:
        self.max_bytes = settings.memory_budget(max_bytes, "max_bytes")
        self._transform: Callable[[Any], Any] | None = optional_callable("transform", transform)
        self._content = content
        super().__init__(*given)

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """What each sample is given to. Setting it is for loaders made later: earlier ones refuse to go on."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        self._transform = optional_callable("transform", transform)

    def _made_content(self) -> _forebay.Recipe:
        """The recipe of the content alone."""
        raise NotImplementedError

    def _restore(self) -> None:
        self._content = self._made_content()

    def _recipe(self, form: Form) -> _forebay.Recipe:
        recipe = self._content if self.max_bytes is None else self._content.limited(self.max_bytes)
        if self._transform is None:
            return recipe
        calls = python_values.Calls([self._transform], keeps_all=True)
        return recipe.mapped(python_values.name_of(self._transform), calls)

    def _python_calls(self) -> list[tuple[str, str]]:
        return [] if self._transform is None else [("transform", python_values.name_of(self._transform))]

    def _made_by(self) -> str | None:
        return None if self._transform is None else python_values.name_of(self._transform)

    def _parts(self) -> dict[str, object]:
        return {"transform": self._transform, **super()._parts()}


class TextFiles(_ContentFiles):
    """Files of text. A batch of them is a list of `str`.

    `encoding` and `errors` (`"strict"`, `"replace"`, `"ignore"`) are as with `open`; a file that is no such text is a
    sample that failed, with the place of the byte. A byte order mark at the beginning of UTF-8 is left out. UTF-8,
    ASCII and Latin-1 are decoded natively, everything else by Python under the GIL. A file larger than `max_bytes` has
    failed before it is read. `transform` gets the text: a tokenizer, say.

    >>> import forebay as fb
    >>> dataset = fb.TextFiles("data/texts", labels="directory")
    >>> dataset.classes, dataset[0]
    (['neg', 'pos'], ('too long', 0))
    """

    _EXTENSIONS = (".txt",)

    def __init__(
        self,
        root: _Root | None = None,
        transform: Callable[[str], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        labels: Any = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int | str | None = None,
        extensions: str | Sequence[str] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        try:
            self.encoding = codecs.lookup(encoding).name
        except (LookupError, TypeError):
            raise ConfigError(f"encoding: expected one that Python knows, got {encoding!r}") from None
        self.errors = settings.choice("errors", errors, "strict", "replace", "ignore")
        kept = (storage_options, cache, cache_bytes, cache_revalidate, manifest, verify)
        given = (root, labels, extensions, target_transform, allow_empty, *kept)
        super().__init__(self._made_content(), transform, max_bytes, *given)

    def _made_content(self) -> _forebay.Recipe:
        native = _NATIVE_ENCODINGS.get(self.encoding)
        if native is not None:
            return _forebay.Recipe.text(native, self.errors)
        decoder = python_values.Calls([_Decoder(self.encoding, self.errors)], keeps_all=True)
        return _forebay.Recipe.bytes().mapped(f"decoding as {self.encoding}", decoder)


class _Decoder:
    """Bytes to text by one of Python's codecs."""

    def __init__(self, encoding: str, errors: str) -> None:
        self._encoding, self._errors = encoding, errors

    def __call__(self, value: bytes) -> str:
        return value.decode(self._encoding, self._errors)


class BinaryFiles(_ContentFiles):
    """Files of binary data: each sample is the bytes of its file, or an array of what they hold.

    With `dtype`, a file holds elements of that type and nothing else: `shape` is what all of them are, or what each row
    is where the first dimension is -1 and the file's length decides it; without `shape` each sample is a row of
    elements. Numbers of several bytes are `endian="little"` or `"big"`. A file of another length has failed.

    >>> import forebay as fb
    >>> fb.BinaryFiles(["data/train/cat/0000.jpg"])[0][:2]
    b'\\xff\\xd8'
    """

    def __init__(
        self,
        root: _Root | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        labels: Any = None,
        dtype: Any = None,
        shape: Sequence[int] | None = None,
        endian: str = "little",
        max_bytes: int | str | None = None,
        extensions: str | Sequence[str] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        self.dtype = None if dtype is None else settings.named("dtype", dtype, {name: name for name in _DTYPES})
        if shape is not None and self.dtype is None:
            raise ConfigError(f"shape: expected dtype=… beside it, got {shape!r} alone")
        sizes = None if shape is None else [settings.whole("shape", extent, least=-1) for extent in shape]
        if sizes is not None and (-1 in sizes[1:] or 0 in sizes):
            raise ConfigError(f"shape: expected whole numbers above 0, of which the first may be -1, got {shape!r}")
        self.shape = None if sizes is None else tuple(sizes)
        self.endian = settings.choice("endian", endian, "little", "big")
        kept = (storage_options, cache, cache_bytes, cache_revalidate, manifest, verify)
        given = (root, labels, extensions, target_transform, allow_empty, *kept)
        super().__init__(self._made_content(), transform, max_bytes, *given)

    def _made_content(self) -> _forebay.Recipe:
        if self.dtype is None:
            return _forebay.Recipe.bytes()
        shape = (-1,) if self.shape is None else self.shape
        is_of_any_length = bool(shape) and shape[0] == -1
        rest = list(shape[1:] if is_of_any_length else shape)
        return _forebay.Recipe.raw(self.dtype, rest, is_of_any_length, self.endian == "big")


class NpyFiles(_ContentFiles):
    """NumPy's `.npy` files: each sample is the array in it.

    Arrays of one shape make a batch. Those of different shapes need `ragged=` in the loader: `"list"`, `"pad"` or
    `"nested"`. Pickled objects in a file are refused: they would run code.

    >>> import forebay as fb
    >>> fb.NpyFiles("data/arrays")[0].shape
    torch.Size([2, 3])
    """

    _EXTENSIONS = (".npy",)

    def __init__(
        self,
        root: _Root | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        labels: Any = None,
        max_bytes: int | str | None = None,
        extensions: str | Sequence[str] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        kept = (storage_options, cache, cache_bytes, cache_revalidate, manifest, verify)
        given = (root, labels, extensions, target_transform, allow_empty, *kept)
        super().__init__(self._made_content(), transform, max_bytes, *given)

    def _made_content(self) -> _forebay.Recipe:
        return _forebay.Recipe.npy()


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
