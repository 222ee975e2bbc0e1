"""Random numbers of the dataset's code: torch's streams for each worker, or a key for each sample.

NumPy and torch are seeded only where they are imported: code that does not import them cannot use them.
"""

import hashlib
import random
from typing import Any

from forebay._arrays import torch_data
from forebay._arrays.optional_packages import imported


def of_worker(base_seed: int, shard: int) -> int:
    """Seeds this process as torch seeds its worker. Returns the seed for `get_worker_info()`."""
    seed = base_seed + shard
    random.seed(seed)
    torch_data.seed(seed)
    if (numpy := imported("numpy")) is not None:
        # What torch computes by itself, to the same result, so that torch need not be imported for it.
        entropy = (shard, base_seed & 0xFFFFFFFF, base_seed >> 32, 0)
        numpy.random.seed(numpy.random.SeedSequence(entropy).generate_state(4))
    return seed


def key(seed: int, epoch: int, index: Any) -> int:
    """64 bits of a sample's own, wherever it is made."""
    text = repr((seed, epoch, int(index) if hasattr(index, "__index__") else index))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def of_process(number: int) -> None:
    """Seeds this process for one sample."""
    random.seed(number)
    if (numpy := imported("numpy")) is not None:
        numpy.random.seed((number & 0xFFFFFFFF, number >> 32))
    torch_data.seed(number)


def of_generators(rng: Any, number: int) -> None:
    """Seeds what `get_worker_info().rng` holds for one sample: a thread must not seed what all of them draw from."""
    rng.random_generator.seed(number)
    rng.torch_generator.manual_seed(number)
    if rng.numpy_generator is not None and (numpy := imported("numpy")) is not None:
        rng.numpy_generator.bit_generator.state = numpy.random.PCG64(number).state


class Kept:
    """The random numbers of this process as they are: put back afterwards, whatever was seeded in between."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = imported("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._torch = torch_data.random_state()

    def put_back(self) -> None:
        """Restores their state."""
        random.setstate(self._python)
        if self._numpy is not None and (numpy := imported("numpy")) is not None:
            numpy.random.set_state(self._numpy)
        torch_data.set_random_state(self._torch)
