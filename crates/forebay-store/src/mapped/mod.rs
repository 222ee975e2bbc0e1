//! Files of local disks, mapped into memory once and copied from there: a read opens and closes nothing.
//!
//! A mapping has no error to return: a page that the file lost, or that the disk does not give, is a SIGBUS. The handler
//! (`signal.rs`) makes it a mark, and a marked copy is discarded: pread on the same file says what is wrong with it
//! (decisions/0061). `unsafe` is in this module's `mapping.rs` and `signal.rs` only.

mod mapping;
mod registry;
mod signal;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_core::{Error, Listing, Result, Stage};
use parking_lot::Mutex;

use crate::hint::failed;
use crate::local::{Local, complete, fill, open, resize, stat_of};
use crate::machine;
use crate::mount::{Mount, MountKind};
use crate::read_request::ReadRequest;
use crate::remote::is_url;
use crate::store::{Allot, Object, Stat, Store};
use mapping::Mapping;

/// Files of this machine's disks, as [`Local`] reads them, through mappings.
///
/// Errors, and what counts as a change, are those of [`Local`]. It reads the file itself, by pread, where a mapping
/// could give something else or cannot be had: files that were changed a moment ago, files on other mounts than local
/// ones, empty ranges, too many files, a forked child.
#[derive(Debug)]
pub struct Mapped {
    table: Mutex<Table>,
    /// A forked child has the mappings, and perhaps a lock whose owner does not exist.
    process: u32,
    max_mappings: usize,
    #[cfg(feature = "testing")]
    reads: std::sync::atomic::AtomicU64,
}

/// The mappings by path, and how many reads there were.
#[derive(Debug, Default)]
struct Table {
    mappings: HashMap<OsString, Known>,
    reads: u64,
}

#[derive(Debug)]
struct Known {
    mapping: Arc<Mapping>,
    version: Version,
    /// By the count of reads.
    last_read: u64,
}

/// What a file was when it was mapped: which it is, and when it was last changed in any way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    stat: Stat,
    /// Unlike mtime, a program cannot set it.
    changed: (i64, i64),
}

impl Version {
    /// `None` if it is no regular file, or has nothing to map.
    fn of(metadata: &Metadata) -> Option<Self> {
        let is_mappable = metadata.is_file() && metadata.len() > 0;
        is_mappable.then(|| Self {
            file: (metadata.dev(), metadata.ino()),
            stat: stat_of(metadata),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether the next change will be seen by its time. Clocks of file systems move in ticks: two changes within a tick
    /// look like one, and a file that was cut and filled up in between would have given zeros.
    fn is_settled(&self) -> bool {
        /// Longer than a tick of the kernel, which takes 10 ms at most.
        const TICKS: Duration = Duration::from_millis(100);
        /// File systems without fractions of seconds count one or two of them.
        const SECONDS: Duration = Duration::from_secs(3);
        let (seconds, nanoseconds) = self.changed;
        let wait = if nanoseconds == 0 { SECONDS } else { TICKS };
        let changed = Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.checked_sub(changed).is_some_and(|age| age > wait)
    }
}

impl Default for Mapped {
    fn default() -> Self {
        // A mapping keeps its descriptor, and reads by pread need some, too.
        let descriptors = usize::try_from(machine::max_open_files() / 4).unwrap_or(usize::MAX);
        Self {
            table: Mutex::default(),
            process: std::process::id(),
            // Half of what the process may have, so that there is room for another dataset.
            max_mappings: descriptors.clamp(1, registry::MAX_MAPPINGS / 2),
            #[cfg(feature = "testing")]
            reads: std::sync::atomic::AtomicU64::new(0),
        }
    }
}

impl Mapped {
    /// Fails unless all of these files lie on disks of this machine. No mount that can hang is touched.
    pub fn check(paths: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        #[cfg(not(target_pointer_width = "64"))]
        return Err(Error::config("mmap: expected a processor of 64 bits, whose addresses suffice for large files"));
        let mut directories: HashMap<PathBuf, Option<Mount>> = HashMap::new();
        for path in paths {
            if is_url(&path) {
                let hint = "leave `mmap` out: what a server has is read by requests";
                return Err(Error::config("mmap: expected files of this machine, got a URL")
                    .at_path(&path)
                    .with_hint(hint));
            }
            let directory = path.parent().unwrap_or(&path);
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            if !directories.contains_key(directory) {
                directories.insert(directory.to_owned(), Mount::behind(directory));
            }
            let around = directories.get(directory).and_then(Option::as_ref);
            let is_link = around.is_some_and(is_local) && fs::read_link(&path).is_ok();
            let behind = if is_link { Mount::behind(&path) } else { around.cloned() };
            if !behind.as_ref().is_some_and(is_local) {
                let got = behind.map_or_else(|| "a mount that is not known".to_owned(), |mount| mount.to_string());
                let message = format!("mmap: expected files on disks of this machine, got some on {got}");
                let hint = "leave `mmap` out: a mapping has no deadline, and an I/O error of it is a signal; \
                            files are read by pread then, within deadlines";
                return Err(Error::config(message).at_path(&path).with_hint(hint));
            }
        }
        Ok(())
    }

    /// How many reads were copies from a mapping.
    #[cfg(feature = "testing")]
    pub fn mapped_reads(&self) -> u64 {
        self.reads.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// The mapping of a file as it is now; `None` where it has to be read by pread.
    fn mapping(&self, path: &Path) -> Option<(Arc<Mapping>, Version)> {
        if self.process != std::process::id() {
            return None;
        }
        // What is wrong with a file, pread will say.
        let now = fs::metadata(path).ok().as_ref().and_then(Version::of).filter(Version::is_settled);
        {
            let mut table = self.table.lock();
            table.reads += 1;
            let reads = table.reads;
            if let (Some(known), Some(now)) = (table.mappings.get_mut(path.as_os_str()), now)
                && known.version == now
            {
                known.last_read = reads;
                return Some((Arc::clone(&known.mapping), now));
            }
            // Another file by now, or the same one, changed: what it was is not kept on the disk for it.
            table.mappings.remove(path.as_os_str());
        }
        now?;
        self.map(path)
    }

    fn map(&self, path: &Path) -> Option<(Arc<Mapping>, Version)> {
        let (file, _) = open(path).ok()?;
        let version = Version::of(&file.metadata().ok()?).filter(Version::is_settled)?;
        // A link may lead anywhere, and anything may have been mounted since the dataset was made.
        if !is_local_file_system(rustix::fs::fstatfs(&file).ok()?.f_type) {
            return None;
        }
        self.make_room();
        // Lack of addresses is no reason to fail: pread needs none.
        let mapping = Mapping::new(file, usize::try_from(version.stat.size_bytes).ok()?).ok()??;
        let mapping = Arc::new(mapping);
        let mut table = self.table.lock();
        let known = Known { mapping: Arc::clone(&mapping), version, last_read: table.reads };
        table.mappings.insert(path.as_os_str().to_owned(), known);
        Some((mapping, version))
    }

    /// Drops the mapping that was not read from for the longest time, where there are as many as there may be.
    fn make_room(&self) {
        let mut table = self.table.lock();
        if table.mappings.len() < self.max_mappings {
            return;
        }
        let oldest = table.mappings.iter().min_by_key(|(_, known)| known.last_read).map(|(path, _)| path.clone());
        if let Some(oldest) = oldest {
            table.mappings.remove(&oldest);
        }
    }

    fn forget(&self, path: &Path) {
        if self.process == std::process::id() {
            self.table.lock().mappings.remove(path.as_os_str());
        }
    }

    /// Copies what is asked for, if it is the file's for certain; else it reads the mapped file.
    fn read(
        &self,
        request: &ReadRequest<'_>,
        (mapping, version): (&Mapping, Version),
        allot: &mut Allot<'_>,
    ) -> Result<Object> {
        let path = request.path;
        let range = request.bytes_of(version.stat)?;
        let size_bytes = range.end - range.start;
        let mut bytes = allot(size_bytes)?;
        resize(&mut bytes, size_bytes)?;
        let is_whole =
            mapping.copy(range.start, &mut bytes).map_err(|error| Error::io("read through a mapping", error))?;
        let examine = || mapping.file().metadata().map_err(|error| failed("examined", path, error));
        // Links and permissions change the time that is compared here, too, and a program that sets the other one does.
        let is_same = is_whole && Version::of(&examine()?) == Some(version);
        if is_same {
            #[cfg(feature = "testing")]
            self.reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        } else {
            self.forget(path);
            // What has become of the file, or what is wrong with its disk, the same file says by pread.
            let have = fill(path, mapping.file(), &mut bytes, range.start)?;
            complete(version.stat, size_bytes, have as u64, stat_of(&examine()?))?;
        }
        Ok(Object { bytes: bytes.into(), stat: version.stat })
    }
}

fn is_local(mount: &Mount) -> bool {
    matches!(mount.kind, MountKind::Local | MountKind::Memory)
}

/// Whether a file system is one of those that a [`Mount`] calls local, by the number that the kernel gives it.
pub(crate) fn is_local_file_system(number: rustix::fs::FsWord) -> bool {
    const LOCAL: [u32; 15] = [
        0xEF53,      // ext2 to ext4
        0x5846_5342, // xfs
        0x9123_683E, // btrfs
        0x2FC1_2FC1, // zfs
        0xF2F5_2010, // f2fs
        0x794C_7630, // overlay
        0x0102_1994, // tmpfs
        0x8584_58F6, // ramfs
        0x4D44,      // vfat
        0x2011_BAB0, // exfat
        0x7366_746E, // ntfs3
        0x7371_7368, // squashfs
        0xE0F5_E1E2, // erofs
        0x9660,      // iso9660
        0xCA45_1A4E, // bcachefs
    ];
    LOCAL.contains(&(number as u32))
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // The numbers of its descriptors may be something else's in a forked child (decisions/0063).
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(self.table.get_mut()));
        }
    }
}

impl Store for Mapped {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        let mapping = if request.is_empty() { None } else { self.mapping(request.path) };
        let Some((mapping, version)) = mapping else { return Local.fetch(request, allot) };
        let read = self.read(request, (&mapping, version), allot);
        read.map_err(|error| error.at_path(request.path).at_stage(Stage::Fetch))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Local.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        Local.list(directory)
    }

    fn rest(&self) {
        if self.process == std::process::id() {
            self.table.lock().mappings.clear();
        }
    }

    fn doubt(&self, path: &Path) {
        self.forget(path);
    }
}
