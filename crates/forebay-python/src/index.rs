//! The scanned samples of a folder, or a selection of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Cache, CacheOptions, Cached, Config, Dataset, FolderIndex, Keeps, SampleId, ScanOptions, Selection, StorageOptions,
    Store, is_url, open_remote, store_for,
};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use crate::errors::{Raised, convert};
use crate::watched::watched;

/// Names and values of a store's options.
type Options = Option<BTreeMap<String, String>>;

/// What a dataset keeps its files in.
#[derive(Clone)]
#[pyclass(frozen, module = "forebay._forebay", name = "Cache")]
pub(crate) struct Keeping {
    cache: Arc<Cache>,
    revalidates: bool,
}

#[pymethods]
impl Keeping {
    /// A directory, what it may hold, and whether the storage is asked before each read.
    #[new]
    fn new(py: Python<'_>, directory: PathBuf, limit_bytes: Option<u64>, revalidates: bool) -> PyResult<Self> {
        let options = CacheOptions { limit_bytes, ..CacheOptions::default() };
        // On a mount that hangs only a signal ends the wait.
        let opened = watched(py, "forebay-open", move || Cache::open(&directory, options))?;
        Ok(Self { cache: convert(py, opened)?, revalidates })
    }
}

/// Samples with path and label.
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
    pub(crate) fn root(&self) -> &Path {
        self.folder.root()
    }

    /// A store of its files, with its cache in front of it if it has one.
    pub(crate) fn cached(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match &self.keeping {
            Some(Keeping { cache, revalidates }) => {
                Arc::new(Cached::new(store, Arc::clone(cache)).revalidating(*revalidates))
            }
            None => store,
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

    fn label(&self, index: u64) -> PyResult<i64> {
        Ok(self.dataset.label(self.sample(index)?))
    }

    fn paths(&self) -> Vec<OsString> {
        (0..self.dataset.len()).map(|index| self.dataset.path(SampleId(index)).into_os_string()).collect()
    }

    fn labels(&self) -> Vec<i64> {
        (0..self.dataset.len()).map(|index| self.dataset.label(SampleId(index))).collect()
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
        let (store, keeping) = (Arc::clone(&self.store), self.keeping.clone());
        let (folder, written) = (Arc::clone(&self.folder), self.written.clone());
        Ok(Self { folder, dataset: Arc::new(selection), store, keeping, written })
    }
}

/// Directories at a time where other processes list them.
const MAX_READERS: usize = 8;

/// What lists a folder before there are settings, and its root.
fn scanning_store(py: Python<'_>, root: PathBuf, options: Options) -> PyResult<(Arc<dyn Store>, PathBuf)> {
    if is_url(&root) {
        let options = StorageOptions::new(options.unwrap_or_default());
        let opened = py.detach(|| open_remote(&root, &options));
        return convert(py, opened);
    }
    let store = py.detach(|| store_for(&root, &Config { io_threads: MAX_READERS, ..Config::default() }));
    Ok((convert(py, store)?, root))
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
    let options = ScanOptions { extensions, allow_empty, classes };
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
    let folder = Arc::new(convert(py, scanned)?);
    Ok(Index { dataset: Arc::clone(&folder) as Arc<dyn Dataset>, folder, store, keeping: None, written: None })
}

/// Opens a manifest. `root` overrides where its samples are; `with_checksums` is for those that have to be verified.
#[pyfunction]
pub(crate) fn open_manifest(
    py: Python<'_>,
    path: PathBuf,
    root: Option<PathBuf>,
    storage_options: Options,
    with_checksums: bool,
) -> PyResult<Index> {
    let options = StorageOptions::new(storage_options.unwrap_or_default());
    let keeps = if with_checksums { Keeps::Checksums } else { Keeps::Names };
    let config = Config { io_threads: MAX_READERS, ..Config::default() };
    // On a mount that hangs only a signal ends the wait.
    let opened =
        watched(py, "forebay-open", move || forebay::open_manifest(&path, root.as_deref(), &options, &config, keeps))?;
    let (manifest, store) = convert(py, opened)?;
    let written = (manifest.columns, manifest.written_by, manifest.recorded_root.map(PathBuf::into_os_string));
    let folder = Arc::new(manifest.index);
    Ok(Index { dataset: Arc::clone(&folder) as Arc<dyn Dataset>, folder, store, keeping: None, written: Some(written) })
}

/// The directories below a root, sorted, and notes about other names beside them.
#[pyfunction]
pub(crate) fn find_classes(py: Python<'_>, root: PathBuf, storage_options: Options) -> PyResult<(Vec<String>, Notes)> {
    let (store, root) = scanning_store(py, root, storage_options)?;
    let found = py.detach(|| forebay::find_classes(&store, &root));
    let (classes, notes) = convert(py, found)?;
    Ok((classes, notes.into_iter().map(|note| (note.path.into_os_string(), note.message)).collect()))
}
