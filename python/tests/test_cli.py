"""The wheel's command: `forebay` and `python -m forebay`."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import children

INSTALLED = Path(sysconfig.get_path("scripts")) / "forebay"


def call(*arguments: str, command: tuple[str, ...] = (sys.executable, "-m", "forebay")) -> tuple[int, str, str]:
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=40, env=children.environment(), check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_demo_finds_every_planted_file_and_the_books_balance() -> None:
    status, output, errors = call("demo")
    assert (status, errors) == (0, "")
    for part in ("epoch 0: planned 600 = delivered", "epoch 1: planned 600 = delivered", "hint (corrupt)", "truncated"):
        assert part in output


def test_help_says_what_there_is_and_wrong_usage_is_2() -> None:
    status, output, _ = call("--help")
    assert status == 0 and "demo" in output and "doctor" in output
    status, _, errors = call("nonsense")
    assert status == 2 and "nonsense" in errors


def test_the_command_is_installed() -> None:
    if not INSTALLED.exists():
        pytest.skip("forebay is imported from the source tree, not installed")
    assert call("--version", command=(str(INSTALLED),)) == call("--version")
