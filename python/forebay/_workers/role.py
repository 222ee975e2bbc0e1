"""What makes a process or a thread a worker: its seeds, what `torch.utils.data.get_worker_info()` says, the user's
`worker_init_fn`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from forebay import _torch_data
from forebay._workers import seeds
from forebay._workers.job import Job


def enter_process(job: Job, shard: int) -> None:
    """Makes this process the worker of a shard, before its first task. What `worker_init_fn` raises goes through."""
    seed = seeds.of_worker(job.base_seed, shard)
    if job.output == "torch":
        _torch_data.use_one_thread()
        if job.shard_count:
            _torch_data.set_worker_info(shard, job.shard_count, seed, job.dataset)
    if job.worker_init_fn is not None:
        job.worker_init_fn(shard)


@contextmanager
def in_thread(job: Job, shard: int) -> Iterator[None]:
    """Makes this thread the worker of a shard, for as long as it lasts.

    Only this thread sees it. The generators of random numbers are those of the whole process, so they are not seeded;
    `get_worker_info().rng` has some of the worker's own.
    """
    if job.output != "torch" or not job.shard_count:
        yield
        return
    before = _torch_data.set_thread_info(shard, job.shard_count, job.base_seed + shard, job.dataset)
    try:
        yield
    finally:
        _torch_data.restore_thread_info(before)
