"""One pass over a loader: feeds a user's sampler into the run, takes batches out, and ends the run whatever happens."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from forebay._arrays import torch_arrays
from forebay._forebay import Batch, Run
from forebay._native.delivery import Delivery
from forebay._options.settings import Patience, whole
from forebay._record import notices
from forebay.errors import ConfigError, DeadlineError, StoppedError

# With so short a timeout, do not wait for the sample that a thread works on.
IMPATIENT = (KeyboardInterrupt, DeadlineError)

_END = object()


class Given:
    """A user's own order, read just far enough ahead: samplers may be endless."""

    def __init__(self, batches: Iterator[Any], ahead: int) -> None:
        self._batches = batches
        self._ahead = ahead
        self._given = 0
        self._is_over = False

    def feed(self, run: Run, received: int) -> None:
        while not self._is_over and self._given - received < self._ahead:
            batch = next(self._batches, _END)
            if batch is _END:
                self._is_over = True
                run.close_order()
                return
            if not isinstance(batch, Iterable):
                raise ConfigError(f"batch_sampler: expected batches of indices, got {batch!r}")
            run.give([whole("sampler", index) for index in batch])
            self._given += 1


class Coming:
    """A batch on its way to the user: made, and perhaps being copied to a device."""

    def __init__(self, batch: Batch, made: Any, copier: torch_arrays.Copier | None) -> None:
        self.batch = batch
        self._copier = copier
        self._event: Any = None
        self._made = made
        if copier is not None:
            self._made, self._event = copier.start(made)

    def finish(self) -> Any:
        return self._made if self._copier is None else self._copier.finish(self._made, self._event)


class Iteration(Iterator[Any]):
    """What `iter(loader)` gives.

    Dropped, it drops its run, which stops and joins the threads natively. There is no `__del__` on purpose: a Ctrl-C
    that Python notices inside one is swallowed. The loader is kept alive, because it is what closes everything at exit.

    Threads may share it: each batch goes to one of them, and the others wait. It may be closed meanwhile.
    """

    def __init__(
        self,
        run: Run,
        loader: object,
        delivery: Delivery,
        given: Given | None,
        patience: Patience,
        first_failure: notices.FirstFailure,
    ) -> None:
        # Of the thread that is in `next`, for as long as it is: what is taken is committed before the next one is.
        self._turn = threading.RLock()
        self._run: Run | None = run
        self._loader = loader
        self._delivery = delivery
        self._given = given
        self._patience = patience
        self._first_failure = first_failure
        self._received = 0
        self._ahead: Coming | BaseException | None = None
        # Its end, or the error that ended it, was told.
        self._is_over = False

    def __next__(self) -> Any:
        with self._turn:
            return self._next()

    def _next(self) -> Any:
        if (run := self._run) is None:
            if self._is_over:
                raise StopIteration
            # A loop would take it for the end of the epoch.
            raise StoppedError("the pass was closed before its end", hint="begin another one, or close it later")
        try:
            made = self._advance(run)
        except IMPATIENT:
            self._is_over = True
            self.abandon()
            raise
        except StopIteration as error:
            # The user's own code raised it, by mistake: a loop would take it for the end of the epoch.
            self._is_over = True
            self.close()
            raise RuntimeError("transform, loader, target_transform or collate_fn raised StopIteration") from error
        except BaseException:
            self._is_over = True
            self.close()
            raise
        if made is _END:
            self._is_over = True
            self.close()
            raise StopIteration
        return made

    def _advance(self, run: Run) -> Any:
        """The next batch, made for the user, or `_END`."""
        coming, self._ahead = self._ahead, None
        if isinstance(coming, BaseException):
            raise coming
        if coming is None and (coming := self._prepare(run, self._wait)) is None:
            return _END
        if self._delivery.copier is not None and run.is_more_planned():
            self._ahead = self._look_ahead(run)
        made = coming.finish()
        # The state counts what the user gets: nothing may fail between this line and the user's.
        run.commit(coming.batch)
        return made

    def _prepare(self, run: Run, get: Callable[[Run], Batch | Literal[False] | None]) -> Coming | None:
        """The batch to be delivered; `None` if there is none, or none yet."""
        while True:
            if self._given is not None:
                self._given.feed(run, self._received)
            batch = get(run)
            if batch is False:
                return None
            self._first_failure.look(batch)
            if batch is None:
                return None
            self._received += 1
            self._delivery.lend()
            if len(batch) > 0:
                return Coming(batch, self._delivery.hand_over(batch), self._delivery.copier)
            # All samples of a batch of the user's own were skipped: the next one has to be given first.
            run.commit(batch)

    def _look_ahead(self, run: Run) -> Coming | BaseException | None:
        """Begins the copy of the batch after the current one, if it is ready. Its errors are raised when it is its
        turn.
        """
        try:
            return self._prepare(run, lambda run: run.next(0.0))
        except Exception as error:
            return error

    def _wait(self, run: Run) -> Batch | None:
        """The next batch. A long wait is said in between, and ended where the user wants it ended."""
        waited = 0.0
        while (batch := run.next(self._patience.until_told(waited))) is False:
            waited += self._patience.until_told(waited)
            if waited >= self._patience.timeout_seconds:
                raise DeadlineError(
                    f"no batch within timeout={waited:g} seconds; in flight: {run.in_words()}",
                    stage="deliver",
                )
            notices.stalled(run.stall_in_words(waited))
            # Last: the ledger may lie on the very mount that hangs.
            run.note_stall(waited)
        return batch

    def in_flight(self) -> list[dict[str, Any]]:
        """Samples that the threads of this pass work on, longest first."""
        return [] if (run := self._run) is None else run.in_flight()

    def abandon(self) -> None:
        """Stops the threads of this pass without waiting for them: the loader does, when it is closed."""
        run, self._run, self._ahead = self._run, None, None
        if run is not None:
            run.abandon()

    def close(self) -> None:
        """Stops the threads of this pass and waits for them. Further calls do nothing."""
        run, self._run, self._ahead = self._run, None, None
        if run is not None:
            run.close()
