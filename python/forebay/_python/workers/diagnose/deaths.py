"""Which sample caused the death of a worker: the one it was making, once two workers died with it."""

from dataclasses import replace

from forebay._python.workers.diagnose.post_mortem import Death
from forebay._python.workers.job import Incident, Job, Raised, Result, Task
from forebay._python.workers.process.inline import index_at
from forebay._python.workers.process.resources import ShardQueue
from forebay._python.workers.transport import status_page
from forebay.errors import WorkerDiedError

# A sample that was being made at that many deaths is given up.
_MAX_DEATHS = 2
# Deaths without a batch in between and without a sample to blame, before a shard is given up.
_MAX_FRUITLESS = 5
# In place of a position: all samples of a batch, which `__getitems__` makes in one call.
_ALL = -3


def attribute(
    queue: ShardQueue, current: tuple[int, ...], death: Death, job: Job | None, generation: int, is_many: bool
) -> Result | None:
    """Finds the sample that the worker of a shard was making, and gives it up if it was being made at an earlier death.

    The result is that of its batch, where the batch has to end with it.
    """
    stage, began_in, number, position = current[:4]
    is_at_work = stage in (status_page.WORKING, status_page.SENDING, status_page.WAITING) and began_in == generation
    task = queue.tasks[0] if queue.tasks else None
    if not is_at_work or task is None or task.number != number or job is None:
        _count_fruitless(queue, stage, death)
        return None
    is_many = is_many and not task.excluded and position >= 0
    key = number, _ALL if is_many else position
    deaths = queue.deaths.setdefault(key, [])
    deaths.append(death)
    if len(deaths) < _MAX_DEATHS:
        return None
    if is_many:
        # Which of them it is shows when each is asked for by itself.
        queue.tasks[0] = replace(task, excluded=frozenset((-1,)))
        return None
    may_do_without = job.on_error != "raise" and position >= 0 and not job.is_iterable
    if may_do_without and position not in task.excluded:
        queue.tasks[0] = replace(task, excluded=task.excluded | {position})
        queue.given_up[key] = list(deaths)
        deaths.clear()
        return None
    said = _incident(job, task, position, deaths, "raised")
    error = WorkerDiedError(
        said.message,
        path=said.path,
        index=said.index if isinstance(said.index, int) else None,
        stage=said.stage,
        attempts=said.attempts,
        elapsed_seconds=said.elapsed_seconds,
        hint=deaths[-1].hint(),
        detail=said.detail,
    )
    queue.tasks.popleft()
    text = said.detail or ""
    del queue.deaths[key]
    if job.is_iterable:
        queue.refusal = error, text  # what comes after it cannot be reached
    return Result(number, queue.shard, Raised(error, text, said.index, position), [said])


def explain(job: Job | None, queue: ShardQueue, task: Task, result: Result) -> None:
    """Says of samples that were given up how their workers died, and forgets what is settled."""
    if not queue.deaths and not queue.given_up:
        return
    for place, incident in enumerate(result.incidents):
        deaths = queue.given_up.get((task.number, incident.position))
        if deaths and incident.code == "worker_died":
            said = _incident(job, task, incident.position, deaths, incident.outcome)
            result.incidents[place] = replace(said, substitute=incident.substitute)
    for kept in (queue.deaths, queue.given_up):
        for key in [key for key in kept if key[0] == task.number]:
            del kept[key]


def _count_fruitless(queue: ShardQueue, stage: int, death: Death) -> None:
    queue.fruitless += 1
    if queue.fruitless < (_MAX_DEATHS if death.is_hang else _MAX_FRUITLESS):
        return
    doing = "while it started" if stage == status_page.STARTING else "between two batches"
    error = WorkerDiedError(
        f"worker {queue.shard} {death.how}, {doing}, {queue.fruitless} times in a row{_quoted(death)}",
        attempts=queue.fruitless,
        hint=death.hint(),
        detail=death.detail(),
    )
    queue.refusal = error, death.detail() or ""


def _quoted(death: Death) -> str:
    words = death.in_torchs_words()
    return f"; {words}" if words else ""


def _incident(job: Job | None, task: Task, position: int, deaths: list[Death], outcome: str) -> Incident:
    last = deaths[-1]
    index = None if job is None else index_at(job, task, position)
    if position < 0:
        what = f"making a batch of the samples of batch {task.number}"
    elif index is None:
        what = f"sample {position} of batch {task.number} of shard {task.shard}"
    else:
        what = f"sample {index!r}"
    ends = " and ".join(dict.fromkeys(death.how for death in deaths))
    message = f"{what} took down {len(deaths)} workers: worker {last.shard} (pid {last.pid}) {ends}{_quoted(last)}"
    stage = "assemble" if position < 0 else "transform"
    detail = max((death.detail() or "" for death in reversed(deaths)), key=lambda text: "stack" in text) or None
    path = next((death.path for death in reversed(deaths) if death.path), None)
    seconds = sum(death.seconds for death in deaths)
    return Incident(position, index, "worker_died", stage, message, detail, len(deaths), seconds, None, path, outcome)
