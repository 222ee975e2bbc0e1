//! System calls on names in an open directory, so that no link can be swapped in between two of them.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;

/// The type and metadata of a name; links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) mode: u32,
    pub(super) size_bytes: u64,
    pub(super) mtime_ns: i64,
    pub(super) identity: (u64, u64),
}

impl Status {
    fn is(self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }

    pub(super) fn is_file(self) -> bool {
        self.is(libc::S_IFREG)
    }

    pub(super) fn is_directory(self) -> bool {
        self.is(libc::S_IFDIR)
    }

    pub(super) fn is_link(self) -> bool {
        self.is(libc::S_IFLNK)
    }
}

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Opens a name, but never a link, and never blocks.
pub(super) fn open(directory: &File, name: &OsStr, flags: libc::c_int) -> io::Result<File> {
    let name = c_name(name)?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the name ends in a zero, and the directory is open for the duration of the call.
    let descriptor = checked(unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, 0o666) })?;
    // SAFETY: it was just opened, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

pub(super) fn make_directory(directory: &File, name: &OsStr) -> io::Result<()> {
    let name = c_name(name)?;
    // SAFETY: as above.
    checked(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o777) }).map(|_| ())
}

pub(super) fn status(directory: &File, name: &OsStr) -> io::Result<Status> {
    let name = c_name(name)?;
    let mut found = MaybeUninit::<libc::stat>::uninit();
    let (descriptor, flags) = (directory.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the name ends in a zero, and `found` has room for the answer.
    checked(unsafe { libc::fstatat(descriptor, name.as_ptr(), found.as_mut_ptr(), flags) })?;
    // SAFETY: the call has filled it.
    let found = unsafe { found.assume_init() };
    Ok(Status {
        mode: found.st_mode,
        size_bytes: found.st_size as u64,
        mtime_ns: found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec),
        identity: (found.st_dev, found.st_ino),
    })
}

/// Renames a file within the directory, replacing an existing one.
pub(super) fn rename(directory: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to, descriptor) = (c_name(from)?, c_name(to)?, directory.as_raw_fd());
    // SAFETY: both names end in a zero.
    checked(unsafe { libc::renameat(descriptor, from.as_ptr(), descriptor, to.as_ptr()) }).map(|_| ())
}

pub(super) fn remove(directory: &File, name: &OsStr, is_directory: bool) -> io::Result<()> {
    let name = c_name(name)?;
    let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name ends in a zero.
    checked(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), flags) }).map(|_| ())
}

/// Locks a file against other processes while it is open. Returns false if it is already locked.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: takes no memory.
    match checked(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        // Some mounts support no locks: then there is no exclusion.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Asks the kernel to drop a file's page cache, so that the next read comes from the disk.
pub(super) fn forget(file: &File) {
    // SAFETY: takes no memory. It is advice, and may be ignored.
    let _heard = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}
