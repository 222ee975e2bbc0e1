"""`python -m forebay`, and the wheel's `forebay` command."""

import sys

from forebay._forebay import run_cli


def main() -> int:
    return run_cli(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
