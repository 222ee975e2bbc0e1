"""What failed, as objects: the same names as in the ledger's lines."""

import os
from dataclasses import dataclass, fields
from typing import Any

_OPTIONAL_INTEGERS = ("errno", "substitute", "size_bytes", "mtime_ns", "offset")


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that failed, or that was read only after a retry, with its address."""

    path: str
    index: int
    code: str
    stage: str | None
    errno: int | None
    attempts: int
    elapsed_seconds: float
    message: str
    hint: str
    detail: str | None
    epoch: int
    step: int
    position: int
    rank: int
    outcome: str
    unix_seconds: float
    substitute: int | None = None
    size_bytes: int | None = None
    mtime_ns: int | None = None
    # For a sample that is a part of its file: the part's name, and its offset.
    member: str | None = None
    offset: int | None = None

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "Failure":
        """From a line of the ledger; fields of later versions are ignored."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in line.items() if name in known}
        if path_bytes := line.get("path_bytes"):
            # Only present if the path is not UTF-8: then it is decoded as `os` functions do.
            values["path"] = os.fsdecode(bytes.fromhex(path_bytes))
        return cls(**values)


class Failures(list[Failure]):
    """A list of failures, oldest first."""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with one row per failure and one column per name; whole numbers stay whole (`Int64`)."""
        import pandas  # optional, and slow to import

        columns = {field.name: [getattr(failure, field.name) for failure in self] for field in fields(Failure)}
        # A missing value would turn the column into floats, which cannot represent nanoseconds.
        integers = {name: pandas.array(columns[name], dtype="Int64") for name in _OPTIONAL_INTEGERS}
        return pandas.DataFrame(columns | integers)


class Report(str):
    """The text of a report. Its `repr` is short, so that a prompt does not show the text again."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<report of {len(self.splitlines())} lines>"
