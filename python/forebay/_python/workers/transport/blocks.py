"""Memory that two processes share: unnamed files in memory, mapped on both sides and used again and again.

No name, no `/dev/shm`, and no descriptor either once both sides have mapped a block. A worker owns the blocks it makes
(`Pool`); the process that gets them (`Tenancy`) leases a block for as long as anything in it is used.
"""

import ctypes
import fcntl
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from forebay._python.workers.transport.messages import BrokenMessageError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_PROT_READ_WRITE = 1 | 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_POPULATE = 1, 2, 0x8000
_FAILED = ctypes.c_void_p(-1).value
# A file that shrinks below a mapping of it kills the process that touches the mapping (SIGBUS).
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

PAGE_BYTES = 4096
# Below that a message carries the bytes themselves.
LEAST_BYTES = 24 * 1024
# Free blocks that a worker keeps for later.
_MAX_FREE = 8
# Leases of one worker's blocks that a consumer may hold; what is beyond is copied out. Mappings are limited
# (vm.max_map_count), and a consumer that keeps so many keeps them all.
MAX_LEASES = 32


class Mapping:
    """A file in memory, mapped; unmapped with the last array over it. Keeps no descriptor, as `mmap.mmap` would."""

    def __init__(self, fd: int, size_bytes: int, is_private: bool = False, is_filled: bool = False) -> None:
        kind = (_MAP_PRIVATE if is_private else _MAP_SHARED) | (_MAP_POPULATE if is_filled else 0)
        address = _libc.mmap(None, size_bytes, _PROT_READ_WRITE, kind, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"{size_bytes} bytes cannot be mapped: {os.strerror(number)}")
        self.address, self.size_bytes = int(address), size_bytes
        self.__array_interface__ = {"data": (address, False), "shape": (size_bytes,), "typestr": "|u1", "version": 3}

    def array(self) -> Any:
        """All of it; it stays mapped for as long as this or a view of it is there."""
        return np.asarray(self)

    def __del__(self, unmap: Any = _libc.munmap) -> None:
        if hasattr(self, "address"):
            unmap(self.address, self.size_bytes)


def create(size_bytes: int, name: str = "forebay") -> int:
    """A descriptor of new memory without a name in any file system. Its size is final."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


class Block:
    """Memory of a worker for one batch at a time."""

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        # Until the other side has it.
        self.fd: int | None = create(size_bytes, "forebay-block")
        self.mapping = Mapping(self.fd, size_bytes)
        self.address = self.mapping.address
        self.is_used_here = self.is_used_there = False
        self._watch: Any = None

    def lease(self, ended: Callable[["Block"], None]) -> Any:
        """An array over it; `ended` is called when that and all views of it are gone."""
        array = self.mapping.array()
        self.is_used_here = True
        self._watch = weakref.ref(array, lambda _: ended(self))
        return array

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Pool:
    """The blocks of a worker.

    A block is free when neither side uses it: the consumer may keep a batch, and so may the dataset. `wait` is called
    when the budget is used up: it comes back when the other side has taken something.
    """

    def __init__(self, budget_bytes: int, wait: Callable[[], None]) -> None:
        self._budget_bytes = budget_bytes
        self._wait = wait
        self._free: list[Block] = []
        self._blocks: dict[int, Block] = {}
        self._next_number = 0
        self._untaken: deque[int] = deque()
        self._untaken_bytes = 0
        self._current_bytes = 0
        # Filled by whichever thread drops the last part of one.
        self._ended: deque[Block] = deque()
        # Taken since the last result was sent.
        self.current: list[Block] = []
        # Given up here: the other side need not keep them mapped.
        self.dropped: list[int] = []

    def take(self, size_bytes: int) -> tuple[Block, Any]:
        """A block of at least that size and the array over it."""
        while self._untaken and self._untaken_bytes + self._current_bytes + size_bytes > self._budget_bytes:
            self._wait()
        self._current_bytes += size_bytes
        block = self._found(size_bytes)
        self.current.append(block)
        return block, block.lease(self._ended_here)

    def _found(self, size_bytes: int) -> Block:
        self._settle_ended()
        fitting = [block for block in self._free if size_bytes <= block.size_bytes <= 2 * size_bytes + PAGE_BYTES]
        if fitting:
            best = min(fitting, key=lambda block: block.size_bytes)
            self._free.remove(best)
            return best
        # Sizes in steps of an eighth: batches of nearly one size share blocks.
        step = max(PAGE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
        block = Block(self._next_number, -(-size_bytes // step) * step)
        self._next_number += 1
        self._blocks[block.number] = block
        return block

    def at(self, address: int, size_bytes: int) -> tuple[Block, int] | None:
        """The block of this task's that these bytes lie in, and where."""
        for block in self.current:
            if block.address <= address and address + size_bytes <= block.address + block.size_bytes:
                return block, address - block.address
        return None

    def sent(self, blocks: list[Block]) -> None:
        """Notes that a result with these was sent, which ends a task."""
        for block in blocks:
            block.is_used_there = True
            block.close()
        if blocks:
            self._untaken.append(size := sum(block.size_bytes for block in blocks))
            self._untaken_bytes += size
        self.end_task()

    def end_task(self) -> None:
        """Forgets everything about the current task."""
        for block in self.current:
            self._settle(block)
        self.current.clear()
        self._current_bytes = 0
        self._settle_ended()

    def taken(self) -> None:
        """Notes that the other side has taken the oldest result that was sent in blocks."""
        if self._untaken:
            self._untaken_bytes -= self._untaken.popleft()

    def returned(self, number: int) -> None:
        """Notes that the other side does not use a block any more."""
        block = self._blocks[number]
        block.is_used_there = False
        self._settle(block)

    def _ended_here(self, block: Block) -> None:
        block.is_used_here = False
        self._ended.append(block)

    def _settle_ended(self) -> None:
        for _ in range(len(self._ended)):
            if (block := self._ended.popleft()) not in self.current:
                self._settle(block)

    def _settle(self, block: Block) -> None:
        if block.is_used_here or block.is_used_there or block in self._free or block.number not in self._blocks:
            return
        self._free.append(block)
        if len(self._free) > _MAX_FREE:
            old = self._free.pop(0)
            del self._blocks[old.number]
            if old.fd is None:
                self.dropped.append(old.number)
            old.close()


class Tenancy:
    """One worker's blocks on the side of the process that gets them."""

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}
        self._leases: dict[int, Any] = {}
        # Filled by whichever thread drops the last part of a batch.
        self.returns: deque[int] = deque()

    def open(self, number: int, size_bytes: int, fd: int) -> None:
        """Maps a block that is new here. The descriptor is the caller's to close.

        Raises `BrokenMessageError` where the mapping would not be safe to read: the worker that made the file may be
        broken, and this process must survive it.
        """
        found_bytes = os.fstat(fd).st_size
        if not 0 < size_bytes <= found_bytes:
            raise BrokenMessageError(f"block {number}: expected {size_bytes} bytes, got {found_bytes}")
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise BrokenMessageError(f"block {number}: expected memory, got another kind of file ({error})") from None
        if not seals & fcntl.F_SEAL_SHRINK:
            raise BrokenMessageError(
                f"block {number}: expected memory that cannot shrink, got memory without that seal"
            )
        self._mappings[number] = Mapping(fd, size_bytes, is_filled=True)

    def drop(self, number: int) -> None:
        self._mappings.pop(number, None)

    def array(self, number: int) -> tuple[Any, bool]:
        """All of a block, and whether it has to be copied and given back at once."""
        array = self._mappings[number].array()
        if len(self._leases) >= MAX_LEASES:
            return array, True
        leases, returns = self._leases, self.returns

        def ended(_: Any) -> None:
            leases.pop(number, None)
            returns.append(number)

        leases[number] = weakref.ref(array, ended)
        return array, False

    def take_returns(self) -> list[int]:
        """Blocks that are not used here any more, and that their owner has to be told of."""
        return [self.returns.popleft() for _ in range(len(self.returns))]

    def lease_count(self) -> int:
        return len(self._leases)
