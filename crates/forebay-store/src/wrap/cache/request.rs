//! What is asked of a cache: an object, or a range of its bytes.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};

use super::calls::away;
use super::folder::{Folder, touch};
use super::key::Key;
use super::{Cached, Lookup, Memory, entry, is_due};
use crate::local::resize;
use crate::read_request::ReadRequest;
use crate::store::{Ends, Object, Stat, Store, still};

/// One read.
pub(super) struct Request<'a> {
    pub(super) path: &'a Path,
    pub(super) key: Key,
    /// The key of the whole object, and which of its bytes; `None` for all of them.
    pub(super) range: Option<(Key, Range<u64>)>,
    /// The version that it has to be of, by the word of whoever asks.
    expected: Option<Stat>,
    /// The version that there is, by the word of the store.
    now: Option<Stat>,
    pub(super) within: Duration,
    started: Instant,
    pub(super) ends: Ends,
}

/// Whether an entry is of the version that is wanted.
pub(super) enum Version {
    Right,
    /// The store has another one.
    Stale,
    /// Whoever asks knows of another one. Who is right is for the store to say.
    Other,
}

impl<'a> Request<'a> {
    pub(super) fn new(identity: &str, request: &ReadRequest<'a>, ends: Ends) -> Self {
        let ReadRequest { path, range, expected, within, .. } = request;
        let whole = Key::whole(identity, path);
        let (key, range) = match range {
            Some(range) => (Key::range(identity, path, range), Some((whole, range.clone()))),
            None => (whole, None),
        };
        Self { path, key, range, expected: *expected, now: None, within: *within, started: Instant::now(), ends }
    }

    /// Whether an entry that was made of this version can be given.
    pub(super) fn version(&self, stat: Stat) -> Version {
        match (self.now, self.expected) {
            (Some(now), _) if now != stat => Version::Stale,
            (_, Some(expected)) if expected != stat => Version::Other,
            _ => Version::Right,
        }
    }

    /// What an entry has to hold if it was made of this version.
    pub(super) fn content_bytes(&self, stat: Stat) -> u64 {
        self.range.as_ref().map_or(stat.size_bytes, |(_, range)| range.end - range.start)
    }

    /// Until when another one's read is waited for.
    pub(super) fn patience(&self) -> Instant {
        const MAX_PATIENCE: Duration = Duration::from_secs(30);
        self.started + (self.within / 2).min(MAX_PATIENCE)
    }

    /// The store has said which version there is.
    pub(super) fn is_now(&mut self, stat: Stat) -> Result<()> {
        still(self.expected.unwrap_or(stat), stat)?;
        self.now = Some(stat);
        Ok(())
    }

    /// Reads from the store, in what is left of the time.
    pub(super) fn fetch(&self, store: &dyn Store, memory: &mut Memory<'_, '_>) -> Result<Object> {
        let left = self.within.saturating_sub(self.started.elapsed());
        // The store's own words about being late come before those of whoever waits for this.
        let left = left - (left / 20).min(Duration::from_secs(1));
        let range = self.range.as_ref().map(|(_, range)| range.clone());
        let (expected, cancel) = (self.expected, self.ends.cancel.as_ref());
        let request = ReadRequest { path: self.path, range, expected, within: left, cancel };
        let object = store.fetch(&request, &mut |size| memory.take(size))?;
        // What is kept is given to others: nothing is kept under a version or a range that it is not of.
        let (range, got) = (request.bytes_of(object.stat)?, object.bytes.len() as u64);
        if self.range.is_some() && got != range.end - range.start {
            return Err(Error::internal(format!("gave {got} bytes for {range:?}")));
        }
        Ok(object)
    }
}

impl Cached {
    /// A range of the whole object, if that is kept, and is of the version that is wanted.
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
        // What ends behind its end is for the store to refuse.
        if !matches!(request.version(head.stat), Version::Right) || range.end > head.stat.size_bytes {
            return Ok(None);
        }
        let size_bytes = range.end - range.start;
        let mut bytes = away(|| memory.take(size_bytes))?;
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

    /// Removes an entry of another version than the one that the store has just given.
    pub(super) fn drop_stale(&self, folder: &Folder, key: &Key, identity: (u64, u64)) -> Lookup {
        match folder.folder(&key.name.shard) {
            Ok(shard) => self.drop_bad(folder, &shard, key, identity, |meters| &meters.stale),
            Err(_) => Lookup::Nothing,
        }
    }
}
