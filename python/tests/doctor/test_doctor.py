"""Each faulty dataset gets the right diagnosis, sound ones get none, and nothing takes the doctor down."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import children
import faulty
import forebay as fb
from forebay import transforms as T
from forebay._doctor import verdicts
from forebay._options.gil import is_free_threaded

HERE = Path(children.TESTS)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    faulty.write(folder)
    return folder


def call(*arguments: str, folder: Path, seconds: float = 50) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forebay", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=folder.parent,
        env=children.environment(FAULTY_FOLDER=str(folder)),
        check=False,
    )


class Diagnosed:
    """What the command said about one of the faulty datasets."""

    def __init__(self, name: str, folder: Path, *options: str, seconds: float = 1.2) -> None:
        done = call(f"{HERE}/faulty.py:{name}", "--json", "--seconds", str(seconds), *options, folder=folder)
        assert done.returncode in (0, 1), done.stderr
        self.status = done.returncode
        self.found: dict[str, Any] = json.loads(done.stdout)
        assert self.status == (1 if self.problems() else 0) and self.found["problems"] == len(self.problems())

    def of(self, check: str) -> list[dict[str, Any]]:
        return [verdict for verdict in self.found["verdicts"] if verdict["check"] == check]

    def one(self, check: str) -> dict[str, Any]:
        (verdict,) = self.of(check)
        return verdict

    def problems(self) -> set[str]:
        return {verdict["check"] for verdict in self.found["verdicts"] if verdict["status"] == "problem"}


@pytest.mark.parametrize("name", ["Texts", "Augmented"])
def test_a_sound_dataset_has_no_problem(name: str, texts: Path) -> None:
    told = Diagnosed(name, texts)
    assert told.problems() == set() and told.status == 0
    checks = {verdict["check"] for verdict in told.found["verdicts"]}
    assert checks == {
        *("sendable", "handles", "errors", "length", "determinism", "descriptors"),
        *("memory", "weight", "time", "gil", "workers"),
    }
    word = {"Texts": "were the same", "Augmented": "random augmentation"}[name]
    assert word in told.one("determinism")["text"]
    # As the files are: what the doctor itself reads is not in it.
    size, figures = sum(path.stat().st_size for path in texts.iterdir()) / 60, told.one("time")["figures"]
    assert figures["read_bytes"] == pytest.approx(size, abs=40) and figures["read_calls"] == pytest.approx(2, abs=0.5)
    assert told.one("errors")["text"] == "none in 60 samples" and "60 samples" in told.one("length")["text"]


# What causes "[Errno 5]"?


def test_an_input_output_error_is_named_with_index_path_and_storage(texts: Path) -> None:
    told = Diagnosed("InputOutputError", texts)
    (verdict,) = told.of("errors")
    assert told.problems() == {"errors"} and "OSError: [Errno 5]" in verdict["text"]
    assert {error["index"] for error in verdict["figures"]["errors"]} == {3, 41}
    assert "003.txt" in verdict["text"] or "041.txt" in verdict["text"]
    assert "faulty.py:" in verdict["text"] and "dmesg" in verdict["change"]
    assert "a second read" not in verdict["text"]


def test_an_error_that_does_not_come_again_is_told_as_that(texts: Path) -> None:
    (verdict,) = Diagnosed("Flaky", texts).of("errors")
    assert "a second read of it went well" in verdict["text"]


def test_a_real_input_output_error_of_a_mount(texts: Path, fault_fs: Any) -> None:
    faulty.write(fault_fs.source)
    fault_fs.rule("000.txt", "read", errno=5)
    fault_fs.rule("*.txt", "open", delay=0.02)
    told = Diagnosed("Texts", fault_fs.root, seconds=2)
    (verdict,) = told.of("errors")
    assert "[Errno 5]" in verdict["text"] and f"{fault_fs.root}/000.txt" in verdict["text"]
    slow = told.one("time")
    assert slow["status"] == "note" and f"{fault_fs.root} (fuse" in slow["text"]
    assert slow["figures"]["waiting_share"] > 0.5


def test_a_hidden_error_is_found_with_what_was_printed(texts: Path) -> None:
    (verdict,) = Diagnosed("Hiding", texts).of("errors")
    assert "index 5 gives None" in verdict["text"] and "could not read" in verdict["text"]
    assert verdict["figures"]["indices"] == [5]


def test_a_missing_file_is_named(texts: Path) -> None:
    (verdict,) = Diagnosed("Missing", texts).of("errors")
    assert "index 4: FileNotFoundError" in verdict["text"] and "moved.txt" in verdict["text"]


def test_slow_storage_is_told_from_slow_code(texts: Path) -> None:
    told = Diagnosed("Slow", texts, seconds=3)
    assert told.one("time")["status"] == "note" and told.one("time")["figures"]["waiting_share"] > 0.8
    workers = told.one("workers")["figures"]
    assert workers["kind"] == "threads" and workers["num_workers"] > workers["processors"]
    assert told.one("gil")["text"].startswith("there is none" if is_free_threaded() else "released")


# Why "Bad file descriptor" and EOF in workers?


def test_files_opened_in_the_constructor(texts: Path) -> None:
    told = Diagnosed("OpenedAtOnce", texts)
    handles = told.one("handles")
    assert {"handles", "determinism"} <= told.problems()
    assert "dataset.files[0] → TextIOWrapper on " in handles["text"] and "59 more" in handles["text"]
    assert "share one position" in handles["text"] and "if self.files is None" in handles["change"]
    assert "position in an open file" in told.one("determinism")["text"]


def test_a_file_that_cannot_be_sent(texts: Path) -> None:
    told = Diagnosed("OneBigFile", texts)
    sendable = told.one("sendable")
    assert {"sendable", "handles"} <= told.problems()
    assert f"dataset.file → BufferedReader on {texts}/000.txt" in sendable["text"]
    # Its samples were read all the same.
    assert told.one("errors")["status"] == "fine"


@pytest.mark.parametrize(
    ("name", "words"), [("ClosedInConstructor", "is closed: "), ("ReadToItsEnd", "is at its end: ")]
)
def test_a_handle_behind_an_error_is_named_as_by_the_loader(name: str, words: str, texts: Path) -> None:
    told = Diagnosed(name, texts)
    changes = [verdict["change"] for verdict in told.of("errors")]
    assert all(change.startswith("dataset.file (BufferedReader on ") and words in change for change in changes)
    assert changes and "dmesg" not in changes[0] and "retries" not in changes[0]
    assert "open it in `__getitem__`" in changes[0] and "open it in `__getitem__`" in told.one("handles")["change"]


# What caused the RuntimeError in a worker?


def test_samples_that_cannot_be_sent(texts: Path) -> None:
    (verdict,) = Diagnosed("OpenSamples", texts).of("errors")
    assert 'cannot be sent from its worker: sample["text"] → BufferedReader on ' in verdict["text"]
    assert "return what was read" in verdict["change"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Connected", "dataset.rows → sqlite3.Connection"),
        ("Guarded", "dataset.transform.<closure>.lock → _thread.lock"),
    ],
)
def test_what_cannot_be_sent_is_named_by_its_path(name: str, path: str, texts: Path) -> None:
    told = Diagnosed(name, texts)
    assert path in told.one("sendable")["text"] and path in told.one("handles")["text"]


# Why does a folder on a remote machine fail?


def test_a_dataset_that_shrinks_while_it_is_read(texts: Path) -> None:
    verdict = Diagnosed("Popping", texts).one("length")
    assert verdict["status"] == "problem" and "was 60 before" in verdict["text"] and "is 54 now" in verdict["text"]


# Does a dataset leak memory?


def test_descriptors_that_stay_open_are_counted_and_named(texts: Path) -> None:
    told = Diagnosed("LeakingFiles", texts)
    verdict = told.one("descriptors")
    assert verdict["status"] == "problem" and "1,000 descriptors per 1,000 samples" in verdict["text"]
    assert f"{texts}/0" in verdict["text"]


def test_descriptors_are_counted_also_where_few_are_allowed(texts: Path) -> None:
    command = ["prlimit", "--nofile=128:128", sys.executable, "-m", "forebay", "doctor"]
    options = [f"{HERE}/faulty.py:LeakingFiles", "--json", "--seconds", "2"]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=50,
        env=children.environment(FAULTY_FOLDER=str(texts)),
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (verdict,) = (each for each in json.loads(done.stdout)["verdicts"] if each["check"] == "descriptors")
    assert verdict["status"] == "problem" and "descriptors stay open" in verdict["text"]
    assert f"{texts}/0" in verdict["text"]


def test_threads_that_go_on_are_counted(texts: Path) -> None:
    verdict = Diagnosed("LeakingThreads", texts, "--samples", "60").one("threads")
    assert verdict["status"] == "problem" and "threads per 1,000 samples" in verdict["text"]


def test_growth_is_told_with_the_line_it_comes_from(texts: Path) -> None:
    verdict = Diagnosed("GrowingList", texts).one("memory")
    source = (HERE / "faulty.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "self.seen.append" in text)
    assert verdict["status"] == "problem" and f"faulty.py:{line} (+" in verdict["text"]


def test_closing_that_is_left_to_the_collector_is_a_note(texts: Path) -> None:
    verdict = Diagnosed("LeftToCollector", texts).one("descriptors")
    assert verdict["status"] == "note" and "unclosed file" in verdict["text"]


def test_many_python_objects_are_weighed(texts: Path) -> None:
    verdict = Diagnosed("Rows", texts).one("weight")
    # A dict of two entries, a number and a string for each row.
    assert 200_000 * 150 < verdict["figures"]["python_bytes"] < 200_000 * 600
    assert "dataset.rows (list of dict, 200,000)" in verdict["text"] and "NumPy" in verdict["change"]


# And what else there is.


def test_a_crash_is_survived_and_its_index_named(texts: Path) -> None:
    told = Diagnosed("Crashing", texts)
    crash = told.one("crashes")
    assert crash["figures"]["index"] == 17 and crash["figures"]["signal"] == "SIGSEGV"
    assert "string_at" in crash["text"] and "faulty.py" in crash["text"]
    # The others are looked at all the same.
    assert told.one("errors")["text"] == "none in 59 samples" and told.one("memory")["status"] == "fine"


def test_an_exit_is_survived_and_its_index_named(texts: Path) -> None:
    crash = Diagnosed("Leaving", texts).one("crashes")
    assert crash["figures"]["index"] == 11 and crash["figures"]["status"] == 3


def test_a_dataset_that_ends_the_program_is_not_taken_for_one_that_is_done(texts: Path) -> None:
    told = Diagnosed("Quitting", texts)
    crash = told.one("crashes")
    assert crash["figures"]["index"] == 8 and crash["figures"]["status"] == 0
    assert told.one("errors")["text"] == "none in 59 samples"


def test_a_crash_on_threads_only_speaks_for_processes(texts: Path) -> None:
    told = Diagnosed("ThreadShy", texts)
    crash = told.one("crashes")
    assert crash["figures"]["phase"] == "threads" and "workers='processes'" in crash["change"]
    assert told.one("errors")["status"] == "fine" and told.of("workers") == []


def test_a_first_sample_that_imports_for_long_is_no_hang(texts: Path) -> None:
    told = Diagnosed("SlowToBegin", texts)
    assert told.problems() == set()


def test_a_hang_is_survived_and_named_with_index_line_and_file(texts: Path) -> None:
    told = Diagnosed("Hanging", texts)
    hang = told.one("hangs")
    assert hang["figures"]["index"] == 13 and hang["figures"]["file"] == f"{texts}/pipe"
    assert "faulty.py" in hang["text"] and "did not come back" in hang["text"]
    assert told.one("errors")["text"] == "none in 59 samples"


def test_a_length_that_lies(texts: Path) -> None:
    verdict = Diagnosed("Boasting", texts).one("length")
    assert verdict["status"] == "problem" and "len(dataset) is 70, but index 69 raises IndexError" in verdict["text"]


def test_a_dataset_without_a_length_is_read_as_far_as_it_goes(texts: Path) -> None:
    told = Diagnosed("Uncounted", texts)
    assert told.one("length")["status"] == "note" and told.one("errors")["text"] == "none in 60 samples"
    (broken,) = Diagnosed("Unmade", texts).of("length")
    assert broken["status"] == "problem" and "len(dataset) raises AttributeError" in broken["text"]


def test_randomness_that_no_seed_governs(texts: Path) -> None:
    verdict = Diagnosed("OwnDice", texts).one("determinism")
    assert verdict["status"] == "problem" and "equal seeds" in verdict["text"]


@pytest.mark.skipif(is_free_threaded(), reason="there is no GIL")
def test_the_gil_is_held_by_python_code(texts: Path) -> None:
    told = Diagnosed("Computing", texts, seconds=3)
    assert told.one("gil")["text"].startswith("held: ")
    workers = told.one("workers")["figures"]
    assert workers["kind"] == ("processes" if workers["processors"] > 1 else "threads")
    assert told.one("time")["figures"]["waiting_share"] < 0.3


@pytest.mark.skipif(is_free_threaded(), reason="there is no GIL")
def test_the_gil_is_not_held_by_native_code_that_releases_it(texts: Path) -> None:
    gil = Diagnosed("Hashing", texts, seconds=3).one("gil")
    at_least, at_most = gil["figures"]["at_once"]["2"]
    assert at_most > 1.6
    # On a machine that does other things meanwhile there is no saying.
    assert gil["text"].startswith("released") or (gil["status"] == "unknown" and at_least < at_most)


def test_a_dataset_that_cannot_be_made(texts: Path) -> None:
    told = Diagnosed("Refusing", texts)
    assert [verdict["check"] for verdict in told.found["verdicts"]] == ["load"]
    assert "labels.csv" in told.one("load")["text"] and "faulty.py:" in told.one("load")["text"]


def test_a_dataset_that_ends_the_process_while_it_is_made(texts: Path) -> None:
    crash = Diagnosed("Vain", texts).one("crashes")
    assert crash["figures"]["signal"] == "SIGABRT" and "while the dataset was made" in crash["text"]


def test_a_dataset_that_is_not_restored(texts: Path) -> None:
    verdict = Diagnosed("NotRestored", texts).one("sendable")
    assert verdict["status"] == "problem" and "KeyError: 'root'" in verdict["text"]


def test_iterable_datasets(texts: Path) -> None:
    told = Diagnosed("Stream", texts)
    assert told.problems() == set() and told.one("errors")["text"] == "none in 30 samples"
    assert told.one("length")["text"].startswith("it has none")
    short = Diagnosed("ShortStream", texts).one("length")
    assert short["status"] == "problem" and "is 40, but iterating it gave 30" in short["text"]
    assert Diagnosed("endless_stream", texts, "--samples", "50").problems() == set()


def test_workers_that_would_all_give_the_same_samples(texts: Path) -> None:
    verdict = Diagnosed("unsharded_stream", texts).one("sharding")
    assert verdict["status"] == "problem" and "get_worker_info" in verdict["change"]
    assert Diagnosed("sharded_stream", texts).of("sharding") == []


# The command.


def test_text_for_people_json_for_machines_and_the_exit_status(texts: Path) -> None:
    sound = call(f"{HERE}/faulty.py:Texts", "--seconds", "1", folder=texts)
    assert sound.returncode == 0 and sound.stderr == "" and "  fine     errors       none in 60 samples" in sound.stdout
    sick = call(f"{HERE}/faulty.py:Boasting", "--seconds", "1", folder=texts)
    assert sick.returncode == 1 and "  problem  length " in sick.stdout and sick.stdout.count("\n→") == 0
    assert all(len(line) <= 120 for line in sick.stdout.splitlines())


def test_a_module_by_name_and_an_instance_and_what_is_printed_stays_out(texts: Path) -> None:
    module = texts.parent / "my_data.py"
    module.write_text(
        textwrap.dedent("""
        print("importing")
        class Numbers:
            def __len__(self): return 5
            def __getitem__(self, index):
                print("reading")
                return [5, 6, 7, 8, 9][index]
        class place:
            train = Numbers()
    """)
    )
    done = call("my_data:place.train", "--json", "--seconds", "1", folder=texts)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "my_data:place.train: Numbers, 5 samples"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "module:attribute"),
        (["faulty"], "expected module:attribute"),
        (["no_such_module:x"], "no module 'no_such_module'"),
        (["no/such/file.py:x"], "there is no file"),
        (["{here}/faulty.py:no_such_name"], "has no 'no_such_name'"),
        (["{here}/faulty.py:wants"], "wants arguments (folder)"),
        (["{here}/faulty.py:nothing"], "expected {here}/faulty.py:nothing to be a dataset"),
        (["{here}/faulty.py:Texts", "--seconds", "0"], "above 0"),
        (["{here}/faulty.py:Texts", "--samples", "0"], "at least 1"),
        (["{here}/faulty.py:Texts", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], told: str, texts: Path) -> None:
    done = call(*(argument.format(here=HERE) for argument in arguments), folder=texts)
    assert (done.returncode, done.stdout) == (2, "") and told.format(here=HERE) in done.stderr


def test_help_lists_the_options(texts: Path) -> None:
    done = call("--help", folder=texts)
    assert done.returncode == 0 and all(word in done.stdout for word in ("--json", "--seconds", "--samples"))


def test_a_module_whose_own_import_is_missing_is_a_problem_and_no_usage(texts: Path) -> None:
    (texts.parent / "broken_data.py").write_text("import not_installed_anywhere\n")
    done = call("broken_data:x", "--seconds", "1", folder=texts)
    assert done.returncode == 1 and "not_installed_anywhere" in done.stdout


def reworded(text: str) -> str:
    """Python's own sentence about what cannot be pickled, as 3.11 writes it."""
    return re.sub(r"cannot pickle '(?:_io\.)?(\w+)' (?:instances|object)", r"cannot pickle '\1' object", text)


def test_the_run_in_the_document_is_a_real_one(tmp_path: Path) -> None:
    document = (HERE.parents[1] / "docs" / "doctor.md").read_text()
    (source,) = re.findall(r"^```python\n# words.py\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(
        r"^```console\n\$ forebay doctor words.py:Words\n(.*?)^```$", document, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "words.py").write_text(source)
    folder = tmp_path / "data" / "words"
    faulty.write(folder, 100)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"{number:02}.txt")
    done = call("words.py:Words", "--seconds", "4", folder=tmp_path / "here")
    assert done.returncode == 1, done.stderr
    parts = [dict(paragraphs(text)) for text in (shown, done.stdout)]
    assert list(parts[0]) == list(parts[1])
    # What does not depend on the machine is the same to the letter.
    for check in ("sendable", "handles", "errors", "length", "determinism"):
        assert reworded(parts[0][check]) == reworded(parts[1][check])
    for check in ("descriptors", "memory", "weight"):
        assert parts[0][check].split()[0] == parts[1][check].split()[0]
    assert all("words.py:15 (+" in part["memory"] for part in parts)


def paragraphs(text: str) -> list[tuple[str, str]]:
    """Each check, and its status with all that is said of it."""
    found = re.findall(r"^  (\w+) +(\w+) +(.*?)(?=^  \w|^$)", text, re.MULTILINE | re.DOTALL)
    return [(check, f"{status} {said}") for status, check, said in found]


# The function.


class Counting:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index >= 20:
            raise IndexError(index)
        return index


def test_the_function_gives_the_same_verdicts() -> None:
    diagnosis = fb.doctor(Counting(), seconds=1)
    assert diagnosis.problems == [] and "Counting, 20 samples" in str(diagnosis)
    assert json.loads(diagnosis.json())["problems"] == 0
    assert diagnosis.find("errors")[0].text == "none in 20 samples"


def test_the_function_leaves_an_unsendable_dataset_alone(texts: Path) -> None:
    with open(texts / "000.txt", "rb") as file:
        dataset = Counting()
        dataset.file = file  # type: ignore[attr-defined]
        diagnosis = fb.doctor(dataset, seconds=1)
        assert file.tell() == 0
    assert {verdict.check for verdict in diagnosis.problems} == {"sendable", "handles"}
    (unknown,) = diagnosis.find("samples")
    assert unknown.status == "unknown" and "forebay doctor module:attribute" in (unknown.change or "")


class Unrestored(Counting):
    def __setstate__(self, state: object) -> None:
        raise KeyError("root")

    def __getstate__(self) -> object:
        return {"a": 1}


def test_what_cannot_be_made_again_is_made_in_the_child_only() -> None:
    diagnosis = fb.doctor(Unrestored(), seconds=1)
    (load,) = diagnosis.find("load")
    assert load.status == "problem" and "KeyError: 'root'" in load.text


def test_random_numbers_of_torch_and_numpy_are_seeded() -> None:
    diagnosis = fb.doctor(Noisy(), seconds=1)
    assert "random augmentation" in diagnosis.find("determinism")[0].text


class Noisy(Counting):
    def __getitem__(self, index: int) -> Any:
        return {"noise": torch.rand(3), "more": np.random.rand(2), "image": torch.zeros(2, 2), "index": index}


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a dataset"):
        fb.doctor(7)
    with pytest.raises(ValueError, match="seconds: expected a number above 0"):
        fb.doctor([1], seconds=-1)


def test_nothing_is_left_behind(texts: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    started = time.monotonic()
    diagnosis = fb.doctor(faulty.Unmade(), seconds=1)
    assert "AttributeError" in diagnosis.find("errors")[0].text
    assert time.monotonic() - started < 30
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ending_the_doctor_ends_its_child(number: signal.Signals, texts: Path) -> None:
    doctor = subprocess.Popen(
        [sys.executable, "-m", "forebay", "doctor", f"{HERE}/faulty.py:Hanging", "--seconds", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=children.environment(FAULTY_FOLDER=str(texts)),
    )
    try:
        # The pipe is there once the child has made the dataset: by then it has seen to its own end.
        wait_until((texts / "pipe").exists)
        (child,) = Path(f"/proc/{doctor.pid}/task/{doctor.pid}/children").read_text().split()
        doctor.send_signal(number)
        doctor.wait(20)
        wait_until(lambda: is_gone(child))
    finally:
        doctor.kill()
        doctor.wait()
        assert doctor.stderr is not None
        said = doctor.stderr.read().decode()
        doctor.stderr.close()
    if number == signal.SIGINT:
        assert doctor.returncode == 130 and said == "error: interrupted\n"


def is_gone(pid: str) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


# The numbers.


def turns(held: float, *, processors_free: float = 1.0, storage: float = 0.0) -> dict[int, dict[str, float]]:
    """What threads would do with their time: a sample computes for 1 s, a share of it with the GIL."""
    found = {}
    for count in (1, 2, 4):
        at_once = count if held == 0 else min(count, 1 / held)
        samples = 100 * at_once / (1 + storage)
        cpu = samples * processors_free
        queued = samples - cpu
        found[count] = {
            "samples": samples * processors_free or 1,
            "elapsed": 100.0,
            "wall": 100.0 * count,
            "cpu": cpu,
            "queued": queued,
            "process_cpu": cpu,
        }
    return found


@pytest.mark.parametrize(
    ("held", "processors", "kind", "how"),
    [(1.0, 8, "processes", "held:"), (0.0, 8, "threads", "released:"), (0.6, 8, "processes", "held for a part")],
)
def test_threads_or_processes_follow_from_the_figures(held: float, processors: int, kind: str, how: str) -> None:
    load = {"processors": processors, "is_free_threaded": False}
    gil, workers = verdicts._workers(turns(held), load)
    assert gil.text.startswith(how) and workers.figures["kind"] == kind
    assert workers.figures["num_workers"] == processors


def test_waiting_for_storage_wants_more_workers_than_processors() -> None:
    load = {"processors": 4, "is_free_threaded": False}
    gil, workers = verdicts._workers(turns(0.0, storage=3.0), load)
    assert gil.text.startswith("released") and workers.figures["kind"] == "threads"
    assert workers.figures["num_workers"] == 16


def test_what_takes_no_time_needs_no_workers() -> None:
    quick = {count: {**turn, "samples": turn["samples"] * 1e6} for count, turn in turns(1.0).items()}
    _, workers = verdicts._workers(quick, {"processors": 8, "is_free_threaded": False})
    assert workers.figures["num_workers"] == 0


def test_a_dataset_of_forebays_own_is_read_without_workers(folder: Path) -> None:
    diagnosis = fb.doctor(fb.ImageFolder(folder, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()])), seconds=1)
    assert diagnosis.problems == [] and "threads of its own" in diagnosis.find("workers")[0].text


def test_without_a_gil_threads_it_is() -> None:
    gil, workers = verdicts._workers(turns(1.0), {"processors": 8, "is_free_threaded": True})
    assert "free-threaded" in gil.text and workers.figures["kind"] == "threads"
