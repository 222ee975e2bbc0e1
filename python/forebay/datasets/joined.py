"""Several of forebay's own datasets as one: one after the other, or mixed by weights (docs/mixtures.md)."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from forebay import _forebay
from forebay._options import settings, storage
from forebay._options.settings import Form
from forebay.datasets.native import PLAIN, NativeDataset, columns_of
from forebay.errors import ConfigError

# Weights of datasets: in their order, or by dataset.
_Weights = Sequence[float] | Mapping[Any, float]


def concat(datasets: Iterable[NativeDataset], *, names: Sequence[str] | None = None) -> "Concatenation":
    """Several of forebay's own datasets as one, one after the other.

    They may lie in different stores and have different transforms, as long as these make the same columns: kinds of
    samples, shapes and types. Labels have to be of one kind, and classes the same, unless each dataset has a
    `target_transform` that maps its own. `names` says what they go by in `explain()` and `stats()`.

    >>> import forebay as fb
    >>> both = fb.concat([fb.ImageFolder("data/train"), fb.ImageFolder("data/val")])
    >>> len(both), both.classes
    (16, ['cat', 'dog'])
    """
    return Concatenation(datasets, names)


def mix(
    datasets: Mapping[NativeDataset, float] | Iterable[Any],
    weights: Sequence[Any] | None = None,
    *,
    samples: int | None = None,
    names: Sequence[str] | None = None,
) -> "Mixture":
    """Several of forebay's own datasets in given proportions.

    `datasets` are a dict of weights by dataset, a list of pairs, or a list of datasets with `weights` beside it.
    `weights` may change during training: a list of (samples, weights), where the first begins at 0 and the others as
    many samples after the start of training, of all ranks and epochs together.

    At every position of the order each dataset has as many samples as its weight says, to within one. A dataset gives
    each of its samples once before any comes again; a small one repeats, a large one goes on in the next epoch where it
    stopped. `samples` is the length of an epoch, by default that of all datasets together.

    >>> import forebay as fb
    >>> a, b = fb.ImageFolder("data/train"), fb.ImageFolder("data/val")
    >>> mixture = fb.mix({a: 0.7, b: 0.3}, samples=100)
    >>> changing = fb.mix([a, b], weights=[(0, [0.7, 0.3]), (10_000, [0.5, 0.5])])
    >>> len(mixture), mixture.samples, changing.samples
    (16, 100, 16)
    """
    listed, given = _with_weights(datasets, weights)
    return Mixture(listed, _phases(listed, given), samples, names)


class Concatenation(NativeDataset):
    """What `concat` gives."""

    def __init__(self, datasets: Iterable[NativeDataset], names: Sequence[str] | None = None) -> None:
        self.datasets = _checked(datasets)
        self.names = _names(self.datasets, names)
        self.root = ", ".join(dict.fromkeys(leaf._location for leaf in self._leaves()))
        self._cache = None
        self._targets_are = self._common_targets()
        self.classes, self.class_to_idx = self._common_classes()
        self._check_places()
        self._set_up()
        # Different columns are said here, and not only when a loader is made.
        self._check_arrangement(columns_of(self._recipe(PLAIN)))

    @property
    def cumulative_sizes(self) -> list[int]:
        """Where the samples of each dataset end, as torch's `ConcatDataset` has it."""
        return list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def _leaves(self) -> list[NativeDataset]:
        return [leaf for dataset in self.datasets for leaf in dataset._leaves()]

    def _find(self) -> _forebay.Index:
        return _forebay.Index.concat([dataset._index for dataset in self.datasets])

    def _recipe(self, form: Form) -> _forebay.Recipe:
        return _forebay.Recipe.parts([dataset._recipe(form) for dataset in self.datasets])

    def _check_form(self, form: Form, is_collated: bool) -> None:
        for dataset in self.datasets:
            dataset._check_form(form, is_collated)

    def _python_calls(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(call for dataset in self.datasets for call in dataset._python_calls()))

    def _made_by(self) -> str | None:
        return next((name for dataset in self.datasets if (name := dataset._made_by()) is not None), None)

    def _parts(self) -> dict[str, object]:
        parts = ((number, dataset._parts()) for number, dataset in enumerate(self.datasets))
        return {f"datasets[{number}].{name}": part for number, own in parts for name, part in own.items()}

    def _arranged(self, columns: Mapping[str, Any]) -> Any:
        return self._leaves()[0]._arranged(columns)

    def _check_arrangement(self, names: Sequence[str]) -> None:
        columns = {name: name for name in names}
        first, *others = (leaf._arranged(columns) for leaf in self._leaves())
        for other in others:
            if type(other) is not type(first) or other != first:
                raise ConfigError(
                    f"expected datasets whose samples are put together alike, got {first!r} and {other!r}"
                )

    @property
    def _lists_objects(self) -> bool:  # type: ignore[override]
        return any(leaf._lists_objects for leaf in self._leaves())

    @property
    def _is_remote(self) -> bool:
        return any(dataset._is_remote for dataset in self.datasets)

    # Each dataset has its own.
    transform: Callable[[Any], Any] | None = None

    @property
    def target_transform(self) -> Callable[[Any], Any] | None:  # type: ignore[override]
        """The one of the first dataset that has one: each sample's target goes through that of its own dataset."""
        return next((call for leaf in self._leaves() if (call := leaf.target_transform) is not None), None)

    def target_at(self, index: int) -> Any:
        """The target of a sample, by the dataset that it comes from."""
        return self._leaves()[self._index.part(index)].target_of(self._index.scalars(index))

    def source_of(self, index: int) -> str:
        """The name of the dataset that a sample comes from."""
        return self._sources()[self._index.part(index)]

    def _sources(self) -> list[str]:
        """The name of the dataset of each part."""
        pairs = zip(self.names, self.datasets, strict=True)
        return [name for name, dataset in pairs for _ in range(len(dataset._leaves()))]

    def _counted(self, delivered: Sequence[int]) -> dict[str, int] | None:
        counts = dict.fromkeys(self.names, 0)
        for name, count in zip(self._sources(), delivered, strict=False):
            counts[name] += count
        return counts

    def _ragged_columns(self) -> frozenset[str]:
        # All have the same columns.
        return self.datasets[0]._ragged_columns()

    def _common_targets(self) -> Any:
        kinds = {dataset._targets_are for dataset in self.datasets}
        if len(kinds) > 1:
            said = {"none": "no labels", "value": "a label for each sample", "dict": "several labels for each sample"}
            shown = [f"{name} has {said[dataset._targets_are]}" for name, dataset in self._named()]
            raise ConfigError(f"expected datasets with the same labels, got {'; '.join(shown)}")
        return kinds.pop()

    def _named(self) -> Iterable[tuple[str, NativeDataset]]:
        return zip(self.names, self.datasets, strict=True)

    def _common_classes(self) -> tuple[list[str], dict[str, int]]:
        """The classes, where all datasets that have some have the same."""
        leaves: list[tuple[str, Any]] = [(name, leaf) for name, dataset in self._named() for leaf in dataset._leaves()]
        found = [(name, leaf, leaf.class_to_idx) for name, leaf in leaves if getattr(leaf, "classes", None)]
        if not found:
            return [], {}
        first_name, first, expected = found[0]
        for name, _, got in found[1:]:
            if got == expected:
                continue
            if all(leaf.target_transform is not None for _, leaf, _ in found):
                return [], {}
            raise ConfigError(
                f"expected datasets of the same classes, got {_shown(expected)} in {first_name} and {_shown(got)} "
                f"in {name}: the same label would mean different things",
                hint="give each dataset a target_transform that maps its labels, or the same classes",
            )
        return list(first.classes), dict(expected)

    def _check_places(self) -> None:
        """Refuses different ways to read the same place: by its path nothing would say which one is meant."""
        leaves = self._leaves()
        for one, other in itertools.combinations(leaves, 2):
            if not _overlap(one._location, other._location):
                continue
            for name in ("_storage_options", "_cache"):
                if getattr(one, name, None) != getattr(other, name, None):
                    shown = name.removeprefix("_")
                    where = f'"{one._location}" and "{other._location}"'
                    raise ConfigError(
                        f"{shown}: expected the same for datasets of one root, got different ones for {where}",
                        hint=f"give both datasets the same {shown}",
                    )
        decoded = {leaf._cache is not None and leaf._cache[0] == storage.DECODED for leaf in leaves}
        if len(decoded) > 1:
            raise ConfigError('cache: expected "decoded" for all of the datasets or for none, got it for some')

    @property
    def paths(self) -> list[str]:
        """The path of each sample. A copy for reading."""
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
        """(path, what) for everything the scans noticed that is no failure."""
        return self._index.notes


class Mixture(Concatenation):
    """What `mix` gives. Its indices are those of the datasets, one after the other."""

    def __init__(
        self,
        datasets: Sequence[NativeDataset],
        weights: list[tuple[int, list[float]]],
        samples: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(datasets, names)
        self.weights = weights
        self.samples = len(self) if samples is None else settings.whole("samples", samples, least=1)
        self._sampling()

    def _sampling(self) -> _forebay.Sampling:
        return _forebay.Sampling.mixture([len(dataset) for dataset in self.datasets], self.samples, self.weights)

    def _select(self, positions: list[int]) -> Self:
        raise ConfigError(
            "expected a dataset that has no weights, got a mixture, whose samples cannot be chosen",
            hint="choose samples of its datasets, and mix what was chosen",
        )

    def extra_repr(self) -> str:
        """What a mixture has beside a concatenation."""
        first = ", ".join(f"{name}: {weight:g}" for name, weight in zip(self.names, self.weights[0][1], strict=True))
        return f"Samples in an epoch: {self.samples}\nWeights: {first}"


def _checked(datasets: Iterable[NativeDataset]) -> tuple[NativeDataset, ...]:
    listed = tuple(datasets)
    if not listed:
        raise ConfigError("datasets: expected at least one, got none")
    for dataset in listed:
        if not isinstance(dataset, NativeDataset):
            raise ConfigError(
                f"datasets: expected forebay's own datasets, got an object of class {type(dataset).__qualname__}",
                hint="torch.utils.data.ConcatDataset takes any, and is a Python dataset",
            )
        if isinstance(dataset, Mixture):
            raise ConfigError(
                "datasets: expected datasets without weights of their own, got a mixture",
                hint="mix its datasets directly, with the products of the weights",
            )
    return listed


def _names(datasets: Sequence[NativeDataset], names: Sequence[str] | None) -> list[str]:
    """What datasets go by: as given, or by where they lie."""
    if names is None:
        given = [str(dataset.root) for dataset in datasets]
        seen: dict[str, int] = {}
        for place, name in enumerate(given):
            seen[name] = seen.get(name, 0) + 1
            given[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        return given
    listed = list(names)
    if len(listed) != len(datasets) or len(set(listed)) != len(listed):
        raise ConfigError(f"names: expected {len(datasets)} different ones, one for each dataset, got {listed!r}")
    return [str(name) for name in listed]


def _shown(class_to_idx: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}={label}" for name, label in list(class_to_idx.items())[:3])
    return f"{len(class_to_idx)} ({shown}{', …' if len(class_to_idx) > 3 else ''})"


def _overlap(one: str, other: str) -> bool:
    """Whether one root is the other, or lies below it."""
    one, other = (root.rstrip("/") + "/" if root not in ("", ".") else "" for root in (one, other))
    return one.startswith(other) or other.startswith(one)


def _with_weights(datasets: Any, weights: Sequence[Any] | None) -> tuple[list[NativeDataset], Sequence[Any]]:
    """Datasets, and what was given for their weights."""
    if isinstance(datasets, Mapping):
        pairs = list(datasets.items())
    else:
        listed = list(datasets)
        if not listed or not all(isinstance(item, tuple | list) and len(item) == 2 for item in listed):
            if weights is None:
                raise ConfigError("weights: expected one for each dataset, got none")
            return list(_checked(listed)), weights
        pairs = [(dataset, weight) for dataset, weight in listed]
    if weights is not None:
        raise ConfigError("weights: expected none beside those of the datasets, got some")
    return list(_checked(dataset for dataset, _ in pairs)), [weight for _, weight in pairs]


def _phases(datasets: Sequence[NativeDataset], weights: Any) -> list[tuple[int, list[float]]]:
    """Weights with the number of samples that they begin after."""
    if isinstance(weights, Mapping):
        return [(0, _in_order(datasets, weights))]
    listed = list(weights)
    is_changing = bool(listed) and all(isinstance(item, tuple | list) and len(item) == 2 for item in listed)
    if not is_changing:
        return [(0, _in_order(datasets, listed))]
    return [(settings.whole("weights", start), _in_order(datasets, given)) for start, given in listed]


def _in_order(datasets: Sequence[NativeDataset], weights: _Weights) -> list[float]:
    if isinstance(weights, Mapping):
        by_identity = {id(dataset): weight for dataset, weight in weights.items()}
        if len(weights) != len(datasets) or any(id(dataset) not in by_identity for dataset in datasets):
            raise ConfigError(f"weights: expected one for each of the {len(datasets)} datasets, got others")
        listed = [by_identity[id(dataset)] for dataset in datasets]
    elif isinstance(weights, str | bytes) or not hasattr(weights, "__iter__"):
        raise ConfigError(f"weights: expected one for each dataset, got {weights!r}")
    else:
        listed = list(weights)
    for weight in listed:
        if isinstance(weight, bool) or not hasattr(weight, "__float__"):
            raise ConfigError(f"weights: expected numbers, got {weight!r}")
    return [float(weight) for weight in listed]
