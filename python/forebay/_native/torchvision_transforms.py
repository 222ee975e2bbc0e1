"""Instances of torchvision's own transforms, of either version, as native ones. Never imports torchvision."""

from collections.abc import Callable, Iterable
from typing import Any

from forebay import transforms
from forebay._native.pipeline import ARGUMENTS, TAKES, Spec
from forebay.errors import ConfigError

_MODULE = "torchvision.transforms"


def _is_own(transform: object) -> bool:
    # Exact classes only: a subclass may do something else.
    return type(transform).__module__.startswith(_MODULE)


def parts(transform: Any) -> Iterable[Any] | None:
    """The members of a torchvision or torch container; `None` if it is not a container."""
    kind = f"{type(transform).__module__}.{type(transform).__qualname__}"
    if kind == "torch.nn.modules.container.Sequential":
        return list(transform)
    if _is_own(transform) and type(transform).__name__ == "Compose":
        return list(transform.transforms)
    if _is_own(transform) and type(transform).__name__ == "ToPureTensor":
        return []  # the native pipeline knows no other tensors
    return None


def nested(transform: Any) -> transforms.Transform | None:
    """The native equivalent of a container of transforms; `None` if it is not one, or has no equivalent."""
    name = type(transform).__name__
    if not _is_own(transform) or TAKES.get(name) != "as its transforms":
        return None
    inner = list(transform.transforms)
    arguments = {argument: getattr(transform, argument) for argument in ARGUMENTS[name]}
    # Those in it are checked where they are translated: here each level would do it again for all below.
    twin = _made(name, arguments | {"transforms": [transforms.ToImage()] * len(inner)})
    if twin is not None:
        vars(twin)["transforms"] = inner
    return twin


def native(transform: Callable[[Any], Any]) -> Spec | None:
    """The native equivalent of a transform; `None` if none accepts its arguments."""
    name = type(transform).__name__
    if not _is_own(transform):
        return None
    if name == "ConvertImageDtype":
        name, arguments = "ToDtype", {"dtype": getattr(transform, "dtype", None), "scale": True}
    elif name == "PILToTensor":
        name, arguments = "ToImage", {}
    elif name in ARGUMENTS:
        # torchvision keeps each argument under its own name.
        arguments = {argument: getattr(transform, argument) for argument in ARGUMENTS[name]}
    else:
        return None
    if name == "RandomErasing" and arguments["value"] is None:
        arguments["value"] = "random"  # version 2 keeps it so
    twin = _made(name, arguments)
    return None if twin is None else twin._specs()[0]


def _made(name: str, arguments: dict[str, Any]) -> transforms.Transform | None:
    try:
        twin: transforms.Transform = getattr(transforms, name)(**arguments)
    except (ConfigError, TypeError, AttributeError):
        return None
    return twin
