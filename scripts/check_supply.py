"""Fails on a crate that deny.toml does not allow: its licence, a second version of it, or where it comes from.

    check_supply.py               check this repository
    check_supply.py --self-test   check the check, on made-up crates

The same rules as `make deny`, which also asks for advisories but takes minutes to install. Also compares the versions
of the C libraries that the wheel's SBOM names with those that are linked. Standard library only.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import checking
from checking import ROOT

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
VENDORED = ROOT / "crates/forebay-python/vendored.cdx.json"
# Where each C library says its version, below the crate that carries it.
LIBRARIES = {
    "libjpeg-turbo": ("turbojpeg-sys", "libjpeg-turbo/CMakeLists.txt", r"set\(VERSION ([\d.]+)\)"),
    "libwebp": ("libwebp-sys", "vendor/src/dec/vp8i_dec.h", r"#define DEC_(?:MAJ|MIN|REV)_VERSION (\d+)"),
}


def is_allowed(licence: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met with these licences."""
    words = re.findall(r"\(|\)|[^\s()]+", licence.replace("/", " OR "))

    def either() -> bool:
        fits = both()
        while words and words[0] == "OR":
            words.pop(0)
            fits = both() or fits
        return fits

    def both() -> bool:
        fits = one()
        while words and words[0] == "AND":
            words.pop(0)
            fits = one() and fits
        return fits

    def one() -> bool:
        word = words.pop(0)
        if word == "(":
            fits = either()
            words.pop(0)
            return fits
        if words and words[0] == "WITH":
            word += f" WITH {words[1]}"
            del words[:2]
        return word in allowed

    return either()


def check_crates(packages: Iterable[dict[str, Any]], rules: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the packages of `cargo metadata`."""
    allowed = set(rules["licenses"]["allow"])
    skipped = {entry["crate"] for entry in rules["bans"]["skip"]}
    versions = defaultdict(set)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        versions[package["name"]].add(package["version"])
        if package["source"] is None:
            continue  # ours
        if package["source"] != REGISTRY:
            yield f"{name}: comes from {package['source']} (expected crates.io)"
        if not is_allowed(package["license"] or "none", allowed):
            yield f"{name}: its licence is {package['license']!r} (expected one that deny.toml allows)"
    for name, found in sorted(versions.items()):
        if len(found) > 1 and name not in skipped:
            yield f"{name}: {len(found)} versions ({', '.join(sorted(found))}): use one, or give deny.toml the reason"
    for name in sorted(skipped):
        if len(versions[name]) < 2:
            yield f"{name}: deny.toml skips it, but there is one version of it: remove that line"


def check_libraries(packages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """C libraries of which the SBOM names another version than the one that is linked."""
    folders = {package["name"]: Path(package["manifest_path"]).parent for package in packages}
    named = {component["name"]: component["version"] for component in json.loads(VENDORED.read_text())["components"]}
    for library, (crate, file, pattern) in LIBRARIES.items():
        path = folders[crate] / file
        found = ".".join(re.findall(pattern, path.read_text())) if path.exists() else None
        if not found:
            yield f"{library}: its version is not found in {path}: correct LIBRARIES in scripts/check_supply.py"
        elif named.get(library) != found:
            yield f"{library}: {VENDORED.name} names {named.get(library)} (expected {found})"


def repository() -> Iterator[str]:
    """What is wrong in this repository."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    yield from check_crates(packages, tomllib.loads((ROOT / "deny.toml").read_text()))
    yield from check_libraries(packages)


def self_test() -> Iterator[str]:
    """Feeds the check crates with every fault, and some with none."""
    rules = {"licenses": {"allow": ["MIT", "Zlib"]}, "bans": {"skip": [{"crate": "c"}, {"crate": "d"}]}}
    rows = [
        ("a", "1", "MIT"),
        ("b", "1", "MIT"),
        ("b", "2", "GPL-3.0 OR Zlib"),
        ("c", "1", "MIT/GPL-3.0"),
        ("c", "2", "MIT"),
    ]
    packages = [dict(zip(("name", "version", "license"), row, strict=True), source=REGISTRY) for row in rows]
    packages.append({"name": "e", "version": "1", "license": "(MIT OR X) AND GPL-3.0", "source": "git+https://host/e"})
    found = [problem.split(":")[0] for problem in check_crates(packages, rules)]
    if found != ["e 1", "e 1", "b", "d"]:
        yield f"expected faults of e 1 (twice), b and d, got {found}"
    for licence, allowed, expected in (
        ("Apache-2.0 WITH LLVM-exception OR X", "Apache-2.0 WITH LLVM-exception", True),
        ("MIT AND X", "MIT", False),
    ):
        if is_allowed(licence, {allowed}) != expected:
            yield f"expected {licence!r} {'allowed' if expected else 'refused'} where {allowed} is allowed"


if __name__ == "__main__":
    sys.exit(checking.main("supply", repository, self_test, "licences, versions and sources of all crates are allowed"))
