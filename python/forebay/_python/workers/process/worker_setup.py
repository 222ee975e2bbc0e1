"""Sets up a process or a thread as a worker: seeds, torch's `get_worker_info()`, the user's `worker_init_fn`."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forebay._arrays import torch_data
from forebay._python.workers.job import Job
from forebay._python.workers.process import seeds


def enter_process(job: Job, shard: int) -> None:
    """Makes this process the worker of a shard, before its first task. Exceptions of `worker_init_fn` are passed on."""
    seed = seeds.of_worker(job.base_seed, shard)
    if job.output == "torch":
        torch_data.use_one_thread()
        if job.shard_count:
            torch_data.set_worker_info(shard, job.shard_count, seed, job.dataset)
    if job.worker_init_fn is not None:
        job.worker_init_fn(shard)


def of_thread(job: Job, shard: int) -> Any | None:
    """The worker info of a thread that works for a shard; `None` if it has none.

    The generators of random numbers are those of the whole process, so they are not seeded; `get_worker_info().rng` has
    some of the worker's own, which continue from batch to batch.
    """
    if job.output != "torch" or not job.shard_count:
        return None
    return torch_data.thread_info(shard, job.shard_count, job.base_seed + shard, job.dataset)


def reseeding(info: Any | None) -> Callable[[int], None]:
    """A function that seeds a thread's own generators for one sample."""
    rng = getattr(info, "rng", None)
    return _nothing if rng is None else functools.partial(seeds.of_generators, rng)


def _nothing(number: int) -> None:
    pass


@contextmanager
def in_thread(info: Any | None) -> Iterator[None]:
    """Makes this thread a worker, for as long as it lasts. Only this thread sees it."""
    if info is None:
        yield
        return
    before = torch_data.set_thread_info(info)
    try:
        yield
    finally:
        torch_data.set_thread_info(before)
