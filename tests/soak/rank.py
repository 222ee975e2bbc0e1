"""One rank of the soak: loads, reports every step, and goes on when it is told that every rank has made it.

A line of JSON on standard output for each step and each end of an epoch; a line on standard input for each of them.
"""

import json
import os
import sys
import warnings
from typing import Any

import forebay as fb
from forebay import transforms as T
from forebay.errors import ForebayError

# Said on standard error by a run that stops by itself; the status tells it from a crash.
STOPPED = 3


def tell(**line: object) -> bool:
    """Reports; whether to go on."""
    print(json.dumps(line), flush=True)
    return sys.stdin.readline() == "go\n"


def held(loader: fb.DataLoader) -> dict[str, int]:
    """What this process holds of the system, and of readers."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    storage = loader.stats()["storage"]
    readers = {name: storage[f"readers_{name}"] for name in ("alive", "lost", "started", "written_off", "died")}
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"resident_bytes": resident, "threads": len(os.listdir("/proc/self/task")), "fds": descriptors} | readers


def run(root: str, ledger: str, options: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Epochs, until told to stop at the end of one."""
    dataset = fb.ImageFolder(root, transform=T.Compose([T.RandomResizedCrop(24), T.ToTensor()]))
    with fb.DataLoader(dataset, ledger=ledger, output="numpy", with_ids=True, **options) as loader:
        if state:
            loader.load_state_dict(state)
        while True:
            at = loader.state_dict()
            epoch = at["epoch"]
            for step, (_, _, ids) in enumerate(loader, start=at["step"]):
                # The ranks meet here: a state is saved only when each of them has made the step.
                tell(kind="step", epoch=epoch, step=step, ids=ids.tolist(), state=loader.state_dict())
            # None where the state was that of the epoch's end, and nothing was left of it.
            books = next((books for books in reversed(loader._engine.books()) if books["epoch"] == epoch), None)
            if not tell(kind="epoch", epoch=epoch, books=books, held=held(loader)):
                return


if __name__ == "__main__":
    # Failures and long waits are what this is about: the ledger has them.
    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
    except ForebayError as error:
        print(f"{error.code}: {error}", file=sys.stderr, flush=True)
        sys.exit(STOPPED if error.code in ("too_many_failures", "exhausted", "timeout", "unavailable") else 1)
