//! Fetch: the loop of an I/O thread. Reads whole objects, and hands every trouble to recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use forebay_core::{Error, Result, Stage};
use forebay_decode::Scratch;
use forebay_store::{Object, Stat};

use crate::item::{Fetched, Item};
use crate::recover::{after_trouble, panicked};
use crate::schedule::Shared;

/// Reads until the stream stops.
pub(crate) fn run(shared: &Shared, worker: usize) {
    let mut scratch = Scratch::default();
    while let Some(item) = shared.next_fetch(worker) {
        fetch(shared, worker, &mut scratch, item);
    }
}

/// What a read gave.
struct Read {
    object: Object,
    decode_bytes: u64,
}

/// Why there is nothing to decode, with what is known of the file.
type Trouble = (Error, Option<Stat>);

fn fetch(shared: &Shared, worker: usize, scratch: &mut Scratch, mut item: Item) {
    let started = shared.clock.now();
    item.started.get_or_insert(started);
    let mut charged = None;
    let mut path = PathBuf::new();
    let read = || {
        path = shared.source.dataset.path(item.sample);
        if let Some((error, stat)) = shared.quarantine.check(&path, &*shared.source.store) {
            return Err((error, Some(stat)));
        }
        item.attempts += 1;
        read(shared, &path, &mut charged, scratch).map_err(|error| (error.at_stage(Stage::Fetch), None))
    };
    let result: Result<Read, Trouble> =
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err((panicked(panic.as_ref()), None)));
    match result {
        Ok(Read { object, decode_bytes }) => {
            shared.meters.fetch.record(shared.clock.now().saturating_sub(started));
            shared.meters.bytes_read.fetch_add(object.bytes.len() as u64, Relaxed);
            let charged = charged.unwrap_or(0);
            shared.fetched(worker, Fetched { item, path, object, charged, decode_bytes, buffer: None });
        }
        Err((error, stat)) => {
            shared.fetch_failed(worker, charged, &error);
            after_trouble(shared, item, &path, error, stat);
        }
    }
}

fn read(shared: &Shared, path: &Path, charged: &mut Option<u64>, scratch: &mut Scratch) -> Result<Read> {
    let mut allot = |size| {
        let buffer = shared.allot(size)?;
        *charged = Some(size);
        Ok(buffer)
    };
    if shared.source.open.is_some() {
        // The user's own way opens the path itself; a CPU thread will call it.
        let object = Object { bytes: allot(0)?.into(), stat: Stat { size_bytes: 0, mtime_ns: 0 } };
        return Ok(Read { object, decode_bytes: 0 });
    }
    let object = shared.source.store.read(path, &mut allot)?;
    // A header that cannot be read costs nothing here; decoding will say what is wrong with it.
    let decode_bytes = shared.source.pipeline.memory_bytes(&object.bytes, scratch).unwrap_or(0);
    Ok(Read { object, decode_bytes })
}
