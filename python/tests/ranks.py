"""Groups of ranks: real processes with gloo between them, started like torchrun starts them, killed and asked."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import children
from ports import free_ports

# A launcher, like torchrun, but for one thing: it imports torch once, and forks the ranks.
# Every step: what was delivered is written down, the ranks meet, rank 0 saves the state.
LAUNCHER = """
    import ctypes, json, os, signal, sys, time, traceback
    import torch, torch.distributed as dist
    import forebay as fb
    from forebay import transforms as T

    world, root, place, batch, epochs, killed_after, state, mounts, options = sys.argv[1:]
    mounts = json.loads(mounts)

    def see(mount):
        # Only this rank sees it at the root; the others have their own there.
        libc = ctypes.CDLL(None, use_errno=True)
        new_mounts, private, recursive, bind = 1 << 17, 1 << 18, 1 << 14, 1 << 12
        assert libc.unshare(new_mounts) == 0, os.strerror(ctypes.get_errno())
        for source, target, flags in (("none", "/", private | recursive), (mount, root, bind)):
            mounted = libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None)
            assert mounted == 0, os.strerror(ctypes.get_errno())

    def run():
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        if killed_after != "0":
            for name in ("RANK", "WORLD_SIZE"):
                del os.environ[name]  # the group itself is to be asked
        dataset = fb.ImageFolder(root, transform=T.ToTensor())
        kept = dict(on_error="replace", num_workers=1, with_ids=True) | json.loads(options)
        loader = fb.DataLoader(dataset, int(batch), shuffle=True, seed=3, **kept)
        assert (loader.rank, loader.world_size) == (rank, world)
        if state:
            loader.load_state_dict(json.load(open(state)))
        said = open(f"{place}/{rank}.jsonl", "w")
        for _ in range(int(epochs)):
            at = loader.state_dict()
            epoch, first = at["epoch"], at["step"]
            for step, (images, _, ids) in enumerate(loader, start=first):
                numbers = (images[:, 0, 0, 0] * 255).round().int().tolist()
                line = {"epoch": epoch, "step": step, "numbers": numbers, "ids": ids.tolist()}
                print(json.dumps(line), file=said, flush=True)
                total = torch.tensor([step])
                dist.all_reduce(total)
                assert total.item() == step * world, "the ranks are not at the same step"
                if rank == 0:
                    with open(f"{place}/saving", "w") as file:
                        json.dump(loader.state_dict(), file)
                    os.rename(f"{place}/saving", f"{place}/state-{epoch}-{step + 1}.json")
                    if epoch == 1 and step + 1 == int(killed_after):
                        time.sleep(60)
        with open(f"{place}/{rank}.books", "w") as file:
            json.dump(loader._engine.books(), file)
        loader.close()
        dist.destroy_process_group()

    ranks = set()
    for rank in range(int(world)):
        if child := os.fork():
            ranks.add(child)
            continue
        try:
            os.environ["RANK"] = str(rank)
            if mounts:
                see(mounts[rank])
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    while ranks:
        child, status = os.wait()
        ranks.discard(child)
        if status != 0:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank ended with status {status}")
"""


class Ranks:
    """A group of processes, with the environment that torchrun gives them."""

    def __init__(
        self,
        root: Path,
        place: Path,
        world: int,
        batch_size: int,
        *,
        epochs: int,
        killed_after: int = 0,
        state: str = "",
        mounts: Sequence[Path] = (),
        **options: Any,
    ):
        self.place, self.world = place, world
        place.mkdir()
        group = {
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(*free_ports(1)),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        seen = json.dumps([str(mount) for mount in mounts])
        given = (world, root, place, batch_size, epochs, killed_after, state, seen, json.dumps(options))
        self.launcher = subprocess.Popen(
            children.command(LAUNCHER, *given),
            env=children.environment(**group),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the remaining ranks, all at once."""
        if self.launcher.poll() is None:
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.communicate()

    def finish(self) -> list[list[dict[str, int]]]:
        """The books of every rank's epochs."""
        told = self.launcher.communicate(timeout=50)
        assert self.launcher.returncode == 0, told
        return [json.loads((self.place / f"{rank}.books").read_text()) for rank in range(self.world)]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Until it holds, while all ranks live; pytest's limit is the limit."""
        while not holds():
            assert self.launcher.poll() is None, self.launcher.communicate()
            time.sleep(0.01)

    def last(self, rank: int) -> tuple[int, int] | None:
        lines = self.lines(rank) if (self.place / f"{rank}.jsonl").exists() else []
        return (lines[-1]["epoch"], lines[-1]["step"]) if lines else None

    def lines(self, rank: int) -> list[dict[str, Any]]:
        text = (self.place / f"{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def delivered(self, epoch: int, before: int = 1 << 30) -> list[int]:
        """The numbers of an epoch in global order: by step, then by rank."""
        steps: dict[int, list[int]] = {}
        for rank in range(self.world):
            for line in self.lines(rank):
                if line["epoch"] == epoch and line["step"] < before:
                    steps.setdefault(line["step"], []).extend(line["numbers"])
        return [number for step in sorted(steps) for number in steps[step]]
