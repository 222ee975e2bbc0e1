//! Reading large files from beginning to end, several pieces at a time, to find the samples in them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use forebay_core::{Error, Kind, Result, Stage};
use forebay_format::FileScanner;
use forebay_store::{ReadRequest, Stat, Store, machine};

use super::call_pool::CallPool;
use super::max_threads;
use crate::engine::recover::panicked;
use crate::source::defaults::retry_of;

/// A piece takes as much memory, for each thread.
const PIECE_BYTES: u64 = 4 << 20;

/// A file to scan.
pub(crate) struct UnreadFile {
    pub(crate) path: PathBuf,
    pub(crate) stat: Stat,
}

/// A piece of a file.
#[derive(Clone)]
struct Piece {
    file: usize,
    path: PathBuf,
    stat: Stat,
    range: Range<u64>,
    /// Of an earlier round are pieces that nobody waits for any more.
    round: u32,
}

impl AsRef<Path> for Piece {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A file that is being read.
struct Reading<S> {
    scanner: S,
    /// Pieces that came before the ones that are in front of them, by where they begin.
    arrived: BTreeMap<u64, Vec<u8>>,
    asked: u64,
    in_flight: usize,
    round: u32,
}

/// Makes the index of each file, by a scanner for its size. The bytes have to stay what `stat` says while they are read.
pub(crate) fn index_files<S: FileScanner>(
    store: &Arc<dyn Store>,
    scanner: impl Fn(u64) -> S,
    files: &[UnreadFile],
) -> Result<Vec<S::Index>> {
    let (threads, retry) = (max_threads(&**store), retry_of(&**store));
    let (reader, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(threads, retry, keeps_deadlines, move |piece: &Piece| {
        let request = ReadRequest::new(&piece.path, retry.deadline).with_range(piece.range.clone());
        let object = reader.fetch(&request.with_expected(piece.stat), &mut |size_bytes| buffer(size_bytes))?;
        Ok(object.bytes.into_vec())
    });
    let mut waiting = files.iter().enumerate();
    let mut reading: HashMap<usize, Reading<S>> = HashMap::new();
    let mut found: Vec<Option<S::Index>> = files.iter().map(|_| None).collect();
    loop {
        while reading.len() < threads
            && let Some((file, UnreadFile { stat, .. })) = waiting.next()
        {
            let scanner = scanner(stat.size_bytes);
            match scanner.position() {
                Some(_) => {
                    let new = Reading { scanner, arrived: BTreeMap::new(), asked: 0, in_flight: 0, round: 0 };
                    reading.insert(file, new);
                }
                None => found[file] = Some(scanner.finish()?),
            }
        }
        // Few files are read in several pieces at a time, many in one each.
        let ahead = threads.div_ceil(reading.len().max(1));
        for (&file, state) in &mut reading {
            let UnreadFile { path, stat } = &files[file];
            while state.asked < stat.size_bytes && state.in_flight + state.arrived.len() < ahead {
                let end = stat.size_bytes.min(state.asked + PIECE_BYTES);
                let range = std::mem::replace(&mut state.asked, end)..end;
                state.in_flight += 1;
                pool.ask(Piece { file, path: path.clone(), stat: *stat, range, round: state.round });
            }
        }
        let Some((piece, bytes)) = pool.next()? else { break };
        let bytes = bytes.map_err(|error| error.at_path(&piece.path).at_stage(Stage::Scan))?;
        let Some(state) = reading.get_mut(&piece.file).filter(|state| state.round == piece.round) else { continue };
        state.in_flight -= 1;
        if !S::EXPECTED.is_empty() {
            check_is_plain(&piece, &bytes, S::EXPECTED)?;
        }
        state.arrived.insert(piece.range.start, bytes);
        state.scan().map_err(|error| error.at_path(&piece.path).at_stage(Stage::Scan))?;
        if state.scanner.position().is_none()
            && let Some(state) = reading.remove(&piece.file)
        {
            let finished = state.scanner.finish().map_err(|error| error.at_path(&piece.path).at_stage(Stage::Scan));
            found[piece.file] = Some(finished?);
        }
    }
    found.into_iter().map(|index| index.ok_or_else(|| Error::internal("a file was left out of its index"))).collect()
}

/// The same by several threads, each for some of the files: for scanners that take longer than reading.
pub(crate) fn index_files_by_threads<S: FileScanner>(
    store: &Arc<dyn Store>,
    scanner: impl Fn(u64) -> S + Sync,
    files: &[UnreadFile],
) -> Result<Vec<S::Index>>
where
    S::Index: Send,
{
    by_threads(files, |part| index_files(store, &scanner, part))
}

/// What is made of files by several threads, each for some of them.
pub(super) fn by_threads<T: Send>(
    files: &[UnreadFile],
    make: impl Fn(&[UnreadFile]) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let threads = machine::available_cpus().min(files.len());
    if threads < 2 {
        return make(files);
    }
    let make = &make;
    let parts = thread::scope(|scope| {
        let spawn = |part| {
            let builder = thread::Builder::new().name("forebay-index".to_owned());
            let spawned = builder.spawn_scoped(scope, move || make(part));
            spawned.map_err(|error| Error::io("read by another thread", error))
        };
        let spawned: Vec<_> = files.chunks(files.len().div_ceil(threads)).map(spawn).collect();
        let join = |thread: Result<thread::ScopedJoinHandle<'_, _>>| {
            thread?.join().unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
        };
        spawned.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

impl<S: FileScanner> Reading<S> {
    /// Gives the scanner what it can have.
    fn scan(&mut self) -> Result<()> {
        while let Some(position) = self.scanner.position()
            && let Some(bytes) = self.arrived.remove(&position)
        {
            self.scanner.feed(&bytes)?;
            let next = self.scanner.position();
            if next.is_some_and(|next| next != position + bytes.len() as u64) {
                // It looks at some bytes again. What is on its way lies elsewhere.
                (self.round, self.in_flight, self.asked) = (self.round + 1, 0, next.unwrap_or_default());
                self.arrived.clear();
            }
        }
        Ok(())
    }
}

/// Memory for so many bytes, if there is any.
pub(crate) fn buffer(size_bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    let no_memory = |_| Error::new(Kind::Exhausted, format!("no memory was left for {size_bytes} bytes of it"));
    buffer.try_reserve_exact(size).map_err(no_memory)?;
    Ok(buffer)
}

/// Refuses compressed files, in which nothing can be found without reading what is before it.
fn check_is_plain(piece: &Piece, bytes: &[u8], expected: &str) -> Result<()> {
    let known: [(&[u8], &str); 4] =
        [(b"\x1F\x8B", "gzip"), (b"\x28\xB5\x2F\xFD", "zstd"), (b"BZh", "bzip2"), (b"\xFD7zXZ\0", "xz")];
    match known.iter().find(|(magic, _)| piece.range.start == 0 && bytes.starts_with(magic)) {
        Some((_, name)) => {
            let message = format!("is compressed with {name} (expected {expected})");
            let hint = "unpack it first; lines are read from compressed files, too, if their names end in .gz or .zst";
            Err(Error::new(Kind::Undecodable, message).with_hint(hint).at_path(&piece.path).at_stage(Stage::Scan))
        }
        None => Ok(()),
    }
}
