//! Atomic replacement of a file: the new content is written beside it, flushed to the disk, and renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_core::{Result, Stage};

use crate::hint::failed;

/// Gives a file the permission bits of a mode, on file systems that have them.
pub(crate) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    match file.set_permissions(Permissions::from_mode(mode & 0o777)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        done => done,
    }
}

/// The new content of a file. If it is dropped before it is committed, the old file stays and nothing is left behind.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    temporary: PathBuf,
    /// `None` once it is committed.
    file: Option<BufWriter<File>>,
}

impl Replacement {
    /// Starts with empty content. The directory has to exist.
    pub fn new(path: &Path) -> Result<Self> {
        /// Leftovers of killed processes with this process's number: containers use few process numbers.
        const MAX_LEFT: u32 = 100;
        let beside = |attempt: u32| {
            let mut name = OsString::from(".");
            name.push(path.file_name().unwrap_or_default());
            name.push(format!(".{}-{attempt}.tmp", std::process::id()));
            path.with_file_name(name)
        };
        let mut attempt = 0;
        let (temporary, file) = loop {
            let temporary = beside(attempt);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => break (temporary, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_LEFT => attempt += 1,
                Err(error) => return Err(failed("created", path, error).at_stage(Stage::Scan)),
            }
        };
        let replacement = Self { path: path.to_owned(), temporary, file: Some(BufWriter::new(file)) };
        replacement.keep_permissions().map_err(|error| failed("created", path, error).at_stage(Stage::Scan))?;
        Ok(replacement)
    }

    /// Copies mode and, if permitted, owner from the file that is replaced.
    fn keep_permissions(&self) -> io::Result<()> {
        let (Some(file), Ok(old)) = (&self.file, fs::metadata(&self.path)) else { return Ok(()) };
        if !old.is_file() {
            return Ok(());
        }
        // The owner first: changing it may clear mode bits. Only root may give files away, so failure is ignored.
        let _chowned = std::os::unix::fs::fchown(file.get_ref(), Some(old.uid()), Some(old.gid()));
        set_mode(file.get_ref(), old.mode())
    }

    /// Puts the new content in place. After a crash the file has the old content or the new one, never a part of it.
    pub fn commit(mut self) -> Result<u64> {
        let place = |error| failed("written", &self.path, error).at_stage(Stage::Scan);
        let Some(file) = self.file.take() else { return Ok(0) };
        let written = file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| {
            file.sync_all()?;
            file.metadata().map(|metadata| metadata.len())
        });
        let renamed = written.and_then(|size_bytes| fs::rename(&self.temporary, &self.path).map(|()| size_bytes));
        if renamed.is_err() {
            self.remove();
        }
        let size_bytes = renamed.map_err(place)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Not every file system can flush directories; the content is safe either way.
        if let Ok(folder) = File::open(folder) {
            let _flushed = folder.sync_all();
        }
        Ok(size_bytes)
    }

    fn remove(&self) {
        // If it cannot be removed, it only affects this process's own next attempt, and its name says whose it is.
        let _removed = fs::remove_file(&self.temporary);
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(0), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Kind;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(name).collect()
    }

    #[test]
    fn the_old_content_stays_until_the_new_one_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        fs::write(&path, "old").unwrap();
        let mut dropped = Replacement::new(&path).unwrap();
        dropped.write_all(b"half of the n").unwrap();
        dropped.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(dropped);
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["a.parquet".to_owned()]));
        let mut whole = Replacement::new(&path).unwrap();
        whole.write_all(b"new").unwrap();
        assert_eq!(whole.commit().unwrap(), 3);
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"new".to_vec(), vec!["a.parquet".to_owned()]));
    }

    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        for mode in [0o600, 0o640, 0o664] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let mut replacement = Replacement::new(&path).unwrap();
            replacement.write_all(b"new").unwrap();
            replacement.commit().unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!((metadata.mode() & 0o777, fs::read(&path).unwrap()), (mode, b"new".to_vec()), "{mode:o}");
        }
    }

    #[test]
    fn what_a_killed_process_of_this_number_has_left_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        // As if killed: nothing is cleaned up.
        std::mem::forget(Replacement::new(&path).unwrap());
        let mut next = Replacement::new(&path).unwrap();
        next.write_all(b"new").unwrap();
        next.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_cannot_be_written_is_named_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let error = Replacement::new(&folder.path().join("none/a.parquet")).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let mut replacement = Replacement::new(&taken).unwrap();
        replacement.write_all(b"new").unwrap();
        let error = replacement.commit().unwrap_err();
        assert!(error.to_string().contains("could not be written"), "{error}");
        assert_eq!(names(folder.path()), ["taken"]);
    }
}
