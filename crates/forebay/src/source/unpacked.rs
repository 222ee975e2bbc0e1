//! Compressed files as if they were not: a store whose ranges are those of what is unpacked.
//!
//! A range is made of segments ([`SeekTable`]), each read and unpacked as a whole. The last segments stay in memory, up to a limit:
//! neighbours are often read one after the other, and always where blocks are shuffled in windows.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result, Stage};
use forebay_format::SeekTable;
use forebay_store::{
    Allot, CacheStats, Capabilities, Object, ReadRequest, Readers, Repairs, Stat, Stop, Store, Sum, Traffic,
};

/// Segments in memory, of all files of a dataset: about sixty of the usual size.
const KEPT_BYTES: usize = 64 << 20;

/// The compressed files of a dataset, as they were when their tables were made.
#[derive(Debug)]
pub struct SeekTables {
    files: HashMap<PathBuf, File>,
    kept: Mutex<Kept>,
}

/// A compressed file as it was when its table was made.
type File = (SeekTable, Stat);

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    segments: VecDeque<(PathBuf, usize, Arc<[u8]>)>,
    bytes: usize,
    /// How often a segment could not be unpacked. Thousands of samples may be in one.
    damaged: HashMap<(PathBuf, usize), u32>,
}

/// After so many reads that agree, a segment is damaged for good.
const MAX_ATTEMPTS: u32 = 2;

impl SeekTables {
    pub(crate) fn new(files: HashMap<PathBuf, File>) -> Self {
        Self { files, kept: Mutex::default() }
    }

    /// The table of a file, if it is a compressed one.
    pub(crate) fn get(&self, path: &Path) -> Option<&SeekTable> {
        self.files.get(path).map(|(table, _)| table)
    }

    /// Whether it has a table of a file.
    pub fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// What a panic left is whole: nothing in here can fail half-way.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, path: &Path, segment: usize) -> Option<Arc<[u8]>> {
        let kept = self.kept();
        let found = kept.segments.iter().rev().find(|(known, number, _)| *number == segment && known == path);
        found.map(|(_, _, content)| Arc::clone(content))
    }

    fn keep(&self, path: &Path, segment: usize, content: &Arc<[u8]>) {
        let mut kept = self.kept();
        if kept.segments.iter().any(|(known, number, _)| *number == segment && known == path) {
            return; // two threads have unpacked it
        }
        kept.bytes += content.len();
        kept.segments.push_back((path.to_owned(), segment, Arc::clone(content)));
        while kept.bytes > KEPT_BYTES
            && let Some((_, _, oldest)) = kept.segments.pop_front()
        {
            kept.bytes -= oldest.len();
        }
    }

    fn is_damaged(&self, path: &Path, segment: usize) -> bool {
        self.kept().damaged.get(&(path.to_owned(), segment)).is_some_and(|times| *times >= MAX_ATTEMPTS)
    }

    fn note_damage(&self, path: &Path, segment: usize) {
        *self.kept().damaged.entry((path.to_owned(), segment)).or_default() += 1;
    }

    /// Gives the memory back.
    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn forget(&self, path: &Path) {
        let mut kept = self.kept();
        kept.segments.retain(|(known, _, _)| known != path);
        kept.bytes = kept.segments.iter().map(|(_, _, content)| content.len()).sum();
    }
}

/// A store of files some of which are compressed.
#[derive(Debug)]
pub struct Unpacked {
    inner: Arc<dyn Store>,
    /// Of each dataset that it is for. A file that is in several of them is read by the first one's.
    tables: Arc<[Arc<SeekTables>]>,
}

impl Unpacked {
    /// The files of a store, unpacked where they have a table.
    pub fn new(inner: Arc<dyn Store>, tables: impl Into<Arc<[Arc<SeekTables>]>>) -> Self {
        Self { inner, tables: tables.into() }
    }

    /// The tables that have a file, and what they have of it.
    fn find(&self, path: &Path) -> Option<(&SeekTables, &File)> {
        self.tables.iter().find_map(|tables| Some((&**tables, tables.files.get(path)?)))
    }

    /// One segment: from memory, or read and unpacked. `more` is what the caller takes beside it.
    fn segment(
        &self,
        request: &ReadRequest<'_>,
        (tables, (table, stat)): (&SeekTables, &File),
        segment: usize,
        (more, allot): (u64, &mut Allot<'_>),
    ) -> Result<Arc<[u8]>> {
        if let Some(content) = tables.find(request.path, segment) {
            return Ok(content);
        }
        if tables.is_damaged(request.path, segment) {
            let message = "is in a compressed segment that is damaged (several reads agreed)";
            return Err(Error::new(Kind::Corrupt, message).at_path(request.path).at_stage(Stage::Decode));
        }
        let unpacked = table.range(segment);
        let unpacked_bytes = unpacked.end - unpacked.start;
        let packed = ReadRequest { range: Some(table.packed_range(segment)), expected: None, ..request.clone() };
        let mut allot = |size| allot(size + unpacked_bytes + more);
        let mut object = self.inner.fetch(&packed, &mut allot)?;
        if object.stat != *stat && self.inner.origin().is_some() {
            // A copy of what it once was, perhaps.
            self.inner.doubt(request.path);
            object = self.inner.fetch(&packed, &mut allot)?;
        }
        if object.stat != *stat {
            return Err(Error::new(Kind::Stale, "is not what its index describes: it was changed")
                .at_path(request.path)
                .at_stage(Stage::Fetch));
        }
        let content = table.unpack(segment, &object.bytes).map_err(|error| {
            tables.note_damage(request.path, segment);
            error.at_path(request.path).at_stage(Stage::Decode)
        });
        let content: Arc<[u8]> = content?.into();
        tables.keep(request.path, segment, &content);
        Ok(content)
    }
}

/// What is said of a compressed file: how long it is when it is unpacked.
fn unpacked(table: &SeekTable, packed: Stat) -> Stat {
    Stat { size_bytes: table.size_bytes(), ..packed }
}

impl Store for Unpacked {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let Some(file) = self.find(request.path) else { return self.inner.fetch(request, allot) };
        request.check_cancel()?;
        let (_, (table, packed)) = file;
        let stat = unpacked(table, *packed);
        let range = request.bytes_of(stat)?;
        let size_bytes = range.end - range.start;
        if size_bytes == 0 {
            return Ok(Object { bytes: allot(0)?.into(), stat });
        }
        let mut pieces = Vec::new();
        let mut position = range.start;
        while position < range.end {
            let segment = table.segment_of(position);
            let place = table.range(segment);
            pieces.push((self.segment(request, file, segment, (size_bytes, allot))?, position - place.start));
            position = place.end;
        }
        let mut buffer = allot(size_bytes)?;
        buffer.clear();
        buffer
            .try_reserve(size_bytes as usize)
            .map_err(|_| Error::new(Kind::Exhausted, format!("no memory was left for {size_bytes} bytes of it")))?;
        for (content, from) in pieces {
            let left = size_bytes as usize - buffer.len();
            let piece = &content[from as usize..];
            buffer.extend_from_slice(&piece[..piece.len().min(left)]);
        }
        Ok(Object { bytes: buffer.into(), stat })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let stat = self.inner.stat(path)?;
        Ok(match self.find(path) {
            Some((_, (table, known))) if *known == stat => unpacked(table, stat),
            _ => stat,
        })
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        // The server's is of what is compressed.
        if self.find(path).is_some() { Ok(None) } else { self.inner.sum(path) }
    }

    fn stoppable(&self) -> Option<(Arc<dyn Store>, Stop)> {
        let (inner, stop) = self.inner.stoppable()?;
        Some((Arc::new(Self { inner, tables: Arc::clone(&self.tables) }), stop))
    }

    fn rest(&self) {
        self.inner.rest();
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn hangs_for(&self, within: Duration) -> Option<Duration> {
        self.inner.hangs_for(within)
    }

    fn readers(&self) -> Option<Readers> {
        self.inner.readers()
    }

    fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn doubt(&self, path: &Path) {
        self.tables.iter().for_each(|tables| tables.forget(path));
        self.inner.doubt(path);
    }

    fn doubt_range(&self, path: &Path, range: Range<u64>) {
        match self.find(path) {
            Some(_) => self.doubt(path),
            None => self.inner.doubt_range(path, range),
        }
    }

    fn cache(&self) -> Option<CacheStats> {
        self.inner.cache()
    }

    fn cache_notice(&self) -> Option<String> {
        self.inner.cache_notice()
    }

    fn repairs(&self) -> Option<Repairs> {
        self.inner.repairs()
    }

    fn repair_hint(&self, path: &Path, range: Option<&Range<u64>>) -> Option<String> {
        self.inner.repair_hint(path, range)
    }
}
