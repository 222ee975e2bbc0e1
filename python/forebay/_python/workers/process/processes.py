"""Worker processes under supervision: when one of them dies, another one makes its unfinished tasks again.

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

from forebay._options import limits
from forebay._python.workers.diagnose import deaths, post_mortem, worker_stats
from forebay._python.workers.diagnose.growth import growth_over
from forebay._python.workers.diagnose.post_mortem import Death
from forebay._python.workers.job import Job, Raised, Result, Task
from forebay._python.workers.process import fetch, fork_server, worker_loop
from forebay._python.workers.process.resources import Resources, ShardQueue, WorkerHandle
from forebay._python.workers.transport import serialisation, status_page
from forebay._python.workers.transport.messages import BrokenMessageError
from forebay.errors import StoppedError, WorkerDiedError

# Deaths of the fork server without a batch in between, before all workers are given up.
_MAX_FORK_SERVER_DEATHS = 5
# Between the dump of a stack and the end of its worker: the dump is written within microseconds; a deadline that passed
# while the machine slept is corrected.
_DUMP_SECONDS = 0.1
# After that a killed worker is written off: it is stuck in the kernel.
_KILL_SECONDS = 2.0
_LOOK_SECONDS = 0.1
# Between two attempts to have a worker where the kernel passes on no more descriptors.
_CROWDED_SECONDS = 0.02
# Of a control group's memory, the share of workers and loader by default.
_WORKERS_SHARE = 0.9


class ProcessWorkers:
    """One worker process for each shard, forked from a fork server that no thread has ever run in.

    `start` may be called again: new workers, the same fork server, so it takes milliseconds then.
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
        self._queues: dict[int, ShardQueue] = {}
        self._results: deque[Result] = deque()
        self._readable: deque[int] = deque()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poll = select.poll()
        self._fork_server_deaths = 0
        # Why nothing comes any more.
        self._failure: str | None = None
        self._counts = {"restarts": 0, "recycled": 0, "fork_server_restarts": 0}
        self._growth = worker_stats.Growths()
        self._is_many = False
        self._resources = Resources()
        self._closer = weakref.finalize(self, self._resources.close)

    # ── start and end ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, job: Job, shards: list[int], states: list[Any] | None) -> None:
        """Starts a worker for each shard, which resumes from its state if it has one."""
        self._check_owner()
        self.rest()  # first: two copies of a large dataset may be more than there is room for
        self._resources.take_job(job)
        self._job, self._output, self._changes = job, job.output, {}
        self._generation += 1
        self._is_many = fetch.many(job) is not None
        self._revive()
        self._queues = {
            shard: ShardQueue(shard, states[place] if states else None, last=(self._generation, -1))
            for place, shard in enumerate(shards)
        }
        for queue in self._queues.values():
            self._start_worker(queue)

    def renew(self, changes: Mapping[str, Any], states: list[Any] | None) -> None:
        """Begins another epoch with the same workers: the job with these fields changed."""
        self._check_owner()
        if self._job is None:
            raise AssertionError("renewed before it was started")
        self._job = replace(self._job, **changes)
        self._changes.update(changes)
        self._generation += 1
        self._results.clear()
        if self._resources.process is None:
            self._revive()
        for place, queue in enumerate(self._queues.values()):
            queue.tasks.clear()
            queue.deaths.clear()
            queue.given_up.clear()
            queue.sent = 0
            queue.last, queue.streams, queue.refusal = (self._generation, -1), None, None
            queue.state = states[place] if states else None
            if queue.worker is None:
                self._start_worker(queue)
                continue
            queue.worker.page.want_generation(self._generation)
            if queue.worker.hello is not None:
                self._dismiss(queue)
                self._start_worker(queue)
                continue
            told = serialisation.dumps((self._generation, dict(changes), queue.state))
            # It reads its messages between tasks, and hardly any are waiting: nothing holds this up but a stuck worker.
            if not self._tell(queue.worker, worker_loop.BEGIN, told):
                self._dismiss(queue)
                self._start_worker(queue)

    def settings(
        self, deadline_seconds: float | None, memory_budget: int | None, max_worker_memory: int | None
    ) -> None:
        """Takes the limits of the loader that it works for next."""
        self._deadline_seconds = deadline_seconds
        self._budget_bytes, self._max_worker_bytes = memory_budget, max_worker_memory
        self._counts = dict.fromkeys(self._counts, 0)
        self._growth.clear()

    def is_at_hand(self) -> bool:
        """Whether it belongs to this process, is open, and its fork server is alive."""
        server_process = self._resources.process
        is_ours = self._closer.alive and os.getpid() == self._resources.owner
        return is_ours and server_process is not None and server_process.poll() is None

    def rest(self) -> None:
        """Ends every worker and drops the job; keeps the fork server, so that another `start` takes milliseconds."""
        if not self._closer.alive or os.getpid() != self._resources.owner:
            return
        for queue in self._queues.values():
            self._dismiss(queue)
        self._queues.clear()
        self._results.clear()
        self._job = None
        self._resources.drop_job()

    def close(self) -> None:
        """Ends every worker. Further calls do nothing."""
        self._closer()
        self._job = None
        self._queues.clear()
        self._results.clear()
        self._readable.clear()
        self._by_fd.clear()

    def _check_owner(self) -> None:
        if os.getpid() != self._resources.owner:
            raise StoppedError(
                "the loader is used in a forked child of the process that made it: its workers are the parent's",
                hint="make a loader in the child, or start the child with another method than fork",
            )
        if not self._closer.alive:
            raise StoppedError("the loader is closed")

    # ── the fork server ──────────────────────────────────────────────────────────────────────────────────────────────

    def _revive(self) -> None:
        """Makes sure that there is a fork server that has the job, also after another one was given up."""
        self._failure, self._fork_server_deaths = None, 0
        if self._resources.process is None:
            self._open_fork_server()

    def prepare(self, output: str, *, is_early: bool = False) -> None:
        """Starts the fork server before there is a job, so that it has imported what every job needs by then.

        `is_early`: before this process itself has imported that.
        """
        self._output, self._is_early = output, is_early
        self._revive()

    def _open_fork_server(self) -> None:
        is_wanted = {name: self._output == "torch" or not name.startswith("torch") for name in fork_server.PRELOADED}
        is_known = {name: self._is_early or name in sys.modules for name in fork_server.PRELOADED}
        wanted = [name for name in fork_server.PRELOADED if is_known[name] and is_wanted[name]]
        self._poll.register(self._resources.open(wanted), select.POLLIN)

    def _start_worker(self, queue: ShardQueue) -> None:
        """Has a worker forked for a shard, and hands it what is unfinished there; where that has to wait, later."""
        new = self._resources.spawn(queue.shard)
        if new is None:
            return
        new.page.want_generation(self._generation)
        count = max(1, len(self._queues))
        hello = worker_loop.Hello(
            shard=queue.shard,
            generation=self._generation,
            last=queue.last[1],
            changes=self._changes,
            state=queue.state,
            streams=queue.streams,
            budget_bytes=limits.budget_bytes(self._budget_bytes) // count,
            max_memory_bytes=self._max_memory_bytes(count),
        )
        new.hello = serialisation.dumps(hello)
        queue.worker, queue.sent = new, 0
        self._by_fd[new.connection.fileno()] = new
        self._poll.register(new.connection.fileno(), select.POLLIN)
        self._send_tasks(queue)

    def _greet(self, new: WorkerHandle) -> bool:
        """Sends a worker its first message; `False` if it has to wait."""
        if new.hello is None:
            return True
        try:
            if new.connection.send(worker_loop.HELLO, [new.hello], is_patient=False):
                new.hello = None
        except (BrokenPipeError, ConnectionResetError):
            return False  # its death comes by the fork server
        return new.hello is None

    def _max_memory_bytes(self, count: int) -> int | None:
        if self._max_worker_bytes is not None:
            return self._max_worker_bytes
        limit = limits.memory_limit_bytes()
        return None if limit is None else int(limit * _WORKERS_SHARE) // (count + 1)

    def _dismiss(self, queue: ShardQueue) -> None:
        """Ends a worker whose results are not needed any more."""
        gone, queue.worker = queue.worker, None
        if gone is None:
            return
        if gone.page.current()[0] != status_page.IDLE:
            self._resources.tell(fork_server.KILL, serialisation.dumps((gone.key, int(signal.SIGKILL))))
        else:
            self._resources.tell(fork_server.LEAVE, serialisation.dumps(gone.key))
        self._forget(gone)

    def _forget(self, gone: WorkerHandle) -> None:
        self._mute(gone)
        if self._resources.workers.pop(gone.key, None) is not None:
            gone.close()

    def _mute(self, gone: WorkerHandle) -> None:
        fd = gone.connection.fileno()
        if self._by_fd.pop(fd, None) is not None:
            self._poll.unregister(fd)
            if fd in self._readable:
                self._readable.remove(fd)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, task: Task) -> None:
        """Hands out a task. Those of one shard are done in the order they were handed out."""
        self._check_owner()
        queue = self._queues[task.shard]
        queue.tasks.append(task)
        if queue.refusal is not None:
            self._refuse(queue)
        elif queue.sent == len(queue.tasks) - 1:
            self._send_tasks(queue)

    def _send_tasks(self, queue: ShardQueue) -> None:
        if queue.worker is None or not self._greet(queue.worker):
            return
        while queue.worker is not None and queue.sent < len(queue.tasks):
            task = queue.tasks[queue.sent]
            suspicion = sum(len(died) for (number, _), died in queue.deaths.items() if number == task.number)
            fields = (self._generation, suspicion, tuple(vars(task).values()))
            try:
                told = pickle.dumps(fields, 5)
            except (pickle.PicklingError, AttributeError, TypeError):
                told = serialisation.dumps(fields)
            if not self._tell(queue.worker, worker_loop.TASK, told):
                return
            queue.sent += 1

    def _tell(self, to: WorkerHandle, kind: int, content: bytes = b"") -> bool:
        """Sends a message, with what was taken and given back since the last one; `False` where it has to wait."""
        returns = to.tenancy.take_returns()
        head = worker_loop.back(self._generation, to.owed, returns)
        try:
            is_sent = to.connection.send(kind, [head, content], is_patient=False)
        except (BrokenPipeError, ConnectionResetError):
            return False  # its death comes by the fork server
        if is_sent:
            to.owed = 0
        else:
            to.tenancy.returns.extend(returns)
        return is_sent

    # ── what comes back ──────────────────────────────────────────────────────────────────────────────────────────────

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
            elif self._resources.connection is not None and fd == self._resources.connection.fileno():
                self._hear_fork_server()

    def delivered(self, result: Result) -> None:
        """Workers count what they sent by themselves."""

    def _settle_debts(self) -> bool:
        """Before a wait: sends what earlier had no room, to workers that may be waiting for it.

        `False` where a worker could not be begun with, which no message will remind us of.
        """
        is_settled = True
        for queue in self._queues.values():
            if queue.refusal is not None:
                continue
            if queue.worker is None:
                self._start_worker(queue)
            if (each := queue.worker) is None:
                is_settled = False
                continue
            if each.is_at_end:
                continue
            if queue.sent < len(queue.tasks) or each.hello is not None:
                self._send_tasks(queue)
            is_settled = is_settled and each.hello is None
            if each.owed or len(each.tenancy.returns) > 1:
                self._tell(each, worker_loop.BACK)
        return is_settled

    def _listen(self, source: WorkerHandle) -> None:
        """Takes one message of a worker."""
        try:
            message = source.connection.receive(is_patient=False)
        except EOFError:
            source.is_at_end = True
            self._mute(source)
            self._resources.tell(fork_server.KILL, serialisation.dumps((source.key, int(signal.SIGKILL))))
            source.killed = source.killed or time.monotonic()
            return
        except BrokenMessageError as error:
            self._distrust(source, error)
            return
        if message is None:
            return
        kind, content, fds = message
        if kind == worker_loop.RECYCLE:
            source.recycling, samples, grown_bytes, grown_fds, files = serialisation.loads(content)
            self._growth.note(source, *growth_over(samples, grown_bytes, grown_fds), files)
            # It sends nothing any more. The fork server ends it if it does not leave by itself.
            self._resources.tell(fork_server.LEAVE, serialisation.dumps(source.key))
            source.killed = time.monotonic() + fork_server.LEAVE_SECONDS
        elif kind == worker_loop.RESULT:
            self._take(source, content, fds)

    def _take(self, source: WorkerHandle, content: Any, fds: list[int]) -> None:
        queue = self._queues.get(source.shard)
        if content is None:
            # Its descriptors did not fit into this process: what they carried is made again, once there is room.
            if queue is not None and queue.worker is source:
                self._resources.tell(fork_server.KILL, serialisation.dumps((source.key, int(signal.SIGKILL))))
                source.recycling = "a batch could not be taken: this process has no descriptor left"
            return
        try:
            arrived = serialisation.Arrived(content, fds, source.tenancy)
        except BrokenMessageError as error:
            self._distrust(source, error)
            return
        if arrived.is_in_blocks:
            source.owed += 1
        is_wanted = queue is not None and queue.worker is source and arrived.generation == self._generation
        if queue is None or not is_wanted or not queue.tasks or queue.tasks[0].number != arrived.number:
            arrived.discard()
            return
        task = queue.tasks.popleft()
        queue.sent -= 1
        queue.last = (self._generation, task.number)
        queue.fruitless = self._fork_server_deaths = 0
        try:
            fields, kept = arrived.open()
            result = Result(*fields)
            if isinstance(result.value, Raised):
                result.value = replace(result.value, exception=result.value.exception.again())  # type: ignore[attr-defined]
            queue.state = kept
        except Exception as error:
            error.add_note(f"forebay: batch {task.number} came from its worker, but cannot be unpickled here")
            result = Result(task.number, task.shard, Raised(error, ""))
        deaths.explain(self._job, queue, task, result)
        self._results.append(result)
        if source.page.current()[0] == status_page.WAITING:
            self._tell(source, worker_loop.BACK)
        now = time.monotonic()
        if now - source.looked > _LOOK_SECONDS:
            source.looked = now
            self._growth.look(source)

    def _distrust(self, source: WorkerHandle, error: BrokenMessageError) -> None:
        """Ends a worker whose messages cannot be read: its memory is damaged, or code of the dataset's wrote there."""
        how = f"sent what cannot be read ({error}) and was killed"
        source.verdict = Death(source.shard, source.page.pid(), how, 0.0)
        source.killed = source.killed or time.monotonic()
        self._resources.tell(fork_server.KILL, serialisation.dumps((source.key, int(signal.SIGKILL))))

    # ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear_fork_server(self) -> None:
        if self._resources.connection is None:
            return
        try:
            message = self._resources.connection.receive(is_patient=False)
        except EOFError:
            self._replace_fork_server()
            return
        if message is None or message[1] is None:
            return
        key, pid, exit_code, tail = serialisation.loads(message[1])
        if (gone := self._resources.workers.get(key)) is not None:
            self._replace(gone, pid, exit_code, tail)

    def _drain(self, gone: WorkerHandle) -> None:
        """Receives what a worker sent before it ended."""
        while not gone.is_at_end:
            fd = gone.connection.fileno()
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(0):
                return  # another process still has its end
            self._listen(gone)

    def _replace(self, gone: WorkerHandle, pid: int, exit_code: int | None, tail: bytes) -> None:
        """Replaces a worker that ended."""
        self._drain(gone)
        queue = self._queues.get(gone.shard)
        current = gone.page.current()
        if queue is None or queue.worker is not gone:
            self._forget(gone)
            return
        queue.streams = gone.page.kept(*queue.last) or queue.streams
        death = gone.verdict or self._death(gone, pid, exit_code, current)
        death.stderr = post_mortem.last_lines(tail)
        self._forget(gone)
        queue.worker = None
        if gone.recycling is not None:
            self._counts["recycled"] += 1
        else:
            self._counts["restarts"] += 1
            said = deaths.attribute(queue, current, death, self._job, self._generation, self._is_many)
            if said is not None:
                self._results.append(said)
        if queue.refusal is None:
            self._start_worker(queue)
        else:
            self._refuse(queue)

    def _death(self, gone: WorkerHandle, pid: int, exit_code: int | None, current: tuple[int, ...]) -> Death:
        seconds = max(0.0, time.monotonic() - current[4] / 1e9) if current[4] else 0.0
        how = post_mortem.ending(exit_code) + post_mortem.hint(exit_code)
        stack = post_mortem.stack_of(_contents(gone.dump))
        return Death(gone.shard, pid, how, seconds, stack=stack, exit_code=exit_code)

    def _refuse(self, queue: ShardQueue) -> None:
        """Answers every task of a shard that cannot be worked on."""
        if queue.refusal is None:
            return
        error, text = queue.refusal
        while queue.tasks:
            task = queue.tasks.popleft()
            self._results.append(Result(task.number, task.shard, Raised(error, text)))

    def _replace_fork_server(self) -> None:
        """Starts another fork server: this one was killed, and its workers with it."""
        dead = self._resources.process
        if self._resources.connection is not None:
            self._poll.unregister(self._resources.connection.fileno())
            if self._resources.connection.fileno() in self._readable:
                self._readable.remove(self._resources.connection.fileno())
        self._resources.close_fork_server()
        self._fork_server_deaths += 1
        self._counts["fork_server_restarts"] += 1
        exit_code = None if dead is None else dead.returncode
        for queue in self._queues.values():
            if queue.worker is not None:
                self._drain(queue.worker)
                queue.streams = queue.worker.page.kept(*queue.last) or queue.streams
                self._forget(queue.worker)
                queue.worker = None
        if self._fork_server_deaths >= _MAX_FORK_SERVER_DEATHS:
            ending = f"{post_mortem.ending(exit_code)}, {self._fork_server_deaths} times in a row"
            self._failure = f"the process that workers are forked from {ending}"
            return
        self._open_fork_server()
        for queue in self._queues.values():
            if queue.refusal is None:
                self._start_worker(queue)

    # ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, now: float) -> float | None:
        """Ends workers that are past their deadline. Returns how long until the next check."""
        due: float | None = None
        for queue in self._queues.values():
            each = queue.worker
            if each is None:
                continue
            left: float | None = None
            if each.killed is not None:
                left = each.killed + _KILL_SECONDS - now
                if left <= 0:
                    self._replace(each, each.page.pid(), None, b"")
                    left = 0.0
            elif self._deadline_seconds is not None:
                left = self._left(queue, each, now)
            if left is not None:
                due = left if due is None else min(due, left)
        return due

    def _left(self, queue: ShardQueue, each: WorkerHandle, now: float) -> float | None:
        """Seconds until a worker has to be looked at again."""
        current = each.page.current()
        deadline = self._deadline_seconds
        is_at_work = current[0] == status_page.WORKING and current[1] == self._generation
        is_starting = current[0] == status_page.STARTING
        if deadline is None or not (is_at_work or is_starting):
            return deadline
        if is_starting:
            deadline = max(deadline, limits.DEADLINE_SECONDS)
        is_many = self._is_many and is_at_work and queue.tasks and not queue.tasks[0].excluded and current[3] == 0
        # The default is long enough for a whole batch.
        if is_many and deadline != limits.DEADLINE_SECONDS:
            deadline *= max(1, len(queue.tasks[0].indices))
        seconds = now - (current[4] / 1e9 or each.started)
        if seconds < deadline:
            return deadline - seconds
        if not each.page.pid():
            said = f"no worker could be started within {deadline:g} seconds"
            self._failure = f"{said}: the modules of the dataset are still being imported, or the machine is too busy"
            return 0.0
        held = current[2:5]
        if each.suspect is None or each.suspect[0] != held:
            each.suspect = held, now, os.fstat(each.dump).st_size
            self._resources.tell(fork_server.KILL, serialisation.dumps((each.key, int(worker_loop.STACK_SIGNAL))))
            return _DUMP_SECONDS
        if (left := each.suspect[1] + _DUMP_SECONDS - now) > 0:
            return left
        pid = each.page.pid()
        dump = _contents(each.dump)[each.suspect[2] :]
        if post_mortem.is_debugged(pid, dump):
            each.suspect = None
            return deadline
        files = post_mortem.regular_files(pid)
        limit = f"{deadline:g} seconds" if is_starting else f"deadline_seconds={self._deadline_seconds:g}"
        how = f"did not finish within {limit} and was killed"
        path = post_mortem.reading(pid) or (files[-1] if len(files) == 1 else None)
        shown = ", ".join(files[-8:])
        each.verdict = Death(each.shard, pid, how, seconds, post_mortem.stack_of(dump), "", path, shown, is_hang=True)
        each.killed = now
        self._resources.tell(fork_server.KILL, serialisation.dumps((each.key, int(signal.SIGKILL))))
        return _KILL_SECONDS

    # ── what is known ────────────────────────────────────────────────────────────────────────────────────────────────

    def in_flight(self) -> list[dict[str, Any]]:
        """The sample that each worker makes: shard, pid, number, index, since_seconds, stage."""
        return worker_stats.in_flight(list(self._queues.values()), self._job, self._generation)  # asked by any thread

    def stats(self) -> dict[str, Any]:
        """Counts since the start: restarts, recycled, and what is known of each worker."""
        workers = worker_stats.of_workers(list(self._queues.values()))  # asked by any thread
        return {"kind": "processes", **self._counts, "workers": workers, "growth": self._growth.found()}


def _contents(fd: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, 1 << 20), max(0, os.fstat(fd).st_size - (1 << 20)))


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000 + 0.999), 2**31 - 1)
