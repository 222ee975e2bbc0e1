//! Writing Megatron's files: the bytes of a `.bin`, and the `.idx` that says where documents are in it.

use forebay_core::{Element, Error, Kind, Result};

/// From so many tokens on, Megatron writes 32 bits for each: it leaves some of the 65,536 numbers unused.
const MAX_SHORT_VOCABULARY: u64 = 65_500;

/// Makes a `.bin` and its `.idx` from documents, one sequence each.
///
/// ```
/// use forebay_core::Element;
/// use forebay_format::{MegatronHeader, MegatronIndex, MegatronWriter};
///
/// let (mut writer, mut bin) = (MegatronWriter::for_vocabulary(50_257), Vec::new());
/// writer.push_document(&[7, 8, 50_256], &mut bin)?;
/// writer.push_document(&[9], &mut bin)?;
/// let idx = writer.index()?;
/// let header = MegatronHeader::parse(&idx[..34], idx.len() as u64)?;
/// assert_eq!((header.element, bin.len()), (Element::U16, 8));
/// let mut index = MegatronIndex::new(header, bin.len() as u64)?;
/// index.feed(&idx[34..])?;
/// assert_eq!(index.finish()?, [3, 4]);
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct MegatronWriter {
    /// `uint16`, or else `int32`.
    is_short: bool,
    /// The tokens of each document.
    lengths: Vec<i32>,
}

impl MegatronWriter {
    /// For tokens below this number: of the type that Megatron would choose.
    pub fn for_vocabulary(size: u64) -> Self {
        Self { is_short: size < MAX_SHORT_VOCABULARY, lengths: Vec::new() }
    }

    /// The type of the tokens.
    pub fn element(&self) -> Element {
        if self.is_short { Element::U16 } else { Element::I32 }
    }

    /// How many documents there are so far.
    pub fn document_count(&self) -> usize {
        self.lengths.len()
    }

    /// Adds a document, and its bytes to what will be the `.bin`.
    pub fn push_document(&mut self, tokens: &[u32], bin: &mut Vec<u8>) -> Result<()> {
        let most = if self.is_short { u32::from(u16::MAX) } else { i32::MAX.unsigned_abs() };
        if let Some(token) = tokens.iter().find(|token| **token > most) {
            let message = format!("has the token {token} (expected at most {most}, by the size of the vocabulary)");
            return Err(Error::new(Kind::Corrupt, message));
        }
        let length = i32::try_from(tokens.len()).map_err(|_| {
            let message = format!("has {} tokens (expected at most {})", tokens.len(), i32::MAX);
            Error::new(Kind::Exhausted, message).with_hint("split the document: an index has 32 bits for its length")
        })?;
        let no_memory = |_| Error::new(Kind::Exhausted, "no memory was left for the tokens of a document");
        bin.try_reserve(tokens.len() * self.element().size_bytes()).map_err(no_memory)?;
        self.lengths.try_reserve(1).map_err(no_memory)?;
        match self.is_short {
            true => tokens.iter().for_each(|token| bin.extend((*token as u16).to_le_bytes())),
            false => tokens.iter().for_each(|token| bin.extend(token.to_le_bytes())),
        }
        self.lengths.push(length);
        Ok(())
    }

    /// The `.idx`.
    pub fn index(&self) -> Result<Vec<u8>> {
        let count = self.lengths.len();
        let mut bytes = Vec::new();
        let no_memory =
            |_| Error::new(Kind::Exhausted, format!("no memory was left for an index of {count} documents"));
        bytes.try_reserve_exact(42 + count * 20).map_err(no_memory)?;
        bytes.extend(b"MMIDIDX\0\0");
        bytes.extend(1u64.to_le_bytes());
        bytes.push(if self.is_short { 8 } else { 4 });
        // A document more: the end of the last one.
        [count as u64, count as u64 + 1].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        self.lengths.iter().for_each(|length| bytes.extend(length.to_le_bytes()));
        let mut place = 0u64;
        for length in &self.lengths {
            bytes.extend(place.to_le_bytes());
            place += u64::from(length.unsigned_abs()) * self.element().size_bytes() as u64;
        }
        (0..=count as u64).for_each(|document| bytes.extend(document.to_le_bytes()));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{MEGATRON_HEADER_BYTES, MegatronHeader, MegatronIndex};

    #[test]
    fn what_is_written_is_read() {
        for (vocabulary, element) in [(65_499, Element::U16), (65_500, Element::I32)] {
            let (mut writer, mut bin) = (MegatronWriter::for_vocabulary(vocabulary), Vec::new());
            for document in [&[1, 2, 3][..], &[], &[65_000]] {
                writer.push_document(document, &mut bin).unwrap();
            }
            assert_eq!((writer.element(), writer.document_count()), (element, 3));
            let idx = writer.index().unwrap();
            let (head, arrays) = idx.split_at(MEGATRON_HEADER_BYTES as usize);
            let header = MegatronHeader::parse(head, idx.len() as u64).unwrap();
            assert_eq!((header.element, header.arrays().end), (element, idx.len() as u64));
            let mut index = MegatronIndex::new(header, bin.len() as u64).unwrap();
            index.feed(arrays).unwrap();
            assert_eq!(index.finish().unwrap(), [3, 3, 4]);
            assert_eq!(bin.len(), 4 * element.size_bytes());
        }
    }

    #[test]
    fn a_token_beyond_the_type_is_refused_and_nothing_of_it_is_written() {
        let (mut writer, mut bin) = (MegatronWriter::for_vocabulary(100), Vec::new());
        let error = writer.push_document(&[5, 65_536], &mut bin).unwrap_err();
        assert_eq!((error.kind(), writer.document_count(), bin.len()), (Kind::Corrupt, 0, 0));
        let mut wide = MegatronWriter::for_vocabulary(1 << 20);
        assert!(wide.push_document(&[1 << 31], &mut bin).is_err() && bin.is_empty());
    }
}
