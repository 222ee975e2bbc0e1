"""Files that are samples each: pictures without class directories, texts, binary data, arrays (docs/files.md)."""

import codecs
from collections.abc import Sequence
from typing import Any

from forebay import _forebay
from forebay._options import settings
from forebay.datasets.file_dataset import FileDataset, with_arguments
from forebay.datasets.folder import IMG_EXTENSIONS
from forebay.datasets.native import ContentDataset, PictureDataset
from forebay.errors import ConfigError

# Elements that files may hold, by torch's and NumPy's names.
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
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
        try:
            found = codecs.lookup(self.encoding)
        except (LookupError, TypeError):
            raise ConfigError(f"encoding: expected one that Python knows, got {self.encoding!r}") from None
        if not getattr(found, "_is_text_encoding", True):
            raise ConfigError(f"encoding: expected one of text, got {self.encoding!r}, which is none")
        self.encoding = found.name
        settings.choice("errors", self.errors, "strict", "replace", "ignore")
        super()._check()

    def _made_content(self) -> _forebay.Recipe:
        native = _NATIVE_ENCODINGS.get(self.encoding)
        if native is None:
            return _forebay.Recipe.codec(self.encoding, self.errors)
        return _forebay.Recipe.text(native, self.errors)


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
        if self.dtype is not None:
            self.dtype = settings.named("dtype", self.dtype, {name: name for name in _DTYPES})
        elif given is not None:
            raise ConfigError(f"shape: expected dtype=… beside it, got {given!r} alone")
        if given is not None:
            self.shape = tuple(settings.whole("shape", extent, least=-1) for extent in given)
            if -1 in self.shape[1:] or 0 in self.shape:
                raise ConfigError(f"shape: expected whole numbers above 0, of which the first may be -1, got {given!r}")
        settings.choice("endian", self.endian, "little", "big")
        super()._check()

    def _made_content(self) -> _forebay.Recipe:
        if self.dtype is None:
            return _forebay.Recipe.bytes()
        shape = (-1,) if self.shape is None else tuple(self.shape)
        is_of_any_length = bool(shape) and shape[0] == -1
        rest = list(shape[1:] if is_of_any_length else shape)
        return _forebay.Recipe.raw(self.dtype, rest, is_of_any_length, self.endian == "big")


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
