//! Files of lines: each record is a sample, found by an index of the file and read by its range.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Error, Expected, Field, Kind, Locator, Result, SampleId, ScalarColumn, Stage, hash_words,
};
use forebay_format::{LineIndex, LineRule, LineScanner, Note};
use forebay_store::{Stat, Store};

use crate::scan::once;
use crate::source::defaults::retry_of;
use crate::source::indexes::{Indexes, Keep, index_all};
use crate::source::{Dataset, read_request};

/// The records of a dataset's files. What is known of a file (its label) holds for each of them.
pub struct Lines {
    files: Arc<dyn Dataset>,
    rule: LineRule,
    indexes: Vec<LineIndex>,
    /// As the files were when they were read.
    stats: Vec<Stat>,
    /// The records of each file.
    blocks: Blocks,
    notes: Vec<Note>,
}

impl Lines {
    /// Reads every file once, unless `kept` names a file that has their indexes from before. It is written there then.
    pub fn new(files: Arc<dyn Dataset>, store: &Arc<dyn Store>, rule: LineRule, kept: Option<&Path>) -> Result<Self> {
        let (root, kept) = (files.root(), kept.map_or(Keep::Nowhere, Keep::In));
        let place = (root.as_deref(), kept);
        let Indexes { indexes, stats, notes } =
            index_all(&*files, store, place, rule.word(), |size_bytes| LineScanner::new(rule, size_bytes))?;
        let blocks = Blocks::new(indexes.iter().map(LineIndex::len))?;
        if blocks.sample_count() == 0 {
            let message = format!("no record was found in {} files", files.len());
            return Err(Error::new(Kind::NotFound, message).with_hint("look at what the files are"));
        }
        Ok(Self { files, rule, indexes, stats, blocks, notes })
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
        Some(self.blocks.clone())
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
