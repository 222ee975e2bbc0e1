"""Detects growth of a worker: memory and descriptors against the number of samples it made."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

_MAX_POINTS = 64
_LEAST_POINTS = 12
_LEAST_SAMPLES = 300
# Growth that is worth a word, over what was seen: caches fill, allocators keep some.
_LEAST_BYTES = 64 << 20
_LEAST_FDS = 16


@dataclass
class Growth:
    """Measurements of one worker: (samples, bytes, descriptors), thinned out as their number grows."""

    points: list[tuple[int, int, int]] = field(default_factory=list)
    _stride: int = 1
    _skipped: int = 0

    def add(self, samples: int, memory_bytes: int, fds: int) -> None:
        if self.points and samples <= self.points[-1][0]:
            return
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.points.append((samples, memory_bytes, fds))
        if len(self.points) == _MAX_POINTS:
            del self.points[1::2]
            self._stride *= 2

    def memory_per_1000(self) -> float | None:
        """Bytes for every 1,000 samples, if it is steady."""
        return self._per_1000(1, _LEAST_BYTES)

    def fds_per_1000(self) -> float | None:
        """Descriptors for every 1,000 samples, if it is steady."""
        return self._per_1000(2, _LEAST_FDS)

    def _per_1000(self, which: int, least: int) -> float | None:
        points = [(point[0], point[which]) for point in self.points]
        if len(points) < _LEAST_POINTS:
            return None
        # The first of them are start-up: imports, caches.
        points = points[len(points) // 4 :]
        if points[-1][1] - points[0][1] < least or points[-1][0] - points[0][0] < _LEAST_SAMPLES:
            return None
        # What slows down is a cache that fills, not a leak.
        middle = points[len(points) // 2]
        early = (middle[1] - points[0][1]) / (middle[0] - points[0][0])
        late = (points[-1][1] - middle[1]) / (points[-1][0] - middle[0])
        if late < 0.6 * early:
            return None
        steps = [later[1] - earlier[1] for earlier, later in pairwise(points)]
        if sum(step > 0 for step in steps) < 0.75 * len(steps):
            return None
        slopes = [
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for place, earlier in enumerate(points)
            for later in points[place + 1 :]
        ]
        return 1000 * median(slopes)


def growth_over(samples: int, grown_bytes: int, grown_fds: int) -> tuple[float | None, float | None]:
    """Bytes and descriptors for every 1,000 samples of a worker that grew until it had to leave."""
    count = max(1, samples)
    return (
        1000 * grown_bytes / count if grown_bytes >= _LEAST_BYTES else None,
        1000 * grown_fds / count if grown_fds >= _LEAST_FDS else None,
    )


def growth_sentence(found: dict[str, Any], reason: str | None) -> str:
    """The growth of a worker as a sentence."""
    parts = []
    if found["bytes_per_1000_samples"] is not None:
        parts.append(f"{found['bytes_per_1000_samples'] / 2**20:.1f} MiB of memory")
    if found["files_per_1000_samples"] is not None:
        names = ", ".join(f"{name} ({count} times)" for name, count in (found["files"] or [])[:3])
        parts.append(f"{found['files_per_1000_samples']:.0f} open files ({names})")
    ending = f"; it is exchanged for a fresh one now and then ({reason})" if reason else ""
    return f"worker {found['shard']} uses more and more: {' and '.join(parts)} for every 1,000 samples{ending}"
