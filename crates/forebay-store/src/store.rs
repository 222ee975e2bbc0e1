//! What a store is, and what every one of them promises.

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
use crate::wrap::{CacheStats, Kept, Readers};

/// What is known of an object without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its length.
    pub size_bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Stat {
    /// What a listing itself says of an entry; `None` where it says nothing.
    pub fn listed(listing: &Listing, position: usize) -> Option<Self> {
        let Version { size_bytes, mtime_ns, etag } = listing.version(position)?;
        Some(Self { size_bytes: (*size_bytes)?, mtime_ns: stamp_ns((*mtime_ns)?, etag.as_deref()) })
    }
}

/// What was read of an object.
#[derive(Debug)]
pub struct Object {
    /// All its bytes, or those of the range that was asked for.
    pub bytes: Bytes,
    /// What the whole object was when it was opened.
    pub stat: Stat,
}

/// An object's bytes: in the buffer that was allotted for them, or where a reader process has put them, which is given
/// back when they are dropped. Either lives as long as it is held, whatever becomes of store and reader.
#[derive(Debug)]
pub struct Bytes {
    buffer: Vec<u8>,
    kept: Option<Kept>,
}

impl Bytes {
    pub(crate) fn kept(kept: Kept, buffer: Vec<u8>) -> Self {
        Self { buffer, kept: Some(kept) }
    }

    /// Gives the bytes up and returns the buffer that was allotted, used or not, for the next read.
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// The bytes in memory of their own: the buffer that was allotted, or a copy in it.
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

/// Charges this many bytes once the memory budget allows it, and gives a buffer that may be used for them; or the error
/// that ends the read. Asked once more, it takes back what was charged before.
pub type Allot<'a> = dyn FnMut(u64) -> Result<Vec<u8>> + 'a;

/// A place that bytes come from.
///
/// # Contract (checked by `testing::conformance` for every store)
/// - `fetch` returns all bytes that were asked for or an error, never a part: fewer bytes than the store itself announced
///   are a transient error, and an object whose size or mtime moved meanwhile is `Kind::Changed`. It asks `allot` for
///   memory, with the exact size, before it takes any.
/// - Of a range, only its bytes are read. The object is compared with `expected` as for a whole read. A range that ends
///   behind the object's end is `Kind::Changed` where `expected` says otherwise, and `Kind::Corrupt` (truncated) where not.
///   An empty range is no read of bytes, but the object is examined: over the network that is one request.
/// - A read that is cancelled before it begins is `Kind::Stopped`, and nothing is asked of the storage. One that is
///   cancelled later ends early where the store can do so.
/// - Each call starts afresh: no descriptor or connection state of a failed call is used again.
/// - Errors carry their path and errno; `is_transient` follows promise 5. A store never retries.
/// - What is not a regular object (a pipe, a device, a directory) is an error at once and never blocks.
/// - `list` follows links to directories, and says of each entry whether it is one.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Reads an object, or a range of it.
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object>;
    /// Reads a whole object, `within` this time where the store keeps deadlines.
    fn read(&self, path: &Path, within: Duration, allot: &mut Allot<'_>) -> Result<Object> {
        self.fetch(&ReadRequest::new(path, within), allot)
    }
    /// The same, for a read that may become needless: a store that can gives it up as soon as `cancel` is raised.
    fn read_unless(&self, path: &Path, within: Duration, cancel: &Cancel, allot: &mut Allot<'_>) -> Result<Object> {
        self.fetch(&ReadRequest::new(path, within).with_cancel(cancel), allot)
    }
    /// What is known of an object without reading it.
    fn stat(&self, path: &Path) -> Result<Stat>;
    /// The entries of a directory.
    fn list(&self, directory: &Path) -> Result<Listing>;
    /// What an object's bytes add up to by the word of its server; `None` where it gives none.
    fn sum(&self, _path: &Path) -> Result<Option<Sum>> {
        Ok(None)
    }
    /// The same store, and a way to end the calls that are made through it; `None` where calls cannot be ended early.
    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        None
    }
    /// Ends the processes and gives back the descriptors that it has for calls to come. The next call gets new ones.
    fn rest(&self) {}
    /// What it is and can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    /// Reads may hang in something that a read of the [`Store::origin`] goes around: those that have taken this long, of
    /// the time that they may take. `None` while nothing hangs.
    fn hangs_for(&self, _within: Duration) -> Option<Duration> {
        None
    }
    /// The reader processes it has; `None` where it reads in the calling thread.
    fn readers(&self) -> Option<Readers> {
        None
    }
    /// What went over the network; `None` where the bytes come from this machine or its mounts.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
    /// What tells it from other stores that have the same paths: an endpoint, an account. Without secrets.
    fn identity(&self) -> String {
        String::new()
    }
    /// The store behind a cache, for a read that must not wait for another one's; `None` where there is no cache.
    fn origin(&self) -> Option<&dyn Store> {
        None
    }
    /// What was last read of an object may not be what it is: the next read is not one of a copy.
    fn doubt(&self, _path: &Path) {}
    /// The same of a part: the next read of this part is not one of a copy.
    fn doubt_range(&self, _path: &Path, _range: Range<u64>) {}
    /// What its cache did; `None` where there is none.
    fn cache(&self) -> Option<CacheStats> {
        None
    }
    /// What the user should know of its cache: the first trouble with its disk. Costs next to nothing to ask.
    fn cache_notice(&self) -> Option<String> {
        None
    }
}

/// Whether an object is what it was.
pub(crate) fn still(expected: Stat, now: Stat) -> Result<()> {
    if now == expected {
        return Ok(());
    }
    let what = match (expected.size_bytes, now.size_bytes) {
        (expected, now) if expected == now => "its modification time is another one".to_owned(),
        (expected, now) => format!("expected {expected} bytes, got {now}"),
    };
    Err(Error::new(Kind::Changed, format!("changed while it was read ({what})")))
}

/// Ends one call to a store that can be ended: once raised, the call fails with `Kind::Stopped`.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancel {
    /// Ends it. It cannot be taken back.
    pub fn raise(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was.
    pub fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is raised.
    fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut raised = self.0.subscribe();
        let own = Arc::clone(&self.0);
        async move {
            // It fails only when nobody can raise it any more, which `own` prevents.
            let _raised = raised.wait_for(|raised| *raised).await;
            drop(own);
        }
    }
}

/// What ends a call early: what ends all calls to its store, and what ends this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) stop: Option<Stop>,
    pub(crate) cancel: Option<Cancel>,
}

impl Ends {
    pub(crate) fn is_raised(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.raised.is_raised())
            || self.cancel.as_ref().is_some_and(Cancel::is_raised)
    }

    /// Waits until either is raised: for ever, where there is none.
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

    /// What a call that was ended fails with.
    pub(crate) fn error() -> Error {
        Error::new(Kind::Stopped, "the loader was closed during a read, or went on without it")
    }
}

/// Ends calls to a store: once raised, those in progress and those to come fail with `Kind::Stopped`.
#[derive(Clone, Debug)]
pub struct Stop {
    /// For those that wait in poll(2).
    descriptor: Arc<File>,
    /// For those that wait in a runtime.
    raised: Cancel,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor: Arc::new(descriptor.into()), raised: Cancel::default() })
    }

    /// Ends them. It cannot be taken back.
    pub fn raise(&self) {
        // It fails only when the count is full, and then it is raised.
        let _raised = (&*self.descriptor).write_all(&1_u64.to_ne_bytes());
        self.raised.raise();
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
