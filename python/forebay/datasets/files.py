"""Files as they are: pictures without class directories, texts, binary data, arrays, records (docs/files.md)."""

import codecs
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from forebay import _forebay
from forebay._options import settings
from forebay.datasets.file_dataset import FileDataset, with_arguments
from forebay.datasets.folder import IMG_EXTENSIONS
from forebay.datasets.native import ContentDataset, PictureDataset
from forebay.datasets.parts import PartsDataset
from forebay.errors import ConfigError

# Elements that files may hold, by torch's and NumPy's names.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_ITEM_BYTES = {name: int("".join(filter(str.isdigit, name)) or 8) // 8 for name in DTYPES}
# What the engine decodes itself; anything else that Python knows is decoded by Python.
_NATIVE_ENCODINGS = {"utf-8": "utf-8", "utf-8-sig": "utf-8", "ascii": "ascii", "iso8859-1": "latin-1"}


@with_arguments
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


@with_arguments
class _ContentFiles(ContentDataset, FileDataset):
    """Files whose content is a value that a Python callable may be given."""

    max_bytes: int | str | None = None

    def _check(self) -> None:
        self.max_bytes = self._max_bytes = settings.memory_budget(self.max_bytes, "max_bytes")
        self._restore()


@with_arguments
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

    encoding: str = "utf-8"
    errors: str = "strict"

    def _check(self) -> None:
        self.encoding = checked_encoding(self.encoding)
        settings.choice("errors", self.errors, "strict", "replace", "ignore")
        super()._check()

    def _made_content(self) -> _forebay.Recipe:
        native = native_encoding(self.encoding)
        if native is None:
            return _forebay.Recipe.codec(self.encoding, self.errors)
        return _forebay.Recipe.text(native, self.errors, False)


def checked_encoding(encoding: str) -> str:
    """The name of an encoding, as Python's codecs have it."""
    try:
        found = codecs.lookup(encoding)
    except (LookupError, TypeError):
        raise ConfigError(f"encoding: expected one that Python knows, got {encoding!r}") from None
    if not getattr(found, "_is_text_encoding", True):
        raise ConfigError(f"encoding: expected one of text, got {encoding!r}, which is none")
    return found.name


def native_encoding(encoding: str) -> str | None:
    """What the engine calls an encoding that it decodes itself; `None` for others."""
    return _NATIVE_ENCODINGS.get(encoding)


@with_arguments
class BinaryFiles(_ContentFiles):
    """Files of binary data: each sample is the bytes of its file, or an array of what they hold.

    With `dtype`, a file holds elements of that type and nothing else: `shape` is what all of them are, or what each row
    is where the first dimension is -1 and the file's length decides it; without `shape` each sample is a row of
    elements. Numbers of several bytes are `endian="little"` or `"big"`. A file of another length has failed.

    >>> import forebay as fb
    >>> fb.BinaryFiles(["data/train/cat/0000.jpg"])[0][:2]
    b'\\xff\\xd8'
    """

    dtype: Any = None
    shape: Sequence[int] | None = None
    endian: str = "little"

    def _check(self) -> None:
        given = self.shape
        self.dtype = _checked_dtype(self.dtype, given, self.endian)
        if given is not None:
            self.shape = tuple(settings.whole("shape", extent, least=-1) for extent in given)
            if -1 in self.shape[1:] or 0 in self.shape:
                raise ConfigError(f"shape: expected whole numbers above 0, of which the first may be -1, got {given!r}")
        super()._check()

    def _made_content(self) -> _forebay.Recipe:
        if self.dtype is None:
            return _forebay.Recipe.bytes()
        shape = (-1,) if self.shape is None else tuple(self.shape)
        is_of_any_length = bool(shape) and shape[0] == -1
        rest = list(shape[1:] if is_of_any_length else shape)
        return _forebay.Recipe.raw(self.dtype, rest, is_of_any_length, self.endian == "big")


@with_arguments
class Records(PartsDataset):
    """Files of records that all have one size: each record is a sample, and read by itself.

    A file begins with `header_bytes` that belong to no record. A record is `record_bytes` long, and given as `bytes`;
    with `dtype` it is an array of `shape`, or a row of as many elements as `record_bytes` holds. Numbers of several
    bytes are `endian="little"` or `"big"`. What is left of a file after its last whole record is in `notes`.

    Labels by directory or by a manifest's columns are those of a record's file; values are for each record.

    >>> import forebay as fb
    >>> dataset = fb.Records("data/records", dtype="uint8", shape=(4, 4), header_bytes=16)
    >>> len(dataset), dataset[0].shape
    (10, torch.Size([4, 4]))
    """

    dtype: Any = None
    shape: Sequence[int] | None = None
    endian: str = "little"
    header_bytes: int = 0
    record_bytes: int | None = None

    def _check(self) -> None:
        super()._check()
        self.dtype = _checked_dtype(self.dtype, self.shape, self.endian)
        self.header_bytes = settings.whole("header_bytes", self.header_bytes, least=0)
        given = self.record_bytes
        if given is not None:
            self.record_bytes = settings.whole("record_bytes", given, least=1)
        if self.dtype is None:
            if given is None:
                raise ConfigError("record_bytes: expected the size of a record, or dtype=… and shape=…, got neither")
        else:
            self._check_elements()
        self._restore()

    def _check_elements(self) -> None:
        """Settles size and shape of a record of elements, by the one that is given."""
        item_bytes, size = _ITEM_BYTES[self.dtype], self.record_bytes
        if self.shape is not None:
            self.shape = tuple(settings.whole("shape", extent, least=1) for extent in self.shape)
            self.record_bytes = settings.whole("shape", item_bytes * math.prod(self.shape))
            if size not in (None, self.record_bytes):
                taken = f"{self.record_bytes}, which is what shape={self.shape} of {self.dtype} takes"
                raise ConfigError(f"record_bytes: expected {taken}, got {size}")
        elif size is None or size % item_bytes:
            of = f"shape=…, or record_bytes=… that is a multiple of {item_bytes}, which is what one {self.dtype} takes"
            raise ConfigError(f"shape: expected {of}, got {size!r}")
        else:
            self.shape = (size // item_bytes,)

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        return files.records(self.header_bytes, self.record_bytes or 0)

    def _made_content(self) -> _forebay.Recipe:
        if self.dtype is None:
            return _forebay.Recipe.bytes()
        return _forebay.Recipe.raw(self.dtype, list(self.shape or ()), False, self.endian == "big")


def _checked_dtype(dtype: Any, shape: Any, endian: str) -> str | None:
    """The name of an element type. A shape needs one."""
    settings.choice("endian", endian, "little", "big")
    if dtype is not None:
        return settings.named("dtype", dtype, {name: name for name in DTYPES})
    if shape is not None:
        raise ConfigError(f"shape: expected dtype=… beside it, got {shape!r} alone")
    return None


@with_arguments
class NpyFiles(_ContentFiles):
    """NumPy's `.npy` files: each sample is the array in it.

    Arrays of one shape make a batch. Those of different shapes need `ragged=` in the loader: `"list"`, `"pad"` or
    `"nested"`. Pickled objects in a file are refused: they would run code.

    >>> import forebay as fb
    >>> fb.NpyFiles("data/arrays")[0].shape
    torch.Size([2, 3])
    """

    _EXTENSIONS = (".npy",)

    def _made_content(self) -> _forebay.Recipe:
        return _forebay.Recipe.npy()


@with_arguments
class _ArchiveFiles(_ContentFiles):
    """Files that hold arrays by name."""

    # What the engine calls the format.
    _ARCHIVE: ClassVar[str] = ""

    fields: str | Sequence[str] | None = None

    def _check(self) -> None:
        super()._check()
        if self.fields is not None:
            self.fields = settings.names("fields", self.fields)

    def _set_up(self) -> None:
        super()._set_up()
        if self.fields is None and len(self._index):
            # Those of the first file: the others have to have them, too.
            first = _forebay.load_one(self._index, 0, _forebay.Recipe.bytes(), 0, 0)
            self.fields = tuple(_forebay.Recipe.array_names(self._ARCHIVE, first))
        self._restore()

    def _restore(self) -> None:
        if self.fields is not None:
            super()._restore()

    def _made_content(self) -> _forebay.Recipe:
        return _forebay.Recipe.named_arrays(self._ARCHIVE, list(self.fields or ()))


@with_arguments
class NpzFiles(_ArchiveFiles):
    """NumPy's `.npz` files: each sample is a dict of the arrays in it, or of those that `fields` names.

    A single name gives that array by itself. Every file has to have the arrays of the first one, or those of `fields`.
    The checksum of each array is looked at. Pickled objects are refused: they would run code.

    >>> import forebay as fb
    >>> sample = fb.NpzFiles("data/archives")[0]
    >>> sample["x"].shape, sample["y"]
    (torch.Size([2, 3]), tensor(1))
    """

    _EXTENSIONS = (".npz",)
    _ARCHIVE = "npz"


@with_arguments
class SafetensorsFiles(_ArchiveFiles):
    """`.safetensors` files: each sample is a dict of the tensors in it, or of those that `fields` names.

    >>> import forebay as fb
    >>> fb.SafetensorsFiles("data/archives", fields="latent")[0].dtype
    torch.bfloat16
    """

    _EXTENSIONS = (".safetensors",)
    _ARCHIVE = "safetensors"
