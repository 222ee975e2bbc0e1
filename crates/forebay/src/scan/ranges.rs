//! Reading those bytes of files that say where the samples are in them: one range after the other in each file, and many files at
//! a time.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Result, Stage};
use forebay_format::RangeScanner;
use forebay_store::{ReadRequest, Stat, Store};

use super::call_pool::CallPool;
use super::max_threads;
use super::sequential::{UnreadFile, buffer, by_threads};
use crate::source::defaults::retry_of;

/// A range of a file.
#[derive(Clone)]
struct Piece {
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

/// Makes the index of each file, by a scanner of its own. The bytes have to stay what `stat` says while they are read.
pub(crate) fn index_ranges<S: RangeScanner>(
    store: &Arc<dyn Store>,
    scanner: impl Fn(&UnreadFile) -> S,
    files: &[UnreadFile],
) -> Result<Vec<S::Index>> {
    let (threads, retry) = (max_threads(&**store), retry_of(&**store));
    let (reader, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(threads, retry, keeps_deadlines, move |piece: &Piece| {
        let request = ReadRequest::new(&piece.path, retry.deadline).with_range(piece.range.clone());
        let object = reader.fetch(&request.with_expected(piece.stat), &mut |size_bytes| buffer(size_bytes))?;
        Ok(object.bytes.into_vec())
    });
    let mut scanners: Vec<Option<S>> = files.iter().map(|_| None).collect();
    let mut found: Vec<Option<S::Index>> = files.iter().map(|_| None).collect();
    let (mut waiting, mut open) = (0..files.len(), 0);
    loop {
        // As many files as there are threads: each scanner takes memory.
        while open < threads
            && let Some(file) = waiting.next()
        {
            scanners[file] = Some(scanner(&files[file]));
            open += 1;
            open -= advance(file, files, &mut scanners[file], &mut found[file], &mut pool)?;
        }
        let Some((piece, bytes)) = pool.next()? else { break };
        let located = |error: Error| error.at_path(&piece.path).at_stage(Stage::Scan);
        let bytes = bytes.map_err(located)?;
        let slot = &mut scanners[piece.file];
        if let Some(scanner) = slot {
            scanner.feed(&bytes).map_err(located)?;
        }
        open -= advance(piece.file, files, slot, &mut found[piece.file], &mut pool).map_err(located)?;
    }
    found.into_iter().map(|index| index.ok_or_else(|| Error::internal("a file was left out of its index"))).collect()
}

/// The same by several threads, each for some of the files: for scanners that take longer than reading.
pub(crate) fn index_ranges_by_threads<S: RangeScanner>(
    store: &Arc<dyn Store>,
    scanner: impl Fn(&UnreadFile) -> S + Sync,
    files: &[UnreadFile],
) -> Result<Vec<S::Index>>
where
    S::Index: Send,
{
    by_threads(files, |part| index_ranges(store, &scanner, part))
}

/// Asks for what a scanner needs next, or takes what it has found; gives how many files are over, which is one or none.
fn advance<S: RangeScanner>(
    file: usize,
    files: &[UnreadFile],
    scanner: &mut Option<S>,
    found: &mut Option<S::Index>,
    pool: &mut CallPool<Piece, Vec<u8>>,
) -> Result<usize> {
    let Some(range) = scanner.as_ref().and_then(RangeScanner::next_range) else {
        *found = scanner.take().map(RangeScanner::finish).transpose()?;
        return Ok(1);
    };
    let UnreadFile { path, stat } = &files[file];
    pool.ask(Piece { file, path: path.clone(), stat: *stat, range });
    Ok(0)
}
