"""Promises 2 and 3 with real ranks: a gloo group stays in step whatever files fail, is killed, and resumes as fewer."""

import errno
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import faultfs
import folders
import forebay as fb
from faultfs import FaultFs
from forebay import transforms as T
from missing import missing
from ranks import Ranks

COUNT, BATCH, WORLD = 64, 3, 4
STEPS = -(-COUNT // (BATCH * WORLD))
# All ranks are killed in epoch 1, when rank 0 has saved its state after this many steps and the others go on.
KILLED_AFTER = 2
# Each is met by another rank, or by the same one at another step, in every epoch.
BAD = {3: folders.truncate, 17: folders.empty, 30: folders.text, 44: Path.unlink, 59: folders.truncate}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose pixels are their numbers; what the scan finds, and reading then does not."""
    root = tmp_path_factory.mktemp("numbered")
    for number in range(COUNT):
        path = root / f"class {number % 2}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(numpy.full((8, 8, 3), number, numpy.uint8)).save(path)
        if number in BAD:
            BAD[number](path)
            if not path.exists():
                path.symlink_to("nowhere")
    return root


def alone(root: Path, epoch: int) -> list[int]:
    """The same epoch in one process without interruption: the substitutes included."""
    dataset = fb.ImageFolder(root, transform=T.ToTensor())
    loader = fb.DataLoader(dataset, BATCH, shuffle=True, seed=3, on_error="replace", rank=0, world_size=1)
    loader.set_epoch(epoch)
    return [round(float(image[0, 0, 0]) * 255) for images, _ in loader for image in images]


@pytest.mark.timeout(120)
def test_ranks_stay_in_step_and_resume_as_fewer(numbered: Path, tmp_path: Path) -> None:
    expected = [alone(numbered, epoch) for epoch in (0, 1)]
    for sequence in expected:
        assert len(sequence) == COUNT and not set(sequence) & set(BAD)
        assert set(range(COUNT)) - set(sequence) == set(BAD)

    with Ranks(numbered, tmp_path / "4", WORLD, BATCH, epochs=2, killed_after=KILLED_AFTER) as ranks:
        # Until rank 0 stays, and every other rank is in the step after that.
        state = tmp_path / "4" / f"state-1-{KILLED_AFTER}.json"
        ranks.wait_until(state.exists)
        ranks.wait_until(lambda: all(ranks.last(rank) == (1, KILLED_AFTER) for rank in range(1, WORLD)))
    # A whole epoch: the same steps on every rank, and what one process would have given, in its order.
    for rank in range(WORLD):
        assert [line["step"] for line in ranks.lines(rank) if line["epoch"] == 0] == list(range(STEPS))
    assert ranks.delivered(0)[:COUNT] == expected[0]
    assert len(ranks.delivered(0)) - COUNT < WORLD

    # Half an epoch, and its rest on fewer ranks, from what rank 0 had saved.
    before = ranks.delivered(1, KILLED_AFTER)
    assert len(before) == KILLED_AFTER * BATCH * WORLD
    for world in (2, 3):
        with Ranks(numbered, tmp_path / str(world), world, BATCH, epochs=1, state=str(state)) as fewer:
            books = [epochs[-1] for epochs in fewer.finish()]
        after = fewer.delivered(1)
        assert (before + after)[:COUNT] == expected[1], f"on {world} ranks"
        assert len(before + after) - COUNT < world
        steps = {len(fewer.lines(rank)) for rank in range(world)}
        assert len(steps) == 1, f"ranks made {steps} steps"
        for book in books:
            assert book["planned"] == book["delivered"] + book["replaced"] + book["skipped"]


# Faults of storage, another kind on each rank.

MANY, MANY_STEPS = 96, 96 // (BATCH * WORLD)
OPTIONS = {"deadline_seconds": 1.0, "retries": 1, "io_threads": 4, "max_failures": 0.5}


@pytest.fixture
def rank_fs(tmp_path: Path) -> Iterator[list[FaultFs]]:
    """One folder, mounted for each rank by a server of its own; some files are bad for all."""
    if why_not := faultfs.why_not():
        missing("fuse", why_not)
    if os.geteuid() != 0:
        missing("mount", "a mount namespace for each rank needs root")
    source = tmp_path / "source"
    for number in range(MANY):
        path = source / f"class {number % 2}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numpy.full((8, 8, 3), number, numpy.uint8)).save(path)
        if number in BAD and BAD[number] is not Path.unlink:
            BAD[number](path)
    mounted = [FaultFs(source) for _ in range(WORLD)]
    for rank, rules in enumerate(FAULTS):
        for pattern, operation, rule in rules:
            mounted[rank].rule(pattern, operation, **rule)
    yield mounted
    for fs in mounted:
        fs.close()


# By rank: files that fail, files that are slow, files that hang for ever; the last one's server will be stopped.
FAULTS: list[list[tuple[str, str, dict[str, Any]]]] = [
    [("*/?5.png", "read", {"errno": errno.EIO}), ("*/?6.png", "read", {"errno": errno.ESTALE, "times": 1})],
    [("*/?1.png", "open", {"delay": 0.1}), ("*/?7.png", "read", {"delay": 0.2})],
    [("*/?2.png", "open", {"hang": True}), ("*/4?.png", "read", {"delay": 0.05})],
    [],
]


@pytest.mark.timeout(120)
def test_ranks_stay_in_step_whatever_the_storage_of_each_does(rank_fs: list[FaultFs], tmp_path: Path) -> None:
    root, ledger = tmp_path / "data", tmp_path / "ledger.jsonl"
    root.mkdir()
    mounts = [fs.root for fs in rank_fs]
    random_step = random.randrange(1, MANY_STEPS - 1)
    options = OPTIONS | {"ledger": str(ledger)}
    with Ranks(root, tmp_path / "killed", WORLD, BATCH, epochs=3, mounts=mounts, **options) as ranks:
        stuck = rank_fs[3]
        ranks.wait_until(lambda: (ranks.place / "state-0-1.json").exists())
        stuck.pause()
        # Longer than the deadline, so that samples are given up.
        threading.Timer(2.0, stuck.resume).start()
        ranks.wait_until(lambda: (ranks.place / f"state-1-{random_step}.json").exists())
    saved = max((tmp_path / "killed").glob("state-1-*.json"), key=lambda path: int(path.stem.rsplit("-")[-1]))
    step = json.loads(saved.read_text())["step"]
    where = f"killed after step {step} of epoch 1"
    assert random_step <= step <= MANY_STEPS, where

    explained = fb.DataLoader(
        fb.ImageFolder(rank_fs[0].source, transform=T.ToTensor()), BATCH, shuffle=True, seed=3, rank=0, world_size=1
    )
    whole = check(explained, ranks, ledger, epoch=0, steps=range(MANY_STEPS))
    assert whole == list(range(MANY)), where
    codes = {(line["rank"], line["code"]) for line in read(ledger)}
    assert {(0, "unavailable"), (2, "timeout"), (3, "timeout")} <= codes, codes
    before = check(explained, ranks, ledger, epoch=1, steps=range(step))

    groups = {}
    for world in (2, 3, 4):
        options = OPTIONS | {"ledger": str(tmp_path / f"ledger-{world}.jsonl")}
        groups[world] = Ranks(
            root, tmp_path / str(world), world, BATCH, epochs=1, state=str(saved), mounts=mounts, **options
        )
    try:
        books = {world: group.finish() for world, group in groups.items()}
    finally:
        for group in groups.values():
            group.__exit__()
    for world, group in groups.items():
        made = {tuple(line["step"] for line in group.lines(rank)) for rank in range(world)}
        assert len(made) == 1, f"{where}: ranks made different steps: {made}"
        (steps,) = made
        after = check(explained, group, tmp_path / f"ledger-{world}.jsonl", epoch=1, steps=steps, first=len(before))
        positions = before + after
        # Each position once; the last step may be padded from the start of the order.
        assert positions[:MANY] == list(range(MANY)), f"{where}, on {world} ranks"
        assert positions[MANY:] == list(range(len(positions) - MANY)) and len(positions) - MANY < world
        for epochs in books[world]:
            assert epochs[-1]["planned"] == epochs[-1]["delivered"] + epochs[-1]["replaced"]


def read(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def check(explained: fb.DataLoader, ranks: Ranks, ledger: Path, *, epoch: int, steps: Any, first: int = 0) -> list[int]:
    """The positions of the order that the ranks handed over in these steps, each as planned or as the ledger says."""
    world = ranks.world
    substitutes = {
        (line["rank"], line["step"], line["position"]): line["substitute"]
        for line in read(ledger)
        if line["epoch"] == epoch and line["outcome"] == "replaced"
    }
    order = [explained.explain(step, epoch=epoch)[at]["index"] for step in range(MANY // BATCH) for at in range(BATCH)]
    numbers = [int(Path(path).stem) for path, _ in explained.dataset.samples]
    positions: list[int] = []
    for step in steps:
        for rank in range(world):
            (line,) = (line for line in ranks.lines(rank) if (line["epoch"], line["step"]) == (epoch, step))
            assert [numbers[index] for index in line["ids"]] == line["numbers"], "an id belongs to its picture"
            for index in line["ids"]:
                # Beyond the last one it is padding, from the start of the order.
                position = first + len(positions)
                expected = substitutes.get((rank, step, position), order[position % MANY])
                assert index == expected, f"rank {rank}, step {step}, position {position}"
                positions.append(position % MANY)
    return positions


def test_the_environment_of_a_launcher_is_taken(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RANK", "2")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
    loader = fb.DataLoader(fb.ImageFolder(numbered, transform=T.ToTensor()), BATCH)
    assert (loader.rank, loader.world_size) == (2, 3)
