//! A stream of batches: the threads that make them, and the order they are made in.
//!
//! A stream continues over the ends of epochs, so that the first batches of the next epoch are ready when it is entered. Dropping
//! it stops its threads and joins all that return within a moment.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_core::{Epoch, EpochOrder, Error, Origin, Place, Plan, PlannedBatch, Rank, Result, SampleId, Step};

use crate::engine::work_queue::WorkQueue;
use crate::engine::{decode, fetch, watchdog};
use crate::sync::{Builder, JoinHandle, Mutex, MutexGuard, join_before};

/// Where the stream's batches come from.
pub(crate) enum Feed {
    /// The plan, epoch after epoch.
    Planned {
        plan: Plan,
        order: Arc<OnceLock<EpochOrder>>,
        rank: Rank,
        epoch: Epoch,
        origin: Origin,
        step: Step,
        skipped: Range<u64>,
    },
    /// Batches given from outside (a user's own sampler), until closed.
    Given { queue: VecDeque<PlannedBatch>, is_closed: bool, epoch: Epoch, end: Origin },
}

impl Feed {
    /// From `origin` on; the steps in `skipped` are left out of the first epoch.
    pub(crate) fn planned(plan: &Plan, rank: Rank, epoch: Epoch, origin: Origin, skipped: Range<u64>) -> Self {
        let step = origin.step;
        Self::Planned { plan: plan.clone(), order: Arc::default(), rank, epoch, origin, step, skipped }
    }

    pub(crate) fn given(epoch: Epoch, origin: Origin) -> Self {
        Self::Given { queue: VecDeque::new(), is_closed: false, epoch, end: origin }
    }

    /// Adds a batch to a user's own order.
    pub(crate) fn give(&mut self, samples: Vec<SampleId>) -> Result<()> {
        let Self::Given { queue, epoch, end, .. } = self else {
            return Err(Error::internal("a planned run takes no batches"));
        };
        let place = |(position, sample)| Place { position, sample, padded: false };
        let places: Vec<_> = (end.position..).zip(samples).map(place).collect();
        let step = end.step;
        *end = Origin { step: Step(step.0 + 1), position: end.position + places.len() as u64 };
        queue.push_back(PlannedBatch { epoch: *epoch, step, places, end_position: end.position });
        Ok(())
    }

    /// Ends a user's own order.
    pub(crate) fn close(&mut self) {
        if let Self::Given { is_closed, .. } = self {
            *is_closed = true;
        }
    }

    /// Whether the next batch is one of this epoch.
    pub(crate) fn is_in(&self, current: Epoch) -> bool {
        match self {
            Self::Planned { plan, epoch, origin, step, skipped, .. } => {
                let next = if skipped.contains(&step.0) { skipped.end } else { step.0 };
                *epoch == current && next < origin.step.0 + plan.steps_from(*origin)
            }
            Self::Given { .. } => true,
        }
    }

    /// No batch will ever come again.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Planned { plan, .. } => plan.steps() == 0,
            Self::Given { queue, is_closed, .. } => *is_closed && queue.is_empty(),
        }
    }
}

impl Feed {
    /// The next batch, whose samples [`Upcoming::plan`] computes.
    pub(crate) fn advance(&mut self) -> Option<Upcoming> {
        match self {
            Self::Planned { plan, order, rank, epoch, origin, step, skipped } => {
                if plan.steps() == 0 {
                    return None;
                }
                if skipped.contains(&step.0) {
                    step.0 = skipped.end;
                }
                if plan.batch_len(*origin, *step).is_none() {
                    *epoch = Epoch(epoch.0 + 1);
                    (*order, *origin, *step) = (Arc::default(), Origin::default(), Step(0));
                    *skipped = 0..0;
                }
                let len = plan.batch_len(*origin, *step)?;
                let order = Arc::clone(order);
                let next = Upcoming::Planned { order, rank: *rank, epoch: *epoch, origin: *origin, step: *step, len };
                step.0 += 1;
                Some(next)
            }
            Self::Given { queue, .. } => queue.pop_front().map(Upcoming::Given),
        }
    }
}

/// The next batch of a feed. Its samples, and the order of a new epoch, are computed without the lock of the work queue.
pub(crate) enum Upcoming {
    Planned { order: Arc<OnceLock<EpochOrder>>, rank: Rank, epoch: Epoch, origin: Origin, step: Step, len: u64 },
    Given(PlannedBatch),
}

impl Upcoming {
    /// How many samples it has.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Planned { len, .. } => *len,
            Self::Given(batch) => batch.places.len() as u64,
        }
    }

    /// Computes its samples.
    pub(crate) fn plan(self, plan: &Plan) -> PlannedBatch {
        match self {
            Self::Planned { order, rank, epoch, origin, step, .. } => {
                let order = order.get_or_init(|| plan.epoch_order(epoch));
                plan.batch_of(order, epoch, origin, step, rank).expect("a step with a length is in the plan")
            }
            Self::Given(batch) => batch,
        }
    }
}

/// A thread of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    Io(usize),
    Cpu(usize),
    Watchdog,
}

impl Worker {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Io(thread) => format!("forebay-io-{thread}"),
            Self::Cpu(thread) => format!("forebay-cpu-{thread}"),
            Self::Watchdog => "forebay-watch".to_owned(),
        }
    }
}

/// The running threads of a stream.
#[derive(Debug, Default)]
pub(crate) struct WorkerThreads(Mutex<Vec<(Worker, JoinHandle<()>)>>);

impl WorkerThreads {
    fn threads(&self) -> MutexGuard<'_, Vec<(Worker, JoinHandle<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that reads or decodes.
    pub(crate) fn start(&self, queue: &Arc<WorkQueue>, worker: Worker) -> Result<()> {
        let queue = Arc::clone(queue);
        self.spawn(worker, move || match worker {
            Worker::Io(thread) => fetch::run(&queue, thread),
            Worker::Cpu(thread) => decode::run(&queue, thread),
            Worker::Watchdog => {}
        })
    }

    fn spawn(&self, worker: Worker, task: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = Builder::new().name(worker.name()).spawn(task).map_err(|error| {
            Error::io("given a thread", error).with_hint(
                "the system refused another thread: lower `num_workers`, or raise `ulimit -u` and the cgroup's pids.max",
            )
        })?;
        self.threads().push((worker, thread));
        Ok(())
    }

    /// Joins the threads that are expected to end, until `deadline`. The others end by themselves.
    fn join(&self, deadline: Instant, is_ending: impl Fn(Worker) -> bool) {
        let threads = std::mem::take(&mut *self.threads());
        let (ending, others) = threads.into_iter().partition::<Vec<_>, _>(|(worker, _)| is_ending(*worker));
        self.threads().extend(others);
        for (_, thread) in ending {
            join_before(thread, deadline);
        }
    }
}

/// How long the end of a stream waits for reads and decodes in progress, from when it was stopped.
const GRACE: Duration = Duration::from_secs(1);
/// How long it waits for threads that are ending.
const JOIN_LIMIT: Duration = Duration::from_millis(300);

/// Running threads and their work queue.
pub(crate) struct Stream {
    pub(crate) queue: Arc<WorkQueue>,
    workers: Arc<WorkerThreads>,
    process: u32,
}

impl Stream {
    pub(crate) fn start(queue: Arc<WorkQueue>) -> Result<Self> {
        // Those already started are stopped and joined when `stream` is dropped by a `?`.
        let stream = Self { queue, workers: Arc::default(), process: std::process::id() };
        let (queue, process) = (Arc::downgrade(&stream.queue), stream.process);
        stream.queue.context.pool.when_returned(move || {
            // In a forked child the thread that held the lock may not exist, and no thread waits.
            if process == std::process::id()
                && let Some(queue) = queue.upgrade()
            {
                queue.buffer_is_back();
            }
        });
        let config = &stream.queue.context.config;
        let threads = (0..config.io_threads).map(Worker::Io).chain((0..config.cpu_threads).map(Worker::Cpu));
        for worker in threads {
            stream.workers.start(&stream.queue, worker)?;
        }
        let (queue, workers) = (Arc::clone(&stream.queue), Arc::clone(&stream.workers));
        stream.workers.spawn(Worker::Watchdog, move || watchdog::run(&queue, &workers))?;
        Ok(stream)
    }

    /// Threads do not survive a fork: the child has their memory, but none of them.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

/// Streams without a run: one that waits between two epochs, and those that were stopped and not joined.
#[derive(Default)]
pub(crate) struct IdleStreams {
    idle: Mutex<Option<(Stream, Epoch)>>,
    stopping: Mutex<Vec<Stream>>,
}

impl IdleStreams {
    /// Keeps a stream that prefetches the batches of the epoch `next`.
    pub(crate) fn keep(&self, stream: Stream, next: Epoch) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some((stream, next));
    }

    /// The stream that waits, with the epoch that it prefetches.
    pub(crate) fn take(&self) -> Option<(Stream, Epoch)> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stops a stream without waiting for the calls of its threads.
    pub(crate) fn dismiss(&self, stream: Stream) {
        if !stream.is_forked() {
            stream.queue.stop();
        }
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Waits for the threads of dismissed streams.
    pub(crate) fn join(&self) {
        drop(std::mem::take(&mut *self.stopping.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_forked() {
            // Another thread may have held a lock at the moment of the fork: touch nothing, join nothing.
            std::mem::forget(Arc::clone(&self.workers));
            return;
        }
        self.queue.stop();
        // A read stuck in the kernel cannot be cancelled, nor can a decoder or a user's transform: their threads are left
        // to end by themselves, and what they still write to is theirs alone.
        let stuck = self.queue.stuck(GRACE);
        let deadline = Instant::now() + JOIN_LIMIT;
        self.workers.join(deadline, |worker| worker == Worker::Watchdog); // from now on no thread is started
        self.workers.join(deadline, |worker| !stuck.contains(&worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{OrderKind, WorldSize};

    fn plan(len: u64, drop_last: bool) -> Plan {
        Plan { len, batch_size: 2, world_size: WorldSize(1), order: OrderKind::Global, drop_last, seed: 1 }
    }

    #[test]
    fn runs_on_into_the_next_epoch() {
        let plan = plan(5, false);
        let mut feed = Feed::planned(&plan, Rank(0), Epoch(3), Origin { step: Step(1), position: 2 }, 0..0);
        assert!(feed.is_in(Epoch(3)) && !feed.is_in(Epoch(4)));
        let mut next = || feed.advance().unwrap().plan(&plan);
        let steps = [(); 6].map(|()| next()).map(|batch| (batch.epoch.0, batch.step.0, batch.places.len()));
        assert_eq!(steps, [(3, 1, 2), (3, 2, 1), (4, 0, 2), (4, 1, 2), (4, 2, 1), (5, 0, 2)]);
        (0..2).for_each(|_| drop(next()));
        assert!(!feed.is_in(Epoch(5)), "the next one is the first of epoch 6");
    }

    #[test]
    fn a_plan_without_steps_is_closed() {
        let plan = plan(1, true);
        let mut feed = Feed::planned(&plan, Rank(0), Epoch(0), Origin::default(), 0..0);
        assert!(feed.is_closed() && feed.advance().is_none());
    }
}
