//! What a directory holds: the words between the store that lists it and the format that makes samples of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Version;

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry<'a> {
    /// The last component of its path.
    pub name: &'a OsStr,
    /// A directory, or a link to one. Everything else may be a sample.
    pub is_directory: bool,
}

/// A directory's entries, in no order, and which directory it is under all its names.
///
/// The names lie in one piece of memory: a directory of a million files is two allocations, not a million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    identity: (u64, u64),
    names: Vec<u8>,
    /// Where each name ends, and in the lowest bit whether it is a directory's.
    ends: Vec<u64>,
    /// What the store told of each entry along with its name; empty if it told nothing.
    versions: Vec<Version>,
    /// Names below the directory that no path can hold.
    refused: Vec<String>,
}

impl Listing {
    /// An empty directory. `identity` is device and inode: the same for every path that leads here, so that a loop of
    /// links is seen.
    pub fn new(identity: (u64, u64)) -> Self {
        Self { identity, ..Self::default() }
    }

    /// Device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Adds an entry.
    pub fn push(&mut self, name: &OsStr, is_directory: bool) {
        self.names.extend_from_slice(name.as_bytes());
        self.ends.push((self.names.len() as u64) << 1 | u64::from(is_directory));
        if !self.versions.is_empty() {
            self.versions.push(Version::default());
        }
    }

    /// Adds an object, with what its store told of it.
    pub fn push_object(&mut self, name: &OsStr, version: Version) {
        self.push(name, false);
        self.versions.resize(self.ends.len() - 1, Version::default());
        self.versions.push(version);
    }

    /// Adds a name that no path can hold: it is not an entry, and is told by name.
    pub fn push_refused(&mut self, name: String) {
        self.refused.push(name);
    }

    /// Names that are there, and that no path can hold: `..`, or `/` for what has no name before its slash. One that ends
    /// in a slash stands for all that begins with it.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// What a refused name of a directory is called. It is text for people: as a path it would lead elsewhere.
    pub fn refused_path(directory: &Path, name: &str) -> PathBuf {
        let mut text = directory.as_os_str().to_owned();
        text.push("/");
        text.push(name);
        text.into()
    }

    /// What the store told of an entry, by its place in the order they were added; `None` if it told nothing of any.
    pub fn version(&self, position: usize) -> Option<&Version> {
        self.versions.get(position)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The entries, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let name = &self.names[start..(end >> 1) as usize];
            start = (end >> 1) as usize;
            Entry { name: OsStr::from_bytes(name), is_directory: end & 1 == 1 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_was_added() {
        let names = [b"a".as_slice(), b"", b"\xff\n", "\u{fc}.jpg".as_bytes()].map(OsStr::from_bytes);
        let mut listing = Listing::new((1, 2));
        assert!(listing.is_empty());
        names.iter().zip([false, true, true, false]).for_each(|(name, is_directory)| listing.push(name, is_directory));
        let entries: Vec<_> = listing.iter().map(|entry| (entry.name, entry.is_directory)).collect();
        assert_eq!(entries, [(names[0], false), (names[1], true), (names[2], true), (names[3], false)]);
        assert_eq!((listing.len(), listing.identity()), (4, (1, 2)));
        assert_eq!(listing.version(0), None);
    }

    #[test]
    fn what_no_path_can_hold_is_no_entry_and_keeps_its_name() {
        let mut listing = Listing::new((1, 2));
        ["../x.jpg", "/abs.jpg", "a//"].iter().for_each(|name| listing.push_refused((*name).to_owned()));
        assert!(listing.is_empty() && listing.refused().len() == 3);
        let path = |name| Listing::refused_path(Path::new("s3://b/train"), name).into_os_string();
        assert_eq!([path("../x.jpg"), path("/abs.jpg")], ["s3://b/train/../x.jpg", "s3://b/train//abs.jpg"]);
    }

    #[test]
    fn keeps_what_a_store_tells_of_some() {
        let mut listing = Listing::new((1, 2));
        let version = Version { size_bytes: Some(5), ..Version::default() };
        listing.push(OsStr::new("a"), true);
        listing.push_object(OsStr::new("b"), version.clone());
        listing.push(OsStr::new("c"), true);
        listing.push_object(OsStr::new("d"), version.clone());
        let versions: Vec<_> = (0..4).map(|position| listing.version(position).unwrap().size_bytes).collect();
        assert_eq!(versions, [None, Some(5), None, Some(5)]);
        assert_eq!(listing.len(), 4);
    }
}
