"""Makes the record of a failed sample from an exception of its dataset: class in the registry, stage, file, hint."""

import os
from dataclasses import replace
from typing import Any

from forebay._python.workers.job import Incident
from forebay._record import hints

_KNOWN = "known to be bad and unchanged since, so it was not tried again: restore or delete it"


def incident(
    position: int,
    index: Any,
    error: BaseException,
    attempts: int,
    elapsed_seconds: float,
    outcome: str,
    substitute: Any = None,
    dataset: Any = None,
) -> Incident:
    """The record of a sample that failed, or that needed another attempt."""
    number, path = errno_of(error), path_of(error)
    advice = hints.of(error, dataset)
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    count = f", after {attempts} attempts" if attempts > 1 else ""
    message = f"sample {index!r} failed in the dataset: {text}{count}"
    detail = _place(error)
    return Incident(
        position,
        index,
        advice.code,
        advice.stage,
        message,
        detail,
        attempts,
        elapsed_seconds,
        number,
        path,
        outcome,
        substitute,
        advice.hint,
    )


def add_hint(error: BaseException, dataset: Any) -> None:
    """Adds the hint to an exception that will be raised, where its own words mislead: if it is about a handle."""
    advice = hints.of(error, dataset)
    note = f"forebay: hint: {advice.hint}"
    if advice.topic == "handle" and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def of_file(said: Incident, file: tuple[int, int] | None, is_known: bool) -> Incident:
    """Adds what is known about the file that caused the failure, if the loop continues without the sample."""
    if file is None or said.outcome not in ("replaced", "skipped"):
        return said
    hint = _KNOWN if is_known else said.hint
    return replace(said, size_bytes=file[0], mtime_ns=file[1], hint=hint)


def errno_of(error: BaseException) -> int | None:
    """The kernel's number of an exception, if it has one."""
    number = getattr(error, "errno", None)
    is_number = isinstance(error, OSError) and isinstance(number, int) and abs(number) < 1 << 31
    return number if is_number else None


def path_of(error: BaseException) -> str | None:
    """The file that an exception is about, if it says so."""
    path = getattr(error, "filename", None) if isinstance(error, OSError) else None
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None


def _place(error: BaseException) -> str | None:
    """The line of code it was raised at: the last one that is not forebay's."""
    trace, place = error.__traceback__, None
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "forebay":
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}"
        trace = trace.tb_next
    return place
