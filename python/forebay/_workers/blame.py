"""From an exception of a dataset's to what is written down of it: its class in the registry, its stage, its file."""

import errno
import os
from typing import Any

from forebay._workers.job import Incident

# What another attempt may not meet again: the storage was away, busy or slow. EIO is one of them on network mounts.
_TRANSIENT_NAMES = (
    *("EIO", "ESTALE", "EREMOTEIO", "EAGAIN", "EINTR", "EBUSY", "ENOLCK", "ETIMEDOUT", "EPIPE"),
    *("ENOTCONN", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "EHOSTDOWN", "EHOSTUNREACH"),
    *("ENETDOWN", "ENETUNREACH", "ENETRESET"),
)
_TRANSIENT = frozenset(getattr(errno, name) for name in _TRANSIENT_NAMES if hasattr(errno, name))
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.ENOSPC))


def is_transient(error: BaseException | None) -> bool:
    """Whether trying again may help."""
    return isinstance(error, OSError) and getattr(error, "errno", None) in _TRANSIENT


def incident(
    position: int,
    index: Any,
    error: BaseException,
    attempts: int,
    elapsed_seconds: float,
    outcome: str,
    substitute: Any = None,
) -> Incident:
    """What is known of a sample that failed, or that was got only after another attempt."""
    number, path = _errno(error), _path(error)
    code, stage = _code(error, number)
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    count = f", after {attempts} attempts" if attempts > 1 else ""
    message = f"sample {index!r} failed in the dataset: {text}{count}"
    detail = _place(error)
    return Incident(
        position, index, code, stage, message, detail, attempts, elapsed_seconds, number, path, outcome, substitute
    )


def _errno(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    return number if isinstance(error, OSError) and isinstance(number, int) else None


def _path(error: BaseException) -> str | None:
    path = getattr(error, "filename", None) if isinstance(error, OSError) else None
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None


def _code(error: BaseException, number: int | None) -> tuple[str, str]:
    """(code, stage) of the registry."""
    if isinstance(code := getattr(error, "code", None), str) and isinstance(stage := getattr(error, "stage", ""), str):
        return code, stage or "transform"  # one of forebay's own
    if isinstance(error, FileNotFoundError):
        return "not_found", "fetch"
    if isinstance(error, PermissionError):
        return "denied", "fetch"
    if isinstance(error, MemoryError) or number in _EXHAUSTED:
        return "exhausted", "transform" if number is None else "fetch"
    if isinstance(error, TimeoutError):
        return "timeout", "fetch"
    if isinstance(error, OSError):
        # Without a number it was not the kernel: Pillow and others say so that a file is damaged.
        return ("undecodable", "decode") if number is None else ("unavailable", "fetch")
    return "user_code", "transform"


def _place(error: BaseException) -> str | None:
    """The line of code it was raised at: the last one that is not forebay's."""
    trace, place = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "forebay":
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}"
        trace = trace.tb_next
    return place
