//! Where documents end in a stream of tokens.

use std::ops::Range;

use forebay_core::{Result, Segment, hash_words};

use super::{damaged, room};

/// Where each document of a stream ends: 8 bytes for each. Documents without tokens are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents(Vec<u64>);

impl Documents {
    /// Adds the documents of the next file, which has so many tokens, by where they end in it.
    pub fn extend(&mut self, start: u64, tokens: u64, ends: &[u64]) -> Result<()> {
        let last = ends.last().copied().unwrap_or(0);
        if last != tokens {
            return Err(damaged(format!("ends its last document at token {last} (expected {tokens})")));
        }
        if let Some(at) = ends.windows(2).position(|pair| pair[0] > pair[1]) {
            let (before, end) = (ends[at], ends[at + 1]);
            return Err(damaged(format!("ends document {} at token {end} (expected at least {before})", at + 1)));
        }
        if self.0.is_empty() {
            self.0 = room(ends.len() as u64)?;
        }
        let mut before = start;
        for end in ends {
            // The tokens of all files together were counted without an overflow.
            let end = start + end;
            if end > before {
                self.0.push(end);
            }
            before = end;
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tokens of one.
    pub fn range(&self, document: usize) -> Range<u64> {
        (if document == 0 { 0 } else { self.0[document - 1] })..self.0[document]
    }

    /// The document that a token is in.
    pub fn of(&self, token: u64) -> usize {
        self.0.partition_point(|end| *end <= token)
    }

    /// A hash of where they end.
    pub fn fingerprint(&self) -> u64 {
        hash_words(&self.0)
    }

    /// The segments of these tokens, of which `length` at most are in the sample, and one more may be read.
    pub fn segments(&self, tokens: Range<u64>, length: u64) -> impl Iterator<Item = Segment> {
        let (mut at, end) = (tokens.start, tokens.end.min(tokens.start.saturating_add(length)));
        let mut document = self.of(at);
        std::iter::from_fn(move || {
            let stop = (at < end).then(|| self.0.get(document).map_or(end, |stop| *stop))?;
            let segment = Segment { tokens: (stop.min(end) - at) as u32, continues: stop > end && end < tokens.end };
            (at, document) = (stop, document + 1);
            Some(segment)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(tokens: u32, continues: bool) -> Segment {
        Segment { tokens, continues }
    }

    #[test]
    fn windows_are_cut_where_documents_end() {
        let mut documents = Documents::default();
        documents.extend(0, 5, &[3, 3, 5]).unwrap();
        documents.extend(5, 0, &[]).unwrap();
        documents.extend(5, 6, &[6]).unwrap();
        assert_eq!((documents.len(), documents.range(0), documents.range(2)), (3, 0..3, 5..11));
        let segments = |tokens, length| documents.segments(tokens, length).collect::<Vec<_>>();
        assert_eq!(segments(0..5, 4), [segment(3, false), segment(1, true)]);
        assert_eq!(segments(0..5, 5), [segment(3, false), segment(2, false)]);
        assert_eq!(segments(4..9, 4), [segment(1, false), segment(3, true)]);
        assert_eq!(segments(4..8, 4), [segment(1, false), segment(3, false)], "no more was read");
        assert_eq!(segments(2..6, 3), [segment(1, false), segment(2, false)]);
    }

    #[test]
    fn an_index_that_does_not_fit_its_file_is_refused() {
        let refused = |tokens, ends: &[u64]| Documents::default().extend(0, tokens, ends).unwrap_err();
        assert_eq!(refused(5, &[3]).message(), "ends its last document at token 3 (expected 5)");
        assert_eq!(refused(5, &[4, 3, 5]).message(), "ends document 1 at token 3 (expected at least 4)");
        assert!(Documents::default().extend(0, 0, &[]).is_ok());
    }
}
