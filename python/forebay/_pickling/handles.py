"""What is tied to the process that made it (files, locks, connections): what it would do in a worker, and the change.

Classes are recognised by module and name, so that no optional library is imported for it.
"""

import io
import os
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of thing that does not belong into what is sent to a worker, or comes back from one."""

    name: str
    why: str
    """What it would do there; `{what}` is the thing itself."""
    make: str | None = None
    """How a worker makes its own; `{path}` is what it is open on."""
    instead: str = "return its data, not the thing itself: bytes, numbers, an array or a tensor"
    """What a sample should have in its place."""
    is_sent: bool = False
    """Whether it can be sent all the same, though with an unexpected result."""
    is_tried: bool = False
    """Whether only pickling it tells if it can be sent."""


def lazily(method: str = "__getitem__") -> str:
    """Where a handle is to be opened: the change that the doctor and the hints of failures both name."""
    return (
        f"keep only its path in `__init__`, and open it in `{method}`: in each call, or at first use in each worker, "
        "in a dict keyed by `os.getpid()` (with worker threads also by `threading.get_ident()`)"
    )


_FILE = Kind(
    "file",
    "an open file belongs to the process that opened it; forked workers would share one position in it, and read what "
    "another one skipped over (bad descriptors, early ends, mixed lines)",
    "open({path}, 'rb')",
    "return what was read (`file.read()`, an array, a tensor), not the file",
)
_TEXT = Kind(
    "file",
    "every worker gets the whole text in memory in place of the file ({size}), as it is when the worker starts; forked "
    "workers would share one position in it, and read what another one skipped over (bad descriptors, early ends, "
    "mixed lines)",
    "open({path})",
    "return what was read (`file.read()`), not the file",
    is_sent=True,
)
_ARCHIVE = Kind(
    "archive",
    "an open archive is an open file with one position: workers that shared it would read each other's members (bad "
    "checksums, early ends)",
    "zipfile.ZipFile({path})",
    "return the member's bytes (`archive.read(name)`), not the archive",
)
_TAR = Kind(_ARCHIVE.name, _ARCHIVE.why, "tarfile.open({path})", "return the member's bytes, not the archive")
_HDF = Kind(
    "HDF5 file",
    "HDF5 keeps state of its own about an open file, which no other process can take part in: it cannot be sent, and "
    "after a fork it reads wrong data or fails",
    "h5py.File({path}, 'r')",
    "return an array (`dataset[index]`), not the HDF5 object",
)
_LMDB = Kind(
    "LMDB environment",
    "an LMDB environment must not be used by another process than the one that opened it, also not after a fork",
    "lmdb.open({path}, readonly=True, lock=False, readahead=False)",
    "return the value's bytes, not the LMDB object",
)
_DATABASE = Kind(
    "database connection",
    "a connection belongs to one process: two that use it at once mix up requests and responses",
    "sqlite3.connect({path})",
    "return the rows (`cursor.fetchall()`), not the connection or the cursor",
)
_SERVER = Kind(
    "database connection", _DATABASE.why, "connect()  # as in __init__, in each worker", instead=_DATABASE.instead
)
_SOCKET = Kind(
    "socket",
    "a connection belongs to one process: two that read from it each get a part of the answers",
    "connect()  # as in __init__, in each worker",
    "return what was received, not the socket",
)
_LOCK = Kind(
    "lock",
    "a lock guards the threads of one process; in a worker it would guard nothing, and after a fork it may be held for "
    "ever by a thread that is not there",
    "threading.Lock()",
    "leave it out of the sample",
)
_THREADS = Kind(
    "threads",
    "threads and their queues belong to one process: a worker would have the object without the threads behind it",
    "start()  # as in __init__, in each worker",
    "leave it out of the sample",
)
_GENERATOR = Kind(
    "generator",
    "a generator is a suspended function, and its frame cannot leave its process",
    None,
    "return `list(...)` of it",
)
_MMAP = Kind(
    "memory map",
    "a memory map is memory of this process",
    "mmap.mmap(open({path}, 'rb').fileno(), 0, access=mmap.ACCESS_READ)",
    "return the bytes (`view[a:b]`), not the map",
)
_MEMMAP = Kind(
    "memory map",
    "it is sent as an ordinary array: every worker gets a copy of all its {size} in memory",
    "numpy.load({path}, mmap_mode='r')  # or numpy.memmap, as in __init__",
    is_sent=True,
)
_SHARED = Kind(
    "multiprocessing object",
    "it can only be given to a process that its own context starts; forebay's workers are fresh interpreters, as "
    "those of the spawn context, and never forks",
    None,
    "leave it out of the sample",
    is_tried=True,
)
_NATIVE = Kind(
    "native memory",
    "it points to memory of this process, or is shared memory that only a process of its own context can be given",
    None,
    "return its value (`.value`, `bytes(...)`, an array)",
    is_tried=True,
)
_MEDIA = Kind(
    "decoder",
    "an open decoder has state in native memory and cannot be sent",
    "open_it({path})  # as in __init__, in each worker",
    "return the frames as an array or a tensor, not the decoder",
)
_CUDA = Kind(
    "CUDA tensor",
    "each worker would make a CUDA context of its own (some 500 MB of GPU memory) and copy it to the GPU again; "
    "a forked one fails with 'Cannot re-initialize CUDA in forked subprocess'",
    "tensor.cpu()",
    "return it on the CPU, and copy whole batches in the training loop (or with `device=`)",
    is_sent=True,
)
_RANDOM = Kind(
    "random generator",
    "each worker gets a copy in the same state: all of them draw the same numbers, and the same again in every epoch",
    "numpy.random.default_rng(torch.initial_seed())  # differs in each worker",
    is_sent=True,
)
_FRAME = Kind(
    "frame",
    "a traceback or frame refers to the local variables of a running function, which cannot leave its process",
    None,
    "return `traceback.format_exc()`, or the exception without its traceback",
)

# Of a descriptor as `os.open` gives it: sent as the number that it is.
NUMBER = (
    "a descriptor is a number that has a meaning only in the process that opened it; in a worker nothing is open "
    "under it, or another file"
)

_CLASSES: tuple[tuple[Kind, str], ...] = (
    (
        _FILE,
        "_io.BufferedReader _io.BufferedWriter _io.BufferedRandom _io.BufferedRWPair _io.FileIO gzip.GzipFile "
        "bz2.BZ2File lzma.LZMAFile tempfile._TemporaryFileWrapper tempfile.SpooledTemporaryFile zipfile.ZipExtFile "
        "tarfile.ExFileObject _csv.reader _csv.writer csv.DictReader posix.ScandirIterator pyarrow.lib.NativeFile "
        "pyarrow.parquet.core.ParquetFile netCDF4._netCDF4.Dataset rasterio.io.DatasetReader",
    ),
    (_TEXT, "_io.TextIOWrapper"),
    (_ARCHIVE, "zipfile.ZipFile"),
    (_TAR, "tarfile.TarFile"),
    (_HDF, "h5py._hl.base.HLObject"),
    # The types of its C part say that they are builtins.
    (_LMDB, "builtins.Environment builtins.Transaction builtins.Cursor lmdb.cffi.Environment lmdb.cffi.Transaction"),
    (_DATABASE, "sqlite3.Connection sqlite3.Cursor sqlite3.Blob"),
    (
        _SERVER,
        "psycopg2.extensions.connection psycopg2.extensions.cursor psycopg.Connection psycopg.Cursor "
        "pymysql.connections.Connection mysql.connector.abstracts.MySQLConnectionAbstract "
        "sqlalchemy.engine.base.Engine sqlalchemy.engine.base.Connection sqlalchemy.orm.session.Session "
        "pymongo.mongo_client.MongoClient pymongo.synchronous.mongo_client.MongoClient redis.client.Redis "
        "_duckdb.DuckDBPyConnection",
    ),
    (
        _SOCKET,
        "_socket.socket http.client.HTTPConnection http.client.HTTPResponse botocore.client.BaseClient "
        "grpc._channel.Channel aiohttp.client.ClientSession",
    ),
    (
        _LOCK,
        "_thread.lock _thread.RLock threading.Condition threading.Event threading.Semaphore threading.Barrier "
        "_thread._local",
    ),
    (
        _THREADS,
        "threading.Thread queue.Queue _queue.SimpleQueue concurrent.futures._base.Executor "
        "concurrent.futures._base.Future multiprocessing.pool.Pool subprocess.Popen "
        "torch.utils.data.dataloader._BaseDataLoaderIter",
    ),
    (_GENERATOR, "builtins.generator builtins.coroutine builtins.async_generator"),
    (_MMAP, "mmap.mmap"),
    (_MEMMAP, "numpy.memmap"),
    (_NATIVE, "_ctypes._CData"),
    (
        _SHARED,
        "multiprocessing.synchronize.SemLock multiprocessing.synchronize.Event multiprocessing.synchronize.Condition "
        "multiprocessing.synchronize.Barrier multiprocessing.queues.Queue multiprocessing.queues.SimpleQueue "
        "multiprocessing.process.BaseProcess multiprocessing.sharedctypes.SynchronizedBase",
    ),
    (_MEDIA, "cv2.VideoCapture av.container.core.Container decord.video_reader.VideoReader"),
    (
        _RANDOM,
        "torch._C.Generator numpy.random._generator.Generator numpy.random.mtrand.RandomState random.Random",
    ),
    (_FRAME, "builtins.frame builtins.traceback"),
)
_KINDS = {name: kind for kind, names in _CLASSES for name in names.split()}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def known(value: object) -> tuple[Kind, bool] | None:
    """The kind of a value, and whether it certainly behaves as the kind does: a subclass may know how to be sent."""
    cls = type(value)
    for level, base in enumerate(cls.__mro__):
        kind = _KINDS.get(_name(base))
        if kind is not None:
            # A class of the library itself is not a user's subclass that supports pickling.
            is_own = level == 0 or cls.__module__.partition(".")[0] == base.__module__.partition(".")[0]
            if kind is _TEXT and not _is_read_by_cloudpickle(value):
                return _FILE, is_own
            return kind, is_own and not kind.is_tried
    return (_CUDA, True) if _is_cuda(value) else None


def _is_cuda(value: object) -> bool:
    if not any(_name(base) == "torch.Tensor" for base in type(value).__mro__):
        return False
    return bool(quietly(value, "is_cuda"))


def _is_read_by_cloudpickle(value: object) -> bool:
    mode = quietly(value, "mode")
    return quietly(value, "closed") is False and isinstance(mode, str) and ("r" in mode or "+" in mode)


def is_open_handle(value: object) -> bool:
    """Whether it is a file, an archive, a connection or the like, which can be closed or be at its end."""
    recognised = known(value)
    if recognised is None:
        return isinstance(value, io.IOBase)
    kind = recognised[0]
    return kind in (_FILE, _TEXT, _ARCHIVE, _TAR, _HDF, _LMDB, _DATABASE, _SERVER, _SOCKET, _MMAP, _MEDIA)


def why(value: object) -> str:
    """What an open handle does in a worker; a class that is not known is taken for a file."""
    recognised = known(value)
    if recognised is None or recognised[0] is _TEXT:
        return _FILE.why
    return recognised[0].why.format(what=describe(value), size=size(value))


def quietly(value: object, name: str) -> Any:
    """An attribute, or `None`: whatever happens on the way is not what is being looked for."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def place(value: object) -> str | None:
    """The file or address that something is open on."""
    inside = quietly(quietly(value, "file"), "filename")  # of an HDF5 file
    if isinstance(inside, str):
        return inside
    for name in ("name", "filename", "path"):
        found = quietly(value, name)
        if callable(found):  # lmdb's environment
            try:
                found = found()
            except Exception:
                found = None
        if isinstance(found, bytes):
            found = os.fsdecode(found)
        if isinstance(found, str) and found and not isinstance(value, type):
            return found
    for name in ("fp", "raw", "buffer", "_fp", "fileobj"):
        inner = quietly(value, name)
        if inner is not None and inner is not value and (found := place(inner)):
            return found
    return _database(value) or _peer(value)


def _database(value: object) -> str | None:
    if not _name(type(value)).startswith("sqlite3."):
        return None
    connection: Any = quietly(value, "connection") or value
    try:
        return connection.execute("PRAGMA database_list").fetchone()[2] or ":memory:"
    except Exception:
        return None


def _peer(value: object) -> str | None:
    if not isinstance(value, socket.socket):
        return None
    try:
        peer = value.getpeername()
    except OSError:
        return None
    return ":".join(map(str, peer[:2])) if isinstance(peer, tuple) else str(peer) or None


def describe(value: object) -> str:
    """A description of an object: its class, and what it is open on."""
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "_io") else f"{_short(cls.__module__)}.{cls.__qualname__}"
    if cls.__qualname__ in ("function", "generator", "coroutine", "async_generator"):
        own = quietly(value, "__qualname__")
        return str(own) if cls.__qualname__ == "function" else f"{cls.__qualname__} {own}"
    if isinstance(value, type):
        return f"class {value.__qualname__}"
    recognised = known(value)
    if recognised is None:
        return name
    if recognised[0] is _LMDB:
        name = f"lmdb.{cls.__qualname__}"
    where = place(value)
    state = "closed " if quietly(value, "closed") is True else ""
    return f"{state}{name}" + (f" on {where}" if where else "")


def _short(module: str) -> str:
    """The name that people import a class by: what comes before the library's own private rooms."""
    public: list[str] = []
    for part in module.split("."):
        if part.startswith("_") and public:
            break
        public.append(part)
    return ".".join(public)


def size(value: object) -> str:
    """How much would be copied."""
    count = quietly(value, "nbytes")
    if not isinstance(count, int):
        try:
            count = os.fstat(value.fileno()).st_size  # type: ignore[attr-defined]
        except Exception:
            return "of unknown size"
    return readable(count)


def readable(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the last unit takes everything")
