//! What a loader loads: which samples, where their bytes are, what to make of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{
    Config, DatasetIdentity, Epoch, Error, Expected, Isolate, Kind, Result, Retry, Rng, SampleId, Stage, hash_words,
};
use forebay_decode::{Dense, Layout, Made, Pipeline, Recipe, Sample, Scratch, Tensor, Timing, Value};
use forebay_format::{FolderIndex, ScanOptions};
use forebay_store::{
    CacheStats, Isolated, Local, Mount, MountKind, Readers, Remote, Stat, StorageOptions, Store, Traffic, is_url,
    machine,
};

use crate::defaults::Defaults;
use crate::scan::scan_folder;

/// Samples with a path and a label.
pub trait Dataset: Send + Sync {
    /// How many there are.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Where one's bytes are.
    fn path(&self, sample: SampleId) -> PathBuf;
    /// The same in place of what `path` was, whose memory may be used again.
    fn write_path(&self, sample: SampleId, path: &mut PathBuf) {
        *path = self.path(sample);
    }
    /// Its label.
    fn label(&self, sample: SampleId) -> i64;
    /// What its object has to be, where that was written down.
    fn expected(&self, _sample: SampleId) -> Option<Expected> {
        None
    }
    /// Whether these bytes are the ones that were written down, where that is asked for.
    fn verify(&self, _sample: SampleId, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
    /// What a resume state is bound to.
    fn identity(&self) -> DatasetIdentity;
    /// The directory that all samples are below, where there is one.
    fn root(&self) -> Option<PathBuf> {
        None
    }
}

/// Whether what was read of a sample is what was written down about it.
pub(crate) fn check(dataset: &dyn Dataset, sample: SampleId, stat: Stat) -> Result<()> {
    let differs = dataset.expected(sample).and_then(|expected| expected.differs(stat.size_bytes, stat.mtime_ns));
    match differs {
        Some(what) => Err(Error::new(Kind::Stale, format!("is not what the manifest describes ({what})"))),
        None => Ok(()),
    }
}

impl Dataset for FolderIndex {
    fn len(&self) -> u64 {
        FolderIndex::len(self)
    }

    fn path(&self, sample: SampleId) -> PathBuf {
        FolderIndex::path(self, sample)
    }

    fn write_path(&self, sample: SampleId, path: &mut PathBuf) {
        FolderIndex::write_path(self, sample, path);
    }

    fn label(&self, sample: SampleId) -> i64 {
        FolderIndex::label(self, sample)
    }

    fn expected(&self, sample: SampleId) -> Option<Expected> {
        FolderIndex::expected(self, sample)
    }

    fn verify(&self, sample: SampleId, bytes: &[u8]) -> Result<()> {
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

    fn path(&self, sample: SampleId) -> PathBuf {
        self.base.path(self.base_of(sample))
    }

    fn write_path(&self, sample: SampleId, path: &mut PathBuf) {
        self.base.write_path(self.base_of(sample), path);
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.base.label(self.base_of(sample))
    }

    fn expected(&self, sample: SampleId) -> Option<Expected> {
        self.base.expected(self.base_of(sample))
    }

    fn verify(&self, sample: SampleId, bytes: &[u8]) -> Result<()> {
        self.base.verify(self.base_of(sample), bytes)
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
    /// Opens samples by `open`, and goes on with `transforms`.
    pub fn new(open: Arc<dyn Open>, transforms: Arc<Pipeline>) -> Self {
        Self { open, transforms }
    }
}

impl Recipe for Opened {
    fn reads_bytes(&self) -> bool {
        false
    }

    fn layout(&self) -> Option<&Dense> {
        Recipe::layout(&*self.transforms)
    }

    fn memory_bytes(&self, _bytes: &[u8], _scratch: &mut Scratch) -> Result<u64> {
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

    fn fails_always(&self, _bytes: &[u8], _scratch: &mut Scratch) -> bool {
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
    /// Where the samples' bytes come from.
    pub fn storage(&self) -> Storage {
        let first = (!self.dataset.is_empty()).then(|| self.dataset.path(SampleId(0)));
        let mount = first.and_then(|path| Mount::behind(&path));
        Storage { mount, readers: self.store.readers(), traffic: self.store.traffic(), cache: self.store.cache() }
    }

    /// A folder with one directory per class: of this machine, scanned and read in other processes where its mount can
    /// hang; or of an object store, by its URL.
    pub fn image_folder(root: &Path, pipeline: Pipeline) -> Result<Self> {
        if is_url(root) {
            let (store, root) = open_remote(root, &StorageOptions::default())?;
            let index = scan_folder(&store, &root, &ScanOptions::images(), None)?;
            return Ok(Self::new(Arc::new(index), store, pipeline));
        }
        let max_io_threads = Defaults::on(None, 1).max_io_threads; // whatever the loader's settings will be
        let store = store_for(root, &Config { max_io_threads, ..Config::default() })?;
        let index = scan_folder(&store, root, &ScanOptions::images(), None)?;
        Ok(Self::new(Arc::new(index), store, pipeline))
    }

    /// Samples whose bytes a store reads, and what a recipe makes of them.
    pub fn new(dataset: Arc<dyn Dataset>, store: Arc<dyn Store>, recipe: impl Recipe + 'static) -> Self {
        Self { dataset, store, recipe: Arc::new(recipe) }
    }

    /// One sample in the calling thread, without a loader: no retry, no substitute, no budget.
    pub fn load(&self, sample: SampleId, seed: u64, epoch: Epoch) -> Result<Value> {
        let path = self.dataset.path(sample);
        let rng = Rng::for_sample(seed, epoch, sample);
        let mut scratch = Scratch::default();
        let read = || self.store.read(&path, Retry::default().deadline, &mut |_| Ok(Vec::new()));
        let read_right = || {
            let mut object = read()?;
            if self.store.origin().is_some() && check(&*self.dataset, sample, object.stat).is_err() {
                self.store.doubt(&path);
                object = read()?;
            }
            check(&*self.dataset, sample, object.stat)?;
            self.dataset.verify(sample, &object.bytes).map_err(|error| error.at_stage(Stage::Decode))?;
            Ok(object)
        };
        let mut load = || {
            let object = if self.recipe.reads_bytes() { Some(read_right()?) } else { None };
            let bytes = object.as_ref().map_or(&[][..], |object| &object.bytes);
            let (path, rng, scratch) = (&|| path.clone(), &rng, &mut scratch);
            let (value, _) = self.recipe.make(Sample { bytes, path, rng, scratch, slot: None })?;
            value.ok_or_else(|| Error::internal("a recipe without a place in a batch made no value"))
        };
        load().map_err(|error: Error| error.at_path(&path).at_index(sample.0).after(1, Duration::ZERO))
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
    match store.traffic() {
        Some(_) => Some(MountKind::Remote),
        None => Mount::behind(root).map(|mount| mount.kind),
    }
}

/// The store for files below `root`: in this process, or in others that answer in time.
pub fn store_for(root: &Path, config: &Config) -> Result<Arc<dyn Store>> {
    if is_url(root) {
        return open_remote(root, &StorageOptions::default()).map(|(store, _)| store);
    }
    let isolate = match std::env::var(ISOLATE_VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map_err(|error: Error| {
            Error::config(format!("{ISOLATE_VARIABLE} in the environment: {}", error.message()))
        })?,
        _ => config.isolate,
    };
    let is_isolated = match isolate {
        Isolate::Always => true,
        Isolate::Never => false,
        // Where the system does not tell, there is no reason to expect the worst.
        Isolate::Auto => Mount::behind(root).is_some_and(|mount| mount.kind.can_hang()),
    };
    if !is_isolated {
        return Ok(Arc::new(Local));
    }
    let max_readers = max_reads(config.io_threads.max(config.max_io_threads), true, false);
    let store = Isolated::new(max_readers, config.retry.deadline).with_max_lost_readers(config.max_lost_threads);
    Ok(Arc::new(store))
}

/// Reads at a time that the descriptors of this process allow. A reader process takes two, and one more to start; a cache
/// takes three while it keeps something.
pub(crate) fn max_reads(wanted: usize, is_isolated: bool, is_cached: bool) -> usize {
    /// Left to the rest of the process.
    const RESERVED: u64 = 24;
    let each = if is_isolated { 3 } else { 1 } + if is_cached { 3 } else { 0 };
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
}
