"""A page of memory in which the child notes what it is about to do; the doctor reads it when the child is silent."""

import mmap
import os
import struct
import time

PHASES = ("start", "load", "sendable", "weight", "read", "length", "determinism", "growth", "threads", "done")
_LAYOUT = struct.Struct("<qqdq")
_NO_INDEX = -1


class Page:
    """Phase, index and since when; a write is one store into shared memory, for each sample."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._phase = 0
        self._sample_count = 0

    @staticmethod
    def create() -> int:
        """A descriptor for it, which has no name and goes with its last user."""
        descriptor = os.memfd_create("forebay-doctor")
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return descriptor

    def begin(self, phase: str) -> None:
        """Notes the phase."""
        self._phase = PHASES.index(phase)
        self.note(_NO_INDEX)

    def note(self, index: int) -> None:
        """Notes the sample that is about to be read."""
        self._sample_count += index != _NO_INDEX
        _LAYOUT.pack_into(self._memory, 0, self._phase, index, time.monotonic(), self._sample_count)

    def read(self) -> tuple[str, int | None, float]:
        """Phase, index if there is one, and the seconds since it was noted."""
        phase, index, since, _ = _LAYOUT.unpack_from(self._memory, 0)
        seconds = time.monotonic() - since if since else 0.0
        return PHASES[phase], None if index == _NO_INDEX else index, seconds

    def is_warm(self) -> bool:
        """Whether samples were read already: the first one may import whole libraries."""
        return bool(_LAYOUT.unpack_from(self._memory, 0)[3] > 1)

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.close()
