//! Batches in the work queue: when the next one is opened, how its slots are filled, when it is taken for delivery.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Error;

use super::{QueueState, WorkQueue};
use crate::batch::places::Places;
use crate::engine::item::{Assembly, Filled, Item, Key, Slot};
use crate::engine::memory::Charge;
use crate::loader::stream::{Feed, Upcoming};
use crate::sync::MutexGuard;

/// Prefetch multiplier while the head of the queue is blocked.
const BLOCKED_PREFETCH_MULTIPLIER: usize = 4;

/// What an I/O thread does next.
pub(super) enum Pick {
    Read(Item),
    Open(Opening),
    Nothing,
}

/// A batch that is charged, and not allocated yet.
pub(super) struct Opening {
    upcoming: Upcoming,
    charged: u64,
    opened: Duration,
}

impl WorkQueue {
    /// The next slot in planned order; or the next batch to open, when the prefetch window and the budget allow one.
    pub(super) fn pick_fresh(&self, state: &mut QueueState, now: Duration) -> Pick {
        if state.batches.back().is_none_or(|batch| batch.issued == batch.slots.len()) {
            return self.reserve_batch(state, now).map_or(Pick::Nothing, Pick::Open);
        }
        let number = state.first_batch + state.batches.len() as u64 - 1;
        let is_given = matches!(state.feed, Feed::Given { .. });
        let Some(batch) = state.batches.back_mut() else { return Pick::Nothing };
        let slot = batch.issued;
        let place = batch.plan.places[slot];
        batch.issued += 1;
        let key = Key { batch: number, slot: slot as u32 };
        Pick::Read(Item { is_given, ..Item::new(key, batch.plan.epoch, place.position, place.sample) })
    }

    /// Takes the next batch from the feed and charges its memory, for the calling thread to open it without the lock.
    fn reserve_batch(&self, state: &mut QueueState, now: Duration) -> Option<Opening> {
        if state.is_opening {
            state.is_opening_awaited = true;
            return None;
        }
        let context = &self.context;
        let slot_bytes = context.slot_bytes();
        // The size of samples without a fixed shape is not known in advance: the last batch is the estimate.
        let expected = (slot_bytes * context.config.batch_size).max(state.last_batch_bytes);
        let fits = state.batches.is_empty() || state.memory.fits(expected);
        let is_head_blocked = state.head_blocked_at().is_some_and(|at| at <= now)
            && state.batches.front().is_some_and(|batch| state.feed.is_in(batch.plan.epoch));
        let window = self.window(state) * if is_head_blocked { BLOCKED_PREFETCH_MULTIPLIER } else { 1 };
        let has_layout = !context.layouts.is_empty();
        if state.batches.len() >= window || !fits || (has_layout && self.waits_for_buffer(state)) {
            return None;
        }
        let upcoming = state.feed.advance()?;
        let charged = slot_bytes * upcoming.len();
        state.memory.charge(charged);
        state.is_opening = true;
        Some(Opening { upcoming, charged, opened: now })
    }

    /// Computes the samples of a batch and allocates its buffer, which may be tens of megabytes to zero; then queues it. One
    /// thread at a time, so batches stay in order.
    pub(super) fn open_batch(&self, opening: Opening) -> MutexGuard<'_, QueueState> {
        let Opening { upcoming, charged, opened } = opening;
        let pool = &self.context.pool;
        let plan = upcoming.plan(&self.context.plan);
        let count = plan.places.len();
        let mut slots: Vec<_> = (0..count).map(|_| Slot { filled: Filled::Pending, item: None }).collect();
        let layouts = &self.context.layouts;
        let places = match (!layouts.is_empty()).then(|| Places::take(pool, layouts, count)) {
            Some(Ok(places)) => Some(Arc::new(places)),
            Some(Err(error)) => {
                slots[0].filled = Filled::Failed(error);
                None
            }
            None => None,
        };
        let has_failed = matches!(slots.first(), Some(Slot { filled: Filled::Failed(_), .. }));
        let (issued, remaining) = if has_failed { (count, 0) } else { (0, count) };
        let (made_in, late) = (Duration::ZERO, Vec::new());
        let mut state = self.lock();
        if state.batches.is_empty() {
            state.head_since = opened;
        }
        state.batches.push_back(Assembly {
            plan,
            slots,
            places,
            charged,
            opened,
            made_in,
            issued,
            remaining,
            has_failed,
            late,
        });
        state.is_opening = false;
        if std::mem::take(&mut state.is_opening_awaited) {
            self.fetch_work.notify_all();
        }
        if remaining == 0 {
            self.batch_done.notify_all();
        }
        state
    }

    /// How many batches are prefetched.
    fn window(&self, state: &QueueState) -> usize {
        if self.is_one_enough(state) { 1 } else { self.context.config.prefetch_batches }
    }

    fn is_one_enough(&self, state: &QueueState) -> bool {
        self.context.config.prefetch_shrinks && state.prefetch.is_one_enough()
    }

    /// Whether to open the next batch a moment later, in the memory of the batch that the loop is about to release: a loop
    /// that asks for a batch still holds the one before. Only while batches wait for the loop; a loop that keeps its batches
    /// gets other memory when it asks for the next.
    fn waits_for_buffer(&self, state: &QueueState) -> bool {
        let is_complete = state.batches.front().is_some_and(Assembly::is_decided);
        let columns = self.context.layouts.len();
        (is_complete || self.is_one_enough(state)) && self.context.pool.is_used_up(self.window(state) * columns)
    }

    /// Records the result of a slot.
    pub(crate) fn fill(&self, item: Item, filled: Filled) {
        let now = self.context.clock.now();
        let done = Self::fill_slot(&mut self.lock(), item, filled, now);
        self.after_filling(done);
    }

    /// The same under the lock. Gives how long the batch took, if this has decided it.
    pub(super) fn fill_slot(state: &mut QueueState, item: Item, filled: Filled, now: Duration) -> Option<Duration> {
        // The batch may be gone: an error has ended the iteration.
        let at = item.key.batch.checked_sub(state.first_batch)?;
        let held = match &filled {
            Filled::Done(_, Some(value)) => value.size_bytes() as u64,
            _ => 0,
        };
        state.memory.charge(held);
        let batch = state.batches.get_mut(at as usize).expect("a batch stays until it is decided");
        batch.charged += held;
        batch.has_failed |= matches!(filled, Filled::Failed(_));
        let slot = &mut batch.slots[item.key.slot as usize];
        slot.filled = filled;
        slot.item = (item.given_up.is_some() || item.trouble.is_some()).then_some(item);
        batch.remaining -= 1;
        batch.made_in = now.saturating_sub(batch.opened);
        batch.is_decided().then_some(batch.made_in)
    }

    pub(super) fn after_filling(&self, made_in: Option<Duration>) {
        if let Some(made_in) = made_in {
            self.context.meters.assemble.record(made_in);
            self.batch_done.notify_all();
        }
    }

    /// The next batch in order, once it is complete or has an error that ends the iteration; waits up to `wait`.
    pub(crate) fn take_batch(&self, wait: Duration) -> NextBatch {
        let mut state = self.lock();
        self.adapt_prefetch(&mut state);
        let is_waiting = |state: &mut QueueState| {
            !state.stopped
                && state.broken.is_none()
                && state.batches.front().map_or(!state.is_exhausted(), |batch| !batch.is_decided())
        };
        let mut state = self.batch_done.wait_while(state, wait, is_waiting);
        if state.stopped {
            return NextBatch::Stopped;
        }
        if let Some(error) = state.broken.take() {
            return NextBatch::Failed(error);
        }
        match state.batches.front() {
            None if state.is_exhausted() => NextBatch::Exhausted,
            Some(batch) if batch.is_decided() => {
                let batch = state.batches.pop_front().expect("it was there a line ago");
                state.first_batch += 1;
                let now = self.context.clock.now();
                state.head_since = now;
                state.prefetch.delivered(now);
                self.uncharge(&mut state, Charge { bytes: batch.charged, holding: 0 });
                state.last_batch_bytes = batch.charged;
                self.unlock_with_memory(state);
                NextBatch::Batch(Box::new(batch))
            }
            _ => NextBatch::Pending,
        }
    }

    /// Adapts the prefetch depth, when the loop asks for a batch.
    fn adapt_prefetch(&self, state: &mut QueueState) {
        let made_in = state.batches.front().filter(|batch| batch.is_decided()).map(|batch| batch.made_in);
        let was_enough = self.is_one_enough(state);
        state.prefetch.requested(self.context.clock.now(), made_in);
        let is_enough = self.is_one_enough(state);
        // Two buffers are enough: one in the loop, and one for the next batch.
        self.context.pool.keep(is_enough.then_some(2 * self.context.layouts.len().max(1)));
        if was_enough && !is_enough {
            self.fetch_work.notify_all();
        }
    }
}

/// What [`WorkQueue::take_batch`] gives.
#[derive(Debug)]
pub(crate) enum NextBatch {
    Batch(Box<Assembly>),
    /// Not complete within the time.
    Pending,
    /// The feed has ended, and every batch of it was taken.
    Exhausted,
    Stopped,
    /// No further batch will be complete.
    Failed(Error),
}
