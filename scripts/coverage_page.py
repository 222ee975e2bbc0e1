"""Writes the tables of docs/coverage.md, between its two comments; the words around them stay.

`coverage_page.py RUST.json PYTHON.json PAGE`: what `llvm-cov export --summary-only` and `coverage json` wrote.
"""

import datetime
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- written by scripts/coverage_page.py -->\n", "<!-- until here -->\n"
HEAD = """# Coverage

How many lines of the code the tests run. It says where no test looks, and nothing of how well the others look.

"""
LEAST = 10


class Lines:
    """How many lines of each file can run, and how many did."""

    def __init__(self) -> None:
        self.all: Counter[str] = Counter()
        self.run: Counter[str] = Counter()

    def add(self, path: str, count: int, run: int) -> None:
        """A file of this repository; files of others are left out."""
        if Path(path).is_relative_to(ROOT) and count:
            name = str(Path(path).relative_to(ROOT))
            self.all[name] += count
            self.run[name] += run

    def share(self, prefix: str) -> str:
        """The covered lines of all files below a folder."""
        names = [name for name in self.all if name.startswith(prefix)]
        run, count = sum(self.run[name] for name in names), sum(self.all[name] for name in names)
        return f"| `{prefix}` | {count} | {run / count:.1%} |"

    def least(self, prefix: str) -> list[str]:
        """The files with the largest parts that never ran."""
        names = sorted(
            (name for name in self.all if name.startswith(prefix)), key=lambda name: self.run[name] / self.all[name]
        )
        return [f"| `{name}` | {self.all[name]} | {self.run[name] / self.all[name]:.1%} |" for name in names[:LEAST]]


def table(first: str, rows: list[str]) -> list[str]:
    """As Markdown."""
    return [f"| {first} | lines | covered |", "|---|---|---|", *rows, ""]


def main() -> None:
    """Writes the page."""
    rust_path, python_path, page = map(Path, sys.argv[1:])
    lines = Lines()
    rust: dict[str, Any] = json.loads(rust_path.read_text("utf-8"))
    for file in rust["data"][0]["files"]:
        told = file["summary"]["lines"]
        lines.add(file["filename"], told["count"], told["covered"])
    python: dict[str, Any] = json.loads(python_path.read_text("utf-8"))
    for name, file in python["files"].items():
        told = file["summary"]
        lines.add(str(ROOT / name), told["num_statements"], told["covered_lines"])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    crates = sorted({"/".join(name.split("/")[:2]) + "/" for name in lines.all if name.startswith("crates/")})
    written = [
        f"Measured {datetime.date.today()} at {commit} by `make coverage`.",
        "",
        *table("folder", [lines.share(prefix) for prefix in ("crates/", *crates, "python/forebay/")]),
        "The least covered files:",
        "",
        *table("Rust", lines.least("crates/")),
        *table("Python", lines.least("python/forebay/")),
    ]
    text = page.read_text("utf-8") if page.exists() else HEAD + BEGIN + END
    before, _, rest = text.partition(BEGIN)
    page.write_text(before + BEGIN + "\n".join(written) + END + rest.partition(END)[2], "utf-8")
    print("\n".join(written))


if __name__ == "__main__":
    main()
