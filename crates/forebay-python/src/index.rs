//! The scanned samples of a folder, or a subset of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Cache, CacheOptions, Cached, Concat, Config, Dataset, DocumentMode, Element, Field, FolderIndex, FormattedShards,
    IndexPlace, Keeps, Labelled, Labels, LineRule, Lines, Locator, Mapped, MemoryCache, MemoryCached, Note,
    RecordLayout, Records, Repairing, Routed, SampleId, ScalarColumn, Scalars, ScanOptions, SeekTables, Selection,
    Shards, Sidecars, SplitBy, StorageOptions, Store, Tail, TokenOptions, Tokens, Unpacked, csv_fields, is_packed,
    is_url, machine, open_store, split,
};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::{Raised, convert};
use crate::sampling::classes;
use crate::shards::{ShardFields, ShardFormat};
use crate::watched::watched;

/// Names and values of a store's options.
pub(crate) type Options = Option<BTreeMap<String, String>>;

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
    keeping: Option<DatasetCache>,
    /// Of the compressed ones among its files.
    tables: Option<Arc<SeekTables>>,
    /// Its files are read by pages, whether those that are asked for have to be unpacked or not.
    has_pages: bool,
    /// The store reads its files through mappings, for loaders too.
    pub(crate) is_mapped: bool,
    /// Of those among its files that have parity.
    sidecars: Option<Arc<Sidecars>>,
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
    fn decoded_cache_bytes(&self) -> Option<u64> {
        match self.keeping {
            Some(DatasetCache(CacheKind::Decoded(limit_bytes))) => Some(limit_bytes),
            _ => None,
        }
    }
}

/// Samples: their paths, and their metadata.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Index {
    folder: Arc<FolderIndex>,
    pub(crate) dataset: Arc<dyn Dataset>,
    /// For reading single samples.
    pub(crate) store: Arc<dyn Store>,
    /// One, unless it consists of several datasets.
    pub(crate) places: Vec<Place>,
    /// For a manifest: the names of its columns, the version that wrote it, the root it was made for.
    written: Option<Written>,
    /// What was noticed beside what the scan did.
    notes: Vec<Note>,
}

type Written = (Vec<String>, Option<String>, Option<OsString>);

impl Index {
    pub(crate) fn of(folder: FolderIndex, store: Arc<dyn Store>) -> Self {
        let folder = Arc::new(folder);
        let dataset = Arc::clone(&folder) as Arc<dyn Dataset>;
        let root = folder.root();
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root }.to_owned();
        let places = vec![Place {
            root,
            store: Arc::clone(&store),
            keeping: None,
            tables: None,
            sidecars: None,
            has_pages: false,
            is_mapped: false,
        }];
        Self { dataset, folder, store, places, written: None, notes: Vec::new() }
    }

    /// The same index with another selection of samples.
    fn with_dataset(&self, dataset: Arc<dyn Dataset>) -> Self {
        let (store, places) = (Arc::clone(&self.store), self.places.clone());
        let (folder, written, notes) = (Arc::clone(&self.folder), self.written.clone(), self.notes.clone());
        Self { folder, dataset, store, places, written, notes }
    }

    /// What loaders may keep of its pictures once they are decoded; `None` unless all of its datasets have such a cache.
    pub(crate) fn decoded_cache_bytes(&self) -> Option<u64> {
        self.places.iter().map(Place::decoded_cache_bytes).sum()
    }

    /// A store that repairs its files by their parity, and unpacks the compressed ones.
    fn unpacking(places: &[Place], store: Arc<dyn Store>) -> Arc<dyn Store> {
        let sidecars: Vec<_> = places.iter().filter_map(|place| place.sidecars.clone()).collect();
        let store = if sidecars.is_empty() { store } else { Arc::new(Repairing::new(store, sidecars)) };
        let tables: Vec<_> = places.iter().filter_map(|place| place.tables.clone()).collect();
        if tables.is_empty() { store } else { Arc::new(Unpacked::new(store, tables)) }
    }

    /// The same for this index.
    pub(crate) fn unpacked(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Self::unpacking(&self.places, store)
    }

    /// The same samples, in files with these sidecars.
    fn with_sidecars(self, sidecars: Option<Arc<Sidecars>>) -> Self {
        let sidecars = sidecars.filter(|sidecars| !sidecars.is_empty());
        let with = |place: &Place| Place { sidecars: sidecars.clone(), ..place.clone() };
        let places = self.places.iter().map(with).collect();
        Self { places, ..self }
    }

    /// Whether it unpacks a file.
    fn unpacks(&self, path: &Path) -> bool {
        self.places.iter().any(|place| place.tables.as_ref().is_some_and(|tables| tables.has(path)))
    }

    /// Whether it has something else in place of a file's own bytes.
    fn replaces(&self, path: &Path) -> bool {
        self.places.iter().any(|place| place.tables.as_ref().is_some_and(|tables| tables.replaces(path)))
    }

    /// Whether another one unpacks a file in another way.
    fn differs(&self, path: &Path, other: &Self) -> bool {
        let tables =
            |index: &Self| index.places.iter().find_map(|place| place.tables.clone().filter(|own| own.has(path)));
        tables(self).zip(tables(other)).is_some_and(|(own, other)| own.differs(path, &other))
    }

    /// Whether one of its places is a place of the other, or lies below it, or the other way round.
    fn overlaps(&self, other: &Self) -> bool {
        let is_common = |root: &Path| root == Path::new(".");
        let meet = |one: &Path, two: &Path| one.starts_with(two) || is_common(two);
        let mut pairs = self.places.iter().flat_map(|one| other.places.iter().map(move |two| (&one.root, &two.root)));
        pairs.any(|(one, two)| meet(one, two) || meet(two, one))
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
        self.folder
            .notes()
            .iter()
            .chain(&self.notes)
            .map(|note| (note.path.clone().into_os_string(), note.message.clone()))
            .collect()
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

    /// The columns of a sample that need no reading, by name.
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

    /// The same for all samples: a list for each name.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all: Vec<_> = (0..self.dataset.len()).map(SampleId).collect();
        let columns = PyDict::new(py);
        for column in self.dataset.scalars(&all) {
            columns.set_item(&*column.name, values(py, column.values)?)?;
        }
        Ok(columns)
    }

    /// The same samples with other columns in place of their classes; with none, only their content.
    fn labelled(&self, py: Python<'_>, columns: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let columns = columns.into_iter().map(|(name, values)| Ok(ScalarColumn::new(&name, scalars(&name, &values)?)));
        let labelled = Labelled::new(Arc::clone(&self.dataset), columns.collect::<PyResult<_>>()?);
        Ok(self.with_dataset(Arc::new(convert(py, labelled)?)))
    }

    /// The records of its files, as samples of their own.
    fn records(&self, py: Python<'_>, header_bytes: u64, record_bytes: u64) -> PyResult<Self> {
        let layout = convert(py, RecordLayout::new(header_bytes, record_bytes))?;
        let (files, store) = (Arc::clone(&self.dataset), Arc::clone(&self.store));
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || Records::new(files, &store, layout))?;
        let records = convert(py, found)?;
        let notes = records.notes().to_vec();
        Ok(Self { notes, ..self.with_dataset(Arc::new(records)) })
    }

    /// The records of its files of lines, as samples of their own, and the names in the header of CSV. `csv` is the delimiter, and
    /// whether there is a header; `kept` names the file that has the index.
    fn lines(
        &self,
        py: Python<'_>,
        is_json: bool,
        csv: Option<(u8, bool)>,
        kept: Option<PathBuf>,
    ) -> PyResult<(Self, Vec<String>)> {
        let rule = match csv {
            Some((delimiter, has_header)) => LineRule::Csv { delimiter, has_header },
            None if is_json => LineRule::Json,
            None => LineRule::Text,
        };
        let (files, store) = (Arc::clone(&self.dataset), Arc::clone(&self.store));
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || Lines::new(files, &store, rule, kept.as_deref()))?;
        let lines = convert(py, found)?;
        let names = match csv {
            Some((delimiter, true)) => {
                let header = convert(py, lines.header())?;
                let fields = convert(py, csv_fields(header, delimiter))?;
                fields.iter().map(|field| String::from_utf8_lossy(field).trim().to_owned()).collect()
            }
            // Of a table without a header, only how many columns it has.
            Some((delimiter, false)) => {
                let first = convert(py, lines.first_record(&self.store))?;
                let fields = convert(py, csv_fields(&first, delimiter))?;
                (0..fields.len()).map(|place| place.to_string()).collect()
            }
            None => Vec::new(),
        };
        let notes = lines.notes().to_vec();
        let tables = |place: &Place| Place { tables: lines.tables().cloned(), ..place.clone() };
        let places = self.places.iter().map(tables).collect();
        Ok((Self { notes, places, ..self.with_dataset(Arc::new(lines)) }, names))
    }

    /// The samples of its files, which are shards, with these fields, each of some names; by default with those of the first
    /// sample. `place` says where the index is: "in" the file `kept`, "beside" the
    /// shards, "kept beside" them, or written by "wds2idx". `landmarks` says whether the index is to have those of JPEGs; `None`:
    /// they are used where it has them. With `repairs`, parity beside the files is used.
    fn shards(
        &self,
        py: Python<'_>,
        fields: Option<Vec<Vec<String>>>,
        place: &str,
        kept: Option<PathBuf>,
        landmarks: Option<bool>,
        repairs: bool,
    ) -> PyResult<(Self, Vec<Vec<String>>)> {
        let place = index_place(place, kept)?;
        let (files, store, root) = (Arc::clone(&self.dataset), Arc::clone(&self.store), self.folder.root().to_owned());
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || {
            let mut shards = match landmarks {
                None => Shards::tar(files, &store, &root, &place)?,
                Some(true) => Shards::tar_with_landmarks(files, &store, &root, &place)?,
                Some(false) => Shards::tar(files, &store, &root, &place)?.without_annotations(),
            };
            let sidecars = repairs.then(|| shards.find_parity(&store)).transpose()?;
            Ok((shards, sidecars))
        })?;
        let (shards, sidecars) = convert(py, found)?;
        let shards = if let Some(fields) = fields { shards.with_fields(fields) } else { shards };
        let (fields, notes) = (shards.fields().to_vec(), shards.notes().to_vec());
        Ok((Self { notes, ..self.with_dataset(Arc::new(shards)) }.with_sidecars(sidecars), fields))
    }

    /// Windows of its files of tokens, or packed documents of them, as samples; with the type of the tokens and how many there are.
    /// `documents` is "ignored", "marked" or "packed".
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    fn tokens(
        &self,
        py: Python<'_>,
        dtype: Option<&str>,
        column: Option<String>,
        length: u64,
        stride: u64,
        has_targets: bool,
        pads_tail: bool,
        documents: &str,
        document_end: Option<i64>,
        seed: u64,
    ) -> PyResult<(Self, &'static str, u64)> {
        let named =
            |name: &str| Element::from_name(name).ok_or_else(|| PyValueError::new_err(format!("dtype: {name:?}")));
        let documents = match documents {
            "ignored" => DocumentMode::Ignored,
            "marked" => DocumentMode::Marked,
            "packed" => DocumentMode::Packed(seed),
            other => return Err(PyValueError::new_err(format!("documents: {other:?}"))),
        };
        let element = dtype.map(named).transpose()?;
        let tail = if pads_tail { Tail::Pad } else { Tail::Drop };
        let options = TokenOptions { element, column, length, stride, has_targets, tail, documents, document_end };
        let (files, store) = (Arc::clone(&self.dataset), Arc::clone(&self.store));
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || Tokens::new(files, &store, &options))?;
        let tokens = convert(py, found)?;
        let (notes, dtype, count) = (tokens.notes().to_vec(), tokens.element().name(), tokens.token_count());
        Ok((Self { notes, ..self.with_dataset(Arc::new(tokens)) }, dtype, count))
    }

    /// The format of its files, which are shards; `None` for archives.
    fn shard_format(&self, py: Python<'_>) -> PyResult<Option<ShardFormat>> {
        let (files, store) = (Arc::clone(&self.dataset), Arc::clone(&self.store));
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || forebay::ShardFormat::of_files(&*files, &store))?;
        Ok(convert(py, found)?.map(ShardFormat))
    }

    /// The samples of its files, which are shards of this format, with these fields, each of some names, and what its fields are. Without `parses_examples` a TFRecord is a
    /// sample as it is.
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    fn shards_of(
        &self,
        py: Python<'_>,
        format: &ShardFormat,
        fields: Option<Vec<Vec<String>>>,
        place: &str,
        kept: Option<PathBuf>,
        parses_examples: bool,
        repairs: bool,
    ) -> PyResult<(Self, ShardFields)> {
        let (files, store, root) = (Arc::clone(&self.dataset), Arc::clone(&self.store), self.folder.root().to_owned());
        let (format, place) = (format.0.clone(), index_place(place, kept)?);
        let has_pages = matches!(format, forebay::ShardFormat::Parquet);
        // If the mount hangs, only a signal ends the wait.
        let found = watched(py, "forebay-scan", move || {
            let mut found = format.open(files, &store, (&root, &place), fields.as_deref(), parses_examples)?;
            let sidecars = repairs.then(|| found.shards.find_parity(&store)).transpose()?;
            Ok((found, sidecars))
        })?;
        let (FormattedShards { shards, fields }, sidecars) = convert(py, found)?;
        let notes = shards.notes().to_vec();
        let tables = |place: &Place| Place { tables: shards.tables().cloned(), has_pages, ..place.clone() };
        let places = self.places.iter().map(tables).collect();
        let made = Self { notes, places, ..self.with_dataset(Arc::new(shards)) }.with_sidecars(sidecars);
        Ok((made, ShardFields(fields)))
    }

    /// Fails unless its files can be mapped into memory.
    fn check_mapping(&self, py: Python<'_>) -> PyResult<()> {
        let paths: Vec<_> = (0..self.dataset.len()).map(|file| self.dataset.path(SampleId(file))).collect();
        if let Some(packed) = paths.iter().find(|path| is_packed(path)) {
            let error = forebay::Error::config("mmap: expected files as they are, got a compressed one");
            let hint = "leave `mmap` out: what is compressed is read by segments, and unpacked";
            return convert(py, Err(error.at_path(packed).with_hint(hint)));
        }
        convert(py, py.detach(|| Mapped::check(paths)))
    }

    /// The same samples, read through mappings of their files.
    fn mapped(&self) -> Self {
        let store: Arc<dyn Store> = Arc::new(Mapped::default());
        let map = |place: &Place| Place { store: Arc::clone(&store), is_mapped: true, ..place.clone() };
        let places = self.places.iter().map(map).collect();
        Self { places, store, ..self.with_dataset(Arc::clone(&self.dataset)) }
    }

    /// The same samples with a cache.
    fn kept_in(&self, cache: &DatasetCache) -> Self {
        let keep = |place: &Place| Place { keeping: Some(cache.clone()), ..place.clone() };
        let places: Vec<_> = self.places.iter().map(keep).collect();
        let store = places.iter().fold(Arc::clone(&self.store), |store, place| place.cached(store));
        Self { store, places, ..self.with_dataset(Arc::clone(&self.dataset)) }
    }

    /// Several of them, one after the other.
    #[staticmethod]
    fn concat(py: Python<'_>, indexes: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let datasets = indexes.iter().map(|index| Arc::clone(&index.dataset)).collect();
        let dataset = convert(py, Concat::new(datasets))?;
        let first = indexes.first().expect("no datasets were refused a line ago");
        let places: Vec<_> = indexes.iter().flat_map(|index| index.places.clone()).collect();
        let stores = places.iter().map(|place| (place.root.clone(), place.cached(Arc::clone(&place.store))));
        let store = convert(py, Routed::new(stores))?;
        // Those of the first folder stay with it.
        let others = indexes.iter().skip(1).flat_map(|index| index.folder.notes().iter().chain(&index.notes));
        let notes = first.notes.iter().chain(others).cloned().collect();
        check_packed(py, &indexes)?;
        let joined = first.with_dataset(Arc::new(dataset));
        Ok(Self { store: Arc::new(store), places, notes, written: None, ..joined })
    }

    /// How many blocks its samples lie in that are best read together; `None` where they do not.
    #[getter]
    fn block_count(&self) -> Option<u64> {
        self.dataset.blocks().map(|blocks| blocks.block_count())
    }

    /// Whether files among them are compressed, or may be in parts: a rule that does not depend on what is read of them.
    #[getter]
    fn is_packed(&self) -> bool {
        self.places.iter().any(|place| place.tables.is_some() || place.has_pages)
    }

    /// How many datasets it consists of.
    #[getter]
    fn part_count(&self) -> usize {
        self.dataset.fields_by_part().len()
    }

    /// Which of its datasets a sample comes from.
    fn part(&self, index: u64) -> PyResult<u32> {
        Ok(self.dataset.part_of(self.sample(index)?))
    }

    /// The file of each sample, which may hold others as well.
    fn files(&self) -> Vec<OsString> {
        let mut locator = Locator::default();
        let file = |index| {
            self.dataset.locate(SampleId(index), Field(0), &mut locator);
            locator.path.clone().into_os_string()
        };
        (0..self.dataset.len()).map(file).collect()
    }

    /// The samples of each part of a split. With `stratify` the labels are divided by themselves: of values, one for each sample,
    /// or of a column.
    fn split(
        &self,
        py: Python<'_>,
        fractions: Vec<f64>,
        seed: u64,
        is_by_name: bool,
        stratify: Option<(Option<String>, Option<Bound<'_, PyAny>>)>,
    ) -> PyResult<Vec<Vec<u64>>> {
        let strata = stratify.map(|(column, values)| classes(self, column.as_deref(), values)).transpose()?;
        if let Some(strata) = strata.as_ref().filter(|strata| strata.len() as u64 != self.dataset.len()) {
            let (expected, got) = (self.dataset.len(), strata.len());
            let message = format!("stratify: expected {expected} values, one for each sample, got {got}");
            return convert(py, Err(forebay::Error::config(message)));
        }
        let by = if is_by_name { SplitBy::Name } else { SplitBy::Index };
        let roots: Vec<_> = self.places.iter().map(|place| place.root.clone()).collect();
        let parts = py.detach(|| split(&*self.dataset, &roots, &fractions, seed, by, strata.as_deref()));
        convert(py, parts)
    }

    fn select(&self, py: Python<'_>, indices: Vec<u64>) -> PyResult<Self> {
        let selection = convert(py, Selection::new(Arc::clone(&self.dataset), indices))?;
        Ok(self.with_dataset(Arc::new(selection)))
    }
}

/// Refuses a file that one dataset unpacks and another one reads as it is: the store knows files by their paths.
fn check_packed(py: Python<'_>, indexes: &[PyRef<'_, Index>]) -> PyResult<()> {
    let mut locator = Locator::default();
    let has_packed = |index: &Index| index.places.iter().any(|place| place.tables.is_some());
    for packed in indexes.iter().filter(|index| has_packed(index)) {
        let is_another = |other: &Index| !Arc::ptr_eq(&other.dataset, &packed.dataset) && other.overlaps(packed);
        for other in indexes.iter().filter(|other| is_another(other)) {
            for sample in (0..other.dataset.len()).map(SampleId) {
                other.dataset.locate(sample, Field(0), &mut locator);
                if packed.replaces(&locator.path) && !other.unpacks(&locator.path) {
                    let message = "is unpacked by one of the datasets and read as it is by another";
                    return convert(py, Err(forebay::Error::config(message).at_path(&locator.path)));
                }
                if packed.differs(&locator.path, other) {
                    let message = "is unpacked by two of the datasets, each with columns of its own";
                    let hint = "name the same fields in both, in the same order, or keep one index of all with index=…";
                    let error = forebay::Error::config(message).with_hint(hint).at_path(&locator.path);
                    return convert(py, Err(error));
                }
            }
        }
    }
    Ok(())
}

/// Where an index is kept, or looked for.
fn index_place(place: &str, kept: Option<PathBuf>) -> PyResult<IndexPlace> {
    match (place, kept) {
        ("in", Some(path)) => Ok(IndexPlace::In(path)),
        ("kept beside", None) => Ok(IndexPlace::KeptBeside),
        ("wds2idx", None) => Ok(IndexPlace::Wds2idx),
        ("beside", None) => Ok(IndexPlace::Beside),
        (other, _) => Err(pyo3::exceptions::PyValueError::new_err(format!("place: {other:?}"))),
    }
}

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
type Notes = Vec<(OsString, String)>;

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

/// The values of a column as Python objects.
pub(crate) fn values(py: Python<'_>, values: Scalars) -> PyResult<Bound<'_, PyList>> {
    match values {
        Scalars::Bool(values) => PyList::new(py, values),
        Scalars::I64(values) => PyList::new(py, values),
        Scalars::F64(values) => PyList::new(py, values),
        Scalars::Text(values) => PyList::new(py, values),
    }
}

/// A column from Python values, all of one type.
pub(crate) fn scalars(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Scalars> {
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
        let message = format!("labels: expected numbers, text or booleans in {name:?}, all of one type");
        pyo3::exceptions::PyTypeError::new_err(message)
    })
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
    let index = Index { written: Some(written), ..Index::of(manifest.index, store) };
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
