"""One set of books (`docs/books.md`): the same scenario and the same assertions for forebay's own datasets and for
Python datasets, in the loop itself, in threads and in processes."""

import errno
import fcntl
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data

import faultfs
import folders
import forebay as fb
import python_datasets as datasets
from forebay import _forebay
from forebay import transforms as T
from forebay._python.passes import Pass
from forebay._record import hints
from forebay._record.failures import Failure

PYTHON: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}
KINDS = ("native", *PYTHON)
TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])
BATCH = 4
NAMES = ("planned", "delivered", "replaced", "skipped")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings(
        "ignore:.*worker creation.*:UserWarning",
        "ignore:.*further ones are counted silently.*:RuntimeWarning",
        "ignore:no batch for:RuntimeWarning",
    ),
]


class Case:
    """A folder of pictures, and loaders of it of one kind."""

    def __init__(self, kind: str, root: Path, asked: Path) -> None:
        self.kind, self.root = kind, root
        self.folder = fb.ImageFolder(root, transform=TO_TENSOR)
        self.paths = [Path(path) for path, _ in self.folder.samples]
        self.asked = asked

    def loader(self, batch_size: int = BATCH, **options: Any) -> fb.DataLoader:
        if self.kind == "native":
            return fb.DataLoader(self.folder, batch_size, **options)
        dataset = datasets.Pictures([str(path) for path in self.paths], str(self.asked))
        return fb.DataLoader(dataset, batch_size, **PYTHON[self.kind], **options)

    def damage(self, *indices: int) -> None:
        for index in indices:
            folders.truncate(self.paths[index])

    def repair(self, index: int) -> None:
        folders.picture(99).save(self.paths[index], quality=90)

    def times_asked(self, index: int) -> int:
        """How often a Python dataset was asked for a sample."""
        return self.asked.read_text().splitlines().count(str(index))


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Case:
    return Case(request.param, folder, tmp_path / "asked")


def books(loader: fb.DataLoader) -> list[dict[str, int]]:
    """Of each epoch."""
    if hasattr(loader, "_engine"):
        return [{name: row[name] for name in NAMES} for row in loader._engine.books()]
    return list(loader._loader.books.epochs.values())  # type: ignore[attr-defined]


def counted(planned: int, replaced: int = 0, skipped: int = 0) -> dict[str, int]:
    lost = replaced + skipped
    return {"planned": planned, "delivered": planned - lost, "replaced": replaced, "skipped": skipped}


def delivered(loader: Any) -> int:
    return sum(len(labels) for _, labels in loader)


def lines(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


# ── books and limits ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_count_of_failures_is_one_of_each_epoch(case: Case) -> None:
    case.damage(2, 9)
    loader = case.loader(on_error="replace", max_failures=2)
    assert [delivered(loader) for _ in range(3)] == [24, 24, 24]
    assert books(loader) == [counted(24, replaced=2)] * 3
    loader = case.loader(on_error="replace", max_failures=1)
    with pytest.raises(fb.errors.TooManyFailuresError) as raised:
        delivered(loader)
    assert raised.value.message == "2 of the first 12 samples of this epoch failed (max_failures allows 1)"
    assert raised.value.detail is not None and raised.value.detail.startswith("the last one: ")
    assert str(case.paths[9]) in raised.value.detail
    assert books(loader) == [counted(8, replaced=1)], "what was not handed over is not in the books"
    assert [failure.index for failure in loader.failures] == [2, 9], "but it is known"


@pytest.fixture(params=KINDS)
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    folders.write_folder(tmp_path / "large", 120, width=16, height=16)
    return Case(request.param, tmp_path / "large", tmp_path / "asked")


def test_a_fraction_of_failures_is_judged_after_a_hundred_samples_of_each_epoch(large: Case) -> None:
    large.damage(0, 1, 2)
    loader = large.loader(10, on_error="replace", max_failures=0.03)
    assert [delivered(loader) for _ in range(2)] == [120, 120]
    assert books(loader) == [counted(120, replaced=3)] * 2
    loader = large.loader(10, on_error="replace", max_failures=0.02)
    got = 0
    with pytest.raises(fb.errors.TooManyFailuresError, match="3 of the first 100 samples of this epoch failed"):
        for _, labels in loader:
            got += len(labels)
    assert got == 90


def test_what_is_skipped_is_counted(case: Case) -> None:
    case.damage(0, 1, 2, 3, 9)
    loader = case.loader(on_error="skip")
    assert [len(labels) for _, labels in loader] == [4, 3, 4, 4, 4]
    assert books(loader) == [counted(24, skipped=5)]
    assert [failure.outcome for failure in loader.failures] == ["skipped"] * 5


def test_a_state_brings_its_books_along(case: Case) -> None:
    case.damage(2, 20)
    first = case.loader(on_error="replace", seed=3)
    passed = iter(first)
    next(passed)
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    assert {name: state["books"][name] for name in NAMES} == counted(4, replaced=1)
    second = case.loader(on_error="replace", seed=3)
    second.load_state_dict(state)
    assert delivered(second) == 20
    assert books(second) == [counted(24, replaced=2)]
    limited = case.loader(on_error="replace", seed=3, max_failures=1)
    limited.load_state_dict(state)
    with pytest.raises(fb.errors.TooManyFailuresError, match="2 of the first 24 samples"):
        delivered(limited)


def test_a_state_whose_books_do_not_balance_is_refused(case: Case) -> None:
    loader = case.loader(seed=3)
    next(iter(loader))
    state = loader.state_dict()
    state["books"] = dict(state["books"]) | {"delivered": 3}
    with pytest.raises(fb.errors.StateMismatchError, match="books: expected them to balance"):
        case.loader(seed=3).load_state_dict(state)


@pytest.mark.parametrize("kind", PYTHON)
def test_a_sample_that_a_worker_loses_is_an_internal_error(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own: `forebay-core/src/books.rs`, `forebay/src/record/account.rs`."""
    take = Pass._take

    def lossy(self: Pass) -> Any:
        result = take(self)
        if result is not None and result.number == 3:
            result.sample_count -= 1
        return result

    monkeypatch.setattr(Pass, "_take", lossy)
    loader = Case(kind, folder, tmp_path / "asked").loader()
    got = 0
    with pytest.raises(fb.errors.InternalError, match=r"the books of epoch 0 do not balance \(expected 24 planned\)"):
        for _, labels in loader:
            got += len(labels)
    assert got == 24


@pytest.mark.parametrize("kind", PYTHON)
def test_a_batch_that_raised_is_not_in_the_books_of_a_loop_that_goes_on(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    case = Case(kind, folder, tmp_path / "asked")
    case.damage(5)
    loader = case.loader()
    passed, got = iter(loader), 0
    while True:
        try:
            got += len(next(passed)[1])
        except fb.errors.CorruptError:
            continue
        except StopIteration:
            break
    assert got == 20 and books(loader) == [counted(20)]
    assert [failure.outcome for failure in loader.failures] == ["raised"]


class LastOneBad(data.IterableDataset[int]):
    """Its last two samples fail."""

    def __iter__(self) -> Iterator[int]:
        return Counting()


class Counting(Iterator[int]):
    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        if self.at > 6:
            raise StopIteration
        if self.at > 4:
            raise ValueError("broken")
        return self.at


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "workers": "threads"}], ids=str)
def test_samples_that_fail_at_the_end_of_a_stream_are_in_the_books(options: dict[str, Any]) -> None:
    loader = fb.DataLoader(LastOneBad(), 2, on_error="skip", **options)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
    assert books(loader) == [counted(6, skipped=2)]
    assert [failure.index for failure in loader.failures] == [4, 5]


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=KINDS)
def behind_faults(request: pytest.FixtureRequest, fault_fs: faultfs.FaultFs, tmp_path: Path) -> tuple[Case, Any]:
    return Case(request.param, fault_fs.root, tmp_path / "asked"), fault_fs


def test_a_sample_that_recovers_is_delivered_and_did_not_fail(behind_faults: tuple[Case, Any]) -> None:
    case, faults = behind_faults
    victim = case.paths[6]
    faults.rule(str(victim.relative_to(faults.root)), "open", errno=errno.EIO, times=2)
    loader = case.loader(on_error="replace", max_failures=0)
    assert delivered(loader) == 24
    assert books(loader) == [counted(24)]
    (failure,) = loader.failures
    assert (failure.index, failure.outcome, failure.errno, failure.attempts) == (6, "recovered", errno.EIO, 3)
    assert loader.stats().get("failed", 0) == 0
    report = loader.report().splitlines()
    assert report[0] == "no sample failed"
    assert report[1].startswith("1 ") and report[1].endswith(" failed at first and succeeded when tried again")


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "EBUSY", "ETIMEDOUT", "ENOLCK", "EACCES", "EROFS", "ENAMETOOLONG"])
def test_an_errno_has_one_code_and_is_tried_again_or_not(behind_faults: tuple[Case, Any], name: str) -> None:
    case, faults = behind_faults
    number = getattr(errno, name)
    known = _forebay.classify(number)
    assert known is not None
    faults.rule(str(case.paths[6].relative_to(faults.root)), "open", errno=number)
    loader = case.loader(on_error="replace", retries=2)
    assert delivered(loader) == 24
    (failure,) = loader.failures
    assert (failure.code, failure.attempts) == (known[0], 3 if known[1] else 1)
    assert (failure.errno, failure.index, failure.outcome) == (number, 6, "replaced")


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=errno.errorcode.get)
def test_what_is_tried_again_is_written_once(number: int) -> None:
    code, is_transient = _forebay.classify(number) or ("user_code", False)
    told, stage = hints.classified(OSError(number, "said"))
    assert told == code
    pause, file, is_known = _forebay.Retries(1, None, []).begin(0, 0).after(number, told, stage, None)
    assert (pause is not None, file, is_known) == (is_transient, None, False)


def test_the_documented_list_of_errnos_is_the_list() -> None:
    document = (Path(__file__).parents[3] / "docs" / "books.md").read_text()
    table = document.split("| errno | code | tried again |\n")[1].split("\n\n")[0].splitlines()[1:]
    documented = {}
    for names, code, again in (line.strip("| ").split(" | ") for line in table):
        documented |= {name: (code.strip("`"), again == "yes") for name in names.split()}
    known = {name: row for number, name in errno.errorcode.items() if (row := _forebay.classify(number)) is not None}
    assert documented == known


def test_pauses_double_and_keep_to_the_deadline() -> None:
    tries = _forebay.Retries(4, 60.0, []).begin(7, 3)
    pauses = [tries.after(errno.EIO, "unavailable", "fetch", None)[0] for _ in range(5)]
    assert pauses[4] is None
    for attempt, pause in enumerate(pauses[:4]):
        assert pause is not None and 0.025 * 2**attempt <= pause <= 0.05 * 2**attempt
    again = _forebay.Retries(4, 60.0, []).begin(7, 3)
    assert again.after(errno.EIO, "unavailable", "fetch", None)[0] == pauses[0], "jitter is a function of the place"
    assert _forebay.Retries(4, 0.01, []).begin(7, 3).after(errno.EIO, "unavailable", "fetch", None)[0] is None


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_substitute_is_another_sample_and_the_same_one_for_every_kind(case: Case, seed: int) -> None:
    case.damage(2, 9, 20)
    loader = case.loader(on_error="replace", seed=seed)
    delivered(loader)
    delivered(loader)
    assert len(loader.failures) == 6
    for failure in loader.failures:
        expected = next(
            other
            for attempt in range(1, 64)
            if (other := _forebay.substitute(24, seed, failure.epoch, failure.position, failure.index, attempt))
            not in (2, 9, 20)
        )
        assert failure.substitute == expected != failure.index


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_samples_the_other_one_is_the_substitute(kind: str, tmp_path: Path) -> None:
    folders.write_folder(tmp_path / "two", 2)
    case = Case(kind, tmp_path / "two", tmp_path / "asked")
    case.damage(1)
    loader = case.loader(1, on_error="replace")
    for _ in range(4):
        delivered(loader)
    assert [failure.substitute for failure in loader.failures] == [0] * 4


def test_a_sampler_that_repeats_a_sample_does_not_make_it_its_own_substitute() -> None:
    dataset = datasets.Bad(6, {3: ValueError("broken")})
    loader = fb.DataLoader(dataset, 4, sampler=[3, 3, 4, 3], on_error="replace")
    assert [batch.tolist() for batch in loader] == [[4, 4, 4, 4]]
    assert [failure.substitute for failure in loader.failures] == [4, 4, 4]


# ── ledger and quarantine ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_lines_of_a_ledger_have_the_same_names(case: Case, tmp_path: Path) -> None:
    case.damage(2)
    loader = case.loader(on_error="replace", ledger=tmp_path / "ledger.jsonl")
    delivered(loader)
    (line,) = lines(tmp_path / "ledger.jsonl")
    # Of a whole file, not of a part of one.
    assert set(line) == {field.name for field in fields(Failure)} - {"member", "offset"}
    assert Failure.from_line(line) == loader.failures[0]
    assert (line["path"], line["code"], line["stage"], line["attempts"]) == (str(case.paths[2]), "corrupt", "decode", 2)
    assert line["size_bytes"] == case.paths[2].stat().st_size and line["mtime_ns"] == case.paths[2].stat().st_mtime_ns


def test_a_line_that_a_crash_cut_short_is_ended_first(case: Case, tmp_path: Path) -> None:
    case.damage(2)
    ledger = tmp_path / "ledger.jsonl"
    delivered(case.loader(on_error="replace", ledger=ledger))
    with ledger.open("a") as file:
        file.write('{"path": "torn')
    for _ in range(2):
        delivered(case.loader(on_error="replace", ledger=ledger))
    text = ledger.read_text().splitlines()
    assert [line.endswith("}") for line in text] == [True, False, True, True]


def test_a_ledger_that_is_locked_stops_nobody(case: Case, tmp_path: Path) -> None:
    case.damage(2, 9)
    ledger = tmp_path / "ledger.jsonl"
    loader = case.loader(on_error="replace", ledger=ledger)
    with ledger.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert delivered(loader) == 24
        said = [str(warning.message) for warning in caught if "the ledger is incomplete" in str(warning.message)]
        assert len(said) == 1 and "has been locked by process" in said[0], said
        assert "the ledger is incomplete" in loader.report()
        assert ledger.read_text() == ""
    loader.close()
    assert [line["index"] for line in lines(ledger)] == [2, 9]
    assert "the ledger is incomplete" not in loader.report()


def test_a_file_that_is_no_ledger_is_refused_at_once(case: Case, tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary\n")
    with pytest.raises(fb.errors.ConfigError, match="is not a ledger of forebay"):
        case.loader(ledger=tmp_path / "diary")


def test_a_file_known_to_be_bad_is_not_tried_again_until_it_changes(case: Case, tmp_path: Path) -> None:
    case.damage(2)
    ledger = tmp_path / "ledger.jsonl"
    first = case.loader(on_error="replace", ledger=ledger)
    delivered(first)
    delivered(first)
    assert [("known to be bad" in failure.hint, failure.epoch) for failure in first.failures] == [(False, 0), (True, 1)]
    second = case.loader(on_error="replace", ledger=ledger)
    delivered(second)
    (failure,) = second.failures
    assert (failure.index, failure.code) == (2, "corrupt") and "known to be bad and unchanged since" in failure.hint
    if case.kind != "native":
        # Only the dataset knows which file it will read: it is asked, and believed at once.
        assert case.times_asked(2) == 2 + 1 + 1
    case.repair(2)
    third = case.loader(on_error="replace", ledger=ledger)
    delivered(third)
    assert not third.failures and books(third) == [counted(24)]


def test_what_a_python_dataset_could_not_decode_the_engine_tries_itself(folder: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    case = Case("inline", folder, tmp_path / "asked")
    # The dataset wants the end of a JPEG to be the end of its file; the engine passes over what follows it.
    with case.paths[2].open("ab") as file:
        file.write(b"trailing")
    loader = case.loader(on_error="replace", ledger=ledger)
    delivered(loader)
    assert [failure.index for failure in loader.failures] == [2]
    native = Case("native", folder, tmp_path / "asked").loader(on_error="replace", ledger=ledger)
    assert delivered(native) == 24 and not native.failures


# ── what is kept and shown ───────────────────────────────────────────────────────────────────────────────────────────


def row(index: int) -> dict[str, Any]:
    return {
        **dict.fromkeys(("stage", "errno", "detail", "substitute", "size_bytes", "mtime_ns")),
        "path": f"dataset[{index}]",
        "index": index,
        "code": "user_code",
        "attempts": 1,
        "elapsed_seconds": 0.0,
        "message": f"sample {index} failed",
        "hint": "",
        "step": 0,
        "position": index,
        "outcome": "skipped",
    }


def test_the_newest_failures_are_kept() -> None:
    """The journal is the engine's own."""
    journal = _forebay.Journal(None)
    account = journal.begin(0, 0, None)
    for first in range(0, 100_500, 500):
        account.hand_over((500, 0, 0, 500), [row(index) for index in range(first, first + 500)])
    kept = journal.failures()
    assert (len(kept), kept[0]["index"], kept[-1]["index"]) == (100_000, 500, 100_499)
    assert "500 older failures are not remembered; a ledger has them all" in journal.report()
    assert journal.books() == [{"epoch": 0, "padded": 0, **counted(100_500, skipped=100_500)}]


def test_the_report_has_one_form(case: Case) -> None:
    case.damage(2, 9)
    loader = case.loader(on_error="replace")
    delivered(loader)
    delivered(loader)
    text = loader.report().splitlines()
    assert text[0] == ("2 files failed:" if case.kind == "native" else "2 samples failed:")
    assert text[1] == "  class    stage   times  message"
    assert all(line.startswith("  corrupt  decode      2  ") for line in text[2:4])
    assert [str(case.paths[index]) in line for index, line in zip((2, 9), text[2:4], strict=True)] == [True, True]
    assert text[4].startswith("  hint (corrupt): ")
    assert text[-2:] == [f"epoch {epoch}: planned 24 = delivered 22 + replaced 2 + skipped 0" for epoch in range(2)]


# A state of this version, as it is written into checkpoints: it has to stay loadable.
GOLDEN: dict[str, Any] = {
    "forebay": 1,
    "dataset": "python_datasets.Bad",
    "length": 20,
    "world_size": 1,
    "epoch": 1,
    "step": 2,
    "position": 8,
    "number": 2,
    "finished": False,
    "order": {"count": 8},
    "base_seed": 1,
    "shard_count": 0,
    "books": {"planned": 8, "delivered": 7, "replaced": 1, "skipped": 0},
}


@pytest.mark.parametrize("kind", PYTHON)
def test_states_of_this_version_and_older_ones_are_gone_on_from(kind: str) -> None:
    make: Callable[..., fb.DataLoader] = lambda **options: fb.DataLoader(  # noqa: E731
        datasets.Bad(20, {3: ValueError("broken"), 17: ValueError("broken")}),
        batch_size=4,
        on_error="replace",
        **PYTHON[kind],
        **options,
    )
    older = {name: value for name, value in GOLDEN.items() if name != "books"}
    for state, expected in ((GOLDEN, counted(20, replaced=2)), (older, counted(12, replaced=1))):
        loader = make()
        loader.load_state_dict(state)
        assert sum(map(len, loader)) == 12
        assert loader._loader.books.epochs == {1: expected}  # type: ignore[attr-defined]
    if kind == "inline":
        loader = make()
        list(loader)
        passed = iter(loader)
        next(passed), next(passed)
        told = loader.state_dict()
        assert set(told) == set(GOLDEN) and told["books"] == GOLDEN["books"]
