//! Where the pieces of a sample of tokens are.

use std::ops::Range;

use forebay_core::{Blocks, Field, SampleId};
use forebay_format::{Packing, Piece};

use super::{Samples, Tokens};

impl Tokens {
    /// How many places a sample is read from.
    pub(super) fn piece_count(&self, sample: SampleId) -> u32 {
        match &self.samples {
            Samples::Windows { windows, .. } => {
                let range = windows.range(sample.0);
                match self.stream.first_piece(range.clone()).tokens == range.end - range.start {
                    true => 1, // nearly always
                    false => self.stream.pieces(range).count() as u32,
                }
            }
            Samples::Packed { packing, is_simple: true } => packing.pieces(sample.0).len() as u32,
            Samples::Packed { .. } => self.packed(sample).flat_map(|range| self.stream.pieces(range)).count() as u32,
        }
    }

    /// One of the places.
    pub(super) fn piece(&self, sample: SampleId, field: Field) -> Piece {
        let place = field.0 as usize;
        let found = match &self.samples {
            Samples::Windows { windows, .. } if place == 0 => Some(self.stream.first_piece(windows.range(sample.0))),
            Samples::Windows { windows, .. } => self.stream.pieces(windows.range(sample.0)).nth(place),
            Samples::Packed { packing, is_simple: true } => {
                let start = packing.pieces(sample.0).get(place);
                start.map(|start| self.stream.first_piece(self.document_part(packing, *start)))
            }
            Samples::Packed { .. } => self.packed(sample).flat_map(|range| self.stream.pieces(range)).nth(place),
        };
        found.expect("a sample has as many fields as were counted")
    }

    /// The tokens of the documents in a packed sample, each with the one that follows it where its document goes on.
    fn packed(&self, sample: SampleId) -> impl Iterator<Item = Range<u64>> {
        let Samples::Packed { packing, .. } = &self.samples else {
            unreachable!("only documents are packed");
        };
        packing.pieces(sample.0).iter().map(|start| self.document_part(packing, *start))
    }

    /// One of them, by its first token.
    fn document_part(&self, packing: &Packing, start: u64) -> Range<u64> {
        let documents = self.documents.as_ref().expect("only documents are packed");
        let segment = packing.segment(documents, start);
        start..start + u64::from(segment.tokens) + u64::from(segment.continues)
    }

    /// How many windows begin in each file.
    pub(super) fn windows_by_file(&self) -> Option<Blocks> {
        let Samples::Windows { windows, .. } = &self.samples else { return None };
        let begun = |token: u64| windows.begun_before(token);
        let counts =
            (0..self.paths.len()).map(|file| begun(self.stream.start_of(file + 1)) - begun(self.stream.start_of(file)));
        Blocks::new(counts).ok()
    }
}
