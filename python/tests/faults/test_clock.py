"""The clock on the wall is set back and forward in the middle of an epoch: nothing that waits looks at it."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import children
from faultfs import FaultFs
from missing import missing

# Shows the time of day so many seconds off. Waits in the kernel go by its own clocks, which nobody can set.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static volatile long offset;

void set_the_clock(long seconds) { offset = seconds; }

static int true_time(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return next(clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = true_time(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""

PROGRAM = """
    import ctypes, json, sys, threading, time, warnings
    import forebay as fb
    from forebay import transforms as T

    root, isolate, ledger = sys.argv[1:]
    clock = ctypes.CDLL(None)
    dataset = fb.ImageFolder(root, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    loader = fb.DataLoader(
        dataset, 4, isolate=isolate, ledger=ledger, output="numpy", io_threads=2, num_workers=1, prefetch_factor=1,
        deadline_seconds=20, stall_seconds=20, timeout=20,
    )
    jumps = []

    def jump(seconds):
        # While reads are under way, and the loop waits for them.
        while not loader.in_flight():
            time.sleep(0.001)
        before = time.time()
        clock.set_the_clock(ctypes.c_long(seconds))
        jumps.append(time.time() - before)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        started, batches, delivered = time.monotonic(), iter(loader), 0
        for seconds in (-3600, 86400, 0):
            jumping = threading.Thread(target=jump, args=(seconds,))
            jumping.start()
            delivered += len(next(batches)[1])
            jumping.join()
        delivered += sum(len(labels) for _, labels in batches)
    failures = [(failure.outcome, failure.elapsed_seconds) for failure in loader.failures]
    print(json.dumps(dict(delivered=delivered, jumps=jumps, said=[str(warning.message) for warning in said],
                          failures=failures, seconds=time.monotonic() - started)))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (compiler := shutil.which("cc")):
        missing("cc", "a shim of the clock cannot be made: there is no C compiler")
    source = tmp_path_factory.mktemp("shim") / "clock.c"
    source.write_text(SHIM)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("isolate", ["never", "always"])
def test_a_clock_set_back_and_forward_is_not_noticed(
    fault_fs: FaultFs, shim: Path, tmp_path: Path, isolate: str
) -> None:
    # Reads that take their time, and pauses between attempts: all of them would be late by the clock on the wall.
    fault_fs.rule("*.jpg", "open", delay=0.1, times=1)
    fault_fs.rule("*/000?.jpg", "read", errno=errno.EIO, times=2)
    preload = f"LD_PRELOAD={shim}"
    # The interpreter itself: a shell in between would be shimmed, too.
    done = children.run(PROGRAM, fault_fs.root, isolate, tmp_path / "ledger.jsonl", prefix=("env", preload))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    back, forward, home = told["jumps"]
    assert (round(back), round(forward), round(home)) == (-3600, 90_000, -86_400), "the clock was not set"
    assert told["delivered"] == 24 and told["said"] == []
    assert [outcome for outcome, _ in told["failures"]] == ["recovered"] * 10
    assert all(0 < elapsed < 15 for _, elapsed in told["failures"])
    assert told["seconds"] < 15
    times = [json.loads(line)["unix_seconds"] for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    # What is for people to read does show the time of day: the engine saw the clock that was set.
    assert max(times) - min(times) > 3000


# A ledger is for people to read, a `Retry-After` may be a date, the files of a cache are as old as they say, and a file
# that was changed a moment ago by its own time is not mapped.
MAY_ASK = {
    "crates/forebay-core/src/clock.rs",
    "crates/forebay-store/src/mapped/mod.rs",
    "crates/forebay-store/src/remote/connector.rs",
    "crates/forebay-store/src/wrap/cache.rs",
}


def test_nothing_that_waits_asks_for_the_time_of_day() -> None:
    """The source: deadlines, pauses and waits are made of `Instant` and `monotonic`."""
    root = Path(__file__).parents[3]
    found = set()
    for pattern in ("crates/*/src/**/*.rs", "python/forebay/**/*.py"):
        for path in root.glob(pattern):
            text = path.read_text()
            if any(word in text for word in ("SystemTime::now", "time.time(", "datetime.now", "CLOCK_REALTIME")):
                found.add(os.fspath(path.relative_to(root)))
    assert found == MAY_ASK
