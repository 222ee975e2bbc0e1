"""The wheel's command: `forebay` and `python -m forebay`."""

import sysconfig
from pathlib import Path

import pytest

from children import call

INSTALLED = Path(sysconfig.get_path("scripts")) / "forebay"


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
