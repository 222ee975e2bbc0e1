//! A cache directory for objects of any store, and ranges of them, shared by all processes of a machine.
//!
//! Every read of an entry verifies its checksum. Several threads or processes that need the same object fetch it once.
//! The size is bounded, and only forebay's own files are removed. If the directory or its disk fails, reads go to the
//! store behind it. File layout: `cache/key.rs`, `entry.rs`, `usage.rs`; reasons: decisions/0022.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_core::{Listing, Result, Stage};

use crate::capabilities::Capabilities;
use crate::local::resize;
use crate::read_request::ReadRequest;
use crate::remote::Traffic;
use crate::store::{Allot, CancelSignals, Object, Stat, Stop, Store};
use crate::wrap::Readers;

mod calls;
mod claim;
mod directory;
pub(crate) mod entry;
mod evict;
mod folder;
mod in_flight;
mod inspect;
mod key;
mod lock;
mod request;
mod usage;

use calls::{hang_limit, outside_disk_call};
use claim::{Claim, Claimed, lock_usage, make_room};
pub use directory::{Cache, CacheOptions, CacheStats};
use evict::{remove_known, remove_uncounted};
use folder::{Folder, touch};
use in_flight::{Joined, Leader, Outcome};
pub use inspect::{CacheInfo, Cleared, Damaged, Verified};
use key::Key;
use lock::Waited;
use request::{Request, Version};

/// A store whose objects are kept in a [`Cache`].
///
/// An entry counts as current for as long as it exists, unless every read asks the store ([`Cached::revalidating`]) or
/// the entry was doubted ([`Store::doubt`]). `stat` and `list` always ask the store.
///
/// A range is stored as it was requested, and is served from the whole object if that is cached.
///
/// Reads of the same object, in any thread or process, wait for the first one: for half of their time and at most half
/// a minute. Then they read from the store themselves, and store nothing.
#[derive(Clone, Debug)]
pub struct Cached {
    inner: Arc<dyn Store>,
    cache: Arc<Cache>,
    identity: String,
    revalidates: bool,
    stop: Option<Stop>,
}

/// The result of a lookup in the cache.
enum Lookup {
    Hit(Object),
    Nothing,
    /// The entry is damaged or outdated, and could not be removed.
    Bad((u64, u64)),
    /// The caller expects another version. The store has to decide which one is right.
    Other((u64, u64)),
}

/// Memory for one read, allotted once even if the read starts over.
struct Memory<'a, 'b> {
    allot: &'a mut Allot<'b>,
    held: Option<(u64, Vec<u8>)>,
}

impl Memory<'_, '_> {
    fn take(&mut self, size: u64) -> Result<Vec<u8>> {
        match self.held.take() {
            Some((held, buffer)) if held == size => Ok(buffer),
            other => {
                drop(other);
                (self.allot)(size)
            }
        }
    }
}

impl Cached {
    /// Caches the objects of `inner` in `cache`.
    pub fn new(inner: Arc<dyn Store>, cache: Arc<Cache>) -> Self {
        Self { identity: inner.identity(), inner, cache, revalidates: false, stop: None }
    }

    /// The same; with `true`, every read first asks the store whether the object is unchanged.
    pub fn revalidating(self, revalidates: bool) -> Self {
        Self { revalidates, ..self }
    }

    fn count(&self, counter: impl Fn(&directory::Meters) -> &AtomicU64) {
        counter(&self.cache.meters).fetch_add(1, Relaxed);
    }

    /// Looks for an entry. A damaged or outdated one is removed.
    fn lookup(&self, folder: &Folder, request: &Request<'_>, memory: &mut Memory<'_, '_>) -> Result<Lookup> {
        let key = &request.key;
        let Ok(shard) = folder.folder(&key.name.shard) else { return Ok(Lookup::Nothing) };
        let (file, known) = match shard.read(&key.name.entry) {
            Ok(found) => found,
            Err(error) => return Ok(self.not_opened(folder, &shard, key, &error)),
        };
        let head = match entry::head(&file, known.length) {
            Ok(Some(head)) if head.key == key.text && head.content_bytes == request.content_bytes(head.stat) => head,
            // An unreadable entry is treated as damaged.
            Ok(_) | Err(_) => return Ok(self.drop_bad(folder, &shard, key, known.identity, |meters| &meters.corrupt)),
        };
        match request.version(head.stat) {
            Version::Right => {}
            Version::Other => return Ok(Lookup::Other(known.identity)),
            Version::Stale => return Ok(self.drop_bad(folder, &shard, key, known.identity, |meters| &meters.stale)),
        }
        let mut buffer = outside_disk_call(|| memory.take(head.content_bytes))?;
        resize(&mut buffer, head.content_bytes)?;
        let is_read = entry::fill(&file, &mut buffer, 0).unwrap_or(false);
        if !is_read || !head.is_of(&buffer) {
            memory.held = Some((head.content_bytes, buffer));
            return Ok(self.drop_bad(folder, &shard, key, known.identity, |meters| &meters.corrupt));
        }
        if is_due(known.mtime_ns) {
            touch(&file);
        }
        self.count(|meters| &meters.hits);
        Ok(Lookup::Hit(Object { bytes: buffer.into(), stat: head.stat }))
    }

    /// An entry could not be opened: usually it does not exist, is not ours, or no descriptor is left. If the disk
    /// cannot read it, it counts as damaged.
    fn not_opened(&self, folder: &Folder, shard: &Folder, key: &Key, error: &std::io::Error) -> Lookup {
        let is_unreadable = matches!(error.raw_os_error(), Some(libc::EIO | libc::EUCLEAN | libc::EBADMSG));
        match is_unreadable.then(|| shard.stat(&key.name.entry)) {
            Some(Ok(known)) => self.drop_bad(folder, shard, key, known.identity, |meters| &meters.corrupt),
            _ => Lookup::Nothing,
        }
    }

    fn drop_bad(
        &self,
        folder: &Folder,
        shard: &Folder,
        key: &Key,
        identity: (u64, u64),
        counter: impl Fn(&directory::Meters) -> &AtomicU64,
    ) -> Lookup {
        self.count(counter);
        match self.remove(folder, shard, key, identity) {
            Ok(_) => Lookup::Nothing,
            Err(error) => {
                self.cache.failed(error);
                Lookup::Bad(identity)
            }
        }
    }

    /// Removes an entry if it is still the same file.
    fn remove(&self, folder: &Folder, shard: &Folder, key: &Key, identity: (u64, u64)) -> std::io::Result<bool> {
        match lock_usage(folder) {
            Ok(mut usage) => remove_known(&mut usage, shard, key.name.slot(), &key.name.entry, identity),
            // The usage count stays too large until the next scan.
            Err(_) => remove_uncounted(shard, &key.name.entry, identity),
        }
    }

    /// Reads from the store without storing an entry.
    fn pass(&self, request: &Request<'_>, memory: &mut Memory<'_, '_>) -> Result<Object> {
        let object = request.fetch(&*self.inner, memory)?;
        self.count(|meters| &meters.passes);
        Ok(object)
    }

    /// Stores an object as an entry. Failure does not affect the read.
    fn keep(&self, claim: Claim, key: &Key, object: &Object) -> bool {
        match self.try_keep(claim, key, object) {
            Ok(is_kept) => is_kept,
            Err(error) => {
                self.cache.failed(error);
                false
            }
        }
    }

    fn try_keep(&self, mut claim: Claim, key: &Key, object: &Object) -> std::io::Result<bool> {
        let tail = entry::tail(key, &object.bytes, object.stat);
        let length = (object.bytes.len() + tail.len()) as u64;
        let evicted = |count| self.cache.meters.evictions.fetch_add(count, Relaxed);
        match claim.reserve(length, self.cache.limit())? {
            Some(count) => evicted(count),
            None => return Ok(false),
        };
        if let Err(error) = claim.write(&object.bytes, &tail) {
            if !is_full(&error) {
                return Err(error);
            }
            self.make_room(&claim.folder, claim.reserved, error)?;
            claim.write(&object.bytes, &tail)?;
        }
        claim.commit()
    }

    /// The disk is full before the cache has reached its limit: evicts the least recently used entries and lowers the
    /// limit to what is left. If there is nothing to evict, the disk's own error stands.
    fn make_room(&self, folder: &Folder, wanted: u64, error: std::io::Error) -> std::io::Result<()> {
        // Reported before room is made: the message quotes the free space.
        self.cache.record_error(&error);
        let (left, count) = make_room(folder, wanted)?;
        if count == 0 {
            return Err(error);
        }
        self.cache.meters.evictions.fetch_add(count, Relaxed);
        self.cache.shrink(left);
        Ok(())
    }

    /// Decides which thread of this process fetches an object: this one, or another that already does.
    fn join(&self, key: &Key, until: Instant, signals: &CancelSignals) -> Waited<Option<Joined<'_>>> {
        if self.cache.is_forked() {
            return Waited::Done(None);
        }
        match self.cache.fetches.join(&key.name, until, Some(signals)) {
            Waited::Done(joined) => Waited::Done(Some(joined)),
            Waited::Late => Waited::Late,
            Waited::Stopped => Waited::Stopped,
        }
    }

    fn get(&self, mut request: Request<'_>, memory: &mut Memory<'_, '_>) -> Result<Object> {
        /// In each round an entry or its directory disappeared between two calls, or was damaged.
        const MAX_ROUNDS: u32 = 4;
        let until = request.wait_deadline();
        if self.revalidates {
            request.is_now(self.inner.stat(request.path)?)?;
        }
        let Some(calling) = self.cache.calling(hang_limit(request.within)) else { return self.pass(&request, memory) };
        let folder = self.cache.folder().or_else(|| self.cache.writable());
        let Some(folder) = folder.filter(|folder| !self.is_doubted(folder, &request.key)) else {
            drop(calling);
            return self.pass(&request, memory);
        };
        let mut has_made_room = false;
        for _ in 0..MAX_ROUNDS {
            let (bad, other) = match self.lookup(&folder, &request, memory)? {
                Lookup::Hit(object) => return Ok(object),
                Lookup::Nothing => (None, None),
                Lookup::Bad(identity) => (Some(identity), None),
                Lookup::Other(identity) => (Some(identity), Some(identity)),
            };
            if let Some(object) = self.lookup_in_whole(&folder, &request, memory)? {
                return Ok(object);
            }
            let mut leader: Option<Leader<'_>> =
                match outside_disk_call(|| self.join(&request.key, until, &request.signals)) {
                    Waited::Done(Some(Joined::Leader(leader))) => Some(leader),
                    Waited::Done(None) => None,
                    Waited::Done(Some(Joined::Finished(Outcome::Kept | Outcome::Failed))) => continue,
                    Waited::Done(Some(Joined::Finished(Outcome::Passed))) | Waited::Late => break,
                    Waited::Stopped => return Err(CancelSignals::error()),
                };
            let Some(folder) = self.cache.writable() else { break };
            let claim = match Claim::take(&folder, &request.key.name, bad, until, Some(&request.signals)) {
                Ok(Waited::Done(Claimed::Mine(claim))) => claim,
                Ok(Waited::Done(Claimed::Present)) => {
                    leader.iter_mut().for_each(|leader| leader.outcome = Outcome::Kept);
                    continue;
                }
                Ok(Waited::Late) => break,
                Ok(Waited::Stopped) => return Err(CancelSignals::error()),
                // Files and directories need disk space as well.
                Err(error) if is_full(&error) && !has_made_room => {
                    has_made_room = true;
                    match self.make_room(&folder, 0, error) {
                        Ok(()) => continue,
                        Err(error) => self.cache.failed(error),
                    }
                    break;
                }
                // Another process clears the cache, and has removed the directory that was just created.
                Err(error) if error.kind() == ErrorKind::NotFound && folder.is_there() => continue,
                Err(error) => {
                    self.cache.failed(error);
                    break;
                }
            };
            let object = outside_disk_call(|| request.fetch(&*self.inner, memory))?;
            if let Some(identity) = other {
                self.drop_stale(&folder, &request.key, identity);
            }
            let is_kept = self.keep(claim, &request.key, &object);
            let outcome = if is_kept { Outcome::Kept } else { Outcome::Passed };
            leader.iter_mut().for_each(|leader| leader.outcome = outcome);
            self.count(|meters| if is_kept { &meters.misses } else { &meters.passes });
            return Ok(object);
        }
        drop(calling);
        self.pass(&request, memory)
    }

    /// Whether an entry is doubted but could not be removed, as in a read-only cache.
    fn is_doubted(&self, folder: &Folder, key: &Key) -> bool {
        if !self.cache.is_doubted(&key.name) {
            return false;
        }
        let removed = folder.folder(&key.name.shard).and_then(|shard| {
            let known = shard.stat(&key.name.entry)?;
            self.remove(folder, &shard, key, known.identity)
        });
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                self.cache.failed(error);
                true
            }
            _ => {
                self.cache.trust(&key.name);
                false
            }
        }
    }
}

/// Whether the error says that the disk or the user's quota is full.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Whether the entry's last-used time needs an update. Updating on each read would cost a write per read.
fn is_due(mtime_ns: i64) -> bool {
    const EVERY: Duration = Duration::from_secs(10);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX).saturating_sub(mtime_ns);
    // An entry with a time in the future must not stay for ever.
    age_ns > EVERY.as_nanos() as i64 || age_ns < 0
}

impl Store for Cached {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let end = request.range.as_ref().map_or(0, |range| range.end);
        // Not cached: an empty range has no bytes, and for a range beyond the end the store has to report the error.
        if request.is_empty() || request.expected.is_some_and(|expected| end > expected.size_bytes) {
            return self.inner.fetch(request, allot);
        }
        request.check_cancel()?;
        let mut memory = Memory { allot, held: None };
        let signals = CancelSignals { stop: self.stop.clone(), cancel: request.cancel.cloned() };
        let path = request.path;
        let request = Request::new(&self.identity, request, signals);
        self.get(request, &mut memory).map_err(|error| error.at_path(path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        // Waiting for other readers can be stopped, even if the store's own reads cannot.
        let (inner, stop) = match self.inner.stoppable() {
            Some((inner, stop)) => (inner, stop),
            None => (Arc::clone(&self.inner), Stop::new().ok()?),
        };
        Some((Arc::new(Self { inner, stop: Some(stop.clone()), ..self.clone() }), stop))
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn capabilities(&self) -> Capabilities {
        // The cache's disk may hang like any other.
        Capabilities { keeps_deadlines: false, is_cached: true, ..self.inner.capabilities() }
    }

    fn hangs_for(&self, within: Duration) -> Option<Duration> {
        let limit = hang_limit(within);
        self.cache.hangs(limit).then_some(limit)
    }

    fn readers(&self) -> Option<Readers> {
        self.inner.readers()
    }

    fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn origin(&self) -> Option<&dyn Store> {
        Some(&*self.inner)
    }

    fn doubt(&self, path: &Path) {
        self.cache.doubt(Key::whole(&self.identity, path).name);
    }

    fn doubt_range(&self, path: &Path, range: Range<u64>) {
        self.cache.doubt(Key::range(&self.identity, path, &range).name);
        // The range may have been served from the entry of the whole object.
        self.cache.doubt(Key::whole(&self.identity, path).name);
    }

    fn cache(&self) -> Option<CacheStats> {
        Some(self.cache.stats())
    }

    fn cache_notice(&self) -> Option<String> {
        self.cache.notice()
    }
}
