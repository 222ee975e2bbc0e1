"""The ledger: what failed, one JSON object a line, shared by epochs, runs and loaders."""

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import children
import folders
import forebay as fb
from forebay import transforms as T

TO_TENSOR = T.Compose([T.Resize((8, 8)), T.ToTensor()])


@pytest.fixture
def damaged(folder: Path) -> fb.ImageFolder:
    dataset = fb.ImageFolder(folder, transform=TO_TENSOR)
    folders.truncate(Path(dataset.samples[2][0]))
    folders.text(Path(dataset.samples[9][0]))
    return dataset


def lines(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def run(dataset: fb.ImageFolder, ledger: Path, **options: Any) -> fb.DataLoader:
    loader = fb.DataLoader(dataset, 4, on_error="replace", ledger=ledger, **options)
    list(loader)
    return loader


def test_its_lines_have_the_names_of_failures(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    loader = run(damaged, tmp_path / "ledger.jsonl")
    written = lines(tmp_path / "ledger.jsonl")
    assert len(written) == len(loader.failures) == 2
    for line, failure in zip(written, loader.failures, strict=True):
        for field in fields(failure):
            value = getattr(failure, field.name)
            assert line.get(field.name) == value, field.name


def test_a_file_known_to_be_bad_is_not_read_again(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first = run(damaged, ledger)
    second = run(damaged, ledger)
    assert [failure.index for failure in second.failures] == [2, 9]
    assert [failure.code for failure in second.failures] == ["corrupt", "undecodable"]
    assert all("not read again" in failure.hint for failure in second.failures)
    assert second.stats()["bytes_read"] < first.stats()["bytes_read"]


def test_a_file_that_changed_is_read_again(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run(damaged, ledger)
    folders.picture(99).save(damaged.samples[2][0])
    os.utime(damaged.samples[9][0], ns=(1, 1))
    (failure,) = run(damaged, ledger).failures
    assert failure.index == 9 and "not read again" not in failure.hint


def test_an_epoch_later_it_is_not_read_again_either(damaged: fb.ImageFolder) -> None:
    loader = fb.DataLoader(damaged, 4, on_error="replace")
    list(loader)
    list(loader)
    hints = [failure.hint for failure in loader.failures if failure.epoch == 1]
    assert len(hints) == 2 and all("not read again" in hint for hint in hints)


def test_the_order_is_the_same_with_and_without_quarantine(
    damaged: fb.ImageFolder, tmp_path: Path, digests: Any
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    first, second = (
        digests(fb.DataLoader(damaged, 4, shuffle=True, on_error="replace", ledger=ledger)) for _ in range(2)
    )
    assert first == second


def test_raising_writes_its_line(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(fb.errors.CorruptError):
        list(fb.DataLoader(damaged, 4, ledger=ledger))
    assert [(line["index"], line["outcome"]) for line in lines(ledger)] == [(2, "raised")]


def test_a_line_torn_by_a_crash_is_passed_over_for_ever(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run(damaged, ledger)
    with open(ledger, "a") as file:
        file.write('{"path": "torn')
    for _ in range(2):
        assert len(run(damaged, ledger).failures) == 2
    assert sum(line.endswith("}") for line in ledger.read_text().splitlines()) == 6


def test_two_loaders_share_one_ledger(damaged: fb.ImageFolder, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    loaders = [
        fb.DataLoader(damaged, 4, on_error="replace", ledger=ledger, rank=rank, world_size=2) for rank in range(2)
    ]
    for _ in zip(*loaders, strict=True):
        pass
    assert sorted(line["index"] for line in lines(ledger)) == [2, 9]
    assert {line["rank"] for line in lines(ledger)} <= {0, 1}


# Two epochs while the ledger cannot be written, then one for which it can.
SHORT_OF_ROOM = """
    import json, os, resource, sys, warnings
    from pathlib import Path
    import forebay as fb
    from forebay import transforms as T

    root, place, limit = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    ledger, filler = place / "ledger.jsonl", place / "filler"
    dataset = fb.ImageFolder(root, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    open_loader = lambda: fb.DataLoader(dataset, 4, on_error="replace", ledger=ledger, output="numpy")
    loader = open_loader()
    if limit == "tmpfs":
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        delivered = sum(len(labels) for _ in range(2) for _, labels in loader)
    while_full = ledger.read_bytes().decode()
    report = str(loader.report())
    loader.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    filler.unlink(missing_ok=True)
    list(open_loader())
    told = dict(delivered=delivered, said=[str(w.message) for w in said], report=report, while_full=while_full,
                failures=[(f.epoch, f.index) for f in loader.failures], after=ledger.read_text())
    print("\\n" + json.dumps(told))
"""


@pytest.mark.parametrize(("limit", "errno_name"), [("tmpfs", "[Errno 28]"), ("fsize", "[Errno 27]")])
def test_a_ledger_that_cannot_be_written_does_not_stop_the_run(
    damaged: fb.ImageFolder, folder: Path, tmp_path: Path, limit: str, errno_name: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    prefix: tuple[str, ...] = ()
    if limit == "tmpfs":
        prefix = in_tmpfs("size=64k", place)
    done = children.run(SHORT_OF_ROOM, folder, place, limit, prefix=prefix)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["delivered"] == 2 * len(damaged)
    assert told["failures"] == [[0, 2], [0, 9], [1, 2], [1, 9]]
    about_ledger = [message for message in told["said"] if "the ledger is incomplete" in message]
    assert len(about_ledger) == 1 and str(place / "ledger.jsonl") in about_ledger[0] and errno_name in about_ledger[0]
    assert len(told["said"]) == 2, "and one about the first failure"
    assert "the ledger is incomplete" in told["report"] and errno_name in told["report"]
    # No half line is left, and what is written later is whole.
    assert told["while_full"] == ""
    assert [json.loads(line)["index"] for line in told["after"].splitlines()] == [2, 9]


@pytest.mark.parametrize(("options", "problem"), [("ro", "Read-only file system"), ("nr_inodes=1", "No space left")])
def test_a_ledger_that_cannot_be_made_is_refused_at_once(
    folder: Path, tmp_path: Path, options: str, problem: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    program = """
        import sys
        import forebay as fb
        from forebay import transforms as T
        dataset = fb.ImageFolder(sys.argv[1], transform=T.ToTensor())
        try:
            fb.DataLoader(dataset, ledger=sys.argv[2], output="numpy")
        except fb.errors.ConfigError as error:
            print(error)
    """
    ledger = place / "ledger.jsonl"
    done = children.run(program, folder, ledger, prefix=in_tmpfs(options, place))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'"{ledger}" cannot be the ledger: {problem}')


def in_tmpfs(options: str, place: Path) -> tuple[str, ...]:
    """Runs a command with a small file system at `place`, which only it and its children see."""
    unshare, mount = shutil.which("unshare"), f"mount -t tmpfs -o {options} tmpfs '{place}'"
    if os.geteuid() != 0 or not unshare:
        pytest.skip("a mount namespace needs root and unshare")
    if os.system(f'{unshare} -m sh -c "{mount}" >/dev/null 2>&1') != 0:
        pytest.skip("mounting is not allowed here")
    return unshare, "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"
