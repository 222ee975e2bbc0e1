"""Which modules a dataset needs, and importing them where workers are forked from, so that none of them has to.

That runs code of the user's, which may do what forked processes must not share. So it is looked at afterwards: a
process that has another thread, or another open file, than before forks no worker.
"""

import contextlib
import hashlib
import importlib
import os
import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from forebay._python.workers.process.environment import Environment

# Safe to import and to fork, and slow to import: kept even where the modules of the dataset are imported anew.
KNOWN = ("numpy", "torch", "torchvision", "PIL", "pandas", "scipy", "cv2")
_NEVER = frozenset(("__main__", "__mp_main__", "builtins"))


@dataclass(frozen=True)
class Imports:
    """The modules and the environment that the workers of a job need."""

    environment: Environment
    # Of packages that are `KNOWN`.
    known: tuple[str, ...]
    # What the job names; what these import comes with them.
    modules: tuple[str, ...]

    @classmethod
    def of(cls, referred: Iterable[str], output: str) -> "Imports":
        """For a job that refers to these modules."""
        modules = sorted(name for name in referred if name not in _NEVER and _can_be_imported(name))
        parts = {part for name in modules for part in _parts(sys.modules[name])} | set(modules)
        if output == "torch":
            parts |= {"torch", "torch.utils.data"}
        known = sorted(name for name in parts if name.partition(".")[0] in KNOWN and _can_be_imported(name))
        return cls(Environment.current(), tuple(known), tuple(modules))

    def sealed(self) -> tuple[bytes, bytes]:
        """As bytes, and a digest of them: where it is the same, so is everything here."""
        content = pickle.dumps(self, 5)
        return hashlib.sha256(content).digest(), content


def _can_be_imported(name: str) -> bool:
    return getattr(sys.modules.get(name), "__spec__", None) is not None


def _parts(module: ModuleType) -> set[str]:
    """The modules that the names of a module come from."""
    found = set()
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            found.add(name)
    return found


def import_all(names: Iterable[str]) -> None:
    """Failed imports are ignored: they are raised again in the worker, where the dataset needs the module."""
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)


class Imported:
    """The user's modules in this process, once they are."""

    def __init__(self, modules: Iterable[str]) -> None:
        before = set(sys.modules)
        files = _open_files()
        import_all(modules)
        self.is_safe_to_fork = len(os.listdir("/proc/self/task")) == 1 and _open_files() <= files
        paths = (getattr(sys.modules.get(name), "__file__", None) for name in set(sys.modules) - before)
        self._versions = {path: _version(path) for path in paths if isinstance(path, str)}

    def have_changed(self) -> bool:
        """Whether a file of these modules has changed since."""
        return any(_version(path) != version for path, version in self._versions.items())


def _version(path: str) -> Any:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _open_files() -> set[tuple[str, str]]:
    """(number, what) of each descriptor."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found
