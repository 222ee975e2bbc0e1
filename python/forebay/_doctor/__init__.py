"""The doctor: runs a dataset through checks, and reports findings with advice."""

from typing import Any

from forebay._doctor.diagnosis import Diagnosis, Verdict
from forebay.errors import ConfigError

__all__ = ["Diagnosis", "Verdict", "doctor", "examine_target"]


def doctor(dataset: Any, *, seconds: float = 15.0, samples: int = 1000) -> Diagnosis:
    """Runs a dataset through checks, in a process of its own, and gives a verdict on each.

    Looks for what cannot be sent to a worker, open handles, errors by index, samples that crash or hang, a length that
    lies, leaks of descriptors and memory with the lines they come from, memory that every worker would have again,
    samples that cannot be repeated; measures time per sample and waiting, and says whether threads or processes will be
    faster, and how many. At most `samples` are read, each several times, for about `seconds`.

    A dataset that cannot be pickled is not read here: `forebay doctor module:attribute` makes it in its own process.

    >>> import forebay as fb
    >>> diagnosis = fb.doctor([b"one", b"two", b"three"] * 10, seconds=2)
    >>> diagnosis.problems
    []
    >>> diagnosis.find("errors")[0].text
    'none in 30 samples'
    """
    # Here, so that those who never ask do not wait for it.
    from forebay._doctor import child, probe, target, verdicts

    _check(seconds, samples)
    if not target.is_dataset(dataset):
        raise ConfigError(f"expected a dataset with __getitem__ or __iter__, got a {type(dataset).__name__}")
    name = type(dataset).__qualname__
    told, data = probe.sendable(dataset)
    if data is None:
        found = verdicts.all_of(child.Course(), told)
        text = "not examined: only a picklable dataset can be read in its own process"
        change = "correct the above first, or call `forebay doctor module:attribute`, which makes the dataset by itself"
        return Diagnosis(name, [*found, Verdict("samples", "unknown", text, change)], 0.0)
    course = child.examine(None, data, seconds, samples)
    return Diagnosis(name + _count(course.found.get("load", {})), verdicts.all_of(course, told), course.seconds)


def examine_target(place: str, seconds: float, samples: int) -> Diagnosis | str:
    """As `doctor`, for the dataset at `module:attribute`; returns an error text if there is none."""
    from forebay._doctor import child, verdicts

    _check(seconds, samples)
    course = child.examine(place, None, seconds, samples)
    load = course.found.get("load", {})
    if "usage" in load:
        return str(load["usage"])
    name = f"{place}: {load['type']}{_count(load)}" if "type" in load else place
    return Diagnosis(name, verdicts.all_of(course, None), course.seconds)


def _check(seconds: float, samples: int) -> None:
    if not seconds > 0 or seconds == float("inf"):
        raise ConfigError(f"seconds: expected a number above 0, got {seconds!r}")
    if samples < 1:
        raise ConfigError(f"samples: expected a number of at least 1, got {samples!r}")


def _count(load: dict[str, Any]) -> str:
    return f", {load['length']:,} samples" if load.get("length") is not None else ""
