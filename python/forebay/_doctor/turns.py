"""Reads with one, two and four threads in turns: where their time goes tells of the GIL."""

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import Any

from forebay._doctor import system
from forebay._doctor.reader import Reader

_THREADS = (1, 2, 4)
_ROUNDS = 2


def threads(reader: Reader, seconds: float) -> dict[str, Any]:
    """Reads with one, two and four threads, and where the time of these threads goes."""
    if reader.is_iterable or not reader.order:
        return {}
    total: dict[int, Counter[str]] = {count: Counter() for count in _THREADS}
    for _ in range(_ROUNDS):
        for count in _THREADS:
            total[count].update(_slice(reader, count, seconds / _ROUNDS / len(_THREADS)))
    return {"threads": total}


def _slice(reader: Reader, thread_count: int, seconds: float) -> dict[str, float]:
    """One turn: samples, elapsed seconds, and those of all its threads; `process_cpu` is also of native ones."""
    spent: list[dict[str, float]] = []
    done = [0] * thread_count
    ready, go, end = threading.Barrier(thread_count + 1), threading.Event(), 0.0

    def work(worker: int) -> None:
        order = reader.order[worker::thread_count] or reader.order
        ready.wait()
        go.wait()
        clock = system.Clock.start()
        while not done[worker] or time.perf_counter() < end:
            index = order[done[worker] % len(order)]
            if worker == 0:
                reader.page.note(index)
            with contextlib.suppress(Exception):  # counted where samples are read for their errors
                reader.dataset[index]
            done[worker] += 1
        spent.append(system.Clock.stop().since(clock))

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(thread_count)]
    for thread in workers:
        thread.start()
    ready.wait()
    interval = sys.getswitchinterval()
    # A thread that waits for the GIL looks again after each interval, and on a busy machine waits for a processor
    # to do so, which must not count: none looks again within a turn.
    sys.setswitchinterval(60)
    start, process_cpu = time.perf_counter(), time.process_time()
    end = start + seconds
    go.set()
    for thread in workers:
        thread.join()
    sys.setswitchinterval(interval)
    process_cpu, elapsed = time.process_time() - process_cpu, time.perf_counter() - start
    sums = {name: sum(each[name] for each in spent) for name in ("queued", "cpu")}
    # All the time of all of them: also before the GIL lets one begin.
    return {
        "samples": sum(done),
        "process_cpu": process_cpu,
        "elapsed": elapsed,
        "wall": elapsed * thread_count,
        **sums,
    }
