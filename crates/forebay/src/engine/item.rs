//! The units of work: one slot of a batch on its way through fetch and decode, and the batch being assembled.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Epoch, Error, PlannedBatch, SampleId, Stage};
use forebay_decode::Value;
use forebay_store::{Mount, Stat};

use crate::batch::places::Places;
use crate::engine::decoded_cache::Decoded;
use crate::source::objects::Objects;

/// Where a sample is needed: batches are numbered in order of delivery, across epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) batch: u64,
    pub(crate) slot: u32,
}

/// Why a planned sample was given up.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) error: Error,
    pub(crate) stat: Option<Stat>,
}

/// One slot of a batch on its way to being filled.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
    /// The position is one of a user's own order.
    pub(crate) is_given: bool,
    /// The planned sample.
    pub(crate) planned: SampleId,
    /// The current sample: the planned one, or a substitute.
    pub(crate) sample: SampleId,
    /// Substitutes tried so far.
    pub(crate) substitutes: u32,
    /// Samples that were given up here because of timeouts.
    pub(crate) timeouts: u32,
    /// Time spent on samples that were given up here.
    pub(crate) spent: Duration,
    /// Reads of `sample` so far.
    pub(crate) attempts: u32,
    /// When the first of them began.
    pub(crate) started: Option<Duration>,
    /// The sample was read again after a decode error.
    pub(crate) reread: bool,
    /// The sample was read again after its file changed during a read.
    pub(crate) changed: bool,
    /// The first error of `sample`; if a later attempt succeeds it has recovered from this.
    pub(crate) trouble: Option<Error>,
    /// Why `planned` was given up.
    pub(crate) given_up: Option<GivenUp>,
}

impl Item {
    pub(crate) fn new(key: Key, epoch: Epoch, position: u64, planned: SampleId) -> Self {
        Self {
            key,
            epoch,
            position,
            is_given: false,
            planned,
            sample: planned,
            substitutes: 0,
            timeouts: 0,
            spent: Duration::ZERO,
            attempts: 0,
            started: None,
            reread: false,
            changed: false,
            trouble: None,
            given_up: None,
        }
    }

    /// Starts over with another sample in the same place.
    pub(crate) fn substitute(&mut self, sample: SampleId) {
        (self.sample, self.attempts, self.started, self.trouble) = (sample, 0, None, None);
        (self.reread, self.changed) = (false, false);
    }
}

/// A sample at its own place in batch 0.
#[cfg(test)]
pub(crate) fn item(sample: u64) -> Item {
    Item::new(Key { batch: 0, slot: sample as u32 }, Epoch(0), sample, SampleId(sample))
}

/// A fetched sample that waits for a CPU thread.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) item: Item,
    /// What was read; none where nothing is read.
    pub(crate) objects: Objects,
    /// The picture before its first random choice, where it was kept from an earlier epoch: then nothing is read.
    pub(crate) decoded: Option<Arc<Decoded>>,
    /// Bytes charged for `objects`.
    pub(crate) charged: u64,
    /// Bytes that decoding it takes.
    pub(crate) decode_bytes: u64,
    /// Its batch's memory, when samples have a fixed shape.
    pub(crate) places: Option<Arc<Places>>,
}

/// The result of a slot.
#[derive(Debug)]
pub(crate) enum Filled {
    /// Not yet known.
    Pending,
    /// The sample is in its place: in the buffer, or here.
    Done(SampleId, Option<Value>),
    /// Left out.
    Skipped,
    /// Ends the iteration.
    Failed(Error),
}

/// A slot of a batch, with its item if there was an error to report.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) filled: Filled,
    pub(crate) item: Option<Item>,
}

/// A batch being filled.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) plan: PlannedBatch,
    pub(crate) slots: Vec<Slot>,
    pub(crate) places: Option<Arc<Places>>,
    pub(crate) charged: u64,
    pub(crate) opened: Duration,
    /// From then until the last result so far.
    pub(crate) made_in: Duration,
    /// Slots that were given to threads.
    pub(crate) issued: usize,
    /// Slots without a result.
    pub(crate) remaining: usize,
    /// A slot has an error that ends the iteration.
    pub(crate) has_failed: bool,
    /// Slots of `places` whose thread was written off: it may still write to them.
    pub(crate) late: Vec<u32>,
}

impl Assembly {
    /// Whether the missing slots make no difference: there are none, or a slot ends the iteration and every slot before it has a
    /// result. Slots behind the error may hang, and must not delay it.
    pub(crate) fn is_decided(&self) -> bool {
        let is_open = |slot: &&Slot| matches!(slot.filled, Filled::Pending | Filled::Failed(_));
        let fails_first =
            || self.slots.iter().find(is_open).is_some_and(|slot| matches!(slot.filled, Filled::Failed(_)));
        self.remaining == 0 || (self.has_failed && fails_first())
    }
}

/// A sample that a thread is working on: shown when the loop waits for long.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Its path.
    pub path: PathBuf,
    /// The sample.
    pub sample: SampleId,
    /// Fetch, or decode (which includes the transforms).
    pub stage: Stage,
    /// The thread's name.
    pub thread: String,
    /// Which attempt it is.
    pub attempt: u32,
    /// How long it has been in progress.
    pub elapsed: Duration,
    /// The mount that it lies on; `None` where the system does not tell.
    pub mount: Option<Mount>,
}

impl std::fmt::Display for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, stage, thread, attempt, elapsed, .. } = self;
        let (stage, seconds) = (stage.name(), elapsed.as_secs_f64());
        write!(f, "{path:?} (stage {stage}, thread {thread}, attempt {attempt}, for {seconds:.1} s)")
    }
}
