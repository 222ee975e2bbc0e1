//! Decode and transform: the loop of a CPU thread. Turns bytes into the sample's slot of the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_core::{Error, Kind, OnError, Result, Rng, Stage};
use forebay_decode::{Scratch, Timing, Value};
use forebay_store::Stat;

use crate::assemble::write_tensor;
use crate::fetch::panicked;
use crate::recover::{MAX_SUBSTITUTES, Verdict, judge};
use crate::schedule::{Fetched, Filled, GivenUp, Item, Shared};

/// Works until the stream stops.
pub(crate) fn run(shared: &Shared, worker: usize) {
    let mut scratch = Scratch::default();
    while let Some(fetched) = shared.next_decode(worker) {
        let result = catch_unwind(AssertUnwindSafe(|| make(shared, &fetched, &mut scratch))).unwrap_or_else(|panic| {
            scratch = Scratch::default(); // half-written by whatever panicked
            Err(panicked(panic.as_ref()))
        });
        let Fetched { item, path, object, charged, decode_bytes, buffer } = fetched;
        drop(buffer); // before the slot is filled: then the batch has its memory to itself
        let (bytes, stat) = (object.bytes, object.stat);
        shared.decoded(worker, decode_bytes, charged, bytes);
        match result {
            Ok((value, timing)) => {
                shared.meters.decode.record(timing.decode);
                shared.meters.transform.record(timing.transform);
                let sample = item.sample;
                shared.fill(item, Filled::Done(sample, value));
            }
            Err(error) => after_trouble(shared, item, &path, error, Some(stat)),
        }
    }
}

/// One sample: into its slot, or as a value when samples have no fixed shape.
fn make(shared: &Shared, fetched: &Fetched, scratch: &mut Scratch) -> Result<(Option<Value>, Timing)> {
    let pipeline = &shared.source.pipeline;
    let item = &fetched.item;
    let rng = Rng::for_sample(shared.plan.seed, item.epoch, item.sample);
    let slot = || match (&fetched.buffer, pipeline.layout()) {
        (Some(buffer), Some(layout)) => {
            let size = layout.size_bytes();
            // SAFETY: the schedule has handed this slot to this thread alone, and reads it after `fill` only.
            Some(unsafe { buffer.slot(item.key.slot as usize * size, size) })
        }
        _ => None,
    };
    if let Some(open) = &shared.source.open {
        let started = shared.clock.now();
        let value = open.open(&fetched.path)?;
        let opened = shared.clock.now();
        let value = pipeline.transform(value, &rng, scratch).map_err(|error| error.at_stage(Stage::Transform))?;
        let timing = Timing { decode: opened - started, transform: shared.clock.now().saturating_sub(opened) };
        return match (value, slot()) {
            (Value::Tensor(tensor), Some(slot)) => write_tensor(&tensor, slot).map(|()| (None, timing)),
            (value, _) => Ok((Some(value), timing)),
        };
    }
    let bytes = &fetched.object.bytes;
    match slot() {
        Some(slot) => Ok((None, pipeline.run_into(bytes, &rng, scratch, slot)?)),
        None => pipeline.run(bytes, &rng, scratch).map(|(value, timing)| (Some(value), timing)),
    }
}

/// An item met an error: read it again, put a substitute in its place, leave it out, or end the iteration.
pub(crate) fn after_trouble(shared: &Shared, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    let elapsed = item.started.map_or(Duration::ZERO, |started| shared.clock.now().saturating_sub(started));
    let error = error.at_path(path).at_index(item.sample.0).after(item.attempts, elapsed);
    // Running out of descriptors says nothing about this sample while other reads hold some of them.
    if error.kind() == Kind::Exhausted && error.is_transient() && shared.can_shrink() {
        item.attempts = item.attempts.saturating_sub(1).max(1);
    }
    match judge(&shared.config.retry, &mut item, &error, elapsed) {
        Verdict::ReadAgain(pause) => {
            shared.meters.retries.fetch_add(1, Relaxed);
            item.trouble.get_or_insert(error);
            shared.read_again(item, pause);
        }
        Verdict::GiveUp => give_up(shared, item, path, error, stat),
    }
}

fn give_up(shared: &Shared, mut item: Item, path: &Path, error: Error, stat: Option<Stat>) {
    item.trouble = None;
    if let Some(stat) = stat {
        shared.quarantine.add(path, stat, &error);
    }
    if !error.is_sample_local() {
        return shared.fill(item, Filled::Failed(error));
    }
    match shared.config.on_error {
        OnError::Raise => {
            item.given_up = None;
            shared.fill(item, Filled::Failed(error));
        }
        OnError::Skip => {
            item.given_up = Some(GivenUp { error, stat });
            shared.fill(item, Filled::Skipped);
        }
        OnError::Replace if item.substitutes >= MAX_SUBSTITUTES => {
            let message = format!(
                "cannot be replaced: {MAX_SUBSTITUTES} substitutes were tried, and the last one failed too ({error})"
            );
            let path = shared.source.dataset.path(item.planned);
            let error = Error::new(Kind::TooManyFailures, message).at_path(&path).at_index(item.planned.0);
            shared.fill(item, Filled::Failed(error));
        }
        OnError::Replace => {
            item.given_up.get_or_insert(GivenUp { error, stat });
            item.substitutes += 1;
            let substitute = shared.plan.substitute(item.epoch, item.position, item.planned, item.substitutes);
            item.substitute(substitute);
            shared.read_again(item, Duration::ZERO);
        }
    }
}
