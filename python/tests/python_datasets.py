"""Datasets of a user's own, for the tests of the drop-in loader: importable, so that workers find them."""

import errno
import random
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils import data

from forebay import errors

Pair = namedtuple("Pair", ["image", "label"])


class Noisy(data.Dataset[Any]):
    """Each sample has its index, and a random number of torch, of Python and of NumPy."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[int]:
        drawn = int(torch.randint(0, 10**6, (1,)))
        return [int(index), drawn, random.randrange(10**6), int(numpy.random.randint(10**6))]


class Nested(data.Dataset[Any]):
    """Samples of all the shapes that torch's collation knows."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "pair": Pair(torch.full((2,), index), str(index)),
            "array": numpy.arange(3) + index,
            "numbers": (index, index / 2),
            "bytes": bytes([index]),
        }


class Many(data.Dataset[int]):
    """Has `__getitems__`, and refuses to be asked for one."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        raise AssertionError("asked for one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


class Who(data.Dataset[Any]):
    """Tells which worker makes a sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        info = data.get_worker_info()
        if info is None:
            return (-1, -1, -1, -1)
        return (info.id, info.num_workers, info.seed, torch.initial_seed())


class Bad(data.Dataset[int]):
    """Fails at some indices."""

    def __init__(self, length: int, bad: dict[int, Exception]) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.bad[index]
        return index


class Flaky(data.Dataset[int]):
    """Fails with EIO the first two times that any sample is asked for."""

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.asked[index] = self.asked.get(index, 0) + 1
        if index == 2 and self.asked[index] < 3:
            raise OSError(errno.EIO, "Input/output error", "/data/2")
        return index


class TwoWordsError(Exception):
    """Cannot be made from one message."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(first, second)
        self.second = second


class Stream(data.IterableDataset[int]):
    """Counts, each worker in its own range; cannot say where it is."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        if info is None:
            return iter(range(sum(self.sizes)))
        first = sum(self.sizes[: info.id])
        return iter(range(first, first + self.sizes[info.id]))


class Counter:
    """An iterator that can say where it is."""

    def __init__(self, values: range) -> None:
        self.values, self.at = values, 0

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        if self.at >= len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StatefulStream(Stream):
    """The same, with an iterator that has a state. Counts how often it was asked, to show that nothing is replayed."""

    def __iter__(self) -> Iterator[int]:
        inner = super().__iter__()
        values = list(inner)
        return Counter(range(values[0], values[-1] + 1) if values else range(0))  # type: ignore[return-value]


class Remembering(data.IterableDataset[int]):
    """Its state is the very list that it goes on with."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.given: list[int] = []

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        for number in range(len(self.given), self.sizes[0 if info is None else info.id]):
            self.given.append(number)
            yield number

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class Counting(data.Dataset[torch.Tensor]):
    """Map-style, with a state: how many samples each worker's copy has made is what they are."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.counts: dict[str, int] = {}

    def __len__(self) -> int:
        return self.length

    def _who(self) -> str:
        info = data.get_worker_info()
        return str(0 if info is None else info.id)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.counts[self._who()] = made = self.counts.get(self._who(), 0) + 1
        return torch.tensor(made)

    def state_dict(self) -> dict[str, int]:
        return {"made": self.counts.get(self._who(), 0)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.counts[self._who()] = state["made"]


class StatefulSampler(data.Sampler[int]):
    """A sampler with a state, whose order no second pass repeats."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __iter__(self) -> Iterator[int]:
        while self.given < self.length:
            self.given += 1
            yield self.given - 1
        self.given = 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Drawing(data.Sampler[int]):
    """Draws when it is asked for its iterator: in torch, at another time than one that draws later."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


class Pictures(data.Dataset[Any]):
    """JPEGs of a folder, read in Python: one without its end is damaged. Notes each sample that is asked for."""

    def __init__(self, paths: list[str], asked: str | None = None) -> None:
        self.paths, self.asked = paths, asked

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.asked is not None:
            with open(self.asked, "a") as file:
                file.write(f"{index}\n")
        path = self.paths[index]
        with open(path, "rb") as file:
            content = file.read()
        if not content.endswith(b"\xff\xd9"):
            raise errors.CorruptError(f'"{path}" is truncated', path=path, index=index, stage="decode")
        return torch.zeros(3), int(index)
