"""Instances of torchvision's own transforms, of either version, as native ones. Never imports torchvision."""

from collections.abc import Callable, Iterable
from typing import Any

from forebay import transforms
from forebay._pipeline import Spec
from forebay.errors import ConfigError

_MODULE = "torchvision.transforms"

# torchvision keeps each argument under its own name, so that one list of names serves both versions.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "Resize": ("size", "interpolation", "max_size", "antialias"),
    "CenterCrop": ("size",),
    "RandomCrop": ("size", "padding", "pad_if_needed", "fill", "padding_mode"),
    "RandomResizedCrop": ("size", "scale", "ratio", "interpolation", "antialias"),
    "RandomHorizontalFlip": ("p",),
    "RandomVerticalFlip": ("p",),
    "Pad": ("padding", "fill", "padding_mode"),
    "Grayscale": ("num_output_channels",),
    "RandomGrayscale": ("p",),
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "GaussianBlur": ("kernel_size", "sigma"),
    "RandomRotation": ("degrees", "interpolation", "expand", "center", "fill"),
    "RandomErasing": ("p", "scale", "ratio", "value"),
    "ToTensor": (),
    "ToImage": (),
    "PILToTensor": (),
    "ToDtype": ("dtype", "scale"),
    "Normalize": ("mean", "std"),
}


def _is_own(transform: object) -> bool:
    # Exact classes only: a subclass may do something else.
    return type(transform).__module__.startswith(_MODULE)


def parts(transform: Any) -> Iterable[Any] | None:
    """What a container of torchvision or torch is made of; `None` if it is none."""
    kind = f"{type(transform).__module__}.{type(transform).__qualname__}"
    if kind == "torch.nn.modules.container.Sequential":
        return list(transform)
    if _is_own(transform) and type(transform).__name__ == "Compose":
        return list(transform.transforms)
    if _is_own(transform) and type(transform).__name__ == "ToPureTensor":
        return []  # the native pipeline knows no other tensors
    return None


def native(transform: Callable[[Any], Any]) -> Spec | None:
    """The native twin of a transform; `None` if there is none that takes its arguments."""
    name = type(transform).__name__
    if not _is_own(transform):
        return None
    if name == "ConvertImageDtype":
        name, arguments = "ToDtype", {"dtype": getattr(transform, "dtype", None), "scale": True}
    elif name in _ARGUMENTS:
        arguments = {argument: getattr(transform, argument) for argument in _ARGUMENTS[name]}
    else:
        return None
    if name == "RandomErasing" and arguments["value"] is None:
        arguments["value"] = "random"  # version 2 keeps it so
    try:
        twin: transforms.Transform = getattr(transforms, name)(**arguments)
    except (ConfigError, TypeError, AttributeError):
        return None
    return twin._specs()[0]
