//! Parsers of the store's own files, with bytes as input: for fuzzing.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use forebay_core::Failure;

use crate::wrap::entry;

/// The failures of a ledger with this content.
pub fn read_ledger(bytes: &[u8]) -> io::Result<Vec<Failure>> {
    let mut failures = Vec::new();
    crate::ledger::read_lines(bytes, &mut |failure| failures.push(failure))?;
    Ok(failures)
}

/// A file in memory that holds one cache entry at a time.
#[derive(Debug)]
pub struct EntryFile(File);

impl EntryFile {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the name ends with a NUL.
        let fd = unsafe { libc::memfd_create(c"entry".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// The content of a cache entry with these bytes, if it is valid.
    pub fn read(&self, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.0.set_len(0)?;
        self.0.write_all_at(bytes, 0)?;
        let Some(head) = entry::head(&self.0, bytes.len() as u64)? else { return Ok(None) };
        let mut content = Vec::new();
        let is_whole = entry::range_of(&self.0, &head, &(0..head.content_bytes), &mut content)?;
        Ok((is_whole && head.is_of(&content)).then_some(content))
    }

    /// An entry with valid checksums for these bytes.
    pub fn sealed(bytes: &[u8]) -> Vec<u8> {
        entry::sealed(bytes)
    }
}
