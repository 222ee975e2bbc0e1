//! Reading ranges of files in order, several pieces at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Result, Stage};
use forebay_store::{ReadRequest, Stat, Store};

use super::call_pool::CallPool;
use super::max_threads;
use super::sequential::buffer;
use crate::source::defaults::retry_of;

/// A piece takes as much memory, for each thread twice. A multiple of every element's size.
const PIECE_BYTES: u64 = 4 << 20;

/// A range of a file to read.
pub(crate) struct FileRange {
    pub(crate) path: PathBuf,
    /// The file has to stay what this says.
    pub(crate) stat: Stat,
    pub(crate) range: Range<u64>,
}

#[derive(Clone)]
struct Piece {
    number: u64,
    file: usize,
    path: PathBuf,
    stat: Stat,
    range: Range<u64>,
}

impl AsRef<Path> for Piece {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Reads ranges of files, and gives their bytes to `take` in order: the number of the range, and the next piece of it. Ranges
/// without bytes give none.
pub(crate) fn read_in_order(
    store: &Arc<dyn Store>,
    files: &[FileRange],
    mut take: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let (threads, retry) = (max_threads(&**store), retry_of(&**store));
    let (reader, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(threads, retry, keeps_deadlines, move |piece: &Piece| {
        let request = ReadRequest::new(&piece.path, retry.deadline).with_range(piece.range.clone());
        let object = reader.fetch(&request.with_expected(piece.stat), &mut |size_bytes| buffer(size_bytes))?;
        Ok(object.bytes.into_vec())
    });
    let mut next = files.iter().enumerate().flat_map(|(file, of)| {
        let starts = (of.range.start..of.range.end).step_by(PIECE_BYTES as usize);
        starts.map(move |start| (file, start..of.range.end.min(start + PIECE_BYTES)))
    });
    // Pieces that came before the ones in front of them, by number.
    let mut arrived: BTreeMap<u64, (Piece, Vec<u8>)> = BTreeMap::new();
    let (mut asked, mut taken) = (0u64, 0u64);
    loop {
        while asked - taken < 2 * threads as u64
            && let Some((file, range)) = next.next()
        {
            let FileRange { path, stat, .. } = &files[file];
            pool.ask(Piece { number: asked, file, path: path.clone(), stat: *stat, range });
            asked += 1;
        }
        let Some((piece, bytes)) = pool.next()? else { return Ok(()) };
        let bytes = bytes.map_err(|error| error.at_path(&piece.path).at_stage(Stage::Scan))?;
        if bytes.len() as u64 != piece.range.end - piece.range.start {
            return Err(Error::internal("a store gave another number of bytes than was asked for").at_path(&piece.path));
        }
        arrived.insert(piece.number, (piece, bytes));
        while let Some((piece, bytes)) = arrived.remove(&taken) {
            take(piece.file, &bytes).map_err(|error| error.at_path(&piece.path).at_stage(Stage::Scan))?;
            taken += 1;
        }
    }
}
