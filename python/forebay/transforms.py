"""Transforms with the names, arguments, defaults and random distributions of `torchvision.transforms.v2`.

They run in the loader's threads, without the GIL. Random parameters come from the loader's seed, the epoch and the
sample alone. `docs/transforms.md` states how near the pictures are to torchvision's.

>>> from forebay import transforms as T
>>> T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()])
Compose(
    Resize(size=[256], interpolation=bilinear, antialias=True)
    CenterCrop(size=(224, 224))
    ToTensor()
)
"""

from collections.abc import Callable, Sequence
from typing import Any

from forebay._arrays.python_values import name_of
from forebay._native.pipeline import Spec, Transform, branches, sequence
from forebay._options import transform_arguments as check
from forebay._options.transform_arguments import InterpolationMode

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "GaussianBlur",
    "Grayscale",
    "InterpolationMode",
    "Lambda",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomOrder",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "Transform",
]

Size = int | Sequence[int]
Fill = float | Sequence[float] | None


class _Nested(Transform):
    """Transforms made of transforms and of callables. Which of them run changes nothing of what others draw."""

    transforms: list[Callable[[Any], Any]]

    def _take(self, transforms: Any) -> None:
        given = list(transforms) if isinstance(transforms, Sequence) or _is_module_list(transforms) else []
        if not given or isinstance(transforms, str):
            raise check.problem(type(self).__name__, "transforms", "a list of at least one transform", transforms)
        self.transforms = given
        sequence(given, 2)  # says now what is not a transform

    def __repr__(self) -> str:
        settings = [f"{name}={value}" for name, value in vars(self).items() if name != "transforms"]
        shown = [*settings, *(line for transform in self.transforms for line in repr(transform).splitlines())]
        return "\n".join([f"{type(self).__name__}(", *(f"    {line}" for line in shown), ")"])


def _is_module_list(transforms: object) -> bool:
    kind = type(transforms)
    return f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.modules.container.ModuleList"


class Compose(_Nested):
    """Several transforms, one after the other. Any callable may be among them; it then runs under the GIL."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._take(transforms)

    def _specs(self, depth: int = 1) -> list[Spec]:
        return sequence(self.transforms, depth + 1)


class RandomApply(_Nested):
    """Does all of the transforms, one after the other, with probability `p`; otherwise none of them."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: float = 0.5) -> None:
        self._take(transforms)
        self.p = check.probability("RandomApply", p)

    def _specs(self, depth: int = 1) -> list[Spec]:
        return [("RandomApply", {"transforms": sequence(self.transforms, depth + 1), "p": self.p})]


class RandomChoice(_Nested):
    """Does one of the transforms, chosen with the probabilities `p`, or each as often as the others."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: Sequence[float] | None = None) -> None:
        self._take(transforms)
        count = len(self.transforms)
        weights = [1.0] * count if p is None else check.sequence(p, (count,), check.is_number)
        if weights is None or min(weights) < 0 or sum(weights) <= 0:
            raise check.problem("RandomChoice", "p", f"{count} numbers, 0 or more, with a sum above 0", p)
        self.p = [float(weight) / sum(weights) for weight in weights]

    def _specs(self, depth: int = 1) -> list[Spec]:
        return [("RandomChoice", {"transforms": branches(self.transforms, depth + 1), "p": self.p})]


class RandomOrder(_Nested):
    """Does all of the transforms, in random order."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._take(transforms)

    def _specs(self, depth: int = 1) -> list[Spec]:
        return [("RandomOrder", {"transforms": branches(self.transforms, depth + 1)})]


class Resize(Transform):
    """Resizes: one number is the shorter edge, two are height and width, `None` lets `max_size` be the longer edge."""

    def __init__(
        self,
        size: Size | None,
        interpolation: InterpolationMode | str | int = InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        one_or_two = [size] if check.is_length(size) else check.sequence(size, (1, 2), check.is_length)
        if size is not None and (one_or_two is None or 0 in one_or_two):
            raise check.problem("Resize", "size", "one or two whole numbers, 1 or more, or None", size)
        if max_size is not None and not check.is_length(max_size):
            raise check.problem("Resize", "max_size", "a whole number or None", max_size)
        self.size = one_or_two
        self.interpolation = check.interpolation("Resize", interpolation)
        self.max_size = max_size
        self.antialias = antialias is not False


class CenterCrop(Transform):
    """Cuts out the middle; a smaller picture is padded with 0."""

    def __init__(self, size: Size) -> None:
        self.size = check.size("CenterCrop", "size", size)


class RandomCrop(Transform):
    """Cuts out a random place."""

    def __init__(
        self,
        size: Size,
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = check.size("RandomCrop", "size", size)
        self.padding = None if padding is None else check.padding("RandomCrop", padding)
        self.pad_if_needed = check.flag("RandomCrop", "pad_if_needed", pad_if_needed)
        self.fill = check.values("RandomCrop", "fill", fill)
        self.padding_mode = check.padding_mode("RandomCrop", padding_mode)


class RandomResizedCrop(Transform):
    """Cuts out a random part of random area and aspect ratio, and resizes it."""

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: InterpolationMode | str | int = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:
        self.size = check.size("RandomResizedCrop", "size", size)
        self.scale = check.span("RandomResizedCrop", "scale", scale, 0)
        self.ratio = check.span("RandomResizedCrop", "ratio", ratio, 0)
        self.interpolation = check.interpolation("RandomResizedCrop", interpolation)
        self.antialias = antialias is not False


class RandomHorizontalFlip(Transform):
    """Mirrors left and right with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = check.probability("RandomHorizontalFlip", p)


class RandomVerticalFlip(Transform):
    """Mirrors top and bottom with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = check.probability("RandomVerticalFlip", p)


class Pad(Transform):
    """Adds a border: one width for all sides, two for left/right and top/bottom, or four (left, top, right, bottom)."""

    def __init__(self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant") -> None:
        self.padding = check.padding("Pad", padding)
        self.fill = check.values("Pad", "fill", fill)
        self.padding_mode = check.padding_mode("Pad", padding_mode)


class Grayscale(Transform):
    """Makes it grey, with 1 channel or 3 equal ones."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise check.problem("Grayscale", "num_output_channels", "1 or 3", num_output_channels)
        self.num_output_channels = num_output_channels


class RandomGrayscale(Transform):
    """Makes it grey with probability `p`; the number of channels stays."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = check.probability("RandomGrayscale", p)


class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue by random factors, in random order."""

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        self.brightness = self._range("brightness", brightness)
        self.contrast = self._range("contrast", contrast)
        self.saturation = self._range("saturation", saturation)
        self.hue = self._range("hue", hue, centre=0.0, least=-0.5, most=0.5)

    @staticmethod
    def _range(
        name: str, value: Any, centre: float = 1.0, least: float = 0.0, most: float = float("inf")
    ) -> tuple[float, float] | None:
        if value is None:
            return None
        if check.is_number(value):
            if value < 0:
                raise check.problem("ColorJitter", name, "a number of 0 or more, or (smallest, largest)", value)
            value = (max(centre - value, 0.0) if centre else -value, centre + value)
        low, high = check.span("ColorJitter", name, value, least, most)
        return None if low == high == centre else (low, high)


class GaussianBlur(Transform):
    """Blurs with a Gaussian whose deviation is drawn from `sigma` (smallest, largest)."""

    def __init__(self, kernel_size: Size, sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        self.kernel_size = check.size("GaussianBlur", "kernel_size", kernel_size)
        if any(edge % 2 == 0 for edge in self.kernel_size):
            raise check.problem("GaussianBlur", "kernel_size", "odd numbers", kernel_size)
        items: Any = [sigma] if check.is_number(sigma) else check.sequence(sigma, (1, 2), check.is_number)
        if items is None or not 0 < items[0] <= items[-1]:
            raise check.problem("GaussianBlur", "sigma", "one or two numbers (smallest, largest) above 0", sigma)
        self.sigma = (float(items[0]), float(items[-1]))


class RandomRotation(Transform):
    """Turns by a random angle in degrees, counter-clockwise; one number means (-degrees, +degrees)."""

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: InterpolationMode | str | int = InterpolationMode.NEAREST,
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        if isinstance(degrees, (int, float)):
            if degrees < 0:
                raise check.problem("RandomRotation", "degrees", "a number of 0 or more, or two", degrees)
            degrees = (-degrees, degrees)
        column_and_row = check.sequence(center, (2,), check.is_number)
        if center is not None and column_and_row is None:
            raise check.problem("RandomRotation", "center", "two numbers (column, row)", center)
        self.degrees = check.span("RandomRotation", "degrees", degrees, float("-inf"))
        self.interpolation = check.interpolation("RandomRotation", interpolation)
        self.expand = check.flag("RandomRotation", "expand", expand)
        self.center = None if column_and_row is None else tuple(column_and_row)
        self.fill = check.values("RandomRotation", "fill", fill)


class RandomErasing(Transform):
    """Overwrites a random rectangle with probability `p`, with `value` or with random numbers (`"random"`)."""

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
        inplace: bool = False,
    ) -> None:
        del inplace  # what a user could see changed by it does not exist here
        if isinstance(value, str) and value != "random":
            raise check.problem("RandomErasing", "value", 'numbers or "random"', value)
        self.p = check.probability("RandomErasing", p)
        self.scale = check.span("RandomErasing", "scale", scale, 0, 1)
        self.ratio = check.span("RandomErasing", "ratio", ratio, 0)
        self.value = value if isinstance(value, str) else check.values("RandomErasing", "value", value)


class ToTensor(Transform):
    """A picture becomes a float32 tensor (channels, height, width) from 0 to 1."""


class ToImage(Transform):
    """A picture becomes a uint8 tensor (channels, height, width)."""


class PILToTensor(Transform):
    """A picture becomes a uint8 tensor: the same as `ToImage`."""

    def _specs(self, depth: int = 1) -> list[Spec]:
        return [("ToImage", {})]


class ToDtype(Transform):
    """Changes the elements of a tensor to float32 or uint8; `scale` maps 0 to 255 onto 0 to 1, or back.

    `dtype` is torch's, NumPy's, or its name: torch is not imported for it.
    """

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
        name = {"float": "float32"}.get(name, name)
        if name not in ("float32", "uint8"):
            raise check.problem("ToDtype", "dtype", "float32 or uint8", dtype)
        self.dtype: str = name
        self.scale = check.flag("ToDtype", "scale", scale)


class Normalize(Transform):
    """Subtracts `mean` and divides by `std`, each with one value for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        del inplace  # what a user could see changed by it does not exist here
        self.mean = check.numbers("Normalize", "mean", mean)
        self.std = check.numbers("Normalize", "std", std)
        if 0.0 in self.std:
            raise check.problem("Normalize", "std", "numbers other than 0", self.std)


class Lambda(Transform):
    """Calls a function of the user's own, under the GIL; with `types`, only on values of these types."""

    def __init__(self, lambd: Callable[[Any], Any], *types: type) -> None:
        if not callable(lambd):
            raise check.problem("Lambda", "lambd", "a callable", lambd)
        self.lambd = lambd
        self.types = types or (object,)

    def _specs(self, depth: int = 1) -> list[Spec]:
        return [("Custom", {"name": f"Lambda({name_of(self.lambd)})", "call": self})]

    def __call__(self, picture: Any) -> Any:
        """Calls the function, if the value is of one of the types."""
        return self.lambd(picture) if isinstance(picture, self.types) else picture

    def __repr__(self) -> str:
        return f"Lambda({name_of(self.lambd)}, types={[kind.__name__ for kind in self.types]})"
