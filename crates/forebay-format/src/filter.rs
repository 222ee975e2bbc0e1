//! Filters and sorts the entries of one directory. Depends on nothing but a listing, so any thread can do it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use forebay_core::{Listing, Version};

/// Decides which files are samples.
#[derive(Clone, Debug)]
pub struct SampleFilter {
    /// Endings in lower case; `None` accepts every file.
    endings: Option<Vec<String>>,
    /// Keep the metadata that the listing gives for each file.
    keeps_versions: bool,
}

/// The samples of a directory, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilteredDirectory {
    pub(crate) identity: (u64, u64),
    /// The names of its samples, concatenated.
    pub(crate) names: Vec<u8>,
    /// Where each name ends.
    pub(crate) ends: Vec<u32>,
    pub(crate) directories: Vec<OsString>,
    /// The metadata from the listing for each sample; empty if it has none, or it is not kept.
    pub(crate) versions: Vec<Version>,
    /// Names that paths cannot represent.
    pub(crate) refused: Vec<String>,
}

impl FilteredDirectory {
    /// How many samples it has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &OsStr> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let name = &self.names[start..end as usize];
            start = end as usize;
            OsStr::from_bytes(name)
        })
    }

    pub(crate) fn push(&mut self, name: &OsStr) {
        self.names.extend_from_slice(name.as_bytes());
        self.ends.push(u32::try_from(self.names.len()).expect("the names in one directory stay below 4 GiB"));
    }
}

impl SampleFilter {
    pub(crate) fn new(endings: Option<Vec<String>>, keeps_versions: bool) -> Self {
        Self { endings, keeps_versions }
    }

    /// Filters and sorts a listing.
    pub fn apply(&self, listing: &Listing) -> FilteredDirectory {
        let refused = listing.refused().to_vec();
        let mut filtered = FilteredDirectory { identity: listing.identity(), refused, ..FilteredDirectory::default() };
        let keeps_versions = self.keeps_versions && listing.version(0).is_some();
        let mut names = Vec::with_capacity(listing.len());
        let mut versions = Vec::new();
        // Neighbours mostly have the same ending: the one that matched last is tried first.
        let mut last = 0;
        for (position, entry) in listing.iter().enumerate() {
            if entry.is_directory {
                filtered.directories.push(entry.name.to_owned());
            } else if self.endings.as_ref().is_none_or(|endings| fits(endings, entry.name.as_bytes(), &mut last)) {
                names.push(entry.name.as_bytes());
                if keeps_versions {
                    versions.push((entry.name.as_bytes(), listing.version(position)));
                }
            }
        }
        filtered.directories.sort_unstable();
        filtered.names.reserve_exact(names.iter().map(|name| name.len()).sum());
        filtered.ends.reserve_exact(names.len());
        for name in sorted(&names) {
            filtered.push(OsStr::from_bytes(name));
        }
        versions.sort_unstable_by_key(|(name, _)| *name);
        filtered.versions = versions.into_iter().map(|(_, version)| version.cloned().unwrap_or_default()).collect();
        filtered
    }
}

fn fits(endings: &[String], name: &[u8], last: &mut usize) -> bool {
    if endings.get(*last).is_some_and(|ending| has_ending(name, ending)) {
        return true;
    }
    match endings.iter().position(|ending| has_ending(name, ending)) {
        Some(position) => {
            *last = position;
            true
        }
        None => false,
    }
}

/// Whether a name has this ending, ignoring case.
pub(crate) fn has_ending(name: &[u8], ending: &str) -> bool {
    name.len() >= ending.len() && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending.as_bytes())
}

/// Sorts by bytes. Most comparisons look at one number: the eight bytes after the common prefix of all names.
fn sorted<'a>(names: &[&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    let mut shared = names.first().map_or(0, |name| name.len());
    for pair in names.windows(2) {
        shared = pair[0][..shared.min(pair[0].len())].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
    }
    let key = |name: &[u8]| {
        let mut key = [0; 8];
        let rest = &name[shared..];
        let count = rest.len().min(8);
        key[..count].copy_from_slice(&rest[..count]);
        u64::from_be_bytes(key)
    };
    let mut keyed: Vec<_> = names.iter().map(|&name| (key(name), name)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::hash_words;

    #[test]
    fn names_are_sorted_as_bytes_whatever_they_begin_with() {
        for shared in ["", "n01440764_", "a"] {
            let mut names: Vec<Vec<u8>> = (0..300_u64)
                .map(|number| {
                    let length = hash_words(&[number, 1]) as usize % 12;
                    let tail = (0..length).map(|at| 1 + (hash_words(&[number, 2, at as u64]) % 3) as u8 * 127);
                    shared.bytes().chain(tail).collect()
                })
                .collect();
            let listed: Vec<_> = names.iter().map(Vec::as_slice).collect();
            let got: Vec<_> = sorted(&listed).map(<[u8]>::to_vec).collect();
            names.sort();
            assert_eq!(got, names, "{shared:?}");
        }
    }

    #[test]
    fn endings_fit_in_any_mixture() {
        let filter = SampleFilter::new(Some(vec![".jpg".into(), ".png".into()]), false);
        let mut listing = Listing::new((0, 0));
        for name in ["c.PNG", "b.jpg", "jpg", ".jpg", "a.jpeg", "a.png", "d.txt", "e.Jpg"] {
            listing.push(OsStr::new(name), false);
        }
        listing.push(OsStr::new("z.jpg"), true);
        listing.push(OsStr::new("y"), true);
        let filtered = filter.apply(&listing);
        assert_eq!(filtered.names().collect::<Vec<_>>(), [".jpg", "a.png", "b.jpg", "c.PNG", "e.Jpg"]);
        assert_eq!(filtered.directories, ["y", "z.jpg"]);
        assert_eq!(SampleFilter::new(None, false).apply(&listing).ends.len(), 8);
        assert_eq!(SampleFilter::new(Some(Vec::new()), false).apply(&listing).ends.len(), 0);
    }

    #[test]
    fn what_a_store_told_stays_with_its_name() {
        let mut listing = Listing::new((1, 2));
        listing.push(OsStr::new("b"), true);
        for (size, name) in ["c.jpg", "a.jpg", "x.txt", "b.jpg"].into_iter().enumerate() {
            let version = Version { size_bytes: Some(size as u64), ..Version::default() };
            listing.push_object(OsStr::new(name), version);
        }
        let filtered = SampleFilter::new(Some(vec![".jpg".into()]), true).apply(&listing);
        assert_eq!(filtered.names().collect::<Vec<_>>(), ["a.jpg", "b.jpg", "c.jpg"]);
        assert_eq!(filtered.versions.iter().map(|version| version.size_bytes.unwrap()).collect::<Vec<_>>(), [1, 3, 0]);
        assert!(SampleFilter::new(None, false).apply(&listing).versions.is_empty());
    }
}
