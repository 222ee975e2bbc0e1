//! One file in memory.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{Ordering::SeqCst, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::registry::Entry;
use super::signal;

/// A mapped file. Its bytes are copied out of it and never lent: another process may change them at any time.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Dropped first, by hand: the addresses are anybody's once they are unmapped.
    entry: Option<Entry>,
    start: *mut c_void,
    len: usize,
    file: File,
}

// SAFETY: the pointer is to memory that belongs to this value alone, stays where it is, and is only read.
unsafe impl Send for Mapping {}
// SAFETY: the same; copies by several threads at a time are reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file; `None` if there are too many mappings.
    pub(super) fn new(file: File, len: usize) -> io::Result<Option<Self>> {
        // SAFETY: the system chooses addresses that nothing has.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        let mut mapping = Self { entry: None, start, len, file };
        // Samples are read in any order: what lies around one need not be read with it.
        // SAFETY: the mapping is this one, and the advice does not change what is in it.
        unsafe { madvise(start, len, Advice::Random) }?;
        mapping.entry = Entry::new(start.addr()..start.addr() + len);
        Ok(mapping.entry.is_some().then_some(mapping))
    }

    /// The file, for its size and time.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Copies what is at `begin` of the file. `false` if it could not be read, or not all of it: then `into` has anything.
    pub(super) fn copy(&self, begin: u64, into: &mut [u8]) -> io::Result<bool> {
        /// From this size on, the system is asked to read all of it at once, if it is on a disk. Not measured.
        const ASK_FROM_BYTES: usize = 16 << 10;
        let begin = usize::try_from(begin).map_err(io::Error::other)?;
        let is_within = begin.checked_add(into.len()).is_some_and(|end| end <= self.len);
        let (true, Some(entry)) = (is_within, &self.entry) else { return Ok(false) };
        signal::arm()?;
        // SAFETY: it lies within the mapping, by the check above.
        let from = unsafe { self.start.cast::<u8>().add(begin) };
        if into.len() >= ASK_FROM_BYTES {
            let page = from.map_addr(|address| address & !(signal::page_bytes() - 1));
            let len = into.len() + (from.addr() - page.addr());
            // SAFETY: the pages are of this mapping, and the advice does not change what is in them. It may fail: then
            // they are read one by one.
            let _asked = unsafe { madvise(page.cast(), len, Advice::WillNeed) };
        }
        // SAFETY: `from` is valid for so many bytes while `self` is there: a page that the file does not have any more is
        // put in place by the signal handler, which is armed. `into` is a buffer of this process and elsewhere. What
        // other processes write meanwhile makes bytes old or new, of which any are valid.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        fence(SeqCst);
        Ok(!entry.is_cut())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.entry = None;
        // SAFETY: it is this mapping, nothing has a pointer into it, and the handler no longer knows it.
        // It cannot fail: the arguments are those of a mapping.
        let _unmapped = unsafe { munmap(self.start, self.len) };
    }
}
