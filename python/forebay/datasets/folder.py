"""Folders of classes, with the arguments, attributes and methods of torchvision's datasets.

The samples are scanned once, natively, and kept in a few bytes each; the lists that torchvision offers (`samples`,
`targets`, `imgs`) are made when they are first asked for.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from forebay import _forebay
from forebay._arrays import python_values, torchvision_data
from forebay._native import pipeline
from forebay._options import settings, storage
from forebay._record import notices
from forebay.datasets.native import PictureDataset, checked_callable, optional_callable
from forebay.errors import ConfigError, NotFoundError
from forebay.manifest import Manifest

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")


def default_loader(path: str | os.PathLike[str]) -> Any:
    """One picture as an RGB PIL image, made by Pillow as torchvision does it.

    A dataset that has this loader never calls it: its samples are read and decoded natively, to the same pixels.
    """
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def _is_native(loader: Callable[[str], Any]) -> bool:
    """Whether a loader does what the native decoder does: forebay's own, and torchvision's default."""
    is_torchvision = getattr(loader, "__module__", None) == "torchvision.datasets.folder"
    return loader is default_loader or (is_torchvision and loader.__name__ in ("default_loader", "pil_loader"))


# The default of an argument that torchvision requires and that a manifest may stand in for.
_MISSING: Any = object()

_Init = TypeVar("_Init", bound=Callable[..., None])


def _required_without_manifest(init: _Init) -> _Init:
    """Shows arguments with the default `_MISSING` as required, as torchvision's are, to `inspect` and `help`."""
    signature = inspect.signature(init)
    shown = [
        parameter.replace(default=inspect.Parameter.empty) if parameter.default is _MISSING else parameter
        for parameter in signature.parameters.values()
    ]
    init.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return init


def _check_given(owner: type, manifest: object, **required: Any) -> None:
    """Refuses a call without its required arguments, in Python's own words."""
    names = [repr(name) for name, value in required.items() if value is _MISSING]
    if names and manifest is None and not isinstance(required["root"], Manifest):
        arguments = "argument" if len(names) == 1 else "arguments"
        listed = " and ".join(names)
        raise TypeError(f"{owner.__name__}.__init__() missing {len(names)} required positional {arguments}: {listed}")


class DatasetFolder(PictureDataset):
    """Samples in one directory per class: `root/class_x/xxx.ext`, at any depth below the class.

    Give `extensions` or `is_valid_file`, not both. `loader` makes a sample of a path; anything but the default runs as
    Python code under the GIL. Override `find_classes` to choose or number the classes, and `make_dataset` to choose
    the samples. What the scan noticed and passed over (links that lead back up, empty classes) is in `notes`.

    Once torchvision is imported, these are torchvision's `DatasetFolder`s and `ImageFolder`s, too.

    `root` is a directory or a URL: `s3:// gs:// az:// http(s):// file://`, with `storage_options` for its keys, its
    endpoint and so on, under the names that fsspec knows (docs/remote.md).

    With `cache`, what is read is kept in that directory, up to `cache_bytes` ("50GiB"; without it half of what its disk
    has left), for all processes of the machine; `cache="memory"` keeps it in this process, and `cache="decoded"` keeps
    pictures as they are before the first random transform. `cache_revalidate=True` asks the storage before each read
    whether the file is still the one that was kept (docs/cache.md).

    `manifest` names the samples and their classes instead of a scan: a file that `forebay scan` wrote, a CSV or JSONL
    file, or a `Manifest` (docs/manifest.md). `root` and `loader` are then optional; `root` says where the samples are
    if the manifest does not, if they have moved, or if the manifest records another server or bucket than its own.
    `verify="checksum"` compares the bytes of each sample with the manifest's checksum before they are decoded; one that
    differs is damaged.

    Pickled, it takes its settings along, not its samples: unpickling scans the folder again, for the same classes (or
    opens its manifest again), and chooses the samples of a `subset` again. A folder that has more or fewer samples by
    then is refused (`StateMismatchError`). A copy scans nothing. Storage options are pickled too, keys and all.
    """

    # The transforms as torchvision keeps them: what was given, whatever is set later.
    transforms: Callable[[Any, Any], tuple[Any, Any]] | None

    @staticmethod
    def _take_bases() -> None:
        for own, above in ((DatasetFolder, PictureDataset), (ImageFolder, DatasetFolder)):
            base = torchvision_data.folder_class(own.__name__)
            if base is not None and base not in own.__bases__:
                own.__bases__ = (above, base)

    @_required_without_manifest
    def __init__(
        self,
        root: str | os.PathLike[str] | Manifest | None = _MISSING,
        loader: Callable[[str], Any] = _MISSING,
        extensions: str | Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        _check_given(DatasetFolder, manifest, root=root, loader=loader)
        root = None if root is _MISSING else root
        self._root_notes: list[tuple[str, str]] = []  # what `find_classes` noticed
        self._manifest = _manifest(root, manifest, storage_options)
        if self._manifest is not None:
            self.root, self._storage_options = self._manifest.root, self._manifest._storage_options
        elif root is None or isinstance(root, Manifest):
            raise ConfigError("root: expected a folder or a URL, or manifest=…, got neither")
        else:
            text, self._storage_options = storage.root(root, storage_options)
            # A `Path` stays one.
            self.root = root if os.fspath(root) == text else text
        self._cache = storage.cache(cache, cache_bytes, cache_revalidate)
        self.loader = checked_callable("loader", default_loader if loader is _MISSING else loader)
        self.verify = self._checked_verify(verify)
        self.extensions = extensions
        self.is_valid_file = is_valid_file
        self.allow_empty = allow_empty
        self.target_transform = optional_callable("target_transform", target_transform)
        self.transform = transform
        self.transforms = torchvision_data.standard_transform(transform, target_transform)
        if self._manifest is not None:
            self._refuse_choosing()
        elif not self._chooses_samples():
            _endings(extensions, is_valid_file)
        if self._manifest is None:
            self.classes, self.class_to_idx = self.find_classes(self.root)
        else:
            self.classes, self.class_to_idx = self._manifest.classes, self._manifest.class_to_idx
        self._set_up()

    def _checked_verify(self, verify: str | None) -> str | None:
        if verify is None:
            return None
        if verify != "checksum":
            raise ConfigError(f'verify: expected None or "checksum", got {verify!r}')
        if self._manifest is None:
            raise ConfigError(
                'verify: expected a manifest with checksums for "checksum", got a folder, which has none',
                hint="make one with `forebay scan ROOT -o NAME.parquet --deep`, and open it with manifest=…",
            )
        if not _is_native(self.loader):
            raise ConfigError(
                'verify: expected the default loader for "checksum", got one that opens paths by itself',
                hint="drop loader=… or verify=…",
            )
        return verify

    def _refuse_choosing(self) -> None:
        """A manifest has its samples and labels already: what would choose others is not silently left out."""
        given = {"is_valid_file": self.is_valid_file is not None}
        given["find_classes"] = self._chooses_classes()
        given["make_dataset"] = self._chooses_samples()
        for name, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{name}: expected none with a manifest, which names the samples and their classes, got one",
                    hint="choose when the manifest is made, or with subset(indices)",
                )

    def _find(self) -> _forebay.Index:
        if self._manifest is None:
            return self._named()
        return self._manifest._index if self.verify is None else self._manifest._with_checksums()

    def _named(self) -> _forebay.Index:
        if self._chooses_samples():
            return self._listed()
        # Classes of `find_classes` have folders, unless a subclass names them.
        folders = _class_folders(self.class_to_idx)
        missing = _missing(self._location, folders, self._storage_options) if self._chooses_classes() else []
        chosen = self.extensions, self.is_valid_file, bool(self.allow_empty)
        return _scan(self._location, folders, missing, *chosen, self._storage_options)

    def _listed(self) -> _forebay.Index:
        """The samples that the subclass's own `make_dataset` names."""
        made = self.make_dataset(
            self.root,
            class_to_idx=self.class_to_idx,
            extensions=self.extensions,
            is_valid_file=self.is_valid_file,
            allow_empty=self.allow_empty,
        )
        paths, labels = [], []
        for path, label in made:
            if not isinstance(path, str | os.PathLike):
                raise ConfigError(f"make_dataset: expected a path in each sample, got {path!r}")
            paths.append(os.fspath(path))
            labels.append(label)
        return _forebay.list_files(paths, self._storage_options).labelled([("label", labels)])

    def _chooses_classes(self) -> bool:
        """Whether a subclass has a `find_classes` of its own."""
        return type(self).find_classes is not DatasetFolder.find_classes

    def _chooses_samples(self) -> bool:
        """Whether a subclass has a `make_dataset` of its own."""
        return self.make_dataset is not DatasetFolder.make_dataset

    def _forget(self) -> None:
        self._samples: list[tuple[str, int]] | None = None
        self._targets: list[int] | None = None

    def _python_calls(self) -> list[tuple[str, str]]:
        calls = super()._python_calls()
        return calls if self._open is None else [*calls, ("loader", python_values.name_of(self.loader))]

    def _made_by(self) -> str | None:
        if not self._chain and self._open is not None:
            return python_values.name_of(self.loader)
        return super()._made_by()

    def _parts(self) -> dict[str, object]:
        return super()._parts() | {"loader": self.loader}

    def find_classes(self, directory: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
        """The classes below a directory and their labels; may be overridden."""
        try:
            classes, notes = _forebay.find_classes(os.fspath(directory), self._storage_options)
        except NotFoundError as error:
            if error.errno is not None:
                raise
            # The directory is there, and none is in it: torchvision's words.
            message = f"Couldn't find any class folder in {os.fspath(directory)}."
            raise NotFoundError(message, path=error.path, stage=error.stage, hint=error.hint) from None
        finally:
            notices.servers()
        if os.fspath(directory) == self._location:
            self._root_notes = notes
        return classes, {name: label for label, name in enumerate(classes)}

    @staticmethod
    def make_dataset(
        directory: str | os.PathLike[str],
        class_to_idx: dict[str, int],
        extensions: str | Sequence[str] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        """(path, label) of each sample below a directory; may be overridden, by a static method or another one.

        Samples that an override names are read in its order; their paths may be anywhere. Of a URL, this one knows no
        `storage_options`, as torchvision's signature has none.
        """
        if class_to_idx is None:
            raise ConfigError("The class_to_idx parameter cannot be None.")
        root = os.path.expanduser(os.fspath(directory))
        folders = _class_folders(class_to_idx)
        index = _scan(root, folders, _missing(root, folders), extensions, is_valid_file, bool(allow_empty))
        return list(zip(index.paths(), index.columns()["label"], strict=True))

    @property
    def _open(self) -> Callable[[str], Any] | None:
        """The user's own loader, with what becomes of its results; `None` if samples are decoded natively."""
        following = self._chain[0][0] if self._chain else None
        return None if _is_native(self.loader) else pipeline.python_calls([self.loader], following)

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each sample. A copy for reading: `subset` chooses samples."""
        if self._samples is None:
            self._samples = list(zip(self._index.paths(), self.targets, strict=True))
        return self._samples

    @samples.setter
    def samples(self, samples: object) -> None:
        raise _read_only("samples")

    @property
    def targets(self) -> list[int]:
        """The label of each sample. A copy for reading."""
        if self._targets is None:
            self._targets = self._index.columns()["label"]
        return self._targets

    @targets.setter
    def targets(self, targets: object) -> None:
        raise _read_only("targets")

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`."""
        return self.samples

    @imgs.setter
    def imgs(self, imgs: object) -> None:
        raise _read_only("imgs")

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(path, what) for everything the scan noticed that is no failure."""
        return [*self._root_notes, *self._index.notes]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "transforms": torchvision_data.portable(self.transforms)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "transforms": torchvision_data.unpickled(state["transforms"])})

    def subset(self, indices: Iterable[int]) -> Self:
        """A dataset of these samples, in this order, with everything else the same."""
        plain = torchvision_data.unwrapped(self)
        return super().subset(indices) if plain is None else torchvision_data.wrapped(plain.subset(indices))

    def _transforms_shown(self) -> list[str]:
        return [] if self.transforms is None else [repr(self.transforms)]


class ImageFolder(DatasetFolder):
    """Images in one directory per class: `root/cat/1.jpg`.

    >>> import forebay as fb
    >>> dataset = fb.ImageFolder("data/train")
    >>> dataset.classes
    ['cat', 'dog']
    >>> image, label = dataset[0]
    >>> image.mode, label
    ('RGB', 0)
    """

    @_required_without_manifest
    def __init__(
        self,
        root: str | os.PathLike[str] | Manifest | None = _MISSING,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_revalidate: bool = False,
        manifest: str | os.PathLike[str] | Manifest | None = None,
        verify: str | None = None,
    ) -> None:
        _check_given(ImageFolder, manifest, root=root)
        super().__init__(
            root,
            loader,
            IMG_EXTENSIONS if is_valid_file is None else None,
            transform=transform,
            target_transform=target_transform,
            is_valid_file=is_valid_file,
            allow_empty=allow_empty,
            storage_options=storage_options,
            cache=cache,
            cache_bytes=cache_bytes,
            cache_revalidate=cache_revalidate,
            manifest=manifest,
            verify=verify,
        )


def _manifest(
    root: str | os.PathLike[str] | Manifest | None,
    manifest: str | os.PathLike[str] | Manifest | None,
    options: Mapping[str, Any] | None,
) -> Manifest | None:
    """The manifest that was given, opened for the root that was given."""
    if isinstance(root, Manifest):
        if manifest is not None:
            raise ConfigError("manifest: expected one, got two: the first argument is a manifest, too")
        root, manifest = None, root
    if isinstance(manifest, Manifest):
        if manifest._labels != "class":
            raise ConfigError(
                "manifest: expected one whose samples have classes, got one with labels=…",
                hint="ImageFiles takes a manifest with other columns than class and label",
            )
        return manifest if root is None and options is None else manifest._at(root, options)
    return None if manifest is None else Manifest(manifest, root, options)


def _class_folders(class_to_idx: Mapping[str, int]) -> list[tuple[str, int]]:
    """The folders of classes in the order of a scan, with their labels."""
    if not class_to_idx:
        raise ConfigError("'class_to_index' must have at least one entry to collect any samples.")
    return sorted(
        (name, settings.whole(f"class_to_idx[{name!r}]", label, bits=32)) for name, label in class_to_idx.items()
    )


def _missing(root: str, folders: list[tuple[str, int]], options: dict[str, str] | None = None) -> list[str]:
    """The classes that have no folder. It lists what is above them natively: a mount may hang."""
    listed: dict[str, list[str]] = {}
    missing = []
    for name, _ in folders:
        above, _, last = f"{root}/{name}".rpartition("/")
        if last in ("", ".", ".."):
            continue  # the root itself, or what is above it
        if above not in listed:
            try:
                listed[above] = _forebay.find_classes(above, options)[0]
            except NotFoundError:
                listed[above] = []
        if last not in listed[above]:
            missing.append(name)
    return missing


def _scan(
    root: str,
    folders: list[tuple[str, int]],
    missing: list[str],
    extensions: Any,
    is_valid_file: Callable[[str], bool] | None,
    allow_empty: bool,
    options: dict[str, str] | None = None,
) -> _forebay.Index:
    """The samples in the folders of classes. Without `allow_empty` no class may be empty, or have no folder."""
    endings = _endings(extensions, is_valid_file)
    present = [item for item in folders if item[0] not in missing]
    try:
        index = _forebay.scan(root, endings, True, present, is_valid_file, options)
    finally:
        notices.servers()
    empty = sorted([*index.empty_classes, *missing])
    if allow_empty or not empty:
        return index
    # torchvision's words.
    message = f"Found no valid file for the classes {', '.join(empty)}. "
    if extensions is not None:
        message += f"Supported extensions are: {extensions if isinstance(extensions, str) else ', '.join(extensions)}"
    hint = "if those folders are no classes, move them out; pass allow_empty=True to accept empty classes"
    raise NotFoundError(message, path=root, stage="scan", hint=hint)


def _read_only(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: expected it to be read only, got an assignment, which no loader would see",
        hint="choose samples with subset(indices) or torch.utils.data.Subset, change labels with target_transform",
    )


def _endings(extensions: Any, is_valid_file: Any) -> list[str]:
    if (extensions is None) == (is_valid_file is None):
        raise ConfigError("Both extensions and is_valid_file cannot be None or not None at the same time")
    if is_valid_file is not None:
        checked_callable("is_valid_file", is_valid_file)
        return []
    return endings_of(extensions)


def endings_of(extensions: Any) -> list[str]:
    """What names of files end in, in lower case."""
    endings = [extensions] if isinstance(extensions, str) else list(extensions)
    if not endings or not all(isinstance(ending, str) and ending for ending in endings):
        raise ConfigError(f"extensions: expected endings like '.jpg', got {extensions!r}")
    return [ending.lower() for ending in endings]
