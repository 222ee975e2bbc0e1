"""Fails on a crate of Cargo.lock whose version its authors have taken back ("yanked"), as crates.io tells.

    check_yanked.py               ask crates.io about every crate of Cargo.lock (ten seconds)
    check_yanked.py --self-test   check the check, on made-up answers

What `make deny` does where the advisories cannot be reached: flaws are often, but not always, a reason to yank
(docs/decisions/0055). Standard library only.
"""

import json
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import checking
from checking import ROOT

INDEX = "https://index.crates.io"
THREADS = 8


def address(name: str) -> str:
    """Where the index has a crate."""
    name = name.lower()
    folders = f"{len(name)}" if len(name) < 3 else f"3/{name[0]}" if len(name) == 3 else f"{name[:2]}/{name[2:4]}"
    return f"{INDEX}/{folders}/{name}"


def fault(name: str, version: str, lines: str) -> str | None:
    """What is wrong with a version, by the index's lines: one JSON object for each version."""
    found = [each for each in map(json.loads, lines.splitlines()) if each["vers"] == version]
    if len(found) != 1:
        return f"{name} {version}: expected one line in the index, got {len(found)}"
    return f"{name} {version}: yanked" if found[0]["yanked"] else None


def asked(package: tuple[str, str]) -> str | None:
    """The same, asked of the index."""
    name, version = package
    request = urllib.request.Request(address(name), headers={"User-Agent": "forebay check_yanked.py"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return fault(name, version, answer.read().decode())
    except OSError as error:  # also what urllib raises
        return f"{name} {version}: the index could not be asked: {error}"


def repository() -> Iterator[str]:
    """What is wrong in this repository."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text("utf-8"))["package"]
    packages = [(package["name"], package["version"]) for package in locked if "source" in package]
    with ThreadPoolExecutor(THREADS) as pool:
        yield from filter(None, pool.map(asked, packages))


def self_test() -> Iterator[str]:
    """Feeds the check answers with every fault, and one with none."""
    lines = '{"vers": "1.0.0", "yanked": true}\n{"vers": "1.0.1", "yanked": false}\n'
    for version, expected in (
        ("1.0.0", "a 1.0.0: yanked"),
        ("1.0.1", None),
        ("2.0.0", "a 2.0.0: expected one line in the index, got 0"),
    ):
        if (got := fault("a", version, lines)) != expected:
            yield f"expected {expected!r}, got {got!r}"
    for name, expected in (("a", "1/a"), ("ab", "2/ab"), ("Abc", "3/a/abc"), ("serde", "se/rd/serde")):
        if (got := address(name).removeprefix(f"{INDEX}/")) != expected:
            yield f"{name}: expected {expected!r}, got {got!r}"


if __name__ == "__main__":
    sys.exit(checking.main("yanked", repository, self_test, "no crate of Cargo.lock is yanked"))
