//! The directory of a TIFF page: its tags, and whether what they point to is there.

use forebay_core::Result;

use crate::Format;
use crate::decoder::{damaged, truncated};

/// More pages than any real file has; the rest of a longer chain (or a loop) is not looked at.
const MAX_PAGES: usize = 4096;

/// One page's tags, still in the file.
pub(super) struct Directory<'a> {
    bytes: &'a [u8],
    big_endian: bool,
    entries: &'a [[u8; 12]],
    next: u64,
}

/// A part of the file, or truncation.
pub(super) fn slice(bytes: &[u8], offset: u64, length: u64) -> Result<&[u8]> {
    let end = offset.checked_add(length).filter(|end| *end <= bytes.len() as u64);
    match end {
        Some(end) => Ok(&bytes[offset as usize..end as usize]),
        None => Err(truncated(
            Format::Tiff,
            format!("expected {length} bytes at {offset}, got a file of {} bytes", bytes.len()),
        )),
    }
}

impl<'a> Directory<'a> {
    /// The directory of the first page.
    pub(super) fn first(bytes: &'a [u8]) -> Result<Self> {
        let big_endian = bytes.starts_with(b"M");
        let offset = slice(bytes, 4, 4)?;
        Self::at(bytes, big_endian, number(offset, big_endian))
    }

    fn at(bytes: &'a [u8], big_endian: bool, offset: u64) -> Result<Self> {
        let count = number(slice(bytes, offset, 2)?, big_endian);
        let entries = slice(bytes, offset + 2, count * 12)?.as_chunks().0;
        let next = number(slice(bytes, offset + 2 + count * 12, 4)?, big_endian);
        Ok(Self { bytes, big_endian, entries, next })
    }

    pub(super) const fn big_endian(&self) -> bool {
        self.big_endian
    }

    fn entry(&self, tag: u16) -> Option<&'a [u8; 12]> {
        self.entries.iter().find(|entry| number(&entry[..2], self.big_endian) == u64::from(tag))
    }

    pub(super) fn has(&self, tag: u16) -> bool {
        self.entry(tag).is_some()
    }

    /// The bytes of an entry's values, and the size of each.
    fn content(&self, entry: &'a [u8; 12]) -> Result<(&'a [u8], usize)> {
        let size = match number(&entry[2..4], self.big_endian) {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 => 8,
            // Types of the future are none of our tags.
            _ => return Ok((&[], 1)),
        };
        let length = number(&entry[4..8], self.big_endian) * size;
        let content = match length {
            0..=4 => &entry[8..8 + length as usize],
            _ => slice(self.bytes, number(&entry[8..12], self.big_endian), length)?,
        };
        Ok((content, size as usize))
    }

    /// All numbers of a tag.
    pub(super) fn all(&self, tag: u16) -> Result<Option<Vec<u64>>> {
        let Some(entry) = self.entry(tag) else { return Ok(None) };
        let (content, size) = self.content(entry)?;
        Ok(Some(content.chunks_exact(size).map(|value| number(value, self.big_endian)).collect()))
    }

    /// The first number of a tag.
    pub(super) fn one(&self, tag: u16, default: u64) -> Result<u64> {
        Ok(self.all(tag)?.and_then(|all| all.first().copied()).unwrap_or(default))
    }

    pub(super) fn required(&self, tag: u16, name: &str) -> Result<u64> {
        let value = self.all(tag)?.and_then(|all| all.first().copied());
        value.ok_or_else(|| damaged(Format::Tiff, format!("has no {name}")))
    }

    /// The number that all samples have; 0 when they differ.
    pub(super) fn uniform(&self, tag: u16, default: u64) -> Result<u64> {
        let all = self.all(tag)?.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![default]);
        Ok(if all.iter().all(|value| *value == all[0]) { all[0] } else { 0 })
    }

    /// Where the strips or tiles lie, and how long they are.
    pub(super) fn chunks(&self) -> Result<(Vec<u64>, Vec<u64>)> {
        let (offsets, counts) = if self.has(324) { (324, 325) } else { (273, 279) };
        let missing = || damaged(Format::Tiff, "does not say where its pixels are");
        Ok((self.all(offsets)?.ok_or_else(missing)?, self.all(counts)?.ok_or_else(missing)?))
    }

    /// Whether everything that any page refers to lies inside the file: how a cut shows that spared the first page.
    pub(super) fn check_extent(&self) -> Result<()> {
        self.check_page()?;
        let mut next = self.next;
        for _ in 1..MAX_PAGES {
            if next == 0 {
                break;
            }
            let page = Self::at(self.bytes, self.big_endian, next)?;
            page.check_page()?;
            next = page.next;
        }
        Ok(())
    }

    fn check_page(&self) -> Result<()> {
        for entry in self.entries {
            self.content(entry)?;
        }
        if let Ok((offsets, counts)) = self.chunks() {
            for (&offset, &count) in offsets.iter().zip(&counts) {
                slice(self.bytes, offset, count)?;
            }
        }
        Ok(())
    }
}

/// An unsigned number of up to 8 bytes.
fn number(bytes: &[u8], big_endian: bool) -> u64 {
    let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    if big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
}
