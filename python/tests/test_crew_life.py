"""How worker processes end: with the loader, whatever ends it, and without a trace."""

import gc
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
import crews
import forebay
from forebay._workers import house, nursery
from forebay.errors import StoppedError, WorkerDiedError

HERE = str(Path(__file__).parent)
BEGIN = f"""
    import os, signal, sys, time
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    sys.path.insert(0, {HERE!r})
    import crews
    from test_crew_life import Slow

    job = crews.job(Slow(), output="numpy", shard_count=3)
    crew = crews.ProcessCrew()
    crew.start(job, [0, 1, 2], None)
    for task in crews.tasks(job, 96, 8):
        crew.submit(task)
    assert crew.receive(30) is not None
    print(*crews.children(), flush=True)
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


def started(program: str, **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """A program that has begun, and the processes that came from it."""
    process = subprocess.Popen(
        children.command(textwrap.dedent(BEGIN) + textwrap.dedent(program)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=children.environment(),
        **options,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return process, [int(text) for text in line.split()]


def gone_within(pids: list[int], seconds: float) -> bool:
    return crews.wait_until(lambda: not any(map(is_there, pids)), seconds)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_the_loader_is_killed(number: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    process, pids = started("time.sleep(60)")
    assert len(pids) == 4
    assert all(map(is_there, pids))
    process.send_signal(number)
    process.wait(10)
    assert gone_within(pids, 2.0)
    process.communicate()
    assert set(os.listdir("/dev/shm")) <= before


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


def test_workers_die_with_their_nursery() -> None:
    process, pids = started("time.sleep(60)")
    nursery = next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "forebay-nursery")
    os.kill(nursery, signal.SIGKILL)
    assert gone_within([pid for pid in pids if pid != nursery], 2.0)
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "ending",
    ["", "crew.close()", "del crew", "raise SystemExit(0)", "sys.exit()", "crew.loop = crew; del crew", "os._exit(0)"],
)
def test_nothing_is_left_when_the_program_ends(ending: str) -> None:
    process, pids = started(ending)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert gone_within(pids, 2.0)


def test_a_crew_that_is_dropped_takes_its_workers_along() -> None:
    gc.collect()  # those of other tests
    before = crews.children()
    job = crews.job(Slow(), output="numpy")
    crew = crews.ProcessCrew()
    crew.start(job, [0, 1], None)
    crew.submit(crews.tasks(job, 8, 8)[0])
    assert crew.receive(30) is not None
    pids = [pid for pid in crews.children() if pid not in before]
    assert len(pids) == 3
    del crew
    gc.collect()
    # Reaped, too: not one zombie.
    assert crews.children() == before


def test_closing_does_not_wait_for_what_is_in_hand() -> None:
    job = crews.job(Slow(), output="numpy", shard_count=1)
    with crews.crew(job) as crew:
        crew.submit(crews.tasks(job, 100, 100)[0])
        assert crews.wait_until(lambda: any(row["index"] == 61 for row in crew.in_flight()), 30)
        before = time.monotonic()
        crew.close()
        assert time.monotonic() - before < 2.0
    with pytest.raises(StoppedError, match="closed"):
        crew.receive(1.0)
    crew.close()


def test_ctrl_c_is_the_loaders_to_decide() -> None:
    process, pids = started(
        """
        try:
            while True:
                crew.receive(1.0)
        except KeyboardInterrupt:
            print("interrupted", len(crews.children()), crew.stats()["restarts"])
            crew.close()
        """,
        start_new_session=True,
    )
    time.sleep(0.2)  # so that it is in its loop; earlier would do as well
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "")
    assert stdout.split() == ["interrupted", "4", "0"]
    assert gone_within(pids, 2.0)


def test_in_a_forked_child_it_says_so_and_leaves_the_parents_alone() -> None:
    job = crews.job(list(range(64)), output="numpy")
    with crews.crew(job) as crew:
        todo = crews.tasks(job, 64, 8)
        first = crews.results(crew, todo[:4])
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for call in (lambda: crew.receive(1.0), lambda: crew.submit(todo[4]), lambda: crew.renew({}, None)):
                    with pytest.raises(StoppedError, match="forked child"):
                        call()
                crew.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        second = crews.results(crew, todo[4:])
        assert crew.stats()["restarts"] == 0
    assert crews.flat(result.value for result in first + second) == list(range(64))


def test_workers_leave_although_a_forked_child_has_copies_of_everything() -> None:
    job = crews.job(list(range(64)), output="numpy")
    before = crews.children()
    with crews.crew(job) as crew:
        crews.results(crew, crews.tasks(job, 64, 8))
        pids = [pid for pid in crews.children() if pid not in before]
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        try:
            assert crews.wait_until(lambda: not crew.in_flight())
            crew.rest()
            assert crews.wait_until(lambda: len([pid for pid in pids if is_there(pid)]) == 1)
            began = time.monotonic()
            crew.close()
            assert time.monotonic() - began < house._CLOSE_SECONDS
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


class Attended:
    """Has a process of its own beside it, which does not end before the worker does."""

    def __getitem__(self, index: int) -> int:
        multiprocessing.get_context("fork").Process(target=crews.outlast).start()
        return index


def test_workers_that_cannot_leave_do_not_stay_behind() -> None:
    job = crews.job(Attended(), output="numpy")
    before = crews.children()
    with crews.crew(job) as crew:
        crews.results(crew, crews.tasks(job, 2, 1))
        assert crews.wait_until(lambda: not crew.in_flight())
        pids = [pid for pid in crews.children() if pid not in before]
        assert len(pids) == 5
        crew.rest()
        assert crews.wait_until(lambda: len([pid for pid in pids if is_there(pid)]) == 1)


NESTED = f"""
    import multiprocessing, os, sys
    sys.path.insert(0, {HERE!r})
    import crews

    def train(queue):
        job = crews.job(list(range(32)), output="numpy")
        with crews.crew(job) as crew:
            queue.put(crews.flat(crews.values(crews.results(crew, crews.tasks(job, 32, 8)))))

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


def test_the_nursery_has_one_thread_whatever_it_imports() -> None:
    import pandas  # noqa: F401
    import torch  # noqa: F401
    import torchvision  # noqa: F401

    job = crews.job(list(range(16)))
    with crews.crew(job) as crew:
        crews.values(crews.results(crew, crews.tasks(job, 16, 8)))
        assert len(os.listdir(f"/proc/{crew._house.process.pid}/task")) == 1


def test_a_full_stderr_holds_up_nobody_but_its_writers() -> None:
    """Nobody reads the pipe: the crew goes on with what does not write to it."""
    program = f"""
        import sys
        sys.path.insert(0, {HERE!r})
        import crews
        from test_crew_life import Loud

        job = crews.job(Loud(), output="numpy")
        with crews.crew(job) as crew:
            todo = crews.tasks(job, 64, 8)
            for task in todo:
                crew.submit(task)
            quiet = [crew.receive(30) for _ in range(4)]
            print(sorted(result.number for result in quiet), flush=True)
    """
    process = subprocess.Popen(
        children.command(program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=children.environment()
    )
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
    job = crews.job(Told(), output="numpy", shard_count=1)
    with crews.crew(job) as crew:
        ((arguments, folders),) = crews.values(crews.results(crew, crews.tasks(job, 1, 1)))
    assert (int(arguments[0]), int(folders[0])) == (14_001, len(sys.path))


def test_a_crew_that_was_given_up_says_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = crews.job(list(range(32)), output="numpy")
    with monkeypatch.context() as broken:
        broken.setattr(nursery, "BOOT", "raise SystemExit(3)")
        with crews.crew(job) as crew:
            crew.submit(crews.tasks(job, 8, 8)[0])
            for _ in range(3):
                with pytest.raises(WorkerDiedError, match="left with exit status 3, 5 times in a row"):
                    crew.receive(30)
            broken.undo()
            # Another epoch begins anew, whatever was wrong may be over.
            crew.renew({}, None)
            assert crews.flat(crews.values(crews.results(crew, crews.tasks(job, 32, 8)))) == list(range(32))


class Around:
    """What a worker finds around it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return os.environ.get("FOREBAY_AROUND", "nothing"), os.getcwd(), sys.path[-1], sys.argv[-1]


def nurseries() -> list[int]:
    return [pid for pid in crews.children() if Path(f"/proc/{pid}/comm").read_text().strip() == "forebay-nursery"]


def test_workers_have_the_surroundings_of_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another interpreter: what is changed before every pass must not cost seconds."""

    def change(name: str) -> tuple[str, ...]:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("FOREBAY_AROUND", name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        monkeypatch.setattr(sys, "argv", ["train.py", name])
        return name, str(folder), str(folder), name

    loader = forebay.DataLoader(Around(), batch_size=None, num_workers=1)
    assert next(iter(loader))[0] == "nothing"
    before = nurseries()
    for name in ("one", "two"):
        expected = change(name)
        assert [tuple(sample) for sample in loader] == [expected]
    del loader
    gc.collect()
    expected = change("three")
    again = forebay.DataLoader(Around(), batch_size=None, num_workers=1)
    assert [tuple(sample) for sample in again] == [expected]
    monkeypatch.delenv("FOREBAY_AROUND")
    assert next(iter(again))[0] == "nothing"
    assert nurseries() == before
