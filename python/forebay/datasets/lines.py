"""Lines of large files as samples: text, JSON, CSV (docs/lines.md)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from forebay import _forebay
from forebay._options import settings
from forebay.datasets.file_dataset import with_arguments
from forebay.datasets.files import DTYPES, checked_encoding, native_encoding
from forebay.datasets.parts import PartsDataset
from forebay.errors import ConfigError


@with_arguments
class _LinesDataset(PartsDataset):
    """Files of lines, of which an index is made: where each record begins and ends."""

    # Whether lines are JSON, and of CSV the delimiter and whether there is a header.
    _IS_JSON: ClassVar[bool] = False

    index: str | os.PathLike[str] | None = None
    max_bytes: int | str | None = None

    def __post_init__(self, root: Any, *arguments: Any) -> None:
        # A single file is a list of one, by its name: whether it is a folder would be a question to the storage.
        if isinstance(root, str | os.PathLike) and os.fspath(root).lower().endswith(self._endings()):
            root = [root]
        super().__post_init__(root, *arguments)

    def _endings(self) -> tuple[str, ...]:
        given = self._EXTENSIONS if self.extensions is None else self.extensions
        return tuple(ending.lower() for ending in ([given] if isinstance(given, str) else given))

    def _check(self) -> None:
        super()._check()
        self.max_bytes = self._max_bytes = settings.memory_budget(self.max_bytes, "max_bytes")
        if self.index is not None:
            self.index = os.path.abspath(os.fspath(self.index))

    def _csv(self) -> tuple[int, bool] | None:
        return None

    def _parts_of(self, files: _forebay.Index) -> _forebay.Index:
        lines, self._header = files.lines(self._IS_JSON, self._csv(), self._kept())
        return lines

    def _kept(self) -> str | None:
        """Where the index is kept: where `index` says, or beside a manifest on this machine."""
        if self.index is not None:
            return os.fspath(self.index)
        if self._manifest is None or "://" in os.fspath(self._manifest.path):
            return None
        return os.fspath(self._manifest.path) + ".index"

    def _set_up(self) -> None:
        super()._set_up()
        self._restore()


@with_arguments
class TextLines(_LinesDataset):
    """Lines of text files: each line is a sample, a `str` without its line end.

    `encoding` is UTF-8, ASCII or Latin-1, and `errors` as with `open`: a line that is no such text is a sample that
    failed, and so is one that is longer than `max_bytes`. Empty lines are samples. `index` names a file that keeps
    where the lines are; with a manifest it is beside that. Without it every file is read once for each dataset.

    >>> import forebay as fb
    >>> lines = fb.TextLines("data/lines")
    >>> len(lines), lines[1]
    (3, 'zwei')
    """

    _EXTENSIONS = (".txt",)

    encoding: str = "utf-8"
    errors: str = "strict"

    def _check(self) -> None:
        super()._check()
        self.encoding = checked_encoding(self.encoding)
        if native_encoding(self.encoding) is None:
            expected = "one of UTF-8, ASCII and Latin-1 for lines"
            raise ConfigError(
                f"encoding: expected {expected}, got {self.encoding!r}",
                hint="fb.TextFiles takes every encoding, for whole files",
            )
        settings.choice("errors", self.errors, "strict", "replace", "ignore")

    def _made_content(self) -> _forebay.Recipe:
        return _forebay.Recipe.text(native_encoding(self.encoding) or "", self.errors, True)


@with_arguments
class JsonLines(_LinesDataset):
    """Lines of JSON: each line that is not blank is a sample.

    Without `fields` a sample is what the line holds: a dict, a list, a number. With `fields` it has these fields of the
    object: numbers and lists of numbers become tensors, strings stay texts. With several, a sample is a dict of them,
    and so is a batch. A line that is not JSON is a sample that failed, with its line and column.

    >>> import forebay as fb
    >>> fb.JsonLines("data/lines/pairs.jsonl")[0]
    {'text': 'eins', 'label': 1}
    """

    _EXTENSIONS = (".jsonl", ".ndjson")
    _IS_JSON = True

    fields: Sequence[str] | None = None

    def _check(self) -> None:
        super()._check()
        if self.fields is not None:
            self.fields = settings.names("fields", self.fields)

    def _made_content(self) -> _forebay.Recipe:
        return _forebay.Recipe.json(list(self.fields or ()), True)


@with_arguments
class Csv(_LinesDataset):
    """Records of CSV files: each record is a sample, a dict of its columns.

    The first record names the columns, unless `header=False`: then they are numbered, and `columns` may name them.
    `columns` says which ones a sample has. All are texts, but for those that `dtypes` gives a type:
    `dtypes={"age": "float32"}`. A record with a quote that is not closed, with more or fewer fields than the header, or
    with something that is no number where one is expected is a sample that failed, with its line.

    >>> import forebay as fb
    >>> people = fb.Csv("data/lines/people.csv", dtypes={"age": "int64"})
    >>> people[1]
    {'name': 'Rex, the dog', 'age': tensor(12)}
    """

    _EXTENSIONS = (".csv",)

    columns: Sequence[str] | None = None
    dtypes: Mapping[str, Any] | None = None
    delimiter: str = ","
    header: bool = True

    def _check(self) -> None:
        super()._check()
        mark = self.delimiter
        if not isinstance(mark, str) or len(mark.encode()) != 1 or mark in '"\r\n':
            raise ConfigError(f"delimiter: expected one ASCII character, got {self.delimiter!r}")
        if self.columns is not None:
            self.columns = settings.names("columns", self.columns)
        given = {} if self.dtypes is None else dict(self.dtypes)
        named = {name: name for name in DTYPES}
        self.dtypes = {str(name): settings.named("dtypes", dtype, named) for name, dtype in given.items()}

    def _csv(self) -> tuple[int, bool]:
        return ord(self.delimiter), bool(self.header)

    def _restore(self) -> None:
        if hasattr(self, "_header"):
            super()._restore()

    def _made_content(self) -> _forebay.Recipe:
        places = {name: place for place, name in enumerate(self._header)}
        if len(places) != len(self._header):
            raise ConfigError(f"columns: expected names that differ in the header, got {self._header}")
        wanted = list(places) if self.columns is None else list(self.columns)
        if not self.header and self.columns is not None:
            if len(wanted) != len(places):
                raise ConfigError(f"columns: expected {len(places)} names for a table without header, got {wanted}")
            places = {name: place for place, name in enumerate(wanted)}
        dtypes = self.dtypes or {}
        for argument, names in (("columns", wanted), ("dtypes", dtypes)):
            for name in names:
                if name not in places:
                    raise ConfigError(f"{argument}: expected columns of {list(places)}, got {name!r}")
        columns = [(name, places[name], dtypes.get(name)) for name in wanted]
        return _forebay.Recipe.csv(ord(self.delimiter), len(places), columns)
