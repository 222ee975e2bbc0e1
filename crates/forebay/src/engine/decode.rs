//! Decode and transform: the loop of a CPU thread. Turns bytes into the sample's slot of the batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Field, Result, Rng, SampleId, Stage};
use forebay_decode::{Fields, Made, Pipeline, Sample, Scratch, Timing};

use crate::batch::places::Slots;
use crate::engine::decoded_cache::Decoded;
use crate::engine::recover::{after_trouble, panicked};
use crate::engine::work_queue::{DecodeTask, WorkQueue};

/// Works until the stream stops, or until a sample took longer than its deadline.
pub(crate) fn run(queue: &WorkQueue, thread: usize) {
    let mut scratch = Scratch::default();
    while let Some(task) = queue.next_decode(thread) {
        let result = catch_unwind(AssertUnwindSafe(|| make(queue, &task, &mut scratch))).unwrap_or_else(|panic| {
            scratch = Scratch::default(); // half-written by whatever panicked
            Err(panicked(panic.as_ref()))
        });
        // What quarantine rests on: a verdict about the file, not about what one crop saw of it.
        let is_about_file = result.as_ref().is_err_and(|error| {
            let fields = task.objects.bytes();
            let is_about_bytes = !fields.is_empty() && error.kind().is_about_bytes(error.stage());
            // Bytes that are not the ones that were written down are damaged, even if they can be decoded.
            let (source, field) = (&queue.context.source, error.field());
            let differs = fields
                .get(field.0 as usize)
                .is_some_and(|bytes| is_about_bytes && source.dataset.verify(task.job.sample, field, bytes).is_err());
            differs || (is_about_bytes && source.recipe_of(task.job.sample).fails_always(Fields(&fields), &mut scratch))
        });
        let DecodeTask { objects, places, .. } = task;
        drop(places); // before the slot is filled: then the batch has its memory to itself
        let field = result.as_ref().err().filter(|_| is_about_file).map(Error::field);
        let stat = field.and_then(|field| objects.stat_of(field));
        let (made, error) = match result {
            Ok((value, timing)) => {
                queue.context.meters.decode.record(timing.decode);
                queue.context.meters.transform.record(timing.transform);
                (Some(value), None)
            }
            Err(error) => (None, Some(error)),
        };
        let (failed, continues) = queue.decoded(thread, objects.into_buffers(), made);
        if let Some((item, error)) = failed.zip(error) {
            let path = queue.context.source.dataset.name(item.sample, error.field());
            after_trouble(queue, item, &path, error, stat);
        }
        if !continues {
            return;
        }
    }
}

/// One sample: into its slot, or as a value when samples have no fixed shape.
fn make(queue: &WorkQueue, task: &DecodeTask, scratch: &mut Scratch) -> Result<Made> {
    let job = &task.job;
    let recipe = queue.context.source.recipe_of(job.sample);
    let mut rng = Rng::for_sample(queue.context.plan.seed, job.epoch, job.sample);
    if job.is_given || queue.context.plan.order.repeats() {
        // Such an order may draw a sample again and again: each time with another crop.
        rng = rng.fork(job.position);
    }
    // SAFETY: the work queue has given this slot to this thread alone, and reads it only after this thread has filled it in
    // time. If it is late, no other thread ever gets this slot of this batch, and the reference that this thread holds keeps
    // its memory from reuse.
    let slots = task.places.as_ref().map(|places| unsafe { places.slots(job.slot as usize) }).unwrap_or_default();
    let mut slots = slots.into_iter();
    let (slot, mut more) = (slots.next(), slots.collect::<Slots<'_>>());
    let outline = queue.context.source.dataset.outline(job.sample);
    let mut fields = task.objects.bytes();
    for (field, bytes) in (0..).map(Field).zip(&fields) {
        let verified = queue.context.source.dataset.verify(job.sample, field, bytes);
        verified.map_err(|error| error.at_stage(Stage::Decode).at_field(field))?;
    }
    if let Some((pipeline, decoded, decode)) = decoded(queue, task, &rng, scratch) {
        let (value, timing) = pipeline.run_from(&decoded.image, &rng, scratch, slot)?;
        return Ok((value, Timing { decode, ..timing }));
    }
    lend_landmarks(queue, job.sample, &fields, scratch);
    fields.extend(outline.as_deref());
    let path = || queue.context.source.dataset.path(job.sample);
    let sample = Sample { fields: Fields(&fields), path: &path, rng: &rng, scratch, slot };
    let made = recipe.make_columns(sample, &mut more).map_err(|error| error.at_stage(Stage::Decode));
    let cache = &queue.context.landmark_cache;
    cache.count(scratch.take_back_annotations());
    if let Some(known) = scratch.take_back() {
        cache.keep(job.sample, known);
    }
    made
}

/// Lends what is known of the sample's pictures: from their index, of bytes that have just been verified; else from an epoch
/// before, where the sample has a single picture.
fn lend_landmarks(queue: &WorkQueue, sample: SampleId, fields: &[&[u8]], scratch: &mut Scratch) {
    let (cache, source) = (&queue.context.landmark_cache, &queue.context.source);
    if !cache.is_on() {
        return;
    }
    let recipe = source.recipe_of(sample);
    let pictures = (0..).map(Field).zip(fields).filter(|(field, _)| recipe.uses_landmarks(*field));
    let is_single = pictures.clone().count() == 1;
    for (field, bytes) in pictures {
        match source.dataset.annotation(sample, field) {
            Some([]) => {} // there is nothing to be found, either
            Some(annotation) => scratch.lend_annotation(bytes, annotation),
            None if is_single && cache.has_room() => scratch.lend_within(bytes, cache.take(sample)),
            None => {}
        }
    }
}

/// The picture before its first random choice, as it was kept, or decoded now in order to be kept; and how long that took.
fn decoded<'a>(
    queue: &'a WorkQueue,
    task: &DecodeTask,
    rng: &Rng,
    scratch: &mut Scratch,
) -> Option<(&'a Pipeline, Arc<Decoded>, Duration)> {
    let cache = queue.context.decoded_cache.as_ref()?;
    let pipeline = queue.context.source.recipe_of(task.job.sample).pipeline()?;
    if let Some(decoded) = &task.decoded {
        return Some((pipeline, Arc::clone(decoded), Duration::ZERO));
    }
    let bytes = task.objects.bytes_of(Field(0)).filter(|_| cache.has_room())?;
    // A picture that cannot be decoded as a whole may be good enough for a crop, as without a cache.
    let (image, decode) = pipeline.run_fixed(bytes, rng, scratch).ok()?;
    let decoded = Arc::new(Decoded { image, decode, read_bytes: bytes.len() as u64 });
    cache.keep(task.job.sample, &decoded);
    Some((pipeline, decoded, decode))
}
