"""Handling of test requirements that this machine lacks."""

import importlib
import os
from typing import Any, NoReturn

import pytest


def missing(what: str, why: str) -> NoReturn:
    """Fails the test that needs `what`, unless FOREBAY_ALLOW_MISSING names it: then the test is listed as skipped."""
    if what in (name.strip() for name in os.environ.get("FOREBAY_ALLOW_MISSING", "").split(",")):
        pytest.skip(f"{what} is missing: {why}")
    pytest.fail(f"{what} is missing ({why}): set FOREBAY_ALLOW_MISSING={what} to skip what needs it", pytrace=False)


def package(name: str) -> Any:
    """A package of the test group, imported; see `missing`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(name, str(error))
