"""Where an error comes from: its file, its line, its first words."""

import os
import traceback

from forebay._pickling.handles import place


def first_line(error: BaseException) -> str:
    """The first line of its text."""
    try:
        return str(error).partition("\n")[0][:300]
    except Exception:  # its __str__ may raise, too
        return ""


def path(error: BaseException) -> str | None:
    """The file that it is about."""
    found = getattr(error, "filename", None) or getattr(error, "path", None)
    return os.fsdecode(found) if isinstance(found, (str, bytes, os.PathLike)) else place(error)


def site(error: BaseException) -> str | None:
    """File and line of the innermost code that is not the doctor's own or a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(__file__)
    users = [f for f in frames if not f.filename.startswith((own, "<")) and "site-packages" not in f.filename]
    return f"{shown(users[-1].filename)}:{users[-1].lineno} in {users[-1].name}" if users else None


def shown(name: str) -> str:
    """A path as one would type it here."""
    here = os.getcwd() + os.sep
    return name.removeprefix(here)
