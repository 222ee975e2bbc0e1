"""What goes wrong in a user's dataset: the exception is the user's own, and says which sample it is about."""

import ctypes
import faulthandler
import random
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import forebay as fb
import python_datasets as datasets

KINDS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 2, "workers": "processes"},
]
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:.*worker creation.*:UserWarning", "ignore:no batch for:RuntimeWarning"),
]


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("no"),
        datasets.TwoWordsError("no", 5),
        OSError(5000, "no"),
        ExceptionGroup("no", [KeyError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_keeps_its_type_and_says_the_sample(kind: dict[str, Any], error: Exception) -> None:
    loader = fb.DataLoader(datasets.Bad(8, {5: error}), batch_size=2, **kind)
    passed = iter(loader)
    assert [next(passed).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(type(error)) as raised:
        next(passed)
    assert "sample 5, position 1 of batch 2 of epoch 0" in notes(raised.value)
    assert next(passed).tolist() == [6, 7], "as in torch, the pass goes on"
    if isinstance(error, datasets.TwoWordsError):
        assert raised.value.second == 5  # type: ignore[attr-defined]
    (failure,) = loader.failures
    assert (failure.index, failure.step, failure.outcome) == (5, 2, "raised")


def test_an_exception_of_another_process_is_told_as_torch_tells_it() -> None:
    loader = fb.DataLoader(datasets.Bad(4, {2: ValueError("this one")}), num_workers=2, workers="processes")
    with pytest.raises(ValueError, match="this one") as raised:
        list(loader)
    assert str(raised.value).startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback")
    assert "python_datasets.py" in str(raised.value), "the worker's own traceback"
    assert isinstance(raised.value.__cause__, ValueError)
    assert str(raised.value.__cause__) == "this one"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_stray_end_is_not_taken_for_the_end(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(datasets.Bad(4, {2: StopIteration()}), **kind)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_collation_refuses_names_the_batch(kind: dict[str, Any]) -> None:
    def refuse(samples: Any) -> Any:
        raise TypeError("cannot")

    with pytest.raises(TypeError, match="cannot") as raised:
        list(fb.DataLoader(range(8), batch_size=4, collate_fn=refuse, **kind))
    assert "collating batch 0, samples 0, 1, 2, 3" in notes(raised.value)


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_what_worker_init_fn_raises_comes_with_its_traceback(kind: dict[str, Any]) -> None:
    def refuse(worker: int) -> None:
        raise LookupError(f"worker {worker} cannot")

    with pytest.raises(LookupError, match="worker 0 cannot") as raised:
        next(iter(fb.DataLoader(range(8), worker_init_fn=refuse, **kind)))
    line = refuse.__code__.co_firstlineno + 1
    # Of a thread it is the exception's own traceback; of a process it is in the message.
    told = str(raised.value) if kind["workers"] == "processes" else "".join(traceback.format_exception(raised.value))
    assert f'File "{__file__}", line {line}, in refuse\n    raise LookupError(' in told


CRASHES = {"a signal": faulthandler._sigsegv, "a null pointer": lambda: ctypes.string_at(0)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_a_crash_in_worker_init_fn_comes_with_its_stack(crash: Callable[[], object]) -> None:
    def initialise(worker: int) -> None:
        crash()

    with pytest.raises(fb.errors.WorkerDiedError, match="worker 0 was killed by SIGSEGV, while it started") as raised:
        next(iter(fb.DataLoader(range(8), worker_init_fn=initialise, num_workers=2, workers="processes")))
    line = initialise.__code__.co_firstlineno + 1
    assert f'File "{__file__}", line {line} in initialise' in str(raised.value)
    assert ") is killed by signal: Segmentation fault. " in str(raised.value), "as torch says it"
    assert raised.value.hint == "look at the signal and the stack in the detail"


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_a_timeout_is_torchs_error_and_names_what_is_in_hand(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(Slow(3), timeout=0.5, **kind)
    if kind["workers"] == "processes":  # their start counts, too
        loader.timeout = 30
        passed = iter(loader)
        next(passed)
        passed._setup.patience = type(passed._setup.patience)(30.0, 0.5)  # type: ignore[attr-defined]
    else:
        passed = iter(loader)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.5 seconds; .*sample 3") as raised:
        list(passed)
    assert isinstance(raised.value, fb.errors.DeadlineError)
    released.set()
    loader.close()


def test_a_timeout_needs_workers() -> None:
    with pytest.raises(fb.errors.ConfigError, match="timeout: expected 0 with num_workers=0"):
        iter(fb.DataLoader(range(3), timeout=1))


released = threading.Event()


class Slow:
    """Hangs at one sample until it is released."""

    def __init__(self, slow: int) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.slow:
            released.wait(20)
        return index


def test_a_long_wait_names_the_sample_and_the_line() -> None:
    released.clear()
    loader = fb.DataLoader(Slow(5), num_workers=2, workers="threads", stall_seconds=0.3)
    passed = iter(loader)
    with pytest.warns(RuntimeWarning, match=r"(?s)no batch for .*has worked on sample 5.*released\.wait"):
        for index in range(6):
            if index == 5:
                threading.Timer(1.0, released.set).start()
            next(passed)
    assert len(list(passed)) == 2


def test_what_is_in_hand_can_be_asked_for() -> None:
    released.clear()
    loader = fb.DataLoader(Slow(1), num_workers=2, workers="threads")
    passed = iter(loader)
    next(passed)
    until = time.monotonic() + 10
    while not (held := [item for item in loader.in_flight() if "released.wait" in (item["stack"] or "")]):
        assert time.monotonic() < until, loader.in_flight()
        time.sleep(0.01)
    assert [(item["index"], item["shard"]) for item in held] == [(1, 1)]
    released.set()
    assert len(list(passed)) == 7


def test_a_generator_that_ended_with_its_exception_is_not_gone_on_with() -> None:
    class Breaking:
        def __iter__(self) -> Any:
            yield 1
            raise ValueError("inside")

    loader = fb.DataLoader(Breaking(), on_error="skip")
    with pytest.raises(ValueError, match="inside") as raised:
        list(loader)
    assert "a generator ends with the first exception" in notes(raised.value)


def test_a_closed_loader_says_so_and_its_state_stays() -> None:
    with fb.DataLoader(range(6), batch_size=2) as loader:
        next(iter(loader))
    with pytest.raises(fb.errors.StoppedError, match="closed"):
        iter(loader)
    assert loader.state_dict()["step"] == 1


@pytest.mark.parametrize("name", ["io_threads", "hedge", "dtype", "memory_format", "isolate"])
def test_what_only_native_datasets_have_is_refused(name: str) -> None:
    value: Any = {
        "io_threads": 2,
        "hedge": 1.0,
        "dtype": "uint8",
        "memory_format": "channels_last",
        "isolate": "always",
    }
    with pytest.raises(fb.errors.ConfigError, match=f"{name}: expected none for a Python dataset"):
        fb.DataLoader(range(3), **{name: value[name]})


class Short:
    """Says that it has more samples than it has."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return [0, 1, 2, 3, 4, 5, 6][index]


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_that_is_too_large_is_told_at_the_sample(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(Short(), batch_size=4, **kind)
    passed = iter(loader)
    assert next(passed).tolist() == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="list index out of range") as told:
        next(passed)
    assert "sample 7, position 3 of batch 1" in "\n".join([str(told.value), *getattr(told.value, "__notes__", [])])


class Holder:
    """A dataset that holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {"image": self.held() if callable(self.held) else index}


def test_what_cannot_be_sent_is_named_with_its_path() -> None:
    with pytest.raises(TypeError, match=r"dataset cannot be sent to a worker: dataset\.held\[1\] → generator") as told:
        list(fb.DataLoader(Holder([1, (line for line in "abc")]), num_workers=1, workers="processes"))
    assert "call it in the worker" in str(told.value)
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"collate_fn cannot be sent to a worker: collate_fn.*lock"):
        holding = {"collate_fn": lambda samples: (lock, samples), "workers": "processes"}
        list(fb.DataLoader(range(3), num_workers=1, **holding))  # type: ignore[arg-type]


def test_a_sample_that_cannot_be_sent_is_named_with_its_path() -> None:
    dataset = Holder(lambda: open("/dev/null", "wb"))  # noqa: SIM115 — what is wrong with it
    with pytest.raises(TypeError, match=r'sample 0 cannot be sent.*sample\["image"\] → BufferedWriter on /dev/null'):
        next(iter(fb.DataLoader(dataset, batch_size=None, num_workers=1, workers="processes")))
    with pytest.raises(TypeError, match=r'batch\[1\]\["image"\] → BufferedWriter on /dev/null') as told:
        next(iter(fb.DataLoader(Bad(dataset), batch_size=2, collate_fn=list, num_workers=1, workers="processes")))
    assert "batch 0, made of the samples" in notes(told.value) + str(told.value)


class Bad(Holder):
    """Only the second sample is bad."""

    def __init__(self, inner: Holder) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Any:
        return self.inner[index] if index == 1 else index


@pytest.mark.parametrize(
    "held",
    [random.Random(1), numpy.random.default_rng(1), numpy.random.RandomState(1), torch.Generator()],
    ids=lambda held: type(held).__name__,
)
def test_a_random_generator_is_no_handle(held: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", "no batch for", RuntimeWarning)
        assert len(list(fb.DataLoader(Holder(held), num_workers=1))) == 3


def test_a_file_that_is_open_is_named_before_the_first_batch(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a line")
    with open(path) as file:
        loader = fb.DataLoader(Holder(file), num_workers=1)
        with pytest.warns(RuntimeWarning, match=r"dataset\.held → TextIOWrapper on .*lines.txt"):
            assert len(list(loader)) == 3
