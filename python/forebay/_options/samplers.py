"""Torch's three samplers, for loaders of machines without torch: the same names, the same meaning."""

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any


class SequentialSampler:
    """Every index, in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(SequentialSampler):
    """Every index once, in the order of a seed."""

    def __init__(self, data_source: Sized, seed: int | None = None) -> None:
        super().__init__(data_source)
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        indices = list(range(len(self)))
        random.Random(random.getrandbits(63) if self.seed is None else self.seed).shuffle(indices)
        return iter(indices)


class BatchSampler:
    """Batches of another sampler's indices."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


class EndlessSampler:
    """What an iterable dataset has in place of indices."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None
