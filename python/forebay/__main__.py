"""`python -m forebay`, and the wheel's `forebay` command."""

import sys

from forebay._forebay import run_cli


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"]:
        # The one command that runs Python code: datasets are.
        from forebay._doctor import command

        return command.run(arguments[1:])
    return run_cli(arguments)


if __name__ == "__main__":
    sys.exit(main())
