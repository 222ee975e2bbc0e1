"""What forebay's folders share with torchvision's: base classes, `transforms`, the wrapper for transforms v2.

torchvision is never imported here: before the program has imported it, nothing can be asked about it.
"""

from collections.abc import Callable
from typing import Any

from forebay._arrays.optional_packages import imported


def folder_class(name: str) -> type | None:
    """`torchvision.datasets.DatasetFolder` or `ImageFolder`, where torchvision is imported."""
    return getattr(imported("torchvision.datasets"), name, None)


class StandardTransform:
    """A transform and a target transform as one, as torchvision keeps them in `transforms`."""

    def __init__(
        self, transform: Callable[[Any], Any] | None = None, target_transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform

    def __call__(self, sample: Any, target: Any) -> tuple[Any, Any]:
        made = sample if self.transform is None else self.transform(sample)
        return made, target if self.target_transform is None else self.target_transform(target)

    def __repr__(self) -> str:
        given = (("Transform: ", self.transform), ("Target transform: ", self.target_transform))
        shown = (line for head, call in given if call is not None for line in indented(head, call))
        return "\n".join([type(self).__name__, *shown])


def indented(head: str, call: object) -> list[str]:
    """The lines of a callable's `repr`, each as far to the right as the first, which stands behind a heading."""
    first, *rest = repr(call).splitlines()
    return [f"{head}{first}", *(" " * len(head) + line for line in rest)]


def standard_transform(transform: Any, target_transform: Any) -> Any:
    """What torchvision's datasets have as `transforms`: its own class where it is imported."""
    if transform is None and target_transform is None:
        return None
    kind = getattr(imported("torchvision.datasets.vision"), "StandardTransform", StandardTransform)
    return kind(transform, target_transform)


def portable(transforms: Any) -> Any:
    """What is pickled for `transforms`: unpickling it imports no torchvision."""
    is_theirs = type(transforms).__module__.partition(".")[0] == "torchvision" and _is_standard(transforms)
    return StandardTransform(transforms.transform, transforms.target_transform) if is_theirs else transforms


def unpickled(transforms: Any) -> Any:
    """What `portable` gave, as torchvision's class where it is imported."""
    if type(transforms) is not StandardTransform:
        return transforms
    return standard_transform(transforms.transform, transforms.target_transform)


def _is_standard(transforms: Any) -> bool:
    return type(transforms).__name__ == StandardTransform.__name__


def are_joint(transforms: Any, transform: Any, target_transform: Any) -> bool:
    """Whether `transforms` does what the other two do."""
    parts = getattr(transforms, "transform", None), getattr(transforms, "target_transform", None)
    return (transforms is None or _is_standard(transforms)) and parts[0] is transform and parts[1] is target_transform


def unwrapped(dataset: Any) -> Any | None:
    """What `wrap_dataset_for_transforms_v2` wrapped, with its transforms; `None` for everything else.

    The wrapper leaves samples of folders as they are. It takes the transforms away from the dataset, to apply them
    itself.
    """
    wrapper = getattr(imported("torchvision.tv_tensors._dataset_wrapper"), "VisionDatasetTVTensorWrapper", None)
    if wrapper is None or not isinstance(dataset, wrapper):
        return None
    # Pickling, it gives the transforms back to a copy.
    _, (plain, _) = dataset.__reduce__()
    return plain


def wrapped(dataset: Any) -> Any:
    """A dataset in the wrapper for transforms v2, which is imported then."""
    module: Any = imported("torchvision.datasets")
    return module.wrap_dataset_for_transforms_v2(dataset)
