"""What stays behind when samples are read: descriptors, memory, and the lines of code that they come from."""

import gc
import os
import threading
import time
import tracemalloc
import warnings
from collections import Counter
from typing import Any

from forebay._doctor import origin, system
from forebay._doctor.reader import Reader


def growth(reader: Reader, seconds: float) -> dict[str, Any]:
    """Reads on and on: descriptors, memory and threads that stay, and the lines of code they come from."""
    unclosed: dict[str, int] = {}

    def hear(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, ResourceWarning):
            unclosed[str(message)[:200]] = unclosed.get(str(message)[:200], 0) + 1 if len(unclosed) < 100 else 1

    samples = reader.samples(again=True)
    # Caches that fill once, and everything that is imported late, is no growth.
    reader.consume(samples, min(100, len(reader.order) or 100), time.perf_counter() + seconds * 0.2)
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = hear
        marks, counts, first = [_mark()], [], tracemalloc.take_snapshot()
        for _ in range(2):
            end = time.perf_counter() + seconds * 0.35
            counts.append(reader.consume(samples, reader.max_samples, end))
            marks.append(_mark())
    reader.page.begin("growth")  # no sample is being read any more, however long the evaluation takes
    last = tracemalloc.take_snapshot()
    tracemalloc.stop()
    kept = list((Counter(marks[-1]["files"].values()) - Counter(marks[0]["files"].values())).elements())
    return {
        "counts": counts,
        "descriptors": [len(mark["files"]) for mark in marks],
        "before_collection": marks[-1]["before_collection"],
        "traced_bytes": [mark["traced"] for mark in marks],
        "resident_bytes": [mark["resident"] for mark in marks],
        "threads": [mark["threads"] for mark in marks],
        "files": list(dict.fromkeys(kept))[:5],
        "file_count": len(kept),
        "since_first": sorted(set(marks[-1]["files"].values()) - set(reader.files_at_first.values()))[:5],
        "count_since_first": len(marks[-1]["files"]) - len(reader.files_at_first),
        "is_crowded": system.is_crowded(),
        "sites": _sites(last, first),
        "unclosed": sum(unclosed.values()),
        "unclosed_example": next(iter(unclosed), None),
    }


def _mark() -> dict[str, Any]:
    before = len(system.open_files())
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    return {
        "before_collection": before,
        "files": system.open_files(),
        "traced": traced,
        "resident": system.resident_bytes(),
        "threads": threading.active_count(),
    }


def _sites(last: tracemalloc.Snapshot, first: tracemalloc.Snapshot) -> list[dict[str, Any]]:
    """The lines whose memory grew most."""
    own = (tracemalloc.__file__, os.path.dirname(__file__))
    grown = [
        {"line": f"{origin.shown(entry.traceback[-1].filename)}:{entry.traceback[-1].lineno}", "bytes": entry.size_diff}
        for entry in last.compare_to(first, "lineno")[:20]
        if entry.size_diff > 0 and not entry.traceback[-1].filename.startswith(own)
    ]
    return grown[:5]
