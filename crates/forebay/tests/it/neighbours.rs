//! Fields that lie beside each other in one object: read with one request, made in place, and still known each by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Batch, Cache, CacheOptions, Cached, Column, Config, Dataset, DatasetIdentity, Epoch, Field, FieldsRecipe, Kind,
    Loader, Locator, MemoryCache, MemoryCached, OnError, Recipe, Result, Retry, SampleId, ScalarRecipe, Source, Store,
    Value,
};
use forebay_decode::{ColumnSpec, Dense, Fields, Made, Sample, Scratch};
use forebay_store::testing::{Fault, Memory, Scripted};

use crate::fixture::{bitmap, crop};

const COUNT: u64 = 42;
const ARCHIVE: &str = "/archive.tar";
const SIDE: u32 = 60;
const LABEL_BYTES: u64 = 3;
const HEADER_BYTES: u64 = 512;

/// Pictures and their labels in turns, each behind a header and filled up to its size, as in an archive.
struct Members {
    is_unpacked: bool,
}

fn picture(sample: u64) -> Vec<u8> {
    bitmap(SIDE, SIDE, sample)
}

fn picture_bytes() -> u64 {
    picture(0).len() as u64
}

fn sample_bytes() -> u64 {
    2 * HEADER_BYTES + picture_bytes().next_multiple_of(HEADER_BYTES) + HEADER_BYTES
}

impl Dataset for Members {
    fn len(&self) -> u64 {
        COUNT
    }
    fn field_count(&self) -> u32 {
        2
    }
    fn is_unpacked(&self, _sample: SampleId) -> bool {
        self.is_unpacked
    }
    fn locate(&self, sample: SampleId, field: Field, locator: &mut Locator) {
        let start = sample.0 * sample_bytes() + HEADER_BYTES;
        let label = start + picture_bytes().next_multiple_of(HEADER_BYTES) + HEADER_BYTES;
        let (range, name) = match field {
            Field(0) => (start..start + picture_bytes(), "bmp"),
            _ => (label..label + LABEL_BYTES, "cls"),
        };
        *locator =
            Locator { path: ARCHIVE.into(), range: Some(range), member: Some(format!("{:03}.{name}", sample.0)) };
    }
    fn identity(&self) -> DatasetIdentity {
        DatasetIdentity { samples: COUNT, classes: 0, fingerprint: "members".to_owned() }
    }
}

/// The archive.
fn archive() -> Vec<u8> {
    let mut bytes = Vec::new();
    for sample in 0..COUNT {
        for content in [picture(sample), format!("{sample:03}").into_bytes()] {
            bytes.resize(bytes.len() + HEADER_BYTES as usize, 0);
            bytes.extend(content);
            bytes.resize(bytes.len().next_multiple_of(HEADER_BYTES as usize), 0);
        }
    }
    bytes
}

fn start_of(sample: u64, field: Field) -> usize {
    let mut locator = Locator::default();
    Members { is_unpacked: false }.locate(SampleId(sample), field, &mut locator);
    locator.range.unwrap().start as usize
}

fn store(archive: Vec<u8>) -> Arc<Scripted<Memory>> {
    let mut memory = Memory::default();
    memory.insert(ARCHIVE, archive);
    Arc::new(Scripted::new(memory))
}

fn recipe() -> FieldsRecipe {
    let label: Arc<dyn Recipe> = Arc::new(ScalarRecipe::integer());
    FieldsRecipe::new(vec![("image".to_owned(), Arc::new(crop())), ("number".to_owned(), label)]).unwrap()
}

fn source(store: Arc<dyn Store>) -> Source {
    Source::new(Arc::new(Members { is_unpacked: false }), store, recipe())
}

fn config() -> Config {
    let retry = Retry { first_pause: Duration::from_millis(1), ..Retry::default() };
    Config {
        batch_size: 4,
        shuffle: true,
        seed: 7,
        cpu_threads: 2,
        on_error: OnError::Skip,
        retry,
        ..Config::default()
    }
}

/// Each sample of a batch: its pixels and its label.
fn samples_of(batch: Batch) -> Vec<(Vec<u8>, i64)> {
    let (names, count) = (batch.columns.iter().map(|column| &*column.name).collect::<Vec<_>>(), batch.len());
    assert_eq!(names, ["image", "number"]);
    let mut columns = batch.columns.into_iter().map(|column| match column.column {
        Column::Dense { mut buffer, layout } => {
            let size = layout.size_bytes();
            (layout.shape, buffer.bytes()[..count * size].chunks_exact(size).map(<[u8]>::to_vec).collect::<Vec<_>>())
        }
        other => panic!("expected arrays of one shape, got {other:?}"),
    });
    let ((shape, pixels), (_, labels)) = (columns.next().unwrap(), columns.next().unwrap());
    assert_eq!(shape, [3, 4, 4]);
    let number = |bytes: Vec<u8>| i64::from_ne_bytes(bytes.try_into().unwrap());
    pixels.into_iter().zip(labels.into_iter().map(number)).collect()
}

/// All samples in their order. It is given by the caller, so that no next epoch is begun and reads can be counted.
fn epoch(loader: &Loader) -> Vec<(Vec<u8>, i64)> {
    let run = loader.given_order().unwrap();
    (0..COUNT).step_by(4).for_each(|from| run.give((from..COUNT.min(from + 4)).map(SampleId).collect()).unwrap());
    run.close_order().unwrap();
    run.flat_map(|batch| samples_of(batch.unwrap())).collect()
}

/// The same recipe without places in a batch.
struct AsValues(FieldsRecipe);

impl Recipe for AsValues {
    fn schema(&self) -> Vec<ColumnSpec> {
        self.0.schema()
    }
    fn field_count(&self) -> u32 {
        self.0.field_count()
    }
    fn layout(&self) -> Option<&Dense> {
        None
    }
    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        self.0.memory_bytes(fields, scratch)
    }
    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        assert!(sample.slot.is_none());
        self.0.make(sample)
    }
}

#[test]
fn a_sample_is_one_request_and_its_batches_are_what_they_are_of_values_read_one_by_one() {
    let together = store(archive());
    let loader = Loader::new(source(together.clone()), config()).unwrap();
    let apart = store(archive());
    let dataset = Arc::new(Members { is_unpacked: true });
    let values = Loader::new(Source::new(dataset, apart.clone(), AsValues(recipe())), config()).unwrap();
    assert!(loader.batch_bytes().is_some() && values.batch_bytes().is_none());
    for number in 1..=3 {
        let found = epoch(&loader);
        assert_eq!(found.len() as u64, COUNT);
        assert_eq!(found, epoch(&values));
        assert_eq!((together.total_reads(), apart.total_reads()), (number * COUNT as u32, 2 * number * COUNT as u32));
    }
    let (read, wanted) = (loader.stats().bytes_read, values.stats().bytes_read);
    assert_eq!(wanted, 3 * COUNT * (picture_bytes() + LABEL_BYTES));
    assert!(read > wanted && read * 10 <= wanted * 11, "{read} of {wanted}");
}

#[test]
fn a_damaged_field_is_named_by_its_own_place_and_condemns_itself_alone() {
    let mut bytes = archive();
    bytes[start_of(8, Field(1))] = b'x';
    bytes[start_of(17, Field(0))] = b'x';
    let store = store(bytes);
    let loader = Loader::new(source(store.clone()), config()).unwrap();
    // Both are read again, each field by itself; and then known.
    for reads in [COUNT + 2 * 2, COUNT - 2] {
        let before = store.total_reads();
        let mut found: Vec<_> = epoch(&loader).into_iter().map(|(_, label)| label).collect();
        found.sort_unstable();
        assert_eq!(found, (0..COUNT as i64).filter(|label| ![8, 17].contains(label)).collect::<Vec<_>>());
        assert_eq!(u64::from(store.total_reads() - before), reads);
    }
    let mut failures = loader.failures();
    failures.sort_by_key(|failure| failure.index);
    let mut named: Vec<_> = failures.iter().map(|failure| (failure.name(), failure.offset)).collect();
    named.dedup(); // of both epochs
    let expected = [(8, "008.cls", Field(1)), (17, "017.bmp", Field(0))].map(|(sample, name, field)| {
        (PathBuf::from(format!("{ARCHIVE}#{name}")), Some(start_of(sample, field) as u64))
    });
    assert_eq!(named, expected);
}

#[test]
fn where_an_archive_ends_within_a_sample_the_field_that_is_gone_is_named() {
    let mut bytes = archive();
    bytes.truncate(start_of(COUNT - 1, Field(1)));
    let store = store(bytes);
    let loader = Loader::new(source(store.clone()), config()).unwrap();
    assert_eq!(epoch(&loader).len() as u64, COUNT - 1);
    let failures = loader.failures();
    let gone = PathBuf::from(format!("{ARCHIVE}#041.cls"));
    assert_eq!(failures.iter().map(|failure| failure.name()).collect::<Vec<_>>(), std::slice::from_ref(&gone));
    assert!(failures[0].message.contains("is truncated"), "{}", failures[0].message);
    let error = loader.source().load(SampleId(COUNT - 1), 0, Epoch(0)).unwrap_err();
    assert_eq!((error.kind(), error.field()), (Kind::Corrupt, Field(1)));
    let before = store.total_reads();
    let Value::Row(row) = loader.source().load(SampleId(5), 0, Epoch(0)).unwrap() else { panic!("expected a row") };
    assert!(matches!(&row[1], Value::Array(array) if array.bytes == 5i64.to_ne_bytes()));
    assert_eq!(store.total_reads() - before, 1);
}

#[test]
fn a_request_that_failed_is_made_again_for_each_field() {
    let store = store(archive());
    store.script(ARCHIVE, vec![Fault::Errno(5)]);
    let loader = Loader::new(source(store.clone()), config()).unwrap();
    assert_eq!(epoch(&loader).len() as u64, COUNT);
    assert_eq!(u64::from(store.total_reads()), COUNT + 2);
    let failures = loader.failures();
    assert_eq!(failures.iter().map(|failure| failure.errno).collect::<Vec<_>>(), [Some(5)]);
}

#[test]
fn a_bad_copy_in_a_cache_is_read_anew_and_heals() {
    let place = tempfile::tempdir().unwrap();
    let on_disk = |store: Arc<dyn Store>| -> Arc<dyn Store> {
        Arc::new(Cached::new(store, Cache::open(place.path(), CacheOptions::default()).unwrap()))
    };
    let in_memory = |store: Arc<dyn Store>| -> Arc<dyn Store> {
        Arc::new(MemoryCached::new(store, Arc::new(MemoryCache::new(16 << 20))))
    };
    let run_bytes = start_of(0, Field(1)) + LABEL_BYTES as usize - start_of(0, Field(0));
    for cached in [&on_disk as &dyn Fn(Arc<dyn Store>) -> Arc<dyn Store>, &in_memory] {
        let store = store(archive());
        store.script(ARCHIVE, vec![Fault::Garbage(vec![b'x'; run_bytes])]);
        let loader = Loader::new(source(cached(store.clone())), config()).unwrap();
        // The one that was bad: once for each field now, and as a whole in the next epoch.
        for reads in [COUNT + 2, 1, 0] {
            let before = store.total_reads();
            assert_eq!(epoch(&loader).len() as u64, COUNT);
            assert_eq!(u64::from(store.total_reads() - before), reads);
        }
        assert_eq!(loader.failures().len(), 1, "it was bad once");
    }
}
