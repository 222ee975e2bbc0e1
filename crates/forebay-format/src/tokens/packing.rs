//! Packing: documents are put together so that little of each sample is padding.
//!
//! Documents longer than a sample are cut first. Then the pieces of each block of documents are packed by themselves, best fit
//! first: the longest one that is left goes where it leaves the least room. What comes out depends on the lengths and the
//! seed alone, so every rank, thread and resume has the same samples, and knows how many there are.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::{Error, Kind, Result, Segment, hash_words};

use super::documents::Documents;
use super::room;

/// Documents that are packed together.
pub const PACKING_BLOCK: usize = 65_536;

/// Which pieces of documents are in which sample.
///
/// Takes 8 bytes for each piece and each sample, beside the 8 of each document.
#[derive(Clone, Debug)]
pub struct Packing {
    length: u64,
    /// The first token of each piece, sample by sample.
    starts: Vec<u64>,
    /// Where each sample ends among the pieces.
    ends: Vec<u64>,
}

/// A document, or a part of one that is too long.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    tokens: u32,
}

impl Packing {
    /// Packs documents into samples of `length` tokens.
    pub fn new(documents: &Documents, length: u64, seed: u64) -> Result<Self> {
        if length == 0 || length > u64::from(u32::MAX >> 1) {
            return Err(Error::config(format!("sequence_length: expected 1 to {}, got {length}", u32::MAX >> 1)));
        }
        let mut packing = Self { length, starts: room(documents.len() as u64)?, ends: Vec::new() };
        let blocks = documents.len().div_ceil(PACKING_BLOCK);
        for block in 0..blocks {
            let of_block = block * PACKING_BLOCK..documents.len().min((block + 1) * PACKING_BLOCK);
            packing.pack_block(documents, of_block, hash_words(&[seed, block as u64]))?;
        }
        packing.starts.shrink_to_fit();
        packing.ends.shrink_to_fit();
        Ok(packing)
    }

    fn pack_block(&mut self, documents: &Documents, block: Range<usize>, key: u64) -> Result<()> {
        let length = self.length;
        let mut parts: Vec<Part> = Vec::new();
        for document in block {
            let range = documents.range(document);
            let pieces = usize::try_from((range.end - range.start).div_ceil(length)).unwrap_or(usize::MAX);
            parts.try_reserve(pieces).map_err(|_| no_memory())?;
            let mut start = range.start;
            while start < range.end {
                let tokens = length.min(range.end - start);
                parts.push(Part { start, tokens: tokens as u32 });
                start += tokens;
            }
        }
        // Longest first; those of one length in an order of the key's, so that neighbours in the files are not always together.
        parts.sort_by_cached_key(|part| (Reverse(part.tokens), hash_words(&[key, part.start])));
        let mut samples: Vec<Vec<Part>> = Vec::new();
        // Samples by the room that they have left: of those with the same, the one that was begun last.
        let mut by_room: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for part in parts {
            let found =
                by_room.range_mut(part.tokens..).next().and_then(|(room, samples)| Some((*room, samples.pop()?)));
            let (before, sample) = match found {
                Some(found) => found,
                None => {
                    samples.push(Vec::new());
                    (length as u32, samples.len() - 1)
                }
            };
            if by_room.get(&before).is_some_and(Vec::is_empty) {
                by_room.remove(&before);
            }
            samples[sample].push(part);
            if before > part.tokens {
                by_room.entry(before - part.tokens).or_default().push(sample);
            }
        }
        let pieces = samples.iter().map(Vec::len).sum();
        self.starts.try_reserve(pieces).map_err(|_| no_memory())?;
        self.ends.try_reserve(samples.len()).map_err(|_| no_memory())?;
        for sample in samples {
            self.starts.extend(sample.iter().map(|part| part.start));
            self.ends.push(self.starts.len() as u64);
        }
        Ok(())
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The first token of each piece of a sample.
    pub fn pieces(&self, sample: u64) -> &[u64] {
        let sample = sample as usize;
        let start = if sample == 0 { 0 } else { self.ends[sample - 1] };
        &self.starts[start as usize..self.ends[sample] as usize]
    }

    /// How many tokens a piece has, by its first one, and whether its document goes on behind it.
    pub fn segment(&self, documents: &Documents, start: u64) -> Segment {
        let left = documents.range(documents.of(start)).end - start;
        Segment { tokens: left.min(self.length) as u32, continues: left > self.length }
    }

    /// A hash of which pieces are in which sample.
    pub fn fingerprint(&self) -> u64 {
        hash_words(&[self.length, hash_words(&self.starts), hash_words(&self.ends)])
    }
}

fn no_memory() -> Error {
    Error::new(Kind::Exhausted, "no memory was left for the packing of its documents")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(lengths: impl IntoIterator<Item = u64>) -> Documents {
        let mut end = 0;
        let ends: Vec<u64> = lengths
            .into_iter()
            .map(|length| {
                end += length;
                end
            })
            .collect();
        let mut documents = Documents::default();
        documents.extend(0, end, &ends).unwrap();
        documents
    }

    /// As documents of the web are: most of some hundred tokens, a few of ten thousands.
    fn log_normal(count: u64) -> Vec<u64> {
        let rng = forebay_core::Rng::for_sample(1, forebay_core::Epoch(0), forebay_core::SampleId(0));
        (0..count).map(|index| (6.0 + 1.1 * rng.fork(index).normal()).exp().ceil() as u64).collect()
    }

    #[test]
    fn every_token_is_packed_once_and_little_is_padding() {
        let lengths = log_normal(20_000);
        let documents = documents(lengths.iter().copied());
        let total: u64 = lengths.iter().sum();
        for length in [512, 2_048, 4_096] {
            let packing = Packing::new(&documents, length, 7).unwrap();
            let mut is_packed = vec![false; total as usize];
            for sample in 0..packing.len() {
                let mut tokens = 0;
                for start in packing.pieces(sample) {
                    let segment = packing.segment(&documents, *start);
                    let piece = *start as usize..*start as usize + segment.tokens as usize;
                    assert!(documents.range(documents.of(*start)).end >= piece.end as u64, "inside of one document");
                    assert!(is_packed[piece.clone()].iter().all(|packed| !packed), "twice");
                    is_packed[piece].fill(true);
                    tokens += u64::from(segment.tokens);
                }
                assert!((1..=length).contains(&tokens));
            }
            assert!(is_packed.iter().all(|packed| *packed), "lost");
            let fill = total as f64 / (packing.len() * length) as f64;
            assert!(fill >= 0.97, "{fill} of {length}");
        }
    }

    #[test]
    fn blocks_are_packed_by_themselves_and_by_the_seed() {
        let short = documents((0..PACKING_BLOCK as u64 + 3).map(|index| 1 + index % 7));
        let packing = Packing::new(&short, 7, 1).unwrap();
        let boundary = short.range(PACKING_BLOCK).start;
        for sample in 0..packing.len() {
            let pieces = packing.pieces(sample);
            assert!(pieces.iter().all(|start| (*start < boundary) == (pieces[0] < boundary)), "{pieces:?}");
        }
        assert_eq!(packing.fingerprint(), Packing::new(&short, 7, 1).unwrap().fingerprint());
        let other = Packing::new(&short, 7, 2).unwrap();
        assert_eq!(packing.len(), other.len());
        assert_ne!(packing.fingerprint(), other.fingerprint());
    }

    #[test]
    fn long_documents_are_cut_and_know_that_they_go_on() {
        let documents = documents([10, 1, 8]);
        let packing = Packing::new(&documents, 4, 0).unwrap();
        let segments: Vec<_> = (0..packing.len())
            .flat_map(|sample| packing.pieces(sample).to_vec())
            .map(|start| (start, packing.segment(&documents, start)))
            .map(|(start, segment)| (start, segment.tokens, segment.continues))
            .collect();
        let mut sorted = segments.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [(0, 4, true), (4, 4, true), (8, 2, false), (10, 1, false), (11, 4, true), (15, 4, false)]);
        assert!(
            Packing::new(&documents, 0, 0).is_err() && Packing::new(&Documents::default(), 4, 0).unwrap().is_empty()
        );
    }
}
