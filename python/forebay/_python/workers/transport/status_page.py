"""Memory that a worker and its loader share: the worker's current sample, its resource use, its random states.

The worker writes without a call into the kernel, before every sample; the loader reads when it wants to know, also
after the worker's death.
"""

import struct
import time
from collections.abc import Callable
from typing import Any

from forebay._python.workers.transport.blocks import PAGE_BYTES, Mapping

# What a worker is at.
STARTING, IDLE, WORKING, SENDING, WAITING, LEAVING = range(6)

# How often a worker checks its resource usage.
_LOOK_NS = 50_000_000

_HAND = struct.Struct("<qqqqq")  # stage, generation, number, position, since
_USE = struct.Struct("<qqqq")  # memory, descriptors, threads, samples made
_PID = struct.Struct("<q")
_NUMBER = struct.Struct("<q")
_HAND_AT, _USE_AT, _PID_AT, _GENERATION_AT = 0, 64, 128, 192
_POSITION = struct.Struct("<qq")
_POSITION_AT, _SINCE_AT = _HAND_AT + 24, _HAND_AT + 32

# Two places for random states: that after the last task that was finished, and that after the one before.
_TAG = struct.Struct("<qqIII")
_SLOT_BYTES = 5 * PAGE_BYTES
_SLOTS_AT = (PAGE_BYTES, PAGE_BYTES + _SLOT_BYTES)
SIZE_BYTES = PAGE_BYTES + 2 * _SLOT_BYTES


class StatusPage:
    """The status page of one worker, as the worker or its loader sees it."""

    def __init__(self, fd: int) -> None:
        self._view = memoryview(Mapping(fd, SIZE_BYTES).array())
        self._turn = 0

    # The worker's side.

    def sign(self, pid: int) -> None:
        _PID.pack_into(self._view, _PID_AT, pid)

    def at(self, stage: int, generation: int, number: int) -> None:
        """Notes what the worker is at from now on."""
        _HAND.pack_into(self._view, _HAND_AT, stage, generation, number, -1, time.monotonic_ns())

    def stage(self, stage: int) -> None:
        _NUMBER.pack_into(self._view, _HAND_AT, stage)

    def resume(self) -> None:
        """Continues the sample after a wait, whose time does not count for the sample."""
        _NUMBER.pack_into(self._view, _SINCE_AT, time.monotonic_ns())
        self.stage(WORKING)

    def noter(self, look: Callable[[int], None]) -> Callable[[int], None]:
        """A function that notes which sample of its task a worker begins; -1: it makes a batch of them.

        `look(position)` is called there now and then: not for every sample, most take less time than to look.
        """
        pack, view, now = _POSITION.pack_into, self._view, time.monotonic_ns
        due = now() + _LOOK_NS

        def note(position: int) -> None:  # called for every sample
            nonlocal due
            began = now()
            pack(view, _POSITION_AT, position, began)
            if began > due:
                due = began + _LOOK_NS
                look(position)

        return note

    def use(self, memory_bytes: int, fds: int, threads: int, samples: int) -> None:
        _USE.pack_into(self._view, _USE_AT, memory_bytes, fds, threads, samples)

    def wanted_generation(self) -> int:
        return int(_NUMBER.unpack_from(self._view, _GENERATION_AT)[0])

    def keep(self, generation: int, number: int, states: tuple[Any, Any, Any]) -> None:
        """Writes the random states after a task, over those of two tasks before."""
        at = _SLOTS_AT[self._turn]
        # Nothing is there while it is written.
        _TAG.pack_into(self._view, at, -1, -1, 0, 0, 0)
        end = at + _TAG.size
        for state in states:
            start, end = end, end + len(state)
            self._view[start:end] = state
        _TAG.pack_into(self._view, at, generation, number, *map(len, states))
        self._turn = 1 - self._turn

    # The loader's side.

    def pid(self) -> int:
        return int(_PID.unpack_from(self._view, _PID_AT)[0])

    def want_generation(self, generation: int) -> None:
        """Tasks of other generations are not begun any more."""
        _NUMBER.pack_into(self._view, _GENERATION_AT, generation)

    def current(self) -> tuple[int, int, int, int, int]:
        """(stage, generation, number, position, since in ns)."""
        return _HAND.unpack_from(self._view, _HAND_AT)

    def used(self) -> tuple[int, int, int, int]:
        """(bytes of memory of its own, descriptors, threads, samples when that was measured)."""
        return _USE.unpack_from(self._view, _USE_AT)

    def kept(self, generation: int, number: int) -> tuple[bytes, bytes, bytes] | None:
        """The random states after that task, if they are still there."""
        for at in _SLOTS_AT:
            found_generation, found_number, *lengths = _TAG.unpack_from(self._view, at)
            if (found_generation, found_number) != (generation, number) or not any(lengths):
                continue
            end, states = at + _TAG.size, []
            for length in lengths:
                states.append(bytes(self._view[end : end + length]))
                end += length
            return states[0], states[1], states[2]
        return None
