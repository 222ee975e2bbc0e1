//! What was learnt of the bytes of parts when their index was made, for whoever decodes them: bytes that mean nothing here.

use forebay_core::{Error, Result};

use super::numbers::no_memory;
use crate::extents::{Extents, ExtentsBuilder};

/// The annotation of each part, most of them perhaps empty. A part takes a byte or two beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    ranges: Extents,
    bytes: Vec<u8>,
}

impl Annotations {
    pub(super) fn len(&self) -> u64 {
        self.ranges.len()
    }

    pub(super) fn get(&self, part: u64) -> &[u8] {
        let range = self.ranges.range(part);
        &self.bytes[range.start as usize..range.end as usize]
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.ranges.size_bytes() + self.bytes.len()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.ranges.write(out);
        out.extend(&self.bytes);
    }

    /// Reads what [`Annotations::write`] wrote. Ranges that the bytes do not hold cost no memory.
    pub(super) fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let ranges = Extents::parse(bytes)?;
        let starts_at_zero = ranges.is_empty() || ranges.range(0).start == 0;
        let own = bytes.split_off(..usize::try_from(ranges.end()).ok().filter(|_| starts_at_zero)?)?;
        Some(Self { ranges, bytes: own.to_vec() })
    }
}

/// Puts [`Annotations`] together.
#[derive(Debug, Default)]
pub(super) struct AnnotationsBuilder {
    ranges: ExtentsBuilder,
    bytes: Vec<u8>,
}

impl AnnotationsBuilder {
    /// Adds that of a part. Those between the last one and this have none.
    pub(super) fn push(&mut self, part: u64, annotation: &[u8]) -> Result<()> {
        self.fill(part)?;
        if self.ranges.len() != part {
            return Err(Error::internal("a part was annotated twice, or behind later ones"));
        }
        self.bytes.try_reserve(annotation.len()).map_err(no_memory)?;
        self.bytes.extend(annotation);
        self.ranges.push(annotation.len() as u64)
    }

    /// Those of so many parts.
    pub(super) fn finish(mut self, parts: u64) -> Result<Annotations> {
        self.fill(parts)?;
        self.bytes.shrink_to_fit();
        Ok(Annotations { ranges: self.ranges.finish()?, bytes: self.bytes })
    }

    fn fill(&mut self, parts: u64) -> Result<()> {
        while self.ranges.len() < parts {
            self.ranges.push(0)?;
        }
        Ok(())
    }
}
