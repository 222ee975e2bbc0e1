//! An in-process cache of objects with a size limit.
//!
//! Nothing is evicted: each epoch reads every object once in a new order, so evicting one object for another gains
//! nothing. Objects that fit stay; the others are read again. Entries are not revalidated; the disk cache can do that.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_core::{Listing, Result};
use parking_lot::{Mutex, MutexGuard};

use super::{CacheStats, Readers};
use crate::capabilities::Capabilities;
use crate::local::resize;
use crate::read_request::ReadRequest;
use crate::remote::{Sum, Traffic};
use crate::store::{Allot, Object, Stat, Stop, Store};

/// Memory of an entry beyond its bytes and path: about the size of its map slot.
const ENTRY_BYTES: u64 = 128;

/// Objects in memory. Shared by all stores of a dataset.
#[derive(Debug)]
pub struct MemoryCache {
    limit_bytes: u64,
    cached: Mutex<Entries>,
    hits: AtomicU64,
    misses: AtomicU64,
    passes: AtomicU64,
}

#[derive(Debug, Default)]
struct Entries {
    objects: HashMap<PathBuf, Parts>,
    /// All entries, including their overhead.
    bytes: u64,
}

/// What is kept of an object: all of it, and ranges by their begin and end, of which files of lines have millions.
#[derive(Debug, Default)]
struct Parts {
    whole: Option<Entry>,
    ranges: HashMap<(u64, u64), Entry>,
}

impl Parts {
    /// The entry that has the requested bytes, and these.
    fn find(&self, range: Option<&Range<u64>>) -> Option<(&Entry, Range<usize>)> {
        let exact = match range {
            Some(range) => self.ranges.get(&(range.start, range.end)),
            None => self.whole.as_ref(),
        };
        let inside = || {
            let (whole, range) = (self.whole.as_ref()?, range?);
            let range = range.start as usize..range.end as usize;
            whole.content.get(range.clone()).map(|_| (whole, range))
        };
        exact.map(|entry| (entry, 0..entry.content.len())).or_else(inside)
    }

    /// Keeps an entry, and gives the one of the same bytes.
    fn insert(&mut self, range: Option<&Range<u64>>, entry: Entry) -> Option<Entry> {
        match range {
            Some(range) => self.ranges.insert((range.start, range.end), entry),
            None => self.whole.replace(entry),
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.whole.iter().chain(self.ranges.values())
    }
}

/// An object, or some bytes of one.
#[derive(Clone, Debug)]
struct Entry {
    stat: Stat,
    content: Arc<[u8]>,
}

impl Entry {
    fn charge(&self, path: &Path) -> u64 {
        self.content.len() as u64 + path.as_os_str().len() as u64 + ENTRY_BYTES
    }
}

impl MemoryCache {
    /// A cache of at most this many bytes.
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            cached: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            passes: AtomicU64::new(0),
        }
    }

    fn cached(&self) -> MutexGuard<'_, Entries> {
        self.cached.lock()
    }

    fn find(&self, request: &ReadRequest<'_>) -> Option<(Entry, Range<usize>)> {
        let cached = self.cached();
        let (entry, place) = cached.objects.get(request.path)?.find(request.range.as_ref())?;
        // If another version is expected, the store has to decide.
        request.expected.is_none_or(|expected| expected == entry.stat).then(|| (entry.clone(), place))
    }

    /// Stores an object if there is room for it.
    fn keep(&self, request: &ReadRequest<'_>, object: &Object) {
        let charge = object.bytes.len() as u64 + request.path.as_os_str().len() as u64 + ENTRY_BYTES;
        let fits = |cached: &Entries| cached.bytes + charge <= self.limit_bytes;
        if !fits(&self.cached()) {
            self.passes.fetch_add(1, Relaxed);
            return;
        }
        // Copied without the lock. A failed allocation counts as no room.
        let mut content = Vec::new();
        if content.try_reserve_exact(object.bytes.len()).is_err() {
            self.passes.fetch_add(1, Relaxed);
            return;
        }
        content.extend_from_slice(&object.bytes);
        let entry = Entry { stat: object.stat, content: content.into() };
        let mut cached = self.cached();
        if !fits(&cached) {
            self.passes.fetch_add(1, Relaxed);
            return;
        }
        let parts = cached.objects.entry(request.path.to_owned()).or_default();
        let removed = parts.insert(request.range.as_ref(), entry).map_or(0, |before| before.charge(request.path));
        cached.bytes = cached.bytes - removed + charge;
        self.misses.fetch_add(1, Relaxed);
    }

    fn forget(&self, path: &Path) {
        let mut cached = self.cached();
        let removed: u64 =
            cached.objects.remove(path).iter().flat_map(Parts::entries).map(|entry| entry.charge(path)).sum();
        cached.bytes -= removed;
    }

    /// Of other ranges there may be millions, of which nothing was said.
    fn forget_range(&self, path: &Path, range: &Range<u64>) {
        let mut cached = self.cached();
        let Some(parts) = cached.objects.get_mut(path) else { return };
        let removed = [parts.whole.take(), parts.ranges.remove(&(range.start, range.end))];
        let removed: u64 = removed.iter().flatten().map(|entry| entry.charge(path)).sum();
        cached.bytes -= removed;
    }

    fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            passes: self.passes.load(Relaxed),
            bytes: self.cached().bytes,
            limit_bytes: self.limit_bytes,
            ..CacheStats::default()
        }
    }
}

/// A store whose objects are kept in a [`MemoryCache`].
#[derive(Debug)]
pub struct MemoryCached {
    inner: Arc<dyn Store>,
    cache: Arc<MemoryCache>,
}

impl MemoryCached {
    /// Caches the objects of a store.
    pub fn new(inner: Arc<dyn Store>, cache: Arc<MemoryCache>) -> Self {
        Self { inner, cache }
    }
}

impl Store for MemoryCached {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        if request.is_empty() {
            return self.inner.fetch(request, allot);
        }
        request.check_cancel()?;
        if let Some((entry, place)) = self.cache.find(request) {
            let bytes = &entry.content[place];
            let mut buffer = allot(bytes.len() as u64)?;
            resize(&mut buffer, bytes.len() as u64)?;
            buffer.copy_from_slice(bytes);
            self.cache.hits.fetch_add(1, Relaxed);
            return Ok(Object { bytes: buffer.into(), stat: entry.stat });
        }
        let object = self.inner.fetch(request, allot)?;
        self.cache.keep(request, &object);
        Ok(object)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        self.inner.sum(path)
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        let (inner, stop) = self.inner.stoppable()?;
        Some((Arc::new(Self { inner, cache: Arc::clone(&self.cache) }), stop))
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { is_cached: true, ..self.inner.capabilities() }
    }

    fn hangs_for(&self, within: Duration) -> Option<Duration> {
        self.inner.hangs_for(within)
    }

    fn readers(&self) -> Option<Readers> {
        self.inner.readers()
    }

    fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn origin(&self) -> Option<&dyn Store> {
        Some(&*self.inner)
    }

    fn doubt(&self, path: &Path) {
        self.cache.forget(path);
        self.inner.doubt(path);
    }

    fn doubt_range(&self, path: &Path, range: Range<u64>) {
        self.cache.forget_range(path, &range);
        self.inner.doubt_range(path, range);
    }

    fn cache(&self) -> Option<CacheStats> {
        Some(self.cache.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;
    use forebay_core::Kind;

    fn store(limit_bytes: u64) -> MemoryCached {
        let mut memory = Memory::default();
        (0..10_u8).for_each(|number| memory.insert(format!("/{number}"), vec![number; 1000]));
        MemoryCached::new(Arc::new(memory), Arc::new(MemoryCache::new(limit_bytes)))
    }

    fn read(store: &dyn Store, number: u8) -> Object {
        store.read(Path::new(&format!("/{number}")), Duration::MAX, &mut |_| Ok(Vec::new())).unwrap()
    }

    fn counts(store: &MemoryCached) -> (u64, u64, u64) {
        let CacheStats { hits, misses, passes, bytes, limit_bytes, .. } = store.cache().unwrap();
        assert!(bytes <= limit_bytes);
        (hits, misses, passes)
    }

    #[test]
    fn what_fits_is_kept_and_the_rest_read_again() {
        let store = store(4 * 1200);
        for epoch in 0..3 {
            for number in (0..10).rev() {
                assert_eq!(read(&store, number).bytes, vec![number; 1000]);
            }
            assert_eq!(counts(&store), (epoch * 4, 4, (epoch + 1) * 6));
        }
    }

    #[test]
    fn a_range_is_kept_by_itself_or_taken_of_the_whole() {
        let store = store(1 << 20);
        let path = Path::new("/7");
        let range =
            |range| store.fetch(&ReadRequest::new(path, Duration::MAX).with_range(range), &mut |_| Ok(Vec::new()));
        assert_eq!(range(10..20).unwrap().bytes, [7; 10]);
        assert_eq!(range(10..20).unwrap().stat.size_bytes, 1000);
        assert_eq!(counts(&store), (1, 1, 0));
        assert_eq!(range(10..21).unwrap().bytes, [7; 11]);
        read(&store, 7);
        assert_eq!(counts(&store), (1, 3, 0));
        assert_eq!(range(900..1000).unwrap().bytes, [7; 100]);
        assert_eq!(counts(&store), (2, 3, 0));
        assert_eq!(range(900..1001).unwrap_err().kind(), Kind::Corrupt, "the storage says so");
        assert_eq!(range(5..5).unwrap().bytes, []);
    }

    #[test]
    fn a_doubted_range_is_read_again_and_the_others_stay() {
        let (store, path) = (store(1 << 20), Path::new("/7"));
        let range = |range| {
            store.fetch(&ReadRequest::new(path, Duration::MAX).with_range(range), &mut |_| Ok(Vec::new())).unwrap();
        };
        (0..4).for_each(|at| range(at * 10..at * 10 + 10));
        let before = store.cache().unwrap().bytes;
        store.doubt_range(path, 10..20);
        assert!(store.cache().unwrap().bytes < before);
        (0..4).for_each(|at| range(at * 10..at * 10 + 10));
        assert_eq!(counts(&store), (3, 5, 0));
        assert_eq!(store.cache().unwrap().bytes, before);
    }

    #[test]
    fn what_is_doubted_or_of_another_version_is_read_of_the_storage() {
        let store = store(1 << 20);
        let stat = read(&store, 1).stat;
        store.doubt(Path::new("/1"));
        read(&store, 1);
        assert_eq!(counts(&store), (0, 2, 0));
        let other = Stat { mtime_ns: stat.mtime_ns + 1, ..stat };
        let request = ReadRequest::new(Path::new("/1"), Duration::MAX).with_expected(other);
        assert_eq!(store.fetch(&request, &mut |_| Ok(Vec::new())).unwrap_err().kind(), Kind::Changed);
        assert_eq!(counts(&store), (0, 2, 0));
        assert!(store.capabilities().is_cached && store.origin().is_some());
    }

    #[test]
    fn memory_is_allotted_for_what_is_kept_as_for_what_is_read() {
        let store = store(1 << 20);
        read(&store, 1);
        let mut asked = Vec::new();
        let refused = store.read(Path::new("/1"), Duration::MAX, &mut |size| {
            asked.push(size);
            Err(forebay_core::Error::new(Kind::Stopped, "no"))
        });
        assert_eq!((refused.unwrap_err().kind(), asked), (Kind::Stopped, vec![1000]));
    }
}
