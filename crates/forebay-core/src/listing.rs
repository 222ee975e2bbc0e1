//! What a directory holds: the words between the store that lists it and the format that makes samples of it.

use std::ffi::OsString;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component of its path.
    pub name: OsString,
    /// A directory, or a link to one. Everything else may be a sample.
    pub is_directory: bool,
}

/// A directory's entries, and which directory it is under all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its entries, in no order.
    pub entries: Vec<Entry>,
    /// Device and inode: the same for every path that leads here, so that a loop of links is seen.
    pub identity: (u64, u64),
}
