//! Megatron's `.idx`: the lengths and places of sequences in a `.bin`, and which of them are a document.
//!
//! ```text
//! "MMIDIDX\0\0"  u64 version (1)  u8 element type  u64 sequences  u64 document marks
//! { i32 length }*  { i64 first byte }*  { i64 sequence }*  [ { i8 mode }* ]
//! ```
//! Its writers put sequences one behind the other, so the places follow from the lengths: anything else is refused.

use std::ops::Range;

use forebay_core::{Element, Error, Kind, Result};

use super::{check_element, damaged, room};

/// The bytes before the arrays.
pub const MEGATRON_HEADER_BYTES: u64 = 34;

/// The beginning of an index: what it says about itself, and that its file is long enough for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MegatronHeader {
    /// The type of the tokens.
    pub element: Element,
    sequences: u64,
    marks: u64,
    /// Where the arrays end: lengths, places, documents.
    ends: [u64; 3],
}

impl MegatronHeader {
    /// Reads the first bytes of an index file of this size.
    pub fn parse(head: &[u8], size_bytes: u64) -> Result<Self> {
        let mut rest = head.strip_prefix(b"MMIDIDX\0\0").ok_or_else(|| {
            damaged("is no index of Megatron's: it does not begin with MMIDIDX")
                .with_hint("an index lies beside its .bin, and is called as that is")
        })?;
        let short =
            || damaged(format!("is truncated (expected {MEGATRON_HEADER_BYTES} bytes of header, got {})", head.len()));
        let version = take_word(&mut rest).ok_or_else(short)?;
        if version != 1 {
            return Err(damaged(format!("is an index of version {version} (expected 1)")));
        }
        let (code, mut rest) = rest.split_first().ok_or_else(short)?;
        let element = match *code {
            1 => Element::U8,
            2 => Element::I8,
            3 => Element::I16,
            4 => Element::I32,
            5 => Element::I64,
            6 => Element::F64,
            7 => Element::F32,
            8 => Element::U16,
            other => return Err(damaged(format!("has elements of type {other} (expected a code from 1 to 8)"))),
        };
        let element = check_element(element)?;
        let (sequences, marks) = take_word(&mut rest).zip(take_word(&mut rest)).ok_or_else(short)?;
        let mut end = Some(MEGATRON_HEADER_BYTES);
        let ends = [(sequences, 4), (sequences, 8), (marks, 8)].map(|(count, bytes): (u64, u64)| {
            end = count.checked_mul(bytes).and_then(|size| end?.checked_add(size));
            end
        });
        let [Some(lengths), Some(places), Some(documents)] = ends else {
            return Err(damaged(format!(
                "says that it has {sequences} sequences and {marks} documents, which no file holds"
            )));
        };
        if documents > size_bytes {
            let what = format!("{documents} bytes for {sequences} sequences and {marks} documents");
            return Err(damaged(format!("is truncated (expected {what}, got {size_bytes})")));
        }
        Ok(Self { element, sequences, marks, ends: [lengths, places, documents] })
    }

    /// The bytes that say where the first and the last sequence are: all that windows need. None where there is no sequence.
    pub fn outer(&self) -> Option<[Range<u64>; 2]> {
        let [lengths, places, _] = self.ends;
        // The last length, with the first place behind it; and the last place.
        (self.sequences > 0).then(|| [lengths - 4..lengths + 8, places - 8..places])
    }

    /// The bytes of all arrays.
    pub fn arrays(&self) -> Range<u64> {
        MEGATRON_HEADER_BYTES..self.ends[2]
    }

    /// How many tokens there are, by the bytes of [`MegatronHeader::outer`].
    pub fn tokens_by(&self, first: &[u8; 12], last: &[u8; 8], tokens_bytes: u64) -> Result<u64> {
        let (length, place) = first.split_at(4);
        let length = length_of(length, self.sequences - 1)?;
        let first_place = number(place);
        if first_place != 0 {
            return Err(damaged(format!("puts its first sequence at byte {first_place} (expected 0)")));
        }
        let item = self.item_bytes();
        let end = u64::from_le_bytes(*last).checked_add(length * item);
        let end = end.filter(|end| end.is_multiple_of(item) && *end <= tokens_bytes).ok_or_else(|| {
            let place = u64::from_le_bytes(*last).cast_signed();
            self.outside(self.sequences - 1, &format!("{length} tokens at byte {place}"), tokens_bytes)
        })?;
        Ok(end / item)
    }

    fn item_bytes(&self) -> u64 {
        self.element.size_bytes() as u64
    }

    fn outside(&self, sequence: u64, what: &str, tokens_bytes: u64) -> Error {
        damaged(format!("says that sequence {sequence} is {what}, in a file of {tokens_bytes} bytes"))
            .with_hint("the index and its .bin do not belong together, or one of them is truncated")
    }
}

/// Reads the arrays of an index, piece by piece, and keeps where documents end.
#[derive(Debug)]
pub struct MegatronIndex {
    header: MegatronHeader,
    tokens_bytes: u64,
    /// The place in the index file of what comes next.
    at: u64,
    /// Bytes of a number whose other ones are in the next piece.
    carried: Vec<u8>,
    /// Where each sequence ends, in tokens.
    ends: Vec<u64>,
    /// Marks so far, and the last one.
    marks: u64,
    last_mark: u64,
    /// Where documents end that are not a sequence each.
    documents: Option<Vec<u64>>,
}

impl MegatronIndex {
    /// An index with this header, of a `.bin` of this size.
    pub fn new(header: MegatronHeader, tokens_bytes: u64) -> Result<Self> {
        let ends = room(header.sequences)?;
        let carried = Vec::with_capacity(8);
        Ok(Self {
            header,
            tokens_bytes,
            at: MEGATRON_HEADER_BYTES,
            carried,
            ends,
            marks: 0,
            last_mark: 0,
            documents: None,
        })
    }

    /// Takes the next bytes of [`MegatronHeader::arrays`].
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && self.at < self.header.ends[2] {
            let width = if self.at < self.header.ends[0] { 4 } else { 8 };
            if self.carried.is_empty() && bytes.len() >= width {
                let (item, rest) = bytes.split_at(width);
                self.take(item)?;
                bytes = rest;
            } else {
                let missing = (width - self.carried.len()).min(bytes.len());
                self.carried.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if self.carried.len() == width {
                    let item = std::mem::take(&mut self.carried);
                    self.take(&item)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, item: &[u8]) -> Result<()> {
        let [lengths, places, _] = self.header.ends;
        let at = self.at;
        self.at += item.len() as u64;
        if at < lengths {
            let sequence = self.ends.len() as u64;
            let end = self.ends.last().copied().unwrap_or(0).checked_add(length_of(item, sequence)?);
            let most = self.tokens_bytes / self.header.item_bytes();
            let end = end.filter(|end| *end <= most);
            self.ends.push(
                end.ok_or_else(|| self.header.outside(sequence, &format!("behind token {most}"), self.tokens_bytes))?,
            );
        } else if at < places {
            let sequence = (at - lengths) / 8;
            let start = if sequence == 0 { 0 } else { self.ends[sequence as usize - 1] };
            let (expected, got) = (start * self.header.item_bytes(), number(item));
            if got.cast_unsigned() != expected {
                let message =
                    format!("puts sequence {sequence} at byte {got} (expected {expected}, behind the one before)");
                return Err(damaged(message));
            }
        } else {
            self.take_mark(number(item))?;
        }
        Ok(())
    }

    /// Takes the number of the sequence that a document begins with, and the one before it ends before.
    fn take_mark(&mut self, mark: i64) -> Result<()> {
        let (number, sequences) = (self.marks, self.header.sequences);
        let mark = u64::try_from(mark).ok().filter(|mark| *mark >= self.last_mark && *mark <= sequences);
        let mark = mark.filter(|mark| number > 0 || *mark == 0);
        let mark = mark.ok_or_else(|| {
            let (last, most) = (self.last_mark, if number == 0 { 0 } else { sequences });
            damaged(format!("says that document {number} begins at no sequence (expected one from {last} to {most})"))
        })?;
        (self.marks, self.last_mark) = (number + 1, mark);
        if number == 0 {
            return Ok(());
        }
        if self.documents.is_none() && mark != number {
            let mut documents = room(self.header.marks)?;
            documents.extend_from_slice(&self.ends[..number as usize - 1]);
            self.documents = Some(documents);
        }
        if let Some(documents) = &mut self.documents {
            let end = if mark == 0 { 0 } else { self.ends[mark as usize - 1] };
            documents.push(end);
        }
        Ok(())
    }

    /// Where each document ends, in tokens: that of the last one is how many there are.
    pub fn finish(self) -> Result<Vec<u64>> {
        if self.at < self.header.ends[2] {
            return Err(Error::new(Kind::Internal, format!("an index was read up to byte {}", self.at)));
        }
        if self.last_mark != self.header.sequences {
            let (last, sequences) = (self.last_mark, self.header.sequences);
            return Err(damaged(format!("ends its last document with sequence {last} (expected {sequences})")));
        }
        Ok(self.documents.unwrap_or(self.ends))
    }
}

fn take_word(bytes: &mut &[u8]) -> Option<u64> {
    crate::extents::take_word(bytes)
}

fn number(bytes: &[u8]) -> i64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(word)
}

fn length_of(bytes: &[u8], sequence: u64) -> Result<u64> {
    let length = i32::from_le_bytes(bytes.try_into().map_err(|_| Error::internal("a length takes 4 bytes"))?);
    u64::try_from(length).map_err(|_| damaged(format!("says that sequence {sequence} has {length} tokens")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(code: u8, lengths: &[i32], places: &[i64], marks: &[i64]) -> Vec<u8> {
        let mut bytes = b"MMIDIDX\0\0".to_vec();
        bytes.extend(1u64.to_le_bytes());
        bytes.push(code);
        bytes.extend((lengths.len() as u64).to_le_bytes());
        bytes.extend((marks.len() as u64).to_le_bytes());
        bytes.extend(lengths.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(places.iter().chain(marks).flat_map(|value| value.to_le_bytes()));
        bytes
    }

    fn read(bytes: &[u8], tokens_bytes: u64, piece: usize) -> Result<Vec<u64>> {
        let header = MegatronHeader::parse(&bytes[..bytes.len().min(34)], bytes.len() as u64)?;
        let arrays = header.arrays();
        let mut index = MegatronIndex::new(header, tokens_bytes)?;
        for part in bytes[arrays.start as usize..arrays.end as usize].chunks(piece) {
            index.feed(part)?;
        }
        index.finish()
    }

    fn outer(bytes: &[u8], tokens_bytes: u64) -> Result<u64> {
        let header = MegatronHeader::parse(&bytes[..34], bytes.len() as u64)?;
        let [first, last] = header.outer().unwrap().map(|range| &bytes[range.start as usize..range.end as usize]);
        header.tokens_by(first.try_into().unwrap(), last.try_into().unwrap(), tokens_bytes)
    }

    #[test]
    fn documents_are_read_in_pieces_of_any_size() {
        let single = index(8, &[3, 0, 4], &[0, 6, 6], &[0, 1, 2, 3]);
        let several = index(4, &[3, 1, 4], &[0, 12, 16], &[0, 2, 2, 3]);
        for piece in [1, 3, 4, 7, 100] {
            assert_eq!(read(&single, 14, piece).unwrap(), [3, 3, 7]);
            assert_eq!(read(&several, 32, piece).unwrap(), [4, 4, 8]);
        }
        assert_eq!((outer(&single, 14).unwrap(), outer(&single, 15).unwrap(), outer(&several, 32).unwrap()), (7, 7, 8));
        assert!(read(&index(8, &[], &[], &[0]), 0, 9).unwrap().is_empty());
        let header = MegatronHeader::parse(&index(8, &[], &[], &[0]), 42).unwrap();
        assert_eq!((header.outer(), header.element), (None, Element::U16));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = index(8, &[3, 4], &[0, 6], &[0, 1, 2]);
        assert!(read(&good, 13, 99).is_err() && outer(&good, 13).is_err(), "the .bin is too short");
        for (bytes, part) in [
            (index(8, &[3, -4], &[0, 6], &[0, 1, 2]), "has -4 tokens"),
            (index(8, &[3, 4], &[0, 7], &[0, 1, 2]), "at byte 7 (expected 6"),
            (index(8, &[3, 4], &[0, -6], &[0, 1, 2]), "at byte -6"),
            (index(8, &[3, 4], &[2, 6], &[0, 1, 2]), "at byte 2 (expected 0"),
            (index(8, &[3, i32::MAX], &[0, 6], &[0, 1, 2]), "sequence 1 is behind token 7"),
            (index(8, &[3, 4], &[0, 6], &[0, 2, 1]), "document 2 begins at no sequence"),
            (index(8, &[3, 4], &[0, 6], &[0, 3]), "document 1 begins at no sequence"),
            (index(8, &[3, 4], &[0, 6], &[1, 2]), "document 0 begins at no sequence"),
            (index(8, &[3, 4], &[0, 6], &[0, 1]), "with sequence 1 (expected 2)"),
            (index(9, &[], &[], &[0]), "type 9"),
            (index(7, &[], &[], &[0]), "holds float32"),
            (good[..good.len() - 1].to_vec(), "is truncated (expected"),
            (good[..20].to_vec(), "is truncated (expected 34 bytes of header, got 20"),
            (b"PK".to_vec(), "is no index of Megatron's"),
        ] {
            let error = read(&bytes, 14, 99).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let mut claims = good.clone();
        claims[18..26].copy_from_slice(&(1u64 << 60).to_le_bytes());
        assert!(read(&claims, 14, 99).unwrap_err().message().contains("1152921504606846976 sequences"));
        let mut version = good;
        version[9] = 2;
        assert!(read(&version, 14, 99).unwrap_err().message().contains("version 2"));
        for places in [[0, 7], [0, -6], [2, 6], [0, i64::MAX]] {
            assert!(outer(&index(8, &[3, 4], &places, &[0, 1, 2]), 14).is_err(), "{places:?}");
        }
    }
}
