"""Fails where a document and the page of results it quotes say different numbers.

    check_numbers.py               check this repository
    check_numbers.py --self-test   check the check, on made-up documents

benchmarks/claims.toml lists the measured numbers of README.md, docs/*.md and benchmarks/README.md, each with the cells
of benchmarks/results it comes from. A number that looks measured (a rate, a size, a percentage, "times as fast") and is
not listed there is a fault, too: a claim without a source. Code blocks are left alone. Standard library only.
"""

import ast
import functools
import operator
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import checking
from checking import ROOT

CLAIMS = "benchmarks/claims.toml"
RESULTS = "benchmarks/results"
# They are the pages that a test or a trial has written: nothing else is their source.
WRITTEN = ("docs/faults.md", "docs/nfs.md", "docs/soak.md", "docs/coverage.md")

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
MEASURED = re.compile(
    r"""
    \d\ ?(?:images|samples|pictures|files|requests|MB|GB)/s
    | \d\ ?(?:KB|MB|GB|µs|us)\b
    | \d\ ?%
    | \d[\d.,]*\ ?[\u00d7x](?![\d\w])  # 5.9x, and not 500x375
    | \b(?:[\d.,]+|two|three|four|five|ten)\ times\ as\b
    | \b(?:half|third|quarter|fifth|sixth|tenth)\ (?:of\ )?(?:as\ |the\ |less\ )?(?:memory|time|processor|much|fast)
    """,
    re.VERBOSE,
)


class ClaimError(Exception):
    """A claim that does not hold, or cannot be looked up."""


def paragraphs(text: str) -> list[str]:
    """The paragraphs, items and table rows of a Markdown text, each as one line; without its code blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?=(?:[-*|] ?|\d+\. ))", "\n", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def tables(page: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown text: each row as its cells by the names of their columns. Of two columns with one name
    the second is "name (2)"."""
    found: list[list[dict[str, str]]] = []
    header: list[str] | None = None
    for line in page.splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if header is None:
            header = [name if name not in cells[:place] else f"{name} (2)" for place, name in enumerate(cells)]
            found.append([])
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found[-1].append(dict(zip(header, cells, strict=False)))
    return found


def cell(reference: str, pages: Mapping[str, str]) -> float:
    """The number of a cell, `page.md > row > column`: its first one, or with `> low` and `> high` those of its range.

    A row is named by one of its cells, or by several, `one & other`. `page.md#2` is the second such row of the page.
    """
    name, row, column, *which = (part.strip() for part in reference.split(">"))
    page, _, number = name.partition("#")
    if page not in pages:
        raise ClaimError(f"{reference}: there is no {RESULTS}/{page}")
    matches = []
    for table in tables(pages[page]):
        wanted = row.split(" & ")
        matches += [cells for cells in table if column in cells and all(part in cells.values() for part in wanted)]
    if len(matches) < int(number or 1) or (len(matches) > 1 and not number):
        raise ClaimError(f"{reference}: expected one such row, got {len(matches)}")
    text = matches[int(number or 1) - 1][column]
    numbers = NUMBER.findall(text)
    place = {(): 0, ("low",): 1, ("high",): 2}[tuple(which)]
    if len(numbers) <= place:
        raise ClaimError(f"{reference}: expected {place + 1} numbers in the cell, got {text!r}")
    return float(numbers[place].replace(",", ""))


OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(expression: str, pages: Mapping[str, str]) -> float:
    """What a claim says the number is: a cell, or arithmetic on cells in brackets, `1 - [a] / [b]`."""
    expression = " ".join(expression.split())
    if "[" not in expression:
        return cell(expression, pages)
    text = re.sub(r"\[([^\]]+)\]", lambda found: repr(cell(found[1], pages)), expression)

    def of(node: ast.AST) -> float:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        raise ClaimError(f"{expression}: expected + - * / and cells in brackets")

    return of(ast.parse(text, mode="eval").body)


def check_claim(claim: Mapping[str, Any], documents: Mapping[str, str], pages: Mapping[str, str]) -> None:
    """Raises unless the document has the words, and the number in them is the one of the cells."""
    document, words = claim["document"], claim["words"]
    marked = re.findall(r"\{([^}]*)\}", words)
    if len(marked) != 1:
        raise ClaimError(f"{document}: {words!r}: expected one number in braces, got {len(marked)}")
    plain = words.replace("{", "").replace("}", "")
    if not any(plain in paragraph for paragraph in paragraphs(documents[document])):
        raise ClaimError(f"{document}: expected {plain!r}, which {CLAIMS} lists, got no such words")
    said, got = marked[0].replace(",", ""), value(claim["is"], pages)
    if claim.get("less_than"):
        holds = got < float(said)
    else:
        decimals = len(said.partition(".")[2])
        holds = f"{got:.{decimals}f}" == f"{float(said):.{decimals}f}"
    if not holds:
        relation = "less than" if claim.get("less_than") else "as"
        raise ClaimError(f"{document}: {plain!r}: expected {claim['is']} {relation} {said}, got {got:g}")


def check_table(claim: Mapping[str, Any], documents: Mapping[str, str], pages: Mapping[str, str]) -> None:
    """Raises unless each row of the document's tables with all of these columns is a row of the page."""
    columns: list[str] = claim["table"]

    def rows(text: str) -> list[list[str]]:
        text = text.replace("\u00d7", "x")
        return [[row[name] for name in columns] for table in tables(text) for row in table if set(columns) <= set(row)]

    copied, original = rows(documents[claim["document"]]), rows(pages[claim["page"]])
    if not copied or copied != original:
        wrong = [row for row in copied if row not in original] or [row for row in original if row not in copied]
        raise ClaimError(f"{claim['document']}: its table is not that of {claim['page']}: {wrong[:2]}")


def check(claims: Mapping[str, Any], documents: Mapping[str, str], pages: Mapping[str, str]) -> Iterator[str]:
    """What is wrong."""
    listed = [*claims.get("claim", []), *claims.get("unsourced", []), *claims.get("copied", [])]
    for claim in listed:
        try:
            if claim["document"] not in documents:
                raise ClaimError(f"{claim['document']}: there is no such document")
            if "is" in claim:
                check_claim(claim, documents, pages)
            elif "table" in claim:
                check_table(claim, documents, pages)
            elif not any(claim["words"] in paragraph for paragraph in paragraphs(documents[claim["document"]])):
                raise ClaimError(f"{claim['document']}: expected {claim['words']!r}, got no such words")
        except ClaimError as error:
            yield str(error)
    for document, text in documents.items():
        if document in WRITTEN:
            continue
        known = [
            re.sub("[{}]", "", claim["words"]) for claim in listed if claim["document"] == document and "words" in claim
        ]
        copied = {name for claim in listed if claim["document"] == document for name in claim.get("table", ())}
        for paragraph in paragraphs(text):
            if paragraph.startswith("|") and copied:
                continue  # compared cell by cell
            rest = functools.reduce(lambda text, words: text.replace(words, ""), known, paragraph)
            if found := MEASURED.search(rest):
                around = rest[max(found.start() - 40, 0) : found.end() + 20]
                yield f"{document}: {around!r} looks measured, and {CLAIMS} does not say where"


def read(pattern: str) -> dict[str, str]:
    """Files of the repository by their paths in it."""
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(ROOT.glob(pattern))}


def repository() -> Iterator[str]:
    """What is wrong in this repository."""
    documents = read("README.md") | read("docs/*.md") | read("benchmarks/README.md")
    pages = {Path(name).name: text for name, text in read(f"{RESULTS}/*.md").items()}
    yield from check(tomllib.loads((ROOT / CLAIMS).read_text("utf-8")), documents, pages)


def self_test() -> Iterator[str]:
    """Feeds the check documents with every fault, and some with none."""
    page = (
        "| loader | images/s | seconds | of torch's | of torch's |\n|---|---|---|---|---|\n"
        "| ours | 2395 (2235 to 2489) | 1.0076 (0.9978 to 1.0229) | 0.24 | 0.18 |\n"
        "| theirs | 471 (388 to 480) | 2 | | |\n"
    )
    cells = (
        ("{2,395} images/s", "page.md > ours > images/s"),
        ("{5.1} times as fast", "[page.md > ours > images/s] / [page.md > theirs > images/s]"),
        ("or {0.18} of it", "page.md > ours > of torch's (2)"),
    )
    bound = {
        "words": "less than {3} % longer",
        "is": "100 * ([page.md > ours > seconds > high] - 1)",
        "less_than": True,
    }
    claims = {
        "claim": [{"document": "a.md", "words": words, "is": source} for words, source in cells]
        + [{"document": "a.md"} | bound],
        "unsourced": [{"document": "a.md", "words": "a file of 5 MB", "why": "a setting"}],
        "copied": [{"document": "b.md", "table": ["loader", "seconds"], "page": "page.md"}],
    }
    text = (
        "It has 2,395\nimages/s: 5.1 times as fast, or 0.18 of it.\n\n"
        "- less than 3 % longer, from a file of 5 MB\n\n```\n99 %\n```\n"
    )
    copy = "| loader | seconds |\n|--|--|\n| ours | 1.0076 (0.9978 to 1.0229) |\n| theirs | 2 |\n"
    fine = {"a.md": text, "b.md": copy}

    def problems(documents: Mapping[str, str], results: str = page) -> list[str]:
        return list(check(claims, documents, {"page.md": results}))

    if found := problems(fine):
        yield f"expected no fault, got {found}"
    for before, after in (
        ("2,395", "2,396"),
        ("5.1 times", "5.2 times"),
        ("0.18", "0.19"),
        ("3 % longer", "2 % longer"),
        ("a file of 5 MB", "a file of 6 MB"),
        ("or 0.18", "on 40 % of 0.18"),
        ("5.1 times as fast", "fast"),
        ("5.1 times", "a quarter of the memory, 5.1 times"),
        ("images/s:", "images/s, not 300 images/s:"),
        ("images/s:", "images/s, 2.5x:"),
    ):
        if not problems(fine | {"a.md": text.replace(before, after)}):
            yield f"not noticed in a document: {after!r} for {before!r}"
    for before, after in (("2395", "2396"), ("471", "450"), ("1.0229", "1.0429"), ("0.18", "0.2"), ("| ours", "| us")):
        if not problems(fine, page.replace(before, after)):
            yield f"not noticed in a page of results: {after!r} for {before!r}"
    if not problems(fine | {"b.md": copy.replace("2 |", "3 |")}):
        yield "not noticed: a copied table that differs"
    if not problems({"a.md": text}):
        yield "not noticed: a document that is gone"
    for harmless in ("500x375 pictures", "`deadline_seconds=60`", "8\u00d78 blocks", "version 3.1", "two epochs"):
        if found := problems(fine | {"c.md": harmless}):
            yield f"expected no fault in {harmless!r}, got {found}"


if __name__ == "__main__":
    sys.exit(checking.main("numbers", repository, self_test, "as measured"))
