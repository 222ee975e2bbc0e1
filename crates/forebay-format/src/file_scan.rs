//! What finding many samples in one file takes, whatever its format: a scanner that is fed the file's bytes, and an index that
//! is kept.

use std::ops::Range;

use forebay_core::Result;

/// Makes the index of a file from its bytes. It is given those from [`FileScanner::position`] on, in pieces of any size.
pub trait FileScanner: Sized {
    /// What it makes.
    type Index: FileIndex;

    /// What such a file is, for the error about one that is compressed; empty where a compressed one is what is expected.
    const EXPECTED: &'static str;

    /// Where the bytes begin that it needs next; `None` when it has seen all of them. Nearly always where the last ones ended.
    fn position(&self) -> Option<u64>;

    /// Takes bytes from [`FileScanner::position`] on.
    fn feed(&mut self, bytes: &[u8]) -> Result<()>;

    /// What was found.
    fn finish(self) -> Result<Self::Index>;
}

/// Where the samples of one file are.
pub trait FileIndex: Clone + Sized {
    /// How many samples there are.
    fn sample_count(&self) -> u64;

    /// What there is to say about the file, as predicates about its path.
    fn notes(&self) -> Vec<String>;

    /// Writes it down for [`FileIndex::parse`].
    fn write(&self, out: &mut Vec<u8>);

    /// Reads what [`FileIndex::write`] wrote about a file of this size from the beginning of `bytes`, and moves them on. `None`
    /// where they are anything else.
    fn parse(bytes: &mut &[u8], size_bytes: u64) -> Option<Self>;
}

/// Makes the index of a file from those of its bytes that say where the others are.
pub trait RangeScanner: Sized {
    /// What it makes.
    type Index: FileIndex;

    /// The bytes that it needs next, which are inside of the file and at least one; `None` when it has seen enough.
    fn next_range(&self) -> Option<Range<u64>>;

    /// Takes these bytes.
    fn feed(&mut self, bytes: &[u8]) -> Result<()>;

    /// What was found.
    fn finish(self) -> Result<Self::Index>;
}
