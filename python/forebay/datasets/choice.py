"""Which samples of a dataset: by what its columns say, or by a split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay._options import settings
from forebay.errors import ConfigError
from forebay.manifest import Manifest

if TYPE_CHECKING:
    from forebay.datasets.native import NativeDataset

# Several values that a column may have.
_SEVERAL = (list, tuple, set, frozenset)


class Columns:
    """What is known of a dataset's samples without reading them, by column. Each is made when it is first asked for."""

    def __init__(self, dataset: "NativeDataset") -> None:
        self._dataset = dataset
        self._known: dict[str, Sequence[Any]] = dict(dataset._index.columns())
        self._manifest: Manifest | None = getattr(dataset, "_manifest", None)
        classes: Mapping[str, int] = getattr(dataset, "class_to_idx", None) or {}
        self._class_of = {label: name for name, label in classes.items()}

    @property
    def names(self) -> list[str]:
        """Those that there are."""
        derived = ["path", *(["class"] if self._class_of and "label" in self._known else [])]
        return list(dict.fromkeys([*derived, *self._known, *(self._manifest.columns if self._manifest else ())]))

    def __getitem__(self, name: str) -> Sequence[Any]:
        if name not in self._known:
            self._known[name] = self._made(name)
        return self._known[name]

    def _made(self, name: str) -> Sequence[Any]:
        index = self._dataset._index
        if name not in self.names:
            raise ConfigError(f"filter: expected a column of {self.names}, got {name!r}")
        if name == "path":
            return index.paths()
        if name == "class" and self._class_of and "label" in self._known:
            return [self._class_of.get(label) for label in self._known["label"]]
        manifest = self._manifest
        assert manifest is not None, "every other name is one of its columns"
        rows = Manifest(manifest.path, manifest._given_root, manifest._storage_options, labels=(name,))._index
        # By file: a dataset may have other samples, or parts of the files.
        value_of = dict(zip(rows.paths(), rows.columns()[name], strict=True))
        return [value_of[path] for path in index.files()]


class Row(Mapping[str, Any]):
    """The columns of one sample."""

    def __init__(self, columns: Columns, place: int) -> None:
        self._columns, self._place = columns, place

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._columns.names)


def matching(
    dataset: "NativeDataset", accepts: Callable[[Mapping[str, Any]], Any] | None, equal: Mapping[str, Any]
) -> list[int]:
    """The samples whose columns have these values, and that a callable accepts."""
    if accepts is None and not equal:
        raise ConfigError("filter: expected a callable or values of columns, got neither")
    if accepts is not None and not callable(accepts):
        raise ConfigError(f"filter: expected a callable that takes the columns of a sample, got {accepts!r}")
    columns, chosen = Columns(dataset), range(len(dataset))
    found: Sequence[int] = chosen
    for name, wanted in equal.items():
        values = columns[name]
        found = [
            place
            for place in found
            if (values[place] in wanted if isinstance(wanted, _SEVERAL) else values[place] == wanted)
        ]
    if accepts is not None:
        found = [place for place in found if accepts(Row(columns, place))]
    if not found:
        raise ConfigError(f"filter: expected samples that match, got none of {len(dataset)}")
    return list(found)


def parts(dataset: "NativeDataset", fractions: Any, seed: Any, by: Any, stratify: Any) -> list[list[int]]:
    """The samples of each part of a split."""
    given = [fractions] if isinstance(fractions, int | float) and not isinstance(fractions, bool) else fractions
    try:
        listed = [float(fraction) for fraction in given]
    except (TypeError, ValueError):
        raise ConfigError(f"fractions: expected a number or several, got {fractions!r}") from None
    if len(listed) == 1 and 0 < listed[0] < 1:
        listed.append(1 - listed[0])
    elif len(listed) == 1:
        raise ConfigError(f"fractions: expected a number between 0 and 1, or several, got {fractions!r}")
    strata: tuple[str | None, list[Any] | None] | None = None
    if isinstance(stratify, str):
        strata = (None, list(Columns(dataset)[stratify]))
    elif stratify is True:
        strata = (None, None)
    elif stratify is not False and stratify is not None:
        strata = (None, stratify.tolist() if hasattr(stratify, "tolist") else list(stratify))
    is_by_name = settings.choice("by", by, "name", "index") == "name"
    return dataset._index.split(listed, settings.whole("seed", seed, bits=64), is_by_name, strata)
