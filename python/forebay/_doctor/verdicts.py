"""From figures to verdicts: what each check's numbers mean, and what to do about them. Nothing is measured here."""

import math
from collections.abc import Iterator
from typing import Any

from forebay._doctor.child import Course, End
from forebay._doctor.diagnosis import Status, Verdict
from forebay._pickling.handles import readable

# Below these per 1,000 samples, growth is noise: lists that are resized, caches of the interpreter.
_MIN_DESCRIPTORS = 5
_MIN_TRACED = 100_000
# And in all: a few samples of a slow dataset grow by what is noise, too.
_MIN_TOTAL = 50_000
_MIN_NATIVE = 8_000_000
_HEAVY = 20_000_000
_WORKERS = 8
_MOST_WORKERS = 32
# Seconds below which a sample is not worth another process or thread; not measured.
_TRIVIAL = 10e-6
_HELD = ("held", "held for a part of the time", "released")
# The share of their time that threads may wait for a processor on a machine that is not called busy.
_BUSY = 0.1
# Kinds of handles that are sent as something that works, only not as one may think.
_NOTES = ("random generator", "memory map")


def all_of(course: Course, sendable: dict[str, Any] | None) -> list[Verdict]:
    """Every verdict, in the order in which a reader wants them. `sendable`: what was found before the child ran."""
    found = course.found
    load = found.get("load", {})
    verdicts = [*_load(load, course)]
    told = sendable if sendable is not None else found.get("sendable")
    if told:
        verdicts += [*_sendable(told), *_handles(told)]
    if "failed" in load or "type" not in load:
        return verdicts
    verdicts += [_ended(end, load) for end in course.ends]
    checks = (
        ("read", lambda figures: _errors(figures, course)),
        ("length", lambda figures: _length(figures, load)),
        ("determinism", lambda figures: _determinism(figures, told or {})),
        ("growth", lambda figures: _growth(figures, load)),
        ("weight", _weight),
    )
    for name, check in checks:
        figures = found.get(name)
        if figures is None or "failed" in figures:
            why = figures["failed"] if figures else "the process did not get that far"
            verdicts.append(Verdict(_CHECK_OF[name], "unknown", f"could not be examined: {why}"))
        else:
            verdicts += check(figures)
    verdicts += _speed(found.get("read", {}), found.get("threads", {}), load)
    return verdicts


_CHECK_OF = {"read": "errors", "growth": "memory", "length": "length", "determinism": "determinism", "weight": "weight"}


def _load(load: dict[str, Any], course: Course) -> Iterator[Verdict]:
    if "failed" in load:
        at = f", at {load['where']}" if load.get("where") else ""
        yield Verdict("load", "problem", f"the dataset could not be made: {load['failed']}{at}", _advice(load))
    elif "type" not in load:
        for end in course.ends:
            yield _ended(end, load)


def _sendable(told: dict[str, Any]) -> Iterator[Verdict]:
    if "error" in told:
        text = f"{told['error']} [{told['detail']}]"
        blocking = told["blocking"]
        # Handles are reported separately, too.
        is_handle = bool(blocking) and blocking[0]["kind"] != "unpicklable"
        yield Verdict("sendable", "problem", text, None if is_handle else told["hint"], {"blocking": blocking})
    elif "not_restored" in told:
        text = f"the dataset can be sent, but not be made again from what is sent: {told['not_restored']}"
        at = f" (at {told['where']})" if told.get("where") else ""
        yield Verdict("sendable", "problem", text + at, "see what its __setstate__, __init__ or __getattr__ rely on")
    else:
        size = told["bytes"]
        text = f"the dataset reaches a worker as {readable(size)}"
        if size > _HEAVY:
            change = "every worker has a copy of it; keep what is large in files, and open them in the worker"
            yield Verdict("sendable", "note", text, change, {"bytes": size, "seconds": told["seconds"]})
        else:
            yield Verdict("sendable", "fine", text, None, {"bytes": size, "seconds": told["seconds"]})


def _handles(told: dict[str, Any]) -> Iterator[Verdict]:
    findings = {finding["path"]: finding for finding in [*told["handles"], *told.get("blocking", [])]}.values()
    for finding in findings:
        if finding["kind"] == "unpicklable":
            continue  # told by the check before, with what to do
        more = f" (and {finding['count'] - 1} more there)" if finding["count"] > 1 else ""
        text = f"{finding['path']} → {finding['what']}{more}: {finding['why']}"
        status: Status = "note" if finding["kind"] in _NOTES else "problem"
        yield Verdict("handles", status, text, finding["change"], finding)
    if not findings:
        yield Verdict("handles", "fine", "no open files, locks or connections would be sent with it")


def _ended(end: End, load: dict[str, Any]) -> Verdict:
    """A child that was lost."""
    what = "while the dataset was made" if end.phase in ("start", "load") else f"in the check of {end.phase}"
    where = f"sample {end.index}" if load.get("is_iterable") else f"index {end.index}"
    where = where if end.index is not None else what
    first = _frame(end.stack)
    figures = {"index": end.index, "signal": end.signal, "status": end.status, "stack": end.stack, "phase": end.phase}
    if end.is_hang:
        reading = f", reading {end.file}" if end.file else ""
        text = f"{where} did not come back within {end.seconds:.1f} s{reading}; it is in {first}"
        change = "give what it waits for a time limit, or the loader `deadline_seconds`: it replaces what is stuck"
        return Verdict("hangs", "problem", text, change, figures | {"file": end.file})
    how = f"signal {end.signal}" if end.signal else f"exit status {end.status}"
    said = "" if end.stack or not end.output.strip() else f"; it said: {end.output.strip().splitlines()[-1]}"
    text = f"{where} ended the whole process ({how}); it was in {first}{said}"
    if end.phase == "threads":
        text = f"reading on threads ended the whole process ({how}), at index {end.index}; it was in {first}"
        return Verdict(
            "crashes", "problem", text, "use `workers='processes'`: its code is not safe on threads", figures
        )
    change = (
        "a worker that reads it will die; forebay starts another and names the sample: remove it, or use "
        "`on_error='replace'`"
    )
    return Verdict("crashes", "problem", text, change, figures)


def _frame(stack: str) -> str:
    """The innermost line of the user's own code, and the library function that it called, if any."""
    lines = stack.splitlines()
    if not lines:
        return "native code, or the kernel"
    users = [line for line in lines if "/lib/python" not in line and "site-packages" not in line]
    if not users or users[0] is lines[0]:
        return lines[0]
    return f"{lines[0].rpartition(' in ')[2]}, called by {users[0]}"


def _errors(figures: dict[str, Any], course: Course) -> Iterator[Verdict]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for error in figures["errors"]:
        groups.setdefault((error["type"], error["errno"], error["where"]), []).append(error)
    for errors in groups.values():
        first = errors[0]
        indices = ", ".join(str(error["index"]) for error in errors[:5]) + (" …" if len(errors) > 5 else "")
        path = f" ({first['path']})" if first["path"] and first["path"] not in first["message"] else ""
        at = f", at {first['where']}" if first["where"] else ""
        again = "" if all(error["is_again"] for error in errors) else "; a second read of it went well"
        text = f"index {indices}: {first['type']}: {first['message']}{path}{at}{again}"
        yield Verdict("errors", "problem", text, _advice(first), {"errors": errors, "count": figures["error_count"]})
    if figures["none"]:
        said = f"; it printed: {course.output.strip().splitlines()[-1]}" if course.output.strip() else ""
        indices = ", ".join(map(str, figures["none"][:5])) + (" …" if len(figures["none"]) > 5 else "")
        change = "raise the error instead: a batch cannot hold None, and `on_error='replace'` does what is wanted"
        text = f"index {indices} gives None in place of a sample, as if an error had been hidden{said}"
        yield Verdict("errors", "problem", text, change, {"indices": figures["none"]})
    for finding in figures["unsent"][:1]:
        text = f"sample {finding['index']} cannot be sent from its worker: {finding['path']} → {finding['what']}"
        yield Verdict("errors", "problem", text, f"{finding['why']}; {finding['change']}", finding)
    if not figures["errors"] and not figures["none"] and not figures["unsent"]:
        yield Verdict("errors", "fine", f"none in {figures['count']} samples", None, {"count": figures["count"]})


def _advice(error: dict[str, Any]) -> str:
    kind = error.get("type") or str(error.get("failed", "")).partition(":")[0]
    hint, topic = str(error.get("hint") or ""), error.get("topic")
    if topic == "storage":
        return f"{hint}; `on_error='replace'` keeps the run going"
    if hint and topic not in ("code", "decode"):
        return hint
    if kind in ("IndexError", "KeyError"):
        return "the dataset's length and its data do not agree: make __len__ count what is there"
    if "Unidentified" in kind or "corrupt" in str(error.get("message", "")).lower():
        return "the file is damaged or not an image: restore or remove it; `on_error='replace'` keeps the run going"
    return "correct it, or load with `on_error='replace'`: the sample is replaced, counted and named"


def _length(figures: dict[str, Any], load: dict[str, Any]) -> Iterator[Verdict]:
    length = figures.get("length")
    if load.get("length_error"):
        yield Verdict(
            "length", "problem", f"len(dataset) raises {load['length_error']}", "make __len__ count what is there"
        )
        return
    if length is None and not load["is_iterable"]:
        yield Verdict("length", "note", "it has none: a sampler of its own has to say which indices there are")
        return
    if length is None:
        yield Verdict("length", "fine", "it has none: it ends when its iterator ends")
        return
    change = "make __len__ a constant of the dataset that counts exactly what can be read"
    now = figures.get("length_now", length)
    counted = figures.get("counted")
    if now != length:
        text = f"len(dataset) was {length} before some samples were read, and is {now} now: indices mean other samples"
        change = "do not remove samples while reading (each worker has its own list, and the sampler the old length)"
        yield Verdict("length", "problem", text, change, figures)
    elif figures.get("last") in ("IndexError", "KeyError"):
        text = (
            f"len(dataset) is {length}, but index {length - 1} raises {figures['last']}: it promises more than it has"
        )
        yield Verdict("length", "problem", text, change, figures)
    elif counted is not None and (counted > length or (figures["is_complete"] and counted != length)):
        more = "or more" if not figures["is_complete"] else ""
        text = f"len(dataset) is {length}, but iterating it gave {counted} samples{more and ' ' + more}"
        yield Verdict("length", "problem", text, change, figures)
    elif figures.get("beyond") == "a sample":
        text = f"len(dataset) is {length}, and index {length} gives a sample too: if it is one, it is never trained on"
        yield Verdict("length", "note", text, None, figures)
    else:
        yield Verdict("length", "fine", f"{length:,} samples, and the last one is there", None, figures)


def _determinism(figures: dict[str, Any], told: dict[str, Any]) -> Iterator[Verdict]:
    if figures.get("is_sharded") is False:
        text = "with two workers, both give the same samples: each worker iterates over the whole dataset"
        change = "take every n-th sample in __iter__, by `torch.utils.data.get_worker_info()` (id and num_workers)"
        yield Verdict("sharding", "problem", text, change, figures)
    if figures["unequal"]:
        indices = ", ".join(map(str, figures["unequal"][:5]))
        text = (
            f"index {indices} read twice with equal seeds gave two different samples: the dataset remembers something"
        )
        if any(finding["kind"] in ("file", "archive") for finding in told.get("handles", [])):
            text += ", such as the position in an open file, which moves with each read"
        change = "make a sample depend on its index and on `random`, `numpy.random` and `torch` only (they are seeded)"
        yield Verdict("determinism", "problem", text, change, figures)
    elif not figures["checked"]:
        yield Verdict("determinism", "unknown", "no sample could be read twice", None, figures)
    elif figures["unknown"]:
        yield Verdict("determinism", "unknown", "its samples are of a class that cannot be compared", None, figures)
    elif figures["random"]:
        text = "the same with equal seeds, different with others: random augmentation, as it should be"
        yield Verdict("determinism", "fine", text, None, figures)
    else:
        text = f"{figures['checked']} samples were the same when read again"
        yield Verdict("determinism", "fine", text, None, figures)


def _growth(figures: dict[str, Any], load: dict[str, Any]) -> Iterator[Verdict]:
    counts = figures["counts"]
    total = sum(counts)
    if not total and not figures["is_crowded"]:
        yield Verdict("memory", "unknown", "no sample could be read for it")
        return

    def steady(values: list[float], least: float) -> float:
        """Growth per 1,000 samples, if both halves have it."""
        halves = [(values[at + 1] - values[at]) * 1000 / max(counts[at], 1) for at in range(2)]
        return sum(halves) / 2 if min(halves) >= least else 0.0

    descriptors = steady(figures["descriptors"], _MIN_DESCRIPTORS)
    if descriptors:
        example = ", ".join(figures["files"][:3])
        text = f"{descriptors:,.0f} descriptors per 1,000 samples stay open ({example} …)"
        change = "close what __getitem__ opens: `with open(path) as file:`; keep no open file in a list or a cache"
        yield Verdict("descriptors", "problem", text, change, figures)
    elif figures["is_crowded"] and figures["count_since_first"] > 0:
        # So many that reading had to stop: there was no chance to see them grow.
        example = ", ".join(figures["since_first"][:3])
        text = f"{figures['count_since_first']:,} descriptors stay open after the first samples already ({example} …)"
        change = "close what __getitem__ opens: `with open(path) as file:`; keep no open file in a list or a cache"
        yield Verdict("descriptors", "problem", text, change, figures)
    elif figures["unclosed"]:
        text = (
            f"none stays open, but {figures['unclosed']} times in {total} samples closing was left to the garbage "
            f"collector ({figures['unclosed_example']})"
        )
        yield Verdict("descriptors", "note", text, "close what __getitem__ opens: `with open(path) as file:`", figures)
    else:
        yield Verdict("descriptors", "fine", f"none stays open in {total} samples", None, {"samples": total})
    if threads := steady(figures["threads"], _MIN_DESCRIPTORS):
        text = f"{threads:,.0f} threads per 1,000 samples outlive the sample that started them"
        change = "end what __getitem__ starts: `with ThreadPoolExecutor() as pool:`, or one pool for the whole worker"
        yield Verdict("threads", "problem", text, change, figures)
    traced = steady(figures["traced_bytes"], _MIN_TRACED)
    if figures["traced_bytes"][-1] - figures["traced_bytes"][0] < _MIN_TOTAL:
        traced = 0.0
    resident = steady(figures["resident_bytes"], _MIN_NATIVE)
    if traced:
        sites = ", ".join(f"{site['line']} (+{readable(site['bytes'])})" for site in figures["sites"][:3])
        text = f"{readable(traced)} per 1,000 samples are kept, from {sites}"
        length = load.get("length")
        cache = f" as a cache it would end at {readable(traced / 1000 * length)} in each worker;" if length else ""
        change = f"do not keep what was read (a list or dict that grows);{cache} bound it, or use `max_worker_memory`"
        yield Verdict("memory", "problem", text, change, figures)
    elif resident:
        text = f"{readable(resident)} per 1,000 samples are kept by native code: no Python object accounts for it"
        change = "a library leaks: update it, or let the loader renew its workers with `max_worker_memory`"
        yield Verdict("memory", "problem", text, change, figures)
    elif not total:
        yield Verdict("memory", "unknown", "it cannot be seen while descriptors run out")
    else:
        yield Verdict("memory", "fine", f"no growth in {total} samples", None, {"samples": total})


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file.read().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _weight(figures: dict[str, Any]) -> Iterator[Verdict]:
    size, heaviest = figures["python_bytes"], figures["heaviest"]
    least = "" if figures["is_complete"] else "at least "
    text = f"{least}{readable(size)} in {figures['objects']:,} Python objects"
    if figures["data_bytes"] > 1e6:
        text += f", beside {readable(figures['data_bytes'])} of numbers in arrays"
    if size < _HEAVY:
        yield Verdict("weight", "fine", text, None, figures)
        return
    if heaviest:
        of = f" of {heaviest['of']}" if heaviest["of"] else ""
        length = f" of {heaviest['length']:,}" if heaviest["length"] is not None else ""
        text += f", most of it in {heaviest['path']} ({heaviest['type']}{of}{length and ',' + length[3:]})"
    text += (
        f": each worker comes to have its own, {readable(size * _WORKERS)} for {_WORKERS}; also forked ones, because "
        "counting references writes to the pages"
    )
    change = (
        "keep numbers in a NumPy array, strings in one bytes object with an array of offsets (or in Arrow), rows in a "
        "file that workers open; or use `workers='threads'`, which share everything"
    )
    status: Status = "problem" if size * _WORKERS > _available_bytes() / 2 else "note"
    yield Verdict("weight", status, text, change, figures)


def _speed(read: dict[str, Any], threads: dict[str, Any], load: dict[str, Any]) -> Iterator[Verdict]:
    """Time per sample, the GIL, and which workers will be faster."""
    median, seconds = read.get("median_seconds"), read.get("seconds")
    if not median or not seconds or not seconds["wall"]:
        yield Verdict("time", "unknown", "no sample could be read for it")
        return
    ran = max(seconds["wall"] - seconds["queued"], 1e-9)
    waiting, count = seconds["waiting"] / ran, max(read["count"] - read["error_count"], 1)
    slowest = read["slowest_seconds"]
    text = (
        f"{_duration(median)} a sample (slowest {_duration(slowest)}), {waiting:.0%} of it waiting for storage or "
        f"something else; {readable(read['read_bytes'] / count)} read in {read['read_calls'] / count:.0f} calls"
    )
    figures = {"median_seconds": median, "slowest_seconds": slowest, "waiting_share": waiting, **seconds}
    figures |= {"read_bytes": read["read_bytes"] / count, "read_calls": read["read_calls"] / count}
    mounts = ", ".join(f"{point} ({kind})" for point, kind in read["remote_mounts"].items())
    if mounts:
        text += f"; its files are on {mounts}"
    if waiting > 0.5 and median > 0.001:
        change = (
            "many workers hide that; what is read again and again belongs on a local disk, small files in an archive"
        )
        yield Verdict("time", "note", text, change, figures | {"remote_mounts": read["remote_mounts"]})
    else:
        yield Verdict("time", "fine", text, None, figures | {"remote_mounts": read["remote_mounts"]})
    turns = {int(count): turn for count, turn in threads.get("threads", {}).items()}
    if load["module"].partition(".")[0] == "forebay":
        text = (
            "the loader reads it with threads of its own that have nothing to do with the GIL, one for each processor"
        )
        yield Verdict("workers", "fine", text, None, {"processors": load["processors"]})
    elif turns:
        yield from _workers(turns, load)


def _at_once(count: int, turn: dict[str, float], alone: dict[str, float]) -> tuple[float, float]:
    """The work that `count` threads do together, in threads, at least and at most; otherwise they wait for the GIL.

    A thread computes, or could if it had a processor (`queued`), or waits. What it waits for when it is alone is
    storage; what it waits for beyond that when there are others is the GIL. On a busy machine a thread that is to have
    the GIL waits for a processor meanwhile, so that this is the most; the least is what they gave together.
    """
    runnable = turn["cpu"] + turn["queued"]
    storage = max(alone["wall"] - alone["cpu"] - alone["queued"], 0.0) / alone["samples"] * turn["samples"]
    # A thread waits for the GIL only while another thread uses it.
    waited = min(max(turn["wall"] - runnable - storage, 0.0), (count - 1) * runnable)
    most = count * (1 - waited / turn["wall"])
    if turn["queued"] < _BUSY * turn["wall"]:
        return most, most
    gain = (turn["samples"] / turn["elapsed"]) / (alone["samples"] / alone["elapsed"])
    return min(max(gain, 1.0), most), most


def _workers(turns: dict[int, dict[str, float]], load: dict[str, Any]) -> Iterator[Verdict]:
    """Threads or processes, from what one, two and four threads did with their time."""
    processors, alone = load["processors"], turns[1]
    # A sample's seconds, and those of them that need a processor, on a machine that has nothing else to do.
    wall = max(alone["wall"] - alone["queued"], 1e-9) / alone["samples"]
    cpu = max(alone["process_cpu"] / alone["samples"], 1e-7)
    two, four = (_at_once(count, turns[count], alone) for count in (2, 4))
    figures: dict[str, Any] = {"processors": processors, "at_once": {2: two, 4: four}}
    held = [_HELD[(bound > 1.3) + (bound >= 1.7)] for bound in two]
    if load["is_free_threaded"]:
        yield Verdict("gil", "fine", "there is none: this Python is free-threaded", None, figures)
    elif held[0] == held[1]:
        text = f"{held[0]}: two threads do the work of {two[1]:.1f}, four that of {four[1]:.1f}"
        yield Verdict("gil", "fine", text, None, figures)
    else:
        text = f"the machine is too busy to tell: two threads do the work of {two[0]:.1f} to {two[1]:.1f}"
        yield Verdict("gil", "unknown", text, "run the doctor again when the machine is idle", figures)
    if wall < _TRIVIAL:
        text = f"`num_workers=0`: {_duration(wall)} per sample is no more than sending it takes"
        figures |= {"kind": None, "num_workers": 0, "samples_per_second": 1 / wall}
        yield Verdict("workers", "fine", text, None, figures | {"cpu_seconds": cpu, "wall_seconds": wall})
        return
    wanted = min(max(math.ceil(processors * wall / cpu - 0.3), 1), _MOST_WORKERS)
    by_processes = min(wanted / wall, processors / cpu)
    is_scaling = four[0] >= 3.2 or load["is_free_threaded"]
    seen = max(turn["samples"] / turn["elapsed"] for turn in turns.values())
    by_threads = by_processes if is_scaling else min(seen, by_processes)
    kind = "threads" if by_threads >= 0.9 * by_processes else "processes"
    rate = by_threads if kind == "threads" else by_processes
    why = (
        "they share memory, and nothing has to be sent"
        if kind == "threads"
        else f"threads would end at some {by_threads:,.0f}/s, because one at a time has the GIL"
    )
    if held[0] != held[1]:
        why = "they do not depend on the GIL"
    text = (
        f"`workers='{kind}', num_workers={wanted}` should give some {rate:,.0f} samples/s on {processors} processors "
        f"({1 / wall:,.0f}/s with one worker): {why}"
    )
    if wanted == _MOST_WORKERS:
        text += "; it waits so much that still more may help"
    figures |= {
        "kind": kind,
        "num_workers": wanted,
        "samples_per_second": rate,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
    }
    yield Verdict("workers", "fine", text, None, figures)


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
