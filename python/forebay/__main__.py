"""`python -m forebay`, and the wheel's `forebay` command."""

import signal
import sys

from forebay._forebay import run_cli


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"]:
        # The one command that runs Python code: datasets are.
        from forebay._doctor import command

        return command.run(arguments[1:])
    # Python's own handler runs when the command is over; Ctrl-C is to end it now, as it does any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_cli(arguments)


if __name__ == "__main__":
    sys.exit(main())
