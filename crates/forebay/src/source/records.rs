//! Files of records: each record is a sample, and read by its range.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Error, Expected, Field, Kind, Locator, Result, SampleId, ScalarColumn, Stage, hash_words,
};
use forebay_format::{Note, RecordLayout};
use forebay_store::{Stat, Store};

use crate::scan::call_pool::CallPool;
use crate::scan::max_threads;
use crate::source::Dataset;
use crate::source::defaults::retry_of;

/// The records of a dataset's files. What is known of a file (its label, its size and time) holds for each of them.
pub struct Records {
    files: Arc<dyn Dataset>,
    layout: RecordLayout,
    /// The records of each file.
    blocks: Blocks,
    notes: Vec<Note>,
}

impl Records {
    /// Asks the store for the size of every file that is not written down, and fails if it does not say one.
    pub fn new(files: Arc<dyn Dataset>, store: &Arc<dyn Store>, layout: RecordLayout) -> Result<Self> {
        let mut notes = Vec::new();
        let counts = (0..).zip(sizes(&*files, store)?).map(|(file, size_bytes)| {
            let (records, note) = layout.count(size_bytes);
            notes.extend(note.map(|message| Note { path: files.path(SampleId(file)), message }));
            records
        });
        let blocks = Blocks::new(counts)?;
        if blocks.sample_count() == 0 {
            let (count, first) = (files.len(), notes.first());
            let why = first.map(|Note { path, message }| format!(": {path:?} {message}")).unwrap_or_default();
            let error = Error::new(Kind::NotFound, format!("no record was found in {count} files{why}"));
            return Err(error.with_hint("look at the dtype, the shape and the header, and at what the files are"));
        }
        Ok(Self { files, layout, blocks, notes })
    }

    /// What was noticed: files whose last record is not whole, files without records.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn file_of(&self, sample: SampleId) -> SampleId {
        SampleId(self.blocks.locate(sample.0).0)
    }
}

impl Dataset for Records {
    fn len(&self) -> u64 {
        self.blocks.sample_count()
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let (file, record) = self.blocks.locate(sample.0);
        self.files.locate(SampleId(file), field, locator);
        locator.range = Some(self.layout.range(record));
    }

    fn blocks(&self) -> Option<Blocks> {
        Some(self.blocks.clone())
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        self.files.scalars(&samples.iter().map(|sample| self.file_of(*sample)).collect::<Vec<_>>())
    }

    fn expected(&self, sample: SampleId, field: Field) -> Option<Expected> {
        self.files.expected(self.file_of(sample), field)
    }

    fn identity(&self) -> DatasetIdentity {
        let files = self.files.identity();
        let [header_bytes, record_bytes] = self.layout.words();
        let records = hash_words(&[header_bytes, record_bytes, self.blocks.fingerprint()]);
        DatasetIdentity { samples: self.len(), fingerprint: format!("{}*{records:016x}", files.fingerprint), ..files }
    }

    fn root(&self) -> Option<PathBuf> {
        self.files.root()
    }
}

/// A file that the store is asked about.
#[derive(Clone)]
struct Asked {
    file: u64,
    path: PathBuf,
}

impl AsRef<Path> for Asked {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// The size of every file: as written down, or as the store says.
pub(crate) fn sizes(files: &dyn Dataset, store: &Arc<dyn Store>) -> Result<Vec<u64>> {
    let written = |file| files.expected(SampleId(file), Field(0)).and_then(|expected| expected.size_bytes);
    let mut sizes: Vec<_> = (0..files.len()).map(written).collect();
    let missing: Vec<_> = (0..files.len()).filter(|&file| sizes[file as usize].is_none()).collect();
    for (file, stat) in ask(files, store, missing)? {
        sizes[file as usize] = Some(stat.size_bytes);
    }
    sizes.into_iter().map(|size| size.ok_or_else(|| Error::internal("a size was asked for and not told"))).collect()
}

/// Size and time of every file, as the store says.
pub(crate) fn stats(files: &dyn Dataset, store: &Arc<dyn Store>) -> Result<Vec<Stat>> {
    let mut stats = ask(files, store, 0..files.len())?;
    stats.sort_unstable_by_key(|(file, _)| *file);
    Ok(stats.into_iter().map(|(_, stat)| stat).collect())
}

/// Size and time of some files, in any order.
fn ask(files: &dyn Dataset, store: &Arc<dyn Store>, which: impl IntoIterator<Item = u64>) -> Result<Vec<(u64, Stat)>> {
    let (asked, keeps_deadlines) = (Arc::clone(store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(max_threads(&**store), retry_of(&**store), keeps_deadlines, move |file: &Asked| {
        asked.stat(&file.path)
    });
    for file in which {
        pool.ask(Asked { file, path: files.path(SampleId(file)) });
    }
    let mut stats = Vec::new();
    while let Some((Asked { file, .. }, stat)) = pool.next()? {
        stats.push((file, stat.map_err(|error| error.at_stage(Stage::Scan))?));
    }
    Ok(stats)
}
