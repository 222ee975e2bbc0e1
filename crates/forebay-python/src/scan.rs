//! Finding samples: listing folders and URLs, opening manifests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Config, FolderIndex, Keeps, Labelled, Labels, ScanOptions, StorageOptions, Store, is_url, open_store};
use pyo3::prelude::*;

use crate::errors::{Raised, convert};
use crate::index::Index;
use crate::watched::watched;

/// Names and values of a store's options.
pub(crate) type Options = Option<BTreeMap<String, String>>;

/// Directories listed concurrently by reader processes.
const MAX_READERS: usize = 8;

/// The store that lists a folder before there are settings, and its root.
pub(crate) fn scanning_store(py: Python<'_>, root: PathBuf, options: Options) -> PyResult<(Arc<dyn Store>, PathBuf)> {
    let options = StorageOptions::new(options.unwrap_or_default());
    let config = Config { io_threads: MAX_READERS, ..Config::default() };
    let opened = py.detach(|| open_store(&root, &options, &config));
    convert(py, opened)
}

/// Path and message.
pub(crate) type Notes = Vec<(OsString, String)>;

/// The root of a URL as it appears in paths, and its options including those in the URL.
#[pyfunction]
pub(crate) fn split_url(
    py: Python<'_>,
    root: PathBuf,
    options: BTreeMap<String, String>,
) -> PyResult<(OsString, BTreeMap<String, String>)> {
    let (root, options) = convert(py, forebay::split_url(&root, &StorageOptions::new(options)))?;
    Ok((root.into_os_string(), options.into_iter().collect()))
}

/// Warnings about servers since the last call.
#[pyfunction]
pub(crate) fn take_warnings() -> Vec<String> {
    forebay::take_warnings()
}

/// Scans a folder. `accept` is the user's test of a path, in place of the endings.
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
                forebay::Error::config("failed in is_valid_file").at_path(path).with_source(Raised(raised))
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

/// Individually named files: local paths, or URLs of one store.
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
        return convert(py, Err(forebay::Error::config(message).with_hint("pass them in storage_options")));
    }
    Ok(Index::of(folder, store))
}

/// Opens a manifest. `root` overrides the location of its samples; `with_checksums` keeps checksums for verification;
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
    // If the mount hangs, only a signal ends the wait.
    let opened = watched(py, "forebay-open", move || {
        forebay::open_manifest(&path, root.as_deref(), &options, &config, keeps, &labels)
    })?;
    let (manifest, store) = convert(py, opened)?;
    let written = (manifest.columns, manifest.written_by, manifest.recorded_root.map(PathBuf::into_os_string));
    let index = Index::of(manifest.index, store).written_as(written);
    if manifest.labels.is_empty() {
        return Ok(index);
    }
    let labelled = convert(py, Labelled::new(Arc::clone(&index.dataset), manifest.labels))?;
    Ok(index.with_dataset(Arc::new(labelled)))
}

/// The directories below a root, sorted, and notes about other names in it.
#[pyfunction]
pub(crate) fn find_classes(py: Python<'_>, root: PathBuf, storage_options: Options) -> PyResult<(Vec<String>, Notes)> {
    let (store, root) = scanning_store(py, root, storage_options)?;
    let found = py.detach(|| forebay::find_classes(&store, &root));
    let (classes, notes) = convert(py, found)?;
    Ok((classes, notes.into_iter().map(|note| (note.path.into_os_string(), note.message)).collect()))
}
