//! The ledger on disk: JSONL, appended, safe under several processes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Failure, Kind, Result};

/// An append-only file of failures, one JSON object a line, shared by ranks, runs and tools.
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    file: File,
}

impl LedgerFile {
    /// Opens it for appending, creating it and the directory above it. A last line that a crash cut short is ended,
    /// so that the next one does not join it.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| unusable(parent, &error))?;
        }
        let file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)
            .map_err(|error| unusable(path, &error))?;
        let ledger = Self { path: path.to_owned(), file };
        let ended = ledger.locked(|mut file| {
            let mut last = [b'\n'];
            if let Some(at) = file.metadata()?.len().checked_sub(1) {
                file.read_exact_at(&mut last, at)?;
            }
            if last == [b'\n'] { Ok(()) } else { file.write_all(b"\n") }
        });
        ended.map_err(|error| unusable(path, &error))?;
        Ok(ledger)
    }

    /// Appends failures: all their lines in one write under a lock, so that processes never mix theirs.
    pub fn append(&self, failures: &[Failure]) -> Result<()> {
        if failures.is_empty() {
            return Ok(());
        }
        let mut lines = String::new();
        for failure in failures {
            lines.push_str(&failure.to_line()?);
        }
        let written = self.locked(|mut file| {
            let before = file.metadata()?.len();
            file.write_all(lines.as_bytes()).inspect_err(|_| {
                // Half a line (a full disk) would swallow the next one. If even this fails, the reader passes it over.
                let _shortened = file.set_len(before);
            })
        });
        written.map_err(|error| Error::io("appended to", error).at_path(&self.path))
    }

    /// O_APPEND places a line; the lock keeps it whole where a write may be split (network mounts, a full disk).
    fn locked(&self, action: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let locked = loop {
            // SAFETY: the descriptor is open for as long as `self.file` lives.
            let result = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX) };
            if result == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break result == 0;
            }
        };
        let result = action(&self.file);
        if locked {
            // SAFETY: as above. A mount without locks has only O_APPEND, which is what it can give.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
        result
    }

    /// Reads every failure of a ledger; a file that does not exist is empty.
    ///
    /// A line that a crash cut short is passed over. A file without a single failure in it is an error: it is
    /// probably not a ledger, and appending to it would spoil it.
    pub fn read(path: &Path) -> Result<Vec<Failure>> {
        // A pipe or a device would be read for ever.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(unusable(path, &io::Error::other("it is not a regular file")));
        }
        let text = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(path, &error)),
        };
        let (mut failures, mut unread) = (Vec::new(), None);
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(failure) => failures.push(failure),
                Err(error) => unread = Some(error),
            }
        }
        match unread {
            // A torn first line is all that a crash can leave of a ledger without failures: it began like one.
            Some(error) if failures.is_empty() && !text.starts_with(b"{\"path\":") => {
                let message = format!("is not a ledger of forebay: {error}");
                Err(Error::new(Kind::Config, message).at_path(path))
            }
            _ => Ok(failures),
        }
    }
}

/// A ledger that cannot be used is a setting to correct, whatever the system calls it.
fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::config(format!("cannot be the ledger: {error}"))
        .at_path(path)
        .with_hint("give `ledger` a file that can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Outcome;

    fn failure(index: u64) -> Failure {
        let error = Error::new(Kind::Corrupt, "is truncated").at_index(index);
        Failure::of(&error, Path::new("cat/1\n.jpg"), Outcome::Replaced)
    }

    #[test]
    fn several_writers_never_mix_their_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/ledger.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let ledger = LedgerFile::open(path).unwrap();
                    for index in 0..200 {
                        ledger.append(&[failure(writer * 1000 + index), failure(index)]).unwrap();
                    }
                });
            }
        });
        assert_eq!(LedgerFile::read(&path).unwrap().len(), 4 * 400);
    }

    #[test]
    fn what_cannot_be_a_ledger_is_a_wrong_setting() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(LedgerFile::open(folder.path()).unwrap_err().kind(), Kind::Config);
        assert_eq!(LedgerFile::read(Path::new("/dev/zero")).unwrap_err().kind(), Kind::Config);
        assert_eq!(LedgerFile::open(Path::new("/proc/none/ledger")).unwrap_err().kind(), Kind::Config);
    }

    #[test]
    fn a_line_cut_short_is_passed_over_and_a_foreign_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        assert!(LedgerFile::read(&path).unwrap().is_empty());
        fs::write(&path, failure(1).to_line().unwrap() + "{\"path\":\"x").unwrap();
        assert_eq!(LedgerFile::read(&path).unwrap().len(), 1);
        LedgerFile::open(&path).unwrap().append(&[failure(2)]).unwrap();
        let read: Vec<_> = LedgerFile::read(&path).unwrap().iter().map(|failure| failure.index).collect();
        assert_eq!(read, [1, 2]);
        fs::write(&path, "dear diary\n").unwrap();
        assert!(LedgerFile::read(&path).unwrap_err().to_string().contains("is not a ledger of forebay"));
    }
}
