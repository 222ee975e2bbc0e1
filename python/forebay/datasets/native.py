"""What all of forebay's own datasets have in common: samples, a recipe, targets; copies, pickles, subsets."""

import copy
import operator
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from forebay import _forebay
from forebay._arrays import python_values, torch_arrays, torch_data, torchvision_data
from forebay._native import pipeline
from forebay._options import storage
from forebay._options.settings import Form
from forebay.datasets import choice
from forebay.errors import ConfigError, StateMismatchError

# Native objects, made from the others and never changed.
_NATIVE = ("_index", "_pipeline", "_chain", "_content", "_contents", "_format", "_shard_fields")

# What a sample's target is: none, the value of the one column of labels, or a dict of several.
TargetKind = Literal["none", "value", "dict"]


_Sample_co = TypeVar("_Sample_co", covariant=True)


class _Base(Generic[_Sample_co]):
    """Stands where `torch.utils.data.Dataset` goes once torch is imported: generic as that is, because Python exchanges
    only bases that are laid out alike."""


class NativeDataset(_Base[Any]):
    """Samples that the engine reads, decodes and transforms.

    Once torch is imported, these are `torch.utils.data.Dataset`s.

    Pickled, a dataset takes its settings along, not its samples: unpickling finds them again. A folder or manifest that
    has more or fewer samples by then is refused (`StateMismatchError`). A copy finds nothing again. Storage options are
    pickled too, keys and all.
    """

    root: str | os.PathLike[str]
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None
    _cache: tuple[str, int | None, bool] | None
    _targets_are: TargetKind = "value"
    # Whether dicts and lists stay a list in a batch, and are not put together as torch does.
    _lists_objects: ClassVar[bool] = False

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Makes it one of torch's datasets, too, where torch is imported."""
        become_torch_dataset()
        cls._take_bases()
        return super().__new__(cls)

    @staticmethod
    def _take_bases() -> None:
        """Makes other packages' classes bases of a dataset's class, where those are imported."""

    def _set_up(self) -> None:
        """Finds the samples, once every setting is known."""
        self._index = self._scan()
        # How many samples there are, and what `subset` chose of them, and of those, and so on: each choice is part of
        # the identity that a resume state is bound to.
        self._scanned = len(self._index)
        self._selections: tuple[array[int], ...] = ()
        self._forget()

    @property
    def _location(self) -> str:
        """The root as text."""
        return os.fspath(self.root)

    def _find(self) -> _forebay.Index:
        """The samples as they are now, without a cache."""
        raise NotImplementedError

    def _scan(self) -> _forebay.Index:
        # Before the scan, which may take minutes: a wrong directory is said at once.
        cache = storage.opened(self._cache)
        index = self._find()
        return index if cache is None else index.kept_in(cache)

    def _recipe(self, form: Form) -> _forebay.Recipe:
        """What the engine makes of each sample, for batches of this form."""
        raise NotImplementedError

    def _check_form(self, form: Form, is_collated: bool) -> None:
        """Refuses what a loader's settings ask for and the samples do not give."""
        if form.is_given or form.is_fast:
            raise ConfigError(
                "dtype, memory_format and decode: expected a dataset of pictures beside them, "
                f"got {type(self).__name__}"
            )

    def _python_calls(self) -> list[tuple[str, str]]:
        """(argument, name) of the user's own callables that the engine's threads run."""
        return []

    def _made_by(self) -> str | None:
        """The user's callable whose result is a sample, if it is one."""
        return None

    def _parts(self) -> dict[str, object]:
        """What a loader takes from its dataset once, when it is made."""
        return {"target_transform": self.target_transform}

    def _arranged(self, columns: Mapping[str, Any]) -> Any:
        """What a sample, or a batch, is by the columns that the recipe makes: the only one, or all by name."""
        return next(iter(columns.values())) if len(columns) == 1 else dict(columns)

    def _ragged_columns(self) -> frozenset[str]:
        """Columns whose arrays differ in shape by nature: lists, unless the loader's `ragged` says otherwise."""
        return frozenset()

    def _forget(self) -> None:
        """Drops what was derived from the samples."""

    def __copy__(self) -> Self:
        twin: Self = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy.copy(self)
        memo[id(self)] = twin
        own = {name: value for name, value in vars(self).items() if name not in _NATIVE}
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in own.items()})
        twin._restore()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        derived = (*_NATIVE, "_samples", "_targets")
        return {name: value for name, value in vars(self).items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        become_torch_dataset()
        vars(self).update(state)
        self._forget()
        self._index = self._scan()
        if len(self._index) != self._scanned:
            raise StateMismatchError(
                f'"{self.root}": expected the {self._scanned} samples it had when the dataset was pickled, '
                f"got {len(self._index)}",
                path=self._location,
                hint="make the dataset anew, or leave its folder as it is between pickling and unpickling",
            )
        for selection in self._selections:
            self._index = self._index.select(selection.tolist())
        self._restore()

    def _restore(self) -> None:
        """Makes the native objects again that neither copies nor pickles take along."""

    def subset(self, indices: Iterable[int]) -> Self:
        """A dataset of these samples, in this order, with everything else the same."""
        return self._select([position_of(index, len(self)) for index in indices])

    def filter(self, accepts: Callable[[Mapping[str, Any]], Any] | None = None, /, **equal: Any) -> Self:
        """A dataset of the samples whose columns have these values: `filter(split="train")`; a list, a tuple or a set
        means any of them. `accepts` is called with the columns of each sample: `filter(lambda row: row["height"] > 9)`.

        Columns are `path`, the labels, `class` where there are classes, and with a manifest all of its columns.
        """
        return self._select(choice.matching(self, accepts, equal))

    def split(
        self,
        fractions: float | Sequence[float],
        *,
        seed: int = 0,
        by: Literal["name", "index"] = "name",
        stratify: Any = False,
    ) -> tuple[Self, ...]:
        """Datasets that have no sample in common: `train, val = dataset.split(0.9)`, or `split([0.8, 0.1, 0.1])`.

        By name a sample keeps its part when others are added or removed, and parts are about as large as the fractions
        say; by index they are exactly as large. `stratify` divides each label by itself, exactly: `True` for the
        labels, the name of a column, or a value for each sample.
        """
        return tuple(self._select(part) for part in choice.parts(self, fractions, seed, by, stratify))

    def _select(self, positions: list[int]) -> Self:
        chosen = copy.copy(self)
        chosen._index = self._index.select(positions)
        chosen._selections = (*self._selections, array("Q", positions))
        chosen._forget()
        return chosen

    def label_of(self, scalars: Mapping[str, Any]) -> Any:
        """The label of a sample: a value, a dict of several, or `None`."""
        if self._targets_are == "none":
            return None
        return next(iter(scalars.values())) if self._targets_are == "value" else dict(scalars)

    def target_of(self, scalars: Mapping[str, Any]) -> Any:
        """The target of a sample, from what its columns of labels say."""
        target = self.label_of(scalars)
        return target if self.target_transform is None else self.target_transform(target)

    def __len__(self) -> int:
        return len(self._index)

    def target_at(self, index: int) -> Any:
        """The target of a sample."""
        return self.target_of(self._index.scalars(index))

    def _leaves(self) -> "list[NativeDataset]":
        """The datasets that it consists of."""
        return [self]

    def _sampling(self) -> _forebay.Sampling | None:
        """Which samples an epoch has, where the dataset says."""
        return None

    def _counted(self, delivered: Sequence[int]) -> dict[str, int] | None:
        """How many samples were delivered of each dataset, by name, where there are several."""
        return None

    @property
    def _is_remote(self) -> bool:
        return storage.is_url(self._location)

    def __getitem__(self, index: int) -> Any:
        position = position_of(index, len(self))
        recipe = self._recipe(PLAIN)
        loaded = _forebay.load_one(self._index, position, recipe, torch_arrays.draw_seed(), 0)
        names = columns_of(recipe)
        values = [loaded] if len(names) == 1 else loaded
        columns = {name: python_values.to_python(value) for name, value in zip(names, values, strict=True)}
        sample = self._arranged(columns)
        return sample if self._targets_are == "none" else (sample, self.target_at(position))

    def __add__(self, other: Any) -> Any:
        """Both, one after the other, as torch's datasets are added. With a dataset that is not forebay's own the sum
        is a Python dataset."""
        if isinstance(other, NativeDataset):
            from forebay.datasets.joined import concat  # which is made of these

            return concat([self, other])
        return torch_data.concatenated(self, other)

    def extra_repr(self) -> str:
        """Lines of a subclass's own for `repr`, as with torchvision's datasets."""
        return ""

    def _transforms_shown(self) -> list[str]:
        given = (("Transform: ", self.transform), ("Target transform: ", self.target_transform))
        return [line for head, call in given if call is not None for line in torchvision_data.indented(head, call)]

    def __repr__(self) -> str:
        body = [f"Number of datapoints: {len(self)}", f"Root location: {self.root}"]
        body += [*self.extra_repr().splitlines(), *self._transforms_shown()]
        return "\n".join([f"Dataset {type(self).__name__}", *(f"    {line}" for line in body)])


class PictureDataset(NativeDataset):
    """Pictures, through native transforms."""

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """What is done to each picture. Setting it checks it, for loaders made later: earlier ones refuse to go on."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        chain = pipeline.settle(pipeline.specs(transform))
        self._pipeline, self._chain, self._transform = _forebay.Pipeline(chain), chain, transform

    @property
    def _open(self) -> Callable[[str], Any] | None:
        """The user's own way to open a path; `None` if pictures are decoded natively."""
        return None

    def _restore(self) -> None:
        self.transform = self._transform

    def _recipe(self, form: Form) -> _forebay.Recipe:
        return _forebay.Recipe.image(form.applied(self._pipeline), self._open)

    def _check_form(self, form: Form, is_collated: bool) -> None:
        pipeline.check_form(self._chain, self._open is not None, form, is_collated)

    def _python_calls(self) -> list[tuple[str, str]]:
        return [("transform", name) for name in pipeline.python_names(self._chain)]

    def _made_by(self) -> str | None:
        return pipeline.last_python_name(self._chain) if self._chain else None

    def _parts(self) -> dict[str, object]:
        return {"transform": self._pipeline, **super()._parts()}


class ContentDataset(NativeDataset):
    """Samples whose content is a value that a Python callable may be given: a text, bytes, an array."""

    # The most that a sample may have.
    _max_bytes: int | None = None

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """What each sample is given to. Setting it is for loaders made later: earlier ones refuse to go on."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        self._transform: Callable[[Any], Any] | None = optional_callable("transform", transform)

    def _made_content(self) -> _forebay.Recipe:
        """The recipe of the content alone."""
        raise NotImplementedError

    def _restore(self) -> None:
        self._content = self._made_content()

    def _recipe(self, form: Form) -> _forebay.Recipe:
        recipe = self._content if self._max_bytes is None else self._content.limited(self._max_bytes)
        if self._transform is None:
            return recipe
        calls = python_values.Calls([self._transform], keeps_all=True, columns=columns_of(recipe))
        return recipe.mapped(python_values.name_of(self._transform), calls)

    def _python_calls(self) -> list[tuple[str, str]]:
        return [] if self._transform is None else [("transform", python_values.name_of(self._transform))]

    def _made_by(self) -> str | None:
        return None if self._transform is None else python_values.name_of(self._transform)

    def _parts(self) -> dict[str, object]:
        return {"transform": self._transform, **super()._parts()}


# Of single samples: as the transforms make them.
PLAIN = Form(None, False, False)


def become_torch_dataset() -> None:
    """Makes `torch.utils.data.Dataset` a base of forebay's datasets, if torch was imported. It is never imported here:
    that takes more than a second, which a loader of NumPy arrays need not wait for."""
    base = torch_data.dataset_class()
    if base is not None and base not in NativeDataset.__bases__:
        NativeDataset.__bases__ = (base,)


def optional_callable(name: str, value: Any) -> Any:
    """A callable, or `None`."""
    return None if value is None else checked_callable(name, value)


def checked_callable(name: str, value: Any) -> Any:
    """A callable; anything else is refused by the name of its argument."""
    if not callable(value):
        raise ConfigError(f"{name}: expected a callable, got {value!r}")
    return value


def columns_of(recipe: _forebay.Recipe) -> list[str]:
    """The names of the columns that a recipe makes."""
    return [name for name, *_ in recipe.schema]


def position_of(index: Any, length: int) -> int:
    """A list's index: whole, negative ones count from the end."""
    position = operator.index(index)
    if not -length <= position < length:
        raise IndexError(f"index: expected one below {length}, got {position}")
    return position % length
