"""`cache=`: what was read is kept for all processes, and nothing that befalls the directory is seen in a batch."""

import errno
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import children
import faultfs
import forebay as fb
import objectstore
from forebay import errors
from forebay import transforms as T
from missing import missing

COUNT = 24
Digests = Callable[[Any], list[str]]


def storage(loader: fb.DataLoader) -> dict[str, Any]:
    return dict(loader.stats()["storage"])


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "v1").glob("*/*") if re.fullmatch("[0-9a-f]{30}", path.name)]


def test_the_second_epoch_asks_the_bucket_for_nothing(
    store: objectstore.ObjectStore,
    folder: Path,
    augment: T.Compose,
    digests: Callable[[Any], list[str]],
    tmp_path: Path,
) -> None:
    store.put_folder(folder, "train")
    plain = fb.DataLoader(fb.ImageFolder(folder, transform=augment), batch_size=5, shuffle=True, seed=3)
    dataset = fb.ImageFolder(
        "s3://bucket/train", transform=augment, storage_options=store.options, cache=tmp_path / "cache"
    )
    loader = fb.DataLoader(dataset, batch_size=5, shuffle=True, seed=3)
    assert digests(loader) == digests(plain)
    after_first = storage(loader)
    assert after_first["cache_misses"] == COUNT
    for _ in range(2):
        assert digests(loader) == digests(plain)
    seen = storage(loader)
    assert seen["requests"] == after_first["requests"]
    assert seen["cache_hits"] >= 2 * COUNT
    assert (seen["cache_misses"], seen["cache_passes"], seen["cache_corrupt"]) == (COUNT, 0, 0)
    assert seen["cache_bytes"] >= sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    loader.close()
    # And the next run only lists.
    again = fb.DataLoader(
        fb.ImageFolder("s3://bucket/train", transform=augment, storage_options=store.options, cache=tmp_path / "cache"),
        batch_size=5,
    )
    listed = storage(again)["requests"]
    list(again)
    assert storage(again)["requests"] == listed
    again.close()
    careful = fb.ImageFolder(
        "s3://bucket/train",
        transform=augment,
        storage_options=store.options,
        cache=tmp_path / "cache",
        cache_revalidate=True,
    )
    with fb.DataLoader(careful, batch_size=5) as loader:
        list(loader)
        seen = storage(loader)
    assert (seen["cache_stale"], seen["cache_misses"]) == (0, 0), "a HEAD says the same as a GET"
    assert seen["cache_hits"] >= COUNT and seen["requests"] >= COUNT
    assert len(list((tmp_path / "cache").glob("CACHEDIR.TAG"))) == 1
    text = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert objectstore.SECRET.encode() not in text and objectstore.KEY.encode() not in text


def test_the_example_of_the_guide_runs(
    store: objectstore.ObjectStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    store.put_folder(folder, "train")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, option in (("ENDPOINT_URL", "endpoint_url"), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", store.options[option])
    guide = Path(__file__).parents[3] / "docs" / "cache.md"
    (block,) = re.findall(r"^```py\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, str(guide), "exec"), {"__name__": "example"})
    hits, misses, held, requests = map(int, capsys.readouterr().out.split())
    assert hits >= COUNT and misses == COUNT and held > 0 and requests < 2 * COUNT
    assert len(entries(tmp_path / "home" / ".cache" / "forebay")) == COUNT


def test_damage_is_healed_and_counted(folder: Path, plain: T.Compose, digests: Digests, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    dataset = fb.ImageFolder(folder, transform=plain, cache=cache, cache_bytes="10MiB")
    expected = digests(fb.DataLoader(dataset, batch_size=5))
    files = entries(cache)
    assert len(files) == COUNT
    for number, file in enumerate(files[:9]):
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 4
        file.write_bytes(data if number % 3 else data[: len(data) // 2])
    with fb.DataLoader(dataset, batch_size=5, on_error="raise", retries=0) as loader:
        assert digests(loader) == expected
        assert storage(loader)["cache_corrupt"] == 9
        assert not loader.failures
    with fb.DataLoader(dataset, batch_size=5) as loader:
        assert digests(loader) == expected
    assert dataset[3][0].shape == (3, 24, 32)


def test_a_copy_that_does_not_decode_is_not_believed(
    folder: Path, plain: T.Compose, digests: Digests, tmp_path: Path
) -> None:
    """The storage gave a file that was still being written; what was kept of it is not what it is now."""
    victim = sorted(folder.rglob("*.jpg"))[3]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    dataset = fb.ImageFolder(folder, transform=plain, cache=tmp_path / "cache")
    with pytest.raises(errors.CorruptError):
        dataset[3]
    assert len(entries(tmp_path / "cache")) == 1
    victim.write_bytes(whole)
    with fb.DataLoader(dataset, batch_size=5, on_error="raise", retries=0) as loader:
        assert len(digests(loader)) == COUNT
        assert [failure.outcome for failure in loader.failures] == ["recovered"]
    assert dataset[3][0].shape == (3, 24, 32), "and the good one is kept"


def test_a_changed_file_is_noticed_when_asked_for(
    folder: Path, plain: T.Compose, digests: Digests, tmp_path: Path
) -> None:
    def epoch(**settings: Any) -> tuple[list[str], dict[str, Any]]:
        dataset = fb.ImageFolder(folder, transform=plain, cache=tmp_path / "cache", **settings)
        with fb.DataLoader(dataset, batch_size=5) as loader:
            return digests(loader), storage(loader)

    before, _ = epoch()
    first, second = sorted(folder.rglob("*.jpg"))[:2]
    first.write_bytes(second.read_bytes())
    assert epoch()[0] == before, "trusted, as documented"
    after, seen = epoch(cache_revalidate=True)
    assert after[0] == before[1] and after[1:] == before[1:]
    assert seen["cache_stale"] == 1


def test_a_cache_in_front_of_a_mount_that_fails_later(
    fault_fs: faultfs.FaultFs, plain: T.Compose, tmp_path: Path
) -> None:
    dataset = fb.ImageFolder(fault_fs.root, transform=plain, cache=tmp_path / "cache")
    with fb.DataLoader(dataset, batch_size=5) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT
    fault_fs.rule("*.jpg", "read", hang=True)
    fault_fs.rule("*.jpg", "open", errno=errno.EIO)
    with fb.DataLoader(dataset, batch_size=5, retries=0) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT
        assert storage(loader)["cache_hits"] >= COUNT


def test_ranks_fetch_each_file_once(
    store: objectstore.ObjectStore, folder: Path, plain: T.Compose, tmp_path: Path
) -> None:
    store.put_folder(folder, "ranks")
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()

    def rank() -> None:
        dataset = fb.ImageFolder(
            "s3://bucket/ranks", transform=plain, storage_options=store.options, cache=tmp_path / "cache"
        )
        with fb.DataLoader(dataset, batch_size=4) as loader:
            list(loader)
            results.put(storage(loader))

    processes = [context.Process(target=rank) for _ in range(4)]
    [process.start() for process in processes]
    seen = [results.get(timeout=60) for _ in processes]
    [process.join(20) for process in processes]
    assert sum(row["cache_misses"] for row in seen) == COUNT
    assert sum(row["cache_passes"] for row in seen) == 0


def test_a_disk_that_is_full_is_told_once(folder: Path, plain: T.Compose, digests: Digests, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=28k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        missing("mount", "nothing can be mounted here")
    try:
        dataset = fb.ImageFolder(folder, transform=plain, cache=disk / "cache", cache_bytes="1GiB")
        with (
            fb.DataLoader(dataset, batch_size=5, on_error="raise", retries=0) as loader,
            warnings.catch_warnings(record=True) as told,
        ):
            warnings.simplefilter("always")
            for _ in range(3):
                assert len(digests(loader)) == COUNT
            seen = storage(loader)
    finally:
        # The dataset has its cache open.
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    (one,) = [str(warning.message) for warning in told if "the cache" in str(warning.message)]
    assert "No space left on device" in one and "are read from the source" in one
    assert seen["cache_passes"] + seen["cache_evictions"] > 0


def test_what_cannot_be_a_cache_is_said_before_anything_is_scanned(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    for given, part in (
        ({"cache": tmp_path / "home"}, "thesis.tex"),
        ({"cache": "s3://bucket/cache"}, "expected a directory of this machine"),
        ({"cache": ""}, "expected a directory"),
        ({"cache_bytes": "1GiB"}, "cache_bytes: expected none without cache"),
        ({"cache_revalidate": True}, "cache_revalidate: expected none without cache"),
        ({"cache": tmp_path / "c", "cache_bytes": "much"}, "cache_bytes: expected bytes"),
        ({"cache": tmp_path / "c", "cache_bytes": 0}, "cache_bytes"),
    ):
        with pytest.raises(errors.ConfigError, match=re.escape(part)):
            fb.ImageFolder(folder, **given)  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_a_pickled_dataset_has_its_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = fb.ImageFolder(folder, cache="cache", cache_bytes=1 << 20)
    pickled = pickle.dumps(dataset.subset([3, 1]))
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again[0][0].tobytes() == dataset[3][0].tobytes()
    assert len(entries(tmp_path / "cache")) == 1


def test_the_command(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    dataset = fb.ImageFolder(folder, cache=cache)
    [dataset[index] for index in range(COUNT)]
    status, output, problems = children.call("cache", "info", str(cache), "--json")
    info = json.loads(output)
    assert (status, info["entries"], problems) == (0, COUNT, "")
    os.truncate(entries(cache)[0], 10)
    status, output, _ = children.call("cache", "verify", str(cache))
    assert status == 1 and "1 were damaged" in output and "damaged, removed: v1/" in output
    assert children.call("cache", "verify", str(cache))[0] == 0
    status, output, _ = children.call("cache", "clear", str(cache))
    assert status == 0 and f"removed {COUNT - 1} objects" in output and not entries(cache)
    status, _, problems = children.call("cache", "clear", str(folder))
    assert status == 1 and "is not a forebay cache" in problems
    assert len(list(folder.rglob("*.jpg"))) == COUNT
