//! Lists a directory with getdents64(2). Uses the standard library only, because the reader is compiled without cargo;
//! this process lists local directories with it, too.
//!
//! `std::fs::read_dir` makes two allocations for each entry and asks the kernel for 32 KiB at a time.

use std::cell::Cell;
use std::ffi::{OsStr, c_long};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

#[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
pub(crate) const SYS_GETDENTS64: c_long = 217;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64", target_arch = "loongarch64"))]
pub(crate) const SYS_GETDENTS64: c_long = 61;
#[cfg(any(target_arch = "x86", target_arch = "s390x"))]
pub(crate) const SYS_GETDENTS64: c_long = 220;
#[cfg(any(target_arch = "powerpc64", target_arch = "powerpc"))]
pub(crate) const SYS_GETDENTS64: c_long = 202;

/// Opening a pipe must not wait for a writer; O_DIRECTORY makes the kernel refuse anything but a directory.
#[cfg(not(any(target_arch = "aarch64", target_arch = "arm", target_arch = "powerpc64", target_arch = "powerpc")))]
pub(crate) const O_DIRECTORY: i32 = 0o200_000;
#[cfg(any(target_arch = "aarch64", target_arch = "arm", target_arch = "powerpc64", target_arch = "powerpc"))]
pub(crate) const O_DIRECTORY: i32 = 0o40_000;
pub(crate) const O_NONBLOCK: i32 = 0o4000;

const DT_UNKNOWN: u8 = 0;
const DT_DIR: u8 = 4;
const DT_LINK: u8 = 10;
/// Layout of `struct linux_dirent64`: inode and offset (8 each), length of the record (2), type (1), then the name.
const LENGTH_AT: usize = 16;
const TYPE_AT: usize = 18;
const NAME_AT: usize = 19;

thread_local! {
    /// Reused for the next directory of this thread: new pages for each would cost as much as sorting it.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A directory that is being listed.
pub(crate) struct Directory {
    path: PathBuf,
    file: File,
    /// Records as the kernel returns them.
    buffer: Vec<u8>,
    next: usize,
    filled: usize,
}

impl Directory {
    /// Buffer for one call. On local disks 16 KiB are as good. FUSE passes the size on, so a directory of 100 KB takes
    /// two requests instead of five with the C library's 32 KiB (measured: half the time at 10 ms each).
    const BUFFER_BYTES: usize = 256 << 10;
    /// A signal interrupts a call now and then; a file system that returns nothing but EINTR is broken.
    const MAX_INTERRUPTIONS: u32 = 100;

    /// Opens it, links followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(O_DIRECTORY | O_NONBLOCK).open(path)?;
        Ok(Self::of(file, path))
    }

    /// From an open directory; `path` is used to examine links in it.
    pub(crate) fn of(file: File, path: &Path) -> Self {
        let mut buffer = BUFFER.take();
        buffer.resize(Self::BUFFER_BYTES, 0);
        Self { path: path.to_owned(), file, buffer, next: 0, filled: 0 }
    }

    /// A duplicate of the open directory.
    #[allow(dead_code, reason = "not used by the reader")]
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The directory's own metadata.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// The next name, and whether it is a directory or a link to one.
    pub(crate) fn next(&mut self) -> io::Result<Option<(&OsStr, bool)>> {
        loop {
            if self.next == self.filled && !self.fill()? {
                return Ok(None);
            }
            let (length, kind, name) = record(&self.buffer[self.next..self.filled])
                .ok_or_else(|| io::Error::other("the kernel returned a truncated directory entry"))?;
            let begin = self.next + NAME_AT;
            self.next += length;
            if &self.buffer[begin..begin + name] == b"." || &self.buffer[begin..begin + name] == b".." {
                continue;
            }
            let name = OsStr::from_bytes(&self.buffer[begin..begin + name]);
            return Ok(Some((name, self.is_directory(name, kind)?)));
        }
    }

    fn is_directory(&self, name: &OsStr, kind: u8) -> io::Result<bool> {
        let is_link = match kind {
            DT_LINK => true,
            // Some file systems do not report the type with the name.
            DT_UNKNOWN => {
                let metadata = fs::symlink_metadata(self.path.join(name))?;
                if !metadata.is_symlink() {
                    return Ok(metadata.is_dir());
                }
                true
            }
            _ => false,
        };
        // A dangling link may still be a sample's name: reading it will report the error.
        Ok(kind == DT_DIR || is_link && fs::metadata(self.path.join(name)).is_ok_and(|target| target.is_dir()))
    }

    /// Reads the next records; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        let (descriptor, mut interruptions) = (c_long::from(self.file.as_raw_fd()), 0);
        loop {
            let length = self.buffer.len() as c_long;
            // SAFETY: the buffer is writable for `length` bytes and nothing else refers to it during the call.
            let got = unsafe { syscall(SYS_GETDENTS64, descriptor, self.buffer.as_mut_ptr(), length) };
            if let Ok(got) = usize::try_from(got) {
                (self.next, self.filled) = (0, got.min(self.buffer.len()));
                return Ok(got > 0);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted || interruptions == Self::MAX_INTERRUPTIONS {
                return Err(error);
            }
            interruptions += 1;
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Fails while the thread exits, when its thread-local storage is gone.
        let _kept = BUFFER.try_with(|place| place.set(std::mem::take(&mut self.buffer)));
    }
}

/// The first record: its length, its type and the length of its name. `None` if it is truncated.
pub(crate) fn record(bytes: &[u8]) -> Option<(usize, u8, usize)> {
    let length = usize::from(u16::from_ne_bytes([*bytes.get(LENGTH_AT)?, *bytes.get(LENGTH_AT + 1)?]));
    let name = bytes.get(NAME_AT..length)?;
    Some((length, bytes[TYPE_AT], name.iter().position(|&byte| byte == 0)?))
}
