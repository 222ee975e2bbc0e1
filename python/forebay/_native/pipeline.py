"""From what a user gives as `transform` to the native pipeline.

Native transforms become specs (name, arguments); torchvision's own instances are translated where that gives the
same picture; every other callable runs as it is, under the GIL.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy

from forebay import _forebay
from forebay._arrays import numpy_arrays, python_values, torch_arrays
from forebay._arrays.python_values import name_of
from forebay._options.settings import Form
from forebay.errors import ConfigError

Spec = tuple[str, dict[str, Any]]

# Between the names of Python callables that follow each other.
_THEN = " → "

# The table of native transforms: what each one takes, and its arguments.
TAKES = {name: takes for name, _, takes, _, _ in _forebay.transform_table()}
ARGUMENTS = {name: tuple(arguments) for name, arguments, _, _, _ in _forebay.transform_table()}
MAX_DEPTH, MAX_COUNT = _forebay.transform_limits()

PICTURE_ONLY = frozenset(name for name, takes in TAKES.items() if takes == "images")
TENSOR_ONLY = frozenset(name for name, takes in TAKES.items() if takes in ("tensors", "float tensors"))
CONVERSIONS = frozenset(name for name, takes in TAKES.items() if takes == "images → tensors")


class Transform:
    """A native transform: data that the pipeline checks, prints and runs.

    Called by itself on a PIL image, a NumPy array (height, width, channels) or a tensor (channels, height, width) it
    gives what torchvision's would; its randomness then comes from torch's generator.
    """

    def _specs(self, depth: int = 1) -> list[Spec]:
        """Name and arguments; `depth` is that of the transform, 1 if it stands in no other."""
        return [(type(self).__name__, {name: getattr(value, "value", value) for name, value in vars(self).items()})]

    def __call__(self, picture: Any) -> Any:
        chain = settle(specs(self))
        names = [name for name, _ in chain]
        keeps_layout = (CONVERSIONS | {"Custom"}).isdisjoint(_names(chain))
        is_array = isinstance(picture, numpy.ndarray)
        # Without torch, this is what `ToTensor` gave.
        is_planar = is_array and picture.dtype == numpy.float32 and not torch_arrays.is_available()
        is_planar = is_planar and names[:1] != ["ToTensor"]
        value = python_values.from_python(
            python_values.scaled(picture) if names[:1] == ["ToTensor"] else picture, is_planar
        )
        if value[0] == "tensor":
            # A conversion leaves what is a tensor already; here it tells the check what comes.
            chain.insert(0, ("ToTensor" if value[2] == "float32" else "ToImage", {}))
        result = _forebay.apply(_forebay.Pipeline(chain), value, torch_arrays.draw_seed())
        if not isinstance(result, _forebay.Array):
            return result
        if result.kind == "image":
            return python_values.to_python(result) if python_values.is_pillow(picture) else numpy_arrays.tensor(result)
        if is_array and not is_planar and keeps_layout:
            return numpy_arrays.tensor(result).transpose(1, 2, 0)  # an array as it came
        return python_values.to_python(result)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if value is not None}
        arguments = ", ".join(f"{name}={getattr(value, 'value', value)}" for name, value in shown.items())
        return f"{type(self).__name__}({arguments})"


def custom(transform: Callable[[Any], Any]) -> Spec:
    return "Custom", {"name": name_of(transform), "call": transform}


def specs(transform: Any, depth: int = 1) -> list[Spec]:
    """The specs of a transform of any kind, in the order they run; those in it are among its arguments."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"transform: expected at most {MAX_DEPTH} levels of transforms, got more")
    if transform is None:
        return []
    if isinstance(transform, Transform):
        return transform._specs(depth)
    from forebay._native import torchvision_transforms  # it makes native transforms, which are made of this module

    if (parts := torchvision_transforms.parts(transform)) is not None:
        return sequence(parts, depth + 1)
    if (nested := torchvision_transforms.nested(transform)) is not None:
        return nested._specs(depth)
    if isinstance(transform, (list, tuple)):
        raise ConfigError(
            f"transform: expected one transform, got a {type(transform).__name__} of {len(transform)}",
            hint="wrap it: transforms.Compose([…]) runs them one after the other",
        )
    if not callable(transform):
        raise ConfigError(f"transform: expected a transform or a callable, got {transform!r}")
    if isinstance(transform, type) and any("__call__" in vars(base) for base in transform.__mro__):
        raise ConfigError(
            f"transform: expected a transform, got the class {transform.__qualname__} itself",
            hint=f"the parentheses are missing: {transform.__qualname__}(…)",
        )
    if (native := torchvision_transforms.native(transform)) is not None:
        return [("Torchvision", {"native": native, "call": transform})]
    return [custom(transform)]


def sequence(transforms: Iterable[Any], depth: int = 1) -> list[Spec]:
    """The specs of several transforms, of which each has this depth."""
    chain: list[Spec] = []
    count = 0
    for transform in transforms:
        added = specs(transform, depth)
        chain += added
        count += sum(1 for _ in _names(added))
        if count > MAX_COUNT:
            raise ConfigError(f"transform: expected at most {MAX_COUNT} transforms, got more")
    return chain


def branches(transforms: Iterable[Any], depth: int) -> list[Spec]:
    """The same, with one spec for each transform."""
    chains = [sequence([transform], depth) for transform in transforms]
    return [chain[0] if len(chain) == 1 else ("Compose", {"transforms": chain}) for chain in chains]


def _inner(spec: Spec) -> list[Spec]:
    """The specs in a spec."""
    name, arguments = spec
    inner: list[Spec] = arguments["transforms"] if TAKES.get(name) == "as its transforms" else []
    return inner


def _names(chain: list[Spec]) -> Iterator[str]:
    """The names of all transforms, with those that are in others; of torchvision's, those of their native twins."""
    for spec in chain:
        yield spec[1]["native"][0] if spec[0] == "Torchvision" else spec[0]
        yield from _names(_inner(spec))


def settle(chain: list[Spec]) -> list[Spec]:
    """Decides for each of torchvision's instances whether its native twin does the same where it stands, and makes one
    of Python callables that follow each other.

    After a Python callable the type of the value is unknown; torchvision's transforms take pictures and tensors of any
    type, the native ones only what they were checked for.
    """
    return _joined(_settled(chain, "image"), frozenset([None]), False)


def _settled(chain: list[Spec], form: str) -> list[Spec]:
    """`settle` for a chain that is given values of this form, with Python callables as they are."""
    settled: list[Spec] = []
    for name, arguments in chain:
        spec = (name, arguments)
        inner = _inner(spec)
        if name == "Torchvision":
            twin: Spec = arguments["native"]
            spec = twin if _is_same(twin[0], form) else custom(arguments["call"])
        elif inner:
            if form == "uint8" and not _ENDS_OF_PICTURES.isdisjoint(_names(inner)):
                form = "bytes"  # `ToImage` stays before it
            spec = name, arguments | {"transforms": _settled_inner(name, inner, form)}
        settled.append(spec)
        form = _form_after(spec, form)
    return _pictures_first(settled)


def _settled_inner(name: str, inner: list[Spec], form: str) -> list[Spec]:
    if name in _LISTS:
        return _settled(inner, form)
    if name == "RandomOrder" and not _ENDS_OF_PICTURES.isdisjoint(_names(inner)):
        form = "unknown"  # what is given to each of them depends on the order
    return [spec for branch in inner for spec in _settled([branch], form)]


def _is_same(name: str, form: str) -> bool:
    """`form`: "image", "float32", "unknown"; of uint8 tensors "uint8", or "bytes" where `ToImage` cannot be moved."""
    if name in CONVERSIONS:
        return True
    if name in PICTURE_ONLY:
        return form in ("image", "uint8")
    if name in TENSOR_ONLY:
        return form in ("uint8", "bytes", "float32")
    return form != "unknown"


def _form_after(spec: Spec, form: str) -> str:
    name, arguments = spec
    if name == "Custom":
        return "unknown"
    if inner := _inner(spec):
        forms = [_form_at_end(inner, form)] if name in _LISTS else [_form_after(branch, form) for branch in inner]
        possible = {*forms, form} if name in ("RandomApply", "RandomOrder") else {*forms}
        return possible.pop() if len(possible) == 1 else "unknown"
    if name in CONVERSIONS and form in ("image", "unknown"):
        return "float32" if name == "ToTensor" else "uint8"
    return str(arguments["dtype"]) if name == "ToDtype" else form


def _form_at_end(chain: list[Spec], form: str) -> str:
    for spec in chain:
        form = _form_after(spec, form)
    return form


def _pictures_first(chain: list[Spec]) -> list[Spec]:
    """Moves `ToImage` behind the transforms that take pictures only, as in torchvision's recommended order
    (ToImage, RandomResizedCrop, ToDtype): a picture and a uint8 tensor are the same bytes in another layout.
    """
    names = [name for name, _ in chain]
    if "ToImage" not in names:
        return chain
    start = names.index("ToImage")
    kinds = [frozenset(_names([spec])) for spec in chain]
    ends = (position for position, kind in enumerate(kinds) if position > start and kind & _ENDS_OF_PICTURES)
    end = next(ends, len(chain))
    last = max((position for position in range(start, end) if kinds[position] & PICTURE_ONLY), default=start)
    return chain[:start] + chain[start + 1 : last + 1] + [chain[start]] + chain[last + 1 :]


_ENDS_OF_PICTURES = TENSOR_ONLY | CONVERSIONS | {"Custom"}

# In these, transforms follow each other; in the others, each one is separate.
_LISTS = frozenset({"Compose", "RandomApply"})

# Names of what may come next; `None` is the end.
_Next = frozenset[str | None]
_SKIPPED: _Next = frozenset(["skipped"])


def _joined(chain: list[Spec], following: _Next, is_planar: bool) -> list[Spec]:
    """Makes one of Python callables that follow each other: what one returns is what the next one gets. `following` is
    what comes after the chain, `is_planar` if a tensor goes in.
    """
    joined: list[Spec] = []
    groups = [(key, list(group)) for key, group in itertools.groupby(chain, lambda spec: spec[0] == "Custom")]
    for position, (is_custom, group) in enumerate(groups):
        after = _first([spec for _, later in groups[position + 1 :] for spec in later], following)
        if is_custom:
            call = python_calls([arguments["call"] for _, arguments in group], _only(after), is_planar)
            joined.append(("Custom", {"name": _THEN.join(arguments["name"] for _, arguments in group), "call": call}))
            continue
        for place, spec in enumerate(group):
            joined.append(_joined_inside(spec, _first(group[place + 1 :], after), is_planar))
            is_planar = is_planar or not (CONVERSIONS | TENSOR_ONLY).isdisjoint(_names([spec]))
    return joined


def _joined_inside(spec: Spec, following: _Next, is_planar: bool) -> Spec:
    name, arguments = spec
    inner = _inner(spec)
    if not inner:
        return spec
    if name in _LISTS:
        return name, arguments | {"transforms": _joined(inner, following, is_planar)}
    if name == "RandomOrder":
        following = following.union(*(_first([branch], following) for branch in inner))
    branches = [_joined([branch], following, is_planar)[0] for branch in inner]
    return name, arguments | {"transforms": branches}


def _first(chain: list[Spec], following: _Next) -> _Next:
    """What a chain may begin with; `following` is what comes after it."""
    found: _Next = frozenset()
    for spec in chain:
        inner = _inner(spec)
        if not inner:
            return found | {spec[0]}
        chains = [inner] if spec[0] in _LISTS else [[branch] for branch in inner]
        firsts = found.union(*(_first(one, _SKIPPED) for one in chains), _SKIPPED if spec[0] == "RandomApply" else ())
        found = firsts - _SKIPPED
        if firsts == found:
            return found
    return found | following


def _only(following: _Next) -> str | None:
    """The one name that follows; no meaningful name if it depends on a choice."""
    return next(iter(following)) if len(following) == 1 else "a choice"


def python_calls(
    calls: list[Callable[[Any], Any]], following: str | None, is_planar: bool = False
) -> python_values.Calls:
    """Callables as the pipeline calls them, by the transform that follows; `is_planar` if a tensor goes in."""
    return python_values.Calls(
        calls,
        keeps_all=following == "Custom",
        keeps_arrays=following is None,
        # torchvision's conversions take every array for a picture.
        is_planar=is_planar and following not in CONVERSIONS,
        is_scaled=following == "ToTensor",
    )


def python_names(chain: list[Spec]) -> list[str]:
    """The transforms of a settled chain that run as Python code."""
    names: list[str] = []
    for spec in chain:
        names += [spec[1]["name"]] if spec[0] == "Custom" else python_names(_inner(spec))
    return names


def last_python_name(chain: list[Spec]) -> str | None:
    """The transform that a settled chain ends in, or may end in, where that runs as Python code."""
    if not chain:
        return None
    name, arguments = chain[-1]
    if name == "Custom":
        return str(arguments["name"]).rpartition(_THEN)[2]
    inner = _inner(chain[-1])
    ends = [inner] if name in _LISTS else [[branch] for branch in inner]
    return next((found for end in ends if (found := last_python_name(end)) is not None), None)


def gives_tensors(chain: list[Spec]) -> bool | None:
    """Whether samples leave a settled chain as tensors; `None` if only the samples will tell."""
    form = _form_at_end(chain, "image")
    return None if form == "unknown" else form != "image"


def check_form(chain: Any, is_opened: bool, form: Form, is_collated: bool) -> None:
    """Refuses pictures where tensors are needed.

    `is_opened`: samples come from the user's own loader; `is_collated`: the engine or torch has to make batches of
    them.
    """
    is_picture = not is_opened and gives_tensors(chain) is False
    if not is_picture or form.dtype == "uint8":  # as bytes, pictures make a batch
        return
    if form.is_given:
        raise ConfigError(
            "dtype and memory_format: expected transforms that end in tensors, got PIL images",
            hint='end the transforms with ToTensor(), or with PILToTensor() and dtype="uint8"',
        )
    if is_collated:
        raise ConfigError(
            "transform: expected transforms that end in tensors, got PIL images, which do not make a batch",
            hint='end the transforms with ToTensor(), or pass a collate_fn or dtype="uint8"',
        )
