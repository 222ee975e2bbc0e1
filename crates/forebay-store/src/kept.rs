//! Files of local disks whose descriptors are kept: a range of a file that was read before is one pread between two examinations.
//!
//! A kept descriptor shows the file that was opened, and its path may lead to another one by now. So the file is examined by its
//! descriptor, which walks no path, and opened anew after any difference. Its link count and the time of its last change,
//! which nobody can set, tell that it was deleted, renamed or replaced; what they do not tell (a link or a directory above it
//! that was changed) an examination of the path does, every 100 ms (decisions/0063).

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_core::{Listing, Result, Stage};
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::local::{Local, open_examined, read_opened, stat_of};
use crate::machine;
use crate::mapped::is_local_file_system;
use crate::read_request::ReadRequest;
use crate::store::{Allot, Object, Stat, Store};

/// After this time a path is examined again.
const PATH_HOLDS_FOR: Duration = Duration::from_millis(100);
/// An examination after a read serves as the one before a read that begins this soon.
const FILE_HOLDS_FOR: Duration = Duration::from_millis(1);

/// Files of this machine, as [`Local`] reads them, with descriptors that are kept for further ranges of the same files.
///
/// Errors, and what counts as a change, are those of [`Local`]. Whole objects are read as by [`Local`], and so is everything
/// on file systems that are not local ones: there an examination by descriptor may be an old answer, and a path may hang.
#[derive(Debug)]
pub struct KeptFiles {
    table: RwLock<Table>,
    max_files: usize,
    /// Times are counted from then.
    begun: Instant,
    /// A forked child must not use the table, see [`KeptFiles::is_forked`].
    process: u32,
    #[cfg(feature = "testing")]
    reads: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<OsString, Arc<KeptFile>>,
    /// By device, whether its file system is a local one.
    devices: HashMap<u64, bool>,
}

#[derive(Debug)]
struct KeptFile {
    file: File,
    version: Version,
    /// When its path last led to it, in nanoseconds.
    path_examined: AtomicU64,
    /// When it was last found to be the version, or a little before.
    file_examined: AtomicU64,
    last_read: AtomicU64,
}

/// Whether a time was so long ago.
fn is_over(since: &AtomicU64, now: u64, holds_for: Duration) -> bool {
    u128::from(now.saturating_sub(since.load(Relaxed))) >= holds_for.as_nanos()
}

/// What a file is by an examination: any change of it, of its name or of its permissions makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    links: u64,
    stat: Stat,
    changed: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            links: metadata.nlink(),
            stat: stat_of(metadata),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Default for KeptFiles {
    fn default() -> Self {
        // The rest is for reads, sockets, and other loaders.
        let descriptors = usize::try_from(machine::max_open_files() / 8).unwrap_or(usize::MAX);
        Self::with_max_files(descriptors.clamp(1, 256))
    }
}

impl KeptFiles {
    /// Keeps so many descriptors at most; the one that was not read from for the longest time goes first.
    pub fn with_max_files(max_files: usize) -> Self {
        Self {
            table: RwLock::default(),
            max_files,
            begun: Instant::now(),
            process: std::process::id(),
            #[cfg(feature = "testing")]
            reads: AtomicU64::new(0),
        }
    }

    /// How many reads were by a kept descriptor.
    #[cfg(feature = "testing")]
    pub fn kept_reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Whether this process is a child of the one that keeps the files. It has their numbers and perhaps not the files: a fork copies the
    /// descriptors first and the memory then, and what another thread has opened in between is in the memory alone. Closing such a
    /// number would close something else. It may also have a lock that is never released.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// The kept file of a path, if it is still the one and as it was, and when that was asked. No read waits for the table.
    fn kept(&self, path: &Path) -> Option<(Arc<KeptFile>, u64)> {
        if self.is_forked() {
            return None;
        }
        let known = Arc::clone(self.table.try_read()?.files.get(path.as_os_str())?);
        let now = self.now();
        known.last_read.store(now, Relaxed);
        let is_same = |metadata: io::Result<Metadata>| metadata.is_ok_and(|now| Version::of(&now) == known.version);
        let is_known = if is_over(&known.path_examined, now, PATH_HOLDS_FOR) {
            known.path_examined.store(now, Relaxed);
            is_same(fs::metadata(path))
        } else {
            !is_over(&known.file_examined, now, FILE_HOLDS_FOR) || is_same(known.file.metadata())
        };
        if !is_known {
            self.forget_one(self.table.try_write(), path);
            return None;
        }
        #[cfg(feature = "testing")]
        self.reads.fetch_add(1, Relaxed);
        Some((known, now))
    }

    /// Reads from a kept file, as [`Local`] does from one that it has opened.
    fn read_kept(
        &self,
        request: &ReadRequest<'_>,
        (known, now): (&KeptFile, u64),
        allot: &mut Allot<'_>,
    ) -> Result<Object> {
        let KeptFile { file, version, file_examined, .. } = known;
        let (object, after) = read_opened(request, file, version.stat, allot)?;
        if Version::of(&after) == *version {
            file_examined.store(now, Relaxed);
        } else {
            // Deleted, or replaced: what was read is the file that was there a moment ago.
            self.forget_one(self.table.try_write(), request.path);
        }
        Ok(object)
    }

    /// In nanoseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Keeps a file that was read from, if its file system allows that.
    fn keep(&self, path: &Path, file: File, metadata: &Metadata) {
        if self.is_forked() {
            return;
        }
        let Some(mut table) = self.table.try_write() else { return };
        let device = metadata.dev();
        let is_local = match table.devices.get(&device) {
            Some(is_local) => *is_local,
            None => {
                // Asked once, and without the lock: of other file systems it is a request.
                drop(table);
                let is_local = rustix::fs::fstatfs(&file).is_ok_and(|system| is_local_file_system(system.f_type));
                table = match self.table.try_write() {
                    Some(table) => table,
                    None => return,
                };
                table.devices.insert(device, is_local);
                is_local
            }
        };
        if !is_local {
            return;
        }
        if table.files.len() >= self.max_files && !table.files.contains_key(path.as_os_str()) {
            let oldest = table.files.iter().min_by_key(|(_, kept)| kept.last_read.load(Relaxed));
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                table.files.remove(&oldest);
            }
        }
        let (version, now) = (Version::of(metadata), self.now());
        // Opened a moment ago, and then read: the next read examines it.
        let (path_examined, file_examined, last_read) = (now.into(), 0.into(), now.into());
        let kept = KeptFile { file, version, path_examined, file_examined, last_read };
        table.files.insert(path.as_os_str().to_owned(), Arc::new(kept));
    }

    /// Calls again without the kept descriptors if there are too many.
    fn with_room<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        let result = call();
        match &result {
            Err(error) if matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE)) && self.forget_all() => call(),
            _ => result,
        }
    }

    fn read(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let path = request.path;
        // An empty range reads nothing, and a whole object is rarely read again soon.
        let is_kept = request.range.is_some() && !request.is_empty();
        if is_kept
            && let Some((known, now)) = self.kept(path)
            && request.bytes_of(known.version.stat).is_ok()
        {
            let read = self.read_kept(request, (&known, now), allot);
            if read.is_err() {
                self.forget(path);
            }
            return read;
        }
        let (file, metadata) = self.with_room(|| open_examined(path))?;
        let (object, _) = read_opened(request, &file, stat_of(&metadata), allot)?;
        if is_kept {
            self.keep(path, file, &metadata);
        }
        Ok(object)
    }

    /// The table, to drop what it has.
    fn to_clear(&self) -> Option<RwLockWriteGuard<'_, Table>> {
        (!self.is_forked()).then(|| self.table.write())
    }

    fn forget(&self, path: &Path) {
        self.forget_one(self.to_clear(), path);
    }

    fn forget_one(&self, table: Option<RwLockWriteGuard<'_, Table>>, path: &Path) {
        // Closed without the lock.
        let _kept = table.and_then(|mut table| table.files.remove(path.as_os_str()));
    }

    /// Whether there were any.
    fn forget_all(&self) -> bool {
        let files = self.to_clear().map(|mut table| std::mem::take(&mut table.files));
        files.is_some_and(|files| !files.is_empty())
    }
}

impl Drop for KeptFiles {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(std::mem::take(self.table.get_mut()));
        }
    }
}

impl Store for KeptFiles {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        self.read(request, allot).map_err(|error| error.at_path(request.path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Local.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.with_room(|| Local.list(directory))
    }

    fn rest(&self) {
        self.forget_all();
    }

    fn doubt(&self, path: &Path) {
        self.forget(path);
    }

    fn doubt_range(&self, path: &Path, _range: std::ops::Range<u64>) {
        self.forget(path);
    }
}
