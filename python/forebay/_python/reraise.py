"""An exception of a dataset's, raised again where the batch is wanted: of its own type, with its own traceback."""

from typing import Any, NoReturn

from forebay._python.workers.job import Raised


class _Verbatim(str):
    """Text that `KeyError`, which shows the `repr` of its argument, shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def again(raised: Raised, number: int, epoch: int, shard: int, kind: str) -> NoReturn:
    """Raises it. An exception from another process is recreated as torch does it, with the original as its cause."""
    error = raised.exception
    if isinstance(error, StopIteration):
        # A loop would take it for the end of the epoch.
        stopped = RuntimeError("the dataset, collate_fn or worker_init_fn raised StopIteration")
        stopped.add_note(_note(raised, number, epoch, shard, kind))
        raise stopped from error
    if kind != "processes" or not raised.traceback:
        error.add_note(_note(raised, number, epoch, shard, kind))
        raise error
    remade = _remade(
        error, f"Caught {type(error).__name__} in DataLoader worker process {shard}.\nOriginal {raised.traceback}"
    )
    remade.add_note(_note(raised, number, epoch, shard, kind))
    for note in getattr(error, "__notes__", ()):
        if remade is not error:
            remade.add_note(note)
    if remade is error:
        raise error
    raise remade from error


def _remade(error: BaseException, message: str) -> BaseException:
    """The same type with torch's message; the very exception, with the message as a note, where that cannot be made."""
    made: Any = None
    try:
        if isinstance(error, KeyError):
            made = type(error)(_Verbatim(message))
        elif getattr(type(error), "message", None):
            made = type(error)(message=message)  # type: ignore[call-arg]
        else:
            made = type(error)(message)
    except Exception:
        made = None
    if type(made) is not type(error):
        error.add_note(message)
        return error
    vars(made).update(vars(error) if hasattr(error, "__dict__") else {})
    made.__dict__.pop("__notes__", None)
    if isinstance(made, OSError) and isinstance(error, OSError):
        made.errno = error.errno
    return made  # type: ignore[no-any-return]


def _note(raised: Raised, number: int, epoch: int, shard: int, kind: str) -> str:
    where = "" if kind == "inline" else f", in worker {'process' if kind == 'processes' else 'thread'} {shard}"
    if raised.position is None:
        return f"forebay: batch {number} of epoch {epoch}{where}"
    return f"forebay: sample {raised.index!r}, position {raised.position} of batch {number} of epoch {epoch}{where}"
