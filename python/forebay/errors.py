"""The errors of forebay: one class per row of the registry (`docs/errors.md`), each also a builtin.

`code` is stable: match on it, not on the text. The text names path, stage, cause and hint. An exception that a
user's own transform or loader raised is not wrapped: it keeps its type and gets a note with the sample's address.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from forebay._forebay import error_registry

_HINTS: dict[str, str] = {slug: hint for slug, _, _, _, hint in error_registry()}


class ForebayError(Exception):
    """What went wrong, where, and what to do about it.

    >>> from forebay import errors
    >>> error = errors.CorruptError('"cat/1.jpg" is truncated (JPEG)', path="cat/1.jpg", index=7, stage="decode")
    >>> error.code, error.stage, isinstance(error, OSError)
    ('corrupt', 'decode', True)
    """

    code: ClassVar[str] = "internal"

    message: str
    path: str | None
    index: int | None
    stage: str | None
    errno: int | None
    attempts: int
    elapsed_seconds: float
    hint: str
    detail: str | None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        index: int | None = None,
        stage: str | None = None,
        errno: int | None = None,
        attempts: int = 0,
        elapsed_seconds: float = 0.0,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.index = index
        self.stage = stage
        self.errno = errno
        self.attempts = attempts
        self.elapsed_seconds = elapsed_seconds
        self.hint = _HINTS[self.code] if hint is None else hint
        self.detail = detail
        if isinstance(self, OSError):
            self._describe_system_error(self)

    def _describe_system_error(self, error: OSError) -> None:
        error.filename, error.strerror = self.path, self.message

    def _fields(self) -> dict[str, Any]:
        names = ("path", "index", "stage", "errno", "attempts", "elapsed_seconds", "hint", "detail")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        text = self.message
        if self.detail:
            text += f" [{self.detail}]"
        address = _address(self.index, self.stage)
        return "\n".join([text, *([f"  {address}"] if address else []), f"  hint: {self.hint}"])

    def __reduce__(self) -> tuple[Callable[..., "ForebayError"], tuple[Any, ...]]:
        # The inherited one would lose the keywords, and OSError's would swap them for its own.
        return _rebuild, (type(self), self.message, self._fields())


class NotFoundError(ForebayError, FileNotFoundError):
    """The path does not exist."""

    code = "not_found"


class AccessDeniedError(ForebayError, PermissionError):
    """The path may not be read by this user."""

    code = "denied"


class UnavailableError(ForebayError, OSError):
    """The storage did not give the bytes, after all retries."""

    code = "unavailable"


class DeadlineError(ForebayError, TimeoutError):
    """The deadline of the sample passed."""

    code = "timeout"


class ChangedError(ForebayError, OSError):
    """The file was written to while it was read."""

    code = "changed"


class StaleError(ForebayError, OSError):
    """The file is not the one that the manifest describes."""

    code = "stale"


class CorruptError(ForebayError, OSError):
    """The file is of a known format, and damaged."""

    code = "corrupt"


class UndecodableError(ForebayError, OSError):
    """The file is of no format that forebay decodes."""

    code = "undecodable"


class UserCodeError(ForebayError, RuntimeError):
    """Code of the user's own raised an exception. A code of failures: where it is raised, it is that exception."""

    code = "user_code"


class ExhaustedError(ForebayError, OSError):
    """Memory, descriptors or a size limit ran out."""

    code = "exhausted"


class ConfigError(ForebayError, ValueError):
    """A setting is wrong."""

    code = "config"


class StateMismatchError(ForebayError, ValueError):
    """The resume state belongs to another dataset or order."""

    code = "state_mismatch"


class TooManyFailuresError(ForebayError, RuntimeError):
    """More samples failed than `max_failures` allows."""

    code = "too_many_failures"


class WorkerDiedError(ForebayError, RuntimeError):
    """A worker ended while it held the sample."""

    code = "worker_died"


class StoppedError(ForebayError, RuntimeError):
    """The loader was closed, or is used in a forked child."""

    code = "stopped"


class InternalError(ForebayError, RuntimeError):
    """A bug in forebay."""

    code = "internal"


_CLASSES: dict[str, type[ForebayError]] = {cls.code: cls for cls in ForebayError.__subclasses__()}


def _address(index: int | None, stage: str | None) -> str:
    parts = [f"stage {stage}" if stage else "", f"sample {index}" if index is not None else ""]
    return ", ".join(part for part in parts if part)


def _rebuild(cls: type[ForebayError], message: str, fields: dict[str, Any]) -> ForebayError:
    return cls(message, **fields)


def _raise(code: str, message: str, fields: dict[str, Any], cause: BaseException | None) -> BaseException:
    """The exception to raise; called by the native module. `cause` is an exception of the user's own code."""
    error = _CLASSES.get(code, InternalError)(message, **fields)
    if cause is None:
        return error
    where = _address(error.index, error.stage)
    cause.add_note(f"forebay: {message}" + (f"\n  {where}" if where else "") + f"\n  hint: {error.hint}")
    return cause
