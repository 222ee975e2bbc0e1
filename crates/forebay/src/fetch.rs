//! Fetch: the loop of an I/O thread. Reads whole objects, and hands every trouble to recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay_core::{Error, Result, Stage};
use forebay_decode::Scratch;
use forebay_store::{Allot, Object, Stat};

use crate::flight::Job;
use crate::recover::{after_trouble, panicked};
use crate::schedule::Shared;
use crate::source::check;

/// Reads until the stream stops, or until a read came back too late.
pub(crate) fn run(shared: &Shared, seat: usize) {
    let (mut scratch, mut path) = (Scratch::default(), PathBuf::new());
    while let Some(job) = shared.next_fetch(seat) {
        if !fetch(shared, seat, &mut scratch, &mut path, job) {
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

fn fetch(shared: &Shared, seat: usize, scratch: &mut Scratch, path: &mut PathBuf, job: Job) -> bool {
    path.clear(); // whatever fails before there is a new one is not about the old one
    let read = || {
        shared.source.dataset.write_path(job.sample, path);
        if let Some((error, stat)) = shared.quarantine.check(path, &*shared.source.store) {
            return Err((error, Some(stat)));
        }
        read(shared, seat, path, &job, scratch).map_err(|error| (error.at_stage(Stage::Fetch), None))
    };
    let result: Result<Read, Trouble> =
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err((panicked(panic.as_ref()), None)));
    match result {
        Ok(Read { object, decode_bytes }) => shared.fetched(seat, object, decode_bytes),
        Err((error, known)) => {
            let (trouble, goes_on) = shared.fetch_failed(seat, error.at_path(path).at_index(job.sample.0));
            if let Some((mut item, error)) = trouble {
                item.attempts -= u32::from(known.is_some());
                after_trouble(shared, item, path, error, known);
            }
            goes_on
        }
    }
}

fn read(shared: &Shared, seat: usize, path: &Path, job: &Job, scratch: &mut Scratch) -> Result<Read> {
    let mut allot = |size| shared.allot(seat, size);
    if !shared.source.recipe.reads_bytes() {
        allot(0)?;
        return Ok(Read { object: None, decode_bytes: 0 });
    }
    let store = &*shared.source.store;
    // The second of two reads does not wait for the first one, as it would in front of a cache.
    let store = if job.is_hedge { store.origin().unwrap_or(store) } else { store };
    let dataset = &*shared.source.dataset;
    let read = |allot: &mut Allot<'_>| match &job.cancel {
        Some(cancel) => store.read_unless(path, job.within, cancel, allot),
        None => store.read(path, job.within, allot),
    };
    let mut object = read(&mut allot)?;
    if store.origin().is_some() && check(dataset, job.sample, object.stat).is_err() {
        // A copy of what it once was, perhaps: the manifest may be the newer one.
        store.doubt(path);
        object = read(&mut allot)?;
    }
    check(dataset, job.sample, object.stat)?;
    // A header that cannot be read costs nothing here; decoding will say what is wrong with it.
    let decode_bytes = shared.source.recipe.memory_bytes(&object.bytes, scratch).unwrap_or(0);
    let checked = shared.check_sample_bytes(object.bytes.len() as u64, decode_bytes);
    checked.map_err(|error| error.at_stage(Stage::Decode))?;
    Ok(Read { object: Some(object), decode_bytes })
}
