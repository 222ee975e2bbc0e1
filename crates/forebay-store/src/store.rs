//! The `Store` trait, its contract, and the types of a read.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result, Version, stamp_ns};
use futures_util::future::select;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::watch;

use crate::capabilities::Capabilities;
use crate::read_request::ReadRequest;
use crate::remote::{Sum, Traffic};
use crate::repairs::Repairs;
use crate::wrap::{CacheStats, Readers, WindowBytes};

/// An object's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its length.
    pub size_bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Stat {
    /// The metadata that a listing itself gives for an entry; `None` if it gives none.
    pub fn listed(listing: &Listing, position: usize) -> Option<Self> {
        let Version { size_bytes, mtime_ns, etag } = listing.version(position)?;
        Some(Self { size_bytes: (*size_bytes)?, mtime_ns: stamp_ns((*mtime_ns)?, etag.as_deref()) })
    }
}

/// The result of a read.
#[derive(Debug)]
pub struct Object {
    /// All its bytes, or those of the requested range.
    pub bytes: Bytes,
    /// The metadata of the whole object when it was opened.
    pub stat: Stat,
}

/// An object's bytes: in the allotted buffer, or in the shared memory of a reader process, which is returned when they
/// are dropped. Both stay valid while they are held, even after the store or the reader is gone.
#[derive(Debug)]
pub struct Bytes {
    buffer: Vec<u8>,
    kept: Option<WindowBytes>,
}

impl Bytes {
    pub(crate) fn kept(kept: WindowBytes, buffer: Vec<u8>) -> Self {
        Self { buffer, kept: Some(kept) }
    }

    /// Drops the bytes and returns the allotted buffer, used or not, for the next read.
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// The bytes in memory of their own: the allotted buffer, with a copy if they were elsewhere.
    pub fn into_vec(self) -> Vec<u8> {
        let Self { mut buffer, kept } = self;
        if let Some(kept) = kept {
            buffer.clear();
            buffer.extend_from_slice(&kept);
        }
        buffer
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.kept.as_deref().unwrap_or(&self.buffer)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        Self { buffer, kept: None }
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Bytes {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

/// Waits until the memory budget allows this many bytes, charges them, and returns a buffer for them; an error ends the
/// read. A second call for the same read first returns the earlier charge.
pub type Allot<'a> = dyn FnMut(u64) -> Result<Vec<u8>> + 'a;

/// A source of objects.
///
/// # Contract (checked by `testing::conformance` for every store)
/// - `fetch` returns all requested bytes or an error, never a part: fewer bytes than the store itself announced are a
///   transient error, and an object whose size or mtime changed meanwhile is `Kind::Changed`. It asks `allot` for the
///   exact size before it takes any memory.
/// - Only the bytes of a range are read. The object is compared with `expected` as for a whole read. A range that ends
///   beyond the object's end is `Kind::Changed` if `expected` was longer, and `Kind::Corrupt` (truncated) otherwise.
///   An empty range reads no bytes, but the object is examined: over the network that is one request.
/// - A read that is cancelled before it begins is `Kind::Stopped`, and the storage is not called. A read that is
///   cancelled later ends early if the store supports that.
/// - Each call starts afresh: no descriptor or connection state of a failed call is used again.
/// - Errors carry their path and errno; `is_transient` follows promise 5. A store never retries.
/// - Anything but a regular object (a pipe, a device, a directory) is an error at once and never blocks.
/// - `list` follows links to directories, and tells for each entry whether it is a directory.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Reads an object, or a range of it.
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object>;
    /// Reads a whole object, `within` this time if the store keeps deadlines.
    fn read(&self, path: &Path, within: Duration, allot: &mut Allot<'_>) -> Result<Object> {
        self.fetch(&ReadRequest::new(path, within), allot)
    }
    /// The same, for a read that may be cancelled: stores that can do so end it as soon as `cancel` is raised.
    fn read_unless(&self, path: &Path, within: Duration, cancel: &Cancel, allot: &mut Allot<'_>) -> Result<Object> {
        self.fetch(&ReadRequest::new(path, within).with_cancel(cancel), allot)
    }
    /// An object's metadata, without reading it.
    fn stat(&self, path: &Path) -> Result<Stat>;
    /// The entries of a directory.
    fn list(&self, directory: &Path) -> Result<Listing>;
    /// A running checksum that compares bytes with the one its server declares; `None` if the server declares none.
    fn sum(&self, _path: &Path) -> Result<Option<Sum>> {
        Ok(None)
    }
    /// The same store with a handle that ends all calls made through it; `None` if calls cannot be ended early.
    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        None
    }
    /// Ends idle processes and closes idle descriptors. The next call opens new ones.
    fn rest(&self) {}
    /// What callers may rely on.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    /// How long the slowest read has been stuck in a layer that a read of the [`Store::origin`] bypasses, if that is
    /// long for reads that may take `within`. `None` while nothing hangs.
    fn hangs_for(&self, _within: Duration) -> Option<Duration> {
        None
    }
    /// Statistics of its reader processes; `None` if it reads in the calling thread.
    fn readers(&self) -> Option<Readers> {
        None
    }
    /// Network traffic so far; `None` if the bytes come from this machine or its mounts.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
    /// Distinguishes stores that have the same paths: an endpoint, an account. Contains no secrets.
    fn identity(&self) -> String {
        String::new()
    }
    /// The store behind a cache, for a read that must not wait for another read; `None` if there is no cache.
    fn origin(&self) -> Option<&dyn Store> {
        None
    }
    /// Marks the cached copy of an object as suspect: the next read bypasses it.
    fn doubt(&self, _path: &Path) {}
    /// The same for a range of the object.
    fn doubt_range(&self, _path: &Path, _range: Range<u64>) {}
    /// Statistics of its cache; `None` if there is none.
    fn cache(&self) -> Option<CacheStats> {
        None
    }
    /// A warning for the user about its cache: the first disk problem. Cheap to call.
    fn cache_notice(&self) -> Option<String> {
        None
    }
    /// Statistics of what it repairs; `None` if it repairs nothing.
    fn repairs(&self) -> Option<Repairs> {
        None
    }
    /// What to do about damaged bytes of an object that it could not repair: a hint in place of the error's own.
    fn repair_hint(&self, _path: &Path, _range: Option<&Range<u64>>) -> Option<String> {
        None
    }
}

/// Fails if an object has changed.
pub(crate) fn check_unchanged(expected: Stat, now: Stat) -> Result<()> {
    if now == expected {
        return Ok(());
    }
    let what = match (expected.size_bytes, now.size_bytes) {
        (expected, now) if expected == now => "its modification time changed".to_owned(),
        (expected, now) => format!("expected {expected} bytes, got {now}"),
    };
    Err(Error::new(Kind::Changed, format!("changed while it was read ({what})")))
}

/// Ends one call to a store that supports it: once raised, the call fails with `Kind::Stopped`.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancel {
    /// Ends the call. It cannot be undone.
    pub fn raise(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is raised.
    fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut raised = self.0.subscribe();
        let own = Arc::clone(&self.0);
        async move {
            // Fails only when every sender is gone, and `own` is one.
            let _raised = raised.wait_for(|raised| *raised).await;
            drop(own);
        }
    }
}

/// The signals that end a call early: the stop of its store, and its own cancel.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelSignals {
    pub(crate) stop: Option<Stop>,
    pub(crate) cancel: Option<Cancel>,
}

impl CancelSignals {
    pub(crate) fn is_raised(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.raised.is_raised())
            || self.cancel.as_ref().is_some_and(Cancel::is_raised)
    }

    /// Waits until either is raised; for ever if there is none.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let stop = self.stop.as_ref().map(|stop| stop.raised.wait());
        let cancel = self.cancel.as_ref().map(Cancel::wait);
        async move {
            match (stop, cancel) {
                (Some(stop), Some(cancel)) => {
                    let _either = select(pin!(stop), pin!(cancel)).await;
                }
                (Some(stop), None) => stop.await,
                (None, Some(cancel)) => cancel.await,
                (None, None) => std::future::pending().await,
            }
        }
    }

    /// The error of a call that was ended.
    pub(crate) fn error() -> Error {
        Error::new(Kind::Stopped, "the read was cancelled: the loader was closed, or needs it no longer")
    }
}

/// Ends calls to a store: once raised, calls in progress and later ones fail with `Kind::Stopped`.
#[derive(Clone, Debug)]
pub struct Stop {
    /// For threads that wait in poll(2).
    descriptor: Arc<File>,
    /// For tasks that wait in the async runtime.
    raised: Cancel,
    /// Those that are raised with it.
    others: Vec<Stop>,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor: Arc::new(descriptor.into()), raised: Cancel::default(), others: Vec::new() })
    }

    /// One that raises all of these; `None` if there are none.
    pub(crate) fn of_all(stops: Vec<Self>) -> Option<Self> {
        let mut stops = stops.into_iter();
        let first = stops.next()?;
        Some(Self { others: stops.collect(), ..first })
    }

    /// Ends the calls. It cannot be undone.
    pub fn raise(&self) {
        // Fails only when the counter is full, and then it is already raised.
        let _raised = (&*self.descriptor).write_all(&1_u64.to_ne_bytes());
        self.raised.raise();
        self.others.iter().for_each(Self::raise);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
