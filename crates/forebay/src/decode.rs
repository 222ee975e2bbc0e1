//! Decode and transform: the loop of a CPU thread. Turns bytes into the sample's slot of the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Result, Rng, Stage};
use forebay_decode::{Made, Sample, Scratch};

use crate::recover::{after_trouble, panicked};
use crate::schedule::{Shared, Work};

/// Works until the stream stops, or until a sample took longer than its deadline.
pub(crate) fn run(shared: &Shared, cpu: usize) {
    let mut scratch = Scratch::default();
    while let Some(work) = shared.next_decode(cpu) {
        let result = catch_unwind(AssertUnwindSafe(|| make(shared, &work, &mut scratch))).unwrap_or_else(|panic| {
            scratch = Scratch::default(); // half-written by whatever panicked
            Err(panicked(panic.as_ref()))
        });
        // What quarantine rests on: a verdict about the file, not about what one crop saw of it.
        let is_about_file = result.as_ref().is_err_and(|error| {
            let object = work.object.as_ref().filter(|_| error.kind().is_about_bytes(error.stage()));
            object.is_some_and(|object| shared.source.recipe.fails_always(&object.bytes, &mut scratch))
        });
        let Work { object, buffer, .. } = work;
        drop(buffer); // before the slot is filled: then the batch has its memory to itself
        let stat = object.as_ref().filter(|_| is_about_file).map(|object| object.stat);
        let bytes = object.map(|object| object.bytes.into_buffer()).unwrap_or_default();
        let (made, error) = match result {
            Ok((value, timing)) => {
                shared.meters.decode.record(timing.decode);
                shared.meters.transform.record(timing.transform);
                (Some(value), None)
            }
            Err(error) => (None, Some(error)),
        };
        let (failed, goes_on) = shared.decoded(cpu, bytes, made);
        if let Some((item, error)) = failed.zip(error) {
            let path = shared.source.dataset.path(item.sample);
            after_trouble(shared, item, &path, error, stat);
        }
        if !goes_on {
            return;
        }
    }
}

/// One sample: into its slot, or as a value when samples have no fixed shape.
fn make(shared: &Shared, work: &Work, scratch: &mut Scratch) -> Result<Made> {
    let recipe = &*shared.source.recipe;
    let job = &work.job;
    let mut rng = Rng::for_sample(shared.plan.seed, job.epoch, job.sample);
    if job.is_given {
        // A user's own order may draw a sample again and again: each time with another crop.
        rng = rng.fork(job.position);
    }
    let slot = match (&work.buffer, recipe.layout()) {
        (Some(buffer), Some(layout)) => {
            let size = layout.size_bytes();
            // SAFETY: the schedule has handed this slot to this thread alone, and reads it only after this thread has
            // filled it in time. If it is late, nobody else ever gets this slot of this buffer, and the buffer itself
            // is kept from reuse by the reference that this thread has.
            Some(unsafe { buffer.slot(job.slot as usize * size, size) })
        }
        _ => None,
    };
    let bytes = work.object.as_ref().map(|object| &*object.bytes);
    if let Some(bytes) = bytes {
        shared.source.dataset.verify(job.sample, bytes).map_err(|error| error.at_stage(Stage::Decode))?;
    }
    if recipe.uses_landmarks() && shared.familiar.has_room() {
        scratch.lend(shared.familiar.take(job.sample));
    }
    let path = || shared.source.dataset.path(job.sample);
    let sample = Sample { bytes: bytes.unwrap_or_default(), path: &path, rng: &rng, scratch, slot };
    let made = recipe.make(sample);
    if let Some(known) = scratch.take_back() {
        shared.familiar.keep(job.sample, known);
    }
    made
}
