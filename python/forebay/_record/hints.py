"""Classifies an exception of a Python dataset: its class in the registry, its stage, its hint.

One source for the loader's failures and for the doctor. The registry's own hints (`errors.py`) are about files that
forebay reads; these are about code of the user's, whose files, handles and connections forebay does not know.
"""

import errno
import io
import os
import re
from dataclasses import dataclass
from typing import Any

from forebay import _forebay
from forebay._pickling import handles
from forebay._pickling import held as _held
from forebay._pickling.held import Held
from forebay.errors import _HINTS, ForebayError


@dataclass(frozen=True)
class Advice:
    """What is known about an exception without examining the dataset."""

    topic: str
    """What the hint is about: `storage`, `handle`, `path` … or `code` where it is only the user's code."""
    code: str
    """The class in the registry."""
    stage: str
    hint: str


def _numbers(names: str) -> frozenset[int]:
    return frozenset(getattr(errno, name) for name in names.split() if hasattr(errno, name))


_RETRIES = "; raise `retries` if it recovers by itself"
_CODE = Advice("code", "user_code", "transform", _HINTS["user_code"])
_PATH = Advice(
    "path",
    "not_found",
    "fetch",
    "the file is not there: was it moved or deleted after the list was made? a relative path depends on the current "
    "folder",
)
_DENIED = "this process (user {user}) may not use it: check owner and mode of the file and of every folder above it"
_CONNECTION = (
    "the other end of a connection does not answer, or has closed it: check that the server is running and reachable "
    "(under a file: the server or FUSE daemon of its mount); open connections in the worker and not in `__init__`"
)
_MEMORY = "memory ran out: lower `num_workers`, `prefetch_factor` or the memory per sample"

# (topic, hint, names of errno). Their codes, and which of them are tried again, are the engine's: `classify`.
_ROWS = (
    (
        "storage",
        "the storage under the dataset's files is failing: look at the kernel log (dmesg) and at the mount",
        "EIO EREMOTEIO ENOMEDIUM",
    ),
    (
        "storage",
        "the server of the mount no longer knows the file: it was replaced, or its export restarted; a file that is "
        "kept open stays stale, so open it in each call; remount if this persists",
        "ESTALE",
    ),
    (
        "storage",
        "the file system found damage in its own structures: look at the kernel log (dmesg), check the file system, "
        "and restore the file",
        "EUCLEAN EBADMSG",
    ),
    (
        "storage",
        "the file system is mounted read-only: write elsewhere; if this is unexpected, the kernel remounted it after "
        "an error (dmesg)",
        "EROFS",
    ),
    (
        "connection",
        _CONNECTION,
        "EPIPE ENOTCONN ESHUTDOWN ECONNRESET ECONNABORTED ECONNREFUSED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH "
        "ENETRESET ENONET EPROTO ECOMM",
    ),
    ("connection", _CONNECTION, "ETIMEDOUT"),
    ("busy", "the resource that the dataset's code asked for was busy or not ready", "EAGAIN EINTR EBUSY ETXTBSY"),
    (
        "locks",
        "the file system does not support locks, like a network mount without a lock service: switch locking off in "
        "the library that reads (HDF5: HDF5_USE_FILE_LOCKING=FALSE), or correct the mount",
        "ENOLCK",
    ),
    (
        "descriptors",
        "too many files are open in this process: close what the dataset opens (`with open(…) as file:`); `forebay "
        "doctor` names what stays open; raise `ulimit -n` if that many are needed",
        "EMFILE",
    ),
    (
        "descriptors",
        "the whole system is out of descriptors: see /proc/sys/fs/file-nr, raise fs.file-max; close what the dataset "
        "opens (`with open(…) as file:`)",
        "ENFILE",
    ),
    ("memory", _MEMORY, "ENOMEM ENOBUFS"),
    (
        "space",
        "the disk that the dataset writes to is full, or a quota on it is used up: free some space, or write elsewhere "
        "(`TMPDIR` for temporary files)",
        "ENOSPC EDQUOT",
    ),
    (
        "space",
        "a file that the dataset writes is larger than the file system or `ulimit -f` allows",
        "EFBIG",
    ),
    ("path", _PATH.hint, "ENOENT"),
    ("path", "a part of the path is a file, where the dataset expects a folder", "ENOTDIR"),
    ("path", "the path passes through a symbolic link that leads to itself: see `namei -l`", "ELOOP"),
    (
        "path",
        "the path, or a part of it, is longer than the file system allows (often 255 bytes)",
        "ENAMETOOLONG",
    ),
    (
        "path",
        "the path is a folder, where the dataset expects a file: leave it out of the list",
        "EISDIR",
    ),
    (
        "path",
        "the file or folder is there already: another worker may have made it; pass `exist_ok=True`, or use a name "
        "with `os.getpid()` in it",
        "EEXIST",
    ),
    ("permission", _DENIED, "EACCES EPERM"),
    ("handle", "", "EBADF EBADFD ENOTSOCK"),
)


def _advised(topic: str, hint: str, number: int) -> Advice:
    code, is_tried_again = _forebay.classify(number) or ("user_code", False)
    stage = "transform" if code == "user_code" else "fetch"
    return Advice(topic, code, stage, hint + (_RETRIES if is_tried_again else ""))


_SYSTEM = {number: _advised(topic, hint, number) for topic, hint, names in _ROWS for number in _numbers(names)}
# Hints for codes of incidents that are not exceptions of the dataset.
_BY_CODE = {
    "undecodable": "the dataset could not decode the file: the detail says where; repair it, or leave out the sample",
    "exhausted": "the machine ran out of memory, descriptors or disk: see the message",
    "not_found": _PATH.hint,
    "timeout": "the sample's code is slow or stuck, the detail says where; raise `deadline_seconds` if it is only slow",
}
# Libraries whose exceptions are OSErrors without an errno, or with one that is not the kernel's.
_LIBRARIES_OF_CONNECTIONS = frozenset(("socket", "ssl", "http", "urllib", "urllib3", "requests", "aiohttp"))

# Error messages of libraries: Python's files, zipfile, tarfile, mmap, sqlite3, lmdb.
_CLOSED = re.compile(
    r"\bclosed file\b|\bfile is closed\b|archive that was already closed|TarFile is closed|mmap closed|closed database|"
    r"closed/deleted",
    re.IGNORECASE,
)
_ENDED = re.compile(
    r"unexpected (?:EOF|end of (?:file|data))|ran out of input|pickle data was truncated", re.IGNORECASE
)
# Pillow: a picture has fewer frames than the code asks for, whatever its file.
_FRAMES = re.compile(r"no more images|outside sequence", re.IGNORECASE)
_BAD = re.compile(r"bad file descriptor", re.IGNORECASE)


def classified(error: BaseException) -> tuple[str, str]:
    """The class in the registry and the stage, without the hint, which would need a search of the dataset."""
    if isinstance(error, ForebayError):
        return error.code, error.stage or "transform"
    if _of_handle(error) is not None:
        return "user_code", "transform"
    advice = _of_system(error)
    return advice.code, advice.stage


def by_code(code: str) -> str:
    """The hint for a class of the registry alone."""
    return _BY_CODE.get(code) or _HINTS.get(code, "")


def of(error: BaseException, dataset: Any = None) -> Advice:
    """The hint for an exception of a dataset; `dataset` is searched for the handle that caused it, if any."""
    if isinstance(error, ForebayError):
        return Advice("own", error.code, error.stage or "transform", error.hint)
    if (cause := _of_handle(error)) is not None:
        trouble, origin = cause
        return Advice("handle", "user_code", "transform", _handle_hint(trouble, origin, dataset))
    return _of_system(error)


def _of_system(error: BaseException) -> Advice:
    """For an exception that is not about a handle."""
    if not isinstance(error, OSError):
        return _without_number(error)
    if type(error).__module__.partition(".")[0] in _LIBRARIES_OF_CONNECTIONS:
        return Advice("connection", "unavailable", "fetch", _CONNECTION)
    number = error.errno
    if isinstance(number, int):
        advice = _SYSTEM.get(number, _CODE)
        if advice.topic == "permission":
            return Advice(advice.topic, advice.code, advice.stage, advice.hint.format(user=os.geteuid()))
        return advice
    return _without_number(error)


def _without_number(error: BaseException) -> Advice:
    """For an exception that did not come from the kernel."""
    if isinstance(error, FileNotFoundError):
        return _PATH
    if isinstance(error, PermissionError):
        return Advice("permission", "denied", "fetch", _DENIED.format(user=os.geteuid()))
    if isinstance(error, MemoryError):
        return Advice("memory", "exhausted", "transform", _MEMORY)
    if isinstance(error, TimeoutError):
        limit = "a call in the dataset's code reached its own time limit: raise that limit, or try again in that code"
        return Advice("time", "timeout", "fetch", limit)
    if isinstance(error, ConnectionError):
        return Advice("connection", "unavailable", "fetch", _CONNECTION)
    if isinstance(error, OSError) and not isinstance(error, io.UnsupportedOperation):
        # Pillow and others report a damaged file this way.
        return Advice("decode", "undecodable", "decode", _BY_CODE["undecodable"])
    return _CODE


def _of_handle(error: BaseException) -> tuple[str, BaseException] | None:
    """(`bad`, `closed` or `ended`, the exception that says so), if an exception or its cause is about a handle."""
    each: BaseException | None = error
    for _ in range(4):
        if each is None:
            return None
        number = getattr(each, "errno", None) if isinstance(each, OSError) else None
        try:
            said = str(each)
        except Exception:  # its text may raise, too
            said = ""
        if number is not None:
            # Libraries that read by themselves (HDF5) put the errno into the text; the kernel's own is certain.
            advice = _SYSTEM.get(number)
            if advice is not None and advice.topic == "handle":
                return "bad", each
        elif isinstance(each, (UnicodeError, SyntaxError)) or _FRAMES.search(said):
            pass  # text and picture decoders use the same words
        elif isinstance(each, EOFError) or (_ENDED.search(said) and not isinstance(each, OSError)):
            return "ended", each
        elif _CLOSED.search(said):
            return "closed", each
        elif _BAD.search(said):
            return "bad", each
        each = each.__cause__
    return None


_STATES: dict[str, tuple[_held.State, ...]] = {
    "bad": ("absent", "closed", "open"),
    "closed": ("closed",),
    "ended": ("ended", "open"),
}
_OTHERWISE = {
    "bad": "the code used a descriptor that is not open in this process: most often of a handle that was opened in "
    "`__init__` or at module level, and shared with workers or closed",
    "closed": "the code used a handle that was closed before: most often one that was opened in `__init__` or at "
    "module level, which every sample and worker shares",
    "ended": "the data ended early: most often because a handle that was opened in `__init__` or at module level is at "
    "its end, or shares its position with other workers",
}


def _handle_hint(trouble: str, error: BaseException, dataset: Any) -> str:
    held = _held.of_interest(_held.find(dataset, error), _STATES[trouble])
    cause = _OTHERWISE[trouble] if held is None else f"{held.path} ({held.what}) {_in_words(held)}"
    # The file may be the cause as well, whatever handles there are.
    tail = "; if the file is opened in this very call, it is truncated or empty" if trouble == "ended" else ""
    return f"{cause}; {handles.lazily(_held.method(dataset))}{tail}"


def _in_words(held: Held) -> str:
    if held.state == "closed":
        return (
            "is closed: it was opened outside of this call, in `__init__` or at module level, and something closed it "
            "(a `with` block, `close()`) before this sample was read"
        )
    if held.state == "ended":
        return (
            "is at its end: it was opened outside of this call, and its one position is shared by all samples, and by "
            "all workers that share the handle"
        )
    if held.state == "absent":
        return (
            "is not open in this process: it was opened in another one, as `__init__` is not run again in a worker, or "
            f"it was closed; {handles.NUMBER}"
        )
    return f"is open and shared: every sample uses it, and so does every worker thread or forked worker; {held.why}"
