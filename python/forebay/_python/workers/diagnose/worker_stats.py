"""Statistics of running worker processes: the sample each one makes, its resource use, its growth."""

import time
from collections.abc import Iterable
from typing import Any

from forebay._python.workers.diagnose.growth import growth_sentence
from forebay._python.workers.job import Job
from forebay._python.workers.process import worker_loop
from forebay._python.workers.process.inline import index_at
from forebay._python.workers.process.resources import ShardQueue, WorkerHandle
from forebay._python.workers.transport import status_page
from forebay._record import notices

_STAGES = {
    status_page.STARTING: "start",
    status_page.IDLE: "idle",
    status_page.SENDING: "deliver",
    status_page.WAITING: "deliver",
    status_page.LEAVING: "idle",
}


def in_flight(queues: Iterable[ShardQueue], job: Job | None, generation: int) -> list[dict[str, Any]]:
    """The sample that each worker makes: shard, pid, number, index, since_seconds, stage."""
    found = []
    now = time.monotonic()
    for queue in queues:
        if (each := queue.worker) is None:
            continue
        stage, began_in, number, position, since = each.page.current()
        task = next((task for task in queue.tasks.copy() if task.number == number), None)
        is_known = task is not None and began_in == generation and job is not None
        if stage in (status_page.IDLE, status_page.LEAVING) or (stage != status_page.STARTING and not is_known):
            continue
        found.append(
            {
                "shard": queue.shard,
                "pid": each.page.pid(),
                "number": number if is_known else None,
                "index": index_at(job, task, position) if is_known and job and task else None,
                "since_seconds": now - since / 1e9 if since else 0.0,
                "stage": _STAGES.get(stage, "transform" if position >= 0 else "assemble"),
            }
        )
    return found


def of_workers(queues: Iterable[ShardQueue]) -> list[dict[str, Any]]:
    """The resource use of each worker, and how many of its batches are still held."""
    found = []
    for queue in queues:
        if (each := queue.worker) is not None:
            memory_bytes, fds, threads, samples = each.page.used()
            found.append(
                {
                    "shard": queue.shard,
                    "pid": each.page.pid(),
                    "rss_bytes": memory_bytes,
                    "fds": fds,
                    "threads": threads,
                    "samples": samples,
                    "batches_held": each.tenancy.lease_count(),
                }
            )
    return found


class Growths:
    """Workers whose memory or descriptors grow. The first one is reported by a warning."""

    def __init__(self) -> None:
        self._by_shard: dict[int, dict[str, Any]] = {}
        self._is_said = False

    def clear(self) -> None:
        self._by_shard.clear()

    def found(self) -> list[dict[str, Any]]:
        return list(self._by_shard.values())

    def look(self, source: WorkerHandle) -> None:
        """Notes what a worker uses."""
        memory_bytes, fds, _, samples = source.page.used()
        source.growth.add(samples, memory_bytes, fds)
        memory, descriptors = source.growth.memory_per_1000(), source.growth.fds_per_1000()
        files = worker_loop.open_files(source.page.pid()) if descriptors is not None else []
        self.note(source, memory, descriptors, files)

    def note(
        self, source: WorkerHandle, memory: float | None, descriptors: float | None, files: list[tuple[str, int]]
    ) -> None:
        """Records a worker's growth per 1,000 samples."""
        if memory is None and descriptors is None:
            return
        found = {
            "shard": source.shard,
            "bytes_per_1000_samples": memory,
            "files_per_1000_samples": descriptors,
            "files": files if descriptors is not None else None,
        }
        self._by_shard[source.shard] = found
        if not self._is_said:
            self._is_said = True
            notices.growing(growth_sentence(found, source.recycling))
