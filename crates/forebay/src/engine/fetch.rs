//! Fetch: the loop of an I/O thread. Reads objects, or parts of them, and hands every trouble to recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Error, Field, Locator, Result, Stage};
use forebay_decode::{Fields, LightRecipe, Scratch, Value};
use forebay_store::{Object, Stat};

use crate::engine::decoded_cache::Decoded;
use crate::engine::item::Fetched;
use crate::engine::reads_in_flight::ReadJob;
use crate::engine::recover::{after_trouble, panicked};
use crate::engine::work_queue::WorkQueue;
use crate::source::objects::Objects;
use crate::source::runs::{Run, Runs};
use crate::source::{check_size, read_located};

/// Making a larger sample takes longer than handing it to a CPU thread. Not measured.
const MAX_LIGHT_BYTES: u64 = 64 << 10;

/// Reads until the stream stops, or until a read came back too late.
pub(crate) fn run(queue: &WorkQueue, thread: usize) {
    let (mut scratch, mut locator) = (Scratch::default(), Locator::default());
    while let Some(job) = queue.next_fetch(thread) {
        if !fetch(queue, thread, &mut scratch, &mut locator, job) {
            return;
        }
    }
}

/// What a read gave.
pub(crate) struct Read {
    /// None where nothing is to be read.
    pub(crate) objects: Objects,
    /// What is decoded already, instead.
    pub(crate) decoded: Option<Arc<Decoded>>,
    /// Bytes that decoding it takes.
    pub(crate) decode_bytes: u64,
    /// What a light recipe has made of it, so that no CPU thread is needed.
    pub(crate) made: Option<Value>,
    /// This thread makes it in its place in the batch, once the read has ended and the place is its own.
    pub(crate) is_placed: bool,
}

impl Read {
    /// A sample of which nothing is read.
    fn of_nothing(decoded: Option<Arc<Decoded>>, decode_bytes: u64) -> Self {
        Self { objects: Objects::default(), decoded, decode_bytes, made: None, is_placed: false }
    }
}

/// Why there is nothing to decode, with what is known of the file when it was not read at all.
type Trouble = (Error, Option<Stat>);

fn fetch(queue: &WorkQueue, thread: usize, scratch: &mut Scratch, locator: &mut Locator, job: ReadJob) -> bool {
    locator.path.clear(); // whatever fails before there is a new one is not about the old one
    let read = || read(queue, thread, locator, &job, scratch);
    let result: Result<Read, Trouble> =
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err((panicked(panic.as_ref()), None)));
    match result {
        Ok(read) => {
            let (own, continues) = queue.fetched(thread, read);
            if let Some(fetched) = own {
                place(queue, fetched);
            }
            continues
        }
        Err((error, known)) => {
            let name = locator.name();
            let (trouble, continues) = queue.fetch_failed(thread, error.at_path(&name).at_index(job.sample.0));
            if let Some((mut item, error)) = trouble {
                item.attempts -= u32::from(known.is_some());
                after_trouble(queue, item, &name, error, known);
            }
            continues
        }
    }
}

/// Reads all fields of a sample, one run of them after the other. `locator` is left at the field that failed.
fn read(
    queue: &WorkQueue,
    thread: usize,
    locator: &mut Locator,
    job: &ReadJob,
    scratch: &mut Scratch,
) -> Result<Read, Trouble> {
    let source = &queue.context.source;
    let (recipe, dataset) = (source.recipe_of(job.sample), &*source.dataset);
    if let Some(read) = kept(queue, thread, job).map_err(|error| (error.at_stage(Stage::Fetch), None))? {
        return Ok(read);
    }
    let mut objects = Objects::default();
    let mut within = job.within;
    let count = dataset.field_count_of(job.sample);
    let mut runs = Runs::of(source, job.sample, count, queue.context.config.max_sample_bytes());
    if job.is_again {
        runs = runs.apart();
    }
    let (mut first, mut is_begun) = (Field(0), true);
    while first.0 < count {
        let at_field = |error: Error| error.at_stage(Stage::Fetch).at_field(first);
        if !std::mem::replace(&mut is_begun, true) {
            within = queue.next_field(thread, first).map_err(|error| (at_field(error), None))?;
        }
        dataset.locate(job.sample, first, locator);
        check_quarantine(queue, locator, first)?;
        if !recipe.reads_bytes() {
            queue.allot(thread, 0).map_err(|error| (at_field(error), None))?;
            return Ok(Read::of_nothing(None, 0));
        }
        let run = runs.from(first, locator);
        if !run.is_single() && !queue.context.quarantine.is_empty() {
            for field in run.fields().map(Field) {
                dataset.locate(job.sample, field, locator);
                check_quarantine(queue, locator, field)?;
            }
            dataset.locate(job.sample, first, locator);
        }
        let light = recipe.light().filter(|_| count == 1);
        let asked = Instant::now();
        let object = read_run(queue, thread, locator, &run, ReadJob { within, ..job.clone() }, light);
        let (object, light) = match object {
            Ok(object) => object,
            Err(error) if run.is_about_one(&error) => {
                runs = runs.apart();
                continue;
            }
            Err(error) => return Err((at_field(error), None)),
        };
        if let Some(light) = light {
            let waited = asked.elapsed();
            let is_placed = !queue.context.layouts.is_empty();
            let made = if is_placed { None } else { make_light(queue, job, light, &object) };
            if is_placed || made.is_some() {
                queue.context.meters.decode.record_waiting(waited);
                objects.push(object);
                return Ok(Read { objects, decoded: None, decode_bytes: 0, made, is_placed });
            }
        }
        match run.is_single() {
            true => objects.push(object),
            false => objects.push_parts(object, run.parts()).map_err(|error| (at_field(error), None))?,
        }
        (first, is_begun) = (Field(run.fields().end), false);
    }
    // A header that cannot be read costs nothing here; decoding will say what is wrong with it.
    let decode_bytes = recipe.memory_bytes(Fields(&objects.bytes()), scratch).unwrap_or(0);
    let size_bytes = objects.bytes().iter().map(|bytes| bytes.len() as u64).sum();
    let checked = queue.check_sample_bytes(size_bytes, decode_bytes);
    checked.map_err(|error| (error.at_stage(Stage::Decode), None))?;
    Ok(Read { objects, decoded: None, decode_bytes, made: None, is_placed: false })
}

/// Fails if a field is known to be bad.
fn check_quarantine(queue: &WorkQueue, locator: &Locator, field: Field) -> Result<(), Trouble> {
    match queue.context.quarantine.check(locator, &*queue.context.source.store) {
        Some((error, stat)) => Err((error.at_field(field), Some(stat))),
        None => Ok(()),
    }
}

/// A sample whose picture was kept decoded, and that is not read therefore.
fn kept(queue: &WorkQueue, thread: usize, job: &ReadJob) -> Result<Option<Read>> {
    let context = &queue.context;
    let (Some(cache), Some(pipeline)) = (&context.decoded_cache, context.source.recipe_of(job.sample).pipeline())
    else {
        return Ok(None);
    };
    let Some(decoded) = cache.get(job.sample) else { return Ok(None) };
    queue.allot(thread, 0)?;
    let decode_bytes = pipeline.memory_bytes_from(&decoded.image);
    Ok(Some(Read::of_nothing(Some(decoded), decode_bytes)))
}

/// Reads a run of fields, of which the first is at `locator`. Gives the light recipe if its memory is charged, too.
fn read_run<'a>(
    queue: &WorkQueue,
    thread: usize,
    locator: &Locator,
    run: &Run,
    job: ReadJob,
    light: Option<&'a dyn LightRecipe>,
) -> Result<(Object, Option<&'a dyn LightRecipe>)> {
    let source = &queue.context.source;
    let most = queue.context.config.max_sample_bytes();
    // Of several fields the sizes are known, and each one's was checked.
    let (mut is_light, mut is_checked) = (false, !run.is_single());
    let mut allot = |size| {
        // What a store asks for beyond that is for its own work.
        if !std::mem::replace(&mut is_checked, true) {
            check_size(source.recipe_of(job.sample), size)?;
        }
        let more = light.filter(|_| size <= MAX_LIGHT_BYTES).map(|light| light.memory_bytes(size));
        let more = more.filter(|more| size + more <= most);
        is_light = more.is_some();
        queue.allot(thread, size + more.unwrap_or(0))
    };
    // The second of two reads does not wait for the first one, as it would in front of a cache.
    let store = if job.is_hedge { source.store.origin().unwrap_or(&*source.store) } else { &*source.store };
    let mut request = run.request(locator, job.within);
    request.cancel = job.cancel.as_ref();
    let object = read_located(store, &*source.dataset, (job.sample, run.first), &request, &mut allot)?;
    if run.is_single() {
        check_size(source.recipe_of(job.sample), object.bytes.len() as u64)?;
    }
    Ok((object, light.filter(|_| is_light)))
}

/// The sample, made by this thread. `None` if it fails: then a CPU thread makes it again, and reports the error.
fn make_light(queue: &WorkQueue, job: &ReadJob, light: &dyn LightRecipe, object: &Object) -> Option<Value> {
    let started = Instant::now();
    queue.context.source.dataset.verify(job.sample, Field(0), &object.bytes).ok()?;
    let value = light.make(&object.bytes).ok()?;
    record_decode(queue, started);
    Some(value)
}

fn record_decode(queue: &WorkQueue, started: Instant) {
    queue.context.meters.decode.record(started.elapsed());
    queue.context.meters.transform.record(Duration::ZERO);
}

/// Makes a sample in its place in the batch, which is this thread's own by now. If it fails, or panics, a CPU thread makes it
/// again, and reports the error.
fn place(queue: &WorkQueue, fetched: Fetched) {
    let started = Instant::now();
    let place = || {
        let (places, bytes) = fetched.places.as_ref().zip(fetched.objects.bytes_of(Field(0)))?;
        let source = &queue.context.source;
        source.dataset.verify(fetched.item.sample, Field(0), bytes).ok()?;
        // SAFETY: the work queue has given this slot to this thread alone, and reads it only after this thread has filled it.
        let mut slots = unsafe { places.slots(fetched.item.key.slot as usize) };
        source.recipe_of(fetched.item.sample).light()?.place(bytes, &mut slots).ok()
    };
    let is_made = catch_unwind(AssertUnwindSafe(place)).is_ok_and(|made| made.is_some());
    if is_made {
        record_decode(queue, started);
    }
    queue.placed(fetched, is_made);
}
