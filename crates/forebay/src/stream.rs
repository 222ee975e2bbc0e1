//! A stream of batches: the threads that make them, and the order they are made in.
//!
//! A stream runs on over the ends of epochs, so that the first batches of the next are ready when the loop is
//! entered again. Dropping it stops its threads and joins all that come back within a moment.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forebay_core::{Batch, Epoch, Error, Order, Origin, Place, Plan, Rank, Result, SampleId, Step};

use crate::schedule::Shared;
use crate::sync::{Builder, JoinHandle, Mutex, MutexGuard, join_before};
use crate::{decode, fetch, overdue};

/// Where the stream's batches come from.
pub(crate) enum Feed {
    /// The plan, epoch after epoch.
    Planned { plan: Plan, order: Order, rank: Rank, epoch: Epoch, origin: Origin, step: Step, skipped: Range<u64> },
    /// Batches given from outside (a user's own sampler), until closed.
    Given { queue: VecDeque<Batch>, is_closed: bool, epoch: Epoch, end: Origin },
}

impl Feed {
    /// From `origin` on; the steps in `skipped` are left out of the first epoch.
    pub(crate) fn planned(plan: &Plan, rank: Rank, epoch: Epoch, origin: Origin, skipped: Range<u64>) -> Self {
        let (order, step) = (plan.order(epoch), origin.step);
        Self::Planned { plan: plan.clone(), order, rank, epoch, origin, step, skipped }
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
        queue.push_back(Batch { epoch: *epoch, step, places, end_position: end.position });
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

impl Iterator for Feed {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        match self {
            Self::Planned { plan, order, rank, epoch, origin, step, skipped } => {
                if plan.steps() == 0 {
                    return None;
                }
                if skipped.contains(&step.0) {
                    step.0 = skipped.end;
                }
                if let Some(batch) = plan.batch_of(order, *epoch, *origin, *step, *rank) {
                    step.0 += 1;
                    return Some(batch);
                }
                *epoch = Epoch(epoch.0 + 1);
                (*order, *origin, *step) = (plan.order(*epoch), Origin::default(), Step(1));
                *skipped = 0..0;
                plan.batch_of(order, *epoch, *origin, Step(0), *rank)
            }
            Self::Given { queue, .. } => queue.pop_front(),
        }
    }
}

/// Who works for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    Io(usize),
    Cpu(usize),
    Watch,
}

impl Worker {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Io(seat) => format!("forebay-io-{seat}"),
            Self::Cpu(cpu) => format!("forebay-cpu-{cpu}"),
            Self::Watch => "forebay-watch".to_owned(),
        }
    }
}

/// The threads of a stream.
#[derive(Debug, Default)]
pub(crate) struct Crew(Mutex<Vec<(Worker, JoinHandle<()>)>>);

impl Crew {
    fn threads(&self) -> MutexGuard<'_, Vec<(Worker, JoinHandle<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that reads or decodes.
    pub(crate) fn start(&self, shared: &Arc<Shared>, worker: Worker) -> Result<()> {
        let shared = Arc::clone(shared);
        self.spawn(worker, move || match worker {
            Worker::Io(seat) => fetch::run(&shared, seat),
            Worker::Cpu(cpu) => decode::run(&shared, cpu),
            Worker::Watch => {}
        })
    }

    fn spawn(&self, worker: Worker, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = Builder::new().name(worker.name()).spawn(work).map_err(|error| {
            Error::io("given a thread", error).with_hint(
                "the system refused another thread: lower `num_workers`, or raise `ulimit -u` and the cgroup's pids.max",
            )
        })?;
        self.threads().push((worker, thread));
        Ok(())
    }

    /// Waits for those that `is_coming` says will end, until `deadline`. The others, and those that did not, are left
    /// alone: they end by themselves.
    fn join(&self, deadline: Instant, is_coming: impl Fn(Worker) -> bool) {
        let threads = std::mem::take(&mut *self.threads());
        let (coming, others) = threads.into_iter().partition::<Vec<_>, _>(|(worker, _)| is_coming(*worker));
        self.threads().extend(others);
        for (_, thread) in coming {
            join_before(thread, deadline);
        }
    }
}

/// How long the end of a stream waits for reads and decodes that are under way, from when it was stopped.
const GRACE: Duration = Duration::from_secs(1);
/// How long it waits for threads that are on their way out.
const JOIN_LIMIT: Duration = Duration::from_millis(300);

/// Running threads and what they share.
pub(crate) struct Stream {
    pub(crate) shared: Arc<Shared>,
    crew: Arc<Crew>,
    process: u32,
}

impl Stream {
    pub(crate) fn start(shared: Shared) -> Result<Self> {
        // Those already started are stopped and joined when `stream` is dropped by a `?`.
        let stream = Self { shared: Arc::new(shared), crew: Arc::default(), process: std::process::id() };
        let (shared, process) = (Arc::downgrade(&stream.shared), stream.process);
        stream.shared.pool.when_returned(move || {
            // In a forked child whoever had the desk may be gone with it, and nobody waits.
            if process == std::process::id()
                && let Some(shared) = shared.upgrade()
            {
                shared.buffer_is_back();
            }
        });
        let config = &stream.shared.config;
        let workers = (0..config.io_threads).map(Worker::Io).chain((0..config.cpu_threads).map(Worker::Cpu));
        for worker in workers {
            stream.crew.start(&stream.shared, worker)?;
        }
        let (shared, crew) = (Arc::clone(&stream.shared), Arc::clone(&stream.crew));
        stream.crew.spawn(Worker::Watch, move || overdue::run(&shared, &crew))?;
        Ok(stream)
    }

    /// Threads do not survive a fork: the child has their memory, but nobody works in it.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

/// Where a stream waits between two epochs, and where threads end that nobody had the time to wait for.
#[derive(Default)]
pub(crate) struct Parking {
    parked: Mutex<Option<(Stream, Epoch)>>,
    leaving: Mutex<Vec<Stream>>,
}

impl Parking {
    /// Leaves a stream that has the batches of `next` in hand.
    pub(crate) fn park(&self, stream: Stream, next: Epoch) {
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some((stream, next));
    }

    /// The stream that waits, with the epoch it has in hand.
    pub(crate) fn take(&self) -> Option<(Stream, Epoch)> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stops a stream without waiting for what its threads have in hand.
    pub(crate) fn dismiss(&self, stream: Stream) {
        if !stream.is_forked() {
            stream.shared.stop();
        }
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Waits for the threads of dismissed streams.
    pub(crate) fn join(&self) {
        drop(std::mem::take(&mut *self.leaving.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_forked() {
            // Another thread may have held a lock at the moment of the fork: touch nothing, join nobody.
            std::mem::forget(Arc::clone(&self.crew));
            return;
        }
        self.shared.stop();
        // A read stuck in the kernel cannot be cancelled, nor can a decoder or a user's transform: their threads are left
        // to end by themselves, and what they still write to is theirs alone.
        let stuck = self.shared.stuck(GRACE);
        let deadline = Instant::now() + JOIN_LIMIT;
        self.crew.join(deadline, |worker| worker == Worker::Watch); // from now on nobody starts others
        self.crew.join(deadline, |worker| !stuck.contains(&worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::WorldSize;

    #[test]
    fn runs_on_into_the_next_epoch() {
        let plan = Plan { len: 5, batch_size: 2, world_size: WorldSize(1), shuffle: true, drop_last: false, seed: 1 };
        let mut feed = Feed::planned(&plan, Rank(0), Epoch(3), Origin { step: Step(1), position: 2 }, 0..0);
        assert!(feed.is_in(Epoch(3)) && !feed.is_in(Epoch(4)));
        let steps: Vec<_> =
            feed.by_ref().take(6).map(|batch| (batch.epoch.0, batch.step.0, batch.places.len())).collect();
        assert_eq!(steps, [(3, 1, 2), (3, 2, 1), (4, 0, 2), (4, 1, 2), (4, 2, 1), (5, 0, 2)]);
        feed.by_ref().take(2).for_each(drop);
        assert!(!feed.is_in(Epoch(5)), "the next one is the first of epoch 6");
    }

    #[test]
    fn a_plan_without_steps_is_closed() {
        let plan = Plan { len: 1, batch_size: 2, world_size: WorldSize(1), shuffle: true, drop_last: true, seed: 1 };
        let mut feed = Feed::planned(&plan, Rank(0), Epoch(0), Origin::default(), 0..0);
        assert!(feed.is_closed() && feed.next().is_none());
    }
}
