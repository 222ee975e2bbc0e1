//! A store in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Listing, Result, Stage};

use crate::read_request::ReadRequest;
use crate::store::{Allot, Object, Stat, Store};

/// Objects in a map, by path.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    /// Adds an object.
    pub fn insert(&mut self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), bytes.into());
    }

    fn get(&self, path: &Path) -> Result<&[u8]> {
        if let Some(bytes) = self.0.get(path) {
            return Ok(bytes);
        }
        let error = if self.is_directory(path) {
            Error::new(Kind::Undecodable, "is a directory, not a regular file")
        } else {
            Error::io("opened", std::io::Error::from_raw_os_error(libc::ENOENT))
        };
        Err(error.at_path(path).at_stage(Stage::Fetch))
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.0.keys().any(|key| key.starts_with(path) && key != path)
    }
}

impl Store for Memory {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        request.check_cancel()?;
        let (content, stat) = (self.get(request.path)?, self.stat(request.path)?);
        let range = request.bytes_of(stat).map_err(|error| error.at_stage(Stage::Fetch))?;
        let mut bytes = allot(range.end - range.start)?;
        bytes.clear();
        bytes.extend_from_slice(&content[range.start as usize..range.end as usize]);
        Ok(Object { bytes: bytes.into(), stat })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Ok(Stat { size_bytes: self.get(path)?.len() as u64, mtime_ns: 0 })
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        if !self.is_directory(directory) {
            let error = Error::io("listed", std::io::Error::from_raw_os_error(libc::ENOENT));
            return Err(error.at_path(directory).at_stage(Stage::Scan));
        }
        let mut entries = BTreeSet::new();
        for key in self.0.keys().filter_map(|key| key.strip_prefix(directory).ok()) {
            let mut parts = key.components();
            let Some(first) = parts.next() else { continue };
            entries.insert((first.as_os_str(), parts.next().is_some()));
        }
        let identity = self.0.keys().position(|key| key.starts_with(directory)).unwrap_or(0) as u64;
        let mut listing = Listing::new((directory.components().count() as u64, identity));
        entries.into_iter().for_each(|(name, is_directory)| listing.push(name, is_directory));
        Ok(listing)
    }
}
