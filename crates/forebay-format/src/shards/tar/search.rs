//! Finds the next header of an archive in which something is damaged.

use memchr::memmem;

use super::header::{self, BLOCK_BYTES, Block, Found, MAGIC, MAGIC_AT};

/// A search from some byte on: every place at which a header with the magic bytes of ustar may begin, and in old archives, at
/// multiples of 512 bytes from their blocks, any header.
#[derive(Debug)]
pub(super) struct Search {
    /// Bytes that may be the beginning of a header, and where they are.
    window: Vec<u8>,
    base: u64,
    /// Where a block begins.
    grid: u64,
    is_old: bool,
    /// Behind the last byte that was not zero.
    pub(super) nonzero_end: u64,
    /// The first byte that was not zero.
    pub(super) nonzero_start: Option<u64>,
}

impl Search {
    /// For headers that begin at `from` or later. `grid` is where a block begins or would.
    pub(super) fn new(from: u64, grid: u64, is_old: bool) -> Self {
        let grid = grid % BLOCK_BYTES as u64;
        Self { window: Vec::new(), base: from, grid, is_old, nonzero_end: from, nonzero_start: None }
    }

    /// Takes bytes. Gives where a header begins, and the header; the bytes behind it were not taken.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<(u64, Box<Block>)> {
        self.note_zeros(bytes);
        self.window.extend_from_slice(bytes);
        let grid = if self.is_old { self.on_grid() } else { None };
        // Before a header on the grid may be one that is none, and has the magic bytes.
        let end = grid.map_or(self.window.len(), |at| at + MAGIC_AT);
        let found = self.with_magic(&self.window[..end]).or(grid);
        if let Some((at, block)) = found.and_then(|at| Some((at, self.window[at..].first_chunk::<BLOCK_BYTES>()?))) {
            return Some((self.base + at as u64, Box::new(*block)));
        }
        let kept = self.window.len().min(BLOCK_BYTES - 1);
        let gone = self.window.len() - kept;
        self.window.drain(..gone);
        self.base += gone as u64;
        None
    }

    fn note_zeros(&mut self, bytes: &[u8]) {
        let at = self.base + self.window.len() as u64;
        let is_some = |byte: &u8| *byte != 0;
        if self.nonzero_start.is_none() {
            self.nonzero_start = bytes.iter().position(is_some).map(|first| at + first as u64);
        }
        if let Some(last) = bytes.iter().rposition(is_some) {
            self.nonzero_end = at + last as u64 + 1;
        }
    }

    fn on_grid(&self) -> Option<usize> {
        let block = BLOCK_BYTES as u64;
        let first = ((self.grid + block - self.base % block) % block) as usize;
        let blocks = self.window.get(first..)?.chunks_exact(BLOCK_BYTES);
        (0..).zip(blocks).find(|(_, block)| is_header(block)).map(|(number, _)| first + number * BLOCK_BYTES)
    }

    fn with_magic(&self, window: &[u8]) -> Option<usize> {
        let starts = memmem::find_iter(window, MAGIC).filter_map(|at| at.checked_sub(MAGIC_AT));
        starts.into_iter().find(|start| self.window.get(*start..*start + BLOCK_BYTES).is_some_and(is_header))
    }
}

fn is_header(block: &[u8]) -> bool {
    block.first_chunk().is_some_and(|block| matches!(header::read(block), Found::Header(_)))
}
