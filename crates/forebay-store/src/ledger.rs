//! The ledger on disk: JSONL, append-only, safe with several processes. Waits for a lock that another process holds
//! only for a bounded time.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::{Error, Failure, Kind, Result};
use parking_lot::Mutex;

use crate::hint::{failed, hint};

/// An append-only file of failures, one JSON object a line, shared by ranks, runs and tools.
#[derive(Debug)]
pub struct LedgerFile {
    path: PathBuf,
    file: File,
    /// Device and inode, to find the process that holds its lock.
    identity: (u64, u64),
    /// The file lock excludes other processes only, so threads need this one.
    threads: Mutex<()>,
}

impl LedgerFile {
    /// Opens it for appending, creating it and the directory above it. Takes no lock.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| match file_in(parent) {
                Some(file) => unusable(path, &io::Error::other(format!("{file:?} is not a directory"))),
                None => unusable(parent, &error),
            })?;
        }
        let opened = OpenOptions::new().create(true).read(true).append(true).open(path);
        let opened = opened.and_then(|file| file.metadata().map(|metadata| (file, metadata)));
        let (file, metadata) = opened.map_err(|error| unusable(path, &error))?;
        Ok(Self { path: path.to_owned(), file, identity: (metadata.dev(), metadata.ino()), threads: Mutex::default() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends whole lines in one write under the lock, so that lines of several processes never mix. Returns false if
    /// another process holds the lock; then nothing was written. If a crash cut the last line short, it is terminated
    /// first, so that the next line does not join it.
    pub fn append(&self, lines: &str) -> Result<bool> {
        let written = self.try_locked(|mut file| {
            let before = file.metadata()?.len();
            let mut last = [b'\n'];
            if let Some(at) = before.checked_sub(1) {
                file.read_exact_at(&mut last, at)?;
            }
            let ended: Cow<'_, str> = if last == [b'\n'] { lines.into() } else { format!("\n{lines}").into() };
            file.write_all(ended.as_bytes()).inspect_err(|_| {
                // Half a line (a full disk) would swallow the next one. If truncating fails, too, readers skip that
                // line.
                let _shortened = file.set_len(before);
            })
        });
        written.map(|written| written.is_some()).map_err(|error| failed("appended to", &self.path, error))
    }

    /// Runs `action` under the lock; `None` when another process or thread holds it. O_APPEND positions each line; the
    /// lock keeps lines whole where a write may be split (network mounts, a full disk).
    fn try_locked<T>(&self, action: impl FnOnce(&File) -> io::Result<T>) -> io::Result<Option<T>> {
        let Some(_alone) = self.threads.try_lock() else { return Ok(None) };
        let locked = self.file.try_lock();
        if matches!(locked, Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        let result = action(&self.file);
        // Some mounts support no locks; O_APPEND alone must do there.
        if locked.is_ok() {
            let _unlocked = self.file.unlock();
        }
        result.map(Some)
    }

    /// Describes the process that holds the lock; `None` if the kernel does not tell, because it is on another machine
    /// or in another PID namespace.
    pub fn lock_owner(&self) -> Option<String> {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let pid = locks.lines().find_map(|line| owner_of(line, self.identity))?;
        // `PID (name) state …`; the name may contain anything.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let name = stat.find('(').zip(stat.rfind(')')).map(|(from, to)| &stat[from + 1..to]);
        let is_stopped = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']));
        let stopped = if is_stopped { ", which is stopped" } else { "" };
        Some(name.map_or(format!("process {pid}"), |name| format!("process {pid} ({name}){stopped}")))
    }

    /// Reads every failure of a ledger; a file that does not exist is empty. See [`LedgerFile::read_each`].
    pub fn read(path: &Path) -> Result<Vec<Failure>> {
        let mut failures = Vec::new();
        Self::read_each(path, &mut |failure| failures.push(failure))?;
        Ok(failures)
    }

    /// Passes every failure of a ledger to `each`, oldest first: a ledger may be larger than memory. Returns the offset
    /// where it ended, for [`LedgerFile::read_on`].
    ///
    /// A line that a crash cut short is skipped. A file without a single failure in it is an error: it is probably not
    /// a ledger, and appending would damage it.
    pub fn read_each(path: &Path, each: &mut dyn FnMut(Failure)) -> Result<u64> {
        // A pipe or a device would be read for ever.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(unusable(path, &io::Error::other("it is not a regular file")));
        }
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(unusable(path, &error)),
        };
        let lines = read_lines(file, each).map_err(|error| unusable(path, &error))?;
        match lines.unread {
            // A torn first line is all that a crash can leave of a ledger without failures; it must begin like a ledger
            // line.
            Some(error) if lines.understood == 0 && !lines.begins_like_one => {
                let message = format!("is not a ledger of forebay: {error}");
                Err(Error::new(Kind::Config, message).at_path(path))
            }
            _ => Ok(lines.bytes),
        }
    }

    /// Passes on the failures that any process appended after the offset `from`, and returns where they end.
    pub fn read_on(&self, from: u64, each: &mut dyn FnMut(Failure)) -> Result<u64> {
        let length = self.length().map_err(|error| self.unread(error))?;
        // Shorter than before: the file was truncated or replaced.
        let from = if from > length { 0 } else { from };
        let rest = Part { file: &self.file, at: from, end: length };
        let lines = read_lines(rest, each).map_err(|error| self.unread(error))?;
        Ok(from + lines.bytes)
    }

    /// The length, taken under the lock: no line before it is half written, and none will be truncated. If the lock is
    /// not available, a half-written line is skipped and read the next time.
    fn length(&self) -> io::Result<u64> {
        const MAX_WAIT: Duration = Duration::from_secs(1);
        let asked = Instant::now();
        loop {
            match self.try_locked(|file| Ok(file.metadata()?.len()))? {
                Some(length) => return Ok(length),
                None if asked.elapsed() >= MAX_WAIT => return Ok(self.file.metadata()?.len()),
                None => std::thread::sleep(Duration::from_millis(5)), // flock(2) has no deadline
            }
        }
    }

    fn unread(&self, error: io::Error) -> Error {
        failed("read", &self.path, error)
    }
}

/// The process in a line of /proc/locks that holds an flock(2) of this file:
/// `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`. A waiting process has `->` after the number.
fn owner_of(line: &str, (device, inode): (u64, u64)) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    if fields.next()? != "FLOCK" {
        return None;
    }
    let pid: u32 = fields.nth(2)?.parse().ok()?;
    let place = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    (fields.next()? == place && pid > 0).then_some(pid)
}

/// Some bytes of a file, read without moving its offset.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// The result of reading a ledger, or a part of one.
pub(crate) struct Lines {
    /// Bytes of whole lines.
    bytes: u64,
    understood: u64,
    begins_like_one: bool,
    /// The error of the last line that could not be parsed.
    unread: Option<serde_json::Error>,
}

pub(crate) fn read_lines(file: impl Read, each: &mut dyn FnMut(Failure)) -> io::Result<Lines> {
    /// No line is this long, but a file without line breaks may be, and would take all memory.
    const MAX_LINE_BYTES: u64 = 1 << 20;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut lines = Lines { bytes: 0, understood: 0, begins_like_one: false, unread: None };
    let mut line = Vec::new();
    while (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? > 0 {
        lines.begins_like_one |= lines.bytes == 0 && line.starts_with(b"{\"path\":");
        let is_whole = line.last() == Some(&b'\n');
        if line != b"\n" {
            match serde_json::from_slice::<Failure>(&line) {
                Ok(failure) => {
                    lines.understood += 1;
                    if failure.outcome.is_of_a_sample() {
                        each(failure);
                    }
                }
                Err(error) => lines.unread = Some(error),
            }
        }
        lines.bytes += if is_whole || line.len() as u64 == MAX_LINE_BYTES { line.len() as u64 } else { 0 };
        line.clear();
    }
    Ok(lines)
}

/// The first component on the way to this directory that is not a directory.
fn file_in(directory: &Path) -> Option<&Path> {
    directory.ancestors().find(|path| fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir()))
}

/// An unusable ledger is a configuration error, whatever the system call returned.
fn unusable(path: &Path, error: &io::Error) -> Error {
    let known = error.raw_os_error().and_then(|errno| hint(path, errno, true));
    let hint = known.map_or("set `ledger` to a file that can be written".into(), Cow::Owned);
    Error::config(format!("cannot be the ledger: {error}")).at_path(path).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Outcome;

    fn failure(index: u64) -> Failure {
        let error = Error::new(Kind::Corrupt, "is truncated").at_index(index);
        Failure::of(&error, Path::new("cat/1\n.jpg"), Outcome::Replaced)
    }

    /// Retries until the lock is free.
    fn append(ledger: &LedgerFile, failures: &[Failure]) {
        let lines: String = failures.iter().map(|failure| failure.to_line().unwrap()).collect();
        while !ledger.append(&lines).unwrap() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for_and_its_owner_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let (ledger, other) = (LedgerFile::open(&path).unwrap(), LedgerFile::open(&path).unwrap());
        let line = failure(1).to_line().unwrap();
        let held = other.try_locked(|_| {
            assert!(!ledger.append(&line).unwrap());
            assert!(ledger.lock_owner().unwrap().starts_with(&format!("process {} (", std::process::id())));
            assert_eq!(ledger.read_on(0, &mut |_| panic!("nothing was written")).unwrap(), 0);
            Ok(())
        });
        assert!(held.unwrap().is_some());
        assert_eq!(ledger.lock_owner(), None);
        assert!(ledger.append(&line).unwrap());
        assert_eq!(LedgerFile::read(&path).unwrap().len(), 1);
    }

    #[test]
    fn a_file_where_a_directory_should_be_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.join("ledger.jsonl"), file.join("logs/ledger.jsonl")] {
            let error = LedgerFile::open(&path).unwrap_err();
            assert_eq!((error.kind(), error.path()), (Kind::Config, Some(&*path)));
            assert_eq!(error.message(), format!("cannot be the ledger: {file:?} is not a directory"));
        }
    }

    #[test]
    fn only_who_holds_the_lock_of_this_file_is_its_owner() {
        let place = (libc::makedev(8, 17), 56);
        assert_eq!(owner_of("1: FLOCK  ADVISORY  WRITE 12 08:11:56 0 EOF", place), Some(12));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 12 08:11:56 0 EOF",
            "1: POSIX  ADVISORY  WRITE 12 08:11:56 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 12 08:11:57 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 0 08:11:56 0 EOF",
            "",
        ] {
            assert_eq!(owner_of(other, place), None, "{other}");
        }
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
                        append(&ledger, &[failure(writer * 1000 + index), failure(index)]);
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
        append(&LedgerFile::open(&path).unwrap(), &[failure(2)]);
        let read: Vec<_> = LedgerFile::read(&path).unwrap().iter().map(|failure| failure.index).collect();
        assert_eq!(read, [1, 2]);
        fs::write(&path, "dear diary\n").unwrap();
        assert!(LedgerFile::read(&path).unwrap_err().to_string().contains("is not a ledger of forebay"));
    }

    #[test]
    fn what_is_appended_later_is_read_on_from_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        fs::write(&path, failure(1).to_line().unwrap() + "{\"path\":\"x").unwrap();
        let read = |from: &mut u64, ledger: &LedgerFile| {
            let mut indices = Vec::new();
            *from = ledger.read_on(*from, &mut |failure| indices.push(failure.index)).unwrap();
            indices
        };
        let mut from = LedgerFile::read_each(&path, &mut |failure| assert_eq!(failure.index, 1)).unwrap();
        let (ledger, other) = (LedgerFile::open(&path).unwrap(), LedgerFile::open(&path).unwrap());
        assert!(read(&mut from, &ledger).is_empty(), "the line that a crash cut short is passed over");
        append(&other, &[failure(2), failure(3)]);
        append(&ledger, &[failure(4)]);
        assert_eq!(read(&mut from, &ledger), [2, 3, 4]);
        assert!(read(&mut from, &ledger).is_empty());
        File::create(&path).unwrap();
        append(&other, &[failure(5)]);
        assert_eq!(read(&mut from, &ledger), [5], "begun anew");
    }

    #[test]
    fn stalls_are_passed_over_and_make_a_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let stalled = Failure { outcome: Outcome::Stalled, ..failure(1) };
        append(&LedgerFile::open(&path).unwrap(), &[stalled]);
        assert!(fs::read_to_string(&path).unwrap().contains("\"outcome\":\"stalled\""));
        assert!(LedgerFile::read(&path).unwrap().is_empty());
    }

    #[test]
    fn a_huge_file_without_lines_takes_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        assert!(LedgerFile::read(&path).unwrap_err().to_string().contains("is not a ledger of forebay"));
    }
}
