//! System calls on names in an open directory, so that no link can be swapped in between two of them.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// The type and metadata of a name; links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) mode: u32,
    pub(super) size_bytes: u64,
    pub(super) mtime_ns: i64,
    pub(super) identity: (u64, u64),
}

impl Status {
    fn kind(self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(super) fn is_file(self) -> bool {
        self.kind().is_file()
    }

    pub(super) fn is_directory(self) -> bool {
        self.kind().is_dir()
    }

    pub(super) fn is_link(self) -> bool {
        self.kind().is_symlink()
    }
}

/// Opens a name, but never a link, and never blocks.
pub(super) fn open(directory: &File, name: &OsStr, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o666))?.into())
}

pub(super) fn make_directory(directory: &File, name: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o777))?)
}

pub(super) fn status(directory: &File, name: &OsStr) -> io::Result<Status> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(Status {
        mode: found.st_mode,
        size_bytes: found.st_size as u64,
        mtime_ns: found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec as i64),
        identity: (found.st_dev, found.st_ino),
    })
}

/// Renames a file within the directory, replacing an existing one.
pub(super) fn rename(directory: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::renameat(directory, from, directory, to)?)
}

pub(super) fn remove(directory: &File, name: &OsStr, is_directory: bool) -> io::Result<()> {
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    Ok(rustix::fs::unlinkat(directory, name, flags)?)
}

/// Locks a file against other processes while it is open. Returns false if it is already locked.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        // Some mounts support no locks: then there is no exclusion.
        Err(TryLockError::Error(error))
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK)) =>
        {
            Ok(true)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Asks the kernel to drop a file's page cache, so that the next read comes from the disk.
pub(super) fn forget(file: &File) {
    // It is advice, and may be ignored.
    let _heard = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}
