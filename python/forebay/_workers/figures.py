"""What is told of worker processes while they work: what each has in hand, what it uses, what it grows by."""

import time
from collections.abc import Iterable
from typing import Any

from forebay import _notice
from forebay._workers import slate, worker
from forebay._workers.growth import growth_sentence
from forebay._workers.house import Hired, Seat
from forebay._workers.inline import index_at
from forebay._workers.job import Job

_STAGES = {
    slate.STARTING: "start",
    slate.IDLE: "idle",
    slate.SENDING: "deliver",
    slate.WAITING: "deliver",
    slate.LEAVING: "idle",
}


def in_flight(seats: Iterable[Seat], job: Job | None, generation: int) -> list[dict[str, Any]]:
    """What each worker has in hand: shard, pid, number, index, since_seconds, stage."""
    found = []
    now = time.monotonic()
    for seat in seats:
        if (each := seat.worker) is None:
            continue
        stage, began_in, number, position, since = each.board.hand()
        task = next((task for task in seat.tasks.copy() if task.number == number), None)
        is_known = task is not None and began_in == generation and job is not None
        if stage in (slate.IDLE, slate.LEAVING) or (stage != slate.STARTING and not is_known):
            continue
        found.append(
            {
                "shard": seat.shard,
                "pid": each.board.pid(),
                "number": number if is_known else None,
                "index": index_at(job, task, position) if is_known and job and task else None,
                "since_seconds": now - since / 1e9 if since else 0.0,
                "stage": _STAGES.get(stage, "transform" if position >= 0 else "assemble"),
            }
        )
    return found


def of_workers(seats: Iterable[Seat]) -> list[dict[str, Any]]:
    """What each worker uses, and how many batches of its are still held."""
    found = []
    for seat in seats:
        if (each := seat.worker) is not None:
            memory_bytes, fds, threads, samples = each.board.used()
            found.append(
                {
                    "shard": seat.shard,
                    "pid": each.board.pid(),
                    "rss_bytes": memory_bytes,
                    "fds": fds,
                    "threads": threads,
                    "samples": samples,
                    "batches_held": each.tenancy.lease_count(),
                }
            )
    return found


class Growths:
    """Which workers use more and more. The first time it is said."""

    def __init__(self) -> None:
        self._by_shard: dict[int, dict[str, Any]] = {}
        self._is_said = False

    def clear(self) -> None:
        self._by_shard.clear()

    def found(self) -> list[dict[str, Any]]:
        return list(self._by_shard.values())

    def look(self, source: Hired) -> None:
        """Notes what a worker uses."""
        memory_bytes, fds, _, samples = source.board.used()
        source.growth.add(samples, memory_bytes, fds)
        memory, descriptors = source.growth.memory_per_1000(), source.growth.fds_per_1000()
        files = worker.open_files(source.board.pid()) if descriptors is not None else []
        self.note(source, memory, descriptors, files)

    def note(
        self, source: Hired, memory: float | None, descriptors: float | None, files: list[tuple[str, int]]
    ) -> None:
        """Keeps what a worker grows by for every 1,000 samples."""
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
            _notice.growing(growth_sentence(found, source.recycling))
