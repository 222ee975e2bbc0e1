"""What runs in the doctor's child process: the dataset's own code, which may raise, leak, hang or crash.

Each phase sends its figures as one JSON line when it is done. Before each sample the index is noted in a page of shared
memory: if this process dies or sticks, the doctor knows which sample it was reading.
"""

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from forebay._arrays import torch_arrays
from forebay._arrays.optional_packages import imported
from forebay._doctor import compare, growth, origin, system, target, turns, weight
from forebay._doctor.page import Page
from forebay._doctor.reader import Reader, length_of
from forebay._options.gil import is_free_threaded
from forebay._pickling import sendable as _sendable
from forebay._record import hints

# What share of the time each phase may have; what one leaves over goes to those after it.
_SHARES = {"read": 0.25, "length": 0.05, "determinism": 0.1, "growth": 0.3, "threads": 0.3}
_MAX_ERRORS = 20


class Probe:
    """One examination."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._page = Page(settings["page"])
        self._opened = system.Opened()
        self._reader: Reader

    def run(self) -> None:
        done = set(self._settings["done"])
        self._load(is_told="load" not in done)
        seconds = self._settings["seconds"]
        phases: list[tuple[str, Callable[[float], dict[str, Any]]]] = [
            ("sendable", lambda _: self._sendable() if self._settings["target"] else {}),
            ("weight", lambda _: weight.weigh(self._reader.dataset)),
            ("read", self._read),
            ("length", self._check_length),
            ("determinism", self._determinism),
            ("growth", lambda share: growth.growth(self._reader, share)),
            ("threads", lambda share: turns.threads(self._reader, share)),
        ]
        for name, phase in phases:
            if name in done:
                continue
            self._page.begin(name)
            try:
                found = phase(seconds * _SHARES.get(name, 0))
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}", "where": origin.site(error)}
            self._tell(name, found)
        self._page.begin("done")

    def _tell(self, phase: str, found: dict[str, Any]) -> None:
        line = json.dumps({"phase": phase, "found": found}, default=str) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._settings["events"], data) :]

    def _load(self, is_told: bool) -> None:
        self._page.begin("load")
        start = system.Clock.start()
        try:
            if self._settings["target"]:
                dataset = target.find(self._settings["target"])
            else:
                with open(self._settings["pickle"], "rb", closefd=False) as file:
                    file.seek(0)
                    dataset = pickle.load(file)
            excluded = set(self._settings["excluded"])
            self._reader = reader = Reader(dataset, self._page, self._settings["samples"], excluded)
        except target.UsageError as error:
            self._tell("load", {"usage": str(error)})
            raise SystemExit(0) from None
        except Exception as error:
            failed = {"failed": f"{type(error).__name__}: {error}", "where": origin.site(error)}
            self._tell("load", failed | {"path": origin.path(error), **_advice(error, None)})
            raise SystemExit(0) from None
        if is_told:
            found = {
                "type": type(dataset).__qualname__,
                "module": type(dataset).__module__,
                "length": reader.length,
                "length_error": reader.length_error,
                "is_iterable": reader.is_iterable,
                "seconds": system.Clock.stop().since(start)["wall"],
                "processors": system.processors(),
                "is_free_threaded": is_free_threaded(),
            }
            self._tell("load", found)

    def _sendable(self) -> dict[str, Any]:
        """Whether the dataset reaches a worker, and can be made again there."""
        found, data = sendable(self._reader.dataset)
        if data is not None:
            try:
                pickle.loads(data)
            except Exception as error:
                found["not_restored"] = f"{type(error).__name__}: {origin.first_line(error)}"
                found["where"] = origin.site(error)
        return found

    def _read(self, seconds: float) -> dict[str, Any]:
        """Reads samples once: failures, values, times, and what it waits for."""
        errors: list[dict[str, Any]] = []
        empty: list[int] = []
        unsent: list[dict[str, Any]] = []
        walls: list[float] = []
        total = {"wall": 0.0, "cpu": 0.0, "queued": 0.0, "waiting": 0.0}
        end, error_count = time.perf_counter() + seconds, 0
        sizes: list[int] = []
        files: dict[str, None] = {}
        own = self._own_reads()
        before = system.read_counts()
        for index, get in self._reader.samples():
            count = len(walls) + error_count
            if (time.perf_counter() > end and count >= 3) or (count % 16 == 15 and system.is_crowded()):
                break
            self._page.note(index)
            self._opened.start()
            start = system.Clock.start()
            try:
                sample = get()
            except Exception as error:
                if self._reader.is_iterable and isinstance(error, StopIteration):
                    break
                if self._reader.length is None and not self._reader.is_iterable and isinstance(error, IndexError):
                    self._reader.order = self._reader.order[: self._reader.order.index(index)]
                    break
                error_count += 1
                opened = self._opened.stop()
                if len(errors) < _MAX_ERRORS:
                    errors.append(self._failure(index, error, opened[-1] if opened else None))
                continue
            spent = system.Clock.stop().since(start)
            files.update(dict.fromkeys(self._opened.stop()[-4:]))
            walls.append(spent["wall"])
            total = {name: total[name] + spent[name] for name in total}
            if sample is None and len(empty) < _MAX_ERRORS:
                empty.append(index)
            if len(sizes) < 8:
                try:
                    sizes.append(len(_sendable.dumps(sample, "sample", index=index)))
                except _sendable.UnsendableError as error:
                    unsent += [{"index": index, **vars(finding)} for finding in error.findings if finding.blocks][:3]
                    sizes.append(0)
        after = system.read_counts()
        walls.sort()
        return {
            "count": len(walls) + error_count,
            "errors": errors,
            "error_count": error_count,
            "none": empty,
            "unsent": unsent[:5],
            "sample_bytes": max(sizes, default=0),
            "seconds": total,
            "median_seconds": walls[len(walls) // 2] if walls else None,
            "slowest_seconds": walls[-1] if walls else None,
            "read_calls": max(after["calls"] - before["calls"] - own["calls"] * len(walls), 0),
            "read_bytes": max(after["bytes"] - before["bytes"] - own["bytes"] * len(walls), 0),
            "files": list(files)[:5],
            "remote_mounts": system.remote_mounts(list(files)[:200]),
        }

    @staticmethod
    def _own_reads() -> dict[str, float]:
        """What reading the clock once around a sample reads by itself."""
        before = system.read_counts()
        for _ in range(10):
            system.Clock.stop().since(system.Clock.start())
        after = system.read_counts()
        return {name: (after[name] - before[name]) / 10 for name in after}

    def _failure(self, index: int, error: Exception, opened: str | None) -> dict[str, Any]:
        """What failed, where, and whether it does so again."""
        is_again = True
        advice = _advice(error, self._reader.dataset)  # before another read changes what it finds
        if not self._reader.is_iterable:
            try:
                self._reader.dataset[index]
                is_again = False
            except Exception as second:
                is_again = type(second) is type(error)
        return {
            "index": index,
            "type": type(error).__name__,
            "message": origin.first_line(error),
            "errno": getattr(error, "errno", None),
            "path": origin.path(error) or opened,
            "where": origin.site(error),
            "is_again": is_again,
            **advice,
        }

    def _check_length(self, seconds: float) -> dict[str, Any]:
        """Whether `len` is unchanged, and what the last index and the one beyond return."""
        if self._reader.length is None or self._reader.is_iterable:
            return self._count(seconds) if self._reader.is_iterable and self._reader.length is not None else {}
        found: dict[str, Any] = {"length": self._reader.length, "length_now": length_of(self._reader.dataset)[0]}
        for name, index in (("last", self._reader.length - 1), ("beyond", self._reader.length)):
            if index < 0 or index in self._reader.excluded:
                continue
            self._page.note(index)
            try:
                self._reader.dataset[index]
                found[name] = "a sample"
            except (IndexError, KeyError) as error:
                found[name] = type(error).__name__
            except Exception:
                found[name] = "another error"
        return found

    def _count(self, seconds: float) -> dict[str, Any]:
        """Of an iterable dataset: how many samples there are, as far as the time goes."""
        end, count = time.perf_counter() + seconds, 0
        for _ in self._reader.dataset:
            self._page.note(count)
            count += 1
            if time.perf_counter() > end or (self._reader.length is not None and count > self._reader.length):
                return {"length": self._reader.length, "counted": count, "is_complete": False}
        return {"length": self._reader.length, "counted": count, "is_complete": True}

    def _determinism(self, seconds: float) -> dict[str, Any]:
        """Whether a sample is the same when it is read again with the same seeds, and with others."""
        if self._reader.is_iterable:
            return self._iterable_determinism()
        end, checked, unequal, varied, unknown = time.perf_counter() + seconds, 0, [], 0, 0
        for index in self._reader.order[:16]:
            if (checked and time.perf_counter() > end) or system.is_crowded():
                break
            self._page.note(index)
            try:
                first, second, other = (self._seeded(index, seed) for seed in (1, 1, 2))
            except Exception:
                continue  # a check of its own
            checked += 1
            same = compare.is_same(first, second)
            if same is False:
                unequal.append(index)
            elif same is None:
                unknown += 1
            elif compare.is_same(first, other) is False:
                varied += 1
        return {"checked": checked, "unequal": unequal, "random": varied, "unknown": unknown}

    def _seeded(self, index: int, seed: int) -> Any:
        compare.seed_all(seed)
        return self._reader.dataset[index]

    def _iterable_determinism(self) -> dict[str, Any]:
        """Two beginnings with the same seeds; and whether the workers of one loader would share the samples."""

        def beginning(seed: int) -> list[Any]:
            compare.seed_all(seed)
            return [sample for _, sample in zip(range(4), self._reader.dataset, strict=False)]

        first, second, other = beginning(1), beginning(1), beginning(2)
        same = compare.is_same(first, second)
        found: dict[str, Any] = {
            "checked": len(first),
            "unequal": [0] if same is False else [],
            "random": int(same is True and compare.is_same(first, other) is False),
            "unknown": int(same is None),
        }
        if first and imported("torch") is not None and same:
            shards = []
            for worker in range(2):
                torch_arrays.worker_info(worker, 2, self._reader.dataset)
                shards.append(beginning(1))
            torch_arrays.worker_info(0, 0, None)
            found["is_sharded"] = compare.is_same(*shards) is False
        return found


def _advice(error: Exception, dataset: Any) -> dict[str, str]:
    advice = hints.of(error, dataset)
    return {"topic": advice.topic, "hint": advice.hint}


def sendable(dataset: Any) -> tuple[dict[str, Any], bytes | None]:
    """What in the dataset is tied to this process, and the bytes that a worker would be sent, if there can be any."""
    found: dict[str, Any] = {"handles": [vars(finding) for finding in _sendable.handles(dataset)]}
    start = time.perf_counter()
    try:
        data = _sendable.dumps(dataset, "dataset")
    except _sendable.UnsendableError as error:
        blocking = [vars(finding) for finding in error.findings if finding.blocks]
        return found | {"error": error.message, "hint": error.hint, "detail": error.detail, "blocking": blocking}, None
    return found | {"bytes": len(data), "seconds": time.perf_counter() - start}, data


def main(settings: dict[str, Any]) -> None:
    """Runs in the child; stdout and stderr are the doctor's file already."""
    # The doctor may be killed, and could not end this process then.
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    system.raise_descriptor_limit()
    faulthandler.enable(file=sys.stderr, all_threads=False)
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
    Probe(settings).run()
    # Not by the usual way out: threads that the dataset has started may never end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
