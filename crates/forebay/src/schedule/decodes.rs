//! The desk's side of decoding: which sample a CPU thread decodes next, how that ends, and what becomes of threads that do
//! not come back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_core::Error;
use forebay_decode::Value;
use forebay_store::Object;

use super::{ByKey, Charge, Desk, Shared};
use crate::assemble::Buffer;
use crate::decoding::{Decoding, Ended, Job};
use crate::item::{Fetched, Filled, Item};

/// What a CPU thread gets.
pub(crate) struct Work {
    pub(crate) job: Job,
    pub(crate) object: Option<Object>,
    /// Its batch's memory, when samples have a fixed shape and nobody else may still write to its slot.
    pub(crate) buffer: Option<Arc<Buffer>>,
}

impl Shared {
    /// The next sample to decode; waits for one that fits into memory. `None` when the stream stops.
    pub(crate) fn next_decode(&self, cpu: usize) -> Option<Work> {
        let asked = self.clock.now();
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return None;
            }
            let fits = desk.ready.peek().is_some_and(|ByKey(_, next)| {
                desk.decoders.busy() == 0 || desk.used + next.decode_bytes <= self.config.memory_budget
            });
            if fits && let Some(ByKey(_, next)) = desk.ready.pop() {
                let Fetched { item, object, charged, decode_bytes, buffer } = next;
                desk.used += decode_bytes;
                let now = self.clock.now();
                let job = desk.decoders.begin(cpu, item, now, self.config.retry.deadline, charged, decode_bytes);
                let more = !desk.ready.is_empty();
                drop(desk);
                if more {
                    // Freed memory may fit several, and only one thread was woken for it.
                    self.decode_work.ring_one();
                }
                self.meters.decode.record_waiting(now.saturating_sub(asked));
                return Some(Work { job, object, buffer });
            }
            desk = self.decode_work.wait(desk);
        }
    }

    /// A CPU thread is done with a sample, and what it held is given back: `buffer`, and what it made, if it went well.
    /// Otherwise gives the item, unless it was written off. False when the thread was, and has to retire.
    pub(crate) fn decoded(&self, cpu: usize, buffer: Vec<u8>, made: Option<Option<Value>>) -> (Option<Item>, bool) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let (mut done, mut failed, mut goes_on) = (None, None, true);
        match desk.decoders.end(cpu) {
            Ended::InTime(Decoding { item, charged, decode_bytes, .. }) => {
                self.uncharge(&mut desk, Charge { bytes: decode_bytes, holding: 0 });
                self.release(&mut desk, Some(charged), buffer);
                match made {
                    Some(value) => {
                        let filled = Filled::Done(item.sample, value);
                        done = Self::fill_slot(&mut desk, item, filled, now);
                    }
                    None => failed = Some(item),
                }
            }
            Ended::TooLate(lost) => {
                self.uncharge(&mut desk, Charge { bytes: lost.charged, holding: 0 });
                self.meters.decodes_lost.fetch_sub(1, Relaxed);
                goes_on = false;
            }
        }
        let stopped = desk.stopped;
        self.unlock_with_memory(desk);
        if stopped {
            self.calls_done.ring_all();
        }
        self.after_filling(done);
        (failed, goes_on)
    }

    /// Writes off decodes that are late: their items, to be handed to recovery.
    ///
    /// A thread that was written off may still write to its slot, at any time. So nobody else gets that slot, nor the
    /// whole batch, which is copied when it is handed over; the memory belongs to the late thread until it is back.
    pub(super) fn write_off_decodes(&self, desk: &mut Desk, now: Duration) -> Vec<Item> {
        if desk.decoders.next_deadline().is_none_or(|until| until > now) {
            return Vec::new();
        }
        let slot_bytes = self.source.recipe.layout().map_or(0, |layout| layout.size_bytes() as u64);
        let Desk { decoders, batches, first_batch, used, .. } = desk;
        let late = decoders.write_off(now, |item| {
            let at = item.key.batch.checked_sub(*first_batch);
            // It may be gone, with an error that ended the iteration.
            let Some(batch) = at.and_then(|at| batches.get_mut(at as usize)) else { return 0 };
            if batch.buffer.is_none() {
                return 0;
            }
            batch.late.push(item.key.slot);
            let copied = slot_bytes * batch.slots.len() as u64;
            *used += copied;
            copied
        });
        // What a lost thread holds stays charged, because it does hold it; but nobody waits for it.
        self.uncharge(desk, Charge { bytes: 0, holding: late.len() });
        let count = late.len() as u64;
        self.meters.decodes_written_off.fetch_add(count, Relaxed);
        self.meters.decodes_lost.fetch_add(count, Relaxed);
        late
    }

    /// No thread could be had for a CPU thread's seat: the others go on, if there are any.
    pub(crate) fn no_decoder(&self, cpu: usize, error: Error) {
        let mut desk = self.desk();
        if !desk.decoders.stand_up(cpu) {
            desk.broken.get_or_insert(error);
            self.batch_done.ring_all();
        }
    }
}
