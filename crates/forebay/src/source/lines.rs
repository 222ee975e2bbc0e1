//! Files of lines: each record is a sample, found by an index of the file and read by its range.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Error, Expected, Field, Kind, Locator, Result, SampleId, ScalarColumn, Stage, hash_words,
};
use forebay_format::{LineIndex, LineRule, LineScanner, Note, PackedScanner};
use forebay_store::{Stat, Store};

use crate::scan::once;
use crate::scan::sequential::index_files_by_threads;
use crate::source::defaults::retry_of;
use crate::source::indexes::{Indexes, Keep, index_all, index_by};
use crate::source::unpacked::{SeekTables, Segments, Unpacked};
use crate::source::{Dataset, Selection, read_request};

/// The records of a dataset's files. What is known of a file (its label) holds for each of them.
pub struct Lines {
    files: Arc<dyn Dataset>,
    rule: LineRule,
    indexes: Vec<LineIndex>,
    /// As the files were when they were read.
    stats: Vec<Stat>,
    /// The records of each file.
    blocks: Blocks,
    /// The records of each block that is best read together: a segment of a compressed file, or a file.
    segments: Blocks,
    /// Of the compressed ones among the files.
    tables: Option<Arc<SeekTables>>,
    notes: Vec<Note>,
}

/// The rule by which the tables of compressed files are kept: no rule of lines.
const SEEK_RULE: u64 = u64::from_le_bytes(*b"seeking\0");

impl Lines {
    /// Reads every file once, unless `kept` names a file that has their indexes from before. It is written there then.
    pub fn new(files: Arc<dyn Dataset>, store: &Arc<dyn Store>, rule: LineRule, kept: Option<&Path>) -> Result<Self> {
        let root = files.root();
        let tables = seek_tables(&files, store, root.as_deref(), kept)?;
        let store = unpacking(store, tables.as_ref());
        let place = (root.as_deref(), kept.map_or(Keep::Nowhere, Keep::In));
        let Indexes { indexes, stats, notes } =
            index_all(&*files, &store, place, rule.word(), |size_bytes| LineScanner::new(rule, size_bytes))?;
        let blocks = Blocks::new(indexes.iter().map(LineIndex::len))?;
        if blocks.sample_count() == 0 {
            let message = format!("no record was found in {} files", files.len());
            return Err(Error::new(Kind::NotFound, message).with_hint("look at what the files are"));
        }
        let segments = match &tables {
            Some(tables) => {
                tables.clear(); // what was unpacked for the index
                by_segment(&*files, tables, &indexes)?
            }
            None => blocks.clone(),
        };
        Ok(Self { files, rule, indexes, stats, blocks, segments, tables, notes })
    }

    /// How its compressed files are read, if there are any: the loader's store has to be an [`Unpacked`] one then.
    pub fn tables(&self) -> Option<&Arc<SeekTables>> {
        self.tables.as_ref()
    }

    /// What was noticed about files: how their lines end, what is missing at their end.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The header of CSV, with its line end. All files have to have the same one.
    pub fn header(&self) -> Result<&[u8]> {
        let mut files = self.indexes.iter().enumerate().filter(|(_, index)| !index.header().is_empty());
        let Some((_, first)) = files.next() else { return Ok(&[]) };
        let differs = |index: &LineIndex| index.header().trim_ascii_end() != first.header().trim_ascii_end();
        match files.find(|(_, index)| differs(index)) {
            Some((file, _)) => {
                let error = Error::new(Kind::Config, "has another header than the first of the files");
                Err(error.at_path(&self.files.path(SampleId(file as u64))).at_stage(Stage::Scan))
            }
            None => Ok(first.header()),
        }
    }

    /// The bytes of the first record: of a table without a header, they say how many columns there are.
    pub fn first_record(&self, store: &Arc<dyn Store>) -> Result<Vec<u8>> {
        let store = &unpacking(store, self.tables.as_ref());
        let (mut locator, reader, retry) = (Locator::default(), Arc::clone(store), retry_of(&**store));
        self.locate(SampleId(0), Field(0), &mut locator);
        let path = locator.path.clone();
        let read = once(store, &path, retry, move |_| {
            let request = read_request(&locator, retry.deadline);
            reader
                .fetch(&request, &mut |size| Ok(Vec::with_capacity(size as usize)))
                .map(|object| object.bytes.into_vec())
        });
        read.map_err(|error| error.at_path(&path).at_stage(Stage::Scan))
    }

    fn file_of(&self, sample: SampleId) -> SampleId {
        SampleId(self.blocks.locate(sample.0).0)
    }
}

/// A store that unpacks the files of these tables.
fn unpacking(store: &Arc<dyn Store>, tables: Option<&Arc<SeekTables>>) -> Arc<dyn Store> {
    match tables {
        Some(tables) => Arc::new(Unpacked::new(Arc::clone(store), vec![Arc::clone(tables)])),
        None => Arc::clone(store),
    }
}

/// Whether a file is compressed, by its name.
pub fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// The tables of the files that are compressed, by their names; kept beside the index of lines.
fn seek_tables(
    files: &Arc<dyn Dataset>,
    store: &Arc<dyn Store>,
    root: Option<&Path>,
    kept: Option<&Path>,
) -> Result<Option<Arc<SeekTables>>> {
    let packed: Vec<_> = (0..files.len()).filter(|file| is_packed(&files.path(SampleId(*file)))).collect();
    if packed.is_empty() {
        return Ok(None);
    }
    let packed = Selection::new(Arc::clone(files), packed)?;
    let kept = kept.map(|kept| {
        let mut beside = kept.as_os_str().to_owned();
        beside.push(".seek");
        PathBuf::from(beside)
    });
    let place = (root, kept.as_deref().map_or(Keep::Nowhere, Keep::In));
    let Indexes { indexes, stats, .. } =
        index_by(&packed, store, place, SEEK_RULE, |unread| index_files_by_threads(store, PackedScanner::new, unread))?;
    let paths = (0..packed.len()).map(|file| packed.path(SampleId(file)));
    let files = paths.zip(indexes).zip(stats).map(|((path, table), stat)| (path, Segments::Packed(table), stat));
    Ok(Some(Arc::new(SeekTables::new(files))))
}

/// Names of compressed files end like this.
const ENDINGS: [&str; 4] = ["gz", "bgz", "zst", "zstd"];

/// How many records begin in each segment of the files; a file that is not compressed is one.
fn by_segment(files: &dyn Dataset, tables: &SeekTables, indexes: &[LineIndex]) -> Result<Blocks> {
    let mut counts = Vec::new();
    for (file, index) in (0..).zip(indexes) {
        let Some(table) = tables.get(&files.path(SampleId(file))) else {
            counts.push(index.len());
            continue;
        };
        let first = counts.len();
        counts.resize(first + table.segment_count().max(1), 0);
        for record in 0..index.len() {
            counts[first + table.segment_of(index.range(record).start)] += 1;
        }
    }
    Blocks::new(counts)
}

impl Dataset for Lines {
    fn len(&self) -> u64 {
        self.blocks.sample_count()
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let (file, record) = self.blocks.locate(sample.0);
        let mut member = locator.member.take().unwrap_or_default();
        self.files.locate(SampleId(file), field, locator);
        let index = &self.indexes[file as usize];
        member.clear();
        // Writing to a string does not fail.
        let _written = write!(member, "line {}", index.line(record));
        (locator.range, locator.member) = (Some(index.range(record)), Some(member));
    }

    fn blocks(&self) -> Option<Blocks> {
        Some(self.segments.clone())
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        self.files.scalars(&samples.iter().map(|sample| self.file_of(*sample)).collect::<Vec<_>>())
    }

    fn expected(&self, sample: SampleId, _field: Field) -> Option<Expected> {
        let Stat { size_bytes, mtime_ns } = self.stats[self.file_of(sample).0 as usize];
        Some(Expected { size_bytes: Some(size_bytes), stamp_ns: Some(mtime_ns), by_etag: false })
    }

    fn identity(&self) -> DatasetIdentity {
        let files = self.files.identity();
        let records = hash_words(&[self.rule.word(), self.blocks.fingerprint()]);
        DatasetIdentity { samples: self.len(), fingerprint: format!("{}/{records:016x}", files.fingerprint), ..files }
    }

    fn root(&self) -> Option<PathBuf> {
        self.files.root()
    }
}
