"""Promises 2 and 3 with real ranks: a gloo group stays in step whatever files fail, is killed, and goes on as fewer."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

import children
import folders
import forebay as fb
from forebay import transforms as T

COUNT, BATCH, WORLD = 64, 3, 4
STEPS = -(-COUNT // (BATCH * WORLD))
# All ranks are killed in epoch 1, when rank 0 has saved its state after this many steps and the others go on.
KILLED_AFTER = 2
# Each is met by another rank, or by the same one at another step, in every epoch.
BAD = {3: folders.truncate, 17: folders.empty, 30: folders.text, 44: Path.unlink, 59: folders.truncate}

# Every step: what was delivered is written down, the ranks meet, rank 0 saves the state.
RANK = """
    import json, os, sys, time
    import torch, torch.distributed as dist
    import forebay as fb
    from forebay import transforms as T

    root, place, batch, epochs, killed_after, state = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]  # the group itself is to be asked
    dataset = fb.ImageFolder(root, transform=T.ToTensor())
    loader = fb.DataLoader(dataset, int(batch), shuffle=True, seed=3, on_error="replace", num_workers=1)
    assert (loader.rank, loader.world_size) == (rank, world)
    if state:
        loader.load_state_dict(json.load(open(state)))
    said = open(f"{place}/{rank}.jsonl", "w")
    for _ in range(int(epochs)):
        at = loader.state_dict()
        epoch, first = at["epoch"], at["step"]
        for step, (images, _) in enumerate(loader, start=first):
            numbers = (images[:, 0, 0, 0] * 255).round().int().tolist()
            print(json.dumps({"epoch": epoch, "step": step, "numbers": numbers}), file=said, flush=True)
            total = torch.tensor([step])
            dist.all_reduce(total)
            assert total.item() == step * world, "the ranks are not at the same step"
            if rank == 0:
                with open(f"{place}/state-{epoch}-{step + 1}.json", "w") as file:
                    json.dump(loader.state_dict(), file)
                if epoch == 1 and step + 1 == int(killed_after):
                    time.sleep(60)
    print(json.dumps([book for book in loader._engine.books()]))
    dist.destroy_process_group()
"""


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """A group of processes, as torchrun starts them."""

    def __init__(self, root: Path, place: Path, world: int, *, epochs: int, killed_after: int = 0, state: str = ""):
        self.place = place
        place.mkdir()
        group = {
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self.processes = [
            subprocess.Popen(
                children.command(RANK, root, place, BATCH, epochs, killed_after, state),
                env=children.environment(**group, RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()

    def finish(self) -> list[list[dict[str, int]]]:
        """The books of every rank's epochs."""
        told = [process.communicate(timeout=50) for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * len(self.processes), told
        return [json.loads(out) for out, _ in told]

    def wait_until_stuck(self) -> None:
        """Until every rank but the first is in the step after the one at which rank 0 stays."""
        while any(self._last(rank) != (1, KILLED_AFTER) for rank in range(1, len(self.processes))):
            ended = [process.communicate() for process in self.processes if process.poll() is not None]
            assert not ended, ended
            time.sleep(0.02)

    def _last(self, rank: int) -> tuple[int, int] | None:
        lines = self.lines(rank) if (self.place / f"{rank}.jsonl").exists() else []
        return (lines[-1]["epoch"], lines[-1]["step"]) if lines else None

    def lines(self, rank: int) -> list[dict[str, Any]]:
        text = (self.place / f"{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def delivered(self, epoch: int, before: int = STEPS * WORLD) -> list[int]:
        """The numbers of an epoch in global order: by step, then by rank."""
        steps: dict[int, list[int]] = {}
        for rank in range(len(self.processes)):
            for line in self.lines(rank):
                if line["epoch"] == epoch and line["step"] < before:
                    steps.setdefault(line["step"], []).extend(line["numbers"])
        return [number for step in sorted(steps) for number in steps[step]]


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

    with Ranks(numbered, tmp_path / "4", WORLD, epochs=2, killed_after=KILLED_AFTER) as ranks:
        ranks.wait_until_stuck()
    # A whole epoch: the same steps on every rank, and what one process would have given, in its order.
    for rank in range(WORLD):
        assert [line["step"] for line in ranks.lines(rank) if line["epoch"] == 0] == list(range(STEPS))
    assert ranks.delivered(0)[:COUNT] == expected[0]
    assert len(ranks.delivered(0)) - COUNT < WORLD

    # Half an epoch, and its rest on fewer ranks, from what rank 0 had saved.
    before = ranks.delivered(1, KILLED_AFTER)
    assert len(before) == KILLED_AFTER * BATCH * WORLD
    state = tmp_path / "4" / f"state-1-{KILLED_AFTER}.json"
    for world in (2, 3):
        with Ranks(numbered, tmp_path / str(world), world, epochs=1, state=str(state)) as fewer:
            books = [epochs[-1] for epochs in fewer.finish()]
        after = fewer.delivered(1)
        assert (before + after)[:COUNT] == expected[1], f"on {world} ranks"
        assert len(before + after) - COUNT < world
        steps = {len(fewer.lines(rank)) for rank in range(world)}
        assert len(steps) == 1, f"ranks made {steps} steps"
        for book in books:
            assert book["planned"] == book["delivered"] + book["replaced"] + book["skipped"]


def test_the_environment_of_a_launcher_is_taken(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RANK", "2")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
    loader = fb.DataLoader(fb.ImageFolder(numbered, transform=T.ToTensor()), BATCH)
    assert (loader.rank, loader.world_size) == (2, 3)
