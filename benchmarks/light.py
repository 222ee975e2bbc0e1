"""A dataset whose module imports little: what `startup.py` measures with."""

import torch


class Light(torch.utils.data.Dataset[torch.Tensor]):
    """Small tensors."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), index)
