"""Names of many files in one: braces, as in `train-{000..147}.tar`, and wildcards, as in `train-*.tar`."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forebay import _forebay
from forebay._options import storage
from forebay.errors import ConfigError, NotFoundError

# More names than this are a mistake in a range.
MAX_NAMES = 1_000_000

# Parity beside a file is not one more of its kind (docs/parity.md).
SIDECAR = ".parity"

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")


def in_braces(text: str) -> list[str]:
    """What a shell makes of braces: `{a,b}` and `{000..147}` stand for each of their items."""
    found = list(_expanded(text, MAX_NAMES + 1))
    if len(found) > MAX_NAMES:
        raise ConfigError(f"root: expected at most {MAX_NAMES} names, got more from {text!r}")
    return found


def _expanded(text: str, most: int) -> Iterator[str]:
    opened = _group(text)
    if opened is None:
        yield text
        return
    start, end, items = opened
    count = 0
    for item in items:
        for inner in _expanded(item, most):
            for rest in _expanded(text[end:], most):
                yield text[:start] + inner + rest
                count += 1
                if count >= most:
                    return


def _group(text: str) -> tuple[int, int, Iterator[str]] | None:
    """The first pair of braces that stands for several items: where it is, and the items."""
    start = text.find("{")
    while start >= 0:
        depth, commas = 0, []
        for place in range(start, len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 1 and text[place] == ",":
                commas.append(place)
            if depth == 0:
                break
        else:
            return None
        inner = text[start + 1 : place]
        if commas:
            bounds = [start, *commas, place]
            parts = [text[one + 1 : other] for one, other in itertools.pairwise(bounds)]
            return start, place + 1, iter(parts)
        if match := _RANGE.fullmatch(inner):
            return start, place + 1, _range(*match.groups())
        start = text.find("{", start + 1)
    return None


def _range(first: str, last: str, step: str | None) -> Iterator[str]:
    digits = [text.lstrip("-") for text in (first, last)]
    width = max(map(len, digits)) if any(len(text) > 1 and text[0] == "0" for text in digits) else 0
    one, other, stride = int(first), int(last), max(1, int(step or 1))
    numbers = range(one, other + 1, stride) if one <= other else range(one, other - 1, -stride)
    return (f"{'-' if number < 0 else ''}{abs(number):0{width}}" for number in numbers)


def has_wildcards(text: str) -> bool:
    """Whether a name stands for files that have to be looked for."""
    return _first_wildcard(text) is not None


def _first_wildcard(text: str) -> int | None:
    is_url = storage.is_url(text)
    # A URL has other uses for `?`, and its server may be in brackets.
    start = text.find("/", text.find("://") + 3) if is_url else 0
    found = re.compile(r"[*\[]" if is_url else r"[*?\[]").search(text, max(start, 0)) if start >= 0 else None
    return None if found is None else found.start()


def listed(text: str, options: Mapping[str, Any] | None) -> list[str]:
    """The files that a name with wildcards stands for, sorted. The directory before the first wildcard is listed."""
    place = _first_wildcard(text)
    base, _, _ = text[: place or 0].rpartition("/")
    pattern = text[len(base) + 1 :] if base or text.startswith("/") else text
    root, settled = storage.root(base or ("/" if text.startswith("/") else "."), options)
    ending = re.search(r"[^*?\]]*$", pattern)
    index = _forebay.scan_files(root, [ending.group() if ending else ""], True, settled)
    matches = re.compile(translated(pattern)).fullmatch
    lead = root.rstrip("/") + "/"
    found = [path for path in index.paths() if matches(path.removeprefix(lead))]
    if not pattern.endswith(SIDECAR):
        found = [path for path in found if not path.endswith(SIDECAR)]
    if not found:
        raise NotFoundError(f'no file matches "{text}"', path=text, stage="scan")
    return found


def translated(pattern: str) -> str:
    """A pattern as a regular expression: `*` and `?` stand for anything but `/`, and `**/` for any directories."""
    parts = []
    for token in re.findall(r"\*\*/|\*+|\?|\[!?\]?[^\]/]*\]|.", pattern, re.DOTALL):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token.startswith("*"):
            parts.append("[^/]*" if token == "*" else ".*")
        elif token == "?":
            parts.append("[^/]")
        elif len(token) > 1:
            inner = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            inner = f"^{inner[1:]}" if inner.startswith("!") else inner.replace("^", r"\^")
            parts.append("[" + inner.replace("]", r"\]") + "]")
        else:
            parts.append(re.escape(token))
    return "(?s:" + "".join(parts) + ")"
