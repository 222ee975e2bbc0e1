"""The environment of a worker: working directory, `sys.path`, `sys.argv` and variables of the process it works for.

A fork server starts with those of its time. A program may change them before any pass, and workers have to see that.
"""

import importlib
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """The environment of a process at one moment."""

    # `None`: the directory was removed.
    folder: str | None
    path: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: dict[str, str]

    @classmethod
    def current(cls) -> "Environment":
        """That of this process, now."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = None
        path = (entry or folder for entry in sys.path if isinstance(entry, str))
        return cls(
            folder,
            tuple(entry for entry in path if entry is not None),
            tuple(argument for argument in sys.argv if isinstance(argument, str)),
            dict(os.environ),
        )

    def enter(self) -> None:
        """Makes it that of this process."""
        if self.folder is not None:
            os.chdir(self.folder)
        sys.path[:], sys.argv[:] = self.path, self.arguments
        importlib.invalidate_caches()
        for name in os.environ.keys() - self.variables.keys():
            del os.environ[name]
        os.environ.update(self.variables)
