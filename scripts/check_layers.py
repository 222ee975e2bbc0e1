"""Fails on an arrow that points up: between crates, to pyo3, or to torch.

    check_layers.py               check this repository
    check_layers.py --self-test   check the check, on a made-up repository

The rule is written in ARCHITECTURE.md, "The crates". Standard library only.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import checking
from checking import ROOT

RULE = 'the rule: ARCHITECTURE.md, "The crates"'

# A crate may use those of lower levels only; crates of one level do not know each other.
LEVELS = {
    "forebay-core": 0,
    "forebay-store": 1,
    "forebay-format": 1,
    "forebay-decode": 1,
    "forebay": 2,
    "forebay-mirror": 3,
    "forebay-pack": 3,
    "forebay-cli": 4,
    "forebay-python": 5,
    # A program of the tests: it uses none of them.
    "faultfs": 0,
    # And one that runs the loader.
    "nfstest": 3,
    # And what is fuzzed of the crates below the loader.
    "fuzztargets": 2,
}
PYTHON_CRATE = "forebay-python"
# The only folder of the package whose modules may import torch.
TORCH_FOLDER = "python/forebay/_arrays"


def check_crates(packages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The forbidden edges among the packages of `cargo metadata`; dev- and build-dependencies count."""
    for package in packages:
        name = package["name"]
        if name not in LEVELS:
            yield f"crate {name} has no level: give it one in scripts/check_layers.py and in ARCHITECTURE.md"
            continue
        for dependency in package["dependencies"]:
            used, kind = dependency["name"], dependency["kind"] or "normal"
            edge = f"{name} -> {used} ({kind} dependency in {package['manifest_path']})"
            if used == name:
                continue  # its own test doubles, switched on for its own tests
            if used in LEVELS and LEVELS[used] >= LEVELS[name]:
                yield f"{edge}: arrows point down only"
            if used.split("-")[0] == "pyo3" and name != PYTHON_CRATE:
                yield f"{edge}: only {PYTHON_CRATE} may use pyo3"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of every absolute import in a module, those inside functions and by name included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def check_torch(modules: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Imports of torch outside its folder, among (path, text) of the package's modules."""
    for path, text in modules:
        if Path(TORCH_FOLDER) in Path(path).parents:
            continue
        for line, name in imported(ast.parse(text, path)):
            if name.split(".")[0] in ("torch", "torchvision"):
                yield f"{path}:{line}: {path} -> {name}: only {TORCH_FOLDER} may import torch"


def repository() -> Iterator[str]:
    """What is wrong in this repository."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    packages = json.loads(told.stdout)["packages"]
    for package in packages:
        package["manifest_path"] = str(Path(package["manifest_path"]).relative_to(ROOT))
    yield from check_crates(packages)
    package_root = ROOT / "python" / "forebay"
    files = sorted(package_root.rglob("*.py*"))
    modules = [file for file in files if file.suffix in (".py", ".pyi")]
    yield from check_torch((str(file.relative_to(ROOT)), file.read_text("utf-8")) for file in modules)


def self_test() -> Iterator[str]:
    """Feeds the check a repository with every fault, and one with none."""

    def package(name: str, *uses: str, kind: str | None = None) -> dict[str, Any]:
        dependencies = [{"name": used, "kind": kind} for used in uses]
        return {"name": name, "manifest_path": "Cargo.toml", "dependencies": dependencies}

    faults = [
        (package("forebay-core", "forebay-store"), "forebay-core -> forebay-store (normal"),
        (package("forebay-store", "forebay-decode", kind="dev"), "forebay-store -> forebay-decode (dev"),
        (package("forebay", "forebay-cli", kind="build"), "forebay -> forebay-cli (build"),
        (package("forebay-cli", "pyo3"), "forebay-cli -> pyo3"),
        (package("forebay-cli", "pyo3-build-config"), "only forebay-python may use pyo3"),
        (package("forebay-new"), "forebay-new has no level"),
    ]
    for faulty, expected in faults:
        found = list(check_crates([faulty]))
        if len(found) != 1 or expected not in found[0]:
            yield f"expected one fault with {expected!r}, got {found}"
    fine = [
        package("forebay-core", "serde"),
        package("forebay-store", "forebay-core", "forebay-store"),
        package("forebay-python", "pyo3", "forebay-cli", "forebay", "forebay-core"),
    ]
    if found := list(check_crates(fine)):
        yield f"expected no fault, got {found}"
    for text in (
        "import torch",
        "import os, torch.nn as nn",
        "from torch.utils import data",
        "def f():\n    import torch",
        "import importlib\nimportlib.import_module('torch')",
        "__import__('torchvision.io')",
    ):
        for path in ("python/forebay/loader.py", "python/forebay/_native/torch_arrays.py", "python/forebay/_arrays.py"):
            if len(list(check_torch([(path, text)]))) != 1:
                yield f"not noticed in {path}: {text!r}"
        for file in ("torch_arrays.py", "torch_data.py"):
            if list(check_torch([(f"{TORCH_FOLDER}/{file}", text)])):
                yield f"forbidden in {file}: {text!r}"
    harmless = "from forebay._arrays import torch_arrays\nfrom .torch import x\nname = 'torch'"
    if found := list(check_torch([("a.py", harmless)])):
        yield f"expected no fault, got {found}"


if __name__ == "__main__":
    sys.exit(checking.main("layers", repository, self_test, "every arrow points down", RULE))
