//! What a store has made again that its storage lost.

use std::path::PathBuf;

/// Statistics of a store that repairs what it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Reads whose bytes were not what the storage gave.
    pub reads: u64,
    /// Blocks that were put in place of damaged ones, in all reads.
    pub blocks: u64,
    /// Files that are damaged, each with its damaged blocks as far as they were read.
    pub files: Vec<(PathBuf, u64)>,
}
