//! The file format of an entry: the object's bytes or a range of them, the text of its key, and a footer.
//!
//! ```text
//! content | key | magic 8, version 4, key bytes 4, content bytes 8, object bytes 8, object mtime 8,
//!                 xxh3 of the content 8, xxh3 of key and footer 8
//! ```
//!
//! Nothing is flushed with fsync. After a crash of the machine an entry may be short, or contain zeros or old blocks;
//! it then fails one of the two checksums and is treated as absent.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::key::Key;
use crate::store::Stat;

const MAGIC: &[u8; 8] = b"forebay\xfb";
/// Version of the layout above, and of the entry directory. Entries of other versions are not read.
pub(super) const VERSION: u32 = 1;
const FOOTER: usize = 56;
/// Longer than any path of a store.
const MAX_KEY: u32 = 1 << 16;

/// The bytes after the content: key and footer.
pub(super) fn tail(key: &Key, content: &[u8], stat: Stat) -> Vec<u8> {
    let mut tail = key.text.clone();
    tail.extend_from_slice(MAGIC);
    tail.extend_from_slice(&VERSION.to_le_bytes());
    tail.extend_from_slice(&(key.text.len() as u32).to_le_bytes());
    tail.extend_from_slice(&(content.len() as u64).to_le_bytes());
    tail.extend_from_slice(&stat.size_bytes.to_le_bytes());
    tail.extend_from_slice(&stat.mtime_ns.to_le_bytes());
    tail.extend_from_slice(&xxh3_64(content).to_le_bytes());
    tail.extend_from_slice(&xxh3_64(&tail).to_le_bytes());
    tail
}

/// The metadata of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(super) key: Vec<u8>,
    pub(crate) content_bytes: u64,
    /// The version of the object that it holds.
    pub(super) stat: Stat,
    checksum: u64,
}

impl Head {
    /// Whether these bytes match the stored checksum.
    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        content.len() as u64 == self.content_bytes && xxh3_64(content) == self.checksum
    }
}

/// Reads the metadata of an entry of this file length; `None` if it is truncated, damaged, or of another version.
pub(crate) fn head(file: &File, length: u64) -> io::Result<Option<Head>> {
    /// Covers the footer and most keys in one call.
    const GUESS: u64 = 512;
    let guess = length.min(GUESS);
    let mut tail = vec![0; guess as usize];
    if !fill(file, &mut tail, length - guess)? {
        return Ok(None);
    }
    let Some(key_bytes) = key_bytes(&tail) else { return Ok(None) };
    let whole = u64::from(key_bytes) + FOOTER as u64;
    if whole > length {
        return Ok(None);
    }
    if whole > tail.len() as u64 {
        tail.resize(whole as usize, 0);
        if !fill(file, &mut tail, length - whole)? {
            return Ok(None);
        }
    }
    Ok(parse(&tail[tail.len() - whole as usize..], key_bytes as usize)
        .filter(|head| head.content_bytes == length - whole))
}

/// Appends a range of the content to `bytes`; false if the content is damaged. The checksum covers the whole content,
/// so all of it is read, in pieces.
pub(crate) fn range_of(file: &File, head: &Head, range: &Range<u64>, bytes: &mut Vec<u8>) -> io::Result<bool> {
    const PIECE: u64 = 1 << 20;
    let mut checksum = Xxh3::new();
    let mut buffer = vec![0; head.content_bytes.min(PIECE) as usize];
    for at in (0..head.content_bytes).step_by(PIECE as usize) {
        let end = (at + PIECE).min(head.content_bytes);
        let piece = &mut buffer[..(end - at) as usize];
        if !fill(file, piece, at)? {
            return Ok(false);
        }
        checksum.update(piece);
        let within = |place: u64| (place.clamp(at, end) - at) as usize;
        bytes.extend_from_slice(&piece[within(range.start)..within(range.end)]);
    }
    Ok(checksum.digest() == head.checksum)
}

/// An entry with valid checksums for these bytes, as far as its lengths make sense.
#[cfg(feature = "testing")]
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut entry = bytes.to_vec();
    let Some(footer) = entry.len().checked_sub(FOOTER) else { return entry };
    entry[footer..footer + 8].copy_from_slice(MAGIC);
    let Some(key) = key_bytes(&entry).and_then(|key| footer.checked_sub(key as usize)) else { return entry };
    let content = xxh3_64(&entry[..key]).to_le_bytes();
    entry[footer + 40..footer + 48].copy_from_slice(&content);
    let end = entry.len() - 8;
    let checksum = xxh3_64(&entry[key..end]).to_le_bytes();
    entry[end..].copy_from_slice(&checksum);
    entry
}

fn key_bytes(tail: &[u8]) -> Option<u32> {
    let footer = tail.len().checked_sub(FOOTER).map(|at| &tail[at..])?;
    let is_ours = &footer[..8] == MAGIC && number::<4>(footer, 8) == u64::from(VERSION);
    let bytes = number::<4>(footer, 12) as u32;
    (is_ours && bytes <= MAX_KEY).then_some(bytes)
}

fn parse(tail: &[u8], key_bytes: usize) -> Option<Head> {
    let (checked, checksum) = tail.split_at(tail.len() - 8);
    if xxh3_64(checked) != number::<8>(checksum, 0) {
        return None;
    }
    let (key, footer) = tail.split_at(key_bytes);
    Some(Head {
        key: key.to_owned(),
        content_bytes: number::<8>(footer, 16),
        stat: Stat { size_bytes: number::<8>(footer, 24), mtime_ns: number::<8>(footer, 32) as i64 },
        checksum: number::<8>(footer, 40),
    })
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Fills `bytes` from an offset of a file; false if the file ends before that.
pub(super) fn fill(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn written(content: &[u8], key: &Key) -> Vec<u8> {
        let stat = Stat { size_bytes: content.len() as u64, mtime_ns: -5 };
        [content, &tail(key, content, stat)].concat()
    }

    fn read(bytes: &[u8]) -> Option<Head> {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, bytes).unwrap();
        let head = head(&file, bytes.len() as u64).unwrap()?;
        head.is_of(bytes.get(..head.content_bytes as usize)?).then_some(head)
    }

    #[test]
    fn what_was_written_is_read_whatever_its_length() {
        for key in ["/a".to_owned(), format!("/{}", "long/".repeat(200))] {
            let key = Key::whole("http://store", Path::new(&key));
            for content in [&b""[..], b"x", &[7; 5000]] {
                let head = read(&written(content, &key)).unwrap();
                assert_eq!((head.key, head.content_bytes), (key.text.clone(), content.len() as u64));
                assert_eq!(head.stat, Stat { size_bytes: content.len() as u64, mtime_ns: -5 });
            }
        }
    }

    #[test]
    fn one_flipped_bit_or_one_missing_byte_is_found_wherever_it_is() {
        let bytes = written(b"some content", &Key::whole("", Path::new("/cat/1.jpg")));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(read(&damaged), None, "byte {at}, bit {bit}");
            }
            assert_eq!(read(&bytes[..at]), None, "cut at {at}");
            assert_eq!(read(&bytes[at + 1..]), None, "begins at {at}");
        }
        assert_eq!(read(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(read(&vec![0; 4096]), None);
        assert_eq!(read(&[&bytes[..], &bytes[..]].concat()), None, "longer than it says");
    }

    #[test]
    fn a_range_is_given_only_of_what_is_whole() {
        let content: Vec<u8> = (0..(5 << 19) + 7_u32).map(|number| (number.wrapping_mul(number) >> 9) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        let entry = written(&content, &Key::whole("", Path::new("/a")));
        io::Write::write_all(&mut file, &entry).unwrap();
        let head = head(&file, entry.len() as u64).unwrap().unwrap();
        let (piece, size) = (1 << 20, content.len() as u64);
        for range in [0..1, 0..size, piece - 1..piece + 1, piece..2 * piece, 5..5, size - 1..size, 3..2 * piece + 9] {
            let mut bytes = Vec::new();
            assert!(range_of(&file, &head, &range, &mut bytes).unwrap());
            assert!(bytes == content[range.start as usize..range.end as usize], "{range:?}");
        }
        // Far from the requested range.
        file.write_all_at(&[!content[2 << 20]], 2 << 20).unwrap();
        assert!(!range_of(&file, &head, &(0..10), &mut Vec::new()).unwrap());
        file.set_len(100).unwrap();
        assert!(!range_of(&file, &head, &(0..10), &mut Vec::new()).unwrap());
    }

    #[test]
    fn another_version_is_not_read() {
        let key = Key::whole("", Path::new("/a"));
        let mut bytes = written(b"abc", &key);
        let at = bytes.len() - FOOTER + 8;
        bytes[at] = 2;
        let end = bytes.len() - 8;
        let checksum = xxh3_64(&bytes[3..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        assert_eq!(read(&bytes), None);
    }
}
