//! Files of TFRecords: one framed record behind the other, without a table.
//!
//! Only the frames' headers are looked at: the checksum of a record is compared when it is read. A header that is not what its
//! checksum says costs the records up to the next one that is: the length in it was the only way to that.

use std::ops::Range;

use forebay_core::{Error, FRAME_BYTES, FRAME_HEADER_BYTES, Result, frame_length};

use super::{Lost, ShardIndex, ShardIndexBuilder};
use crate::file_scan::RangeScanner;

/// A read for short records, of which there are many in it.
const PIECE_BYTES: u64 = 4 << 20;
/// A read for long records, and the first one.
const SHORT_PIECE_BYTES: u64 = 64 << 10;
/// Beyond that it is less to read to go from header to header. Not measured.
const LONG_RECORD_BYTES: u64 = 1 << 20;
const MAX_LOSSES: u64 = 100;

/// Finds the records of a TFRecord file.
///
/// ```
/// use forebay_format::{RangeScanner, TfRecordScanner};
///
/// let file: Vec<u8> = Vec::new();
/// let scanner = TfRecordScanner::new(file.len() as u64);
/// assert_eq!(scanner.next_range(), None);
/// assert!(scanner.finish()?.is_empty());
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TfRecordScanner {
    size_bytes: u64,
    /// Where the next header is, or is looked for.
    position: u64,
    piece_bytes: u64,
    /// Where the damage begins that is being left behind.
    damaged_from: Option<u64>,
    records: ShardIndexBuilder,
    notes: Vec<String>,
    losses: u64,
    lost_bytes: u64,
}

impl TfRecordScanner {
    /// For a file of this size.
    pub fn new(size_bytes: u64) -> Self {
        let (records, notes) = (ShardIndexBuilder::new(false), Vec::new());
        let (piece_bytes, damaged_from) = (SHORT_PIECE_BYTES, None);
        Self { size_bytes, position: 0, piece_bytes, damaged_from, records, notes, losses: 0, lost_bytes: 0 }
    }

    fn lose(&mut self, range: Range<u64>, why: &str) {
        self.losses += 1;
        self.lost_bytes += range.end - range.start;
        if self.losses <= MAX_LOSSES {
            self.notes.push(format!("is damaged: bytes {}..{} are lost ({why})", range.start, range.end));
        }
    }

    fn leave_damage(&mut self) {
        if let Some(from) = self.damaged_from.take() {
            self.lose(from..self.position, "the length of a record is not what its checksum says");
        }
    }

    /// Looks at the header at the position, and goes on behind its record.
    fn take(&mut self, header: &[u8; FRAME_HEADER_BYTES]) -> Result<()> {
        let left = self.size_bytes - self.position;
        let is_searching = self.damaged_from.is_some();
        // While any place may be a header, most of them are not by their length alone.
        let is_possible = |length: u64| length.checked_add(FRAME_BYTES as u64).is_some_and(|whole| whole <= left);
        let length = u64::from_le_bytes(*header.first_chunk().unwrap_or(&[0; 8]));
        let length = if is_searching && !is_possible(length) { None } else { frame_length(header) };
        let Some(length) = length else {
            self.damaged_from.get_or_insert(self.position);
            self.position += 1;
            return Ok(());
        };
        self.leave_damage();
        let (at, whole) = (self.position, length.saturating_add(FRAME_BYTES as u64));
        if is_possible(length) {
            self.records.push_part("", at, whole, None, None)?;
        } else {
            self.records.push_part("", at, 0, None, Some(Lost::Cut))?;
            self.lose(at..self.size_bytes, "the file ends in a record");
        }
        self.records.end_sample(None)?;
        self.position = at.saturating_add(whole).min(self.size_bytes);
        self.piece_bytes = if whole > LONG_RECORD_BYTES { SHORT_PIECE_BYTES } else { PIECE_BYTES };
        Ok(())
    }
}

impl RangeScanner for TfRecordScanner {
    type Index = ShardIndex;

    fn next_range(&self) -> Option<Range<u64>> {
        (self.position < self.size_bytes).then(|| self.position..self.size_bytes.min(self.position + self.piece_bytes))
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let start = self.position;
        loop {
            let rest = usize::try_from(self.position - start).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
            if let Some(header) = rest.first_chunk() {
                self.take(header)?;
            } else if !rest.is_empty() && self.position + rest.len() as u64 == self.size_bytes {
                self.leave_damage();
                self.lose(self.position..self.size_bytes, "the file ends in the header of a record");
                self.position = self.size_bytes;
            } else {
                return Ok(());
            }
        }
    }

    fn finish(mut self) -> Result<ShardIndex> {
        if let Some(range) = self.next_range() {
            return Err(Error::internal(format!("an index of records that ends at byte {}", range.start)));
        }
        self.leave_damage();
        if self.losses > MAX_LOSSES {
            let (more, bytes) = (self.losses - MAX_LOSSES, self.lost_bytes);
            self.notes.push(format!("is damaged at {more} more places: {bytes} bytes are lost in all"));
        }
        self.records.finish(self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileIndex;
    use forebay_core::masked_crc;

    fn file(records: &[&[u8]]) -> Vec<u8> {
        let frame = |record: &&[u8]| {
            let length = (record.len() as u64).to_le_bytes();
            [&length[..], &masked_crc(&length).to_le_bytes(), record, &masked_crc(record).to_le_bytes()].concat()
        };
        records.iter().flat_map(frame).collect()
    }

    fn scan(file: &[u8]) -> ShardIndex {
        let mut scanner = TfRecordScanner::new(file.len() as u64);
        while let Some(range) = scanner.next_range() {
            assert!(!range.is_empty() && range.end <= file.len() as u64);
            scanner.feed(&file[range.start as usize..range.end as usize]).unwrap();
        }
        scanner.finish().unwrap()
    }

    fn ranges(index: &ShardIndex) -> Vec<Result<Range<u64>, Lost>> {
        let part = |sample| index.find(sample, &[0]).unwrap().1;
        (0..index.len()).map(|sample| part(sample).lost.map_or(Ok(part(sample).range), Err)).collect()
    }

    #[test]
    fn records_are_found_with_their_frames() {
        let file = file(&[b"abc", b"", &[7; 70_000], &[1; 2_000_000], b"z"]);
        let index = scan(&file);
        let ends = [19, 35, 70_051, 2_070_067, 2_070_084];
        let expected: Vec<_> = [0].into_iter().chain(ends).zip(ends).map(|(start, end)| Ok(start..end)).collect();
        assert_eq!((ranges(&index), index.notes().len()), (expected, 0));
        let many = vec![&b"record"[..]; 200_000];
        assert_eq!(scan(&self::file(&many)).len(), 200_000);
    }

    #[test]
    fn what_is_damaged_is_left_behind_and_said() {
        let good = file(&[b"first", b"second", b"third"]);
        let mut damaged = good.clone();
        damaged[21] ^= 1; // the length of the second one
        let index = scan(&damaged);
        assert_eq!(ranges(&index), [Ok(0..21), Ok(43..64)]);
        let expected = "is damaged: bytes 21..43 are lost (the length of a record is not what its checksum says)";
        assert_eq!(index.notes(), [expected]);
        let cut = scan(&good[..60]);
        assert_eq!(ranges(&cut), [Ok(0..21), Ok(21..43), Err(Lost::Cut)]);
        assert_eq!(cut.notes(), ["is damaged: bytes 43..60 are lost (the file ends in a record)"]);
        let cut = scan(&good[..50]);
        assert_eq!((cut.len(), cut.notes().len()), (2, 1));
        assert!(cut.notes()[0].contains("in the header"), "{:?}", cut.notes());
        let none = scan(&[5; 100_000]);
        assert!(none.is_empty());
        assert!(none.notes()[0].contains("bytes 0..99989 are lost"), "{:?}", none.notes());
    }

    #[test]
    fn any_damage_leaves_what_can_be_found() {
        let good = file(&[b"first", b"second", b"third"]);
        for at in 0..good.len() {
            for length in [1, 7] {
                let mut damaged = good.clone();
                damaged[at..good.len().min(at + length)].fill(0xFF);
                let index = scan(&damaged);
                let mut end = 0;
                for range in ranges(&index).into_iter().flatten() {
                    assert!(range.start >= end && range.end <= good.len() as u64);
                    end = range.end;
                }
                assert!(!index.is_empty(), "{at}");
                let mut written = Vec::new();
                index.write(&mut written);
                assert_eq!(ShardIndex::parse(&mut &*written, good.len() as u64), Some(index));
            }
        }
    }
}
