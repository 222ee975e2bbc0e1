"""Workers that are processes, under supervision: what one of them had in hand when it died is made again by another.

There is no thread of the supervisor's. Everything happens inside `receive`: results, deaths, deadlines. What dies while
the consumer computes is noticed at its next call, and what was prefetched covers it.
"""

import os
import pickle
import select
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay._workers import autopsy, deaths, fetch, figures, limits, nursery, parcel, slate, worker
from forebay._workers.autopsy import Death
from forebay._workers.growth import growth_over
from forebay._workers.house import Hired, House, Seat
from forebay._workers.job import Job, Raised, Result, Task
from forebay._workers.wire import BrokenMessageError
from forebay.errors import StoppedError, WorkerDiedError

# Deaths of the nursery without a batch in between, before the crew is given up.
_MAX_NURSERY_DEATHS = 5
# Between the dump of a stack and the end of its worker: the dump is written within microseconds, a look that was
# taken after the machine had slept is corrected.
_DUMP_SECONDS = 0.1
# After that a killed worker is written off: it is stuck in the kernel.
_KILL_SECONDS = 2.0
_LOOK_SECONDS = 0.1
# Between two attempts to have a worker where the kernel passes on no more descriptors.
_CROWDED_SECONDS = 0.02
# Of a control group's memory, what workers and loader share if nobody says otherwise.
_WORKERS_SHARE = 0.9


class ProcessCrew:
    """One worker process for each shard, forked from a nursery that no thread has ever run in.

    `start` may be called again: new workers, the same nursery, so it takes milliseconds then.
    """

    def __init__(
        self,
        deadline_seconds: float | None = None,
        memory_budget: int | None = None,
        max_worker_memory: int | None = None,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._budget_bytes = memory_budget
        self._max_worker_bytes = max_worker_memory
        self._job: Job | None = None
        self._output, self._is_early = "numpy", False
        self._changes: dict[str, Any] = {}
        self._generation = 0
        self._seats: dict[int, Seat] = {}
        self._results: deque[Result] = deque()
        self._readable: deque[int] = deque()
        self._by_fd: dict[int, Hired] = {}
        self._poll = select.poll()
        self._nursery_deaths = 0
        # Why nothing comes any more.
        self._failure: str | None = None
        self._counts = {"restarts": 0, "recycled": 0, "nursery_restarts": 0}
        self._growth = figures.Growths()
        self._is_many = False
        self._house = House()
        self._closer = weakref.finalize(self, self._house.close)

    # ── the life of the crew ────────────────────────────────────────────────────────────────────────────────────────

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        """Starts a worker for each shard, which goes on from its state if it has one."""
        self._check_owner()
        self.rest()  # first: two copies of a large dataset may be more than there is room for
        self._house.take_job(job)
        self._job, self._output, self._changes = job, job.output, {}
        self._generation += 1
        self._is_many = fetch.many(job) is not None
        self._revive()
        self._seats = {
            shard: Seat(shard, states[place] if states else None, last=(self._generation, -1))
            for place, shard in enumerate(shards)
        }
        for seat in self._seats.values():
            self._hire(seat)

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        """Begins another epoch with the same workers: the job with these fields changed."""
        self._check_owner()
        if self._job is None:
            raise AssertionError("renewed before it was started")
        self._job = replace(self._job, **changes)
        self._changes.update(changes)
        self._generation += 1
        self._results.clear()
        if self._house.process is None:
            self._revive()
        for place, seat in enumerate(self._seats.values()):
            seat.tasks.clear()
            seat.deaths.clear()
            seat.given_up.clear()
            seat.sent = 0
            seat.last, seat.streams, seat.refusal = (self._generation, -1), None, None
            seat.state = states[place] if states else None
            if seat.worker is None:
                self._hire(seat)
                continue
            seat.worker.board.want_generation(self._generation)
            if seat.worker.hello is not None:
                self._dismiss(seat)
                self._hire(seat)
                continue
            told = parcel.dumps((self._generation, dict(changes), seat.state))
            # It reads its messages between tasks, and hardly any are waiting: nothing holds this up but a stuck worker.
            if not self._tell(seat.worker, worker.BEGIN, told):
                self._dismiss(seat)
                self._hire(seat)

    def settings(
        self, deadline_seconds: float | None, memory_budget: int | None, max_worker_memory: int | None
    ) -> None:
        """Takes the limits of the loader that it works for next."""
        self._deadline_seconds = deadline_seconds
        self._budget_bytes, self._max_worker_bytes = memory_budget, max_worker_memory
        self._counts = dict.fromkeys(self._counts, 0)
        self._growth.clear()

    def is_at_hand(self) -> bool:
        """Whether it is this process's, open, and its nursery alive."""
        nursery_process = self._house.process
        is_ours = self._closer.alive and os.getpid() == self._house.owner
        return is_ours and nursery_process is not None and nursery_process.poll() is None

    def rest(self) -> None:
        """Ends every worker and keeps the nursery, so that another `start` takes milliseconds; of the job nothing."""
        if not self._closer.alive or os.getpid() != self._house.owner:
            return
        for seat in self._seats.values():
            self._dismiss(seat)
        self._seats.clear()
        self._results.clear()
        self._job = None
        self._house.drop_job()

    def close(self) -> None:
        """Ends every worker. Further calls do nothing."""
        self._closer()
        self._job = None
        self._seats.clear()
        self._results.clear()
        self._readable.clear()
        self._by_fd.clear()

    def _check_owner(self) -> None:
        if os.getpid() != self._house.owner:
            raise StoppedError(
                "the loader is used in a forked child of the process that made it: its workers are the parent's",
                hint="make a loader in the child, or start the child with another method than fork",
            )
        if not self._closer.alive:
            raise StoppedError("the loader is closed")

    # ── the nursery ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _revive(self) -> None:
        """Has a nursery that knows the job, also after another one was given up."""
        self._failure, self._nursery_deaths = None, 0
        if self._house.process is None:
            self._open_nursery()

    def prepare(self, output: str, *, is_early: bool = False) -> None:
        """Starts the nursery before there is a job, so that it has imported what every job needs by then.

        `is_early`: before this process itself has imported that.
        """
        self._output, self._is_early = output, is_early
        self._revive()

    def _open_nursery(self) -> None:
        is_wanted = {name: self._output == "torch" or not name.startswith("torch") for name in nursery.PRELOADED}
        is_known = {name: self._is_early or name in sys.modules for name in nursery.PRELOADED}
        wanted = [name for name in nursery.PRELOADED if is_known[name] and is_wanted[name]]
        self._poll.register(self._house.open(wanted), select.POLLIN)

    def _hire(self, seat: Seat) -> None:
        """Has a worker forked for a shard, and hands it what is unfinished there; where that has to wait, later."""
        new = self._house.spawn(seat.shard)
        if new is None:
            return
        new.board.want_generation(self._generation)
        count = max(1, len(self._seats))
        hello = worker.Hello(
            shard=seat.shard,
            generation=self._generation,
            last=seat.last[1],
            changes=self._changes,
            state=seat.state,
            streams=seat.streams,
            budget_bytes=limits.budget_bytes(self._budget_bytes) // count,
            max_memory_bytes=self._max_memory_bytes(count),
        )
        new.hello = parcel.dumps(hello)
        seat.worker, seat.sent = new, 0
        self._by_fd[new.wire.fileno()] = new
        self._poll.register(new.wire.fileno(), select.POLLIN)
        self._send_tasks(seat)

    def _greet(self, new: Hired) -> bool:
        """Tells a worker what it is told first; `False` where it has to wait."""
        if new.hello is None:
            return True
        try:
            if new.wire.send(worker.HELLO, [new.hello], is_patient=False):
                new.hello = None
        except (BrokenPipeError, ConnectionResetError):
            return False  # its death comes by the nursery
        return new.hello is None

    def _max_memory_bytes(self, count: int) -> int | None:
        if self._max_worker_bytes is not None:
            return self._max_worker_bytes
        limit = limits.memory_limit_bytes()
        return None if limit is None else int(limit * _WORKERS_SHARE) // (count + 1)

    def _dismiss(self, seat: Seat) -> None:
        """Lets a worker go whose results nobody wants."""
        gone, seat.worker = seat.worker, None
        if gone is None:
            return
        if gone.board.hand()[0] != slate.IDLE:
            self._house.tell(nursery.KILL, parcel.dumps((gone.key, int(signal.SIGKILL))))
        else:
            self._house.tell(nursery.LEAVE, parcel.dumps(gone.key))
        self._forget(gone)

    def _forget(self, gone: Hired) -> None:
        self._mute(gone)
        if self._house.workers.pop(gone.key, None) is not None:
            gone.close()

    def _mute(self, gone: Hired) -> None:
        fd = gone.wire.fileno()
        if self._by_fd.pop(fd, None) is not None:
            self._poll.unregister(fd)
            if fd in self._readable:
                self._readable.remove(fd)

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, task: Task) -> None:
        """Hands out a task. Those of one shard are done in the order they were handed out."""
        self._check_owner()
        seat = self._seats[task.shard]
        seat.tasks.append(task)
        if seat.refusal is not None:
            self._refuse(seat)
        elif seat.sent == len(seat.tasks) - 1:
            self._send_tasks(seat)

    def _send_tasks(self, seat: Seat) -> None:
        if seat.worker is None or not self._greet(seat.worker):
            return
        while seat.worker is not None and seat.sent < len(seat.tasks):
            task = seat.tasks[seat.sent]
            suspicion = sum(len(died) for (number, _), died in seat.deaths.items() if number == task.number)
            fields = (self._generation, suspicion, tuple(vars(task).values()))
            try:
                told = pickle.dumps(fields, 5)
            except (pickle.PicklingError, AttributeError, TypeError):
                told = parcel.dumps(fields)
            if not self._tell(seat.worker, worker.TASK, told):
                return
            seat.sent += 1

    def _tell(self, to: Hired, kind: int, content: bytes = b"") -> bool:
        """Sends a message, with what was taken and given back since the last one; `False` where it has to wait."""
        returns = to.tenancy.take_returns()
        head = worker.back(self._generation, to.owed, returns)
        try:
            is_sent = to.wire.send(kind, [head, content], is_patient=False)
        except (BrokenPipeError, ConnectionResetError):
            return False  # its death comes by the nursery
        if is_sent:
            to.owed = 0
        else:
            to.tenancy.returns.extend(returns)
        return is_sent

    # ── what comes back ─────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, timeout_seconds: float) -> Result | None:
        """A result, in any order; `None` if there is none within the time."""
        self._check_owner()
        until = time.monotonic() + timeout_seconds
        while True:
            if self._results:
                return self._results.popleft()
            if self._failure is not None:
                raise WorkerDiedError(self._failure, hint="what it wrote to stderr says why")
            if not self._readable:
                now = time.monotonic()
                wait = max(0.0, until - now)
                due = self._watch(now)
                if not self._settle_debts():
                    due = _CROWDED_SECONDS if due is None else min(due, _CROWDED_SECONDS)
                patience = wait if due is None else min(wait, due)
                self._readable.extend(fd for fd, _ in self._poll.poll(_milliseconds(patience)))
                if not self._readable:
                    if time.monotonic() >= until:
                        return None
                    continue
            fd = self._readable.popleft()
            if (source := self._by_fd.get(fd)) is not None:
                self._listen(source)
            elif self._house.wire is not None and fd == self._house.wire.fileno():
                self._hear_nursery()

    def delivered(self, result: Result) -> None:
        """Workers count what they sent by themselves."""

    def _settle_debts(self) -> bool:
        """Before a wait: workers may be waiting for room that is there already, or for tasks that had no room.

        `False` where a worker could not be begun with, which no message will remind us of.
        """
        is_settled = True
        for seat in self._seats.values():
            if seat.refusal is not None:
                continue
            if seat.worker is None:
                self._hire(seat)
            if (each := seat.worker) is None:
                is_settled = False
                continue
            if each.is_at_end:
                continue
            if seat.sent < len(seat.tasks) or each.hello is not None:
                self._send_tasks(seat)
            is_settled = is_settled and each.hello is None
            if each.owed or len(each.tenancy.returns) > 1:
                self._tell(each, worker.BACK)
        return is_settled

    def _listen(self, source: Hired) -> None:
        """Takes one message of a worker."""
        try:
            message = source.wire.receive(is_patient=False)
        except EOFError:
            source.is_at_end = True
            self._mute(source)
            self._house.tell(nursery.KILL, parcel.dumps((source.key, int(signal.SIGKILL))))
            source.killed = source.killed or time.monotonic()
            return
        except BrokenMessageError as error:
            self._distrust(source, error)
            return
        if message is None:
            return
        kind, content, fds = message
        if kind == worker.RECYCLE:
            source.recycling, samples, grown_bytes, grown_fds, files = parcel.loads(content)
            self._growth.note(source, *growth_over(samples, grown_bytes, grown_fds), files)
            # It sends nothing any more. The nursery ends it if it does not leave by itself.
            self._house.tell(nursery.LEAVE, parcel.dumps(source.key))
            source.killed = time.monotonic() + nursery.LEAVE_SECONDS
        elif kind == worker.RESULT:
            self._take(source, content, fds)

    def _take(self, source: Hired, content: Any, fds: list[int]) -> None:
        seat = self._seats.get(source.shard)
        if content is None:
            # Its descriptors did not fit into this process: what they carried is made again, once there is room.
            if seat is not None and seat.worker is source:
                self._house.tell(nursery.KILL, parcel.dumps((source.key, int(signal.SIGKILL))))
                source.recycling = "a batch could not be taken: this process has no descriptor left"
            return
        try:
            arrived = parcel.Arrived(content, fds, source.tenancy)
        except BrokenMessageError as error:
            self._distrust(source, error)
            return
        if arrived.is_in_blocks:
            source.owed += 1
        is_wanted = seat is not None and seat.worker is source and arrived.generation == self._generation
        if seat is None or not is_wanted or not seat.tasks or seat.tasks[0].number != arrived.number:
            arrived.discard()
            return
        task = seat.tasks.popleft()
        seat.sent -= 1
        seat.last = (self._generation, task.number)
        seat.fruitless = self._nursery_deaths = 0
        try:
            fields, kept = arrived.open()
            result = Result(*fields)
            if isinstance(result.value, Raised):
                result.value = replace(result.value, exception=result.value.exception.again())  # type: ignore[attr-defined]
            seat.state = kept
        except Exception as error:
            error.add_note(f"forebay: batch {task.number} came from its worker, but cannot be unpickled here")
            result = Result(task.number, task.shard, Raised(error, ""))
        deaths.explain(self._job, seat, task, result)
        self._results.append(result)
        if source.board.hand()[0] == slate.WAITING:
            self._tell(source, worker.BACK)
        now = time.monotonic()
        if now - source.looked > _LOOK_SECONDS:
            source.looked = now
            self._growth.look(source)

    def _distrust(self, source: Hired, error: BrokenMessageError) -> None:
        """Ends a worker whose messages cannot be read: its memory is damaged, or code of the dataset's wrote there."""
        how = f"sent what cannot be read ({error}) and was killed"
        source.verdict = Death(source.shard, source.board.pid(), how, 0.0)
        source.killed = source.killed or time.monotonic()
        self._house.tell(nursery.KILL, parcel.dumps((source.key, int(signal.SIGKILL))))

    # ── deaths ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear_nursery(self) -> None:
        if self._house.wire is None:
            return
        try:
            message = self._house.wire.receive(is_patient=False)
        except EOFError:
            self._replace_nursery()
            return
        if message is None or message[1] is None:
            return
        key, pid, exit_code, tail = parcel.loads(message[1])
        if (gone := self._house.workers.get(key)) is not None:
            self._replace(gone, pid, exit_code, tail)

    def _drain(self, gone: Hired) -> None:
        """Takes what a worker had sent before it ended."""
        while not gone.is_at_end:
            fd = gone.wire.fileno()
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(0):
                return  # somebody else still has its end
            self._listen(gone)

    def _replace(self, gone: Hired, pid: int, exit_code: int | None, tail: bytes) -> None:
        """Puts another worker in the place of one that ended."""
        self._drain(gone)
        seat = self._seats.get(gone.shard)
        hand = gone.board.hand()
        if seat is None or seat.worker is not gone:
            self._forget(gone)
            return
        seat.streams = gone.board.kept(*seat.last) or seat.streams
        death = gone.verdict or self._death(gone, pid, exit_code, hand)
        death.stderr = autopsy.last_lines(tail)
        self._forget(gone)
        seat.worker = None
        if gone.recycling is not None:
            self._counts["recycled"] += 1
        else:
            self._counts["restarts"] += 1
            said = deaths.blame(seat, hand, death, self._job, self._generation, self._is_many)
            if said is not None:
                self._results.append(said)
        if seat.refusal is None:
            self._hire(seat)
        else:
            self._refuse(seat)

    def _death(self, gone: Hired, pid: int, exit_code: int | None, hand: tuple[int, ...]) -> Death:
        seconds = max(0.0, time.monotonic() - hand[4] / 1e9) if hand[4] else 0.0
        how = autopsy.ending(exit_code) + autopsy.hint(exit_code)
        stack = autopsy.stack_of(_contents(gone.dump))
        return Death(gone.shard, pid, how, seconds, stack=stack, exit_code=exit_code)

    def _refuse(self, seat: Seat) -> None:
        """Answers every task of a shard that cannot be worked on."""
        if seat.refusal is None:
            return
        error, text = seat.refusal
        while seat.tasks:
            task = seat.tasks.popleft()
            self._results.append(Result(task.number, task.shard, Raised(error, text)))

    def _replace_nursery(self) -> None:
        """Begins anew with another nursery: somebody ended this one, and its workers with it."""
        dead = self._house.process
        if self._house.wire is not None:
            self._poll.unregister(self._house.wire.fileno())
            if self._house.wire.fileno() in self._readable:
                self._readable.remove(self._house.wire.fileno())
        self._house.close_nursery()
        self._nursery_deaths += 1
        self._counts["nursery_restarts"] += 1
        exit_code = None if dead is None else dead.returncode
        for seat in self._seats.values():
            if seat.worker is not None:
                self._drain(seat.worker)
                seat.streams = seat.worker.board.kept(*seat.last) or seat.streams
                self._forget(seat.worker)
                seat.worker = None
        if self._nursery_deaths >= _MAX_NURSERY_DEATHS:
            ending = f"{autopsy.ending(exit_code)}, {self._nursery_deaths} times in a row"
            self._failure = f"the process that workers are forked from {ending}"
            return
        self._open_nursery()
        for seat in self._seats.values():
            if seat.refusal is None:
                self._hire(seat)

    # ── deadlines ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, now: float) -> float | None:
        """Ends workers that are past their deadline; gives how long nothing has to be looked at."""
        due: float | None = None
        for seat in self._seats.values():
            each = seat.worker
            if each is None:
                continue
            left: float | None = None
            if each.killed is not None:
                left = each.killed + _KILL_SECONDS - now
                if left <= 0:
                    self._replace(each, each.board.pid(), None, b"")
                    left = 0.0
            elif self._deadline_seconds is not None:
                left = self._left(seat, each, now)
            if left is not None:
                due = left if due is None else min(due, left)
        return due

    def _left(self, seat: Seat, each: Hired, now: float) -> float | None:
        """Seconds until a worker has to be looked at again."""
        hand = each.board.hand()
        deadline = self._deadline_seconds
        is_at_work = hand[0] == slate.WORKING and hand[1] == self._generation
        is_starting = hand[0] == slate.STARTING
        if deadline is None or not (is_at_work or is_starting):
            return deadline
        if is_starting:
            deadline = max(deadline, limits.DEADLINE_SECONDS)
        is_many = self._is_many and is_at_work and seat.tasks and not seat.tasks[0].excluded and hand[3] == 0
        # The default is long enough for a whole batch.
        if is_many and deadline != limits.DEADLINE_SECONDS:
            deadline *= max(1, len(seat.tasks[0].indices))
        seconds = now - (hand[4] / 1e9 or each.hired)
        if seconds < deadline:
            return deadline - seconds
        if not each.board.pid():
            said = f"no worker could be started within {deadline:g} seconds"
            self._failure = f"{said}: the modules of the dataset are still being imported, or the machine is too busy"
            return 0.0
        held = hand[2:5]
        if each.suspect is None or each.suspect[0] != held:
            each.suspect = held, now, os.fstat(each.dump).st_size
            self._house.tell(nursery.KILL, parcel.dumps((each.key, int(worker.STACK_SIGNAL))))
            return _DUMP_SECONDS
        if (left := each.suspect[1] + _DUMP_SECONDS - now) > 0:
            return left
        pid = each.board.pid()
        dump = _contents(each.dump)[each.suspect[2] :]
        if autopsy.is_debugged(pid, dump):
            each.suspect = None
            return deadline
        files = autopsy.regular_files(pid)
        limit = f"{deadline:g} seconds" if is_starting else f"deadline_seconds={self._deadline_seconds:g}"
        how = f"did not finish within {limit} and was killed"
        path = autopsy.reading(pid) or (files[-1] if len(files) == 1 else None)
        shown = ", ".join(files[-8:])
        each.verdict = Death(each.shard, pid, how, seconds, autopsy.stack_of(dump), "", path, shown, is_hang=True)
        each.killed = now
        self._house.tell(nursery.KILL, parcel.dumps((each.key, int(signal.SIGKILL))))
        return _KILL_SECONDS

    # ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────

    def in_flight(self) -> list[dict[str, Any]]:
        """What each worker has in hand: shard, pid, number, index, since_seconds, stage."""
        return figures.in_flight(list(self._seats.values()), self._job, self._generation)  # asked by any thread

    def stats(self) -> dict[str, Any]:
        """Counts since the start: restarts, recycled, and what is known of each worker."""
        workers = figures.of_workers(list(self._seats.values()))  # asked by any thread
        return {"kind": "processes", **self._counts, "workers": workers, "growth": self._growth.found()}


def _contents(fd: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, 1 << 20), max(0, os.fstat(fd).st_size - (1 << 20)))


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000 + 0.999), 2**31 - 1)
