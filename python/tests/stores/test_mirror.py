"""`forebay mirror` with an object store at either end, a network that fails, and processes that are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import children
import faultproxy
import forebay as fb
import objectstore


@pytest.fixture
def proxy(store: objectstore.ObjectStore) -> Iterator[faultproxy.FaultProxy]:
    started = faultproxy.FaultProxy(store.port)
    yield started
    started.close()


def options(store: objectstore.ObjectStore, name: str = "storage", port: int | None = None) -> list[str]:
    given = store.options
    if port:
        given["endpoint_url"] = f"http://127.0.0.1:{port}"
    return [part for option, value in given.items() for part in (f"--{name}-option", f"{option}={value}")]


def start(*arguments: str | os.PathLike[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forebay", "mirror", *map(str, arguments), "--json"]
    return children.start_command(command)


def mirror(*arguments: str | os.PathLike[str], status: int = 0) -> dict[str, Any]:
    process = start(*arguments)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (status, ""), (process.returncode, err, out)
    seen: dict[str, Any] = json.loads(out)
    return seen


def write(root: Path, sizes: dict[str, int], seed: int = 0) -> Path:
    chance = random.Random(seed)
    for name, size in sizes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
    return root


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


SIZES = {f"{number % 5}/{number:03}.jpg": 1_000 + 97 * number for number in range(200)}
SIZES |= {"shards/0.tar": 20_000_000, "shards/1.tar": 8_388_609, "odd/a b+c%20#&~ü.txt": 10, "odd/empty": 0}


@pytest.mark.timeout(180)
def test_there_and_back_again(store: objectstore.ObjectStore, tmp_path: Path) -> None:
    origin = write(tmp_path / "origin", SIZES)
    there, back = "s3://bucket/there", tmp_path / "back"
    seen = mirror(origin, there, *options(store, "target"), "--verify")
    assert (seen["copied_files"], seen["copied_bytes"]) == (len(SIZES), sum(SIZES.values()))
    seen = mirror(origin, there, *options(store, "target"))
    assert (seen["copied_files"], seen["read_bytes"], seen["same_files"]) == (0, 0, len(SIZES)), "recorded with each"
    seen = mirror(there, back, *options(store), "--verify")
    assert seen["copied_files"] == len(SIZES)
    assert tree(back) == tree(origin)
    assert mirror(there, back, *options(store))["copied_files"] == 0
    # What changes is copied, what goes is removed, in both directions.
    write(origin, {"0/000.jpg": 1_000}, seed=1)
    (origin / "1" / "001.jpg").unlink()
    seen = mirror(origin, there, *options(store, "target"), "--delete")
    assert (seen["copied_files"], seen["removed"]) == (1, ["1/001.jpg"])
    seen = mirror(there, back, *options(store), "--delete")
    assert (seen["copied_files"], seen["removed"]) == (1, ["1/001.jpg"])
    assert tree(back) == tree(origin)
    # From one bucket's folder to another, by way of this machine.
    seen = mirror(there, "s3://bucket/again", *options(store), *options(store, "target"), "--include", "*.tar")
    assert seen["copied_files"] == 2
    seen = mirror("s3://bucket/again", there, *options(store), *options(store, "target"), "--dry-run", "--delete")
    assert len(seen["removed"]) == len(SIZES) - 3
    for said in (json.dumps(seen),):
        assert objectstore.SECRET not in said


def test_a_mirror_is_loaded_like_its_source(
    store: objectstore.ObjectStore, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store.put_folder(folder, "load/train")
    mirror("s3://bucket/load/train", tmp_path / "train", *options(store))
    remote = fb.ImageFolder("s3://bucket/load/train", storage_options=store.options)
    local = fb.ImageFolder(tmp_path / "train")
    assert [Path(path).name for path, _ in local.samples] == [Path(path).name for path, _ in remote.samples]
    assert all(one[0].tobytes() == other[0].tobytes() for one, other in zip(local, remote, strict=True))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["reset", "truncate", "short", "503"])
def test_a_network_that_fails_changes_nothing(
    store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, tmp_path: Path, fault: str
) -> None:
    sizes = {f"{number % 5}/{number:03}.jpg": 20_000 for number in range(300)} | {"large.jpg": 20_000_000}
    origin = write(tmp_path / "origin", sizes)
    store.put_folder(origin, f"faults/{fault}")
    proxy.rule = lambda key, asked, chance: fault if chance.random() < 0.1 else None
    seen = mirror(f"s3://bucket/faults/{fault}", tmp_path / "target", *options(store, port=proxy.port))
    assert tree(tmp_path / "target") == tree(origin)
    assert proxy.faults()[fault] > 15
    if fault in ("short", "503"):
        assert seen["retries"] > 10
    if fault == "reset":
        assert len(proxy.reads()) / len(sizes) <= 1.3, "gone on with, not begun again"


def test_what_cannot_be_had_is_named(
    store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, tmp_path: Path
) -> None:
    origin = write(tmp_path / "origin", {f"{number}.jpg": 1_000 for number in range(20)})
    store.put_folder(origin, "gone")
    proxy.rule = lambda key, asked, chance: "404" if key.endswith("/7.jpg") else None
    source = "s3://bucket/gone"
    seen = mirror(source, tmp_path / "target", *options(store, port=proxy.port), status=1)
    (failure,) = seen["failures"]
    assert (failure["path"], failure["code"]) == (f"{source}/7.jpg", "not_found")
    assert seen["copied_files"] == 19
    wrong = ["--storage-option", "secret=wrong-very-secret"]
    process = start(source, tmp_path / "target", *options(store)[:-4], *wrong)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "could not be listed" in err and "wrong-very-secret" not in err


@pytest.mark.timeout(180)
def test_killed_again_and_again_it_asks_for_every_byte_once(
    store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, tmp_path: Path
) -> None:
    kills = int(os.environ.get("FOREBAY_MIRROR_KILLS", "5"))
    sizes = {f"{number % 20:02}/{number:04}.jpg": 20_000 for number in range(150 * kills)}
    sizes |= {f"shards/{number}.jpg": 12_000_000 for number in range(kills // 5)}
    origin = write(tmp_path / "origin", sizes)
    store.put_folder(origin, "kills")
    arguments = ("s3://bucket/kills", tmp_path / "target", *options(store, port=proxy.port))
    # What is under way when it is killed is lost: few files at a time, and slowly, for so little data.
    arguments += ("--threads", "4", "--bandwidth", "3MB/s")
    chance = random.Random(time.time_ns())
    for _ in range(kills):
        process = start(*arguments)
        before = len(proxy.seen)
        deadline = time.monotonic() + 30
        while len(proxy.seen) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.02, 0.5))
        process.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT]))
        process.communicate(timeout=10)
        assert process.returncode in (-signal.SIGKILL, -signal.SIGINT), process.returncode
    seen = mirror(*arguments)
    assert tree(tmp_path / "target") == tree(origin), "byte for byte, and nothing else is left"
    assert seen["same_files"] > 0
    sent = proxy.body_bytes
    ratio = sent / sum(sizes.values())
    print(f"{kills} kills: {sent} bytes were sent for {sum(sizes.values())}, {ratio:.4f}")
    assert ratio <= 1.05, f"{sent} bytes were sent for {sum(sizes.values())}"
