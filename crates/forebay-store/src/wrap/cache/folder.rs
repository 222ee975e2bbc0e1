//! Directories accessed by descriptor. Files in a cache may have been placed there by other users, so no links are
//! followed below the directory, and only regular files are opened.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat};

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
        Ok(Self::from(&fstat(file)?))
    }

    fn from(found: &rustix::fs::Stat) -> Self {
        let kind = FileType::from_raw_mode(found.st_mode);
        Self {
            identity: (found.st_dev, found.st_ino),
            is_file: kind.is_file(),
            is_folder: kind.is_dir(),
            is_shared: found.st_nlink > 1,
            length: u64::try_from(found.st_size).unwrap_or(0),
            mtime_ns: found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec as i64),
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
        fstat(&self.0).is_ok_and(|found| found.st_nlink > 0)
    }

    /// The user that it belongs to.
    pub(super) fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.0)?.st_uid)
    }

    fn at(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?)
    }

    /// Opens a subdirectory.
    pub(super) fn folder(&self, name: &str) -> io::Result<Self> {
        self.at(name, OFlags::RDONLY | OFlags::DIRECTORY).map(Self)
    }

    /// The same; creates it if necessary, with access for this user only.
    pub(super) fn make_folder(&self, name: &str) -> io::Result<Self> {
        match self.folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o700)) {
            Err(error) if error != rustix::io::Errno::EXIST => Err(error.into()),
            _ => self.folder(name),
        }
    }

    /// Opens a regular file for reading.
    pub(super) fn read(&self, name: &str) -> io::Result<(File, FileInfo)> {
        regular(self.at(name, OFlags::RDONLY)?)
    }

    /// Opens a regular file for writing, and creates it if necessary. A file with other hard links is refused: it may
    /// be someone else's data.
    pub(super) fn write(&self, name: &str) -> io::Result<(File, FileInfo)> {
        let (file, known) = regular(self.at(name, OFlags::RDWR | OFlags::CREATE)?)?;
        if known.is_shared {
            return Err(io::Error::from_raw_os_error(libc::EMLINK));
        }
        Ok((file, known))
    }

    /// The metadata of a name; links are not followed.
    pub(super) fn stat(&self, name: &str) -> io::Result<FileInfo> {
        Ok(FileInfo::from(&rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Removes a name that is not a directory.
    pub(super) fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes a subdirectory if it is empty.
    pub(super) fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames a file within the directory, replacing an existing one.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// All names in it.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        // A descriptor of its own: duplicates share the read offset.
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }
}

/// Marks a file as used now. Without permission it keeps its old time.
pub(super) fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _touched = rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
}

fn regular(descriptor: OwnedFd) -> io::Result<(File, FileInfo)> {
    let file = File::from(descriptor);
    let known = FileInfo::of(&file)?;
    match known.is_file {
        true => Ok((file, known)),
        false => Err(io::Error::from_raw_os_error(libc::EISDIR)),
    }
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
