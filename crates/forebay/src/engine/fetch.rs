//! Fetch: the loop of an I/O thread. Reads objects, or parts of them, and hands every trouble to recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, Locator, Result, Stage};
use forebay_decode::Scratch;
use forebay_store::{Object, Stat};

use crate::engine::reads_in_flight::ReadJob;
use crate::engine::recover::{after_trouble, panicked};
use crate::engine::work_queue::WorkQueue;
use crate::source::{check_size, read_located, read_request};

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
struct Read {
    /// `None` where nothing is to be read.
    object: Option<Object>,
    decode_bytes: u64,
}

/// Why there is nothing to decode, with what is known of the file when it was not read at all.
type Trouble = (Error, Option<Stat>);

fn fetch(queue: &WorkQueue, thread: usize, scratch: &mut Scratch, locator: &mut Locator, job: ReadJob) -> bool {
    locator.path.clear(); // whatever fails before there is a new one is not about the old one
    let read = || {
        queue.context.source.dataset.locate(job.sample, locator);
        if let Some((error, stat)) = queue.context.quarantine.check(locator, &*queue.context.source.store) {
            return Err((error, Some(stat)));
        }
        read(queue, thread, locator, &job, scratch).map_err(|error| (error.at_stage(Stage::Fetch), None))
    };
    let result: Result<Read, Trouble> =
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err((panicked(panic.as_ref()), None)));
    match result {
        Ok(Read { object, decode_bytes }) => queue.fetched(thread, object, decode_bytes),
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

fn read(queue: &WorkQueue, thread: usize, locator: &Locator, job: &ReadJob, scratch: &mut Scratch) -> Result<Read> {
    let recipe = &*queue.context.source.recipe;
    let mut allot = |size| check_size(recipe, size).and_then(|()| queue.allot(thread, size));
    if !recipe.reads_bytes() {
        allot(0)?;
        return Ok(Read { object: None, decode_bytes: 0 });
    }
    let store = &*queue.context.source.store;
    // The second of two reads does not wait for the first one, as it would in front of a cache.
    let store = if job.is_hedge { store.origin().unwrap_or(store) } else { store };
    let mut request = read_request(locator, job.within);
    request.cancel = job.cancel.as_ref();
    let object = read_located(store, &*queue.context.source.dataset, job.sample, &request, &mut allot)?;
    // A header that cannot be read costs nothing here; decoding will say what is wrong with it.
    let decode_bytes = recipe.memory_bytes(&object.bytes, scratch).unwrap_or(0);
    let checked = queue.check_sample_bytes(object.bytes.len() as u64, decode_bytes);
    checked.map_err(|error| error.at_stage(Stage::Decode))?;
    Ok(Read { object: Some(object), decode_bytes })
}
