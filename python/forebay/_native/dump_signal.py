"""A look inside on demand: a signal that makes the process print what its loaders wait for."""

import os
import signal
from typing import Any

from forebay import _forebay
from forebay._options import settings
from forebay.errors import ConfigError

VARIABLE = "FOREBAY_DUMP_SIGNAL"

# The processes that the environment was heeded in: a forked child inherits its parent's.
_heeded: set[int] = set()


def dump_on_signal(signum: int = signal.SIGUSR1) -> None:
    """Makes the process print to stderr what every loader has in flight, whenever it gets this signal.

    One line for each file: path, stage, thread, attempt, seconds, and the mount with what waits for it. A native thread
    prints it, without the GIL: it also works while the main thread waits in `next()`, in an all-reduce, or for ever.

    May be called from any thread. A handler of yours that is there already runs as well, as soon as Python can run it;
    one that is installed later takes the place of this one: call this last. A forked child has to call it itself.

    `FOREBAY_DUMP_SIGNAL=USR1` in the environment does the same when the first loader is made.

    >>> import signal
    >>> import forebay as fb
    >>> fb.dump_on_signal(signal.SIGUSR1)  # then, from a shell: kill -USR1 PID
    """
    _forebay.dump_on_signal(settings.whole("signum", signum, bits=31))


def from_environment() -> None:
    """Does what the environment asks for, once in each process."""
    wanted = os.environ.get(VARIABLE)
    if not wanted or os.getpid() in _heeded:
        return
    try:
        dump_on_signal(_number(wanted))
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE} in the environment: {error}", hint="give it a signal such as USR1") from None
    _heeded.add(os.getpid())


def _number(text: str) -> Any:
    name = text.strip().upper()
    if name.isdecimal():
        return int(name)
    known = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if known is None:
        raise ConfigError(f"expected a signal's name or number, got {text!r}")
    return known.value
