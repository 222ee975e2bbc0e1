"""The SBOM that maturin puts into every wheel, and beside an installed package: SECURITY.md says what is in it.

`maturin develop`, which `make test-python` begins with, makes the same two files as `maturin build`, in the same way.
So the installed ones are looked at, and nothing is built. `make wheel` builds one, and has these tests look into it:
FOREBAY_WHEEL names it.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from missing import missing

ROOT = Path(__file__).parents[3]
CRATES, LIBRARIES = "forebay-python.cyclonedx.json", "vendored.cdx.json"


def installed(name: str) -> Any:
    """The SBOM of this name of the package that is installed, or of the wheel."""
    if wheel := os.environ.get("FOREBAY_WHEEL"):
        with zipfile.ZipFile(wheel) as archive:
            found = [each for each in map(PurePosixPath, archive.namelist()) if is_sbom(each, name)]
            assert len(found) == 1, f"expected {name} in *.dist-info/sboms of {wheel}, got {found}"
            return json.loads(archive.read(str(found[0])))
    files = [file for file in metadata.distribution("forebay").files or [] if is_sbom(file, name)]
    assert len(files) == 1, f"expected {name} in *.dist-info/sboms, got {files}: see [tool.maturin.sbom]"
    return json.loads(files[0].read_text("utf-8"))


def is_sbom(path: PurePosixPath, name: str) -> bool:
    return path.name == name and path.parent.name == "sboms" and path.parent.parent.suffix == ".dist-info"


def named(sbom: Any) -> set[tuple[str, str]]:
    """The name and version of each component."""
    return {(component["name"], component["version"]) for component in sbom["components"]}


def linked() -> set[tuple[str, str]]:
    """The crates that the extension is made of on any platform, its own left out, as cargo tells."""
    if not shutil.which("cargo"):
        missing("cargo", "it knows which crates the extension is made of")
    command = ["cargo", "tree", "--locked", "--package", "forebay-python", "--edges", "normal,build", "--target", "all"]
    command += ["--prefix", "none", "--format", "{p}"]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    crates = set(re.findall(r"^(\S+) v(\S+)", told, re.MULTILINE))
    return {(name, version) for name, version in crates if name != "forebay-python"}


def left_out(sbom: Any, crates: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{name} {version}" for name, version in set(crates) - named(sbom))


@pytest.fixture(scope="module")
def crates() -> set[tuple[str, str]]:
    return linked()


def test_every_crate_of_the_extension_is_in_it(crates: set[tuple[str, str]]) -> None:
    sbom = installed(CRATES)
    assert sbom["bomFormat"] == "CycloneDX" and sbom["metadata"]["component"]["name"] == "forebay-python"
    # Direct ones, one that only others need, and one that only another platform needs.
    assert {"forebay", "pyo3", "ring", "turbojpeg-sys", "windows-sys"} <= {name for name, _ in crates}
    assert not left_out(sbom, crates), "not in the installed SBOM: run `make develop` if Cargo.lock has changed since"


@pytest.mark.parametrize("name", ["forebay-decode", "turbojpeg-sys", "pyo3"])
def test_a_crate_that_is_not_in_it_is_named(crates: set[tuple[str, str]], name: str) -> None:
    sbom = installed(CRATES)
    sbom["components"] = [component for component in sbom["components"] if component["name"] != name]
    assert left_out(sbom, crates) == [f"{name} {version}" for found, version in crates if found == name]


def test_it_names_no_crate_that_is_not_locked() -> None:
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text("utf-8"))["package"]
    assert named(installed(CRATES)) <= {(package["name"], package["version"]) for package in locked}


def test_each_component_says_how_to_find_it_and_under_which_licence() -> None:
    for component in [*installed(CRATES)["components"], *installed(LIBRARIES)["components"]]:
        assert component["purl"].startswith("pkg:") and component["version"] in component["purl"], component
        assert component["licenses"], component


def test_the_libraries_in_c_are_those_of_the_repository(crates: set[tuple[str, str]]) -> None:
    """scripts/check_supply.py compares their versions with what is compiled."""
    sbom = installed(LIBRARIES)
    assert sbom == json.loads((ROOT / "crates" / "forebay-python" / LIBRARIES).read_text("utf-8"))
    vendors = {component["description"].split(" ")[2].rstrip(",") for component in sbom["components"]}
    assert vendors <= {name for name, _ in crates}
