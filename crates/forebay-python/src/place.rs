//! Where samples lie, and how what is read of them is kept.

use std::path::PathBuf;
use std::sync::Arc;

use forebay::{Cache, CacheOptions, Cached, MemoryCache, MemoryCached, SeekTables, Sidecars, Store, machine};
use pyo3::prelude::*;

use crate::errors::convert;
use crate::watched::watched;

/// The cache of a dataset.
#[derive(Clone)]
#[pyclass(frozen, module = "forebay._forebay", name = "Cache")]
pub(crate) struct DatasetCache(CacheKind);

#[derive(Clone)]
enum CacheKind {
    Disk {
        cache: Arc<Cache>,
        revalidates: bool,
    },
    Memory(Arc<MemoryCache>),
    /// By each loader, as its transforms leave them: up to so many bytes.
    Decoded(u64),
}

#[pymethods]
impl DatasetCache {
    /// A cache directory, its size limit, and whether the storage is asked before each read.
    #[new]
    fn new(py: Python<'_>, directory: PathBuf, limit_bytes: Option<u64>, revalidates: bool) -> PyResult<Self> {
        let options = CacheOptions { limit_bytes, ..CacheOptions::default() };
        // If the mount hangs, only a signal ends the wait.
        let opened = watched(py, "forebay-open", move || Cache::open(&directory, options))?;
        Ok(Self(CacheKind::Disk { cache: convert(py, opened)?, revalidates }))
    }

    /// An in-process cache with a size limit: by default half of the available memory.
    #[staticmethod]
    fn memory(limit_bytes: Option<u64>) -> Self {
        let limit_bytes = limit_bytes.unwrap_or_else(|| machine::available_memory_bytes() / 2);
        Self(CacheKind::Memory(Arc::new(MemoryCache::new(limit_bytes))))
    }

    /// The same for pictures as they are before the first random choice of their transforms.
    #[staticmethod]
    fn decoded(limit_bytes: Option<u64>) -> Self {
        Self(CacheKind::Decoded(limit_bytes.unwrap_or_else(|| machine::available_memory_bytes() / 2)))
    }
}

/// Where some samples lie, and how they are kept.
#[derive(Clone)]
pub(crate) struct Place {
    /// Their common directory.
    pub(crate) root: PathBuf,
    /// The store used for scanning.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keeping: Option<DatasetCache>,
    /// Of the compressed ones among its files.
    pub(crate) tables: Option<Arc<SeekTables>>,
    /// Its files are read by pages, whether those that are asked for have to be unpacked or not.
    pub(crate) has_pages: bool,
    /// The store reads its files through mappings, for loaders too.
    pub(crate) is_mapped: bool,
    /// Of those among its files that have parity.
    pub(crate) sidecars: Option<Arc<Sidecars>>,
}

impl Place {
    /// A store for its files, behind its cache if it has one.
    pub(crate) fn cached(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match &self.keeping {
            Some(DatasetCache(CacheKind::Disk { cache, revalidates })) => {
                Arc::new(Cached::new(store, Arc::clone(cache)).revalidating(*revalidates))
            }
            Some(DatasetCache(CacheKind::Memory(cache))) => Arc::new(MemoryCached::new(store, Arc::clone(cache))),
            Some(DatasetCache(CacheKind::Decoded(_))) | None => store,
        }
    }

    /// What loaders may keep of its pictures once they are decoded.
    pub(crate) fn decoded_cache_bytes(&self) -> Option<u64> {
        match self.keeping {
            Some(DatasetCache(CacheKind::Decoded(limit_bytes))) => Some(limit_bytes),
            _ => None,
        }
    }
}
