"""Programs run in processes of their own, each with a time limit: what a test's own process could not survive."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import forebay

PACKAGE = str(Path(forebay.__file__).parents[1])
# Where the modules are that tests and their programs share.
TESTS = str(Path(__file__).parent)


def environment(**extra: str) -> dict[str, str]:
    """Without what a launcher or a debugger would add, and with the package under test, whatever is installed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    own = {"PYTHONPATH": PACKAGE, "PYTHONFAULTHANDLER": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | own | extra


def command(program: str, *arguments: object) -> list[str]:
    # Python 3.12 and later warn of every fork beside threads; that is what some of the programs are about.
    quiet = "ignore:This process:DeprecationWarning"
    return [sys.executable, "-W", quiet, "-c", textwrap.dedent(program), *map(str, arguments)]


def call(*arguments: str, command: tuple[str, ...] = (sys.executable, "-m", "forebay")) -> tuple[int, str, str]:
    """Runs forebay's command; gives its exit status, output and errors."""
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=90, env=environment(), check=False
    )
    return done.returncode, done.stdout, done.stderr


_started: list[subprocess.Popen[str]] = []


def start(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Starts a program, whose output is read while it runs. It ends with the test at the latest."""
    return start_command(command(program, *arguments), **options)


def start_command(command: list[str], **options: Any) -> subprocess.Popen[str]:
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    process = subprocess.Popen(command, text=True, **defaults | options)
    _started.append(process)
    return process


def end_all() -> None:
    """Ends what a test has left, and closes its pipes: one that fails halfway must not be seen in the next one."""
    while _started:
        process = _started.pop()
        process.kill()
        # Closes the pipes and waits for the end.
        with contextlib.suppress(BrokenPipeError), process:
            pass


def run(
    program: str, *arguments: object, prefix: tuple[str, ...] = (), seconds: float = 90, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; a hang is an error that shows what it had printed."""
    return subprocess.run(
        [*prefix, *command(program, *arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment(),
        check=False,
        **options,
    )
