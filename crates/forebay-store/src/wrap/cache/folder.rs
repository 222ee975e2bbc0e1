//! Directories by descriptor. What lies in a cache may have been put there by anybody, so that nothing below a directory
//! is reached through a link, and nothing is opened that is not a regular file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat};

/// Which file it is, and what of it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) is_file: bool,
    pub(super) is_folder: bool,
    /// It has other names beside this one.
    pub(super) is_shared: bool,
    pub(super) length: u64,
    /// When it was last written to, or used: nanoseconds since 1970.
    pub(super) mtime_ns: i64,
}

impl Known {
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

/// A directory that is open.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens it by its path: links in that are the user's own choice.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NONBLOCK).open(path)?;
        Ok(Self(file.into()))
    }

    /// Whether it still has a name.
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

    /// A directory in it.
    pub(super) fn folder(&self, name: &str) -> io::Result<Self> {
        self.at(name, OFlags::RDONLY | OFlags::DIRECTORY).map(Self)
    }

    /// The same, made if it is not there: for this user alone.
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

    /// A regular file in it, for reading.
    pub(super) fn read(&self, name: &str) -> io::Result<(File, Known)> {
        regular(self.at(name, OFlags::RDONLY)?)
    }

    /// A regular file in it, for writing, made if it is not there. One that has another name elsewhere is not written to:
    /// it may be somebody's.
    pub(super) fn write(&self, name: &str) -> io::Result<(File, Known)> {
        let (file, known) = regular(self.at(name, OFlags::RDWR | OFlags::CREATE)?)?;
        if known.is_shared {
            return Err(io::Error::from_raw_os_error(libc::EMLINK));
        }
        Ok((file, known))
    }

    /// What a name in it is, a link not followed.
    pub(super) fn stat(&self, name: &str) -> io::Result<Known> {
        Ok(Known::from(&rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Removes a name that is no directory.
    pub(super) fn unlink(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes a directory in it, if it is empty.
    pub(super) fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Gives a file another name in the same directory, in place of what had it.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// All names in it.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        // Opened anew: the offset of a descriptor is shared by whoever has it.
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

/// Marks a file as used now. Without the right to, it only looks older than it is.
pub(super) fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _touched = rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
}

fn regular(descriptor: OwnedFd) -> io::Result<(File, Known)> {
    let file = File::from(descriptor);
    let known = Known::of(&file)?;
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
