//! Fetch: the loop of an I/O thread. Reads whole objects, and hands every trouble to recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use forebay_core::{Result, Stage};
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

fn fetch(shared: &Shared, worker: usize, scratch: &mut Scratch, mut item: Item) {
    let started = shared.clock.now();
    item.started.get_or_insert(started);
    let path = shared.source.dataset.path(item.sample);
    if let Some((error, stat)) = shared.quarantine.check(&path, &*shared.source.store) {
        shared.fetch_failed(worker, None, &error);
        return after_trouble(shared, item, &path, error, Some(stat));
    }
    item.attempts += 1;
    let mut charged = None;
    let read = || -> Result<Object> {
        if shared.source.open.is_some() {
            // The user's own way opens the path itself; a CPU thread will call it.
            let bytes = shared.allot(0)?;
            charged = Some(0);
            return Ok(Object { bytes, stat: Stat { size_bytes: 0, mtime_ns: 0 } });
        }
        shared.source.store.read(&path, &mut |size| {
            let buffer = shared.allot(size)?;
            charged = Some(size);
            Ok(buffer)
        })
    };
    let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
    match result {
        Ok(object) => {
            shared.meters.fetch.record(shared.clock.now().saturating_sub(started));
            shared.meters.bytes_read.fetch_add(object.bytes.len() as u64, Relaxed);
            // A header that cannot be read costs nothing here; decoding will say what is wrong with it.
            let decode_bytes = match shared.source.open {
                Some(_) => 0,
                None => shared.source.pipeline.memory_bytes(&object.bytes, scratch).unwrap_or(0),
            };
            let charged = charged.unwrap_or(0);
            shared.fetched(worker, Fetched { item, path, object, charged, decode_bytes, buffer: None });
        }
        Err(error) => {
            shared.fetch_failed(worker, charged, &error);
            after_trouble(shared, item, &path, error.at_stage(Stage::Fetch), None);
        }
    }
}
