//! What is asked of a cache: an object, or a range of its bytes.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};

use super::folder::{Folder, touch};
use super::key::Key;
use super::{Cached, Look, Memory, entry, is_due};
use crate::local::resize;
use crate::store::{Allot, Ends, Object, Stat, Store, still};

/// One read.
pub(super) struct Want<'a> {
    pub(super) path: &'a Path,
    pub(super) key: Key,
    /// The key of the whole object, and which of its bytes; `None` for all of them.
    pub(super) range: Option<(Key, Range<u64>)>,
    /// The version that it has to be of, where that is known.
    pub(super) expected: Option<Stat>,
    pub(super) within: Duration,
    started: Instant,
    pub(super) ends: Ends,
}

impl<'a> Want<'a> {
    pub(super) fn whole(identity: &str, path: &'a Path, within: Duration, ends: Ends) -> Self {
        let key = Key::whole(identity, path);
        Self { path, key, range: None, expected: None, within, started: Instant::now(), ends }
    }

    pub(super) fn range(
        identity: &str,
        path: &'a Path,
        range: Range<u64>,
        expected: Stat,
        within: Duration,
        ends: Ends,
    ) -> Self {
        let (key, whole) = (Key::range(identity, path, &range), Key::whole(identity, path));
        Self { path, key, range: Some((whole, range)), expected: Some(expected), within, started: Instant::now(), ends }
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
        self.expected = Some(stat);
        Ok(())
    }

    /// Reads from the store, in what is left of the time.
    pub(super) fn fetch(&self, store: &dyn Store, memory: &mut Memory<'_, '_>) -> Result<Object> {
        let left = self.within.saturating_sub(self.started.elapsed());
        // The store's own words about being late come before those of whoever waits for this.
        let left = left - (left / 20).min(Duration::from_secs(1));
        match (&self.range, self.expected) {
            (Some((_, range)), Some(stat)) => {
                let bytes = store.read_range(self.path, range.clone(), stat, left)?;
                if bytes.len() as u64 != range.end - range.start {
                    return Err(Error::internal(format!("gave {} bytes for {range:?}", bytes.len())));
                }
                Ok(Object { bytes: bytes.into(), stat })
            }
            _ => {
                let allot: &mut Allot<'_> = &mut |size| memory.take(size);
                match &self.ends.cancel {
                    Some(cancel) => store.read_unless(self.path, left, cancel, allot),
                    None => store.read(self.path, left, allot),
                }
            }
        }
    }
}

impl Cached {
    /// A range of the whole object, if that is kept, and is of the version that is wanted.
    pub(super) fn look_in_whole(&self, folder: &Folder, want: &Want<'_>) -> Result<Option<Object>> {
        let Some((key, range)) = want.range.as_ref().filter(|(key, _)| !self.is_doubted(folder, key)) else {
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
        if want.expected != Some(head.stat) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        resize(&mut bytes, range.end - range.start)?;
        bytes.clear();
        if !entry::range_of(&file, &head, range, &mut bytes).unwrap_or(false) {
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
    pub(super) fn drop_stale(&self, folder: &Folder, key: &Key, identity: (u64, u64)) -> Look {
        match folder.folder(&key.name.shard) {
            Ok(shard) => self.drop_bad(folder, &shard, key, identity, |meters| &meters.stale),
            Err(_) => Look::Nothing,
        }
    }
}
