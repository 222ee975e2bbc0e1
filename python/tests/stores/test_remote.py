"""Object stores: the same batches as from a folder, whatever the network does in between."""

import io
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import faultproxy
import folders
import forebay as fb
import objectstore
from forebay import errors
from forebay import transforms as T
from objectstore import KEY, SECRET

# FOREBAY_REMOTE_OBJECTS=5000 FOREBAY_STORM_SECONDS=30 for the long run.
COUNT = int(os.environ.get("FOREBAY_REMOTE_OBJECTS", "2000"))
TRAIN = T.Compose([T.Resize((16, 16)), T.ToTensor()])


@pytest.fixture(scope="module")
def many(store: objectstore.ObjectStore) -> str:
    """A prefix with COUNT pictures of 20 classes."""
    pictures = []
    for seed in range(50):
        file = io.BytesIO()
        folders.picture(seed).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    names = (f"many/{number % 20:02}/{number:05}.jpg" for number in range(COUNT))
    store.put_all((name, pictures[number % 50]) for number, name in enumerate(names))
    return "s3://bucket/many"


@pytest.fixture
def proxy(store: objectstore.ObjectStore) -> Iterator[faultproxy.FaultProxy]:
    started = faultproxy.FaultProxy(store.port)
    yield started
    started.close()


def through(store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, **more: Any) -> dict[str, Any]:
    return store.options | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"} | more


def epoch(root: str, options: dict[str, Any]) -> fb.DataLoader:
    """Delivers every object once; no next epoch is begun, so that all counts are of this one alone."""
    dataset = fb.ImageFolder(root, transform=TRAIN, storage_options=options)
    order = random.Random(1).sample(range(COUNT), COUNT)
    loader = fb.DataLoader(dataset, batch_size=64, sampler=order, with_ids=True)
    assert [index for *_, indices in loader for index in indices] == order
    loader.close()
    return loader


def storage(loader: fb.DataLoader) -> dict[str, Any]:
    return dict(loader.stats()["storage"])


def test_batches_are_those_of_the_folder(
    store: objectstore.ObjectStore, folder: Path, augment: T.Compose, digests: Callable[[Any], list[str]]
) -> None:
    store.put_folder(folder, "same/train")
    local = fb.ImageFolder(folder, transform=augment)
    remote = fb.ImageFolder("s3://bucket/same/train/", transform=augment, storage_options=store.options)
    assert remote.root == "s3://bucket/same/train"
    assert (remote.classes, remote.targets) == (local.classes, local.targets)
    relative = [os.path.relpath(path, folder) for path, _ in local.samples]
    assert [path for path, _ in remote.samples] == [f"s3://bucket/same/train/{path}" for path in relative]
    loaders = [fb.DataLoader(dataset, batch_size=5, shuffle=True, seed=3) for dataset in (local, remote)]
    assert digests(loaders[0]) == digests(loaders[1])
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1], "the same fingerprint: a run can move from one to the other"
    loaders[1].load_state_dict(states[0])
    image, label = remote[0]
    assert (image.shape, label) == ((3, 24, 24), 0)


def test_a_dataset_can_be_pickled_and_used_in_a_forked_child(store: objectstore.ObjectStore, folder: Path) -> None:
    store.put_folder(folder, "fork/train")
    dataset = fb.ImageFolder("s3://bucket/fork/train", storage_options=store.options)
    expected = dataset[3][0].tobytes()
    again = pickle.loads(pickle.dumps(dataset.subset([3, 1])))
    assert again[0][0].tobytes() == expected

    def child(results: Any) -> None:
        results.put(dataset[3][0].tobytes())

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert results.get(timeout=20) == expected
    process.join(20)
    assert process.exitcode == 0
    assert dataset[3][0].tobytes() == expected, "and the parent goes on"


def test_options_stand_in_the_url_or_in_the_environment(
    store: objectstore.ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.put_folder(folder, "opt/train")
    query = f"key={KEY}&secret={SECRET}&region=us-east-1"
    endpoint = {"endpoint_url": store.options["endpoint_url"]}
    dataset = fb.ImageFolder(f"s3://bucket/opt/train?{query}", storage_options=endpoint)
    assert dataset.root == "s3://bucket/opt/train"
    assert len(dataset) == 24
    assert SECRET not in repr(dataset)
    # Who is asked, and how well that is checked, is no matter of a URL.
    for name in ("endpoint_url", "proxy_url", "allow_http", "allow_invalid_certificates", "verify_checksums"):
        with pytest.raises(errors.ConfigError, match=f'expected no option "{name}" in the query') as refused:
            fb.ImageFolder(f"s3://bucket/opt/train?{query}&{name}=true")
        assert f'storage_options={{"{name}": …}}' in refused.value.hint
        assert SECRET not in f"{refused.value} {refused.value.hint}"
    nested = {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": store.options["endpoint_url"]}}
    assert len(fb.ImageFolder("s3://bucket/opt/train", storage_options=nested)) == 24
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mistyped")
    with pytest.raises(errors.AccessDeniedError):
        fb.ImageFolder("s3://bucket/opt/train")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert len(fb.ImageFolder("s3://bucket/opt/train")) == 24, "corrected, as in a notebook"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    credentials = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    credentials.write_text(f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = expired\n")
    with pytest.raises(errors.AccessDeniedError):
        fb.ImageFolder("s3://bucket/opt/train", storage_options={"profile": "lab"})
    credentials.write_text(f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    assert len(fb.ImageFolder("s3://bucket/opt/train", storage_options={"profile": "lab"})) == 24


def test_the_example_of_the_guide_runs(
    store: objectstore.ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put_folder(folder, "train")
    for name, option in (("ENDPOINT_URL", "endpoint_url"), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", store.options[option])
    guide = Path(__file__).parents[3] / "docs" / "remote.md"
    (block,) = re.findall(r"^```py\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, str(guide), "exec"), {"__name__": "example"})
    requests, received, resumed, throttles = map(int, capsys.readouterr().out.split())
    # Two classes and each picture; the next epoch's may have begun.
    assert requests >= 2 + 24
    assert (resumed, throttles) == (0, 0)
    assert received >= sum(path.stat().st_size for path in folder.rglob("*.jpg"))


def test_allow_empty_and_classes_of_ones_own(store: objectstore.ObjectStore, folder: Path) -> None:
    store.put_folder(folder, "own/train")

    class Own(fb.ImageFolder):
        def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
            return ["dog", "yak"], {"dog": 7, "yak": 8}

    dataset = Own("s3://bucket/own/train", allow_empty=True, storage_options=store.options)
    assert set(dataset.targets) == {7}


def test_a_file_url_is_its_folder(folder: Path) -> None:
    (folder / "a b").mkdir()
    (folder / "cat").rename(folder / "a b" / "cat")
    dataset = fb.ImageFolder(f"file://{folder}/a%20b")
    assert (dataset.root, dataset.classes) == (f"{folder}/a b", ["cat"])
    with pytest.raises(errors.ConfigError, match="expected none for a directory"):
        fb.ImageFolder(folder, storage_options={"key": "x"})


def test_a_sample_of_two_fields_in_an_archive_is_one_request(store: objectstore.ObjectStore, folder: Path) -> None:
    pictures = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, picture in enumerate(pictures):
            # Sorted by name, as archives often are: not in the order of `fields`.
            for name, content in (("cls", b"%d" % number), ("jpg", picture)):
                member = tarfile.TarInfo(f"{number:05}.{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    store.put("fields/train.tar", file.getvalue())
    dataset = fb.Shards(
        "s3://bucket/fields/train.tar", fields=("jpg", "cls"), decode=False, storage_options=store.options
    )
    loader = fb.DataLoader(dataset, batch_size=4, sampler=range(len(dataset)))
    before = storage(loader)
    samples = [sample for images, labels in loader for sample in zip(images, labels, strict=True)]
    assert samples == [(picture, b"%d" % number) for number, picture in enumerate(pictures)] and len(samples) > 4
    assert storage(loader)["requests"] - before["requests"] == len(samples)
    assert not loader.failures


def test_a_disk_and_an_object_store_are_mixed(
    store: objectstore.ObjectStore, folder: Path, tmp_path: Path, plain: T.Compose
) -> None:
    folders.write_folder(tmp_path / "near", 6)
    store.put_folder(folder, "mixed")
    near, copy = fb.ImageFolder(tmp_path / "near", plain), fb.ImageFolder(folder, plain)
    far = fb.ImageFolder("s3://bucket/mixed", plain, storage_options=store.options)
    loader = fb.DataLoader(fb.mix([(near, 0.5), (far, 0.5)], samples=16), batch_size=4, with_ids=True)
    pairs = [(image, int(index)) for images, _, own in loader for image, index in zip(images, own, strict=True)]
    assert [index for _, index in pairs] == [index for place in range(8) for index in (place % 6, 6 + place)]
    for image, index in pairs:
        assert torch.equal(image, near[index][0] if index < 6 else copy[index - 6][0])
    storage = loader.stats()["storage"]
    assert storage["url"] == "s3://bucket" and storage["requests"] >= 8
    other = fb.ImageFolder("s3://bucket/mixed", plain, storage_options=store.options | {"read_timeout": "77s"})
    with pytest.raises(errors.ConfigError, match="storage_options: expected the same for datasets of one root"):
        fb.concat([far, other])


def test_what_cannot_be_had_is_named(store: objectstore.ObjectStore) -> None:
    with pytest.raises(errors.NotFoundError, match="s3://bucket/nothing") as missing:
        fb.ImageFolder("s3://bucket/nothing", storage_options=store.options)
    assert missing.value.stage == "scan"
    with pytest.raises(errors.ConfigError, match="HTTP has no directory listings") as http:
        fb.ImageFolder(f"http://127.0.0.1:{store.port}/x")
    assert "manifest" in http.value.hint
    with pytest.raises(errors.ConfigError, match=r"storage_options\['?\"?seceret"):
        fb.ImageFolder("s3://bucket/x", storage_options={"seceret": "x"})
    with pytest.raises(errors.ConfigError, match="ftp"):
        fb.ImageFolder("ftp://bucket/x")


def test_no_key_appears_anywhere(
    store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, folder: Path, tmp_path: Path
) -> None:
    store.put_folder(folder, "secret/train")
    wrong = store.options | {"secret": "wrong-very-secret-0123456789"}
    with pytest.raises(errors.AccessDeniedError, match="SignatureDoesNotMatch") as denied:
        fb.ImageFolder("s3://bucket/secret/train", storage_options=wrong)
    proxy.rule = lambda key, asked, chance: "503" if "0003" in key or chance.random() < 0.3 else None
    dataset = fb.ImageFolder("s3://bucket/secret/train", transform=TRAIN, storage_options=through(store, proxy))
    ledger = tmp_path / "ledger.jsonl"
    loader = fb.DataLoader(dataset, batch_size=4, on_error="replace", ledger=ledger, deadline_seconds=2)
    assert sum(len(labels) for _, labels in loader) == 24
    assert [Path(failure.path).name for failure in loader.failures if failure.outcome == "replaced"] == ["0003.jpg"]
    said = [str(denied.value), repr(denied.value.__dict__), repr(dataset), json.dumps(loader.state_dict())]
    said += [loader.report(), str(loader.stats()), ledger.read_text(), repr(loader.failures)]
    for text in said:
        assert "very-secret" not in text, text
        assert "Signature=" not in text, text
    assert "0003.jpg" in ledger.read_text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "chance", "options"),
    [
        ("reset", 0.2, {}),
        ("truncate", 0.2, {}),
        ("short", 0.05, {}),
        ("empty", 0.01, {}),
        ("etag", 0.05, {}),
        ("stall", 0.01, {"read_timeout": 1}),
        ("429", 0.01, {}),
    ],
)
def test_an_epoch_survives(
    store: objectstore.ObjectStore,
    many: str,
    proxy: faultproxy.FaultProxy,
    fault: str,
    chance: float,
    options: dict[str, Any],
) -> None:
    # The first request for some of the objects.
    chosen = random.Random(2).sample(range(COUNT), int(COUNT * chance))
    broken = {f"/bucket/many/{number % 20:02}/{number:05}.jpg" for number in chosen}
    proxy.rule = lambda key, asked, _: fault if asked == 0 and key in broken else None
    loader = epoch(many, through(store, proxy, **options))
    assert not [failure for failure in loader.failures if failure.outcome != "recovered"]
    count, traffic, reads = len(broken), storage(loader), proxy.reads()
    assert proxy.faults() == {fault: count}
    if fault == "stall":
        # On a busy machine a read that does not stall may take longer than `read_timeout`, too.
        assert traffic["bodies_resumed"] >= count and len(reads) >= COUNT + count
    else:
        assert len(reads) == COUNT + count, "each object once, and once more where an answer was broken"
    if fault in ("reset", "truncate"):
        assert traffic["bodies_resumed"] == count, "gone on with, not begun again"
        assert loader.stats()["retries"] == 0 and not loader.failures
    if fault in ("short", "empty", "etag"):
        # Never "corrupt": what does not add up is not shown to a decoder.
        assert {failure.code for failure in loader.failures} == {"unavailable"}
        assert loader.stats()["retries"] == count == len(loader.failures)
    if fault == "429":
        assert traffic["throttles"] == count
        by_key: dict[str, list[faultproxy.Seen]] = {}
        for seen in reads:
            by_key.setdefault(seen.key, []).append(seen)
        pauses = [
            after.at - before.at
            for seen in by_key.values()
            for before, after in itertools.pairwise(seen)
            if before.fault
        ]
        assert len(pauses) == count and min(pauses) >= 1.0, "Retry-After is honoured"


@pytest.mark.timeout(180)
def test_a_storm_is_waited_out_and_does_not_come_back(
    store: objectstore.ObjectStore, many: str, proxy: faultproxy.FaultProxy
) -> None:
    seconds = float(os.environ.get("FOREBAY_STORM_SECONDS", "10"))
    proxy.latency = (0.02, 0.05)
    dataset = fb.ImageFolder(many, transform=TRAIN, storage_options=through(store, proxy))
    # A long storm is a long wait for a batch, of which a warning would tell.
    patient = {"stall_seconds": 60 + seconds}
    loader = fb.DataLoader(dataset, batch_size=64, shuffle=True, seed=1, with_ids=True, **patient)
    limits: list[tuple[float, int]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            limits.append((time.monotonic(), storage(loader)["concurrent_reads"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    indices = []
    try:
        for step, (*_, ids) in enumerate(loader):
            indices += list(ids)
            if step == 4:
                proxy.storm_until = time.monotonic() + seconds
    finally:
        is_over.set()
        watcher.join()
    assert sorted(indices) == list(range(COUNT))
    begin, end = proxy.storm_until - seconds, proxy.storm_until
    before = max(limit for at, limit in limits if at < begin)
    during = [limit for at, limit in limits if begin + 1 < at < end]
    assert before >= 32 and min(during) <= 2, f"{before} reads at a time before it, {min(during)} in it"
    assert storage(loader)["throttles"] > 10
    refused = [seen.at for seen in proxy.seen if seen.fault == "503"]
    late = [at for at in refused if at > begin + 2]
    assert len(late) / (seconds - 2) < 60, "a server that is down is asked now and then"
    # No herd: within the first quarter of a second after it no more come than the limit allows, which grows one by one.
    herd = [seen for seen in proxy.reads() if end <= seen.at < end + 0.25]
    assert len(herd) <= 60, f"{len(herd)} requests at once"
    after = [limit for at, limit in limits if at > end]
    told = f"{before} reads at a time before it, {min(during)} in it"
    print(f"storm: {told}, {len(late) / (seconds - 2):.1f} requests/s, then {len(herd)} at once")
    assert all(later - sooner <= 16 for sooner, later in itertools.pairwise(after)), after


@pytest.mark.timeout(120)
def test_a_request_that_stalls_is_overtaken_by_a_second_one(
    store: objectstore.ObjectStore, many: str, proxy: faultproxy.FaultProxy
) -> None:
    # More than there are reads at a time, 32: they have to give their places back, and may all stall at once.
    names = ("09.jpg", "29.jpg", "49.jpg", "69.jpg", "89.jpg")
    proxy.rule = lambda key, asked, chance: "stall" if asked == 0 and key.endswith(names) else None
    dataset = fb.ImageFolder(many, transform=TRAIN, storage_options=through(store, proxy, read_timeout=300))
    loader = fb.DataLoader(dataset, batch_size=64, shuffle=True, seed=1, with_ids=True, hedge=0.5, deadline_seconds=300)
    started = time.monotonic()
    indices = [index for *_, indices in loader for index in indices]
    elapsed = time.monotonic() - started
    assert sorted(indices) == list(range(COUNT))
    stalled, stats = proxy.faults()["stall"], loader.stats()
    assert stalled == COUNT // 20 > 32
    assert stats["hedges_won"] >= stalled, f"{stats['hedges_won']} of {stalled}"
    assert elapsed < 60, f"a stall lasts five minutes, the epoch took {elapsed:.1f} s"
    # With the loader still open: nobody waits for what was overtaken.
    until = time.monotonic() + 20
    while proxy.stalling:
        assert time.monotonic() < until, f"{proxy.stalling} requests are still waited for"
        time.sleep(0.05)
    loader.close()
    print(f"{stalled} stalls, {stats['hedges']} hedges, {stats['hedges_won']} won, {elapsed:.1f} s")
    assert not loader.failures, "nothing failed: a read that was overtaken says nothing of the storage"


def test_a_deadline_below_the_read_timeout_leaves_time_for_a_second_request(
    store: objectstore.ObjectStore, proxy: faultproxy.FaultProxy, folder: Path
) -> None:
    store.put_folder(folder, "hangs/train")
    proxy.rule = lambda key, asked, chance: "silence" if asked == 0 and key.endswith("0005.jpg") else None
    options = through(store, proxy, read_timeout=300)
    dataset = fb.ImageFolder("s3://bucket/hangs/train", transform=TRAIN, storage_options=options)
    with fb.DataLoader(dataset, batch_size=4, deadline_seconds=6) as loader:
        assert sum(len(labels) for _, labels in loader) == 24
        (failure,) = loader.failures
    assert (failure.code, failure.outcome, failure.attempts) == ("timeout", "recovered", 2)
    assert failure.path.endswith("0005.jpg") and "did not answer within 2.0 s" in failure.message


@pytest.mark.timeout(120)
def test_latency_is_hidden(store: objectstore.ObjectStore, many: str, proxy: faultproxy.FaultProxy) -> None:
    proxy.latency = (0.05, 0.5)
    dataset = fb.ImageFolder(many, transform=TRAIN, storage_options=through(store, proxy))
    loader = fb.DataLoader(dataset, batch_size=64, shuffle=True, seed=1)
    started = time.monotonic()
    assert sum(len(labels) for _, labels in loader) == COUNT
    alone = COUNT * 0.275
    assert time.monotonic() - started < alone / 20, "one after the other they would take nine minutes"
    assert proxy.max_waiting > 32


def test_listing_pages_that_fail_are_asked_for_again(
    store: objectstore.ObjectStore, many: str, proxy: faultproxy.FaultProxy
) -> None:
    chance = random.Random(5)
    judge = proxy._judge

    def judged(head: bytes) -> str | None:
        fault = judge(head)
        return "503" if b"list-type=2" in head and chance.random() < 0.3 else fault

    proxy._judge = judged  # type: ignore[method-assign]
    dataset = fb.ImageFolder(many, storage_options=through(store, proxy))
    assert len(dataset) == COUNT
    assert len(proxy.seen) > 22, "one for each class, the root twice, and those that failed"
