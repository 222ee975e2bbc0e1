"""LitData, with pictures as its documentation writes them: leaves of the type `jpeg`, which are the files as they are.

It decodes them itself, by torchvision. Bytes and numbers it would put into an Arrow table behind the chunk.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from peers import litdata
from peers.torch_v2 import AUGMENT, CHECKS


def sample(path: str) -> dict[str, Any]:
    """What a chunk holds of a file: Pillow's picture of it, of which LitData writes the file."""
    return {"image": Image.open(path), "label": int(Path(path).parent.name)}


def convert(folder: Path, target: Path) -> None:
    """Chunks of 16 MB."""
    litdata.optimize(sample, folder, target)


def augmented(item: dict[str, Any], check: str) -> tuple[Any, int]:
    """A training sample."""
    return (CHECKS[check] if check else AUGMENT)(item["image"]), item["label"]


def loader(folder: str, threads: int, ahead: int | None = None, check: str = "") -> Iterable[Any]:
    """As the other one."""
    return litdata.loader(folder, threads, ahead, check, augmented)
