"""Whether Python runs without a GIL: it is asked when it matters, because an import may switch it on again."""

import sys


def is_free_threaded() -> bool:
    """Whether this interpreter runs without a GIL, right now."""
    asked = getattr(sys, "_is_gil_enabled", None)
    return asked is not None and not asked()
