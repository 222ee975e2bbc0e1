"""What becomes of the fields of a sample in a shard, by their names (docs/shards.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forebay import _forebay
from forebay._arrays import python_values
from forebay._native import pipeline
from forebay._options.settings import Form
from forebay.datasets.native import NativeDataset
from forebay.errors import ConfigError

# What WebDataset makes of a field by the last part of its name; everything else is bytes.
_KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "bmp", "tif", "tiff", "webp", "gif"), "image"),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "integer"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "npy": "npy",
    # Reading them would run code.
    **dict.fromkeys(("pyd", "pickle", "pkl", "pth", "pt"), "pickle"),
}

# A sample is its only field, a tuple of fields, or a dict of them.
Shape = Literal["only", "tuple", "dict"]


def kind_of(name: str) -> str:
    """What a field of this name becomes."""
    return _KINDS.get(name.rpartition(".")[2].lower(), "bytes")


@dataclass(frozen=True)
class Wanted:
    """The fields that samples are made of: the name of each column, and the names that its field may have."""

    shape: Shape
    columns: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, fields: Any) -> "Wanted | None":
        """What a user asks for; `None` for nothing."""
        if fields is None:
            return None
        if isinstance(fields, str):
            return cls("only", ((fields, _alternatives(fields)),))
        if isinstance(fields, Mapping):
            columns = tuple((_name(name), _alternatives(field)) for name, field in fields.items())
            shape: Shape = "dict"
        elif isinstance(fields, Sequence):
            shape, columns = "tuple", tuple((_name(field), _alternatives(field)) for field in fields)
        else:
            raise ConfigError(f"fields: expected names, or a dict of them, got {fields!r}")
        names = [name for name, _ in columns]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"fields: expected at least one name and none twice, got {fields!r}")
        return cls(shape, columns)

    @classmethod
    def found(cls, fields: list[list[str]]) -> "Wanted":
        """The fields of the first sample."""
        return cls("dict", tuple((names[0], tuple(names)) for names in fields))

    @classmethod
    def all_of(cls, fields: _forebay.ShardFields) -> "Wanted":
        """All fields that samples have, as they were put together."""
        columns = tuple((name, (name,)) for name in fields.names)
        return cls(("only" if len(columns) == 1 else "tuple") if fields.is_tuple else "dict", columns)

    def names(self) -> list[list[str]]:
        """The names that each field may have."""
        return [list(names) for _, names in self.columns]


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"fields: expected names, got {name!r}")
    return name


def _alternatives(field: Any) -> tuple[str, ...]:
    names = tuple(name.strip().removeprefix(".").lower() for name in _name(field).split(";"))
    if not all(names):
        raise ConfigError(f'fields: expected names like "jpg" or "jpg;png", got {field!r}')
    return names


@dataclass(frozen=True)
class FieldContent:
    """What one field becomes."""

    column: str
    names: tuple[str, ...]
    kind: str
    transform: Callable[[Any], Any] | None
    # Of a picture, its transforms.
    chain: list[pipeline.Spec]
    pipeline: _forebay.Pipeline | None
    # What a format of its own makes of it.
    own: _forebay.Recipe | None = None

    def recipe(self, form: Form) -> _forebay.Recipe:
        """What the engine makes of it."""
        if self.pipeline is not None and self.kind == "pixels":
            return _forebay.Recipe.pixels(form.applied(self.pipeline))
        if self.pipeline is not None:
            return _forebay.Recipe.image(form.applied(self.pipeline), None)
        own = self.own
        makes = {
            "value": lambda: own or _forebay.Recipe.bytes(),
            "bytes": _forebay.Recipe.bytes,
            "integer": _forebay.Recipe.integer,
            "text": lambda: _forebay.Recipe.text("utf-8", "strict", False),
            "json": lambda: _forebay.Recipe.json([], False),
            "npy": _forebay.Recipe.npy,
        }
        recipe = makes[self.kind]()
        if self.transform is None:
            return recipe
        calls = python_values.Calls([self.transform], keeps_all=True)
        return recipe.mapped(python_values.name_of(self.transform), calls)

    def python_names(self) -> list[str]:
        """The user's own callables in it."""
        if self.pipeline is not None:
            return list(pipeline.python_names(self.chain))
        return [] if self.transform is None else [python_values.name_of(self.transform)]


def contents(
    wanted: Wanted,
    decode: bool,
    transform: Any,
    transforms: Mapping[str, Callable[[Any], Any]],
    fields: _forebay.ShardFields | None = None,
) -> list[FieldContent]:
    """What each field becomes: by its name, or as `fields` of a format say.

    `transform` is that of pictures which have none of their own in `transforms`.
    """
    used: set[str] = set()
    made = []
    kinds = [_kind_by_format(column, names, fields, decode) for column, names in wanted.columns]
    if transform is not None and decode and "image" not in kinds and "pixels" not in kinds:
        kinds = _with_picture(kinds)
    for (column, names), kind in zip(wanted.columns, kinds, strict=True):
        keys = [key for key in (column, *names) if key in transforms]
        used.update(keys)
        own = transforms[keys[0]] if keys else None
        if kind is None:
            made.append(_content(column, names, decode, transform, own))
        else:
            made.append(_content_by_format(column, names, kind, transform, own, fields))
    if unknown := set(transforms) - used:
        shown = [column for column, _ in wanted.columns]
        raise ConfigError(f"transforms: expected names of the fields {shown}, got {sorted(unknown)}")
    if transform is not None and not any(content.pipeline is not None for content in made):
        raise ConfigError(
            "transform: expected a field of pictures, got none",
            hint="transforms={name: callable} gives other fields to a callable",
        )
    return made


def _kind_by_format(
    column: str, names: tuple[str, ...], fields: _forebay.ShardFields | None, decode: bool
) -> str | None:
    """What a format of its own says that a field is; `None` where its name decides."""
    if fields is None:
        return None
    kind, what = fields.kind(list(names))
    if kind == "none":
        raise ConfigError(
            f"fields: {column!r} holds {what}, which is not read",
            hint="name the other fields, or write this one again as numbers, text or bytes",
        )
    if not decode:
        return "bytes"
    return f"other:{what}" if kind == "other" else kind


def _with_picture(kinds: list[str | None]) -> list[str | None]:
    """Where a format only says that something is bytes, transforms of pictures say what they are."""
    return ["image" if kind == "bytes" else kind for kind in kinds] if kinds.count("bytes") == 1 else kinds


def _content_by_format(
    column: str, names: tuple[str, ...], kind: str, transform: Any, own: Any, fields: _forebay.ShardFields | None
) -> FieldContent:
    if kind in ("image", "pixels"):
        return _picture(column, names, kind, transform if own is None else own)
    if kind.startswith("other:") and own is None:
        raise ConfigError(
            f"fields: {column!r} holds {kind.removeprefix('other:')}, which is not read",
            hint="name other fields, or give its bytes to a callable of your own with transforms=…",
        )
    if kind == "value" and fields is not None:
        return FieldContent(column, names, kind, own, [], None, fields.value(list(names)))
    return FieldContent(column, names, "bytes", own, [], None)


def _content(column: str, names: tuple[str, ...], decode: bool, transform: Any, own: Any) -> FieldContent:
    kinds = {kind_of(name) for name in names} if decode else {"bytes"}
    if len(kinds) > 1:
        raise ConfigError(f"fields: expected alternatives of one kind in {column!r}, got {sorted(kinds)}")
    (kind,) = kinds
    if kind == "pickle":
        if own is None:
            raise ConfigError(
                f"fields: {column!r} holds pickled objects, which are not loaded: they would run code",
                hint="name other fields, or give its bytes to a callable of your own with transforms=…",
            )
        kind = "bytes"
    if kind != "image":
        return FieldContent(column, names, kind, own, [], None)
    return _picture(column, names, kind, transform if own is None else own)


def _picture(column: str, names: tuple[str, ...], kind: str, given: Any) -> FieldContent:
    chain = pipeline.settle(pipeline.specs(given))
    return FieldContent(column, names, kind, given, chain, _forebay.Pipeline(chain))


class FieldsDataset(NativeDataset):
    """Samples of several fields, each with a recipe of its own."""

    _lists_objects = True

    transforms: Mapping[str, Callable[[Any], Any]] | None
    decode: bool
    # Known once the samples are.
    _wanted: Wanted | None = None
    # Of formats that say what their fields are.
    _shard_fields: _forebay.ShardFields | None = None
    # The most that a field may have.
    _max_bytes: int | None = None

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """What is done to each picture. Setting it is for loaders made later: earlier ones refuse to go on."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Any], Any] | None) -> None:
        self._transform: Callable[[Any], Any] | None = transform
        if self._wanted is not None:
            self._restore()

    def _restore(self) -> None:
        if self._wanted is None:
            raise ConfigError("fields: expected shards with samples in them")
        given = (self.decode, self._transform, self.transforms or {})
        self._contents = contents(self._wanted, *given, self._shard_fields)

    def _recipe(self, form: Form) -> _forebay.Recipe:
        made = [(content.column, content.recipe(form)) for content in self._contents]
        if self._shard_fields is not None:
            names = [list(content.names) for content in self._contents]
            columns = [(column, own, recipe) for (column, recipe), own in zip(made, names, strict=True)]
            recipe = self._shard_fields.recipe(columns)
        else:
            # A field alone is made as a file of it would be.
            recipe = made[0][1] if len(made) == 1 else _forebay.Recipe.fields(made)
        return recipe if self._max_bytes is None else recipe.limited(self._max_bytes)

    def _arranged(self, columns: Mapping[str, Any]) -> Any:
        values = tuple(columns.values())
        if self._wanted is None or self._wanted.shape == "only":
            return values[0]
        if self._wanted.shape == "tuple":
            return values
        return {name: value for (name, _), value in zip(self._wanted.columns, values, strict=True)}

    def _check_form(self, form: Form, is_collated: bool) -> None:
        pictures = [content for content in self._contents if content.pipeline is not None]
        for content in pictures:
            pipeline.check_form(content.chain, False, form, is_collated)
        if not pictures:
            super()._check_form(form, is_collated)

    def _python_calls(self) -> list[tuple[str, str]]:
        def argument(content: FieldContent) -> str:
            return "transform" if content.transform is self._transform else f"transforms[{content.column!r}]"

        return [(argument(content), name) for content in self._contents for name in content.python_names()]

    def _made_by(self) -> str | None:
        names = [name for content in self._contents for name in content.python_names()]
        return names[-1] if names else None

    def _parts(self) -> dict[str, object]:
        return {**super()._parts(), "transform": self._contents}
