"""Batches of texts, as the others deliver theirs: content and labels."""

from collections.abc import Iterable, Iterator
from typing import Any


class Texts:
    """Texts have no labels."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield (batch["text"] if isinstance(batch, dict) else batch), None
