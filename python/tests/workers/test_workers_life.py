"""How worker processes end: with the loader, whatever ends it, and without a trace."""

import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import children
import forebay as fb
import worker_runs
from faultfs import FaultFs
from forebay._options import limits
from forebay._python.workers.process import fork_server, resources
from forebay.errors import StoppedError, WorkerDiedError

FOLDERS = [children.TESTS, str(Path(__file__).parent)]
BEGIN = f"""
    import os, signal, sys, time
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    sys.path[:0] = {FOLDERS!r}
    import worker_runs
    from test_workers_life import Slow

    job = worker_runs.job(Slow(), output="numpy", shard_count=3)
    workers = worker_runs.ProcessWorkers()
    workers.start(job, [0, 1, 2], None)
    for task in worker_runs.tasks(job, 96, 8):
        workers.submit(task)
    assert workers.receive(30) is not None
    # The first result may come before the last worker is there: fork server, template, three workers.
    assert worker_runs.wait_until(lambda: len(worker_runs.children()) == 5, 30)
    print(*worker_runs.children(), flush=True)
"""


class Slow:
    """One of its workers is always in the middle of something."""

    def __getitem__(self, index: int) -> int:
        if index > 60:
            time.sleep(60)
        return index


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # of an orphan only its new parent can be the reaper


def is_worker(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith("forebay-w")


def started(program: str, **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """A program that has begun, and the processes that came from it."""
    process = children.start(textwrap.dedent(BEGIN) + textwrap.dedent(program), **options)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return process, [int(text) for text in line.split()]


def gone_within(pids: list[int], seconds: float) -> bool:
    return worker_runs.wait_until(lambda: not any(map(is_there, pids)), seconds)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_the_loader_is_killed(number: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    process, pids = started("time.sleep(60)")
    assert all(map(is_there, pids))
    process.send_signal(number)
    process.wait(10)
    assert gone_within(pids, 2.0)
    process.communicate()
    # torch names its blocks there for a moment, in another test's process.
    assert worker_runs.wait_until(lambda: set(os.listdir("/dev/shm")) <= before)


def test_nothing_is_left_when_a_forked_child_outlives_the_loader() -> None:
    process, pids = started("""
        if os.fork():
            time.sleep(60)
        os.close(1), os.close(2)
        time.sleep(4)  # it has a copy of every descriptor of the loader's
        os._exit(0)
    """)
    process.kill()
    process.wait(10)
    assert gone_within(pids, 2.0)
    process.communicate()


def test_workers_die_with_their_fork_server() -> None:
    process, pids = started("time.sleep(60)")
    server = next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "forebay-forksrv")
    os.kill(server, signal.SIGKILL)
    assert gone_within([pid for pid in pids if pid != server], 2.0)
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "workers.close()",
        "del workers",
        "raise SystemExit(0)",
        "sys.exit()",
        "workers.loop = workers; del workers",
        "os._exit(0)",
    ],
)
def test_nothing_is_left_when_the_program_ends(ending: str) -> None:
    process, pids = started(ending)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert gone_within(pids, 2.0)


def test_workers_that_are_dropped_end_their_processes() -> None:
    gc.collect()  # those of other tests
    before = worker_runs.children()
    job = worker_runs.job(Slow(), output="numpy")
    workers = worker_runs.ProcessWorkers()
    workers.start(job, [0, 1], None)
    workers.submit(worker_runs.tasks(job, 8, 8)[0])
    assert workers.receive(30) is not None
    # Fork server, template, two workers; the second may be there only after the first result.
    assert worker_runs.wait_until(lambda: len(worker_runs.children()) == len(before) + 4, 30)
    del workers
    gc.collect()
    # Reaped, too: not one zombie.
    assert worker_runs.children() == before


def test_closing_does_not_wait_for_what_is_in_hand() -> None:
    job = worker_runs.job(Slow(), output="numpy", shard_count=1)
    with worker_runs.running(job) as workers:
        workers.submit(worker_runs.tasks(job, 100, 100)[0])
        assert worker_runs.wait_until(lambda: any(row["index"] == 61 for row in workers.in_flight()), 30)
        before = time.monotonic()
        workers.close()
        assert time.monotonic() - before < 2.0
    with pytest.raises(StoppedError, match="closed"):
        workers.receive(1.0)
    workers.close()


def test_ctrl_c_is_the_loaders_to_decide() -> None:
    process, pids = started(
        """
        try:
            while True:
                workers.receive(1.0)
        except KeyboardInterrupt:
            print("interrupted", len(worker_runs.children()), workers.stats()["restarts"])
            workers.close()
        """,
        start_new_session=True,
    )
    time.sleep(0.2)  # so that it is in its loop; earlier would do as well
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert stdout.split() == ["interrupted", "5", "0"]
    assert gone_within(pids, 2.0)


def test_in_a_forked_child_it_says_so_and_leaves_the_parents_alone() -> None:
    job = worker_runs.job(list(range(64)), output="numpy")
    with worker_runs.running(job) as workers:
        todo = worker_runs.tasks(job, 64, 8)
        first = worker_runs.results(workers, todo[:4])
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for call in (
                    lambda: workers.receive(1.0),
                    lambda: workers.submit(todo[4]),
                    lambda: workers.renew({}, None),
                ):
                    with pytest.raises(StoppedError, match="forked child"):
                        call()
                workers.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        second = worker_runs.results(workers, todo[4:])
        assert workers.stats()["restarts"] == 0
    assert worker_runs.flat(result.value for result in first + second) == list(range(64))


def test_workers_leave_although_a_forked_child_has_copies_of_everything() -> None:
    job = worker_runs.job(list(range(64)), output="numpy")
    before = worker_runs.children()
    with worker_runs.running(job) as workers:
        worker_runs.results(workers, worker_runs.tasks(job, 64, 8))
        pids = [pid for pid in worker_runs.children() if pid not in before]
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        try:
            assert worker_runs.wait_until(lambda: not workers.in_flight())
            workers.rest()
            assert worker_runs.wait_until(lambda: not [pid for pid in pids if is_there(pid) and is_worker(pid)])
            began = time.monotonic()
            workers.close()
            assert time.monotonic() - began < resources._CLOSE_SECONDS
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


class Attended:
    """Has a process of its own beside it, which does not end before the worker does."""

    def __getitem__(self, index: int) -> int:
        multiprocessing.get_context("fork").Process(target=worker_runs.outlast).start()
        return index


def test_workers_that_cannot_leave_do_not_stay_behind() -> None:
    job = worker_runs.job(Attended(), output="numpy")
    before = worker_runs.children()
    with worker_runs.running(job) as workers:
        worker_runs.results(workers, worker_runs.tasks(job, 2, 1))
        assert worker_runs.wait_until(lambda: not workers.in_flight())
        pids = [pid for pid in worker_runs.children() if pid not in before]
        assert len(pids) == 6  # fork server, template, two workers and a process of each
        workers.rest()
        # They are given time to leave first.
        assert worker_runs.wait_until(lambda: len([pid for pid in pids if is_there(pid)]) == 2, 30)


NESTED = f"""
    import multiprocessing, os, sys
    sys.path[:0] = {FOLDERS!r}
    import worker_runs

    def train(queue):
        job = worker_runs.job(list(range(32)), output="numpy")
        with worker_runs.running(job) as workers:
            queue.put(worker_runs.flat(worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 32, 8)))))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=train, args=(queue,), daemon=True)
    child.start()
    assert queue.get(timeout=30) == list(range(32))
    child.join(10)
    assert child.exitcode == 0
"""


def test_works_in_a_forked_and_daemonic_process() -> None:
    ended = children.run(NESTED)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_fork_server_has_one_thread_whatever_it_imports() -> None:
    import pandas  # noqa: F401
    import torch  # noqa: F401
    import torchvision  # noqa: F401

    job = worker_runs.job(list(range(16)))
    with worker_runs.running(job) as workers:
        worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 16, 8)))
        assert len(os.listdir(f"/proc/{workers._resources.process.pid}/task")) == 1


def test_a_full_stderr_blocks_only_its_writers() -> None:
    """The pipe is not read: workers that do not write to it continue."""
    program = f"""
        import sys
        sys.path[:0] = {FOLDERS!r}
        import worker_runs
        from test_workers_life import Loud

        job = worker_runs.job(Loud(), output="numpy")
        with worker_runs.running(job) as workers:
            todo = worker_runs.tasks(job, 64, 8)
            for task in todo:
                workers.submit(task)
            quiet = [workers.receive(30) for _ in range(4)]
            print(sorted(result.number for result in quiet), flush=True)
    """
    process = children.start(program)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().strip() == "[1, 3, 5, 7]"
    process.wait(20)
    process.stdout.close()
    process.stderr.close()


class Loud:
    """What the first worker makes writes more than a pipe holds."""

    def __getitem__(self, index: int) -> int:
        if index < 8:
            sys.stderr.write("x" * (1 << 20))
        return index


class Told:
    """What a worker knows of the program it works for."""

    def __getitem__(self, index: int) -> Any:
        return len(sys.argv), len(sys.path)


def test_a_program_may_have_any_number_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *(f"data/shard-{number:08}.tar" for number in range(14_000))])
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/package-{number:06}" for number in range(500))])
    job = worker_runs.job(Told(), output="numpy", shard_count=1)
    with worker_runs.running(job) as workers:
        ((arguments, folders),) = worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 1, 1)))
    assert (int(arguments[0]), int(folders[0])) == (14_001, len(sys.path))


def test_a_fork_server_that_does_not_read_its_messages_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_TELL_SECONDS", 0.5)
    job = worker_runs.job(list(range(32)), output="numpy")
    with worker_runs.running(job) as workers:
        assert workers._resources.process is not None
        stopped = workers._resources.process.pid
        os.kill(stopped, signal.SIGSTOP)
        for _ in range(20_000):  # more than fits on the way
            workers._resources.tell(fork_server.KILL, b"x" * 100)
        assert worker_runs.flat(
            worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 32, 8)))
        ) == list(range(32))
        assert workers.stats()["fork_server_restarts"] == 1


def test_closing_does_not_wait_for_a_fork_server_that_is_stuck_in_the_kernel(
    fault_fs: FaultFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports a module from a mount that does not answer, and survives SIGKILL there."""
    (fault_fs.source / "silent.py").write_text("")
    fault_fs.rule("silent.py", "open", hang=True)
    monkeypatch.setattr(resources, "_CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(sys, "path", [str(fault_fs.root), *sys.path])
    monkeypatch.setitem(sys.modules, "silent", sys)
    monkeypatch.setattr(fork_server, "PRELOADED", ("silent",))
    with worker_runs.running(worker_runs.job(list(range(8)), output="numpy")) as workers:
        assert worker_runs.wait_until(lambda: fault_fs.hanging() == 1, 30)
        began = time.monotonic()
        workers.close()
        assert time.monotonic() - began < 5.0
    (stuck,) = resources._unreaped
    fault_fs.clear()
    assert worker_runs.wait_until(lambda: stuck.poll() is not None, 30)
    resources._unreaped.clear()


def test_workers_that_were_given_up_say_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = worker_runs.job(list(range(32)), output="numpy")
    with monkeypatch.context() as broken:
        broken.setattr(fork_server, "BOOT", "raise SystemExit(3)")
        with worker_runs.running(job) as workers:
            workers.submit(worker_runs.tasks(job, 8, 8)[0])
            for _ in range(3):
                with pytest.raises(WorkerDiedError, match=r"left with exit status 3, 5 times in a row"):
                    workers.receive(30)
            broken.undo()
            # Another epoch begins anew, whatever was wrong may be over.
            workers.renew({}, None)
            assert worker_runs.flat(
                worker_runs.values(worker_runs.results(workers, worker_runs.tasks(job, 32, 8)))
            ) == list(range(32))


class Around:
    """What a worker finds around it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return os.environ.get("FOREBAY_AROUND", "nothing"), os.getcwd(), sys.path[-1], sys.argv[-1]


def fork_servers() -> list[int]:
    return [pid for pid in worker_runs.children() if Path(f"/proc/{pid}/comm").read_text().strip() == "forebay-forksrv"]


def test_workers_have_the_environment_of_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another interpreter: what is changed before every pass must not cost seconds."""

    def change(name: str) -> tuple[str, ...]:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("FOREBAY_AROUND", name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        monkeypatch.setattr(sys, "argv", ["train.py", name])
        return name, str(folder), str(folder), name

    loader = fb.DataLoader(Around(), batch_size=None, num_workers=1)
    assert next(iter(loader))[0] == "nothing"
    before = fork_servers()
    for name in ("one", "two"):
        expected = change(name)
        assert [tuple(sample) for sample in loader] == [expected]
    del loader
    gc.collect()
    expected = change("three")
    again = fb.DataLoader(Around(), batch_size=None, num_workers=1)
    assert [tuple(sample) for sample in again] == [expected]
    monkeypatch.delenv("FOREBAY_AROUND")
    assert next(iter(again))[0] == "nothing"
    assert fork_servers() == before


MODULE = """
import os, sys, threading

with open({log!r}, "a") as log:
    log.write(f"{{os.getpid()}}\\n")
{extra}

class Counted:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + {plus}
"""


PATIENT: Any = {"output": "numpy", "stall_seconds": 300.0}


class Written:
    """A module that notes which processes import it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, extra: str = "") -> None:
        self._log, self._file, self._extra = folder / "log", folder / "noting_its_imports.py", extra
        self.write(plus=0)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "noting_its_imports", raising=False)
        self.dataset = importlib.import_module("noting_its_imports").Counted()
        self._seen = len(self._log.read_text().split())

    def write(self, plus: int) -> None:
        self._file.write_text(MODULE.format(log=str(self._log), extra=self._extra, plus=plus))

    def imports(self) -> int:
        """By how many other processes, since it was last asked."""
        before, self._seen = self._seen, len(self._log.read_text().split())
        return self._seen - before


def test_the_module_of_a_dataset_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Written(tmp_path, monkeypatch)
    loader = fb.DataLoader(module.dataset, batch_size=4, num_workers=2, **PATIENT)
    assert [worker_runs.flat(loader) for _ in range(3)] == [list(range(8))] * 3
    assert module.imports() == 1
    another = fb.DataLoader(module.dataset, batch_size=4, num_workers=2, **PATIENT)
    del loader
    gc.collect()
    assert worker_runs.flat(another) == list(range(8))
    assert module.imports() == 0, "the loader that is gone left it behind"
    monkeypatch.setenv("FOREBAY_AROUND", "another")
    assert worker_runs.flat(another) == list(range(8))
    assert module.imports() == 1, "what a module reads when it is imported may be another thing now"
    another.close()


def test_a_module_that_was_changed_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Written(tmp_path, monkeypatch)
    with fb.DataLoader(module.dataset, batch_size=4, num_workers=2, **PATIENT) as loader:
        assert worker_runs.flat(loader) == list(range(8))
        module.write(plus=100)
        assert worker_runs.flat(loader) == list(range(100, 108))


@pytest.mark.parametrize(
    "extra",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "os.open(__file__, os.O_RDONLY)",
        "os._exit(3) if open('/proc/self/comm').read().startswith('forebay-templ') else None",
        "sys.exit(3)",
    ],
    ids=["thread", "file", "end", "exit"],
)
def test_workers_import_what_is_not_safe_to_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    """A thread is not forked along, the position of a file is shared: as before, each worker has its own."""
    module = Written(tmp_path, monkeypatch, f"if os.environ.get('FOREBAY_AROUND'): {extra}")
    monkeypatch.setenv("FOREBAY_AROUND", "a worker")
    with fb.DataLoader(module.dataset, batch_size=4, num_workers=2, **PATIENT) as loader:
        if "sys.exit" in extra:
            with pytest.raises(WorkerDiedError, match=r"left with exit status .* while it started"):
                worker_runs.flat(loader)
        else:
            assert worker_runs.flat(loader) == list(range(8))
            assert module.imports() == 3, "the template, which is not used, and two workers"


def test_a_module_that_hangs_is_said_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Written(tmp_path, monkeypatch, "if os.environ.get('FOREBAY_AROUND'): threading.Event().wait()")
    with fb.DataLoader(module.dataset, batch_size=4, num_workers=2, deadline_seconds=1.0, **PATIENT) as loader:
        assert worker_runs.flat(loader) == list(range(8))
        monkeypatch.setattr(limits, "DEADLINE_SECONDS", 2.0)
        monkeypatch.setenv("FOREBAY_AROUND", "a worker")
        with pytest.raises(WorkerDiedError, match=r"no worker could be started within 2 seconds: the modules"):
            next(iter(loader))
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 5.0


def test_what_workers_are_forked_from_starts_with_the_loader() -> None:
    gc.collect()
    program = f"""
        import sys, time
        sys.path[:0] = {FOLDERS!r}
        import worker_runs
        import forebay as fb

        assert not worker_runs.children()
        loader = fb.DataLoader(list(range(8)), num_workers=2)
        assert len(worker_runs.children()) == 1
        fb.DataLoader(list(range(8)), num_workers=2)
        fb.DataLoader(list(range(8)), num_workers=0), fb.DataLoader(list(range(8)), num_workers=2, workers="threads")
        assert len(worker_runs.children()) == 1, "one for whoever is first"
        assert worker_runs.flat(loader) == list(range(8))
        began = time.monotonic()
        fb.DataLoader(list(range(8)), num_workers=2)  # not used at all: nobody waits for it at the end
        import atexit
        atexit.register(lambda: print(time.monotonic() - began < 5))
    """
    ended = children.run(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_what_workers_are_forked_from_can_start_with_the_import() -> None:
    program = f"""
        import os, sys
        sys.path[:0] = {FOLDERS!r}
        os.environ["FOREBAY_EARLY_WORKERS"] = "1"
        import forebay as fb
        assert "torch" not in sys.modules
        import worker_runs
        from test_workers_life import fork_servers

        started = worker_runs.children()
        loader = fb.DataLoader(list(range(8)), num_workers=2)
        assert [int(number) for batch in loader for number in batch] == list(range(8))
        # It has torch, which this process imported after it; and it wanted no fork server of its own.
        assert any("libtorch" in line for line in open(f"/proc/{{started[0]}}/maps"))
        print(len(started), fork_servers() == started)
    """
    ended = children.run(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 True\n", "")
