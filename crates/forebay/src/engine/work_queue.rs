//! The work queue: which sample is read next, which is decoded next, which batch is complete. One mutex, held for
//! nanoseconds; all reading, decoding and copying happens outside it (docs/decisions/0001).
//!
//! Priority is the order of delivery: the lowest (batch, slot) goes first. Memory is charged before it is taken
//! (`memory.rs`); a sample that needs more than `max_sample_bytes` is refused.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_core::{Error, Field, Stage};

use crate::engine::concurrency::ConcurrencyLimit;
use crate::engine::condition::Condition;
use crate::engine::decodes_in_flight::DecodesInFlight;
use crate::engine::item::{Assembly, Fetched, InFlight, Item, Key};
use crate::engine::memory::{Charge, MemoryBudget};
use crate::engine::prefetch_depth::PrefetchDepth;
use crate::engine::reads_in_flight::ReadsInFlight;
use crate::engine::run_context::RunContext;
use crate::loader::stream::{Feed, Worker};
use crate::source::objects::Buffers;
use crate::sync::{Mutex, MutexGuard};

mod batches;
mod decodes;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod reads;

pub(crate) use batches::NextBatch;
use batches::Pick;
pub(crate) use decodes::DecodeTask;
pub(crate) use reads::Overdue;

/// The head of the queue counts as blocked after the batches behind it have waited for this long.
const HEAD_BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// An entry of a priority queue: the lowest key comes out first.
struct ByKey<T>(Key, T);

impl<T> PartialEq for ByKey<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for ByKey<T> {}
impl<T> PartialOrd for ByKey<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for ByKey<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        Reverse(self.0).cmp(&Reverse(other.0))
    }
}

/// What the threads of a stream wait for and take from each other: one mutex and its conditions.
pub(crate) struct WorkQueue {
    pub(crate) context: RunContext,
    /// The store returns from every read within its deadline.
    keeps_deadlines: bool,
    state: Mutex<QueueState>,
    /// There may be a sample to read.
    fetch_work: Condition,
    /// There may be a sample to decode.
    decode_work: Condition,
    memory_freed: Condition,
    /// The next batch may be complete, or will never be.
    batch_done: Condition,
    /// A read or a decode has ended after the stream was stopped.
    calls_done: Condition,
    /// Threads may be missing.
    watchdog_wake: Condition,
}

struct QueueState {
    reads: ReadsInFlight,
    decodes: DecodesInFlight,
    memory: MemoryBudget,
    /// Reads allowed at the same time.
    concurrency: ConcurrencyLimit,
    prefetch: PrefetchDepth,
    feed: Feed,
    stopped: bool,
    /// When it was stopped, by the machine's clock.
    stopped_at: Option<Instant>,
    /// Why no further batch will be complete.
    broken: Option<Error>,
    /// The number of the next batch to deliver, the head of `batches`.
    first_batch: u64,
    /// Since when it is the head.
    head_since: Duration,
    batches: VecDeque<Assembly>,
    /// A thread opens the batch behind them.
    is_opening: bool,
    /// Another thread has found nothing to read but the batch that is being opened.
    is_opening_awaited: bool,
    /// Samples to read again, and substitutes to read.
    retries: BinaryHeap<ByKey<Item>>,
    /// Samples that wait before their next attempt, and until when.
    backing_off: Vec<Item>,
    backoff_ends: BinaryHeap<Reverse<(Duration, Key)>>,
    /// Samples that were read and wait for a CPU thread.
    ready: BinaryHeap<ByKey<Fetched>>,
    /// How long a read takes before it is hedged, and when that was last computed.
    hedge_delay: Option<(Duration, Duration)>,
    /// Bytes of the batch that was taken last.
    last_batch_bytes: u64,
}

impl QueueState {
    /// When the head of the queue counts as blocked, unless it is complete by then.
    fn head_blocked_at(&self) -> Option<Duration> {
        self.batches.front().filter(|batch| batch.remaining > 0).map(|_| self.head_since + HEAD_BLOCKED_AFTER)
    }

    /// Whether the feed has ended, and no batch of it is being opened.
    fn is_exhausted(&self) -> bool {
        self.feed.is_closed() && !self.is_opening
    }
}

impl WorkQueue {
    pub(crate) fn new(context: RunContext, feed: Feed) -> Self {
        let RunContext { source, config, meters, .. } = &context;
        let state = QueueState {
            reads: ReadsInFlight::new(
                config.io_threads,
                config.hedge.is_some() || source.store.capabilities().is_cached,
            ),
            decodes: DecodesInFlight::new(config.cpu_threads),
            memory: MemoryBudget::new(config.memory_budget),
            concurrency: ConcurrencyLimit::new(config.io_threads, config.max_io_threads),
            prefetch: PrefetchDepth::default(),
            feed,
            stopped: false,
            stopped_at: None,
            broken: None,
            first_batch: 0,
            head_since: Duration::ZERO,
            batches: VecDeque::new(),
            is_opening: false,
            is_opening_awaited: false,
            retries: BinaryHeap::new(),
            backing_off: Vec::new(),
            backoff_ends: BinaryHeap::new(),
            ready: BinaryHeap::new(),
            hedge_delay: None,
            last_batch_bytes: 0,
        };
        meters.concurrent_reads.store(config.io_threads as u64, Relaxed);
        Self {
            keeps_deadlines: source.store.capabilities().keeps_deadlines,
            context,
            state: Mutex::new(state),
            fetch_work: Condition::default(),
            decode_work: Condition::default(),
            memory_freed: Condition::default(),
            batch_done: Condition::default(),
            calls_done: Condition::default(),
            watchdog_wake: Condition::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code under the lock is expected to panic. If it does, the state is still consistent enough to stop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples between fetch and the end of decoding: one for each I/O thread, and a few more to keep the CPU threads busy; not
    /// so many that their bytes leave the processor's cache before they are decoded.
    fn max_ahead(&self, state: &QueueState) -> usize {
        3 * self.context.config.cpu_threads + state.concurrency.current()
    }

    /// The next sample to read: retries first, then the next slot of the plan.
    fn pick_fetch(&self, state: &mut QueueState, now: Duration) -> Pick {
        while state.backoff_ends.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            let Some(Reverse((_, key))) = state.backoff_ends.pop() else { break };
            if let Some(at) = state.backing_off.iter().position(|item| item.key == key) {
                let item = state.backing_off.swap_remove(at);
                state.retries.push(ByKey(key, item));
            }
        }
        if state.reads.reading() >= state.concurrency.current() {
            return Pick::Nothing;
        }
        if let Some(ByKey(_, item)) = state.retries.pop() {
            return Pick::Read(item);
        }
        if state.ready.len() + state.decodes.busy() + state.reads.reading() >= self.max_ahead(state) {
            return Pick::Nothing;
        }
        self.pick_fresh(state, now)
    }

    /// A batch buffer was returned to the pool.
    pub(crate) fn buffer_is_back(&self) {
        // The lock is taken so that a thread which has just found no buffer is waiting by now, and gets the notification.
        drop(self.lock());
        self.fetch_work.notify_one();
    }

    /// Returns a charge. If it was never made, the run ends with an error.
    fn uncharge(&self, state: &mut QueueState, charge: Charge) {
        if let Err(error) = state.memory.uncharge(charge) {
            state.broken.get_or_insert(error);
            self.batch_done.notify_all();
        }
    }

    /// Returns memory charged by [`WorkQueue::allot`].
    fn release(&self, state: &mut QueueState, charged: Option<u64>, buffers: Buffers) {
        let Some(charged) = charged else { return };
        self.uncharge(state, Charge { bytes: charged, holding: 1 });
        let max_spare = self.max_ahead(state);
        buffers.into_iter().for_each(|buffer| state.memory.reuse(buffer, max_spare));
    }

    /// Whether to wake an I/O thread. Not for each decoded sample: one thread that reads several samples in a row costs less
    /// than several that take turns. Below half of the samples that may be ready, each decoded one wakes a thread.
    fn wants_reader(&self, state: &QueueState) -> bool {
        let most = self.max_ahead(state) - self.context.config.cpu_threads;
        state.ready.len() <= most / 2
    }

    /// Unlocks the state after memory was returned, and wakes the threads that may use it.
    fn unlock_with_memory(&self, state: MutexGuard<'_, QueueState>) {
        let (wants_reader, more) = (self.wants_reader(&state), !state.ready.is_empty());
        drop(state);
        self.memory_freed.notify_all();
        if wants_reader {
            self.fetch_work.notify_one();
        }
        if more {
            self.decode_work.notify_one();
        }
    }

    /// Queues an item to be read again, now or after a pause.
    pub(crate) fn read_again(&self, item: Item, pause: Duration) {
        let mut state = self.lock();
        if pause.is_zero() {
            state.retries.push(ByKey(item.key, item));
        } else {
            state.backoff_ends.push(Reverse((self.context.clock.now() + pause, item.key)));
            state.backing_off.push(item);
        }
        drop(state);
        self.fetch_work.notify_all();
    }

    /// The reads and decodes in progress, oldest first, without those that were written off.
    pub(crate) fn in_flight(&self) -> Vec<InFlight> {
        let (reads, decodes, backing_off) = {
            let state = self.lock();
            let backing_off = state.backing_off.iter();
            let backing_off = backing_off.map(|item| (item.sample, item.attempts, item.started.unwrap_or_default()));
            let decodes = state.decodes.active();
            let decodes = decodes.map(|(thread, one)| (thread, one.item.sample, one.item.attempts, one.since));
            (state.reads.active_reads(), decodes.collect::<Vec<_>>(), backing_off.collect::<Vec<_>>())
        };
        let now = self.context.clock.now();
        let in_flight = |worker: Option<Worker>, stage, (sample, field), attempt, since| InFlight {
            path: self.context.source.dataset.name(sample, field),
            sample,
            stage,
            thread: worker.map_or_else(|| "none: waits for its next attempt".to_owned(), Worker::name),
            attempt,
            elapsed: now.saturating_sub(since),
            mount: None,
        };
        let reads = reads.iter().map(|(thread, read)| {
            in_flight(Some(Worker::Io(*thread)), Stage::Fetch, (read.sample, read.field), read.attempt, read.since)
        });
        let decodes = decodes.iter().map(|&(thread, sample, attempt, since)| {
            in_flight(Some(Worker::Cpu(thread)), Stage::Decode, (sample, Field(0)), attempt, since)
        });
        let backing_off = backing_off.iter();
        let backing_off = backing_off
            .map(|(sample, attempts, since)| in_flight(None, Stage::Fetch, (*sample, Field(0)), *attempts, *since));
        let mut list: Vec<_> = reads.chain(decodes).chain(backing_off).collect();
        list.sort_by_key(|item| Reverse(item.elapsed));
        list
    }

    /// Changes the feed, and wakes the threads that wait for it.
    pub(crate) fn with_feed<T>(&self, action: impl FnOnce(&mut Feed) -> T) -> T {
        let result = action(&mut self.lock().feed);
        self.fetch_work.notify_all();
        self.batch_done.notify_all();
        result
    }

    /// Stops the stream: every thread returns after its current call.
    pub(crate) fn stop(&self) {
        {
            let mut state = self.lock();
            state.stopped = true;
            state.stopped_at.get_or_insert_with(Instant::now);
        }
        if let Some(stop) = &self.context.stop_reads {
            stop.raise();
        }
        for condition in
            [&self.fetch_work, &self.decode_work, &self.memory_freed, &self.batch_done, &self.watchdog_wake]
        {
            condition.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Kind, Loader, Op, Pipeline, Source};
    use std::sync::Arc;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test makes its own files")]
    fn memory_returned_twice_ends_the_run_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("class")).unwrap();
        let picture = include_bytes!("../../../forebay-cli/assets/rings-0.jpg");
        (0..2).for_each(|number| std::fs::write(folder.path().join(format!("class/{number}.jpg")), picture).unwrap());
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }, Op::ToTensor]).unwrap();
        let source = Source::image_folder(folder.path(), pipeline).unwrap();
        for charge in [Charge { bytes: 1 << 40, holding: 0 }, Charge { bytes: 0, holding: 1 << 40 }] {
            let loader = Loader::new(source.clone(), Config::default()).unwrap();
            let mut run = loader.epoch().unwrap();
            let queue = Arc::clone(&run.stream.as_ref().unwrap().queue);
            queue.uncharge(&mut queue.lock(), charge);
            let error = run.find_map(Result::err).unwrap();
            assert_eq!(error.kind(), Kind::Internal, "{error}");
            assert!(error.message().starts_with("more memory was given back than was charged"), "{error}");
        }
    }
}
