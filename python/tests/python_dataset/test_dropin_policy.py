"""What forebay adds for Python datasets: policies for bad samples, books, ledger, retries, seeds, ranks."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import children
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


def bad() -> datasets.Bad:
    return datasets.Bad(20, {3: ValueError("broken"), 11: OSError(5000, "worse", "/data/11.jpg")})


def flat(loader: Any) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bad_samples_are_replaced_by_the_same_ones_everywhere(kind: dict[str, Any], tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    loader = fb.DataLoader(bad(), batch_size=4, on_error="replace", ledger=ledger, **kind)
    given = flat(loader)
    assert [given[index] for index in range(20) if index not in (3, 11)] == [i for i in range(20) if i not in (3, 11)]
    assert given == flat(fb.DataLoader(bad(), batch_size=4, on_error="replace"))
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(line["index"], line["position"], line["step"], line["outcome"]) for line in lines] == [
        (3, 3, 0, "replaced"),
        (11, 11, 2, "replaced"),
    ]
    assert [line["substitute"] for line in lines] == [given[3], given[11]]
    assert lines[1]["path"] == "/data/11.jpg"
    assert "python_datasets.py" in lines[0]["detail"]
    assert [failure.index for failure in loader.failures] == [3, 11]
    assert "epoch 0: planned 20 = delivered 18 + replaced 2 + skipped 0" in loader.report()
    assert loader.explain(0)[3] == {"position": 3, "planned": 3, "index": given[3]}


def whole_number(text: str) -> int:
    return int(text)


class Texts(data.Dataset[int]):
    """Its own code cannot make a number of one of its lines, nor find one of its files."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            open("/nowhere/2.txt").close()
        return whole_number("x" if index == 1 else str(index))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_the_datasets_own_code_raises_has_a_code_of_its_own(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(Texts(), batch_size=4, on_error="replace", **kind)
    list(loader)
    first, second = loader.failures
    assert (first.index, first.code, first.stage) == (1, "user_code", "transform")
    assert "ValueError: invalid literal for int()" in first.message and "in whole_number" in (first.detail or "")
    assert first.hint == fb.errors.UserCodeError("x").hint
    assert (second.code, second.path) == ("not_found", "/nowhere/2.txt")
    assert "hint (user_code): " in loader.report()
    with pytest.raises(ValueError, match="invalid literal") as raised:
        list(fb.DataLoader(Texts(), batch_size=4, **kind))
    assert type(raised.value) is ValueError


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bad_samples_are_skipped_and_a_batch_of_them_does_not_come(kind: dict[str, Any]) -> None:
    dataset = datasets.Bad(10, {index: ValueError("broken") for index in (1, 4, 5)})
    loader = fb.DataLoader(dataset, batch_size=2, on_error="skip", **kind)
    assert [batch.tolist() for batch in loader] == [[0], [2, 3], [6, 7], [8, 9]]
    assert "planned 10 = delivered 7 + replaced 0 + skipped 3" in loader.report()
    assert loader.state_dict()["step"] == 4


def test_the_substitute_of_a_users_order_is_of_the_same_batch() -> None:
    loader = fb.DataLoader(bad(), batch_size=3, sampler=[2, 3, 7, 8, 9, 10], on_error="replace", with_ids=True)
    first, ids = next(iter(loader))
    assert first.tolist() == ids.tolist() == [2, 7, 7]


def test_where_nothing_can_stand_in_the_error_comes() -> None:
    dataset = datasets.Bad(3, dict.fromkeys(range(3), ValueError("all of them")))
    with pytest.raises(ValueError, match="all of them") as raised:
        list(fb.DataLoader(dataset, on_error="replace"))
    assert any("substitutes could be loaded either" in note for note in raised.value.__notes__)


def test_too_many_failures_end_the_run() -> None:
    loader = fb.DataLoader(bad(), on_error="replace", max_failures=1)
    with pytest.raises(
        fb.errors.TooManyFailuresError,
        match=r"2 of the first 12 samples of this epoch failed \(max_failures allows 1\)",
    ):
        list(loader)


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_an_error_that_may_pass_is_tried_again(kind: dict[str, Any]) -> None:
    loader = fb.DataLoader(datasets.Flaky(), **kind)
    assert flat(loader) == [0, 1, 2, 3]
    (failure,) = loader.failures
    assert (failure.index, failure.outcome, failure.attempts, failure.errno) == (2, "recovered", 3, 5)
    with pytest.raises(OSError, match="Input/output error"):
        flat(fb.DataLoader(datasets.Flaky(), retries=1, **kind))


@pytest.mark.parametrize("shuffle", [False, True])
def test_with_a_seed_samples_do_not_depend_on_the_workers(shuffle: bool) -> None:
    def everything(**arguments: Any) -> Any:
        loader = fb.DataLoader(datasets.Noisy(9), batch_size=2, shuffle=shuffle, seed=8, collate_fn=list, **arguments)
        return [[batch for batch in loader] for _ in range(2)]  # noqa: C416

    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    here = everything()
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's own random numbers are left alone"
    assert everything(num_workers=1) == here
    assert everything(num_workers=3) == here
    assert here[0] != here[1]


def test_ranks_share_the_dataset_only_if_told() -> None:
    parts = [flat(fb.DataLoader(range(10), shuffle=True, seed=2, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(10))
    assert len(parts[0]) == len(parts[1])
    assert flat(fb.DataLoader(range(10))) == list(range(10))
    with pytest.raises(fb.errors.ConfigError, match="on several ranks"):
        fb.DataLoader(range(10), rank=0, world_size=2, on_error="skip")


def test_ids_come_beside_the_batches() -> None:
    loader = fb.DataLoader(data.TensorDataset(torch.arange(6) * 10), batch_size=4, with_ids=True)
    ((first, ids), _) = list(loader)
    assert first[0].tolist() == [0, 10, 20, 30]
    assert ids.tolist() == [0, 1, 2, 3]
    with pytest.raises(fb.errors.ConfigError, match="with_ids"):
        fb.DataLoader(datasets.Stream(3), with_ids=True)


def test_a_thread_past_its_deadline_is_written_off() -> None:
    stuck = threading.Event()

    class Stuck:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            if index == 5:
                stuck.wait(30)
            return index

    loader = fb.DataLoader(
        Stuck(), batch_size=3, num_workers=2, workers="threads", deadline_seconds=0.5, on_error="replace"
    )
    given = flat(loader)
    assert [index for place, index in enumerate(given) if place != 5] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    (failure,) = loader.failures
    assert (failure.index, failure.code, failure.outcome) == (5, "timeout", "replaced")
    assert "stuck.wait" in (failure.detail or "")
    stuck.set()


class OnDemand:
    """Begins a sample when it is asked for, and takes a twentieth of a second for it."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        assert self.asked.acquire(timeout=30)
        time.sleep(0.05)
        return index


def test_statistics_tell_the_wait_and_the_workers() -> None:
    dataset = OnDemand()
    loader = fb.DataLoader(dataset, num_workers=1, workers="threads")
    began, passed = time.monotonic(), iter(loader)
    for number in range(1, 9):
        dataset.asked.release()
        next(passed)
        told = loader.stats()
        assert (told["samples"], told["workers"]["kind"]) == (number, "threads")
    assert list(passed) == []
    elapsed, told = time.monotonic() - began, loader.stats()
    assert (told["samples"], told["workers"]["restarts"]) == (8, 0), "also when the pass is over"
    # Half of each wait at least: the loop may be kept from its clock for a moment after it has asked.
    assert 8 * 0.025 <= told["wait_seconds"] <= elapsed
    quantiles = told["wait_quantiles"]
    assert 0.025 <= quantiles["p50"] <= quantiles["p95"] <= quantiles["p99"] <= elapsed


def test_a_ledger_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(fb.errors.ConfigError, match=r"""cannot be the ledger: ".*/file" is not a directory"""):
        (tmp_path / "file").touch()
        fb.DataLoader(range(3), ledger=tmp_path / "file" / "ledger.jsonl")
    fb.DataLoader(range(3), ledger=tmp_path / "made" / "ledger.jsonl").close()
    assert (tmp_path / "made" / "ledger.jsonl").exists()


def test_threads_are_let_go_before_the_interpreter_ends() -> None:
    """It would cut them off wherever they are; cut off in torch's code they would abort the process."""
    program = """
        import atexit, threading

        # Registered first, called last: after the loaders' own end.
        atexit.register(lambda: print([thread.name for thread in threading.enumerate() if "forebay" in thread.name]))
        import torch
        from forebay._python.workers.job import Job
        from forebay._python.workers.process.threads import ThreadWorkers

        # Nobody closes it: what an exception holds on to is like that.
        job = Job(dataset=torch.arange(9.0), collate_fn=None, worker_init_fn=None, is_iterable=False, is_batched=True,
                  drop_last=False, shard_count=4, base_seed=1, seed=None, on_error="raise", max_attempts=1,
                  output="torch")
        workers = ThreadWorkers()
        workers.start(job, [0, 1, 2, 3], None)
    """
    done = children.run(program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
