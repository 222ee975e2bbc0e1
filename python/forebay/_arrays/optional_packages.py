"""Optional packages that the program has imported: asked for in any thread, also during the import."""

import sys
from typing import Any


def imported(name: str) -> Any | None:
    """The module, if its import is complete; `None` while another thread is still at it: nothing can be of it yet."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
