//! Directories accessed by descriptor. Files in a cache may have been placed there by other users, so no links are
//! followed below the directory, and only regular files are opened.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The identity and metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) is_file: bool,
    pub(super) is_folder: bool,
    /// It has other hard links.
    pub(super) is_shared: bool,
    pub(super) length: u64,
    /// When it was last written or used: nanoseconds since 1970.
    pub(super) mtime_ns: i64,
}

impl FileInfo {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from(&stat(file.as_raw_fd())?))
    }

    fn from(found: &libc::stat) -> Self {
        let kind = found.st_mode & libc::S_IFMT;
        Self {
            identity: (found.st_dev, found.st_ino),
            is_file: kind == libc::S_IFREG,
            is_folder: kind == libc::S_IFDIR,
            is_shared: found.st_nlink > 1,
            length: u64::try_from(found.st_size).unwrap_or(0),
            mtime_ns: found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec),
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens it by its path. Links in the path are the user's own choice.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NONBLOCK).open(path)?;
        Ok(Self(file.into()))
    }

    /// Whether it has not been removed.
    pub(super) fn is_there(&self) -> bool {
        stat(self.0.as_raw_fd()).is_ok_and(|found| found.st_nlink > 0)
    }

    /// The user that it belongs to.
    pub(super) fn owner(&self) -> io::Result<u32> {
        Ok(stat(self.0.as_raw_fd())?.st_uid)
    }

    fn at(&self, name: &str, flags: i32) -> io::Result<OwnedFd> {
        let (name, flags) = (c_string(name)?, flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
        // SAFETY: the descriptor is open and the name ends in a zero.
        let descriptor = unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags, 0o600) };
        check(descriptor)?;
        // SAFETY: it was just opened, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Opens a subdirectory.
    pub(super) fn folder(&self, name: &str) -> io::Result<Self> {
        self.at(name, libc::O_RDONLY | libc::O_DIRECTORY).map(Self)
    }

    /// The same; creates it if necessary, with access for this user only.
    pub(super) fn make_folder(&self, name: &str) -> io::Result<Self> {
        match self.folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        let c_name = c_string(name)?;
        // SAFETY: as in `at`.
        match check(unsafe { libc::mkdirat(self.0.as_raw_fd(), c_name.as_ptr(), 0o700) }) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.folder(name),
        }
    }

    /// Opens a regular file for reading.
    pub(super) fn read(&self, name: &str) -> io::Result<(File, FileInfo)> {
        regular(self.at(name, libc::O_RDONLY)?)
    }

    /// Opens a regular file for writing, and creates it if necessary. A file with other hard links is refused: it may
    /// be someone else's data.
    pub(super) fn write(&self, name: &str) -> io::Result<(File, FileInfo)> {
        let (file, known) = regular(self.at(name, libc::O_RDWR | libc::O_CREAT)?)?;
        if known.is_shared {
            return Err(io::Error::from_raw_os_error(libc::EMLINK));
        }
        Ok((file, known))
    }

    /// The metadata of a name; links are not followed.
    pub(super) fn stat(&self, name: &str) -> io::Result<FileInfo> {
        let name = c_string(name)?;
        // SAFETY: zero is a valid stat.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, the name ends in a zero, and `found` is writable.
        let answer = unsafe { libc::fstatat(self.0.as_raw_fd(), name.as_ptr(), &mut found, libc::AT_SYMLINK_NOFOLLOW) };
        check(answer)?;
        Ok(FileInfo::from(&found))
    }

    /// Removes a name that is not a directory.
    pub(super) fn unlink(&self, name: &str) -> io::Result<()> {
        let name = c_string(name)?;
        // SAFETY: as in `at`.
        check(unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) })
    }

    /// Removes a subdirectory if it is empty.
    pub(super) fn remove_folder(&self, name: &str) -> io::Result<()> {
        let name = c_string(name)?;
        // SAFETY: as in `at`.
        check(unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) })
    }

    /// Renames a file within the directory, replacing an existing one.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to, descriptor) = (c_string(from)?, c_string(to)?, self.0.as_raw_fd());
        // SAFETY: as in `at`.
        check(unsafe { libc::renameat(descriptor, from.as_ptr(), descriptor, to.as_ptr()) })
    }

    /// All names in it.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        // A descriptor of its own, because duplicates share the read offset.
        let descriptor = self.folder(".")?.0.into_raw_fd();
        // SAFETY: it is open, and the stream owns it from here on.
        let stream = unsafe { libc::fdopendir(descriptor) };
        if stream.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: the stream did not take it.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            return Err(error);
        }
        let mut names = Vec::new();
        let ended = loop {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = 0 };
            // SAFETY: the stream is open, and only this thread has it.
            let entry = unsafe { libc::readdir(stream) };
            if entry.is_null() {
                break io::Error::last_os_error();
            }
            // SAFETY: an entry's name ends in a zero, and lives until the next call.
            let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        };
        // SAFETY: nothing refers to the stream any more.
        unsafe { libc::closedir(stream) };
        if ended.raw_os_error() == Some(0) { Ok(names) } else { Err(ended) }
    }
}

/// Marks a file as used now. Without permission it keeps its old time.
pub(super) fn touch(file: &File) {
    // SAFETY: the descriptor is open; no times means now.
    let _touched = unsafe { libc::futimens(file.as_raw_fd(), std::ptr::null()) };
}

fn regular(descriptor: OwnedFd) -> io::Result<(File, FileInfo)> {
    let file = File::from(descriptor);
    let known = FileInfo::of(&file)?;
    match known.is_file {
        true => Ok((file, known)),
        false => Err(io::Error::from_raw_os_error(libc::EISDIR)),
    }
}

fn stat(descriptor: RawFd) -> io::Result<libc::stat> {
    // SAFETY: zero is a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is writable; a descriptor that is not open is an error.
    check(unsafe { libc::fstat(descriptor, &mut found) })?;
    Ok(found)
}

fn c_string(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_reached_through_a_link_or_written_under_another_name() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("precious"), "mine").unwrap();
        symlink(outside.path(), inside.path().join("folder")).unwrap();
        symlink(outside.path().join("precious"), inside.path().join("file")).unwrap();
        std::fs::hard_link(outside.path().join("precious"), inside.path().join("twin")).unwrap();
        let folder = Folder::open(inside.path()).unwrap();
        let errno = |error: io::Error| error.raw_os_error();
        assert_eq!(errno(folder.folder("folder").unwrap_err()), Some(libc::ENOTDIR));
        assert_eq!(errno(folder.make_folder("folder").unwrap_err()), Some(libc::ENOTDIR));
        assert_eq!(errno(folder.read("file").unwrap_err()), Some(libc::ELOOP));
        assert_eq!(errno(folder.write("file").unwrap_err()), Some(libc::ELOOP));
        assert_eq!(errno(folder.write("twin").unwrap_err()), Some(libc::EMLINK));
        assert!(!folder.stat("file").unwrap().is_file, "the link, not what it leads to");
        folder.unlink("file").unwrap();
        assert_eq!(std::fs::read(outside.path().join("precious")).unwrap(), b"mine");
    }

    #[test]
    fn names_are_all_there_and_can_be_asked_for_twice() {
        let place = tempfile::tempdir().unwrap();
        (0..300).for_each(|number| std::fs::write(place.path().join(format!("{number:03}")), "").unwrap());
        let folder = Folder::open(place.path()).unwrap();
        for _ in 0..2 {
            let mut names = folder.names().unwrap();
            names.sort();
            assert_eq!(names.len(), 300);
            assert_eq!(names[299], "299");
        }
        assert_eq!(folder.make_folder("new").unwrap().names().unwrap().len(), 0);
    }
}
