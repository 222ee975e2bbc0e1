//! The file in which the indexes of large files are kept, so that a later run does not read them again.
//!
//! ```text
//! "forebay index 1\n"  rule  files  { path_hash  size_bytes  stamp_ns  index }*  xxh3 of everything before
//! ```
//! Numbers are of 64 bits, little-endian. It is a copy of what the files say, and not trusted: anything odd about it means that
//! the files are read again.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::extents::take_word;
use crate::file_scan::FileIndex;

const MAGIC: &[u8; 16] = b"forebay index 1\n";
const ANY_TIME: i64 = i64::MIN;

/// A file as it was when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileVersion {
    path_hash: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Its modification time, or what an object store has for it.
    pub stamp_ns: i64,
}

impl FileVersion {
    /// The file of this path, relative to wherever the dataset is.
    pub fn new(path: &[u8], size_bytes: u64, stamp_ns: i64) -> Self {
        Self { path_hash: xxh3_64(path), size_bytes, stamp_ns }
    }

    /// The same file, whatever its time is: copies have other ones. For indexes with checksums, which tell of each sample
    /// whether it is still the same.
    pub fn of_any_time(self) -> Self {
        Self { stamp_ns: ANY_TIME, ..self }
    }
}

/// The content of an index file. `rule` is the number of what its indexes are made by: no other reader takes them.
pub fn write_index<'a, I: FileIndex + 'a>(
    rule: u64,
    files: impl ExactSizeIterator<Item = (FileVersion, &'a I)>,
) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for word in [rule, files.len() as u64] {
        bytes.extend(word.to_le_bytes());
    }
    for (FileVersion { path_hash, size_bytes, stamp_ns }, index) in files {
        for word in [path_hash, size_bytes, stamp_ns.cast_unsigned()] {
            bytes.extend(word.to_le_bytes());
        }
        index.write(&mut bytes);
    }
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// The indexes in an index file. `None` if it is damaged, of another rule, or something else.
pub fn read_index<I: FileIndex>(rule: u64, bytes: &[u8]) -> Option<HashMap<FileVersion, I>> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let mut rest = content.strip_prefix(MAGIC)?;
    if u64::from_le_bytes(*sum) != xxh3_64(content) || take_word(&mut rest)? != rule {
        return None;
    }
    let mut found = HashMap::new();
    for _ in 0..take_word(&mut rest)? {
        let (path_hash, size_bytes) = (take_word(&mut rest)?, take_word(&mut rest)?);
        let stamp_ns = take_word(&mut rest)?.cast_signed();
        found.insert(FileVersion { path_hash, size_bytes, stamp_ns }, I::parse(&mut rest, size_bytes)?);
    }
    rest.is_empty().then_some(found)
}

/// Whether these bytes begin as an index file does, and not as something that has to stay.
pub fn is_index(bytes: &[u8]) -> bool {
    bytes.is_empty() || bytes.starts_with(b"forebay index ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_scan::FileScanner;
    use crate::lines::{LineIndex, LineRule, LineScanner};

    const TEXT: u64 = 0;

    #[test]
    fn only_what_was_written_is_read() {
        let text = b"one\ntwo\n\nthree";
        let mut scanner = LineScanner::new(LineRule::Text, text.len() as u64);
        scanner.feed(text).unwrap();
        let index = scanner.finish().unwrap();
        let version = |path: &str| FileVersion::new(path.as_bytes(), text.len() as u64, -5);
        let bytes = write_index(TEXT, [(version("a"), &index), (version("b"), &index)].into_iter());
        assert!(is_index(&bytes));
        let read = read_index::<LineIndex>(TEXT, &bytes).unwrap();
        assert_eq!(read, HashMap::from([(version("a"), index.clone()), (version("b"), index)]));
        assert_eq!(read_index::<LineIndex>(LineRule::Json.word(), &bytes), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(read_index::<LineIndex>(TEXT, &damaged), None, "{at}");
            assert_eq!(read_index::<LineIndex>(TEXT, &bytes[..at]), None, "{at}");
        }
    }

    #[test]
    fn counts_that_the_bytes_do_not_hold_cost_nothing() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(TEXT.to_le_bytes());
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend([0; 200]);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        assert_eq!(read_index::<LineIndex>(TEXT, &bytes), None);
    }
}
