//! Keys and file names of entries.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::remote::is_url;

/// Directories that entries are spread over by hash.
pub(super) const SHARDS: usize = 256;
/// Hexadecimal digits of an entry's file name; its directory's name has two more.
const DIGITS: usize = 30;
const PART: &str = ".part";

/// The key of an entry: a whole object of a store, or a range of its bytes.
///
/// Its text is stored in the entry and compared, so that a hash collision cannot mix up two objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) text: Vec<u8>,
    pub(super) name: Name,
}

impl Key {
    /// The key of a whole object. `identity` distinguishes stores that may have the same paths.
    pub(super) fn whole(identity: &str, path: &Path) -> Self {
        Self::of(identity, path, b"whole")
    }

    /// The key of exactly this range; overlapping ranges have other keys.
    pub(super) fn range(identity: &str, path: &Path, range: &Range<u64>) -> Self {
        Self::of(identity, path, format!("{}-{}", range.start, range.end).as_bytes())
    }

    fn of(identity: &str, path: &Path, what: &[u8]) -> Self {
        let absolute = if is_url(path) { None } else { std::path::absolute(path).ok() };
        let path = absolute.as_deref().unwrap_or(path);
        // Paths contain no NUL.
        let text = [identity.as_bytes(), path.as_os_str().as_bytes(), what].join(&0);
        let (shard, entry) = Self::name_of(&text);
        Self { text, name: Name { shard, entry } }
    }

    /// The directory and the file name of the entry with this text.
    pub(super) fn name_of(text: &[u8]) -> (String, String) {
        let digits = format!("{:032x}", xxh3_128(text));
        (digits[..2].to_owned(), digits[2..].to_owned())
    }

    /// The path in a key's text, for display.
    pub(super) fn path_in(text: &[u8]) -> String {
        let path = text.split(|&byte| byte == 0).nth(1).unwrap_or_default();
        String::from_utf8_lossy(path).into_owned()
    }
}

/// The location of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    /// The directory.
    pub(super) shard: String,
    /// The file in it.
    pub(super) entry: String,
}

impl Name {
    /// Its file name until it is complete.
    pub(super) fn part(&self) -> String {
        format!("{}{PART}", self.entry)
    }

    pub(super) fn slot(&self) -> usize {
        usize::from_str_radix(&self.shard, 16).unwrap_or(0)
    }
}

/// The kind of a file in an entry directory, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Entry,
    Part,
}

/// `None` for files that are not forebay's, which are left alone.
pub(super) fn file_kind(name: &str) -> Option<FileKind> {
    let is_ours = |name: &str| name.len() == DIGITS && name.bytes().all(is_digit);
    match name.strip_suffix(PART) {
        Some(entry) => is_ours(entry).then_some(FileKind::Part),
        None => is_ours(name).then_some(FileKind::Entry),
    }
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The directory of a slot.
pub(super) fn shard(slot: usize) -> String {
    format!("{slot:02x}")
}

/// Whether a name is that of an entry directory.
pub(super) fn is_shard(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_paths_and_stores_apart() {
        let key = |identity: &str, path: &str| Key::whole(identity, Path::new(path));
        assert_eq!(key("", "/a/1.jpg"), key("", "/a/1.jpg"));
        assert_ne!(key("", "/a/1.jpg").name, key("", "/a/2.jpg").name);
        assert_ne!(key("http://one", "s3://b/1").name, key("http://two", "s3://b/1").name);
        assert_eq!(key("", "s3://b/a b/1").text, b"\0s3://b/a b/1\0whole");
        let here = std::env::current_dir().unwrap();
        assert_eq!(key("", "1.jpg"), Key::whole("", &here.join("1.jpg")), "a relative path is one of this directory");
        assert_eq!(Key::path_in(&key("x", "/a/1.jpg").text), "/a/1.jpg");
        let range = |range| Key::range("x", Path::new("/a/1.tar"), &range);
        assert_eq!(range(0..512).text, b"x\0/a/1.tar\x000-512");
        assert_ne!(range(0..512).name, range(0..511).name);
        assert_ne!(range(0..512).name, key("x", "/a/1.tar").name);
        assert_eq!(Key::path_in(&range(0..512).text), "/a/1.tar");
        assert_eq!(key("", "/a").name.slot(), usize::from_str_radix(&key("", "/a").name.shard, 16).unwrap());
    }

    #[test]
    fn only_names_of_ours_have_a_sort() {
        let name = Key::whole("", Path::new("/a")).name;
        assert_eq!((file_kind(&name.entry), file_kind(&name.part())), (Some(FileKind::Entry), Some(FileKind::Part)));
        assert!(is_shard(&name.shard) && is_shard(&shard(255)));
        for foreign in ["", "notes.txt", ".part", "0123456789abcdef0123456789abcdeg", &name.entry.to_uppercase()] {
            assert_eq!(file_kind(foreign).filter(|_| foreign != name.entry), None, "{foreign}");
        }
        assert_eq!(file_kind(&format!("{}.bak", name.entry)), None);
        assert!(!is_shard("FF") && !is_shard("f") && !is_shard("usage"));
    }
}
