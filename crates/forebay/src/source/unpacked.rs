//! Compressed files as if they were not: a store whose ranges are those of what is unpacked.
//!
//! A range is made of segments, each read and unpacked as a whole: those of a compressed file ([`SeekTable`]), or the pages of a
//! Parquet file ([`PageTable`]). The last segments stay in memory, up to a limit: neighbours are often read one after the other,
//! and always where blocks are shuffled in windows.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result, Stage};
use forebay_format::{PageTable, SeekTable};
use forebay_store::{
    Allot, CacheStats, Capabilities, Object, ReadRequest, Readers, Repairs, Stat, Stop, Store, Sum, Traffic,
};

/// Segments in memory, of all files of a dataset: about sixty of the usual size. One that is larger is kept alone.
const KEPT_BYTES: usize = 64 << 20;
/// What keeping a segment takes beside its content: pages may be small.
const ENTRY_BYTES: usize = 128;

/// The files of a dataset that are unpacked, as they were when their tables were made.
#[derive(Debug)]
pub struct SeekTables {
    files: HashMap<Arc<Path>, File>,
    kept: Mutex<Kept>,
}

/// A file as it was when its table was made.
#[derive(Debug)]
struct File {
    path: Arc<Path>,
    segments: Segments,
    stat: Stat,
}

/// Where what is unpacked lies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segments {
    /// In place of the file.
    Packed(SeekTable),
    /// Behind the end of the file, which is read as it is.
    Pages(Arc<PageTable>),
}

impl Segments {
    /// How much of the file is read as it is.
    fn plain_bytes(&self) -> u64 {
        match self {
            Self::Packed(_) => 0,
            Self::Pages(table) => table.file_bytes(),
        }
    }

    /// Where the last segment ends.
    fn end(&self) -> u64 {
        match self {
            Self::Packed(table) => table.size_bytes(),
            Self::Pages(table) => table.end(),
        }
    }

    fn segment_of(&self, position: u64) -> usize {
        match self {
            Self::Packed(table) => table.segment_of(position),
            Self::Pages(table) => table.page_of(position),
        }
    }

    fn range(&self, segment: usize) -> Range<u64> {
        match self {
            Self::Packed(table) => table.range(segment),
            Self::Pages(table) => table.range(segment),
        }
    }

    fn packed_range(&self, segment: usize) -> Range<u64> {
        match self {
            Self::Packed(table) => table.packed_range(segment),
            Self::Pages(table) => table.packed_range(segment),
        }
    }

    /// The segment that another one is unpacked with.
    fn dictionary(&self, segment: usize) -> Option<usize> {
        match self {
            Self::Packed(_) => None,
            Self::Pages(table) => table.dictionary(segment),
        }
    }

    /// Memory that unpacking takes beside what is read and what becomes of it.
    fn passing_bytes(&self, segment: usize) -> u64 {
        match self {
            Self::Packed(_) => 0,
            Self::Pages(table) => table.body_bytes(segment),
        }
    }

    fn unpack(&self, segment: usize, packed: &[u8], dictionary: Option<&[u8]>) -> Result<Vec<u8>> {
        match self {
            Self::Packed(table) => table.unpack(segment, packed),
            Self::Pages(table) => table.unpack(segment, packed, dictionary),
        }
    }

    /// Whether a file that was written to is another one. What is in pages has checksums of its own.
    fn is_bound(&self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// What is said of a file: of a compressed one, how long it is when it is unpacked.
    fn stat(&self, stat: Stat) -> Stat {
        match self {
            Self::Packed(table) => Stat { size_bytes: table.size_bytes(), ..stat },
            Self::Pages(_) => stat,
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    segments: HashMap<Arc<Path>, HashMap<usize, Arc<[u8]>>>,
    /// The oldest first.
    order: VecDeque<(Arc<Path>, usize)>,
    bytes: usize,
    /// How often a segment could not be unpacked. Thousands of samples may be in one.
    damaged: HashMap<(PathBuf, usize), u32>,
}

/// After so many reads that agree, a segment is damaged for good.
const MAX_ATTEMPTS: u32 = 2;

impl SeekTables {
    pub(crate) fn new(files: impl IntoIterator<Item = (PathBuf, Segments, Stat)>) -> Self {
        let file = |(path, segments, stat): (PathBuf, Segments, Stat)| {
            let path: Arc<Path> = path.into();
            (Arc::clone(&path), File { path, segments, stat })
        };
        Self { files: files.into_iter().map(file).collect(), kept: Mutex::default() }
    }

    /// The table of a file, if it is a compressed one.
    pub(crate) fn get(&self, path: &Path) -> Option<&SeekTable> {
        match &self.files.get(path)?.segments {
            Segments::Packed(table) => Some(table),
            Segments::Pages(_) => None,
        }
    }

    /// Whether it has a table of a file.
    pub fn has(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Whether what is unpacked stands in place of a file's own bytes, and not behind them.
    pub fn replaces(&self, path: &Path) -> bool {
        self.get(path).is_some()
    }

    /// Whether a file is unpacked in another way by these: the same columns of Parquet have the same pages.
    pub fn differs(&self, path: &Path, other: &Self) -> bool {
        let both = self.files.get(path).zip(other.files.get(path));
        both.is_some_and(|(own, other)| own.segments != other.segments)
    }

    /// What a panic left is whole: nothing in here can fail half-way.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, path: &Path, segment: usize) -> Option<Arc<[u8]>> {
        self.kept().segments.get(path)?.get(&segment).cloned()
    }

    fn keep(&self, path: &Arc<Path>, segment: usize, content: &Arc<[u8]>) {
        let mut kept = self.kept();
        let own = kept.segments.entry(Arc::clone(path)).or_default();
        if own.insert(segment, Arc::clone(content)).is_some() {
            return; // two threads have unpacked it
        }
        kept.bytes += content.len() + ENTRY_BYTES;
        kept.order.push_back((Arc::clone(path), segment));
        while kept.bytes > KEPT_BYTES
            && kept.order.len() > 1
            && let Some((path, segment)) = kept.order.pop_front()
        {
            let oldest = kept.segments.get_mut(&path).and_then(|own| own.remove(&segment));
            kept.bytes -= oldest.map_or(0, |oldest| oldest.len() + ENTRY_BYTES);
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
        let Some(own) = kept.segments.remove(path) else { return };
        kept.bytes -= own.values().map(|content| content.len() + ENTRY_BYTES).sum::<usize>();
        kept.order.retain(|(known, _)| **known != *path);
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
        (tables, file): (&SeekTables, &File),
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
        let (table, stat) = (&file.segments, &file.stat);
        let dictionary = match table.dictionary(segment) {
            Some(dictionary) => Some(self.segment(request, (tables, file), dictionary, (more, allot))?),
            None => None,
        };
        let unpacked = table.range(segment);
        let more = more + dictionary.as_ref().map_or(0, |content| content.len() as u64);
        let unpacked_bytes = unpacked.end - unpacked.start + table.passing_bytes(segment);
        let packed = ReadRequest { range: Some(table.packed_range(segment)), expected: None, ..request.clone() };
        let mut allot = |size| allot(size + unpacked_bytes + more);
        let mut object = self.inner.fetch(&packed, &mut allot)?;
        if object.stat != *stat && self.inner.origin().is_some() {
            // A copy of what it once was, perhaps.
            self.inner.doubt(request.path);
            object = self.inner.fetch(&packed, &mut allot)?;
        }
        if object.stat != *stat && table.is_bound() {
            return Err(Error::new(Kind::Stale, "is not what its index describes: it was changed")
                .at_path(request.path)
                .at_stage(Stage::Fetch));
        }
        let content = table.unpack(segment, &object.bytes, dictionary.as_deref()).map_err(|error| {
            tables.note_damage(request.path, segment);
            error.at_path(request.path).at_stage(Stage::Decode)
        });
        let content: Arc<[u8]> = content?.into();
        tables.keep(&file.path, segment, &content);
        Ok(content)
    }
}

impl Store for Unpacked {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let Some(file) = self.find(request.path) else { return self.inner.fetch(request, allot) };
        let (_, File { segments, stat, .. }) = file;
        let plain_bytes = segments.plain_bytes();
        if plain_bytes > 0 && request.range.as_ref().is_none_or(|range| range.end <= plain_bytes) {
            return self.inner.fetch(request, allot);
        }
        request.check_cancel()?;
        let stat = segments.stat(*stat);
        let range = request.bytes_of(Stat { size_bytes: segments.end(), ..stat })?;
        if range.start < plain_bytes && !range.is_empty() {
            let message = "has an index that names bytes across its end: let it be made again";
            return Err(Error::new(Kind::Corrupt, message).at_path(request.path).at_stage(Stage::Fetch));
        }
        let size_bytes = range.end - range.start;
        let mut pieces = Vec::new();
        let mut position = range.start;
        while position < range.end {
            let segment = segments.segment_of(position);
            let place = segments.range(segment);
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
            Some((_, file)) if file.stat == stat => file.segments.stat(stat),
            _ => stat,
        })
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        // The server's is of what is compressed.
        match self.find(path) {
            Some((_, file)) if file.segments.is_bound() => Ok(None),
            _ => self.inner.sum(path),
        }
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
        let Some((tables, File { segments, .. })) = self.find(path) else {
            return self.inner.doubt_range(path, range);
        };
        if segments.is_bound() {
            return self.doubt(path);
        }
        if range.end <= segments.plain_bytes() {
            return self.inner.doubt_range(path, range);
        }
        tables.forget(path);
        let mut position = range.start.max(segments.plain_bytes());
        while position < range.end.min(segments.end()) {
            let segment = segments.segment_of(position);
            let also = segments.dictionary(segment);
            for doubted in also.into_iter().chain([segment]) {
                self.inner.doubt_range(path, segments.packed_range(doubted));
            }
            position = segments.range(segment).end;
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
