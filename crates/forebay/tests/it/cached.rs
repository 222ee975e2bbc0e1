//! The loader on a store with a cache in front of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay::{Cache, CacheOptions, Cached, Config, Hedge, Loader, Outcome, Retry, Store};
use forebay_store::testing::{Fault, Memory, Scripted};

use crate::fixture::{bitmap, crop, epoch, loader, path_of, pictures, source};

fn cached(place: &Path, store: Arc<dyn Store>) -> Arc<Cached> {
    Arc::new(Cached::new(store, Cache::open(&place.join("cache"), CacheOptions::default()).unwrap()))
}

fn entries(place: &Path) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(place.join("cache/v1")).unwrap().map(|shard| shard.unwrap().path());
    shards
        .filter(|shard| shard.is_dir())
        .flat_map(|shard| std::fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path()))
        .collect()
}

#[test]
fn the_second_epoch_reads_nothing_and_is_the_same() {
    let config = Config { batch_size: 4, shuffle: true, io_threads: 4, ..Config::default() };
    let plain = loader(30, false, config.clone());
    let (place, store) = (tempfile::tempdir().unwrap(), Arc::new(Scripted::new(pictures(30, false))));
    let loader = Loader::new(source(cached(place.path(), store.clone()), crop()), config).unwrap();
    for _ in 0..3 {
        assert_eq!(epoch(&loader), epoch(&plain));
    }
    assert_eq!(store.total_reads(), 30);
    let stats = loader.source().storage().cache.unwrap();
    assert!(stats.misses == 30 && stats.hits >= 60, "{stats:?}");
}

#[test]
fn a_second_read_beside_a_slow_one_does_not_wait_for_it() {
    let (place, store) = (tempfile::tempdir().unwrap(), Arc::new(Scripted::new(pictures(8, false))));
    store.script(path_of(2), vec![Fault::Wait]);
    let config = Config { batch_size: 4, hedge: Some(Hedge::After(Duration::from_millis(50))), ..Config::default() };
    let loader = Loader::new(source(cached(place.path(), store.clone()), crop()), config).unwrap();
    assert_eq!(epoch(&loader).len(), 8);
    let stats = loader.stats();
    // On a busy machine other reads may take as long.
    assert!(stats.hedges_won >= 1 && stats.written_off == 0, "{stats:?}");
    assert!(loader.failures().is_empty());
    store.release();
}

#[test]
fn a_copy_that_does_not_decode_is_read_from_its_source_before_it_is_believed() {
    let (place, store) = (tempfile::tempdir().unwrap(), Arc::new(Scripted::new(pictures(8, false))));
    store.script(path_of(3), vec![Fault::Garbage(b"<html>please log in</html>".to_vec())]);
    // Of the next epoch nothing is read before this one has its end.
    let config = Config { batch_size: 4, prefetch_batches: 1, ..Config::default() };
    let loader = Loader::new(source(cached(place.path(), store.clone()), crop()), config).unwrap();
    assert_eq!(epoch(&loader).len(), 8);
    assert_eq!(loader.failures().iter().map(|failure| failure.outcome).collect::<Vec<_>>(), [Outcome::Recovered]);
    assert_eq!(store.reads(&path_of(3)), 2);
    assert_eq!(epoch(&loader).len(), 8);
    assert_eq!((store.reads(&path_of(3)), loader.failures().len()), (2, 1), "the good one was kept");
}

#[test]
fn memory_for_a_damaged_copy_of_another_size_is_given_back() {
    let place = tempfile::tempdir().unwrap();
    let mut larger = Memory::default();
    (0..30).for_each(|index| larger.insert(path_of(index), bitmap(12, 11, index as u64)));
    let (smaller, larger) = (Arc::new(pictures(30, false)), Arc::new(larger));
    let config = Config { batch_size: 4, ..Config::default() };
    epoch(&Loader::new(source(cached(place.path(), smaller), crop()), config.clone()).unwrap());
    let expected = epoch(&Loader::new(source(larger.clone(), crop()), config.clone()).unwrap());
    // No more than a batch and a sample: whatever is not given back is missed at once.
    let retry = Retry { retries: 0, ..Retry::default() };
    let config = Config {
        memory_budget: 1_500,
        max_sample_bytes: Some(1 << 20),
        cpu_threads: 3,
        io_threads: 5,
        retry,
        ..config
    };
    let loader = Loader::new(source(cached(place.path(), larger), crop()), config).unwrap();
    let files = entries(place.path());
    assert_eq!(files.len(), 30);
    for file in &files {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[60] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    assert_eq!(epoch(&loader), expected);
    assert_eq!(loader.source().storage().cache.unwrap().corrupt, 30);
    assert_eq!(epoch(&loader).len(), 30);
}
