//! Records of one size in a file: how many there are, and where each one is.

use std::num::NonZeroU64;
use std::ops::Range;

use forebay_core::{Error, Result};

/// How records lie in a file: after a header, one behind the other, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    header_bytes: u64,
    record_bytes: NonZeroU64,
}

impl RecordLayout {
    /// Records of this size, after a header of this size, which may be 0.
    pub fn new(header_bytes: u64, record_bytes: u64) -> Result<Self> {
        let record_bytes =
            NonZeroU64::new(record_bytes).ok_or_else(|| Error::config("record_bytes: expected at least 1, got 0"))?;
        Ok(Self { header_bytes, record_bytes })
    }

    /// Whole records in a file of this size, and what there is to say about the rest of it, as a predicate about its path.
    pub fn count(&self, size_bytes: u64) -> (u64, Option<String>) {
        let (header, record) = (self.header_bytes, self.record_bytes);
        let Some(body) = size_bytes.checked_sub(header) else {
            let note = format!("has no records: its header takes {header} bytes, and it has {size_bytes}");
            return (0, Some(note));
        };
        let note = match body % record {
            0 if body == 0 => Some("has no records".to_owned()),
            0 => None,
            rest => Some(format!("ends with {rest} bytes of a record of {record}, which are left out")),
        };
        (body / record, note)
    }

    /// The bytes of a record. It has to be one of those that were counted.
    pub fn range(&self, record: u64) -> Range<u64> {
        let start = self.header_bytes + record * self.record_bytes.get();
        start..start + self.record_bytes.get()
    }

    /// What a dataset's identity has of it.
    pub fn words(&self) -> [u64; 2] {
        [self.header_bytes, self.record_bytes.get()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_records_are_counted_and_the_rest_is_said() {
        let layout = RecordLayout::new(16, 10).unwrap();
        for (size_bytes, records, note) in [
            (46, 3, None),
            (45, 2, Some("ends with 9 bytes of a record of 10, which are left out")),
            (17, 0, Some("ends with 1 bytes of a record of 10, which are left out")),
            (16, 0, Some("has no records")),
            (3, 0, Some("has no records: its header takes 16 bytes, and it has 3")),
            (0, 0, Some("has no records: its header takes 16 bytes, and it has 0")),
        ] {
            assert_eq!(layout.count(size_bytes), (records, note.map(str::to_owned)), "{size_bytes}");
        }
        assert_eq!((layout.range(0), layout.range(2)), (16..26, 36..46));
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let layout = RecordLayout::new(1, u64::MAX - 1).unwrap();
        assert_eq!(layout.count(u64::MAX), (1, None));
        assert_eq!(layout.range(0), 1..u64::MAX);
        assert!(RecordLayout::new(0, 0).is_err());
    }
}
