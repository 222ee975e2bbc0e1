//! A read request to a cache: an object, or a range of its bytes.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};

use super::calls::outside_disk_call;
use super::folder::{Folder, touch};
use super::key::Key;
use super::{Cached, Lookup, Memory, entry, is_due};
use crate::local::resize;
use crate::read_request::ReadRequest;
use crate::store::{CancelSignals, Object, Stat, Store, check_unchanged};

/// One read.
pub(super) struct Request<'a> {
    pub(super) path: &'a Path,
    pub(super) key: Key,
    /// The key of the whole object and the range; `None` for all of it.
    pub(super) range: Option<(Key, Range<u64>)>,
    /// The version that the caller expects.
    expected: Option<Stat>,
    /// The current version, according to the store.
    now: Option<Stat>,
    pub(super) within: Duration,
    started: Instant,
    pub(super) signals: CancelSignals,
}

/// Whether an entry has the right version.
pub(super) enum Version {
    Right,
    /// The store has another version.
    Stale,
    /// The caller expects another version. The store has to decide which one is right.
    Other,
}

impl<'a> Request<'a> {
    pub(super) fn new(identity: &str, request: &ReadRequest<'a>, signals: CancelSignals) -> Self {
        let ReadRequest { path, range, expected, within, .. } = request;
        let whole = Key::whole(identity, path);
        let (key, range) = match range {
            Some(range) => (Key::range(identity, path, range), Some((whole, range.clone()))),
            None => (whole, None),
        };
        Self { path, key, range, expected: *expected, now: None, within: *within, started: Instant::now(), signals }
    }

    /// Whether an entry of this version can be served.
    pub(super) fn version(&self, stat: Stat) -> Version {
        match (self.now, self.expected) {
            (Some(now), _) if now != stat => Version::Stale,
            (_, Some(expected)) if expected != stat => Version::Other,
            _ => Version::Right,
        }
    }

    /// The content length of an entry of this version.
    pub(super) fn content_bytes(&self, stat: Stat) -> u64 {
        self.range.as_ref().map_or(stat.size_bytes, |(_, range)| range.end - range.start)
    }

    /// How long to wait for another thread's read.
    pub(super) fn wait_deadline(&self) -> Instant {
        const MAX_WAIT: Duration = Duration::from_secs(30);
        self.started + (self.within / 2).min(MAX_WAIT)
    }

    /// Records the store's current version.
    pub(super) fn is_now(&mut self, stat: Stat) -> Result<()> {
        check_unchanged(self.expected.unwrap_or(stat), stat)?;
        self.now = Some(stat);
        Ok(())
    }

    /// Reads from the store in the remaining time.
    pub(super) fn fetch(&self, store: &dyn Store, memory: &mut Memory<'_, '_>) -> Result<Object> {
        let left = self.within.saturating_sub(self.started.elapsed());
        // Leaves some time, so that the store's own timeout error comes before the caller's.
        let left = left - (left / 20).min(Duration::from_secs(1));
        let range = self.range.as_ref().map(|(_, range)| range.clone());
        let (expected, cancel) = (self.expected, self.signals.cancel.as_ref());
        let request = ReadRequest { path: self.path, range, expected, within: left, cancel };
        let object = store.fetch(&request, &mut |size| memory.take(size))?;
        // Entries are served to other readers: an object must match the requested version and range.
        let (range, got) = (request.bytes_of(object.stat)?, object.bytes.len() as u64);
        if self.range.is_some() && got != range.end - range.start {
            return Err(Error::internal(format!("returned {got} bytes for the range {range:?}")));
        }
        Ok(object)
    }
}

impl Cached {
    /// Serves a range from the whole object, if that is cached in the right version.
    pub(super) fn lookup_in_whole(
        &self,
        folder: &Folder,
        request: &Request<'_>,
        memory: &mut Memory<'_, '_>,
    ) -> Result<Option<Object>> {
        let Some((key, range)) = request.range.as_ref().filter(|(key, _)| !self.is_doubted(folder, key)) else {
            return Ok(None);
        };
        let Ok(shard) = folder.folder(&key.name.shard) else { return Ok(None) };
        let (file, known) = match shard.read(&key.name.entry) {
            Ok(found) => found,
            Err(error) => {
                self.not_opened(folder, &shard, key, &error);
                return Ok(None);
            }
        };
        let damaged = || self.drop_bad(folder, &shard, key, known.identity, |meters| &meters.corrupt);
        let head = match entry::head(&file, known.length) {
            Ok(Some(head)) if head.key == key.text && head.content_bytes == head.stat.size_bytes => head,
            Ok(_) | Err(_) => {
                damaged();
                return Ok(None);
            }
        };
        // A range beyond the end is the store's to refuse.
        if !matches!(request.version(head.stat), Version::Right) || range.end > head.stat.size_bytes {
            return Ok(None);
        }
        let size_bytes = range.end - range.start;
        let mut bytes = outside_disk_call(|| memory.take(size_bytes))?;
        resize(&mut bytes, size_bytes)?;
        bytes.clear();
        if !entry::range_of(&file, &head, range, &mut bytes).unwrap_or(false) {
            memory.held = Some((size_bytes, bytes));
            damaged();
            return Ok(None);
        }
        if is_due(known.mtime_ns) {
            touch(&file);
        }
        self.count(|meters| &meters.hits);
        Ok(Some(Object { bytes: bytes.into(), stat: head.stat }))
    }

    /// Removes an entry that is older than the version just read from the store.
    pub(super) fn drop_stale(&self, folder: &Folder, key: &Key, identity: (u64, u64)) -> Lookup {
        match folder.folder(&key.name.shard) {
            Ok(shard) => self.drop_bad(folder, &shard, key, identity, |meters| &meters.stale),
            Err(_) => Lookup::Nothing,
        }
    }
}
