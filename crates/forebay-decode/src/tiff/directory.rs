//! The directory of a TIFF page: its tags, and checks that everything they point to exists.
//!
//! Nothing is copied out of the file, and work is bounded by the file's size: a directory can claim any number of
//! values, and a chain of directories can contain a cycle.

use std::collections::HashSet;

use forebay_core::Result;

use crate::Format;
use crate::decoder::{damaged, truncated};

/// More pages than any real file has; the rest of a longer chain is ignored.
const MAX_PAGES: usize = 4096;

/// How numbers are stored: their byte order, and whether it is a BigTIFF, which has 64-bit offsets.
#[derive(Clone, Copy)]
struct Layout {
    big_endian: bool,
    is_big: bool,
}

impl Layout {
    /// An unsigned number of up to 8 bytes.
    fn number(self, bytes: &[u8]) -> u64 {
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        if self.big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
    }

    /// Bytes of an offset, and of a count of values.
    const fn word(self) -> usize {
        if self.is_big { 8 } else { 4 }
    }

    /// Bytes of a directory's count of entries.
    const fn count(self) -> usize {
        if self.is_big { 8 } else { 2 }
    }

    /// Bytes of an entry: tag, type, count, value or offset.
    const fn entry(self) -> usize {
        4 + 2 * self.word()
    }
}

/// The numbers of a tag, read in place.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    content: &'a [u8],
    size: usize,
    layout: Layout,
}

impl<'a> Values<'a> {
    /// The bytes themselves.
    pub(super) const fn bytes(&self) -> &'a [u8] {
        self.content
    }

    pub(super) const fn len(&self) -> usize {
        self.content.len() / self.size
    }

    pub(super) fn get(&self, position: usize) -> Option<u64> {
        let start = position.checked_mul(self.size)?;
        let end = start.checked_add(self.size)?;
        self.content.get(start..end).map(|value| self.layout.number(value))
    }

    /// A fraction, as libtiff reads it.
    pub(super) fn ratio(&self, position: usize) -> f32 {
        let Some(bytes) = self.content.get(position * 8..position * 8 + 8) else { return 0.0 };
        let (above, below) = (self.layout.number(&bytes[..4]), self.layout.number(&bytes[4..]));
        if below == 0 { 0.0 } else { (above as f64 / below as f64) as f32 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.content.chunks_exact(self.size).map(|value| self.layout.number(value))
    }
}

/// The offsets and lengths of a page's strips or tiles.
#[derive(Clone, Copy)]
pub(super) struct Chunks<'a> {
    offsets: Values<'a>,
    byte_counts: Values<'a>,
    /// Upper limit for a chunk, whatever its byte count: some programs write a wrong count for the only strip of an
    /// uncompressed picture, and libtiff and Pillow ignore it.
    max_bytes: u64,
}

impl Chunks<'_> {
    pub(super) fn len(&self) -> usize {
        self.offsets.len().min(self.byte_counts.len())
    }

    /// Offset and length of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.offsets.iter().zip(self.byte_counts.iter()).map(|(offset, count)| (offset, count.min(self.max_bytes)))
    }
}

/// One page's tags, still in the file.
pub(super) struct Directory<'a> {
    bytes: &'a [u8],
    layout: Layout,
    entries: &'a [u8],
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
        let mut layout = Layout { big_endian: bytes.starts_with(b"M"), is_big: false };
        layout.is_big = layout.number(slice(bytes, 2, 2)?) == 43;
        if layout.is_big {
            let sizes = slice(bytes, 4, 4)?;
            if (layout.number(&sizes[..2]), layout.number(&sizes[2..])) != (8, 0) {
                return Err(damaged(Format::Tiff, "expected offsets of 8 bytes in a BigTIFF"));
            }
        }
        let at = if layout.is_big { 8 } else { 4 };
        let offset = layout.number(slice(bytes, at, layout.word() as u64)?);
        Self::at(bytes, layout, offset)
    }

    fn at(bytes: &'a [u8], layout: Layout, offset: u64) -> Result<Self> {
        let count = layout.number(slice(bytes, offset, layout.count() as u64)?);
        let start = offset + layout.count() as u64;
        let length = count.saturating_mul(layout.entry() as u64);
        let entries = slice(bytes, start, length)?;
        let next = layout.number(slice(bytes, start + length, layout.word() as u64)?);
        Ok(Self { bytes, layout, entries, next })
    }

    pub(super) const fn big_endian(&self) -> bool {
        self.layout.big_endian
    }

    fn entries(&self) -> impl Iterator<Item = &'a [u8]> {
        self.entries.chunks_exact(self.layout.entry())
    }

    /// The values of an entry, in place.
    fn values(&self, entry: &'a [u8]) -> Result<Values<'a>> {
        let layout = self.layout;
        let size = match layout.number(&entry[2..4]) {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            // Unknown types belong to no tag used here.
            _ => return Ok(Values { content: &[], size: 1, layout }),
        };
        let (count, place) = entry[4..].split_at(layout.word());
        let length = layout.number(count).saturating_mul(size);
        let content = match place.get(..length as usize) {
            Some(content) => content,
            None => slice(self.bytes, layout.number(place), length)?,
        };
        Ok(Values { content, size: size as usize, layout })
    }

    /// All numbers of a tag.
    pub(super) fn all(&self, tag: u16) -> Result<Option<Values<'a>>> {
        let entry = self.entries().find(|entry| self.layout.number(&entry[..2]) == u64::from(tag));
        entry.map(|entry| self.values(entry)).transpose()
    }

    pub(super) fn has(&self, tag: u16) -> bool {
        self.entries().any(|entry| self.layout.number(&entry[..2]) == u64::from(tag))
    }

    /// The first number of a tag, if there is one.
    pub(super) fn first_of(&self, tag: u16) -> Result<Option<u64>> {
        Ok(self.all(tag)?.and_then(|all| all.get(0)))
    }

    /// The first number of a tag.
    pub(super) fn one(&self, tag: u16, default: u64) -> Result<u64> {
        Ok(self.first_of(tag)?.unwrap_or(default))
    }

    pub(super) fn required(&self, tag: u16, name: &str) -> Result<u64> {
        self.first_of(tag)?.ok_or_else(|| damaged(Format::Tiff, format!("has no {name}")))
    }

    /// The number that the first `samples` values have in common; 0 if they differ.
    pub(super) fn uniform(&self, tag: u16, samples: usize, default: u64) -> Result<u64> {
        let Some(all) = self.all(tag)? else { return Ok(default) };
        let first = all.get(0).unwrap_or(default);
        Ok(if all.iter().take(samples).all(|value| value == first) { first } else { 0 })
    }

    /// Positions of the strips or tiles.
    pub(super) fn chunks(&self) -> Result<Chunks<'a>> {
        let (offsets, byte_counts) = if self.has(324) { (324, 325) } else { (273, 279) };
        let missing = || damaged(Format::Tiff, "does not say where its pixels are");
        let (offsets, byte_counts) =
            (self.all(offsets)?.ok_or_else(missing)?, self.all(byte_counts)?.ok_or_else(missing)?);
        let max_bytes = if offsets.len() == 1 { self.max_strip_bytes()? } else { u64::MAX };
        Ok(Chunks { offsets, byte_counts, max_bytes })
    }

    /// Bytes of the only strip of a page, if they follow from its size: when it is not compressed.
    fn max_strip_bytes(&self) -> Result<u64> {
        const YCBCR: u64 = 6;
        if self.one(259, 1)? != 1 || self.one(262, 0)? == YCBCR || self.has(322) {
            return Ok(u64::MAX);
        }
        let row_bits = self.one(256, 0)?.saturating_mul(self.one(277, 1)?).saturating_mul(self.one(258, 1)?);
        Ok(row_bits.div_ceil(8).saturating_mul(self.one(257, 0)?))
    }

    /// Checks that everything any page refers to is inside the file, which reveals a truncation after the first page.
    ///
    /// Each page is examined once, and the total work is bounded by the file's size: in a valid file no two directories
    /// or arrays share bytes. The rest of a chain that loops or overlaps is ignored.
    pub(super) fn check_extent(&self) -> Result<()> {
        let mut left = self.bytes.len();
        let mut seen = HashSet::new();
        let mut next = self.next;
        self.check_page(&mut left)?;
        while next != 0 && left > 0 && seen.len() < MAX_PAGES && seen.insert(next) {
            let page = Self::at(self.bytes, self.layout, next)?;
            page.check_page(&mut left)?;
            next = page.next;
        }
        Ok(())
    }

    /// Deducts what it examines from the bytes that are `left` to examine.
    fn check_page(&self, left: &mut usize) -> Result<()> {
        *left = left.saturating_sub(self.entries.len() + self.layout.count());
        for entry in self.entries() {
            self.values(entry)?;
        }
        let Ok(chunks) = self.chunks() else { return Ok(()) };
        let size = chunks.offsets.size + chunks.byte_counts.size;
        let room = *left / size;
        *left = left.saturating_sub(chunks.len() * size);
        for (offset, length) in chunks.iter().take(room) {
            slice(self.bytes, offset, length)?;
        }
        Ok(())
    }
}
