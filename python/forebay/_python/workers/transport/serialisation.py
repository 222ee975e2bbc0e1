"""Serialisation of jobs, which go from the loader to its workers, and of results, which come back.

Both are pickled with the bytes of arrays and tensors beside the pickle. Those of a job lie in one file in memory that
all workers map, so its arrays are there once however many workers there are. Those of a result lie in a block.
"""

import io
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, reduction
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from forebay._arrays import torch_serialisation
from forebay._pickling import sendable
from forebay._python.workers.transport.blocks import LEAST_BYTES, Block, Mapping, Pool, Tenancy, create
from forebay._python.workers.transport.messages import BrokenMessageError

_ALIGN = 64
# Number, shard, generation; then how many segments, new blocks, dropped blocks.
_HEAD = struct.Struct("<qqqIII")
_SEGMENT = struct.Struct("<iQQ")
_NEW = struct.Struct("<iQ")
_DROPPED = struct.Struct("<i")
_INLINE = -1
# More blocks than that for one result are packed together.
MAX_BLOCKS = 64

# Classes that were sent by value (of `__main__`, of a function) and are sent back: which one it was here.
_CLASS_NUMBERS: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
_CLASSES: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})


def _known_class(number: str) -> type:
    found: type | None = _CLASSES.get(number)
    if found is None:
        raise pickle.UnpicklingError("a class that the loader had sent to its worker is no longer there")
    return found


# ── results ───────────────────────────────────────────────────────────────────────────────────────


class _ResultPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            number = _CLASS_NUMBERS.get(obj)
            return NotImplemented if number is None else (_known_class, (number,))
        return torch_serialisation.reduced(obj)


class _CloudResultPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and (number := _CLASS_NUMBERS.get(obj)) is not None:
            return _known_class, (number,)
        found = torch_serialisation.reduced(obj)
        return super().reducer_override(obj) if found is NotImplemented else found


def _pickled(value: Any) -> tuple[Any, list[pickle.PickleBuffer]]:
    beside: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    try:
        _ResultPickler(out, 5, buffer_callback=beside.append).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        # A lambda, a local class: by value, which is slower.
        beside.clear()
        out = io.BytesIO()
        try:
            _CloudResultPickler(out, 5, buffer_callback=beside.append).dump(value)
        except Exception:
            raise error from None
    return out.getbuffer(), beside


class Packed:
    """A result, ready to be sent."""

    def __init__(self, parts: list[Any], fds: list[int], blocks: list[Block]) -> None:
        self.parts, self.fds, self.blocks = parts, fds, blocks


def pack(number: int, shard: int, generation: int, value: Any, pool: Pool) -> Packed:
    """Pickles a result; what is large is in blocks then, and was copied at most once to get there."""
    data, beside = _pickled(value)
    views = [data, *(buffer.raw() for buffer in beside)]
    segments: list[tuple[int, int, int]] = []
    inline: list[Any] = []
    used: dict[int, Block] = {}
    left: list[int] = []
    inline_bytes = 0
    for place, view in enumerate(views):
        size = view.nbytes
        segments.append((_INLINE, inline_bytes, size))
        if size >= LEAST_BYTES and place and pool.current:
            found = pool.at(np.frombuffer(view, np.uint8).ctypes.data, size)
            if found is not None and (found[0].number in used or len(used) < MAX_BLOCKS):
                used[found[0].number] = found[0]
                segments[place] = (found[0].number, found[1], size)
                continue
        left.append(place)
        inline_bytes += size
    if inline_bytes > LEAST_BYTES:
        offset = 0
        for place in left:
            segments[place] = (_INLINE, offset, views[place].nbytes)
            offset = -(-(offset + views[place].nbytes) // _ALIGN) * _ALIGN
        block, memory = pool.take(offset)
        used[block.number] = block
        for place in left:
            _, offset, size = segments[place]
            if size:
                memory[offset : offset + size] = np.frombuffer(views[place], np.uint8)
            segments[place] = (block.number, offset, size)
    else:
        for place in left:
            segments[place] = (_INLINE, sum(map(len, inline)), views[place].nbytes)
            inline.append(views[place])
    blocks = list(used.values())
    fresh = [block for block in blocks if block.fd is not None]
    dropped, pool.dropped = pool.dropped, []
    head = [_HEAD.pack(number, shard, generation, len(segments), len(fresh), len(dropped))]
    head += [_SEGMENT.pack(*segment) for segment in segments]
    head += [_NEW.pack(block.number, block.size_bytes) for block in fresh]
    head += [_DROPPED.pack(gone) for gone in dropped]
    return Packed([b"".join(head), *inline], [block.fd for block in fresh if block.fd is not None], blocks)


class Arrived:
    """A result as it came: whose it is, and its value once it is opened."""

    def __init__(self, content: Any, fds: Sequence[int], tenancy: Tenancy) -> None:
        try:
            self._read(content, fds, tenancy)
        except (struct.error, ValueError) as error:
            raise BrokenMessageError(
                f"result: expected a table of its parts, got {len(content)} bytes ({error})"
            ) from None
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, content: Any, fds: Sequence[int], tenancy: Tenancy) -> None:
        self.number, self.shard, self.generation, segment_count, fresh_count, dropped_count = _HEAD.unpack_from(content)
        at = _HEAD.size
        end = at + segment_count * _SEGMENT.size
        self._segments = list(_SEGMENT.iter_unpack(content[at:end]))
        at, end = end, end + fresh_count * _NEW.size
        for (number, size_bytes), fd in zip(_NEW.iter_unpack(content[at:end]), fds, strict=True):
            tenancy.open(number, size_bytes, fd)
        at, end = end, end + dropped_count * _DROPPED.size
        for (number,) in _DROPPED.iter_unpack(content[at:end]):
            tenancy.drop(number)
        self._inline = content[end:]
        self._tenancy = tenancy
        self.is_in_blocks = any(where != _INLINE for where, _, _ in self._segments)

    def open(self) -> Any:
        """The value; large parts of it are leased from the worker's blocks."""
        arrays: dict[int, tuple[Any, bool]] = {}
        pieces: list[Any] = []
        for where, offset, size in self._segments:
            if where == _INLINE:
                pieces.append(bytearray(self._inline[offset : offset + size]))
                continue
            if where not in arrays:
                arrays[where] = self._tenancy.array(where)
            array, is_copied = arrays[where]
            piece = array[offset : offset + size]
            pieces.append(piece.copy() if is_copied else piece)
        try:
            return pickle.loads(pieces[0], buffers=pieces[1:])
        finally:
            self._tenancy.returns.extend(where for where, (_, is_copied) in arrays.items() if is_copied)

    def discard(self) -> None:
        """Returns its block of memory unopened."""
        self._tenancy.returns.extend({where for where, _, _ in self._segments if where != _INLINE})


# ── exceptions ────────────────────────────────────────────────────────────────────────────────────


class SentException:
    """An exception on its way: its constructor is not called again, which may want other arguments."""

    def __init__(self, error: BaseException) -> None:
        self._class = type(error)
        self._arguments = tuple(_sent(argument) for argument in error.args)
        self._fields = {name: _sent(value) for name, value in vars(error).items()}
        self._said = f"{type(error).__qualname__}: {error}"
        if isinstance(error, OSError):
            self._file = (_sent(error.filename), _sent(error.filename2))

    def again(self) -> BaseException:
        """The same exception, of the same class."""
        error: BaseException = self._class.__new__(self._class, *self._arguments)
        error.args = self._arguments
        if isinstance(error, OSError):
            if len(self._arguments) >= 2 and error.errno is None:
                error.errno, error.strerror = self._arguments[:2]
            error.filename, error.filename2 = self._file
        error.__dict__.update(self._fields)
        return error


def _sent(value: Any) -> Any:
    try:
        pickle.loads(b"".join(bytes(part) for part in _in_band(value)))
    except Exception:
        return repr(value)
    return value


def _in_band(value: Any) -> tuple[bytes]:
    out = io.BytesIO()
    _CloudResultPickler(out, 5).dump(value)
    return (out.getvalue(),)


def sent_exception(error: BaseException) -> Any:
    """What is sent for an exception; if its class cannot be sent, a `RuntimeError` that names it."""
    try:
        sent = SentException(error)
        pickle.loads(_in_band(sent)[0]).again()
    except Exception:
        substitute = RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        return SentException(substitute)
    return sent


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


class _Handle:
    """A descriptor of the loader's that a worker gets too: pipes and shared memory of `multiprocessing`."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Called by what is unpickled: its descriptor in this process."""
        return os.dup(_handles[self._place])


# In a worker: the descriptors that came with its job.
_handles: list[int] = []


class _Spawning:
    """What multiprocessing's locks and queues want to see while they are pickled: a process is being spawned."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    DupFd = staticmethod(_Handle)


@contextmanager
def _spawning() -> Iterator[_Spawning]:
    spawning = _Spawning()
    before = context.get_spawning_popen()
    context.set_spawning_popen(spawning)  # type: ignore[arg-type]
    try:
        yield spawning
    except BaseException:
        for fd in spawning.fds:
            os.close(fd)
        raise
    finally:
        context.set_spawning_popen(before)


# How multiprocessing pickles its own: pipes, shared memory, sockets.
_MULTIPROCESSING: dict[type, Callable[[Any], Any]] = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]


class _JobPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Those that what is pickled refers to.
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType, BuiltinFunctionType, ModuleType)):
            name = obj.__name__ if isinstance(obj, ModuleType) else obj.__module__
            if isinstance(name, str):
                self.modules.add(name)
        found = torch_serialisation.reduced(obj, is_sharing=True)
        if found is not NotImplemented:
            return found
        kind = type(obj)
        reduce = _MULTIPROCESSING.get(kind)
        # Torch registers its tensors there too, and would move them to `/dev/shm`.
        if reduce is not None and kind.__module__.partition(".")[0] != "torch":
            return reduce(obj)
        return super().reducer_override(obj)


class SealedJob:
    """A job in a file in memory, with the descriptors that belong to it."""

    def __init__(self, job: Any) -> None:
        beside: list[pickle.PickleBuffer] = []

        def is_kept_in_band(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < LEAST_BYTES:
                return True
            beside.append(buffer)
            return False

        out = io.BytesIO()
        with _spawning() as spawning:
            try:
                pickler = _JobPickler(out, 5, buffer_callback=is_kept_in_band)
                pickler.dump(job)
            except Exception as error:  # a reducer of the user's may raise anything
                raise _explained(job, error) from error
        self.handles, self.modules = spawning.fds, pickler.modules
        views = [out.getbuffer(), *(buffer.raw() for buffer in beside)]
        table, end = [], _page_end(16 * (1 + len(views)))
        for view in views:
            table += [end, view.nbytes]
            end = _page_end(end + view.nbytes)
        self.size_bytes = max(end, 1)
        self.fd = create(self.size_bytes, "forebay-job")
        memory = Mapping(self.fd, self.size_bytes).array()
        numbers = np.array([len(views), 0, *table], np.uint64).view(np.uint8)
        memory[: len(numbers)] = numbers
        for place, view in enumerate(views):
            start, size = table[2 * place : 2 * place + 2]
            memory[start : start + size] = np.frombuffer(view, np.uint8)

    def close(self) -> None:
        for fd in (self.fd, *self.handles):
            os.close(fd)


def _explained(job: Any, error: Exception) -> Exception:
    """Which of the user's things it is that cannot be sent, and what of it."""
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        value = getattr(job, name, None)
        try:
            _JobPickler(io.BytesIO(), 5).dump(value)
        except Exception as cause:
            return sendable.explain(value, name, cause)
    return error


def handles(dataset: Any) -> list[sendable.Finding]:
    """The parts of a dataset that differ in a worker from what they are here.

    Random generators do not count: they arrive as they are, and most datasets that have one are meant so. The doctor
    tells what it means that all workers draw the same numbers from them.
    """
    return [finding for finding in held(dataset) if not finding.blocks and finding.kind != "random generator"]


def held(dataset: Any) -> list[sendable.Finding]:
    """Files, locks, connections and their like that a dataset holds."""
    with _spawning() as spawning:
        found = sendable.handles(dataset)
        for fd in spawning.fds:
            os.close(fd)
    return found


def _page_end(size_bytes: int) -> int:
    return -(-size_bytes // 4096) * 4096


def open_job(memory: Any, handles: list[int]) -> Any:
    """The job in a worker. Its arrays are the file's own pages until they are written to."""
    _handles[:] = handles
    count = int(memory[:8].view(np.uint64)[0])
    table = memory[16 : 16 + 16 * count].view(np.uint64).reshape(count, 2).tolist()
    pieces = [memory[start : start + size] for start, size in table]
    return pickle.loads(pieces[0], buffers=pieces[1:])


def dumps(value: Any) -> bytes:
    """A small message, which may hold anything the user gave."""
    with _spawning() as spawning:
        out = io.BytesIO()
        _JobPickler(out, 5).dump(value)
        if spawning.fds:
            raise pickle.PicklingError("what is told to workers later must not hold pipes or shared memory")
    return out.getvalue()


loads: Callable[[Any], Any] = pickle.loads
