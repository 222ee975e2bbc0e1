//! Where the records of a file are, in one to two bytes for each: they lie one behind the other, and their lengths are kept.

use forebay_core::{Error, Result};
use std::ops::Range;

/// Records whose lengths are kept in one width, and found by one addition after the other.
const GROUP: usize = 64;

/// Consecutive ranges of numbers: bytes of records in a file, or lines of records.
///
/// A length takes 1, 2, 4 or 8 bytes, as the longest of its 64 neighbours needs; each group of 64 takes 16 more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    count: u64,
    groups: Vec<Group>,
    lengths: Vec<u8>,
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    start: u64,
    /// Where its lengths are, and in the two lowest bits the logarithm of their width.
    lengths: u64,
}

impl Group {
    fn width(self) -> usize {
        1 << (self.lengths & 3)
    }

    fn at(self) -> usize {
        (self.lengths >> 2) as usize
    }
}

impl Extents {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The end of the last one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Memory for all of them.
    pub fn size_bytes(&self) -> usize {
        self.groups.len() * size_of::<Group>() + self.lengths.len()
    }

    /// One of them. It has to be below [`Extents::len`].
    pub fn range(&self, index: u64) -> Range<u64> {
        let (group, place) = (self.groups[(index / GROUP as u64) as usize], (index % GROUP as u64) as usize);
        let width = group.width();
        let lengths = &self.lengths[group.at()..group.at() + (place + 1) * width];
        let start = group.start + sum(&lengths[..place * width], width);
        start..start + sum(&lengths[place * width..], width)
    }

    /// Writes it down for [`Extents::parse`].
    pub fn write(&self, out: &mut Vec<u8>) {
        let first = self.groups.first().map_or(self.end, |group| group.start);
        for word in [self.count, first] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.groups.iter().map(|group| (group.lengths & 3) as u8));
        out.extend(&self.lengths);
    }

    /// Reads what [`Extents::write`] wrote from the beginning of `bytes`, and moves them on. `None` where they are anything else.
    pub fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let (count, mut end) = (take_word(bytes)?, take_word(bytes)?);
        // Each has a byte at least, so a count that the bytes do not hold costs no memory.
        let count_here = usize::try_from(count).ok().filter(|count| *count <= bytes.len())?;
        let widths = bytes.split_off(..count_here.div_ceil(GROUP))?;
        let mut found = Self { count, groups: Vec::with_capacity(widths.len()), lengths: Vec::new(), end: 0 };
        let (all, mut at, mut left) = (*bytes, 0, count_here);
        for width in widths {
            let group = Group { start: end, lengths: (at as u64) << 2 | u64::from(*width) };
            let in_group = left.min(GROUP);
            let lengths = all.get(at..at + in_group * group.width()).filter(|_| *width <= 3)?;
            for length in lengths.chunks(group.width()) {
                end = end.checked_add(word_of(length))?;
            }
            found.groups.push(group);
            (at, left) = (at + lengths.len(), left - in_group);
        }
        found.lengths = bytes.split_off(..at)?.to_vec();
        found.end = end;
        Some(found)
    }
}

/// The next eight bytes as a number.
pub(crate) fn take_word(bytes: &mut &[u8]) -> Option<u64> {
    bytes.split_off(..8).map(word_of)
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn sum(lengths: &[u8], width: usize) -> u64 {
    match width {
        1 => lengths.iter().map(|length| u64::from(*length)).sum(),
        width => lengths.chunks_exact(width).map(word_of).sum(),
    }
}

/// Puts [`Extents`] together.
#[derive(Debug, Default)]
pub struct ExtentsBuilder {
    made: Extents,
    /// Of the group that is not complete.
    lengths: Vec<u64>,
    first: u64,
}

impl ExtentsBuilder {
    /// The first one begins here.
    pub fn new(first: u64) -> Self {
        Self { made: Extents { end: first, ..Extents::default() }, lengths: Vec::with_capacity(GROUP), first }
    }

    /// Adds one behind the last.
    pub fn push(&mut self, length: u64) -> Result<()> {
        let end = self.made.end.checked_add(length);
        self.made.end = end.ok_or_else(|| Error::internal("records that end beyond 2^64"))?;
        self.made.count += 1;
        self.lengths.push(length);
        if self.lengths.len() == GROUP { self.close_group() } else { Ok(()) }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.made.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.made.count == 0
    }

    /// All of them.
    pub fn finish(mut self) -> Result<Extents> {
        if !self.lengths.is_empty() {
            self.close_group()?;
        }
        self.made.groups.shrink_to_fit();
        self.made.lengths.shrink_to_fit();
        Ok(self.made)
    }

    fn close_group(&mut self) -> Result<()> {
        let log = match self.lengths.iter().copied().max().unwrap_or(0) {
            0..0x100 => 0,
            0x100..0x1_0000 => 1,
            0x1_0000..0x1_0000_0000 => 2,
            _ => 3,
        };
        let made = &mut self.made;
        let no_memory =
            |_| Error::new(forebay_core::Kind::Exhausted, "no memory was left for the index of its records");
        made.lengths.try_reserve(GROUP << log).map_err(no_memory)?;
        made.groups.try_reserve(1).map_err(no_memory)?;
        made.groups.push(Group { start: self.first, lengths: (made.lengths.len() as u64) << 2 | log });
        for length in self.lengths.drain(..) {
            made.lengths.extend(&length.to_le_bytes()[..1 << log]);
        }
        self.first = made.end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(first: u64, lengths: &[u64]) -> Extents {
        let mut builder = ExtentsBuilder::new(first);
        lengths.iter().for_each(|length| builder.push(*length).unwrap());
        builder.finish().unwrap()
    }

    /// Lengths of every width, in groups of their own and mixed.
    fn lengths() -> Vec<u64> {
        let word = |index: u64| forebay_core::hash_words(&[index]);
        (0..1_000).map(|index| word(index) >> (20 + (index / 100) * 4)).collect()
    }

    #[test]
    fn ranges_are_those_of_the_lengths() {
        for count in [0, 1, 63, 64, 65, 128, 1_000] {
            let lengths = &lengths()[..count];
            let extents = made(3, lengths);
            let mut start = 3;
            for (index, length) in (0..).zip(lengths) {
                assert_eq!(extents.range(index), start..start + length, "{index} of {count}");
                start += length;
            }
            assert_eq!((extents.len(), extents.end()), (count as u64, start));
        }
        let short = made(0, &[100; 6_400]);
        assert_eq!(short.size_bytes(), 6_400 + 100 * 16);
        assert!(ExtentsBuilder::new(u64::MAX).push(1).is_err());
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let extents = made(7, &lengths());
        let mut bytes = Vec::new();
        extents.write(&mut bytes);
        let mut rest = &[&*bytes, b"more"].concat()[..];
        assert_eq!(Extents::parse(&mut rest), Some(extents));
        assert_eq!(rest, b"more");
        for end in 0..bytes.len() {
            assert_eq!(Extents::parse(&mut &bytes[..end]), None, "{end}");
        }
        let mut claims = bytes.clone();
        claims[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Extents::parse(&mut &*claims), None);
        let mut wide = bytes;
        wide[16] = 4;
        assert_eq!(Extents::parse(&mut &*wide), None);
    }
}
