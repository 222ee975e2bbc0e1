//! The loader: options in, runs out, and queries about its state.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Config, Defaults, Epoch, FailureLimit, Hedge, Isolate, Loader, MountKind, Rank, Retry, Routed, Source, StageStats,
    State, Step, Storage, Store, WorldSize, check_mapped, farthest, kind_of, machine, rots, store_for,
};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};

use crate::errors::{convert, to_python};
use crate::hint;
use crate::index::{Index, values};
use crate::journal::{Limit, book_rows, failure_rows};
use crate::place::Place;
use crate::recipe::Recipe;
use crate::run::Run;
use crate::sampling::Sampling;
use crate::watched::watched;

/// The source of samples, from its Python parts.
pub(crate) fn source(index: &Index, store: Arc<dyn Store>, recipe: &Recipe) -> Source {
    Source { dataset: Arc::clone(&index.dataset), store: index.unpacked(store), recipe: Arc::clone(&recipe.native) }
}

/// The store that a loader reads from.
fn store(places: &[Place], config: &Config) -> forebay::Result<Arc<dyn Store>> {
    let mut stores: Vec<(PathBuf, Arc<dyn Store>)> = Vec::with_capacity(places.len());
    // Reader processes are shared, and so is what reads in this one.
    let mut local: Vec<Arc<dyn Store>> = Vec::new();
    for place in places {
        let store = if kind_of(&*place.store, &place.root) == Some(MountKind::Remote) {
            // The scan's store has the right options and open connections.
            Arc::clone(&place.store)
        } else if place.is_mapped {
            check_mapped(&place.root, config)?;
            Arc::clone(&place.store)
        } else {
            let opened = store_for(&place.root, config)?;
            let known = local.iter().find(|known| known.capabilities() == opened.capabilities()).map(Arc::clone);
            known.unwrap_or_else(|| {
                local.push(Arc::clone(&opened));
                opened
            })
        };
        stores.push((place.root.clone(), place.cached(store)));
    }
    let is_one = |pair: &[(PathBuf, Arc<dyn Store>)]| Arc::ptr_eq(&pair[0].1, &pair[1].1);
    match stores.first() {
        Some((_, first)) if stores.windows(2).all(is_one) => Ok(Arc::clone(first)),
        _ => Ok(Arc::new(Routed::new(stores)?)),
    }
}

/// A loader.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Engine {
    loader: Mutex<Option<Arc<Loader>>>,
    /// Shared with the loader; the garbage collector reaches the user's callables through it.
    recipe: Py<Recipe>,
    /// The store used for scanning the dataset, which has its own reader processes.
    scanned_with: Arc<dyn Store>,
}

impl Engine {
    fn loader(&self) -> PyResult<Arc<Loader>> {
        let loader = self.loader.lock().clone();
        loader.ok_or_else(|| {
            let error =
                forebay::Error::new(forebay::Kind::Stopped, "the loader is closed: the interpreter is shutting down");
            Python::attach(|py| to_python(py, &error))
        })
    }
}

fn options(given: &Bound<'_, PyDict>, kind: Option<MountKind>) -> PyResult<Config> {
    fn get<'py, T: for<'a> FromPyObject<'a, 'py>>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
        let value = given.get_item(name)?.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(name.to_owned()))?;
        value.extract::<T>().map_err(|error| {
            let error: PyErr = error.into();
            pyo3::exceptions::PyTypeError::new_err(format!("{name}: {error}"))
        })
    }
    let max_failures = get::<Option<Limit>>(given, "max_failures")?.map(FailureLimit::from);
    let cpu_threads = get(given, "cpu_threads")?;
    let defaults = Defaults::on(kind, cpu_threads);
    let io_threads: Option<usize> = get(given, "io_threads")?;
    let hedge = match get::<Option<Bound<'_, PyAny>>>(given, "hedge")? {
        None => None,
        Some(hedge) => Some(match hedge.extract::<f64>() {
            Ok(wait) => Hedge::After(seconds("hedge", wait)?),
            Err(_) => get::<String>(given, "hedge")?.parse().map_err(|error| to_python(given.py(), &error))?,
        }),
    };
    let retry = Retry {
        retries: get::<Option<u32>>(given, "retries")?.unwrap_or(defaults.retry.retries),
        deadline: match get(given, "deadline_seconds")? {
            Some(deadline) => seconds("deadline_seconds", deadline)?,
            None => defaults.retry.deadline,
        },
        ..defaults.retry
    };
    let on_error: String = get(given, "on_error")?;
    Ok(Config {
        batch_size: get(given, "batch_size")?,
        shuffle: get(given, "shuffle")?,
        shuffle_window: get(given, "shuffle_window")?,
        drop_last: get(given, "drop_last")?,
        seed: get(given, "seed")?,
        rank: Rank(get(given, "rank")?),
        world_size: WorldSize(get(given, "world_size")?),
        cpu_threads,
        io_threads: io_threads.unwrap_or(defaults.io_threads),
        max_io_threads: io_threads.unwrap_or(defaults.max_io_threads),
        prefetch_batches: get(given, "prefetch_batches")?,
        prefetch_shrinks: get(given, "prefetch_shrinks")?,
        memory_budget: get::<Option<u64>>(given, "memory_budget")?
            .unwrap_or_else(|| machine::available_memory_bytes() / 4),
        max_sample_bytes: get(given, "max_sample_bytes")?,
        on_error: on_error.parse().map_err(|error| to_python(given.py(), &error))?,
        max_failures,
        isolate: get::<String>(given, "isolate")?.parse::<Isolate>().map_err(|error| to_python(given.py(), &error))?,
        hedge,
        max_lost_threads: get(given, "max_lost_threads")?,
        retry,
        ledger: get::<Option<PathBuf>>(given, "ledger")?,
        sampling: get::<Option<Py<Sampling>>>(given, "sampling")?.map(|sampling| sampling.get().native.clone()),
        wording: hint::argument,
        ..Config::default()
    })
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("{name}: {error}")))
}

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, index: &Index, recipe: Py<Recipe>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let kind_of = |place: &Place| kind_of(&*place.store, &place.root);
        let kind = py.detach(|| farthest(index.places.iter().map(kind_of)));
        let decoded_cache_bytes = index.decoded_cache_bytes();
        let config = Config { decoded_cache_bytes, ..self::options(options, kind)? };
        let store = convert(py, py.detach(|| store(&index.places, &config)))?;
        let source = source(index, store, recipe.get());
        // Opens the ledger, which may be on a mount that hangs.
        let loader = match config.ledger {
            Some(_) => watched(py, "forebay-open", move || Loader::new(source, config))?,
            None => py.detach(|| Loader::new(source, config)),
        };
        let scanned_with = Arc::clone(&index.store);
        Ok(Self { loader: Mutex::new(Some(Arc::new(convert(py, loader)?))), recipe, scanned_with })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.recipe)
    }

    /// The recipe clears the callables.
    fn __clear__(&self) {}

    #[getter]
    fn steps(&self) -> PyResult<u64> {
        Ok(self.loader()?.steps())
    }

    #[getter]
    fn batch_bytes(&self) -> PyResult<Option<usize>> {
        Ok(self.loader()?.batch_bytes())
    }

    #[getter]
    fn blocks_wanted(&self) -> PyResult<usize> {
        Ok(self.loader()?.blocks_wanted())
    }

    /// Lends memory for a batch. `lender` owns it, and is returned with the batch.
    ///
    /// `address` must point to `size_bytes` bytes that belong to `lender` and that nothing else uses.
    fn lend(&self, address: usize, size_bytes: usize, lender: Py<PyAny>) -> PyResult<()> {
        let start = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address))
            .ok_or_else(|| pyo3::exceptions::PyValueError::new_err("address: expected one, got 0"))?;
        // SAFETY: `_torch.lend` is the only caller: a tensor of bytes that it has just made, and keeps nowhere else.
        unsafe { self.loader()?.lend(start, size_bytes, Box::new(lender)) };
        Ok(())
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Run> {
        let loader = self.loader()?;
        let run = py.detach(|| loader.epoch());
        Ok(Run::new(convert(py, run)?))
    }

    fn begin_given(&self, py: Python<'_>) -> PyResult<Run> {
        let loader = self.loader()?;
        let run = py.detach(|| loader.given_order());
        Ok(Run::new(convert(py, run)?))
    }

    fn is_unused(&self) -> PyResult<bool> {
        Ok(self.loader()?.is_unused())
    }

    fn set_epoch(&self, epoch: u64) -> PyResult<()> {
        self.loader()?.set_epoch(Epoch(epoch));
        Ok(())
    }

    fn state(&self, py: Python<'_>) -> PyResult<String> {
        convert(py, self.loader()?.state().to_json())
    }

    #[pyo3(signature = (state, skip_from = 0, skip_to = 0))]
    fn load_state(&self, py: Python<'_>, state: &str, skip_from: u64, skip_to: u64) -> PyResult<()> {
        let loader = self.loader()?;
        let loaded = State::from_json(state).and_then(|state| loader.load_state_skipping(&state, skip_from..skip_to));
        convert(py, loaded)
    }

    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        failure_rows(py, self.loader()?.failures())
    }

    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let loader = self.loader()?;
        Ok(py.detach(|| loader.report().to_string()))
    }

    fn books<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        book_rows(py, self.loader()?.books())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let loader = self.loader()?;
        let (stats, storage) = (loader.stats(), py.detach(|| loader.source().storage()));
        let result = PyDict::new(py);
        for (name, stage) in [
            ("fetch", stats.fetch),
            ("decode", stats.decode),
            ("transform", stats.transform),
            ("assemble", stats.assemble),
            ("deliver", stats.deliver),
        ] {
            result.set_item(name, stage_stats(py, stage)?)?;
        }
        let decode = PyDict::new(py);
        decode.set_item("threads_lost", stats.decodes_lost)?;
        decode.set_item("threads_written_off", stats.decodes_written_off)?;
        result.get_item("decode")?.map(|row| row.call_method1("update", (decode,))).transpose()?;
        result.set_item("consumer_wait_seconds", stats.deliver.busy.as_secs_f64())?;
        result.set_item("bytes_read", stats.bytes_read)?;
        result.set_item("retries", stats.retries)?;
        result.set_item("hedges", stats.hedges)?;
        result.set_item("hedges_won", stats.hedges_won)?;
        let landmarks = PyDict::new(py);
        landmarks.set_item("pictures", stats.landmark_pictures)?;
        landmarks.set_item("bytes", stats.landmark_bytes)?;
        result.set_item("landmarks", landmarks)?;
        if let Some(decoded) = stats.decoded_cache {
            let row = PyDict::new(py);
            row.set_item("pictures", decoded.samples)?;
            row.set_item("bytes", decoded.bytes)?;
            row.set_item("limit_bytes", decoded.limit_bytes)?;
            row.set_item("hits", decoded.hits)?;
            row.set_item("saved_read_bytes", decoded.saved_read_bytes)?;
            row.set_item("saved_decode_seconds", decoded.saved_decode.as_secs_f64())?;
            result.set_item("decoded_cache", row)?;
        }
        result.set_item("verdict", stats.verdict.name())?;
        let order = PyDict::new(py);
        let (kind, blocks, mixed) = loader.order().described();
        order.set_item("kind", kind)?;
        order.set_item("blocks", blocks)?;
        order.set_item("mixed_share", mixed)?;
        result.set_item("order", order)?;
        result.set_item("delivered_by_part", loader.delivered_by_part())?;
        let row = storage_stats(py, &storage)?;
        let config = loader.config();
        row.set_item("retries", config.retry.retries)?;
        row.set_item("deadline_seconds", config.retry.deadline.as_secs_f64())?;
        row.set_item("concurrent_reads", stats.concurrent_reads)?;
        row.set_item("max_concurrent_reads", config.max_io_threads.max(config.io_threads))?;
        row.set_item("threads_lost", stats.lost)?;
        row.set_item("threads_written_off", stats.written_off)?;
        result.set_item("storage", row)?;
        Ok(result)
    }

    fn explain<'py>(
        &self,
        py: Python<'py>,
        step: u64,
        epoch: Option<u64>,
        world_size: Option<u32>,
        rank: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let loader = self.loader()?;
        // Reads the ledger, which may be on a mount that hangs.
        let rows = watched(py, "forebay-explain", move || {
            loader.explain(Step(step), epoch.map(Epoch), world_size.map(WorldSize), rank.map(Rank))
        })?;
        let list = PyList::empty(py);
        for row in convert(py, rows)? {
            let entry = PyDict::new(py);
            entry.set_item("position", row.position)?;
            entry.set_item("planned", row.planned.0)?;
            entry.set_item("index", row.sample.0)?;
            entry.set_item("path", row.path.into_os_string())?;
            let scalars = PyDict::new(py);
            for column in row.scalars {
                scalars.set_item(&*column.name, values(py, column.values)?.get_item(0)?)?;
            }
            entry.set_item("scalars", scalars)?;
            entry.set_item("padded", row.padded)?;
            list.append(entry)?;
        }
        Ok(list)
    }

    fn ledger_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let loader = self.loader()?;
        Ok(py.detach(|| loader.ledger_error()))
    }

    /// A warning about the cache's disk.
    fn cache_notice(&self) -> PyResult<Option<String>> {
        Ok(self.loader()?.source().store.cache_notice())
    }

    /// What is to be said of files that parity repairs: a path, and a sentence about it.
    fn repaired(&self) -> PyResult<Vec<(OsString, String)>> {
        let repairs = self.loader()?.source().store.repairs().unwrap_or_default();
        let said = |(path, blocks): (PathBuf, u64)| (path.clone().into_os_string(), rots(&path, blocks));
        Ok(repairs.files.into_iter().map(said).collect())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let loader = self.loader()?;
        py.detach(|| {
            loader.close();
            self.scanned_with.rest();
        });
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let loader = self.loader.lock().take();
        crate::run::drop_detached(loader);
    }
}

fn storage_stats<'py>(py: Python<'py>, storage: &Storage) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    let mount = storage.mount.as_ref();
    row.set_item("mount", mount.map(|mount| mount.point.as_os_str().to_owned()))?;
    row.set_item("filesystem", mount.map(|mount| &mount.filesystem))?;
    row.set_item("isolated", storage.readers.is_some())?;
    if let Some(readers) = storage.readers {
        row.set_item("readers_alive", readers.alive)?;
        row.set_item("readers_lost", readers.lost)?;
        row.set_item("readers_started", readers.started)?;
        row.set_item("readers_written_off", readers.written_off)?;
        row.set_item("readers_died", readers.died)?;
    }
    if let Some(traffic) = &storage.traffic {
        row.set_item("url", &traffic.place)?;
        row.set_item("requests", traffic.requests)?;
        row.set_item("bytes_received", traffic.bytes)?;
        row.set_item("bodies_resumed", traffic.resumed)?;
        row.set_item("throttles", traffic.throttles)?;
        row.set_item("checksum_mismatches", traffic.mismatches)?;
    }
    if let Some(cache) = &storage.cache {
        row.set_item("cache_hits", cache.hits)?;
        row.set_item("cache_misses", cache.misses)?;
        row.set_item("cache_passes", cache.passes)?;
        row.set_item("cache_evictions", cache.evictions)?;
        row.set_item("cache_corrupt", cache.corrupt)?;
        row.set_item("cache_stale", cache.stale)?;
        row.set_item("cache_bytes", cache.bytes)?;
        row.set_item("cache_limit_bytes", cache.limit_bytes)?;
    }
    let repairs = storage.repairs.as_ref();
    row.set_item("repaired", repairs.map_or(0, |repairs| repairs.reads))?;
    row.set_item("repaired_blocks", repairs.map_or(0, |repairs| repairs.blocks))?;
    Ok(row)
}

fn stage_stats(py: Python<'_>, stage: StageStats) -> PyResult<Bound<'_, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("items", stage.items)?;
    row.set_item("busy_seconds", stage.busy.as_secs_f64())?;
    row.set_item("waiting_seconds", stage.waiting.as_secs_f64())?;
    row.set_item("p50_seconds", stage.p50.as_secs_f64())?;
    row.set_item("p95_seconds", stage.p95.as_secs_f64())?;
    row.set_item("p99_seconds", stage.p99.as_secs_f64())?;
    Ok(row)
}
