//! Which tokens of a sample belong together: the outline that a dataset of tokens gives to its recipe.

/// Consecutive tokens of one document in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How many: below 2³¹.
    pub tokens: u32,
    /// The document goes on, and its next token was read behind these.
    pub continues: bool,
}

/// The highest bit of a segment's number.
const CONTINUES: u32 = 1 << 31;

impl Segment {
    /// Segments as bytes.
    pub fn write(segments: impl Iterator<Item = Self>) -> Vec<u8> {
        let word = |segment: Self| segment.tokens | if segment.continues { CONTINUES } else { 0 };
        segments.flat_map(|segment| word(segment).to_le_bytes()).collect()
    }

    /// The segments that [`Segment::write`] wrote.
    pub fn read(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks::<4>().0.iter().map(|word| {
            let word = u32::from_le_bytes(*word);
            Self { tokens: word & !CONTINUES, continues: word & CONTINUES != 0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_read_as_they_were_written() {
        let segments =
            [(0, true), (1, false), (CONTINUES - 1, true)].map(|(tokens, continues)| Segment { tokens, continues });
        assert_eq!(Segment::read(&Segment::write(segments.into_iter())).collect::<Vec<_>>(), segments);
    }
}
