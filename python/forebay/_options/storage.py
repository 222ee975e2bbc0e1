"""Where a dataset lies: a directory, or the URL of a store and its options."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from forebay import _forebay
from forebay._options import settings
from forebay.errors import ConfigError

# In place of a directory: what is read is kept in the memory of the process. A directory of this name is "./memory".
IN_MEMORY = "memory"
# The same for pictures that are decoded, up to the first random transform.
DECODED = "decoded"


def is_url(root: str) -> bool:
    scheme, separator, _ = root.partition("://")
    return bool(separator) and len(scheme) > 1 and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def root(given: str | os.PathLike[str], options: Mapping[str, Any] | None) -> tuple[str, dict[str, str] | None]:
    """The root as it stands in paths, and the options of its store; `None` for a directory."""
    text = os.fspath(given)
    if text.startswith("file://"):
        url = urlsplit(text)
        if url.netloc not in ("", "localhost"):
            raise ConfigError(f"root: expected file:///path, got a server in it: {url.netloc!r}")
        text = unquote(url.path)
    if not is_url(text):
        if options:
            raise ConfigError(f"storage_options: expected none for a directory, got {sorted(options)}")
        return os.path.expanduser(text), None
    # What the URL says beside its path goes where it is not shown.
    return _forebay.split_url(text, flat(options or {}))


def cache(
    directory: str | os.PathLike[str] | None, limit: int | str | None, revalidates: bool
) -> tuple[str, int | None, bool] | None:
    """The directory of a cache, `IN_MEMORY` or `DECODED`; its limit; whether the storage is asked before each read."""
    if directory is None:
        if limit is not None or revalidates:
            name = "cache_revalidate" if limit is None else "cache_bytes"
            raise ConfigError(f"{name}: expected none without cache, got one")
        return None
    text = os.fspath(directory)
    if text in (IN_MEMORY, DECODED):
        if revalidates:
            raise ConfigError(f'cache_revalidate: expected a directory beside it, got cache="{text}"')
        return text, settings.memory_budget(limit, "cache_bytes"), False
    if is_url(text) or not text:
        raise ConfigError(f'cache: expected a directory of this machine, "memory" or "decoded", got {text!r}')
    return os.path.abspath(os.path.expanduser(text)), settings.memory_budget(limit, "cache_bytes"), bool(revalidates)


def opened(cache: tuple[str, int | None, bool] | None) -> _forebay.Cache | None:
    """What `cache` described."""
    if cache is None:
        return None
    directory, limit, revalidates = cache
    if directory == IN_MEMORY:
        return _forebay.Cache.memory(limit)
    if directory == DECODED:
        return _forebay.Cache.decoded(limit)
    return _forebay.Cache(directory, limit, revalidates)


def flat(options: Mapping[str, Any]) -> dict[str, str]:
    """Names and values as text; s3fs keeps some of them one level deeper."""
    named: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            named |= flat(value)
        elif isinstance(value, bool):
            named[str(name)] = str(value).lower()
        elif isinstance(value, str | int | float | os.PathLike):
            named[str(name)] = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        elif value is not None:
            kind = type(value).__name__
            raise ConfigError(f"storage_options[{name!r}]: expected text, a number or true or false, got a {kind}")
    return named
