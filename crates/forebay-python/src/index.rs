//! The scanned samples of a folder, or a selection of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Cache, CacheOptions, Cached, Config, Dataset, FolderIndex, Keeps, Labelled, Labels, MemoryCache, MemoryCached,
    SampleId, ScalarColumn, Scalars, ScanOptions, Selection, StorageOptions, Store, is_url, machine, open_store,
};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::{Raised, convert};
use crate::watched::watched;

/// Names and values of a store's options.
type Options = Option<BTreeMap<String, String>>;

/// What a dataset keeps its files in.
#[derive(Clone)]
#[pyclass(frozen, module = "forebay._forebay", name = "Cache")]
pub(crate) struct Keeping(Kept);

#[derive(Clone)]
enum Kept {
    Disk {
        cache: Arc<Cache>,
        revalidates: bool,
    },
    Memory(Arc<MemoryCache>),
    /// By each loader, as its transforms leave them: up to so many bytes.
    Decoded(u64),
}

#[pymethods]
impl Keeping {
    /// A directory, what it may hold, and whether the storage is asked before each read.
    #[new]
    fn new(py: Python<'_>, directory: PathBuf, limit_bytes: Option<u64>, revalidates: bool) -> PyResult<Self> {
        let options = CacheOptions { limit_bytes, ..CacheOptions::default() };
        // On a mount that hangs only a signal ends the wait.
        let opened = watched(py, "forebay-open", move || Cache::open(&directory, options))?;
        Ok(Self(Kept::Disk { cache: convert(py, opened)?, revalidates }))
    }

    /// The memory of this process, and what may be kept in it: by default half of what is available.
    #[staticmethod]
    fn memory(limit_bytes: Option<u64>) -> Self {
        let limit_bytes = limit_bytes.unwrap_or_else(|| machine::available_memory_bytes() / 2);
        Self(Kept::Memory(Arc::new(MemoryCache::new(limit_bytes))))
    }

    /// The same for pictures as they are before the first random choice of their transforms.
    #[staticmethod]
    fn decoded(limit_bytes: Option<u64>) -> Self {
        Self(Kept::Decoded(limit_bytes.unwrap_or_else(|| machine::available_memory_bytes() / 2)))
    }
}

/// Samples: their paths, and what is known of them without reading them.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Index {
    folder: Arc<FolderIndex>,
    pub(crate) dataset: Arc<dyn Dataset>,
    /// What it was scanned with, and what reads single samples.
    pub(crate) store: Arc<dyn Store>,
    keeping: Option<Keeping>,
    /// Of a manifest: the names of its columns, the version that wrote it, the root it was made for.
    written: Option<Written>,
}

type Written = (Vec<String>, Option<String>, Option<OsString>);

impl Index {
    /// The directory that all samples are below.
    pub(crate) fn root(&self) -> &Path {
        let root = self.folder.root();
        if root.as_os_str().is_empty() { Path::new(".") } else { root }
    }

    fn of(folder: FolderIndex, store: Arc<dyn Store>) -> Self {
        let folder = Arc::new(folder);
        Self { dataset: Arc::clone(&folder) as Arc<dyn Dataset>, folder, store, keeping: None, written: None }
    }

    /// The same with other samples of the same folder.
    fn with_dataset(&self, dataset: Arc<dyn Dataset>) -> Self {
        let (store, keeping) = (Arc::clone(&self.store), self.keeping.clone());
        let (folder, written) = (Arc::clone(&self.folder), self.written.clone());
        Self { folder, dataset, store, keeping, written }
    }

    /// A store of its files, with its cache in front of it if it has one.
    pub(crate) fn cached(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match &self.keeping {
            Some(Keeping(Kept::Disk { cache, revalidates })) => {
                Arc::new(Cached::new(store, Arc::clone(cache)).revalidating(*revalidates))
            }
            Some(Keeping(Kept::Memory(cache))) => Arc::new(MemoryCached::new(store, Arc::clone(cache))),
            Some(Keeping(Kept::Decoded(_))) | None => store,
        }
    }

    /// What loaders may keep of its pictures once they are decoded.
    pub(crate) fn decoded_cache_bytes(&self) -> Option<u64> {
        match self.keeping {
            Some(Keeping(Kept::Decoded(limit_bytes))) => Some(limit_bytes),
            _ => None,
        }
    }

    pub(crate) fn sample(&self, index: u64) -> PyResult<SampleId> {
        if index < self.dataset.len() {
            return Ok(SampleId(index));
        }
        Err(PyIndexError::new_err(format!("index: expected one below {}, got {index}", self.dataset.len())))
    }
}

#[pymethods]
impl Index {
    #[getter(root)]
    fn root_string(&self) -> OsString {
        self.folder.root().as_os_str().to_owned()
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.folder.classes().to_vec()
    }

    #[getter]
    fn class_indices(&self) -> Vec<u32> {
        self.folder.class_indices().to_vec()
    }

    /// The classes in whose folders the scan found no samples.
    #[getter]
    fn empty_classes(&self) -> Vec<String> {
        self.folder.empty_classes().to_vec()
    }

    #[getter]
    fn notes(&self) -> Notes {
        self.folder.notes().iter().map(|note| (note.path.clone().into_os_string(), note.message.clone())).collect()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.dataset.identity().fingerprint
    }

    #[getter]
    fn written(&self) -> Option<Written> {
        self.written.clone()
    }

    #[getter]
    fn has_checksums(&self) -> bool {
        self.folder.has_checksums()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.folder.memory_bytes()
    }

    fn __len__(&self) -> usize {
        self.dataset.len() as usize
    }

    fn path(&self, index: u64) -> PyResult<OsString> {
        Ok(self.dataset.path(self.sample(index)?).into_os_string())
    }

    /// What is known of a sample without reading it, by name.
    fn scalars<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyDict>> {
        let row = PyDict::new(py);
        for column in self.dataset.scalars(&[self.sample(index)?]) {
            row.set_item(&*column.name, values(py, column.values)?.get_item(0)?)?;
        }
        Ok(row)
    }

    fn paths(&self) -> Vec<OsString> {
        (0..self.dataset.len()).map(|index| self.dataset.path(SampleId(index)).into_os_string()).collect()
    }

    /// The same of all samples: a list for each name.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all: Vec<_> = (0..self.dataset.len()).map(SampleId).collect();
        let columns = PyDict::new(py);
        for column in self.dataset.scalars(&all) {
            columns.set_item(&*column.name, values(py, column.values)?)?;
        }
        Ok(columns)
    }

    /// The same samples with other columns in place of their classes; none: with nothing but their content.
    fn labelled(&self, py: Python<'_>, columns: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let columns = columns.into_iter().map(|(name, values)| Ok(ScalarColumn::new(&name, scalars(&name, &values)?)));
        let labelled = Labelled::new(Arc::clone(&self.dataset), columns.collect::<PyResult<_>>()?);
        Ok(self.with_dataset(Arc::new(convert(py, labelled)?)))
    }

    /// The same samples, kept in a cache once they were read.
    fn kept_in(&self, cache: &Keeping) -> Self {
        let (folder, dataset) = (Arc::clone(&self.folder), Arc::clone(&self.dataset));
        let (store, written) = (Arc::clone(&self.store), self.written.clone());
        let kept = Self { folder, dataset, store, keeping: Some(cache.clone()), written };
        Self { store: kept.cached(Arc::clone(&kept.store)), ..kept }
    }

    fn select(&self, py: Python<'_>, indices: Vec<u64>) -> PyResult<Self> {
        let selection = convert(py, Selection::new(Arc::clone(&self.dataset), indices))?;
        Ok(self.with_dataset(Arc::new(selection)))
    }
}

/// Directories at a time where other processes list them.
const MAX_READERS: usize = 8;

/// What lists a folder before there are settings, and its root.
fn scanning_store(py: Python<'_>, root: PathBuf, options: Options) -> PyResult<(Arc<dyn Store>, PathBuf)> {
    let options = StorageOptions::new(options.unwrap_or_default());
    let config = Config { io_threads: MAX_READERS, ..Config::default() };
    let opened = py.detach(|| open_store(&root, &options, &config));
    convert(py, opened)
}

/// Where, and what.
type Notes = Vec<(OsString, String)>;

/// The root of a URL as it stands in paths, and its options with those that the URL has.
#[pyfunction]
pub(crate) fn split_url(
    py: Python<'_>,
    root: PathBuf,
    options: BTreeMap<String, String>,
) -> PyResult<(OsString, BTreeMap<String, String>)> {
    let (root, options) = convert(py, forebay::split_url(&root, &StorageOptions::new(options)))?;
    Ok((root.into_os_string(), options.into_iter().collect()))
}

/// What users should know of the servers that are spoken to: what has come up since the last call.
#[pyfunction]
pub(crate) fn take_warnings() -> Vec<String> {
    forebay::take_warnings()
}

/// Scans a folder. `accept` is the user's own test of a path, instead of the endings.
#[pyfunction]
pub(crate) fn scan(
    py: Python<'_>,
    root: PathBuf,
    extensions: Vec<String>,
    allow_empty: bool,
    classes: Option<Vec<(String, u32)>>,
    accept: Option<Py<PyAny>>,
    storage_options: Options,
) -> PyResult<Index> {
    let options = ScanOptions { extensions, allow_empty, classes, is_flat: false };
    let mut call = accept.map(|accept| {
        move |path: &Path| {
            Python::attach(|py| accept.bind(py).call1((path.as_os_str(),))?.is_truthy()).map_err(|raised| {
                forebay::Error::config("broke is_valid_file").at_path(path).with_source(Raised(raised))
            })
        }
    });
    let (store, root) = scanning_store(py, root, storage_options)?;
    let scanned = py.detach(|| match &mut call {
        Some(call) => forebay::scan_folder(&store, &root, &options, Some(call)),
        None => forebay::scan_folder(&store, &root, &options, None),
    });
    Ok(Index::of(convert(py, scanned)?, store))
}

/// All files below a root that have one of the endings, at any depth and without classes.
#[pyfunction]
pub(crate) fn scan_files(
    py: Python<'_>,
    root: PathBuf,
    extensions: Vec<String>,
    allow_empty: bool,
    storage_options: Options,
) -> PyResult<Index> {
    let options = ScanOptions { extensions, allow_empty, classes: None, is_flat: true };
    let (store, root) = scanning_store(py, root, storage_options)?;
    let scanned = py.detach(|| forebay::scan_folder(&store, &root, &options, None));
    Ok(Index::of(convert(py, scanned)?, store))
}

/// Files that are named one by one: paths of this machine, or URLs of one store.
#[pyfunction]
pub(crate) fn list_files(py: Python<'_>, paths: Vec<PathBuf>, storage_options: Options) -> PyResult<Index> {
    let folder = convert(py, FolderIndex::of_paths(paths.iter().map(PathBuf::as_path)))?;
    if paths.iter().any(|path| is_url(path)) && !is_url(folder.root()) {
        let message = "paths: expected URLs of one server or bucket, got several, or paths among them";
        return convert(py, Err(forebay::Error::config(message)));
    }
    let root = if folder.root().as_os_str().is_empty() { Path::new(".") } else { folder.root() };
    let (store, plain) = scanning_store(py, root.to_owned(), storage_options)?;
    if plain != root {
        let message = "paths: expected URLs without options in them, got some";
        return convert(py, Err(forebay::Error::config(message).with_hint("give them in storage_options")));
    }
    Ok(Index::of(folder, store))
}

/// Values of a column as Python's own.
pub(crate) fn values(py: Python<'_>, values: Scalars) -> PyResult<Bound<'_, PyList>> {
    match values {
        Scalars::Bool(values) => PyList::new(py, values),
        Scalars::I64(values) => PyList::new(py, values),
        Scalars::F64(values) => PyList::new(py, values),
        Scalars::Text(values) => PyList::new(py, values),
    }
}

/// Python's values of a column, all of one type.
fn scalars(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Scalars> {
    if let Ok(values) = given.extract() {
        return Ok(Scalars::Bool(values));
    }
    if let Ok(values) = given.extract() {
        return Ok(Scalars::I64(values));
    }
    if let Ok(values) = given.extract() {
        return Ok(Scalars::F64(values));
    }
    let values = given.extract().map(Scalars::Text);
    values.map_err(|_| {
        let message = format!("labels: expected numbers, texts or truth values in {name:?}, all of one type");
        pyo3::exceptions::PyTypeError::new_err(message)
    })
}

/// Opens a manifest. `root` overrides where its samples are; `with_checksums` is for those that have to be verified;
/// `labels` are columns in place of the classes.
#[pyfunction]
pub(crate) fn open_manifest(
    py: Python<'_>,
    path: PathBuf,
    root: Option<PathBuf>,
    storage_options: Options,
    with_checksums: bool,
    labels: Option<Vec<String>>,
) -> PyResult<Index> {
    let labels = labels.map_or(Labels::Class, Labels::Columns);
    let options = StorageOptions::new(storage_options.unwrap_or_default());
    let keeps = if with_checksums { Keeps::Checksums } else { Keeps::Names };
    let config = Config { io_threads: MAX_READERS, ..Config::default() };
    // On a mount that hangs only a signal ends the wait.
    let opened = watched(py, "forebay-open", move || {
        forebay::open_manifest(&path, root.as_deref(), &options, &config, keeps, &labels)
    })?;
    let (manifest, store) = convert(py, opened)?;
    let written = (manifest.columns, manifest.written_by, manifest.recorded_root.map(PathBuf::into_os_string));
    let index = Index { written: Some(written), ..Index::of(manifest.index, store) };
    if manifest.labels.is_empty() {
        return Ok(index);
    }
    let labelled = convert(py, Labelled::new(Arc::clone(&index.dataset), manifest.labels))?;
    Ok(index.with_dataset(Arc::new(labelled)))
}

/// The directories below a root, sorted, and notes about other names beside them.
#[pyfunction]
pub(crate) fn find_classes(py: Python<'_>, root: PathBuf, storage_options: Options) -> PyResult<(Vec<String>, Notes)> {
    let (store, root) = scanning_store(py, root, storage_options)?;
    let found = py.detach(|| forebay::find_classes(&store, &root));
    let (classes, notes) = convert(py, found)?;
    Ok((classes, notes.into_iter().map(|note| (note.path.into_os_string(), note.message)).collect()))
}
