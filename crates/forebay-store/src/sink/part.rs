//! A file copy in progress: written under a temporary name beside its destination, synced, and then renamed, so that a
//! file with the final name is always complete.
//!
//! The temporary name contains the copy's name, its source's size and time, and the boot id. So a later process finds
//! the part file of an earlier one and never resumes any other. After a reboot it does not resume, because it is
//! unknown which writes reached the disk.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_core::{Error, Kind, Result, hash_words};
use rustix::fs::OFlags;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::directory::Root;
use super::{Writing, at};
use crate::replace::set_mode;
use crate::store::Stat;

/// Whether this is the name of a part file.
pub fn is_part(name: &OsStr) -> bool {
    let middle = name.as_bytes().strip_prefix(b".forebay-").and_then(|rest| rest.strip_suffix(b".part"));
    middle.is_some_and(|middle| middle.len() == 16 && middle.iter().all(u8::is_ascii_hexdigit))
}

/// The name of a copy's part file.
pub(super) fn part_name(name: &Path, stat: Stat) -> OsString {
    static BOOT: OnceLock<u64> = OnceLock::new();
    let boot = *BOOT.get_or_init(|| {
        // Without a boot id, each process counts as a boot of its own.
        let id = fs::read("/proc/sys/kernel/random/boot_id");
        xxh3_64(&id.unwrap_or_else(|_| std::process::id().to_ne_bytes().into()))
    });
    let hash = hash_words(&[xxh3_64(name.as_os_str().as_bytes()), stat.size_bytes, stat.mtime_ns as u64, boot]);
    OsString::from(format!(".forebay-{hash:016x}.part"))
}

/// The part file, locked while it is open.
pub(super) struct Part {
    root: Arc<Root>,
    directory: File,
    file: File,
    part: OsString,
    name: PathBuf,
    stat: Stat,
    /// Bytes that an earlier process has written.
    have_bytes: u64,
    /// Hash of the written bytes from the first one on, to compare with what is read back.
    hash: Xxh3,
}

impl Part {
    pub(super) fn open(root: &Arc<Root>, name: &Path, stat: Stat) -> Result<Self> {
        let directory = root.walk(name.parent().unwrap_or(Path::new("")), true)?;
        let part = part_name(name, stat);
        let failed = |doing, error| root.failed(doing, name, error);
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE;
            let file = at::open(&directory, &part, flags).map_err(|error| failed("created", error))?;
            if !at::lock(&file).map_err(|error| failed("locked", error))? {
                return Err(Error::new(Kind::Unavailable, "is being written by another process")
                    .at_path(&root.path.join(name))
                    .with_hint("wait for the other process to end, or stop it, then run this one again"));
            }
            // The previous owner may have renamed or removed it in between: then the name belongs to another file.
            let metadata = file.metadata().map_err(|error| failed("examined", error))?;
            let named = at::status(&directory, &part).ok().map(|status| status.identity);
            if named == Some((metadata.dev(), metadata.ino())) {
                let have_bytes = if metadata.len() > stat.size_bytes { 0 } else { metadata.len() };
                let (root, name) = (Arc::clone(root), name.to_owned());
                return Ok(Self { root, directory, file, part, name, stat, have_bytes, hash: Xxh3::new() });
            }
        }
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        self.root.failed(doing, &self.name, error)
    }

    fn each(&self, size: u64, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
        while at < size {
            let wanted = buffer.len().min((size - at) as usize);
            self.file.read_exact_at(&mut buffer[..wanted], at)?;
            each(&buffer[..wanted]);
            at += wanted as u64;
        }
        Ok(())
    }

    /// Reads back what was written, from the disk if the kernel drops its page cache.
    fn verify(&mut self) -> Result<()> {
        at::forget(&self.file);
        let mut hash = Xxh3::new();
        let read = self.each(self.stat.size_bytes, &mut |bytes| hash.update(bytes));
        read.map_err(|error| self.failed("read back", error))?;
        if hash.digest() == self.hash.digest() {
            return Ok(());
        }
        self.discard()?;
        Err(Error::new(Kind::Unavailable, "was read back with different bytes than were written")
            .at_path(&self.root.path.join(&self.name))
            .with_hint("the disk, its cable or this machine's memory is failing: see `dmesg` and SMART"))
    }
}

fn time(mtime_ns: i64) -> SystemTime {
    let since = Duration::from_nanos(mtime_ns.unsigned_abs());
    let time = if mtime_ns < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    time.unwrap_or(UNIX_EPOCH)
}

impl Writing for Part {
    fn have_bytes(&self) -> u64 {
        self.have_bytes
    }

    fn show(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut hash = Xxh3::new();
        let shown = self.each(self.have_bytes, &mut |bytes| {
            hash.update(bytes);
            each(bytes);
        });
        self.hash = hash;
        shown.map_err(|error| self.failed("read", error))
    }

    fn piece_bytes(&self) -> Option<u64> {
        None
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.failed("written", error))?;
        self.hash.update(bytes);
        Ok(())
    }

    fn set_size(&mut self, size_bytes: u64) {
        self.stat.size_bytes = size_bytes;
    }

    fn finish(&mut self) -> Result<()> {
        let Stat { size_bytes, mtime_ns } = self.stat;
        self.file.set_len(size_bytes).map_err(|error| self.failed("written", error))?;
        self.file.set_modified(time(mtime_ns)).map_err(|error| self.failed("given its time", error))?;
        let last = self.name.file_name().unwrap_or_default().to_owned();
        if let Ok(replaced) = at::status(&self.directory, &last)
            && replaced.is_file()
        {
            set_mode(&self.file, replaced.mode).map_err(|error| self.failed("given its mode", error))?;
        }
        self.file.sync_all().map_err(|error| self.failed("written", error))?;
        if self.root.verifies {
            self.verify()?;
        }
        at::rename(&self.directory, &self.part, &last).map_err(|error| self.failed("put in its place", error))?;
        self.root.changed(self.name.parent().unwrap_or(Path::new("")));
        Ok(())
    }

    fn discard(&mut self) -> Result<()> {
        (self.have_bytes, self.hash) = (0, Xxh3::new());
        self.file.set_len(0).map_err(|error| self.failed("written", error))?;
        at::remove(&self.directory, &self.part, false).map_err(|error| self.failed("removed", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{DirectorySink, Sink, SinkEntry};

    const STAT: Stat = Stat { size_bytes: 6, mtime_ns: 1_700_000_000_123_456_789 };

    fn part_in(folder: &Path) -> PathBuf {
        let mut parts = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        parts.find(|path| is_part(path.file_name().unwrap())).unwrap()
    }

    #[test]
    fn what_an_earlier_process_left_is_gone_on_with_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let sink = DirectorySink::open(folder.path(), true).unwrap();
        let name = Path::new("a.jpg");
        let mut first = sink.begin(name, STAT).unwrap();
        first.write(0, b"123").unwrap();
        drop(first);
        let part = sink.part(name, STAT).unwrap();
        assert_eq!(sink.list(Path::new("")).unwrap(), [SinkEntry::Part(part.into())]);
        let other = Stat { mtime_ns: STAT.mtime_ns + 1, ..STAT };
        assert_eq!(sink.begin(name, other).unwrap().have_bytes(), 0, "another version begins anew");
        let mut again = sink.begin(name, STAT).unwrap();
        let mut seen = Vec::new();
        again.show(&mut |bytes| seen.extend_from_slice(bytes)).unwrap();
        assert_eq!((again.have_bytes(), seen.as_slice()), (3, b"123".as_slice()));
        again.write(3, b"456").unwrap();
        again.finish().unwrap();
        assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"123456");
    }

    #[test]
    fn what_is_read_back_otherwise_never_gets_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let sink = DirectorySink::open(folder.path(), true).unwrap();
        let mut writing = sink.begin(Path::new("a.jpg"), STAT).unwrap();
        writing.write(0, b"123456").unwrap();
        fs::write(part_in(folder.path()), b"12345x").unwrap();
        let error = writing.finish().unwrap_err();
        assert_eq!(error.message(), "was read back with different bytes than were written");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left of it");
    }

    #[test]
    fn one_that_became_shorter_or_longer_than_was_said_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let sink = DirectorySink::open(folder.path(), true).unwrap();
        for content in [&b"123"[..], b"123456789", b""] {
            let mut writing = sink.begin(Path::new("a.tar"), STAT).unwrap();
            writing.write(0, content).unwrap();
            writing.set_size(content.len() as u64);
            writing.finish().unwrap();
            assert_eq!(fs::read(folder.path().join("a.tar")).unwrap(), content);
        }
    }

    #[test]
    fn a_copy_keeps_the_mode_of_the_file_it_replaces() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let sink = DirectorySink::open(folder.path(), false).unwrap();
        sink.put(Path::new("a.jpg"), b"123456", STAT).unwrap();
        assert_eq!(
            (fs::metadata(&path).unwrap().mode() & 0o777, fs::read(&path).unwrap()),
            (0o640, b"123456".to_vec())
        );
    }

    #[test]
    fn two_processes_do_not_write_one_copy() {
        let folder = tempfile::tempdir().unwrap();
        let sink = DirectorySink::open(folder.path(), false).unwrap();
        let mut writing = sink.begin(Path::new("a.jpg"), STAT).unwrap();
        let error = sink.put(Path::new("a.jpg"), b"123456", STAT).unwrap_err();
        assert_eq!(error.message(), "is being written by another process");
        sink.remove(part_in(folder.path()).strip_prefix(folder.path()).unwrap()).unwrap();
        writing.write(0, b"123456").unwrap();
        writing.finish().unwrap();
        assert_eq!(fs::read(folder.path().join("a.jpg")).unwrap(), b"123456", "it was left alone");
    }

    #[test]
    fn names_of_parts_are_told_from_others() {
        assert!(is_part(OsStr::new(".forebay-0123456789abcdef.part")));
        for name in [".forebay-0123.part", "forebay-0123456789abcdef.part", ".forebay-0123456789abcdeg.part", "a.part"]
        {
            assert!(!is_part(OsStr::new(name)), "{name}");
        }
    }
}
