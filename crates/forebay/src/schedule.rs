//! The desk where all work meets: which sample to fetch next, which to decode next, what may take memory, which
//! batch is complete. One mutex, held for nanoseconds; all reading, decoding and copying happens outside it.
//!
//! Order of need is the order of delivery: the lowest (batch, slot) always goes first. Memory is charged before
//! it is taken. To make a deadlock impossible, a stage that has nothing in hand is always admitted, so the most
//! that can be in use is the budget and one sample.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{Clock, Config, Error, Kind, Plan, Result, SampleId, Stage};
use forebay_store::Stop;

use crate::assemble::BufferPool;
use crate::item::{Assembly, Fetched, Filled, InFlight, Item, Key, Slot};
use crate::recover::Quarantine;
use crate::source::Source;
use crate::stats::Meters;
use crate::stream::Feed;

/// Orders things by the place they are needed in, first needed first out.
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

/// All that is shared by the threads of a stream.
pub(crate) struct Shared {
    pub(crate) source: Source,
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) quarantine: Arc<Quarantine>,
    pub(crate) pool: Arc<BufferPool>,
    /// Ends reads that hang, where the store can.
    stop_reads: Option<Stop>,
    desk: Mutex<Desk>,
    fetch_work: Condvar,
    decode_work: Condvar,
    memory: Condvar,
    batch_done: Condvar,
    reading_done: Condvar,
}

/// What a thread has in hand.
#[derive(Clone, Copy, Debug)]
struct Working {
    sample: SampleId,
    stage: Stage,
    attempt: u32,
    since: Duration,
}

struct Desk {
    /// By worker: I/O threads first, then CPU threads.
    working: Vec<Option<Working>>,
    feed: Feed,
    stopped: bool,
    first_batch: u64,
    batches: VecDeque<Assembly>,
    /// Items to read again, or substitutes to read.
    again: BinaryHeap<ByKey<Item>>,
    /// Items that pause before their next attempt.
    pausing: BinaryHeap<Reverse<(Duration, Key)>>,
    paused: Vec<Item>,
    ready: BinaryHeap<ByKey<Fetched>>,
    /// Bytes charged.
    used: u64,
    /// Samples being fetched.
    fetching: usize,
    /// Samples that hold compressed bytes, or wait for them in a read.
    holding: usize,
    /// Samples being decoded.
    decoding: usize,
    /// Reads allowed at a time: shrinks when descriptors or memory run out, grows back with success.
    fetch_limit: usize,
    successes: u32,
    /// Bytes of the batch taken last.
    last_batch_bytes: u64,
    /// Compressed buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "the one place where a stream's parts come together")]
    pub(crate) fn new(
        mut source: Source,
        config: Config,
        plan: Plan,
        clock: Arc<dyn Clock>,
        meters: Arc<Meters>,
        quarantine: Arc<Quarantine>,
        pool: Arc<BufferPool>,
        feed: Feed,
    ) -> Self {
        let desk = Desk {
            working: vec![None; config.io_threads + config.cpu_threads],
            feed,
            stopped: false,
            first_batch: 0,
            batches: VecDeque::new(),
            again: BinaryHeap::new(),
            pausing: BinaryHeap::new(),
            paused: Vec::new(),
            ready: BinaryHeap::new(),
            used: 0,
            fetching: 0,
            holding: 0,
            decoding: 0,
            fetch_limit: config.io_threads,
            successes: 0,
            last_batch_bytes: 0,
            spare: Vec::new(),
        };
        let stop_reads = source.store.stoppable().map(|(store, stop)| {
            source.store = store;
            stop
        });
        Self {
            source,
            config,
            plan,
            clock,
            meters,
            quarantine,
            pool,
            stop_reads,
            desk: Mutex::new(desk),
            fetch_work: Condvar::new(),
            decode_work: Condvar::new(),
            memory: Condvar::new(),
            batch_done: Condvar::new(),
            reading_done: Condvar::new(),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing panics while it holds the desk; should it ever, the desk is still consistent enough to stop.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples under way at a time: every I/O thread has one, and a few more keep the CPU threads busy; not so many that
    /// their bytes leave the cache before they are decoded.
    fn max_ahead(&self) -> usize {
        2 * self.config.cpu_threads + self.config.io_threads
    }

    /// The next sample to read; waits for one. `None` when the stream stops.
    pub(crate) fn next_fetch(&self, worker: usize) -> Option<Item> {
        let asked = self.clock.now();
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return None;
            }
            let now = self.clock.now();
            if let Some(item) = self.pick_fetch(&mut desk, now) {
                desk.fetching += 1;
                let (sample, attempt) = (item.sample, item.attempts + 1);
                desk.working[worker] = Some(Working { sample, stage: Stage::Fetch, attempt, since: now });
                drop(desk);
                self.meters.fetch.record_waiting(now.saturating_sub(asked));
                return Some(item);
            }
            let pause = desk.pausing.peek().map(|Reverse((until, _))| until.saturating_sub(now));
            desk = match pause {
                Some(pause) => self.fetch_work.wait_timeout(desk, pause).unwrap_or_else(PoisonError::into_inner).0,
                None => self.fetch_work.wait(desk).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn pick_fetch(&self, desk: &mut Desk, now: Duration) -> Option<Item> {
        while desk.pausing.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            let Some(Reverse((_, key))) = desk.pausing.pop() else { break };
            if let Some(at) = desk.paused.iter().position(|item| item.key == key) {
                let item = desk.paused.swap_remove(at);
                desk.again.push(ByKey(key, item));
            }
        }
        if desk.fetching >= desk.fetch_limit {
            return None;
        }
        if let Some(ByKey(_, item)) = desk.again.pop() {
            return Some(item);
        }
        if desk.ready.len() + desk.decoding + desk.fetching >= self.max_ahead() {
            return None;
        }
        self.pick_fresh(desk, now)
    }

    /// The next slot that nobody has worked on, opening the next batch when the window and the budget allow it.
    fn pick_fresh(&self, desk: &mut Desk, now: Duration) -> Option<Item> {
        let exhausted = desk.batches.back().is_none_or(|batch| batch.issued == batch.slots.len());
        if exhausted {
            self.open_batch(desk, now)?;
        }
        let number = desk.first_batch + desk.batches.len() as u64 - 1;
        let is_given = matches!(desk.feed, Feed::Given { .. });
        let batch = desk.batches.back_mut()?;
        let slot = batch.issued;
        let place = batch.plan.places[slot];
        batch.issued += 1;
        let key = Key { batch: number, slot: slot as u32 };
        Some(Item { is_given, ..Item::new(key, batch.plan.epoch, place.position, place.sample) })
    }

    fn open_batch(&self, desk: &mut Desk, now: Duration) -> Option<()> {
        let layout = self.source.pipeline.layout();
        let slot_bytes = layout.map_or(0, |layout| layout.size_bytes() as u64);
        // What samples without a fixed shape will take is not known before: about what the last batch of them took.
        let expected = (slot_bytes * self.config.batch_size).max(desk.last_batch_bytes);
        let fits = desk.batches.is_empty() || desk.used + expected <= self.config.memory_budget;
        if desk.batches.len() >= self.config.prefetch_batches || !fits {
            return None;
        }
        let plan = desk.feed.next()?;
        let count = plan.places.len();
        let charged = slot_bytes * count as u64;
        let mut slots: Vec<_> = (0..count).map(|_| Slot { filled: Filled::Pending, item: None }).collect();
        let buffer = match layout.map(|layout| self.pool.take(layout.size_bytes() * count)) {
            Some(Ok(buffer)) => Some(Arc::new(buffer)),
            Some(Err(error)) => {
                slots[0].filled = Filled::Failed(error);
                None
            }
            None => None,
        };
        let failed = matches!(slots.first(), Some(Slot { filled: Filled::Failed(_), .. }));
        let (issued, remaining) = if failed { (count, 0) } else { (0, count) };
        desk.used += charged;
        let opened = now;
        desk.batches.push_back(Assembly {
            plan,
            slots,
            buffer,
            charged,
            opened,
            issued,
            remaining,
            has_failed: failed,
        });
        if remaining == 0 {
            self.batch_done.notify_all();
            return None;
        }
        Some(())
    }

    /// Charges memory for compressed bytes, waiting until there is some, and gives a buffer for them.
    pub(crate) fn allot(&self, size_bytes: u64) -> Result<Vec<u8>> {
        /// No image is this large; a sparse file may be, and would take all the memory there is.
        const MAX_SAMPLE_BYTES: u64 = 4 << 30;
        if size_bytes > MAX_SAMPLE_BYTES {
            let message =
                format!("is too large for a sample (expected at most {MAX_SAMPLE_BYTES} bytes, got {size_bytes})");
            return Err(
                Error::new(Kind::Exhausted, message).with_hint("it cannot be an image: delete it or exclude it")
            );
        }
        let mut desk = self.desk();
        while desk.used + size_bytes > self.config.memory_budget && desk.holding > 0 && !desk.stopped {
            desk = self.memory.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
        if desk.stopped {
            return Err(Error::new(Kind::Stopped, "the loader was closed during a read"));
        }
        desk.used += size_bytes;
        desk.holding += 1;
        Ok(desk.spare.pop().unwrap_or_default())
    }

    /// Gives back memory charged by [`Shared::allot`].
    fn release(&self, desk: &mut Desk, charged: Option<u64>, buffer: Vec<u8>) {
        /// Spare buffers are not charged, so they stay small: what one huge file blew up is not kept.
        const MAX_SPARE_BYTES: usize = 1 << 20;
        let Some(charged) = charged else { return };
        desk.used -= charged;
        desk.holding -= 1;
        if buffer.capacity() > 0 && buffer.capacity() <= MAX_SPARE_BYTES && desk.spare.len() < self.max_ahead() {
            desk.spare.push(buffer);
        }
        self.memory.notify_all();
        self.fetch_work.notify_one();
    }

    /// A sample's bytes are here.
    pub(crate) fn fetched(&self, worker: usize, mut fetched: Fetched) {
        let mut desk = self.desk();
        desk.working[worker] = None;
        desk.fetching -= 1;
        desk.successes += 1;
        if desk.successes >= 64 && desk.fetch_limit < self.config.io_threads {
            (desk.successes, desk.fetch_limit) = (0, desk.fetch_limit + 1);
        }
        let at = fetched.item.key.batch.checked_sub(desk.first_batch);
        fetched.buffer = at.and_then(|at| desk.batches.get(at as usize)).and_then(|batch| batch.buffer.clone());
        desk.ready.push(ByKey(fetched.item.key, fetched));
        let stopped = desk.stopped;
        drop(desk);
        self.decode_work.notify_one();
        if stopped {
            self.reading_done.notify_all();
        }
    }

    /// A read failed; what it was allotted is given back.
    pub(crate) fn fetch_failed(&self, worker: usize, charged: Option<u64>, error: &Error) {
        let mut desk = self.desk();
        desk.working[worker] = None;
        desk.fetching -= 1;
        if error.kind() == Kind::Exhausted && error.is_transient() {
            // Too many open files: what is being read now, less one, is what this process can bear.
            (desk.fetch_limit, desk.successes) = (desk.fetching.max(1), 0);
        }
        self.release(&mut desk, charged, Vec::new());
        let stopped = desk.stopped;
        drop(desk);
        self.fetch_work.notify_one();
        if stopped {
            self.reading_done.notify_all();
        }
    }

    /// Whether fewer reads at a time could still help against running out.
    pub(crate) fn can_shrink(&self) -> bool {
        self.desk().fetching > 1
    }

    /// The next sample to decode; waits for one that fits into memory. `None` when the stream stops.
    pub(crate) fn next_decode(&self, worker: usize) -> Option<Fetched> {
        let asked = self.clock.now();
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return None;
            }
            let fits = desk.ready.peek().is_some_and(|ByKey(_, next)| {
                desk.decoding == 0 || desk.used + next.decode_bytes <= self.config.memory_budget
            });
            if fits && let Some(ByKey(_, next)) = desk.ready.pop() {
                desk.decoding += 1;
                desk.used += next.decode_bytes;
                let now = self.clock.now();
                let (sample, attempt) = (next.item.sample, next.item.attempts);
                desk.working[worker] = Some(Working { sample, stage: Stage::Decode, attempt, since: now });
                let more = !desk.ready.is_empty();
                drop(desk);
                if more {
                    // Freed memory may fit several, and only one thread was woken for it.
                    self.decode_work.notify_one();
                }
                self.meters.decode.record_waiting(now.saturating_sub(asked));
                return Some(next);
            }
            desk = self.decode_work.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A CPU thread is done with a sample, well or not; what it held is given back.
    pub(crate) fn decoded(&self, worker: usize, decode_bytes: u64, charged: u64, buffer: Vec<u8>) {
        let mut desk = self.desk();
        desk.working[worker] = None;
        desk.decoding -= 1;
        desk.used -= decode_bytes;
        self.release(&mut desk, Some(charged), buffer);
        drop(desk);
        self.decode_work.notify_one();
    }

    /// Reads an item again, now or after a pause.
    pub(crate) fn read_again(&self, item: Item, pause: Duration) {
        let mut desk = self.desk();
        if pause.is_zero() {
            desk.again.push(ByKey(item.key, item));
        } else {
            desk.pausing.push(Reverse((self.clock.now() + pause, item.key)));
            desk.paused.push(item);
        }
        drop(desk);
        self.fetch_work.notify_all();
    }

    /// A slot has its end.
    pub(crate) fn fill(&self, item: Item, filled: Filled) {
        let now = self.clock.now();
        let mut desk = self.desk();
        // Its batch may be gone, with an error that ended the iteration.
        let Some(at) = item.key.batch.checked_sub(desk.first_batch) else { return };
        let held = match &filled {
            Filled::Done(_, Some(value)) => value.size_bytes() as u64,
            _ => 0,
        };
        desk.used += held;
        let batch = desk.batches.get_mut(at as usize).expect("a batch stays until it is decided");
        batch.charged += held;
        batch.has_failed |= matches!(filled, Filled::Failed(_));
        let slot = &mut batch.slots[item.key.slot as usize];
        slot.filled = filled;
        slot.item = (item.given_up.is_some() || item.trouble.is_some()).then_some(item);
        batch.remaining -= 1;
        if batch.is_decided() {
            let opened = batch.opened;
            drop(desk);
            self.meters.assemble.record(now.saturating_sub(opened));
            self.batch_done.notify_all();
        }
    }

    /// The next batch in order, if it is complete within `wait`, or known to end the iteration.
    pub(crate) fn take_batch(&self, wait: Duration) -> Taken {
        let desk = self.desk();
        let is_waiting = |desk: &mut Desk| {
            !desk.stopped && desk.batches.front().map_or(!desk.feed.is_closed(), |batch| !batch.is_decided())
        };
        let (mut desk, _) =
            self.batch_done.wait_timeout_while(desk, wait, is_waiting).unwrap_or_else(PoisonError::into_inner);
        if desk.stopped {
            return Taken::Stopped;
        }
        match desk.batches.front() {
            None if desk.feed.is_closed() => Taken::Exhausted,
            Some(batch) if batch.is_decided() => {
                let batch = desk.batches.pop_front().expect("it was there a line ago");
                desk.first_batch += 1;
                desk.used -= batch.charged;
                desk.last_batch_bytes = batch.charged;
                drop(desk);
                self.fetch_work.notify_all();
                self.memory.notify_all();
                self.decode_work.notify_one();
                Taken::Batch(Box::new(batch))
            }
            _ => Taken::Pending,
        }
    }

    /// What the threads have in hand, longest first.
    pub(crate) fn in_flight(&self) -> Vec<InFlight> {
        let (now, working) = (self.clock.now(), self.desk().working.clone());
        let io_threads = self.config.io_threads;
        let mut list: Vec<_> = working
            .iter()
            .enumerate()
            .filter_map(|(worker, working)| {
                let Working { sample, stage, attempt, since } = (*working)?;
                let path = self.source.dataset.path(sample);
                let thread = crate::stream::thread_name(worker, io_threads);
                Some(InFlight { path, sample, stage, thread, attempt, elapsed: now.saturating_sub(since) })
            })
            .collect();
        list.sort_by_key(|item| Reverse(item.elapsed));
        list
    }

    /// Hands batches to the feed of a user's own order.
    pub(crate) fn with_feed<T>(&self, action: impl FnOnce(&mut Feed) -> T) -> T {
        let result = action(&mut self.desk().feed);
        self.fetch_work.notify_all();
        self.batch_done.notify_all();
        result
    }

    /// The I/O threads that are still in a read after `grace`, once the stream has stopped.
    pub(crate) fn stuck_readers(&self, grace: Duration) -> Vec<usize> {
        let io_threads = self.config.io_threads;
        let reading =
            |desk: &Desk| (0..io_threads).filter(|&worker| desk.working[worker].is_some()).collect::<Vec<_>>();
        let (desk, _) = self
            .reading_done
            .wait_timeout_while(self.desk(), grace, |desk| !reading(desk).is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        reading(&desk)
    }

    /// Ends the stream: every thread returns as soon as it is done with what it has in hand.
    pub(crate) fn stop(&self) {
        self.desk().stopped = true;
        if let Some(stop) = &self.stop_reads {
            stop.raise();
        }
        for condvar in [&self.fetch_work, &self.decode_work, &self.memory, &self.batch_done] {
            condvar.notify_all();
        }
    }
}

/// What [`Shared::take_batch`] found.
#[derive(Debug)]
pub(crate) enum Taken {
    Batch(Box<Assembly>),
    Pending,
    /// The feed has ended and every batch of it was taken.
    Exhausted,
    Stopped,
}
