//! Chunks that begin with a table of their records, as MosaicML's MDS and LitData write them: how many there are, and where each
//! begins and the last one ends, in 32 bits each. Only the table is read.

use std::ops::Range;

use forebay_core::{Error, Result};

use super::{Lost, ShardIndex, ShardIndexBuilder};
use crate::file_scan::RangeScanner;

/// The first read: the whole table of most chunks.
const FIRST_BYTES: u64 = 64 << 10;
/// Every other one.
const PIECE_BYTES: u64 = 4 << 20;
const WORD_BYTES: u64 = 4;

/// What the directory of a chunk says about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its samples.
    pub samples: u64,
    /// Its length, where that is said.
    pub size_bytes: Option<u64>,
}

/// Finds the records of a chunk. One that lies outside of the file is lost; a table that makes no sense loses all of them.
///
/// ```
/// use forebay_format::{Listed, RangeScanner, TableScanner};
///
/// let chunk: Vec<u8> = [2u32, 16, 17, 19].into_iter().flat_map(u32::to_le_bytes).chain(*b"abc").collect();
/// let mut scanner = TableScanner::new(chunk.len() as u64, Listed { samples: 2, size_bytes: None });
/// while let Some(range) = scanner.next_range() {
///     scanner.feed(&chunk[range.start as usize..range.end as usize])?;
/// }
/// let records = scanner.finish()?;
/// assert_eq!((records.len(), records.find(1, &[0]).unwrap().1.range), (2, 17..19));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TableScanner {
    size_bytes: u64,
    listed: Listed,
    records: ShardIndexBuilder,
    position: u64,
    /// As the table says.
    count: Option<u64>,
    /// Where the record begins whose end is read next.
    start: Option<u64>,
    lost: u64,
    damage: Option<String>,
}

impl TableScanner {
    /// For a chunk of this size.
    pub fn new(size_bytes: u64, listed: Listed) -> Self {
        Self {
            size_bytes,
            listed,
            records: ShardIndexBuilder::new(false),
            position: 0,
            count: None,
            start: None,
            lost: 0,
            damage: (size_bytes < WORD_BYTES).then(|| format!("it has {size_bytes} bytes")),
        }
    }

    /// Where the table ends, once that is known.
    fn table_end(&self) -> Option<u64> {
        self.count.map(|count| (count + 2) * WORD_BYTES)
    }

    fn take_count(&mut self, count: u64) {
        self.count = Some(count);
        let end = (count + 2) * WORD_BYTES;
        if end > self.size_bytes {
            let size = self.size_bytes;
            self.damage = Some(format!("{count} records need a table of {end} bytes, and it has {size} in all"));
        }
    }

    /// A record ends there.
    fn take_record(&mut self, range: Range<u64>, table_end: u64) -> Result<()> {
        let (offset, lost) = match () {
            () if range.start > range.end || range.start < table_end => (0, Some(Lost::Misplaced)),
            () if range.end > self.size_bytes => (range.start.min(self.size_bytes), Some(Lost::Cut)),
            () => (range.start, None),
        };
        self.lost += u64::from(lost.is_some());
        let size = if lost.is_some() { 0 } else { range.end - range.start };
        self.records.push_part("", offset, size, None, lost)?;
        self.records.end_sample(None)
    }
}

impl RangeScanner for TableScanner {
    type Index = ShardIndex;

    fn next_range(&self) -> Option<Range<u64>> {
        if self.damage.is_some() {
            return None;
        }
        let (start, end) = match self.table_end() {
            None => (0, FIRST_BYTES),
            Some(end) => (self.position, end.min(self.position + PIECE_BYTES)),
        };
        (start < end).then(|| start..end.min(self.size_bytes))
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let mut words = bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
        if self.count.is_none()
            && let Some(count) = words.next()
        {
            self.position += WORD_BYTES;
            self.take_count(count);
        }
        let Some(table_end) = self.table_end().filter(|_| self.damage.is_none()) else { return Ok(()) };
        for word in words {
            if self.position == table_end {
                break;
            }
            if let Some(start) = self.start.replace(word) {
                self.take_record(start..word, table_end)?;
            }
            self.position += WORD_BYTES;
        }
        Ok(())
    }

    fn finish(self) -> Result<ShardIndex> {
        if let Some(range) = self.next_range() {
            return Err(Error::internal(format!("an index of a table without its bytes from {}", range.start)));
        }
        let Listed { samples, size_bytes } = self.listed;
        let mut notes = Vec::new();
        if let Some(damage) = &self.damage {
            notes.push(format!("is damaged: its {samples} samples are left out ({damage})"));
        } else if self.count != Some(samples) {
            let count = self.count.unwrap_or_default();
            notes.push(format!("has {count} samples, where its directory says {samples}"));
        }
        if let Some(expected) = size_bytes.filter(|expected| *expected != self.size_bytes) {
            notes.push(format!(
                "has another size than its directory says (expected {expected}, got {})",
                self.size_bytes
            ));
        }
        if self.lost > 0 {
            notes.push(format!("is damaged: {} of its samples lie outside of it, and cannot be read", self.lost));
        }
        self.records.finish(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(words: &[u32], data: &[u8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).chain(data.iter().copied()).collect()
    }

    fn scan(chunk: &[u8], samples: u64) -> ShardIndex {
        let mut scanner = TableScanner::new(chunk.len() as u64, Listed { samples, size_bytes: None });
        while let Some(range) = scanner.next_range() {
            assert!(!range.is_empty() && range.end <= chunk.len() as u64);
            scanner.feed(&chunk[range.start as usize..range.end as usize]).unwrap();
        }
        scanner.finish().unwrap()
    }

    fn ranges(index: &ShardIndex) -> Vec<Result<Range<u64>, Lost>> {
        let part = |sample| index.find(sample, &[0]).unwrap().1;
        (0..index.len()).map(|sample| part(sample).lost.map_or(Ok(part(sample).range), Err)).collect()
    }

    #[test]
    fn records_are_where_the_table_says() {
        use crate::FileIndex;
        let index = scan(&chunk(&[3, 20, 22, 22, 25], b"abcde"), 3);
        assert_eq!(ranges(&index), [Ok(20..22), Ok(22..22), Ok(22..25)]);
        assert!(index.notes().is_empty());
        let mut bytes = Vec::new();
        index.write(&mut bytes);
        assert_eq!(ShardIndex::parse(&mut &*bytes, 25), Some(index));
        assert_eq!(scan(&chunk(&[0, 8], b""), 0).notes(), ["has no samples"]);
    }

    #[test]
    fn tables_longer_than_a_piece_are_read_in_pieces() {
        let count = 1_100_000;
        let first = 4 * (count + 2);
        let words: Vec<_> = [count].into_iter().chain((0..=count).map(|at| first + at)).collect();
        let index = scan(&chunk(&words, &vec![0; count as usize]), u64::from(count));
        let last = u64::from(count) - 1;
        assert_eq!(index.find(last, &[0]).unwrap().1.range, u64::from(first) + last..u64::from(first) + last + 1);
    }

    #[test]
    fn what_is_damaged_is_lost_and_said() {
        use crate::FileIndex;
        // The last record is cut, and one goes backwards.
        let index = scan(&chunk(&[3, 20, 22, 21, 29], b"abcde"), 4);
        assert_eq!(ranges(&index), [Ok(20..22), Err(Lost::Misplaced), Err(Lost::Cut)]);
        let expected = [
            "has 3 samples, where its directory says 4",
            "is damaged: 2 of its samples lie outside of it, and cannot be read",
        ];
        assert_eq!(index.notes(), expected);
        // Records in the table itself.
        assert_eq!(ranges(&scan(&chunk(&[1, 4, 12], b""), 1)), [Err(Lost::Misplaced)]);
        for damaged in [&chunk(&[u32::MAX, 1], b"")[..], &chunk(&[5, 28, 29], b"abc"), b"abc", b""] {
            let index = scan(damaged, 7);
            assert!(index.is_empty(), "{damaged:?}");
            assert!(index.notes()[0].starts_with("is damaged: its 7 samples are left out"), "{:?}", index.notes());
        }
    }
}
