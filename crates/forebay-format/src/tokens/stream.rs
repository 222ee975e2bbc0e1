//! One stream of tokens over several files, and windows over the stream.

use std::ops::Range;

use forebay_core::{Error, Result, hash_words};

/// Tokens that lie one behind the other in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first byte.
    pub offset: u64,
    /// Tokens of the file up to its end, those of earlier runs included.
    pub end: u64,
}

/// Where the tokens of one file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    /// One behind the other.
    One {
        /// The first byte.
        offset: u64,
        /// How many there are.
        tokens: u64,
    },
    /// With gaps between them.
    Many(Vec<Run>),
}

impl Runs {
    /// Tokens in the file.
    pub fn tokens(&self) -> u64 {
        match self {
            Self::One { tokens, .. } => *tokens,
            Self::Many(runs) => runs.last().map_or(0, |run| run.end),
        }
    }

    /// The byte at which a token begins, and how many follow it without a gap, itself included.
    fn at(&self, token: u64, item_bytes: u64) -> (u64, u64) {
        match self {
            Self::One { offset, tokens } => (offset + token * item_bytes, tokens - token),
            Self::Many(runs) => {
                let run = runs.partition_point(|run| run.end <= token);
                let start = if run == 0 { 0 } else { runs[run - 1].end };
                (runs[run].offset + (token - start) * item_bytes, runs[run].end - token)
            }
        }
    }

    fn fingerprint(&self) -> u64 {
        match self {
            Self::One { offset, tokens } => hash_words(&[*offset, *tokens]),
            Self::Many(runs) => hash_words(&runs.iter().flat_map(|run| [run.offset, run.end]).collect::<Vec<_>>()),
        }
    }
}

/// Bytes of one file that hold consecutive tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the file.
    pub file: u64,
    /// Which of its bytes.
    pub bytes: Range<u64>,
    /// How many tokens they are.
    pub tokens: u64,
}

/// The tokens of all files, in order.
#[derive(Clone, Debug)]
pub struct TokenStream {
    item_bytes: u64,
    /// Where each file ends, in tokens.
    ends: Vec<u64>,
    files: Vec<Runs>,
}

impl TokenStream {
    /// Files whose tokens take so many bytes each.
    pub fn new(item_bytes: usize, files: Vec<Runs>) -> Result<Self> {
        let mut end = 0u64;
        let ends = files.iter().map(|runs| {
            end =
                end.checked_add(runs.tokens()).ok_or_else(|| Error::config("the files have more than 2^64 tokens"))?;
            Ok(end)
        });
        let ends = ends.collect::<Result<_>>()?;
        Ok(Self { item_bytes: item_bytes as u64, ends, files })
    }

    /// How many tokens there are.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of where all tokens are.
    pub fn fingerprint(&self) -> u64 {
        hash_words(&self.files.iter().map(Runs::fingerprint).chain([self.item_bytes]).collect::<Vec<_>>())
    }

    /// Where a file's tokens begin in the stream.
    pub fn start_of(&self, file: usize) -> u64 {
        if file == 0 { 0 } else { self.ends[file - 1] }
    }

    /// The first of these tokens that lie together. The range has to be in the stream, and may not be empty.
    pub fn first_piece(&self, tokens: Range<u64>) -> Piece {
        let file = self.ends.partition_point(|end| *end <= tokens.start);
        let (offset, together) = self.files[file].at(tokens.start - self.start_of(file), self.item_bytes);
        let count = together.min(tokens.end - tokens.start);
        Piece { file: file as u64, bytes: offset..offset + count * self.item_bytes, tokens: count }
    }

    /// All pieces of these tokens.
    pub fn pieces(&self, mut tokens: Range<u64>) -> impl Iterator<Item = Piece> {
        std::iter::from_fn(move || {
            let piece = (!tokens.is_empty()).then(|| self.first_piece(tokens.clone()))?;
            tokens.start += piece.tokens;
            Some(piece)
        })
    }
}

/// What becomes of tokens at the end of the stream that make no whole window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// They are in no window.
    #[default]
    Drop,
    /// They make a shorter one, which is padded.
    Pad,
}

/// Windows of one length over a stream of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    stream: u64,
    stride: u64,
    /// Tokens of a window, the one that is only a target included.
    reads: u64,
    count: u64,
}

impl Windows {
    /// Windows of `length` tokens that begin `stride` apart. With `has_targets` each reads one token more.
    pub fn new(stream: u64, length: u64, stride: u64, has_targets: bool, tail: Tail) -> Result<Self> {
        if length == 0 || stride == 0 {
            let (name, value) = if length == 0 { ("sequence_length", length) } else { ("stride", stride) };
            return Err(Error::config(format!("{name}: expected at least 1, got {value}")));
        }
        let least = 1 + u64::from(has_targets);
        let reads = length
            .checked_add(least - 1)
            .ok_or_else(|| Error::config("sequence_length: expected one that fits into memory"))?;
        let whole = stream.checked_sub(reads).map_or(0, |rest| rest / stride + 1);
        let mut windows = Self { stream, stride, reads, count: whole };
        let next = whole.checked_mul(stride).and_then(|start| start.checked_add(least));
        if tail == Tail::Pad && windows.unused() > 0 && next.is_some_and(|end| end <= stream) {
            windows.count += 1;
        }
        Ok(windows)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Tokens of the stream that a window reads.
    pub fn range(&self, window: u64) -> Range<u64> {
        let start = window * self.stride;
        start..self.stream.min(start + self.reads)
    }

    /// How many windows begin before a token.
    pub fn begun_before(&self, token: u64) -> u64 {
        token.div_ceil(self.stride).min(self.count)
    }

    /// Tokens behind the last window.
    pub fn unused(&self) -> u64 {
        self.stream - self.count.checked_sub(1).map_or(0, |last| self.range(last).end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_window_cross_files_and_gaps() {
        let gaps = Runs::Many(vec![Run { offset: 8, end: 3 }, Run { offset: 100, end: 3 }, Run { offset: 20, end: 5 }]);
        let files = vec![Runs::One { offset: 2, tokens: 4 }, Runs::One { offset: 0, tokens: 0 }, gaps];
        let stream = TokenStream::new(2, files).unwrap();
        assert_eq!((stream.len(), stream.start_of(2)), (9, 4));
        let pieces: Vec<_> = stream.pieces(2..9).map(|piece| (piece.file, piece.bytes, piece.tokens)).collect();
        assert_eq!(pieces, [(0, 6..10, 2), (2, 8..14, 3), (2, 20..24, 2)]);
        for start in 0..9 {
            let each: Vec<_> = (start..9).map(|token| stream.first_piece(token..token + 1).bytes.start).collect();
            let together = stream.pieces(start..9).flat_map(|piece| piece.bytes.step_by(2));
            assert_eq!(together.collect::<Vec<_>>(), each, "from {start}");
        }
    }

    #[test]
    fn windows_cover_the_stream_and_the_rest_is_counted() {
        for (stream, length, stride, has_targets, tail, expected, unused) in [
            (10, 4, 4, true, Tail::Drop, vec![(0, 5), (4, 9)], 1),
            (10, 4, 4, true, Tail::Pad, vec![(0, 5), (4, 9), (8, 10)], 0),
            (9, 4, 4, true, Tail::Pad, vec![(0, 5), (4, 9)], 0),
            (10, 4, 4, false, Tail::Drop, vec![(0, 4), (4, 8)], 2),
            (9, 4, 4, false, Tail::Pad, vec![(0, 4), (4, 8), (8, 9)], 0),
            (8, 4, 2, true, Tail::Drop, vec![(0, 5), (2, 7)], 1),
            (8, 4, 2, true, Tail::Pad, vec![(0, 5), (2, 7), (4, 8)], 0),
            (9, 4, 7, true, Tail::Pad, vec![(0, 5), (7, 9)], 0),
            (8, 4, 7, true, Tail::Pad, vec![(0, 5)], 3),
            (3, 4, 4, true, Tail::Drop, vec![], 3),
            (3, 4, 4, true, Tail::Pad, vec![(0, 3)], 0),
            (1, 4, 4, true, Tail::Pad, vec![], 1),
            (0, 4, 4, false, Tail::Pad, vec![], 0),
        ] {
            let windows = Windows::new(stream, length, stride, has_targets, tail).unwrap();
            let ranges: Vec<_> = (0..windows.count())
                .map(|window| windows.range(window))
                .map(|range| (range.start, range.end))
                .collect();
            assert_eq!((ranges, windows.unused()), (expected, unused), "{stream} {length} {stride}");
        }
    }

    #[test]
    fn the_largest_streams_do_not_overflow() {
        let windows = Windows::new(u64::MAX, 1 << 20, 1, true, Tail::Pad).unwrap();
        assert_eq!(windows.range(windows.count() - 1).end, u64::MAX);
        let windows = Windows::new(u64::MAX, u64::MAX - 1, u64::MAX, true, Tail::Pad).unwrap();
        assert_eq!((windows.count(), windows.range(0)), (1, 0..u64::MAX));
        assert!(Windows::new(1, u64::MAX, 1, true, Tail::Pad).is_err());
        assert!(Windows::new(1, 0, 1, true, Tail::Pad).is_err() && Windows::new(1, 1, 0, true, Tail::Pad).is_err());
        let most = Runs::One { offset: 0, tokens: u64::MAX };
        assert!(TokenStream::new(2, vec![most.clone(), most]).is_err());
    }
}
