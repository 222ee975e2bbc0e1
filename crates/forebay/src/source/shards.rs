//! Shards: files with many samples of several fields each, found by an index of the file and read by their ranges.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{
    Blocks, DatasetIdentity, Error, Expected, Field, Kind, Locator, Result, SampleId, ScalarColumn, hash_words,
};
use forebay_format::{Note, Part, SHARD_RULE, ShardIndex, TarScanner, content_hash, read_wds2idx};
use forebay_store::{ReadRequest, Stat, Store};

use crate::scan::annotate::annotate;
use crate::scan::call_pool::CallPool;
use crate::scan::max_threads;
use crate::scan::sequential::{UnreadFile, buffer, index_files};
use crate::source::Dataset;
use crate::source::defaults::retry_of;
use crate::source::indexes::{Indexes, Keep, index_and_complete};
use crate::source::parity::{Sidecars, find_sidecars};
use crate::source::unpacked::{SeekTables, Segments};

/// The file with the index of shards, where it is beside them.
const INDEX_NAME: &str = "forebay.index";

/// Where the index of shards is kept, and looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexPlace {
    /// Where there is one beside the shards, it is used; none is written.
    #[default]
    Beside,
    /// It is kept beside the shards, which have to be on this machine.
    KeptBeside,
    /// It is kept in this file of this machine.
    In(PathBuf),
    /// Each archive has one beside it that DALI's `wds2idx` has written: `x.idx` for `x.tar`.
    Wds2idx,
}

impl IndexPlace {
    /// The file beside shards below `root`.
    pub(crate) fn beside(&self, root: &Path) -> PathBuf {
        root.join(INDEX_NAME)
    }

    /// Where that is, if it is `beside` them.
    pub(crate) fn keep<'a>(&'a self, beside: &'a Path) -> Keep<'a> {
        match self {
            Self::Beside => Keep::Beside(beside),
            Self::KeptBeside => Keep::In(beside),
            Self::In(path) => Keep::In(path),
            Self::Wds2idx => Keep::Nowhere,
        }
    }
}

/// The samples of a dataset's files, each of some fields. What is known of a file (its label) holds for all of them.
pub struct Shards {
    files: Arc<dyn Dataset>,
    shards: Vec<ShardIndex>,
    /// As the files were when they were read.
    stats: Vec<Stat>,
    /// The samples of each file.
    blocks: Blocks,
    /// Those of each part of a file that is best read together: a file, or less.
    segments: Blocks,
    /// Of files with parts that are unpacked before they are read.
    tables: Option<Arc<SeekTables>>,
    /// The names of each field of a sample: the first of them that it has is the field.
    fields: Vec<Vec<String>>,
    /// Of each shard and field the numbers that these names have in the shard, one list after the other.
    numbers: Vec<Vec<u16>>,
    notes: Vec<Note>,
}

impl Shards {
    /// The samples of tar archives, with the fields of the first one. `root` is the directory or the URL that all files are below.
    pub fn tar(files: Arc<dyn Dataset>, store: &Arc<dyn Store>, root: &Path, place: &IndexPlace) -> Result<Self> {
        Self::tar_completed(files, store, (root, place), |_, _| Ok(false))
    }

    /// The same, where the index has what is to be known of pictures before they are decoded: the landmarks of JPEGs, which are found
    /// now in archives whose index lacks them. The index has to be kept.
    pub fn tar_with_landmarks(
        files: Arc<dyn Dataset>,
        store: &Arc<dyn Store>,
        root: &Path,
        place: &IndexPlace,
    ) -> Result<Self> {
        match place {
            IndexPlace::KeptBeside | IndexPlace::In(_) => {
                Self::tar_completed(files, store, (root, place), |files, indexes| annotate(store, files, indexes))
            }
            IndexPlace::Beside | IndexPlace::Wds2idx => Err(Error::config("landmarks: expected an index that is kept")),
        }
    }

    fn tar_completed(
        files: Arc<dyn Dataset>,
        store: &Arc<dyn Store>,
        (root, place): (&Path, &IndexPlace),
        complete: impl FnOnce(&[UnreadFile], &mut [ShardIndex]) -> Result<bool>,
    ) -> Result<Self> {
        let (beside, root) = (place.beside(root), Some(root));
        let mut notes = Vec::new();
        let make = |unread: &[UnreadFile]| match place {
            IndexPlace::Wds2idx => wds2idx(store, unread, &mut notes),
            _ => index_files(store, TarScanner::new, unread),
        };
        let keep = place.keep(&beside);
        let mut indexes = index_and_complete(&*files, store, (root, keep), SHARD_RULE, (make, complete))?;
        indexes.notes.append(&mut notes);
        Self::of(files, indexes, "members of an archive are samples if they are named like 00042.jpg")
    }

    /// The samples that are in the indexes of the files. Where there are none, `hint` says what to look at.
    pub(crate) fn of(files: Arc<dyn Dataset>, indexes: Indexes<ShardIndex>, hint: &'static str) -> Result<Self> {
        let Indexes { indexes: shards, stats, notes } = indexes;
        let blocks = Blocks::new(shards.iter().map(ShardIndex::len))?;
        let segments = Blocks::new(shards.iter().flat_map(ShardIndex::blocks))?;
        let Some(first) = shards.iter().find(|shard| !shard.is_empty()) else {
            let (count, first) = (files.len(), notes.first());
            let why = first.map(|Note { path, message }| format!(": {path:?} {message}")).unwrap_or_default();
            let error = Error::new(Kind::NotFound, format!("no sample was found in {count} shards{why}"));
            return Err(error.with_hint(hint));
        };
        let name = |field: &u16| vec![first.fields()[usize::from(*field)].to_ascii_lowercase()];
        let fields = first.fields_of(0).iter().map(name).collect();
        let packed: Vec<_> = (0..)
            .zip(shards.iter().zip(&stats))
            .filter_map(|(file, (shard, stat))| {
                Some((files.path(SampleId(file)), Segments::Pages(Arc::clone(shard.pages()?)), *stat))
            })
            .collect();
        let tables = (!packed.is_empty()).then(|| Arc::new(SeekTables::new(packed)));
        let (fields_of, numbers) = (Vec::new(), Vec::new());
        let made = Self { files, shards, stats, blocks, segments, tables, fields: fields_of, numbers, notes };
        Ok(made.with_fields(fields))
    }

    /// The same samples with these fields: each has several names, of which the first counts that a sample has. Upper and
    /// lower case are the same.
    #[must_use]
    pub fn with_fields(self, fields: Vec<Vec<String>>) -> Self {
        let in_shard = |shard: &ShardIndex, names: &[String]| {
            let mut numbers = Vec::new();
            for name in names {
                let own = (0..).zip(shard.fields()).filter(|(_, field)| field.eq_ignore_ascii_case(name));
                // Columns of a table may differ in case alone: the one with this very name comes first.
                let (same, alike): (Vec<(u16, _)>, Vec<_>) = own.partition(|(_, field)| *field == name);
                numbers.extend(same.into_iter().chain(alike).map(|(number, _)| number));
            }
            numbers
        };
        let numbers = self.shards.iter().flat_map(|shard| fields.iter().map(|names| in_shard(shard, names))).collect();
        Self { fields, numbers, ..self }
    }

    /// The same samples without what was known of their bytes beside checksums: landmarks take memory.
    #[must_use]
    pub fn without_annotations(mut self) -> Self {
        self.shards.iter_mut().for_each(ShardIndex::forget_annotations);
        self
    }

    /// Memory that the indexes take.
    pub fn size_bytes(&self) -> usize {
        self.shards.iter().map(ShardIndex::size_bytes).sum()
    }

    /// The names of each field of a sample.
    pub fn fields(&self) -> &[Vec<String>] {
        &self.fields
    }

    /// The shard of a sample: its number among the files, its index, and the sample's number there. Whatever fields were asked for,
    /// all of a sample's are in it.
    pub fn shard_of(&self, sample: SampleId) -> (SampleId, &ShardIndex, u64) {
        let (file, place) = self.blocks.locate(sample.0);
        (SampleId(file), &self.shards[file as usize], place)
    }

    /// The path of a file that samples are in.
    pub fn file_path(&self, file: SampleId) -> PathBuf {
        self.files.path(file)
    }

    /// How parts of its files are unpacked, if any are: the loader's store has to be an [`Unpacked`](crate::Unpacked) one then.
    pub fn tables(&self) -> Option<&Arc<SeekTables>> {
        self.tables.as_ref()
    }

    /// What was noticed about shards: what is damaged in them, what is left out.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Looks for the parity sidecars of the files. What is wrong with one is noted.
    pub fn find_parity(&mut self, store: &Arc<dyn Store>) -> Result<Arc<Sidecars>> {
        let paths = (0..self.files.len()).map(|file| self.files.path(SampleId(file)));
        let files: Vec<_> = paths.zip(self.stats.iter().copied()).collect();
        let (sidecars, notes) = find_sidecars(&files, store)?;
        self.notes.extend(notes);
        Ok(Arc::new(sidecars))
    }

    fn file_of(&self, sample: SampleId) -> SampleId {
        SampleId(self.blocks.locate(sample.0).0)
    }

    /// The shard of a sample, its number there, and those of the names of a field.
    fn place_of(&self, sample: SampleId, field: Field) -> (&ShardIndex, u64, &[u16]) {
        let (file, place) = self.blocks.locate(sample.0);
        let numbers = &self.numbers[file as usize * self.fields.len() + field.0 as usize];
        (&self.shards[file as usize], place, numbers)
    }

    /// The field of a sample, with the name that it has in its shard.
    fn find(&self, sample: SampleId, field: Field) -> (&ShardIndex, u64, Option<(&str, Part)>) {
        let (shard, place, numbers) = self.place_of(sample, field);
        let found = shard.find(place, numbers);
        (shard, place, found.map(|(number, part)| (&*shard.fields()[usize::from(number)], part)))
    }
}

impl Dataset for Shards {
    fn len(&self) -> u64 {
        self.blocks.sample_count()
    }

    fn field_count(&self) -> u32 {
        self.fields.len() as u32
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let mut member = locator.member.take().unwrap_or_default();
        self.files.locate(self.file_of(sample), Field(0), locator);
        let (shard, place, found) = self.find(sample, field);
        member.clear();
        shard.write_key(place, &mut member);
        // Of a field that is not there nothing is read, and `verify` says so.
        let (name, range) = match found {
            Some((name, part)) => (name, part.range),
            None => (&*self.fields[field.0 as usize][0], 0..0),
        };
        // A record without a name in its shard goes by its number alone.
        if !name.is_empty() {
            member.push('.');
            member.push_str(name);
        }
        (locator.range, locator.member) = (Some(range), Some(member));
    }

    fn is_unpacked(&self, sample: SampleId) -> bool {
        // Behind the end of such a file are its pages, in ranges of their own.
        self.shards[self.file_of(sample).0 as usize].pages().is_some()
    }

    fn blocks(&self) -> Option<Blocks> {
        Some(self.segments.clone())
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        self.files.scalars(&samples.iter().map(|sample| self.file_of(*sample)).collect::<Vec<_>>())
    }

    fn expected(&self, sample: SampleId, _field: Field) -> Option<Expected> {
        let file = self.file_of(sample).0 as usize;
        // With checksums each sample is compared by itself: a shard that was written to has lost only what differs.
        let Stat { size_bytes, mtime_ns } = self.stats[file];
        let is_bound = !self.shards[file].has_hashes();
        is_bound.then_some(Expected { size_bytes: Some(size_bytes), stamp_ns: Some(mtime_ns), by_etag: false })
    }

    fn verify(&self, sample: SampleId, field: Field, bytes: &[u8]) -> Result<()> {
        let (shard, place, found) = self.find(sample, field);
        let Some((_, part)) = found else {
            let names = |fields: &[u16]| {
                fields.iter().map(|field| &*shard.fields()[usize::from(*field)]).collect::<Vec<_>>().join(", ")
            };
            let (expected, got) = (self.fields[field.0 as usize].join(" or "), names(shard.fields_of(place)));
            return Err(Error::new(Kind::Corrupt, format!("has no field (expected {expected}, got {got})")));
        };
        match part.lost {
            Some(lost) => Err(Error::new(Kind::Corrupt, lost.predicate())),
            None if part.is(bytes) => Ok(()),
            None => {
                let (expected, got) = (part.hash.unwrap_or_default(), content_hash(bytes));
                let message = format!("is not what it was (expected xxh3 {expected:016x}, got {got:016x})");
                let hint = "the shard was changed after its index was made: restore it, or make the index again";
                Err(Error::new(Kind::Corrupt, message).with_hint(hint))
            }
        }
    }

    fn annotation(&self, sample: SampleId, field: Field) -> Option<&[u8]> {
        let (shard, place, numbers) = self.place_of(sample, field);
        shard.annotation(place, numbers)
    }

    fn identity(&self) -> DatasetIdentity {
        let files = self.files.identity();
        let names = self.fields.iter().map(|names| content_hash(names.join(";").as_bytes()));
        let words: Vec<_> = [SHARD_RULE, self.blocks.fingerprint()].into_iter().chain(names).collect();
        let samples = hash_words(&words);
        DatasetIdentity { samples: self.len(), fingerprint: format!("{}#{samples:016x}", files.fingerprint), ..files }
    }

    fn root(&self) -> Option<PathBuf> {
        self.files.root()
    }
}

/// The indexes beside archives. Archives whose index is not there, or is not theirs, are read, and that is said.
fn wds2idx(store: &Arc<dyn Store>, archives: &[UnreadFile], notes: &mut Vec<Note>) -> Result<Vec<ShardIndex>> {
    let (reader, retry, keeps_deadlines) =
        (Arc::clone(store), retry_of(&**store), store.capabilities().keeps_deadlines);
    let mut pool = CallPool::new(max_threads(&**store), retry, keeps_deadlines, move |asked: &IndexFile| {
        let request = ReadRequest::new(&asked.path, retry.deadline);
        reader.fetch(&request, &mut |size| buffer(size)).map(|object| object.bytes.into_vec())
    });
    for (archive, UnreadFile { path, .. }) in archives.iter().enumerate() {
        pool.ask(IndexFile { archive, path: index_path(path) });
    }
    let mut found: Vec<Option<ShardIndex>> = archives.iter().map(|_| None).collect();
    while let Some((IndexFile { archive, path }, bytes)) = pool.next()? {
        match bytes.and_then(|bytes| read_wds2idx(&bytes, archives[archive].stat.size_bytes)) {
            Ok(index) => found[archive] = Some(index),
            Err(error) => {
                let message = format!("was not used: {}; its archive was read instead", error.message());
                notes.push(Note { path, message });
            }
        }
    }
    let missing = archives.iter().zip(&found).filter(|(_, index)| index.is_none());
    let unread: Vec<_> =
        missing.map(|(archive, _)| UnreadFile { path: archive.path.clone(), stat: archive.stat }).collect();
    let mut read = index_files(store, TarScanner::new, &unread)?.into_iter();
    let left_out = || Error::internal("an archive was left out of its index");
    found.into_iter().map(|index| index.or_else(|| read.next()).ok_or_else(left_out)).collect()
}

/// The index file of an archive.
#[derive(Clone)]
struct IndexFile {
    archive: usize,
    path: PathBuf,
}

impl AsRef<Path> for IndexFile {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// `x.idx` for `x.tar`, and for `x.part.tar`: `wds2idx` cuts names at their first dot.
fn index_path(archive: &Path) -> PathBuf {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.get(1..).and_then(|rest| rest.find('.')).map_or(&*name, |dot| &name[..dot + 1]);
    archive.with_file_name(format!("{stem}.idx"))
}
