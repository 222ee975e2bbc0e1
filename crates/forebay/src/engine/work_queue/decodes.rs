//! Decoding in the work queue: which sample a CPU thread decodes next, how its decode ends, and how overdue ones are written off.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_core::Error;
use forebay_decode::Value;

use super::{ByKey, Charge, QueueState, WorkQueue};
use crate::batch::places::Places;
use crate::engine::decoded_cache::Decoded;
use crate::engine::decodes_in_flight::{ActiveDecode, DecodeJob, EndedDecode};
use crate::engine::item::{Fetched, Filled, Item};
use crate::source::objects::{Buffers, Objects};

/// What a CPU thread is given.
pub(crate) struct DecodeTask {
    pub(crate) job: DecodeJob,
    pub(crate) objects: Objects,
    /// What is decoded already, instead.
    pub(crate) decoded: Option<Arc<Decoded>>,
    /// The batch's memory, if samples have a fixed shape and no late thread may still write to the slot.
    pub(crate) places: Option<Arc<Places>>,
}

impl WorkQueue {
    /// The next sample to decode; waits for one that fits into memory. `None` when the stream stops.
    pub(crate) fn next_decode(&self, thread: usize) -> Option<DecodeTask> {
        let asked = self.context.clock.now();
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let fits = state
                .ready
                .peek()
                .is_some_and(|ByKey(_, next)| state.decodes.busy() == 0 || state.memory.fits(next.decode_bytes));
            if fits && let Some(ByKey(_, next)) = state.ready.pop() {
                let Fetched { item, objects, decoded, charged, decode_bytes, places } = next;
                state.memory.charge(decode_bytes);
                let now = self.context.clock.now();
                let deadline = self.context.config.retry.deadline;
                let job = state.decodes.begin(thread, item, now, deadline, charged, decode_bytes);
                let more = !state.ready.is_empty();
                drop(state);
                if more {
                    // Freed memory may fit several samples, and only one thread was woken for it.
                    self.decode_work.notify_one();
                }
                self.context.meters.decode.record_waiting(now.saturating_sub(asked));
                return Some(DecodeTask { job, objects, decoded, places });
            }
            state = self.decode_work.wait(state);
        }
    }

    /// Ends a CPU thread's decode: `buffers` are returned, and `made` is the result if it succeeded. Otherwise gives the item for
    /// recovery, unless it was written off. The flag is false if the thread was written off: it has to end.
    pub(crate) fn decoded(&self, thread: usize, buffers: Buffers, made: Option<Option<Value>>) -> (Option<Item>, bool) {
        let now = self.context.clock.now();
        let mut state = self.lock();
        let (mut done, mut failed, mut continues) = (None, None, true);
        match state.decodes.end(thread) {
            EndedDecode::InTime(ActiveDecode { item, charged, decode_bytes, .. }) => {
                self.uncharge(&mut state, Charge { bytes: decode_bytes, holding: 0 });
                self.release(&mut state, Some(charged), buffers);
                match made {
                    Some(value) => {
                        let filled = Filled::Done(item.sample, value);
                        done = Self::fill_slot(&mut state, item, filled, now);
                    }
                    None => failed = Some(item),
                }
            }
            EndedDecode::TooLate(lost) => {
                self.uncharge(&mut state, Charge { bytes: lost.charged, holding: 0 });
                self.context.meters.decodes_lost.fetch_sub(1, Relaxed);
                continues = false;
            }
        }
        let stopped = state.stopped;
        self.unlock_with_memory(state);
        if stopped {
            self.calls_done.notify_all();
        }
        self.after_filling(done);
        (failed, continues)
    }

    /// Writes off overdue decodes, and gives their items for recovery.
    ///
    /// A thread that was written off may still write to its slot at any time. So no other thread gets that slot, and the batch
    /// is copied before it is delivered; the late thread keeps the batch buffer until it returns (docs/decisions/0033).
    pub(super) fn write_off_decodes(&self, state: &mut QueueState, now: Duration) -> Vec<Item> {
        if state.decodes.next_deadline().is_none_or(|until| until > now) {
            return Vec::new();
        }
        let slot_bytes = self.context.slot_bytes();
        let QueueState { decodes, batches, first_batch, memory, .. } = state;
        let late = decodes.write_off(now, |item| {
            let at = item.key.batch.checked_sub(*first_batch);
            // The batch may be gone: an error has ended the iteration.
            let Some(batch) = at.and_then(|at| batches.get_mut(at as usize)) else { return 0 };
            if batch.places.is_none() {
                return 0;
            }
            batch.late.push(item.key.slot);
            let copied = slot_bytes * batch.slots.len() as u64;
            memory.charge(copied);
            copied
        });
        // A lost thread keeps its memory, so the bytes stay charged; but no sample waits for them.
        self.uncharge(state, Charge { bytes: 0, holding: late.len() });
        let count = late.len() as u64;
        self.context.meters.decodes_written_off.fetch_add(count, Relaxed);
        self.context.meters.decodes_lost.fetch_add(count, Relaxed);
        late
    }

    /// A CPU thread could not be started. Without any, the run ends.
    pub(crate) fn no_decoder(&self, thread: usize, error: Error) {
        let mut state = self.lock();
        if !state.decodes.remove_thread(thread) {
            state.broken.get_or_insert(error);
            self.batch_done.notify_all();
        }
    }
}
