//! The source of a loader: which samples, where their bytes are, and the recipe that turns them into values.

pub(crate) mod concat;
pub(crate) mod defaults;
pub(crate) mod indexes;
pub(crate) mod lines;
pub(crate) mod manifest;
pub(crate) mod objects;
pub(crate) mod parity;
pub(crate) mod parquet;
pub(crate) mod records;
pub(crate) mod runs;
pub(crate) mod shard_formats;
pub(crate) mod shards;
pub(crate) mod split;
pub(crate) mod tokens;
pub(crate) mod unpacked;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{
    Blocks, Config, DatasetIdentity, Epoch, Error, Expected, Field, Isolate, Kind, Locator, Result, Retry, Rng,
    SampleId, ScalarColumn, Stage, hash_words,
};
use forebay_decode::{
    ColumnSpec, Dense, Fields, Layout, Made, Pipeline, Recipe, Sample, Scratch, Tensor, Timing, Value,
};
use forebay_format::{FolderIndex, ScanOptions};
use forebay_store::{
    Allot, CacheStats, Capabilities, Isolated, KeptFiles, Local, Mapped, Mount, MountKind, Object, ReadRequest,
    Readers, Remote, Repairs, Stat, StorageOptions, Store, Traffic, is_url, machine,
};

use crate::scan::scan_folder;
use crate::source::defaults::Defaults;
use crate::source::objects::Objects;
use crate::source::runs::Runs;

/// Samples: where each one's bytes are, and what is known of it without reading them.
pub trait Dataset: Send + Sync {
    /// How many there are.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// How many fields each sample has.
    fn field_count(&self) -> u32 {
        1
    }
    /// How many fields one sample has, where that depends on the sample: on the dataset that it comes from, or on the pieces of
    /// one thing that it is read from.
    fn field_count_of(&self, _sample: SampleId) -> u32 {
        self.field_count()
    }
    /// How many fields the samples of each dataset have that it is made of; of one, most are.
    fn fields_by_part(&self) -> Vec<u32> {
        vec![self.field_count()]
    }
    /// Which of these datasets a sample comes from.
    fn part_of(&self, _sample: SampleId) -> u32 {
        0
    }
    /// What the recipe has to know of a sample beside what is read: given to it as one more field, behind the others.
    fn outline(&self, _sample: SampleId) -> Option<Vec<u8>> {
        None
    }
    /// Where the bytes of one field are, in place of what `locator` was, whose memory may be used again.
    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator);
    /// The name of one field ([`Locator::name`]): what failures and quarantine are kept by.
    fn name(&self, sample: SampleId, field: Field) -> PathBuf {
        let mut locator = Locator::default();
        self.locate(sample, field, &mut locator);
        locator.name()
    }
    /// What the sample itself goes by: the name of its first field.
    fn path(&self, sample: SampleId) -> PathBuf {
        self.name(sample, Field(0))
    }
    /// Whether the ranges of a sample's fields are not those of its object's own bytes, but of what they are unpacked to: then each field
    /// is read by itself.
    fn is_unpacked(&self, _sample: SampleId) -> bool {
        false
    }
    /// How its samples lie in blocks that are best read together (shards, chunks); `None` where they do not.
    fn blocks(&self) -> Option<Blocks> {
        None
    }
    /// What is known of these samples without reading them, as columns: labels.
    fn scalars(&self, _samples: &[SampleId]) -> Vec<ScalarColumn> {
        Vec::new()
    }
    /// What the object of a field has to be, where that was written down.
    fn expected(&self, _sample: SampleId, _field: Field) -> Option<Expected> {
        None
    }
    /// Whether the bytes of a field are the ones that were written down, where that is asked for.
    fn verify(&self, _sample: SampleId, _field: Field, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
    /// What was learnt of a field's bytes before, by an [`Annotator`](forebay_decode::Annotator); empty if there is nothing to know.
    /// It has to be of the very bytes that [`Dataset::verify`] accepts, by their checksum: `None` where that compares none.
    fn annotation(&self, _sample: SampleId, _field: Field) -> Option<&[u8]> {
        None
    }
    /// What a resume state is bound to.
    fn identity(&self) -> DatasetIdentity;
    /// The directory that all samples are below, where there is one.
    fn root(&self) -> Option<PathBuf> {
        None
    }
    /// The directory that all samples of the dataset are below that a sample comes from.
    fn root_of(&self, _sample: SampleId) -> Option<PathBuf> {
        self.root()
    }
}

/// Whether the object of a field is what was written down about it.
pub(crate) fn check(dataset: &dyn Dataset, sample: SampleId, field: Field, stat: Stat) -> Result<()> {
    let differs = dataset.expected(sample, field).and_then(|expected| expected.differs(stat.size_bytes, stat.mtime_ns));
    match differs {
        Some(what) => Err(Error::new(Kind::Stale, format!("is not what the manifest describes ({what})"))),
        None => Ok(()),
    }
}

/// The read of a field's bytes.
pub(crate) fn read_request(locator: &Locator, within: Duration) -> ReadRequest<'_> {
    ReadRequest { range: locator.range.clone(), ..ReadRequest::new(&locator.path, within) }
}

/// Reads bytes of a field, and compares their object with what was written down about it.
pub(crate) fn read_located(
    store: &dyn Store,
    dataset: &dyn Dataset,
    (sample, field): (SampleId, Field),
    request: &ReadRequest<'_>,
    allot: &mut Allot<'_>,
) -> Result<Object> {
    let mut object = store.fetch(request, allot)?;
    if store.origin().is_some() && check(dataset, sample, field, object.stat).is_err() {
        // A copy of what it once was, perhaps: the manifest may be the newer one.
        doubt(store, request.path, request.range.clone());
        object = store.fetch(request, allot)?;
    }
    check(dataset, sample, field, object.stat)?;
    Ok(object)
}

/// What was read of an object, or of a part of it, may not be what it is: the next read is not one of a copy.
pub(crate) fn doubt(store: &dyn Store, path: &Path, range: Option<Range<u64>>) {
    match range {
        Some(range) => store.doubt_range(path, range),
        None => store.doubt(path),
    }
}

/// Refuses an object that is larger than its recipe takes.
pub(crate) fn check_size(recipe: &dyn Recipe, size_bytes: u64) -> Result<()> {
    match recipe.max_bytes() {
        Some(most) if size_bytes > most => {
            let message = format!("is larger than `max_bytes` (expected at most {most} bytes, got {size_bytes})");
            let hint = "raise `max_bytes` if the file is meant to be in the dataset; leave it out if it is not";
            Err(Error::new(Kind::Exhausted, message).with_hint(hint))
        }
        _ => Ok(()),
    }
}

impl Dataset for FolderIndex {
    fn len(&self) -> u64 {
        FolderIndex::len(self)
    }

    fn locate(&self, sample: SampleId, _field: Field, locator: &mut Locator) {
        (locator.range, locator.member) = (None, None);
        self.write_path(sample, &mut locator.path);
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        match self.has_classes() {
            true => vec![ScalarColumn::labels(samples.iter().map(|sample| self.label(*sample)).collect())],
            false => Vec::new(),
        }
    }

    fn expected(&self, sample: SampleId, _field: Field) -> Option<Expected> {
        FolderIndex::expected(self, sample)
    }

    fn verify(&self, sample: SampleId, _field: Field, bytes: &[u8]) -> Result<()> {
        FolderIndex::verify(self, sample, bytes)
    }

    fn identity(&self) -> DatasetIdentity {
        FolderIndex::identity(self)
    }

    fn root(&self) -> Option<PathBuf> {
        let root = FolderIndex::root(self);
        // Object stores have no directories.
        (!root.as_os_str().is_empty() && !is_url(root)).then(|| root.to_owned())
    }
}

/// Some samples of a dataset, in an order of their own.
pub struct Selection {
    base: Arc<dyn Dataset>,
    samples: Vec<u64>,
}

impl Selection {
    /// Selects samples; each has to exist.
    pub fn new(base: Arc<dyn Dataset>, samples: Vec<u64>) -> Result<Self> {
        match samples.iter().find(|&&sample| sample >= base.len()) {
            Some(sample) => Err(Error::config(format!("subset: expected indices below {}, got {sample}", base.len()))),
            None => Ok(Self { base, samples }),
        }
    }

    fn base_of(&self, sample: SampleId) -> SampleId {
        SampleId(self.samples[sample.0 as usize])
    }
}

impl Dataset for Selection {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn field_count(&self) -> u32 {
        self.base.field_count()
    }

    fn fields_by_part(&self) -> Vec<u32> {
        self.base.fields_by_part()
    }

    fn part_of(&self, sample: SampleId) -> u32 {
        self.base.part_of(self.base_of(sample))
    }

    fn field_count_of(&self, sample: SampleId) -> u32 {
        self.base.field_count_of(self.base_of(sample))
    }

    fn outline(&self, sample: SampleId) -> Option<Vec<u8>> {
        self.base.outline(self.base_of(sample))
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        self.base.locate(self.base_of(sample), field, locator);
    }

    fn is_unpacked(&self, sample: SampleId) -> bool {
        self.base.is_unpacked(self.base_of(sample))
    }

    fn root_of(&self, sample: SampleId) -> Option<PathBuf> {
        self.base.root_of(self.base_of(sample))
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        self.base.scalars(&samples.iter().map(|sample| self.base_of(*sample)).collect::<Vec<_>>())
    }

    fn expected(&self, sample: SampleId, field: Field) -> Option<Expected> {
        self.base.expected(self.base_of(sample), field)
    }

    fn verify(&self, sample: SampleId, field: Field, bytes: &[u8]) -> Result<()> {
        self.base.verify(self.base_of(sample), field, bytes)
    }

    fn annotation(&self, sample: SampleId, field: Field) -> Option<&[u8]> {
        self.base.annotation(self.base_of(sample), field)
    }

    fn identity(&self) -> DatasetIdentity {
        let base = self.base.identity();
        let selected = hash_words(&self.samples);
        DatasetIdentity { samples: self.len(), fingerprint: format!("{}+{selected:016x}", base.fingerprint), ..base }
    }

    fn root(&self) -> Option<PathBuf> {
        self.base.root()
    }
}

/// A dataset whose samples have columns of their own in place of its classes.
pub struct Labelled {
    base: Arc<dyn Dataset>,
    columns: Vec<ScalarColumn>,
}

impl Labelled {
    /// Gives each sample a value in each of these columns, which may be none.
    pub fn new(base: Arc<dyn Dataset>, columns: Vec<ScalarColumn>) -> Result<Self> {
        let len = base.len();
        if let Some(column) = columns.iter().find(|column| column.values.len() as u64 != len) {
            let (name, got) = (&column.name, column.values.len());
            return Err(Error::config(format!(
                "labels: expected {len} values in {name:?}, one for each sample, got {got}"
            )));
        }
        Ok(Self { base, columns })
    }
}

impl Dataset for Labelled {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn field_count(&self) -> u32 {
        self.base.field_count()
    }

    fn fields_by_part(&self) -> Vec<u32> {
        self.base.fields_by_part()
    }

    fn part_of(&self, sample: SampleId) -> u32 {
        self.base.part_of(sample)
    }

    fn field_count_of(&self, sample: SampleId) -> u32 {
        self.base.field_count_of(sample)
    }

    fn outline(&self, sample: SampleId) -> Option<Vec<u8>> {
        self.base.outline(sample)
    }

    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        self.base.locate(sample, field, locator);
    }

    fn is_unpacked(&self, sample: SampleId) -> bool {
        self.base.is_unpacked(sample)
    }

    fn root_of(&self, sample: SampleId) -> Option<PathBuf> {
        self.base.root_of(sample)
    }

    fn blocks(&self) -> Option<Blocks> {
        self.base.blocks()
    }

    fn scalars(&self, samples: &[SampleId]) -> Vec<ScalarColumn> {
        let select = |column: &ScalarColumn| ScalarColumn {
            name: Arc::clone(&column.name),
            values: column.values.select(samples.iter().map(|sample| sample.0 as usize)),
        };
        self.columns.iter().map(select).collect()
    }

    fn expected(&self, sample: SampleId, field: Field) -> Option<Expected> {
        self.base.expected(sample, field)
    }

    fn verify(&self, sample: SampleId, field: Field, bytes: &[u8]) -> Result<()> {
        self.base.verify(sample, field, bytes)
    }

    fn annotation(&self, sample: SampleId, field: Field) -> Option<&[u8]> {
        self.base.annotation(sample, field)
    }

    fn identity(&self) -> DatasetIdentity {
        let base = self.base.identity();
        let columns: Vec<_> = self.columns.iter().map(ScalarColumn::fingerprint).collect();
        DatasetIdentity { fingerprint: format!("{}={:016x}", base.fingerprint, hash_words(&columns)), ..base }
    }

    fn root(&self) -> Option<PathBuf> {
        self.base.root()
    }
}

/// A user's own way from a path to a sample, instead of reading and decoding its bytes.
pub trait Open: Send + Sync {
    /// Makes the sample.
    fn open(&self, path: &Path) -> Result<Value>;
}

/// The recipe of samples that a user opens: their transforms.
pub struct Opened {
    open: Arc<dyn Open>,
    transforms: Arc<Pipeline>,
}

impl Opened {
    /// Opens samples by `open`, and applies `transforms`.
    pub fn new(open: Arc<dyn Open>, transforms: Arc<Pipeline>) -> Self {
        Self { open, transforms }
    }
}

impl Recipe for Opened {
    fn schema(&self) -> Vec<ColumnSpec> {
        self.transforms.schema()
    }

    fn reads_bytes(&self) -> bool {
        false
    }

    fn layout(&self) -> Option<&Dense> {
        Recipe::layout(&*self.transforms)
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(0) // not known before it is opened
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let Sample { path, rng, scratch, slot, .. } = sample;
        let started = Instant::now();
        let value = self.open.open(&path())?;
        let decode = started.elapsed();
        let value = self.transforms.transform(value, rng, scratch).map_err(|error| error.at_stage(Stage::Transform))?;
        let timing = Timing { decode, transform: started.elapsed().saturating_sub(decode) };
        match (value, slot) {
            (Value::Tensor(tensor), Some(slot)) => {
                self.place(&tensor, slot).map_err(|error| error.at_stage(Stage::Assemble))?;
                Ok((None, timing))
            }
            (value, _) => Ok((Some(value), timing)),
        }
    }

    fn fails_always(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> bool {
        false // the bytes are the user's, and so is the verdict
    }

    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        self.transforms.output().layout(made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        self.transforms.place(tensor, slot)
    }
}

/// What a loader loads.
#[derive(Clone)]
pub struct Source {
    /// The samples.
    pub dataset: Arc<dyn Dataset>,
    /// Where their bytes are.
    pub store: Arc<dyn Store>,
    /// What to make of them.
    pub recipe: Arc<dyn Recipe>,
}

impl Source {
    /// What to make of a sample: the recipe of the dataset that it comes from.
    pub fn recipe_of(&self, sample: SampleId) -> &dyn Recipe {
        match self.recipe.parts() {
            None => &*self.recipe,
            Some(parts) => &*parts[self.dataset.part_of(sample) as usize],
        }
    }

    /// All recipes, one for each dataset that samples come from.
    pub(crate) fn recipes(&self) -> &[Arc<dyn Recipe>] {
        self.recipe.parts().unwrap_or(std::slice::from_ref(&self.recipe))
    }

    /// Where the samples' bytes come from.
    pub fn storage(&self) -> Storage {
        let first = (!self.dataset.is_empty()).then(|| self.dataset.path(SampleId(0)));
        let mount = first.and_then(|path| Mount::behind(&path));
        Storage {
            mount,
            readers: self.store.readers(),
            traffic: self.store.traffic(),
            cache: self.store.cache(),
            repairs: self.store.repairs(),
        }
    }

    /// A folder with one directory per class: of this machine, scanned and read in other processes where its mount can
    /// hang; or of an object store, by its URL.
    pub fn image_folder(root: &Path, pipeline: Pipeline) -> Result<Self> {
        let max_io_threads = Defaults::on(None, 1).max_io_threads; // whatever the loader's settings will be
        let config = Config { max_io_threads, ..Config::default() };
        let (store, root) = open_store(root, &StorageOptions::default(), &config)?;
        let index = scan_folder(&store, &root, &ScanOptions::images(), None)?;
        Ok(Self::new(Arc::new(index), store, pipeline))
    }

    /// Samples whose bytes a store reads, and what a recipe makes of them.
    pub fn new(dataset: Arc<dyn Dataset>, store: Arc<dyn Store>, recipe: impl Recipe + 'static) -> Self {
        Self { dataset, store, recipe: Arc::new(recipe) }
    }

    /// One sample in the calling thread, without a loader: no retry, no substitute, no budget.
    pub fn load(&self, sample: SampleId, seed: u64, epoch: Epoch) -> Result<Value> {
        let recipe = self.recipe_of(sample);
        let load = || {
            let objects = self.read_fields(sample)?;
            let (rng, scratch) = (&Rng::for_sample(seed, epoch, sample), &mut Scratch::default());
            let outline = self.dataset.outline(sample);
            let mut bytes = objects.bytes();
            for (field, bytes) in (0..).map(Field).zip(&bytes) {
                let verified = self.dataset.verify(sample, field, bytes);
                verified.map_err(|error| error.at_stage(Stage::Decode).at_field(field))?;
            }
            bytes.extend(outline.as_deref());
            let (fields, path) = (Fields(&bytes), &|| self.dataset.path(sample));
            let made = recipe.make(Sample { fields, path, rng, scratch, slot: None });
            let (value, _) = made.map_err(|error| error.at_stage(Stage::Decode))?;
            value.ok_or_else(|| Error::internal("a recipe without a place in a batch made no value"))
        };
        load().map_err(|error: Error| {
            let path = self.dataset.name(sample, error.field());
            error.at_path(&path).at_index(sample.0).after(1, Duration::ZERO)
        })
    }

    /// Reads all fields of a sample in the calling thread.
    fn read_fields(&self, sample: SampleId) -> Result<Objects> {
        let (recipe, mut locator, mut objects) = (self.recipe_of(sample), Locator::default(), Objects::default());
        let count = if recipe.reads_bytes() { self.dataset.field_count_of(sample) } else { 0 };
        let mut runs = Runs::of(self, sample, count, u64::MAX);
        let mut first = Field(0);
        while first.0 < count {
            self.dataset.locate(sample, first, &mut locator);
            let run = runs.from(first, &locator);
            let mut is_checked = !run.is_single();
            let allot = &mut |size| {
                // What a store asks for beyond that is for its own work.
                if !std::mem::replace(&mut is_checked, true) {
                    check_size(recipe, size)?;
                }
                Ok(Vec::new())
            };
            let request = run.request(&locator, Retry::default().deadline);
            let object = match read_located(&*self.store, &*self.dataset, (sample, first), &request, allot) {
                Ok(object) => object,
                Err(error) if run.is_about_one(&error) => {
                    runs = runs.apart();
                    continue;
                }
                Err(error) => return Err(error.at_field(first)),
            };
            if run.is_single() {
                check_size(recipe, object.bytes.len() as u64).map_err(|error| error.at_field(first))?;
                objects.push(object);
            } else {
                objects.push_parts(object, run.parts()).map_err(|error| error.at_field(first))?;
            }
            first = Field(run.fields().end);
        }
        Ok(objects)
    }
}

/// Says `auto`, `always` or `never` for every store of the process, whatever its settings say.
const ISOLATE_VARIABLE: &str = "FOREBAY_ISOLATE";

/// The store that a URL names, and the root that its paths begin with: without options, user or password.
pub fn open_remote(root: &Path, options: &StorageOptions) -> Result<(Arc<dyn Store>, PathBuf)> {
    let (store, root) = Remote::open(root, options)?;
    Ok((Arc::new(store), root))
}

/// What kind of storage a store reads from below `root`; `None` where the system does not tell.
pub fn kind_of(store: &dyn Store, root: &Path) -> Option<MountKind> {
    match store.capabilities().is_remote {
        true => Some(MountKind::Remote),
        false => Mount::behind(root).map(|mount| mount.kind),
    }
}

/// The store that a root lies in, by its scheme, and the root that its paths begin with.
pub fn open_store(root: &Path, options: &StorageOptions, config: &Config) -> Result<(Arc<dyn Store>, PathBuf)> {
    match is_url(root) {
        true => open_remote(root, options),
        // It outlives its use (a dataset keeps the store that it was scanned with), so it keeps nothing open.
        false => Ok((files_below(root, config, Arc::new(Local))?, root.to_owned())),
    }
}

/// What the environment says of isolation, or the settings.
fn isolation(config: &Config) -> Result<Isolate> {
    match std::env::var(ISOLATE_VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map_err(|error: Error| {
            Error::config(format!("{ISOLATE_VARIABLE} in the environment: {}", error.message()))
        }),
        _ => Ok(config.isolate),
    }
}

/// Fails unless a loader with these settings may read files below `root` through mappings.
pub fn check_mapped(root: &Path, config: &Config) -> Result<()> {
    if isolation(config)? == Isolate::Always {
        return Err(Error::config("mmap: expected files that this process reads, got isolate=\"always\"")
            .with_hint("leave `mmap` out, or `isolate`: other processes read by pread"));
    }
    // Something else may have been mounted there since the dataset was made.
    Mapped::check([root.to_owned()])
}

/// The store for a loader of files below `root`: in this process, or in others that answer in time. It may keep descriptors,
/// until its [`Store::rest`].
pub fn store_for(root: &Path, config: &Config) -> Result<Arc<dyn Store>> {
    match is_url(root) {
        true => open_remote(root, &StorageOptions::default()).map(|(store, _)| store),
        false => files_below(root, config, Arc::new(KeptFiles::default())),
    }
}

/// Files below `root`: by `own` in this process, or in others that answer in time.
fn files_below(root: &Path, config: &Config, own: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
    let is_isolated = match isolation(config)? {
        Isolate::Always => true,
        Isolate::Never => false,
        // Where the system does not tell, there is no reason to expect the worst.
        Isolate::Auto => Mount::behind(root).is_some_and(|mount| mount.kind.can_hang()),
    };
    if !is_isolated {
        return Ok(own);
    }
    let isolated = Capabilities { is_isolated: true, ..Capabilities::default() };
    let max_readers = max_reads(config.io_threads.max(config.max_io_threads), isolated);
    let store = Isolated::new(max_readers, config.retry.deadline).with_max_lost_readers(config.max_lost_threads);
    Ok(Arc::new(store))
}

/// Reads at a time that the descriptors of this process allow. A reader process takes two, and one more to start; a cache
/// takes three while it keeps something.
pub(crate) fn max_reads(wanted: usize, store: Capabilities) -> usize {
    /// Left to the rest of the process.
    const RESERVED: u64 = 24;
    let each = if store.is_isolated { 3 } else { 1 } + if store.is_cached { 3 } else { 0 };
    let possible = (machine::max_open_files().saturating_sub(RESERVED) / each).max(1);
    wanted.min(possible.try_into().unwrap_or(usize::MAX))
}

/// Where the samples' bytes come from.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The mount of the first sample, links followed; `None` where the system does not tell.
    pub mount: Option<Mount>,
    /// The reader processes; `None` when this process reads by itself.
    pub readers: Option<Readers>,
    /// What went over the network; `None` when the files are of this machine or its mounts.
    pub traffic: Option<Traffic>,
    /// What the cache did; `None` when there is none.
    pub cache: Option<CacheStats>,
    /// What was repaired by parity; `None` where no file has any.
    pub repairs: Option<Repairs>,
}
