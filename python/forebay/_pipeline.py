"""From what a user gives as `transform` to the native pipeline.

Native transforms become specs (name, arguments); torchvision's own instances are translated where that gives the
same picture; every other callable runs as it is, under the GIL.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from forebay import _forebay, _numpy, _torch, _values
from forebay._values import name_of
from forebay.errors import ConfigError

Spec = tuple[str, dict[str, Any]]

# Between the names of Python callables that follow each other.
_THEN = " → "

# Pixels are interpolated and recoloured as bytes, as Pillow does it: these take pictures, not tensors.
PICTURE_ONLY = frozenset({"Resize", "RandomResizedCrop", "ColorJitter", "GaussianBlur", "RandomRotation"})
TENSOR_ONLY = frozenset({"ToDtype", "Normalize"})
CONVERSIONS = frozenset({"ToTensor", "ToImage"})


class Transform:
    """A native transform: data that the pipeline checks, prints and runs.

    Called by itself on a PIL image, a NumPy array (height, width, channels) or a tensor (channels, height, width) it
    gives what torchvision's would; its randomness then comes from torch's generator.
    """

    def _specs(self) -> list[Spec]:
        return [(type(self).__name__, {name: getattr(value, "value", value) for name, value in vars(self).items()})]

    def __call__(self, picture: Any) -> Any:
        chain = settle(specs(self))
        names = [name for name, _ in chain]
        is_array = isinstance(picture, numpy.ndarray)
        # Without torch, this is what `ToTensor` gave.
        is_planar = is_array and picture.dtype == numpy.float32 and not _torch.is_available()
        is_planar = is_planar and names[:1] != ["ToTensor"]
        value = _values.from_python(_values.scaled(picture) if names[:1] == ["ToTensor"] else picture, is_planar)
        if value[0] == "tensor":
            # A conversion leaves what is a tensor already; here it tells the check what comes.
            chain.insert(0, ("ToTensor" if value[2] == "float32" else "ToImage", {}))
        result = _forebay.apply(_forebay.Pipeline(chain), value, _torch.draw_seed())
        if not isinstance(result, _forebay.Array):
            return result
        if result.kind == "image":
            return _values.to_python(result) if _values.is_pillow(picture) else _numpy.tensor(result)
        if is_array and not is_planar and CONVERSIONS.isdisjoint(names) and "Custom" not in names:
            return _numpy.tensor(result).transpose(1, 2, 0)  # an array as it came
        return _values.to_python(result)

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


def specs(transform: Any) -> list[Spec]:
    """The specs of a transform of any kind, in the order they run."""
    if transform is None:
        return []
    if isinstance(transform, Transform):
        return transform._specs()
    from forebay import _torchvision  # it makes native transforms, which are made of this module

    if (parts := _torchvision.parts(transform)) is not None:
        return sequence(parts)
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
    if (native := _torchvision.native(transform)) is not None:
        return [("Torchvision", {"native": native, "call": transform})]
    return [custom(transform)]


def sequence(transforms: Iterable[Any]) -> list[Spec]:
    return [spec for transform in transforms for spec in specs(transform)]


def settle(chain: list[Spec]) -> list[Spec]:
    """Decides for each of torchvision's instances whether its native twin does the same where it stands, and makes one
    of Python callables that follow each other.

    After a Python callable nobody knows what the value is; torchvision's transforms take pictures and tensors of any
    type, the native ones only what they were checked for.
    """
    settled: list[Spec] = []
    form = "image"
    for name, arguments in chain:
        spec = (name, arguments)
        if name == "Torchvision":
            twin: Spec = arguments["native"]
            spec = twin if _is_same(twin[0], form) else custom(arguments["call"])
        settled.append(spec)
        form = _form_after(spec, form)
    return _joined(_pictures_first(settled))


def _is_same(name: str, form: str) -> bool:
    if name in CONVERSIONS:
        return True
    if name in PICTURE_ONLY:
        return form in ("image", "uint8")
    if name in TENSOR_ONLY:
        return form in ("uint8", "float32")
    return form != "unknown"


def _form_after(spec: Spec, form: str) -> str:
    name, arguments = spec
    if name == "Custom":
        return "unknown"
    if name in CONVERSIONS and form in ("image", "unknown"):
        return "float32" if name == "ToTensor" else "uint8"
    return str(arguments["dtype"]) if name == "ToDtype" else form


def _pictures_first(chain: list[Spec]) -> list[Spec]:
    """Moves `ToImage` behind the transforms that take pictures only, as in torchvision's recommended order
    (ToImage, RandomResizedCrop, ToDtype): a picture and a uint8 tensor are the same bytes in another layout.
    """
    names = [name for name, _ in chain]
    if "ToImage" not in names:
        return chain
    start = names.index("ToImage")
    ends = (position for position, name in enumerate(names) if position > start and name in _ENDS_OF_PICTURES)
    end = next(ends, len(chain))
    last = max((position for position in range(start, end) if names[position] in PICTURE_ONLY), default=start)
    return chain[:start] + chain[start + 1 : last + 1] + [chain[start]] + chain[last + 1 :]


_ENDS_OF_PICTURES = TENSOR_ONLY | CONVERSIONS | {"Custom"}


def _joined(chain: list[Spec]) -> list[Spec]:
    """Makes one of Python callables that follow each other: what one returns is what the next one gets."""
    joined: list[Spec] = []
    is_planar = False
    groups = [(key, list(group)) for key, group in itertools.groupby(chain, lambda spec: spec[0] == "Custom")]
    for position, (is_custom, group) in enumerate(groups):
        if not is_custom:
            joined += group
            is_planar = is_planar or any(name in CONVERSIONS | TENSOR_ONLY for name, _ in group)
            continue
        following = groups[position + 1][1][0][0] if position + 1 < len(groups) else None
        call = python_calls([arguments["call"] for _, arguments in group], following, is_planar)
        joined.append(("Custom", {"name": _THEN.join(arguments["name"] for _, arguments in group), "call": call}))
    return joined


def python_calls(calls: list[Callable[[Any], Any]], following: str | None, is_planar: bool = False) -> _values.Calls:
    """Callables as the pipeline calls them, by the transform that follows; `is_planar` if a tensor goes in."""
    return _values.Calls(
        calls,
        keeps_all=following == "Custom",
        keeps_arrays=following is None,
        # torchvision's conversions take every array for a picture.
        is_planar=is_planar and following not in CONVERSIONS,
        is_scaled=following == "ToTensor",
    )


def python_names(chain: list[Spec]) -> list[str]:
    """The transforms of a settled chain that run as Python code."""
    return [arguments["name"] for name, arguments in chain if name == "Custom"]


def last_python_name(chain: list[Spec]) -> str | None:
    """The transform that a settled chain ends in, where that runs as Python code."""
    return str(chain[-1][1]["name"]).rpartition(_THEN)[2] if chain and chain[-1][0] == "Custom" else None


def gives_tensors(chain: list[Spec]) -> bool | None:
    """Whether samples leave a settled chain as tensors; `None` if only the samples will tell."""
    form = "image"
    for spec in chain:
        form = _form_after(spec, form)
    return None if form == "unknown" else form != "image"
