//! The directory of a cache: preparing it, checking that it is one, and handling failures of its disk.

use std::collections::HashSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::calls::{Calling, Calls};
use super::entry::VERSION;
use super::folder::Folder;
use super::in_flight::FetchesInFlight;
use super::key::Name;
use super::lock::Waited;
use super::usage::{UsageLock, peek};
use crate::hint::hint;
use crate::machine;
use crate::mount::Mount;

/// Marks a directory as a forebay cache. Without this file nothing in a directory is removed.
const MARKER: &str = "forebay-cache";
const MARKER_TEXT: &str = "This directory is a cache of forebay. `forebay cache clear` empties it.\n";
/// Makes backup programs skip the directory: https://bford.info/cachedir/
const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache of forebay.\n";
/// Disk problems, as opposed to configuration errors.
const DISK: [i32; 4] = [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO];

/// Settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// The size limit; `None` for half of its disk's free space, its own entries included.
    pub limit_bytes: Option<u64>,
    /// How long nothing is written after the disk failed.
    pub pause: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { limit_bytes: None, pause: Duration::from_secs(30) }
    }
}

/// Statistics of a cache in this process, and its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads served from the cache.
    pub hits: u64,
    /// Reads served by the store behind it, and cached.
    pub misses: u64,
    /// Reads served by the store behind it, and not cached.
    pub passes: u64,
    /// Entries that this process evicted to make room.
    pub evictions: u64,
    /// Damaged entries that were removed.
    pub corrupt: u64,
    /// Outdated entries that were removed.
    pub stale: u64,
    /// Size of all entries, by all processes.
    pub bytes: u64,
    /// The size limit.
    pub limit_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) passes: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) corrupt: AtomicU64,
    pub(super) stale: AtomicU64,
}

#[derive(Debug, Default)]
struct DiskState {
    /// Nothing is written until then.
    off_until: Option<Instant>,
    /// A thread is testing whether the disk works again.
    is_tried: bool,
    /// A lower limit because the disk is full, and until when it applies.
    shrunk: Option<(u64, Instant)>,
    notice: Option<String>,
    /// Entries that must be removed before they are used.
    doubted: HashSet<Name>,
}

/// A cache directory, shared by all processes of a machine. Pass it to [`super::Cached`].
///
/// Its failures never fail a read: objects that cannot be cached are read from the store.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// The directory of the entries; `None` while it does not exist.
    folder: RwLock<Option<Arc<Folder>>>,
    limit_bytes: u64,
    pause: Duration,
    process: u32,
    disk_state: Mutex<DiskState>,
    /// A warning about the file system it is on.
    about_place: Option<String>,
    has_doubted: AtomicBool,
    calls: Arc<Calls>,
    /// Its size when last looked up.
    last_bytes: AtomicU64,
    pub(super) fetches: FetchesInFlight,
    pub(super) meters: Meters,
}

impl Cache {
    /// Opens a directory as a cache, and turns a new or empty directory into one. A directory with other content is
    /// refused. A full or broken disk is not an error: nothing is cached until it recovers.
    pub fn open(path: &Path, options: CacheOptions) -> Result<Arc<Self>> {
        let path = std::path::absolute(path).map_err(|error| unusable(path, &error))?;
        let mut disk_state = DiskState::default();
        let folder = match prepare(&path) {
            Ok(folder) => Some(Arc::new(folder)),
            Err(error) if is_of_disk(&error) => {
                disk_state.notice = Some(disk_notice(&path, &error));
                disk_state.off_until = Some(Instant::now() + options.pause);
                None
            }
            Err(error) => return Err(unusable(&path, &error)),
        };
        let about_place = Mount::behind(&path)
            .filter(|mount| mount.kind.can_hang())
            .map(|mount| format!("the cache {path:?} is on {mount}, which can hang: put the cache on a local disk"));
        let held = match folder.as_deref().map_or(Ok(0), count) {
            Ok(held) => held,
            Err(error) => {
                disk_state.notice.get_or_insert_with(|| disk_notice(&path, &error));
                disk_state.off_until = Some(Instant::now() + options.pause);
                0
            }
        };
        let half = || machine::space_of(&path).map_or(0, |space| (space.free_bytes + held) / 2);
        Ok(Arc::new(Self {
            limit_bytes: options.limit_bytes.unwrap_or_else(half),
            folder: RwLock::new(folder),
            pause: options.pause,
            process: std::process::id(),
            disk_state: Mutex::new(disk_state),
            about_place,
            has_doubted: AtomicBool::new(false),
            calls: Arc::default(),
            last_bytes: AtomicU64::new(held),
            fetches: FetchesInFlight::default(),
            meters: Meters::default(),
            path,
        }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Statistics and size.
    pub fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let (meters, limit_bytes) = (&self.meters, self.limit());
        CacheStats {
            hits: get(&meters.hits),
            misses: get(&meters.misses),
            passes: get(&meters.passes),
            evictions: get(&meters.evictions),
            corrupt: get(&meters.corrupt),
            stale: get(&meters.stale),
            bytes: self.bytes(),
            limit_bytes,
        }
    }

    /// The current size, or the last known one if the disk does not answer.
    fn bytes(&self) -> u64 {
        const MAX_WAIT: Duration = Duration::from_millis(500);
        let Some(folder) = self.folder() else { return 0 };
        if !self.is_forked() && !self.hangs(MAX_WAIT) {
            let (calls, (sender, answer)) = (Arc::clone(&self.calls), sync_channel(1));
            let ask = move || {
                let _calling = calls.begin();
                // The receiver may have given up.
                let _late = sender.send(peek(&folder).map_or(0, |table| table.total()));
            };
            let started = std::thread::Builder::new().name("forebay-cache".to_owned()).spawn(ask);
            if let Some(bytes) = started.ok().and_then(|_| answer.recv_timeout(MAX_WAIT).ok()) {
                self.last_bytes.store(bytes, Relaxed);
            }
        }
        self.last_bytes.load(Relaxed)
    }

    /// Records this thread as calling the disk; `None` if a call in progress has taken longer than `limit`.
    pub(super) fn calling(&self, limit: Duration) -> Option<Calling> {
        match self.is_forked() {
            true => Some(Calling),
            false => (!self.hangs(limit)).then(|| self.calls.begin()),
        }
    }

    /// Whether the disk has not answered for longer than `limit`. The user is told once.
    pub(super) fn hangs(&self, limit: Duration) -> bool {
        let longest = if self.is_forked() { None } else { self.calls.longest() };
        let Some(longest) = longest.filter(|longest| *longest > limit) else { return false };
        if let Some(mut disk_state) = self.disk_state() {
            disk_state.notice.get_or_insert_with(|| {
                let (path, seconds) = (&self.path, longest.as_secs_f64());
                format!("the cache {path:?} has not answered for {seconds:.1} s; files are read from the source until it does")
            });
        }
        true
    }

    /// A warning for the user: the first disk problem, or else that the cache is on an unsuitable file system.
    pub fn notice(&self) -> Option<String> {
        self.disk_state()?.notice.clone().or_else(|| self.about_place.clone())
    }

    /// Whether this is a forked child, which has a copy of the state but not the threads that change it.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// `None` in a forked child whose parent held the lock during the fork: there it is never released.
    fn disk_state(&self) -> Option<MutexGuard<'_, DiskState>> {
        if !self.is_forked() {
            return Some(self.disk_state.lock());
        }
        self.disk_state.try_lock()
    }

    /// The directory of entries, for reading.
    pub(super) fn folder(&self) -> Option<Arc<Folder>> {
        // The lock is held for writing only while a lost directory is reopened; a reader that meets this goes without
        // the cache.
        self.folder.try_read()?.clone()
    }

    /// The same for writing; `None` for some time after the disk failed.
    pub(super) fn writable(&self) -> Option<Arc<Folder>> {
        {
            let mut disk_state = self.disk_state()?;
            let Some(until) = disk_state.off_until else { return self.folder() };
            if Instant::now() < until || disk_state.is_tried {
                return None;
            }
            // One thread tests the disk, without the lock because the disk may hang. The others go without the cache
            // meanwhile.
            disk_state.is_tried = true;
        }
        // The directory may have been removed, or remounted.
        let prepared = prepare(&self.path).map(Arc::new);
        let mut disk_state = self.disk_state()?;
        disk_state.is_tried = false;
        match prepared {
            Ok(folder) => {
                disk_state.off_until = None;
                *self.folder.try_write()? = Some(Arc::clone(&folder));
                Some(folder)
            }
            Err(_) => {
                disk_state.off_until = Some(Instant::now() + self.pause);
                None
            }
        }
    }

    /// The current size limit.
    pub(super) fn limit(&self) -> u64 {
        let Some(mut disk_state) = self.disk_state() else { return self.limit_bytes };
        match disk_state.shrunk {
            Some((limit, until)) if Instant::now() < until => limit.min(self.limit_bytes),
            _ => {
                disk_state.shrunk = None;
                self.limit_bytes
            }
        }
    }

    /// The disk has no room for more than this.
    pub(super) fn shrink(&self, limit: u64) {
        if let Some(mut disk_state) = self.disk_state() {
            disk_state.shrunk = Some((limit, Instant::now() + self.pause));
        }
    }

    /// Records the first disk error as the notice for the user.
    pub(super) fn record_error(&self, error: &io::Error) {
        if self.disk_state().is_none_or(|disk_state| disk_state.notice.is_some()) {
            return;
        }
        // Composed without the lock: it asks the file system for its free space.
        let notice = disk_notice(&self.path, error);
        if let Some(mut disk_state) = self.disk_state() {
            disk_state.notice.get_or_insert(notice);
        }
    }

    /// Marks an entry as unusable for this process. The next thread that needs it removes it.
    pub(super) fn doubt(&self, name: Name) {
        if let Some(mut disk_state) = self.disk_state() {
            disk_state.doubted.insert(name);
            self.has_doubted.store(true, Relaxed);
        }
    }

    /// A doubted entry was removed.
    pub(super) fn trust(&self, name: &Name) {
        if let Some(mut disk_state) = self.disk_state() {
            disk_state.doubted.remove(name);
            self.has_doubted.store(!disk_state.doubted.is_empty(), Relaxed);
        }
    }

    pub(super) fn is_doubted(&self, name: &Name) -> bool {
        self.has_doubted.load(Relaxed) && self.disk_state().is_some_and(|disk_state| disk_state.doubted.contains(name))
    }

    /// An entry could not be written. Errors that say nothing about the disk (too many open files, a directory in an
    /// entry's place) affect this entry only; after any other error nothing is written for a while.
    pub(super) fn failed(&self, error: io::Error) {
        let passing = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR];
        let in_place = [libc::EISDIR, libc::ENOTEMPTY, libc::ELOOP, libc::ENOTDIR, libc::EMLINK, libc::EEXIST];
        let errno = error.raw_os_error().unwrap_or(0);
        if passing.contains(&errno) {
            return;
        }
        if !in_place.contains(&errno)
            && let Some(mut disk_state) = self.disk_state()
        {
            disk_state.off_until = Some(Instant::now() + self.pause);
        }
        self.record_error(&error);
    }
}

/// How long to wait for the lock on a whole cache. It is held for moments, unless its owner was stopped.
pub(super) const MAX_LOCK_WAIT: Duration = Duration::from_secs(5);

/// The lock was not free in time.
pub(super) fn held_too_long() -> io::Error {
    let seconds = MAX_LOCK_WAIT.as_secs();
    io::Error::other(format!("another process has held its lock for {seconds} s: see `lslocks`"))
}

/// The size of the cache, counted if it is not known.
fn count(folder: &Folder) -> io::Result<u64> {
    // When processes start together, one of them counts and the others wait for it.
    let until = Instant::now() + Duration::from_secs(60);
    match UsageLock::acquire(folder, until, None)? {
        Waited::Done(usage) => Ok(usage.table.total()),
        Waited::Late | Waited::Stopped => Err(held_too_long()),
    }
}

/// The directory name for entries of this format version.
pub(super) fn format_folder() -> String {
    format!("v{VERSION}")
}

/// Whether a name is that of an entry directory, of any format version.
pub(super) fn is_format(name: &str) -> bool {
    name.strip_prefix('v').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The directory itself, if it is a cache.
pub(super) fn root(path: &Path) -> io::Result<Option<Folder>> {
    let root = Folder::open(path)?;
    match root.read(MARKER) {
        Ok(_) => Ok(Some(root)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns a directory into a cache unless it is one, and returns the directory of its entries.
fn prepare(path: &Path) -> io::Result<Folder> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    check_owner(&Folder::open(path)?)?;
    let root = match root(path)? {
        Some(root) => root,
        None => {
            let root = Folder::open(path)?;
            let names = root.names()?;
            // Another process may have marked it by now. Files that every disk has (lost+found) do not count.
            let is_marked = names.iter().any(|name| name == MARKER);
            if let Some(foreign) = names.iter().find(|name| !is_marked && *name != TAG && *name != "lost+found") {
                return Err(io::Error::other(Foreign(foreign.to_string_lossy().into_owned())));
            }
            write_once(&root, MARKER, MARKER_TEXT)?;
            root
        }
    };
    // A read-only cache has the tag already, or does without.
    let _tagged = write_once(&root, TAG, TAG_TEXT);
    let entries = root.make_folder(&format_folder())?;
    check_owner(&entries)?;
    Ok(entries)
}

/// Refuses a directory of another user, who could store any bytes under any object's name, with a valid checksum.
fn check_owner(folder: &Folder) -> io::Result<()> {
    let owner = folder.owner()?;
    let user = rustix::process::geteuid().as_raw();
    if owner == user || owner == 0 {
        return Ok(());
    }
    Err(io::Error::other(ForeignOwner { owner, user }))
}

fn write_once(root: &Folder, name: &str, text: &str) -> io::Result<()> {
    let (file, known) = root.write(name)?;
    if known.length > 0 {
        return Ok(());
    }
    file.write_all_at(text.as_bytes(), 0)
}

/// A directory with other content.
#[derive(Debug)]
struct Foreign(String);

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected a new or empty directory, or a forebay cache, got a directory that contains {:?}", self.0)
    }
}

impl std::error::Error for Foreign {}

/// A directory that belongs to another user.
#[derive(Debug)]
struct ForeignOwner {
    owner: u32,
    user: u32,
}

impl std::fmt::Display for ForeignOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { owner, user } = self;
        write!(f, "expected a directory owned by this user (uid {user}) or by root, got one owned by uid {owner}")
    }
}

impl std::error::Error for ForeignOwner {}

fn is_of_disk(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| DISK.contains(&errno))
}

fn advice(path: &Path, error: &io::Error) -> Option<String> {
    error.raw_os_error().and_then(|errno| hint(path, errno, true))
}

/// An unusable cache is a configuration error.
fn unusable(path: &Path, error: &io::Error) -> Error {
    let hint = advice(path, error).unwrap_or_else(|| "set `cache` to a separate directory on a local disk".into());
    Error::config(format!("cannot be the cache: {error}")).at_path(path).with_hint(hint)
}

/// The notice about a disk that fails during a run.
fn disk_notice(path: &Path, error: &io::Error) -> String {
    let advice = advice(path, error).map_or(String::new(), |advice| format!(" ({advice})"));
    let same = error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error);
    let why = Error::io("written to", same);
    let why = why.message();
    format!(
        "the cache {path:?} cannot store everything: it {why}{advice}; files that are not cached are read from the source"
    )
}
