"""A dataset whose module imports much: what `startup.py` measures with."""

import pandas
import torch
import torchvision


class Heavy(torch.utils.data.Dataset[torch.Tensor]):
    """The same tensors, by way of a table and a transform."""

    def __init__(self) -> None:
        self._table = pandas.DataFrame({"value": range(256)})
        self._flip = torchvision.transforms.RandomHorizontalFlip(0.0)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> torch.Tensor:
        flipped: torch.Tensor = self._flip(torch.full((64,), int(self._table["value"][index])))
        return flipped
