//! The directory of a cache: whether it is one, and what is done when its disk fails.

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
use super::usage::{Gate, peek};
use crate::hint::hint;
use crate::machine;
use crate::mount::Mount;

/// Says that a directory is a cache of forebay. Nothing is removed from one that has no such file.
const MARKER: &str = "forebay-cache";
const MARKER_TEXT: &str = "This directory is a cache of forebay. `forebay cache clear` empties it.\n";
/// What backup programs and others leave alone: https://bford.info/cachedir/
const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory is a cache of forebay.\n";
/// Trouble with the disk that is no setting to correct.
const DISK: [i32; 4] = [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO];

/// How a cache is kept.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// The most that it holds; `None` for half of what its disk has, free or held by it.
    pub limit_bytes: Option<u64>,
    /// How long nothing is written after its disk failed.
    pub pause: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { limit_bytes: None, pause: Duration::from_secs(30) }
    }
}

/// What a cache did for this process, and how much it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads that were answered from it.
    pub hits: u64,
    /// Reads that were answered by the store behind it, and kept.
    pub misses: u64,
    /// Reads that were answered by the store behind it, and not kept.
    pub passes: u64,
    /// Entries that were removed to make room, by this process.
    pub evictions: u64,
    /// Entries that were not what was written, and were removed.
    pub corrupt: u64,
    /// Entries of objects that had changed, and were removed.
    pub stale: u64,
    /// What it holds, for all processes together.
    pub bytes: u64,
    /// The most that it may hold.
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
struct Trouble {
    /// Nothing is written until then.
    off_until: Option<Instant>,
    /// A thread finds out whether the disk works again.
    is_tried: bool,
    /// A limit that the disk has room for, and until when it holds.
    shrunk: Option<(u64, Instant)>,
    notice: Option<String>,
    /// Entries that are to be removed.
    doubted: HashSet<Name>,
}

/// A directory that keeps objects, for all processes of a machine. Give it to [`super::Cached`].
///
/// Nothing that befalls it fails a read: what cannot be kept is passed on.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    /// Of the entries; `None` while there is no such directory.
    folder: RwLock<Option<Arc<Folder>>>,
    limit_bytes: u64,
    pause: Duration,
    process: u32,
    trouble: Mutex<Trouble>,
    /// What is to be said of where it lies.
    about_place: Option<String>,
    has_doubted: AtomicBool,
    calls: Arc<Calls>,
    /// What it held when that was last looked up.
    last_bytes: AtomicU64,
    pub(super) fetches: FetchesInFlight,
    pub(super) meters: Meters,
}

impl Cache {
    /// Opens a directory as a cache, and makes it one if it is new or empty. A directory with anything else in it is
    /// refused. A disk that is full or broken is not: then nothing is kept until it has recovered.
    pub fn open(path: &Path, options: CacheOptions) -> Result<Arc<Self>> {
        let path = std::path::absolute(path).map_err(|error| unusable(path, &error))?;
        let mut trouble = Trouble::default();
        let folder = match prepare(&path) {
            Ok(folder) => Some(Arc::new(folder)),
            Err(error) if is_of_disk(&error) => {
                trouble.notice = Some(said(&path, &error));
                trouble.off_until = Some(Instant::now() + options.pause);
                None
            }
            Err(error) => return Err(unusable(&path, &error)),
        };
        let about_place = Mount::behind(&path).filter(|mount| mount.kind.can_hang()).map(|mount| {
            format!("the cache {path:?} lies on {mount}, which can hang: a cache belongs on a disk of the machine")
        });
        let held = match folder.as_deref().map_or(Ok(0), count) {
            Ok(held) => held,
            Err(error) => {
                trouble.notice.get_or_insert_with(|| said(&path, &error));
                trouble.off_until = Some(Instant::now() + options.pause);
                0
            }
        };
        let half = || machine::space_of(&path).map_or(0, |space| (space.free_bytes + held) / 2);
        Ok(Arc::new(Self {
            limit_bytes: options.limit_bytes.unwrap_or_else(half),
            folder: RwLock::new(folder),
            pause: options.pause,
            process: std::process::id(),
            trouble: Mutex::new(trouble),
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

    /// What it did, and what it holds.
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

    /// What it holds; what it held, where its disk does not answer.
    fn bytes(&self) -> u64 {
        const PATIENCE: Duration = Duration::from_millis(500);
        let Some(folder) = self.folder() else { return 0 };
        if !self.is_forked() && !self.hangs(PATIENCE) {
            let (calls, (sender, answer)) = (Arc::clone(&self.calls), sync_channel(1));
            let ask = move || {
                let _calling = calls.begin();
                // Nobody waits for it any more, perhaps.
                let _late = sender.send(peek(&folder).map_or(0, |table| table.total()));
            };
            let started = std::thread::Builder::new().name("forebay-cache".to_owned()).spawn(ask);
            if let Some(bytes) = started.ok().and_then(|_| answer.recv_timeout(PATIENCE).ok()) {
                self.last_bytes.store(bytes, Relaxed);
            }
        }
        self.last_bytes.load(Relaxed)
    }

    /// Counts this thread among those that call its disk; `None` when one of those has not come back for longer than
    /// `limit`.
    pub(super) fn calling(&self, limit: Duration) -> Option<Calling> {
        match self.is_forked() {
            true => Some(Calling),
            false => (!self.hangs(limit)).then(|| self.calls.begin()),
        }
    }

    /// Whether its disk has not answered for longer than `limit`. Said once.
    pub(super) fn hangs(&self, limit: Duration) -> bool {
        let longest = if self.is_forked() { None } else { self.calls.longest() };
        let Some(longest) = longest.filter(|longest| *longest > limit) else { return false };
        if let Some(mut trouble) = self.trouble() {
            trouble.notice.get_or_insert_with(|| {
                let (path, seconds) = (&self.path, longest.as_secs_f64());
                format!("the cache {path:?} has not answered for {seconds:.1} s; files are read from their source until it does")
            });
        }
        true
    }

    /// What the user should know of it: the first trouble with its disk; until there is one, that it lies in a bad place.
    pub fn notice(&self) -> Option<String> {
        self.trouble()?.notice.clone().or_else(|| self.about_place.clone())
    }

    /// A forked child has the memory of threads that are not there.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// `None` in a forked child whose parent held the lock at that moment: nobody will ever give it back there.
    fn trouble(&self) -> Option<MutexGuard<'_, Trouble>> {
        if !self.is_forked() {
            return Some(self.trouble.lock());
        }
        self.trouble.try_lock()
    }

    /// The directory of entries, for reading.
    pub(super) fn folder(&self) -> Option<Arc<Folder>> {
        // It is written to when a lost directory is found again; whoever meets that goes without.
        self.folder.try_read()?.clone()
    }

    /// The same for writing; `None` for a while after its disk failed.
    pub(super) fn writable(&self) -> Option<Arc<Folder>> {
        {
            let mut trouble = self.trouble()?;
            let Some(until) = trouble.off_until else { return self.folder() };
            if Instant::now() < until || trouble.is_tried {
                return None;
            }
            // One thread tries the disk, without the lock: the disk may hang. The others go without a cache meanwhile.
            trouble.is_tried = true;
        }
        // It may have been removed, or mounted anew.
        let prepared = prepare(&self.path).map(Arc::new);
        let mut trouble = self.trouble()?;
        trouble.is_tried = false;
        match prepared {
            Ok(folder) => {
                trouble.off_until = None;
                *self.folder.try_write()? = Some(Arc::clone(&folder));
                Some(folder)
            }
            Err(_) => {
                trouble.off_until = Some(Instant::now() + self.pause);
                None
            }
        }
    }

    /// The most that it may hold now.
    pub(super) fn limit(&self) -> u64 {
        let Some(mut trouble) = self.trouble() else { return self.limit_bytes };
        match trouble.shrunk {
            Some((limit, until)) if Instant::now() < until => limit.min(self.limit_bytes),
            _ => {
                trouble.shrunk = None;
                self.limit_bytes
            }
        }
    }

    /// Its disk had no room for more than this.
    pub(super) fn shrink(&self, limit: u64) {
        if let Some(mut trouble) = self.trouble() {
            trouble.shrunk = Some((limit, Instant::now() + self.pause));
        }
    }

    /// Says what its disk said, if nothing was said yet.
    pub(super) fn tell(&self, error: &io::Error) {
        if self.trouble().is_none_or(|trouble| trouble.notice.is_some()) {
            return;
        }
        // Worked out without the lock: it asks the file system how full it is.
        let notice = said(&self.path, error);
        if let Some(mut trouble) = self.trouble() {
            trouble.notice.get_or_insert(notice);
        }
    }

    /// An entry is not to be used by this process. It is removed by whoever wants it next.
    pub(super) fn doubt(&self, name: Name) {
        if let Some(mut trouble) = self.trouble() {
            trouble.doubted.insert(name);
            self.has_doubted.store(true, Relaxed);
        }
    }

    /// An entry that was doubted is gone.
    pub(super) fn trust(&self, name: &Name) {
        if let Some(mut trouble) = self.trouble() {
            trouble.doubted.remove(name);
            self.has_doubted.store(!trouble.doubted.is_empty(), Relaxed);
        }
    }

    pub(super) fn is_doubted(&self, name: &Name) -> bool {
        self.has_doubted.load(Relaxed) && self.trouble().is_some_and(|trouble| trouble.doubted.contains(name))
    }

    /// Something could not be kept. What says nothing about the disk (too many open files, a directory in an entry's
    /// place) concerns this one only; after anything else nothing is written for a while.
    pub(super) fn failed(&self, error: io::Error) {
        let passing = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR];
        let in_place = [libc::EISDIR, libc::ENOTEMPTY, libc::ELOOP, libc::ENOTDIR, libc::EMLINK, libc::EEXIST];
        let errno = error.raw_os_error().unwrap_or(0);
        if passing.contains(&errno) {
            return;
        }
        if !in_place.contains(&errno)
            && let Some(mut trouble) = self.trouble()
        {
            trouble.off_until = Some(Instant::now() + self.pause);
        }
        self.tell(&error);
    }
}

/// How long the lock on a whole cache is waited for. It is held for moments, unless its owner was stopped.
pub(super) const GATE_PATIENCE: Duration = Duration::from_secs(5);

/// The lock was not to be had.
pub(super) fn held_too_long() -> io::Error {
    let seconds = GATE_PATIENCE.as_secs();
    io::Error::other(format!("another process has held its lock for {seconds} s: see `lslocks`"))
}

/// What the cache holds; counted if that is not known.
fn count(folder: &Folder) -> io::Result<u64> {
    // Where processes start together, one of them counts and the others wait for it.
    let until = Instant::now() + Duration::from_secs(60);
    match Gate::enter(folder, until, None)? {
        Waited::Done(gate) => Ok(gate.table.total()),
        Waited::Late | Waited::Stopped => Err(held_too_long()),
    }
}

/// The name of the directory that entries of this version lie in.
pub(super) fn format_folder() -> String {
    format!("v{VERSION}")
}

/// Whether a name is that of a directory of entries, of any version.
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

/// Makes a directory a cache, unless it is one, and gives the directory of its entries.
fn prepare(path: &Path) -> io::Result<Folder> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    check_owner(&Folder::open(path)?)?;
    let root = match root(path)? {
        Some(root) => root,
        None => {
            let root = Folder::open(path)?;
            let names = root.names()?;
            // Another process may have made it one by now; and what every disk has is nobody's.
            let is_marked = names.iter().any(|name| name == MARKER);
            if let Some(foreign) = names.iter().find(|name| !is_marked && *name != TAG && *name != "lost+found") {
                return Err(io::Error::other(Foreign(foreign.to_string_lossy().into_owned())));
            }
            write_once(&root, MARKER, MARKER_TEXT)?;
            root
        }
    };
    // A cache that can only be read has it, or does without.
    let _tagged = write_once(&root, TAG, TAG_TEXT);
    let entries = root.make_folder(&format_folder())?;
    check_owner(&entries)?;
    Ok(entries)
}

/// Refuses the directory of another user. Its owner could put any bytes there under any object's name, with a checksum
/// that fits them.
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

/// A directory that is somebody's.
#[derive(Debug)]
struct Foreign(String);

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected a new or an empty directory, or a cache of forebay, got one with {:?} in it", self.0)
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
        write!(f, "expected a directory that belongs to this user (uid {user}) or to root, got one of uid {owner}")
    }
}

impl std::error::Error for ForeignOwner {}

fn is_of_disk(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| DISK.contains(&errno))
}

fn advice(path: &Path, error: &io::Error) -> Option<String> {
    error.raw_os_error().and_then(|errno| hint(path, errno, true))
}

/// A cache that cannot be used is a setting to correct.
fn unusable(path: &Path, error: &io::Error) -> Error {
    let hint =
        advice(path, error).unwrap_or_else(|| "give `cache` a directory of its own, on a disk of this machine".into());
    Error::config(format!("cannot be the cache: {error}")).at_path(path).with_hint(hint)
}

/// What is said of a disk that fails during a run.
fn said(path: &Path, error: &io::Error) -> String {
    let advice = advice(path, error).map_or(String::new(), |advice| format!(" ({advice})"));
    let same = error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error);
    let why = Error::io("written to", same);
    let why = why.message();
    format!("the cache {path:?} cannot keep everything: it {why}{advice}; what it cannot keep is read from its source")
}
