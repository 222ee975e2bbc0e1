"""What workers make of a dataset that is one large Python object: threads share it, processes do not grow."""

import json
import os

import pytest

import children

PROGRAM = """
    import json, os, sys, warnings
    from pathlib import Path
    import torch
    import forebay

    warnings.simplefilter("ignore")
    kind, count = sys.argv[1], int(sys.argv[2])

    class Entries:
        def __init__(self):
            self.entries = [{"path": f"/data/{i:07}.jpg", "label": i, "box": [i, i + 1, i + 2]} for i in range(count)]

        def __len__(self):
            return count

        def __getitem__(self, index):
            entry = self.entries[index]
            return entry["label"], len(entry["path"]) + sum(entry["box"])

    def tree():
        parents = {}
        for process in filter(str.isdecimal, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents.setdefault(int(fields[1]), []).append(int(process))
        found = [os.getpid()]
        for process in found:
            found += parents.get(process, [])
        return found

    def pss():
        kilobytes = 0
        for process in tree():
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return kilobytes / 1024

    entries = Entries()
    alone, after = pss(), []
    loader = forebay.DataLoader(
        entries, batch_size=1000, shuffle=True, num_workers=8, workers=kind, persistent_workers=True
    )
    for _ in range(3):
        seen = torch.cat([labels for labels, _ in loader])
        assert torch.equal(seen.sort().values, torch.arange(count))
        del seen
        after.append(pss())
    print(json.dumps({"alone": alone, "after": after, "processes": len(tree())}))
"""


# FOREBAY_ENTRIES=1000000 for the long run.
ENTRIES = int(os.environ.get("FOREBAY_ENTRIES", "100000"))


@pytest.mark.timeout(120 + ENTRIES // 2000)
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_large_list_stays_what_it_is(kind: str) -> None:
    done = children.run(PROGRAM, kind, ENTRIES, seconds=110 + ENTRIES // 2000)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    if kind == "threads":
        assert told["processes"] == 1
        assert told["after"][-1] <= 1.3 * told["alone"], told
    else:
        assert told["processes"] == 10, "the loop, what workers are forked from, and they"
        # A list that every worker has of its own costs what it costs once; from epoch to epoch nothing is added.
        assert told["after"][-1] <= 1.03 * told["after"][0], told
