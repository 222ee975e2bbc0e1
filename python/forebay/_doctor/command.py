"""`forebay doctor`: the command around the doctor."""

import argparse
import os
import sys
from collections.abc import Sequence

from forebay._doctor import examine_target
from forebay.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """The exit status: 0 fine, 1 problems found, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="forebay doctor",
        description="Run a Python dataset through checks: pickling, handles, leaks, errors, speed, workers.",
        epilog="It is made and read in a process of its own: it may hang or crash.",
    )
    parser.add_argument(
        "dataset",
        metavar="module:attribute",
        help="a dataset, or something that makes one when it is called; also path/to/file.py:attribute",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="for about how long [default: 15]")
    parser.add_argument("--samples", type=int, default=1000, metavar="N", help="how many at most [default: 1000]")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as told:  # its way to end, also after --help
        return int(told.code or 0)
    try:
        diagnosis = examine_target(given.dataset, given.seconds, given.samples)
    except ConfigError as error:
        diagnosis = error.message
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    if isinstance(diagnosis, str):
        print(f"error: {diagnosis}", file=sys.stderr)
        return 2
    try:
        print(diagnosis.json() if given.json else diagnosis, flush=True)
    except BrokenPipeError:
        # `forebay doctor … | head` has seen what it wanted; nor must the interpreter try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if diagnosis.problems else 0
