"""What check_*.py have in common: each checks this repository, or with --self-test itself. Standard library only."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(
    name: str,
    repository: Callable[[], Iterable[str]],
    self_test: Callable[[], Iterable[str]],
    fine: str,
    rule: str = "",
) -> int:
    """Prints what is wrong, and where the `rule` is written, or that all is `fine`; the result is the exit status."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--self-test"]):
        print(f"expected --self-test or nothing, got {arguments}", file=sys.stderr)
        return 2
    is_self_test = bool(arguments)
    problems = list(self_test() if is_self_test else repository())
    for problem in problems:
        print(f"{name}: {problem}", file=sys.stderr)
    if problems and rule and not is_self_test:
        print(rule, file=sys.stderr)
    if not problems:
        print(f"{name}: the check notices every fault" if is_self_test else f"{name}: {fine}")
    return 1 if problems else 0
