//! The desk where all work meets: which sample to fetch next, which to decode next, what may take memory, which
//! batch is complete. One mutex, held for nanoseconds; all reading, decoding and copying happens outside it.
//!
//! Order of need is the order of delivery: the lowest (batch, slot) always goes first. Memory is charged before
//! it is taken; a sample that needs more than `max_sample_bytes` is refused. To make a deadlock impossible, a stage that has
//! nothing in hand admits any other, so the most that can be in use is the budget and one sample.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forebay_core::{Clock, Config, Error, Plan, Stage};
use forebay_store::Stop;

use crate::assemble::BufferPool;
use crate::decoding::Decoders;
use crate::familiar::Familiar;
use crate::flight::Flights;
use crate::item::{Assembly, Fetched, Filled, InFlight, Item, Key, Slot};
use crate::limit::Limit;
use crate::recover::Quarantine;
use crate::source::Source;
use crate::stats::Meters;
use crate::stream::{Feed, Worker};
use crate::sync::{Mutex, MutexGuard};

mod bell;
mod decodes;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod lead;
mod reads;

use bell::Bell;
pub(crate) use decodes::Work;
use lead::Lead;
pub(crate) use reads::Seen;

/// A batch that the others have waited behind for this long is held up by something slow.
const HELD_UP: Duration = Duration::from_millis(100);
/// Then so many times as many batches are prepared behind it.
const STRETCH: usize = 4;

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
    pub(crate) familiar: Arc<Familiar>,
    pub(crate) pool: Arc<BufferPool>,
    /// Ends reads that hang, where the store can.
    stop_reads: Option<Stop>,
    /// The store comes back from every read in time by itself.
    keeps_deadlines: bool,
    desk: Mutex<Desk>,
    fetch_work: Bell,
    decode_work: Bell,
    memory: Bell,
    batch_done: Bell,
    /// A read or a decode has ended, after the stream has stopped.
    calls_done: Bell,
    watching: Bell,
}

/// What is given back at a time.
#[derive(Clone, Copy, Debug)]
struct Charge {
    bytes: u64,
    /// Samples that hold compressed bytes.
    holding: usize,
}

struct Desk {
    /// What the I/O threads have in hand.
    flights: Flights,
    /// What the CPU threads have in hand.
    decoders: Decoders,
    feed: Feed,
    stopped: bool,
    /// When it was, by the machine's clock.
    stopped_at: Option<Instant>,
    /// Why no batch will come any more.
    broken: Option<Error>,
    first_batch: u64,
    /// Since when that is the next one to deliver.
    first_since: Duration,
    batches: VecDeque<Assembly>,
    /// Items to read again, or substitutes to read.
    again: BinaryHeap<ByKey<Item>>,
    /// Items that pause before their next attempt.
    pausing: BinaryHeap<Reverse<(Duration, Key)>>,
    paused: Vec<Item>,
    ready: BinaryHeap<ByKey<Fetched>>,
    /// Bytes charged.
    used: u64,
    /// Samples that hold compressed bytes, or wait for them in a read.
    holding: usize,
    /// Reads allowed at a time.
    limit: Limit,
    /// How long a read takes before it gets a second one beside it, and when that was last worked out.
    patience: Option<(Duration, Duration)>,
    lead: Lead,
    /// Bytes of the batch taken last.
    last_batch_bytes: u64,
    /// Compressed buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Desk {
    /// When the next batch to deliver will have held up the others, unless it is complete.
    fn held_up_at(&self) -> Option<Duration> {
        self.batches.front().filter(|batch| batch.remaining > 0).map(|_| self.first_since + HELD_UP)
    }
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
        familiar: Arc<Familiar>,
        pool: Arc<BufferPool>,
        feed: Feed,
    ) -> Self {
        let desk = Desk {
            flights: Flights::new(config.io_threads, config.hedge.is_some() || source.store.origin().is_some()),
            decoders: Decoders::new(config.cpu_threads),
            feed,
            stopped: false,
            stopped_at: None,
            broken: None,
            first_batch: 0,
            first_since: Duration::ZERO,
            batches: VecDeque::new(),
            again: BinaryHeap::new(),
            pausing: BinaryHeap::new(),
            paused: Vec::new(),
            ready: BinaryHeap::new(),
            used: 0,
            holding: 0,
            limit: Limit::new(config.io_threads, config.max_io_threads),
            patience: None,
            lead: Lead::default(),
            last_batch_bytes: 0,
            spare: Vec::new(),
        };
        meters.reads_at_a_time.store(config.io_threads as u64, Relaxed);
        let stop_reads = source.store.stoppable().map(|(store, stop)| {
            source.store = store;
            stop
        });
        Self {
            keeps_deadlines: source.store.keeps_deadlines(),
            source,
            config,
            plan,
            clock,
            meters,
            quarantine,
            familiar,
            pool,
            stop_reads,
            desk: Mutex::new(desk),
            fetch_work: Bell::default(),
            decode_work: Bell::default(),
            memory: Bell::default(),
            batch_done: Bell::default(),
            calls_done: Bell::default(),
            watching: Bell::default(),
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing panics while it holds the desk; should it ever, the desk is still consistent enough to stop.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples under way at a time: every I/O thread has one, and a few more keep the CPU threads busy; not so many that
    /// their bytes leave the cache before they are decoded.
    fn max_ahead(&self, desk: &Desk) -> usize {
        3 * self.config.cpu_threads + desk.limit.current()
    }

    fn pick_fetch(&self, desk: &mut Desk, now: Duration) -> Option<Item> {
        while desk.pausing.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            let Some(Reverse((_, key))) = desk.pausing.pop() else { break };
            if let Some(at) = desk.paused.iter().position(|item| item.key == key) {
                let item = desk.paused.swap_remove(at);
                desk.again.push(ByKey(key, item));
            }
        }
        if desk.flights.reading() >= desk.limit.current() {
            return None;
        }
        if let Some(ByKey(_, item)) = desk.again.pop() {
            return Some(item);
        }
        if desk.ready.len() + desk.decoders.busy() + desk.flights.reading() >= self.max_ahead(desk) {
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
        let layout = self.source.recipe.layout();
        let slot_bytes = layout.map_or(0, |layout| layout.size_bytes() as u64);
        // What samples without a fixed shape will take is not known before: about what the last batch of them took.
        let expected = (slot_bytes * self.config.batch_size).max(desk.last_batch_bytes);
        let fits = desk.batches.is_empty() || desk.used + expected <= self.config.memory_budget;
        let is_held_up = desk.held_up_at().is_some_and(|at| at <= now)
            && desk.batches.front().is_some_and(|batch| desk.feed.is_in(batch.plan.epoch));
        let window = self.window(desk) * if is_held_up { STRETCH } else { 1 };
        if desk.batches.len() >= window || !fits || (layout.is_some() && self.waits_for_buffer(desk)) {
            return None;
        }
        let plan = desk.feed.next()?;
        let count = plan.places.len();
        let charged = slot_bytes * count as u64;
        let mut slots: Vec<_> = (0..count).map(|_| Slot { filled: Filled::Pending, item: None }).collect();
        let take = |size_bytes| self.pool.take_lent(size_bytes).map_or_else(|| self.pool.take(size_bytes), Ok);
        let buffer = match layout.map(|layout| take(layout.size_bytes() * count)) {
            Some(Ok(buffer)) => Some(Arc::new(buffer)),
            Some(Err(error)) => {
                slots[0].filled = Filled::Failed(error);
                None
            }
            None => None,
        };
        let failed = matches!(slots.first(), Some(Slot { filled: Filled::Failed(_), .. }));
        let (issued, remaining) = if failed { (count, 0) } else { (0, count) };
        if desk.batches.is_empty() {
            desk.first_since = now;
        }
        desk.used += charged;
        let opened = now;
        desk.batches.push_back(Assembly {
            plan,
            slots,
            buffer,
            charged,
            opened,
            made_in: Duration::ZERO,
            issued,
            remaining,
            has_failed: failed,
            late: Vec::new(),
        });
        if remaining == 0 {
            self.batch_done.ring_all();
            return None;
        }
        Some(())
    }

    /// Batches ahead of the loop.
    fn window(&self, desk: &Desk) -> usize {
        if self.is_one_enough(desk) { 1 } else { self.config.prefetch_batches }
    }

    fn is_one_enough(&self, desk: &Desk) -> bool {
        self.config.prefetch_shrinks && desk.lead.is_ample()
    }

    /// Whether a batch is better opened a moment later. While the loop asks for the next batch it still has the one before
    /// it, and lets go of that right away: its memory will do. Only where batches wait for the loop, and not it for them:
    /// one that keeps its batches is heard when it asks for the next.
    fn waits_for_buffer(&self, desk: &Desk) -> bool {
        let is_there = desk.batches.front().is_some_and(Assembly::is_decided);
        (is_there || self.is_one_enough(desk)) && self.pool.is_used_up(self.window(desk))
    }

    /// A batch's memory is back.
    pub(crate) fn buffer_is_back(&self) {
        // With the desk, even if for nothing: who looked for memory before it came waits for the bell by now.
        drop(self.desk());
        self.fetch_work.ring_one();
    }

    /// Takes back a charge. One that was never made is a bug: it ends the run with an error, for a counter that wrapped round
    /// would have every thread wait for memory for ever.
    fn uncharge(&self, desk: &mut Desk, charge: Charge) {
        let Charge { bytes, holding } = charge;
        if let (Some(used), Some(holding)) = (desk.used.checked_sub(bytes), desk.holding.checked_sub(holding)) {
            (desk.used, desk.holding) = (used, holding);
            return;
        }
        let message = format!(
            "more memory was given back than was charged (charged: {} bytes, {} read; given back: {charge:?})",
            desk.used, desk.holding
        );
        desk.broken.get_or_insert_with(|| Error::internal(message));
        self.batch_done.ring_all();
    }

    /// Gives back memory charged by [`Shared::allot`].
    fn release(&self, desk: &mut Desk, charged: Option<u64>, buffer: Vec<u8>) {
        /// Spare buffers are not charged, so they stay small: what one huge file blew up is not kept.
        const MAX_SPARE_BYTES: usize = 1 << 20;
        let Some(charged) = charged else { return };
        self.uncharge(desk, Charge { bytes: charged, holding: 1 });
        if buffer.capacity() > 0 && buffer.capacity() <= MAX_SPARE_BYTES && desk.spare.len() < self.max_ahead(desk) {
            desk.spare.push(buffer);
        }
    }

    /// Whether a thread that waits for something to read is to be woken. Not for each sample that is decoded: one thread
    /// that reads some in a row costs less than several that take turns, and those that wait to be decoded are enough
    /// until half of them are gone. Then every sample that leaves wakes one, up to all.
    fn wants_reader(&self, desk: &Desk) -> bool {
        let most = self.max_ahead(desk) - self.config.cpu_threads;
        desk.ready.len() <= most / 2
    }

    /// Unlocks the desk after memory was given back, and wakes the threads that may use it.
    fn unlock_with_memory(&self, desk: MutexGuard<'_, Desk>) {
        let (wants_reader, more) = (self.wants_reader(&desk), !desk.ready.is_empty());
        drop(desk);
        self.memory.ring_all();
        if wants_reader {
            self.fetch_work.ring_one();
        }
        if more {
            self.decode_work.ring_one();
        }
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
        self.fetch_work.ring_all();
    }

    /// A slot has its end.
    pub(crate) fn fill(&self, item: Item, filled: Filled) {
        let now = self.clock.now();
        let done = Self::fill_slot(&mut self.desk(), item, filled, now);
        self.after_filling(done);
    }

    /// How long its batch took, if that is decided now.
    fn fill_slot(desk: &mut Desk, item: Item, filled: Filled, now: Duration) -> Option<Duration> {
        // Its batch may be gone, with an error that ended the iteration.
        let at = item.key.batch.checked_sub(desk.first_batch)?;
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
        batch.made_in = now.saturating_sub(batch.opened);
        batch.is_decided().then_some(batch.made_in)
    }

    fn after_filling(&self, made_in: Option<Duration>) {
        if let Some(made_in) = made_in {
            self.meters.assemble.record(made_in);
            self.batch_done.ring_all();
        }
    }

    /// The next batch in order, if it is complete within `wait`, or known to end the iteration.
    pub(crate) fn take_batch(&self, wait: Duration) -> Taken {
        let mut desk = self.desk();
        self.look_ahead(&mut desk);
        let is_waiting = |desk: &mut Desk| {
            !desk.stopped
                && desk.broken.is_none()
                && desk.batches.front().map_or(!desk.feed.is_closed(), |batch| !batch.is_decided())
        };
        let mut desk = self.batch_done.wait_while(desk, wait, is_waiting);
        if desk.stopped {
            return Taken::Stopped;
        }
        if let Some(error) = desk.broken.take() {
            return Taken::Broken(error);
        }
        match desk.batches.front() {
            None if desk.feed.is_closed() => Taken::Exhausted,
            Some(batch) if batch.is_decided() => {
                let batch = desk.batches.pop_front().expect("it was there a line ago");
                desk.first_batch += 1;
                let now = self.clock.now();
                desk.first_since = now;
                desk.lead.gave(now);
                self.uncharge(&mut desk, Charge { bytes: batch.charged, holding: 0 });
                desk.last_batch_bytes = batch.charged;
                self.unlock_with_memory(desk);
                Taken::Batch(Box::new(batch))
            }
            _ => Taken::Pending,
        }
    }

    /// The loop asks for its next batch: how many it needs ahead.
    fn look_ahead(&self, desk: &mut Desk) {
        let made_in = desk.batches.front().filter(|batch| batch.is_decided()).map(|batch| batch.made_in);
        let was_enough = self.is_one_enough(desk);
        desk.lead.asked(self.clock.now(), made_in);
        let is_enough = self.is_one_enough(desk);
        // The loop has one, and the next is made in the memory of the one before.
        self.pool.keep(is_enough.then_some(2));
        if was_enough && !is_enough {
            self.fetch_work.ring_all();
        }
    }

    /// What the threads have in hand, longest first; what was written off is left out.
    pub(crate) fn in_flight(&self) -> Vec<InFlight> {
        let (readings, decoders, paused) = {
            let desk = self.desk();
            let paused = desk.paused.iter().map(|item| (item.sample, item.attempts, item.started.unwrap_or_default()));
            let decoders =
                desk.decoders.in_hand().map(|(cpu, one)| (cpu, one.item.sample, one.item.attempts, one.since));
            (desk.flights.readings(), decoders.collect::<Vec<_>>(), paused.collect::<Vec<_>>())
        };
        let now = self.clock.now();
        let in_flight = |worker: Option<Worker>, stage, sample, attempt, since| InFlight {
            path: self.source.dataset.path(sample),
            sample,
            stage,
            thread: worker.map_or_else(|| "none: waits for its next attempt".to_owned(), Worker::name),
            attempt,
            elapsed: now.saturating_sub(since),
            mount: None,
        };
        let reads = readings.iter().map(|(seat, read)| {
            in_flight(Some(Worker::Io(*seat)), Stage::Fetch, read.sample, read.attempt, read.since)
        });
        let decodes = decoders.iter().map(|&(cpu, sample, attempt, since)| {
            in_flight(Some(Worker::Cpu(cpu)), Stage::Decode, sample, attempt, since)
        });
        let pauses =
            paused.iter().map(|(sample, attempts, since)| in_flight(None, Stage::Fetch, *sample, *attempts, *since));
        let mut list: Vec<_> = reads.chain(decodes).chain(pauses).collect();
        list.sort_by_key(|item| Reverse(item.elapsed));
        list
    }

    /// Hands batches to the feed of a user's own order.
    pub(crate) fn with_feed<T>(&self, action: impl FnOnce(&mut Feed) -> T) -> T {
        let result = action(&mut self.desk().feed);
        self.fetch_work.ring_all();
        self.batch_done.ring_all();
        result
    }

    /// Ends the stream: every thread returns as soon as it is done with what it has in hand.
    pub(crate) fn stop(&self) {
        {
            let mut desk = self.desk();
            desk.stopped = true;
            desk.stopped_at.get_or_insert_with(Instant::now);
        }
        if let Some(stop) = &self.stop_reads {
            stop.raise();
        }
        for bell in [&self.fetch_work, &self.decode_work, &self.memory, &self.batch_done, &self.watching] {
            bell.ring_all();
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
    /// No batch will come any more.
    Broken(Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loader, Op, Pipeline};
    use forebay_core::Kind;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test makes its own files")]
    fn memory_given_back_twice_ends_the_run_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("class")).unwrap();
        let picture = include_bytes!("../../forebay-cli/assets/rings-0.jpg");
        (0..2).for_each(|number| std::fs::write(folder.path().join(format!("class/{number}.jpg")), picture).unwrap());
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }, Op::ToTensor]).unwrap();
        let source = Source::image_folder(folder.path(), pipeline).unwrap();
        for charge in [Charge { bytes: 1 << 40, holding: 0 }, Charge { bytes: 0, holding: 1 << 40 }] {
            let loader = Loader::new(source.clone(), Config::default()).unwrap();
            let mut run = loader.epoch().unwrap();
            let shared = Arc::clone(&run.stream.as_ref().unwrap().shared);
            shared.uncharge(&mut shared.desk(), charge);
            let error = run.find_map(Result::err).unwrap();
            assert_eq!(error.kind(), Kind::Internal, "{error}");
            assert!(error.message().starts_with("more memory was given back than was charged"), "{error}");
        }
    }
}
