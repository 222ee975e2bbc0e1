//! Records of MosaicML's MDS and of LitData: the sizes of all fields without a fixed one, in 32 bits each, and then all fields.

use forebay_core::{Error, Kind};

use super::{Part, RecordFormat};

/// Records whose fields are told apart by their sizes.
///
/// ```
/// use forebay_decode::{Part, RecordFormat, SizedRecord};
///
/// // Two fields, of which the first has two bytes in every record; the second one is wanted.
/// let format = SizedRecord::new(vec![Some(2), None], vec![1]);
/// assert_eq!(format.split(b"\x03\0\0\0abxyz").unwrap(), [Part::Plain(b"xyz")]);
/// assert!(format.split(b"\x04\0\0\0abxyz").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct SizedRecord {
    /// Of all fields: the size that each has in every record.
    sizes: Vec<Option<u64>>,
    /// Those that are wanted, by number.
    wanted: Vec<usize>,
}

impl SizedRecord {
    /// `sizes` are those of all fields, where they are fixed, and `wanted` the numbers of some of them.
    pub fn new(sizes: Vec<Option<u64>>, wanted: Vec<usize>) -> Self {
        Self { sizes, wanted }
    }
}

impl RecordFormat for SizedRecord {
    fn field_count(&self) -> usize {
        self.wanted.len()
    }

    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<Part<'a>>, (usize, Error)> {
        let damaged = |message: String| (usize::MAX, Error::new(Kind::Corrupt, message));
        let header = self.sizes.iter().filter(|size| size.is_none()).count() * 4;
        let (header, mut rest) = record
            .split_at_checked(header)
            .ok_or_else(|| damaged(format!("is truncated (expected {header} bytes of sizes, got {})", record.len())))?;
        let mut said = header.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
        let mut fields = Vec::with_capacity(self.sizes.len());
        for (at, size) in self.sizes.iter().enumerate() {
            let size = size.or_else(|| said.next()).unwrap_or_default();
            let split = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
            let Some((field, behind)) = split else {
                let message = format!("is damaged (expected {size} bytes of field {at}, got {})", rest.len());
                return Err(damaged(message));
            };
            fields.push(field);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(damaged(format!("is damaged: {} bytes follow its last field", rest.len())));
        }
        let field = |at: &usize| fields.get(*at).map(|field| Part::Plain(field));
        let parts = self.wanted.iter().map(field).collect::<Option<_>>();
        parts.ok_or_else(|| (usize::MAX, Error::internal("a field that records do not have")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_as_long_as_their_sizes_say_and_fill_the_record() {
        let format = SizedRecord::new(vec![None, Some(1), None], vec![2, 0]);
        let record = [&3u32.to_le_bytes()[..], &0u32.to_le_bytes(), b"abcZ"].concat();
        assert_eq!(format.split(&record).unwrap(), [Part::Plain(b""), Part::Plain(b"abc")]);
        for end in 0..record.len() {
            let (_, error) = format.split(&record[..end]).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{end}: {error}");
        }
        let (_, error) = format.split(&[&record[..], b"?"].concat()).unwrap_err();
        assert_eq!(error.message(), "is damaged: 1 bytes follow its last field");
        let huge = SizedRecord::new(vec![Some(u64::MAX)], vec![0]);
        assert!(huge.split(b"abc").is_err());
    }
}
