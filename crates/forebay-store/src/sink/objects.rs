//! A sink that writes objects of a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Age, Held, Sink, SinkEntry, Writing};
use crate::read_request::ReadRequest;
use crate::remote::{Remote, Upload};
use crate::store::{Stat, Store};

/// The part size of large objects, unless that would be too many parts. S3 requires 5 MiB or more.
const PIECE_BYTES: u64 = 8 << 20;
/// The limit of S3; that of Azure is higher.
const MAX_PIECES: u64 = 10_000;
/// Deadline for reading back a piece.
const WITHIN: Duration = Duration::from_secs(60);

/// Objects below a root as a sink.
#[derive(Debug)]
pub struct ObjectSink {
    store: Remote,
    root: PathBuf,
    verifies: bool,
}

impl ObjectSink {
    /// For a root that [`Remote::open`] returned. With `verifies` every copy is read back.
    pub fn open(store: Remote, root: PathBuf, verifies: bool) -> Result<Self> {
        store.check_writable()?;
        Ok(Self { store, root, verifies })
    }

    fn path(&self, name: &Path) -> Result<PathBuf> {
        // As text: joining paths would drop the root if a component were absolute.
        let text = name.to_str().ok_or_else(|| {
            Error::new(Kind::Denied, "was refused: its name is not UTF-8, which names of objects must be")
                .at_path(name)
                .with_hint("rename it in the source, or exclude it")
        })?;
        Ok(if text.is_empty() { self.root.clone() } else { PathBuf::from(format!("{}/{text}", self.root.display())) })
    }
}

/// Reads an object back, and compares it with the bytes written.
fn verify(store: &Remote, path: &Path, size: u64, expected: u64) -> Result<()> {
    let stat = store.stat(path)?;
    let mut hash = Xxh3::new();
    let mut at = 0;
    while stat.size_bytes == size && at < size {
        let end = size.min(at + PIECE_BYTES);
        let request = ReadRequest::new(path, WITHIN).with_range(at..end).with_expected(stat);
        hash.update(&store.fetch(&request, &mut |_| Ok(Vec::new()))?.bytes);
        at = end;
    }
    if at == size && stat.size_bytes == size && (size == 0 || hash.digest() == expected) {
        return Ok(());
    }
    Err(Error::new(Kind::Unavailable, "was read back with different bytes than were written").at_path(path).with_hint(
        "check whether another process writes to it; otherwise a proxy or the store itself changes the bytes",
    ))
}

/// Removes an object that failed verification: the next run would take it for a good copy.
fn withdraw(store: &Remote, path: &Path) {
    // A failure here would hide the original error.
    let _removed = store.remove(path);
}

impl Sink for ObjectSink {
    fn list(&self, directory: &Path) -> Result<Vec<SinkEntry>> {
        let listing = match self.store.list(&self.path(directory)?) {
            Err(error) if error.kind() == Kind::NotFound && directory.as_os_str().is_empty() => return Ok(Vec::new()),
            other => other?,
        };
        let entry = |(position, entry): (usize, forebay_core::Entry<'_>)| match Stat::listed(&listing, position) {
            Some(stat) if !entry.is_directory => {
                SinkEntry::File(entry.name.to_owned(), Held { size_bytes: stat.size_bytes, age: Age::Unknown })
            }
            _ => SinkEntry::Directory(entry.name.to_owned()),
        };
        Ok(listing.iter().enumerate().map(entry).collect())
    }

    fn held(&self, name: &Path) -> Result<Option<Held>> {
        self.store.held(&self.path(name)?)
    }

    fn put(&self, name: &Path, bytes: &[u8], stat: Stat) -> Result<()> {
        let path = self.path(name)?;
        self.store.put(&path, bytes, stat.mtime_ns)?;
        if !self.verifies {
            return Ok(());
        }
        verify(&self.store, &path, bytes.len() as u64, xxh3_64(bytes)).inspect_err(|_| withdraw(&self.store, &path))
    }

    fn begin(&self, name: &Path, stat: Stat) -> Result<Box<dyn Writing>> {
        let path = self.path(name)?;
        let upload = self.store.begin(&path, stat.mtime_ns)?;
        let piece_bytes = stat.size_bytes.div_ceil(MAX_PIECES).next_multiple_of(1 << 20).max(PIECE_BYTES);
        let (store, verifies) = (self.store.clone(), self.verifies);
        Ok(Box::new(InParts {
            upload,
            piece_bytes,
            path,
            stat,
            store,
            verifies,
            hash: Xxh3::new(),
            is_done: false,
            is_verified: false,
        }))
    }

    fn remove(&self, name: &Path) -> Result<()> {
        self.store.remove(&self.path(name)?)
    }

    fn remove_directory(&self, _name: &Path) -> Result<bool> {
        // Object stores have no directories; a prefix disappears with its last object.
        Ok(false)
    }
}

/// A large object that is being written in parts.
struct InParts {
    upload: Upload,
    piece_bytes: u64,
    path: PathBuf,
    /// The metadata of its source.
    stat: Stat,
    store: Remote,
    verifies: bool,
    hash: Xxh3,
    /// The parts were combined into one object, which may still have to be read back.
    is_done: bool,
    is_verified: bool,
}

impl InParts {
    fn is_there(&self) -> Result<bool> {
        let held = self.store.held(&self.path)?;
        Ok(held == Some(Held { size_bytes: self.stat.size_bytes, age: Age::SourceTime(self.stat.mtime_ns) }))
    }
}

impl Writing for InParts {
    fn have_bytes(&self) -> u64 {
        0
    }

    fn show(&mut self, _each: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(())
    }

    fn piece_bytes(&self) -> Option<u64> {
        Some(self.piece_bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.upload.write((offset / self.piece_bytes) as usize, bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn set_size(&mut self, size_bytes: u64) {
        self.stat.size_bytes = size_bytes;
    }

    fn finish(&mut self) -> Result<()> {
        if !self.is_done {
            match self.upload.finish() {
                // It was finished before, and only the response was lost.
                Err(error) if error.kind() == Kind::NotFound && self.is_there()? => {}
                other => other?,
            }
            self.is_done = true;
        }
        if self.verifies {
            verify(&self.store, &self.path, self.stat.size_bytes, self.hash.digest())?;
        }
        self.is_verified = true;
        Ok(())
    }

    fn discard(&mut self) -> Result<()> {
        match (self.is_done, self.is_verified) {
            (true, true) => Ok(()),
            (true, false) => self.store.remove(&self.path),
            (false, _) => self.upload.abandon(),
        }
    }
}
