"""From an exception of a dataset's to what is written down of it: its class in the registry, its stage, its file,
its hint."""

import os
from typing import Any

from forebay import _hints
from forebay._workers.job import Incident

is_transient = _hints.is_transient


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
    """What is known of a sample that failed, or that was got only after another attempt."""
    number, path = _errno(error), _path(error)
    advice = _hints.of(error, dataset)
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
    advice = _hints.of(error, dataset)
    note = f"forebay: hint: {advice.hint}"
    if advice.topic == "handle" and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _errno(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    return number if isinstance(error, OSError) and isinstance(number, int) else None


def _path(error: BaseException) -> str | None:
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
