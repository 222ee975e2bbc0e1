//! Ranges in the cache: kept as they were asked for, with the promises that whole objects have.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use forebay_core::{Error, Kind, Listing, Result};
use forebay_store::testing::{Memory, conformance};
use forebay_store::{Allot, Cache, CacheOptions, Cached, Cancel, Local, Object, ReadRequest, Stat, Store};
use tempfile::TempDir;

use crate::cache::{damaged, entries, read, unlimited};

const LONG: Duration = Duration::from_secs(60);
const SIZE: usize = 100_000;

/// Another store, which writes down what is asked of it.
#[derive(Debug)]
struct Recorder {
    inner: Arc<dyn Store>,
    asked: Mutex<Vec<Option<Range<u64>>>>,
    /// Bytes that it gave.
    given: AtomicU64,
    /// Reads of ranges wait as long as this is so.
    holds: AtomicBool,
    fails: AtomicBool,
}

impl Recorder {
    fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let (holds, fails) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, asked: Mutex::default(), given: AtomicU64::new(0), holds, fails })
    }

    fn asked(&self) -> Vec<Option<Range<u64>>> {
        self.asked.lock().unwrap().clone()
    }
}

impl Store for Recorder {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        self.asked.lock().unwrap().push(request.range.clone());
        if request.range.is_some() {
            while self.holds.load(SeqCst) && !request.cancel.is_some_and(Cancel::is_raised) {
                std::thread::yield_now();
            }
            if self.fails.load(SeqCst) {
                return Err(Error::new(Kind::Unavailable, "fails as told").transient().at_path(request.path));
            }
        }
        let object = self.inner.fetch(request, allot)?;
        self.given.fetch_add(object.bytes.len() as u64, SeqCst);
        Ok(object)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.inner.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.inner.list(directory)
    }
}

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| ((at * at) >> 3) as u8).collect()
}

fn part(range: &Range<u64>) -> Vec<u8> {
    content()[range.start as usize..range.end as usize].to_vec()
}

/// A shard of a local directory behind a cache.
struct Bench {
    place: TempDir,
    shard: PathBuf,
    store: Arc<Recorder>,
    cache: Arc<Cache>,
    cached: Cached,
}

fn open(root: &Path, limit_bytes: u64) -> Arc<Cache> {
    let options = CacheOptions { limit_bytes: Some(limit_bytes), pause: Duration::from_millis(200) };
    Cache::open(root, options).unwrap()
}

impl Bench {
    fn new(limit_bytes: u64) -> Self {
        let place = tempfile::tempdir().unwrap();
        let shard = place.path().join("train-0000.tar");
        fs::write(&shard, content()).unwrap();
        let store = Recorder::new(Arc::new(Local));
        let cache = open(&place.path().join("cache"), limit_bytes);
        let cached = Cached::new(Arc::clone(&store) as _, Arc::clone(&cache));
        Self { place, shard, store, cache, cached }
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("cache")
    }

    fn stat(&self) -> Stat {
        Local.stat(&self.shard).unwrap()
    }

    fn range(&self, range: Range<u64>) -> Vec<u8> {
        self.fetch(&self.cached, range, self.stat()).unwrap()
    }

    fn fetch(&self, cached: &Cached, range: Range<u64>, expected: Stat) -> Result<Vec<u8>> {
        let request = ReadRequest::new(&self.shard, LONG).with_range(range).with_expected(expected);
        Ok(cached.fetch(&request, &mut unlimited)?.bytes.into_vec())
    }
}

#[test]
fn ranges_keep_the_contract_before_anything_was_read_as_a_whole() {
    let (place, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut memory = Memory::default();
    for (name, content) in conformance::OBJECTS {
        memory.insert(Path::new("/data").join(name), *content);
        let path = data.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let stores: [(Arc<dyn Store>, &Path); 2] = [(Arc::new(memory), Path::new("/data")), (Arc::new(Local), data.path())];
    for (number, (store, root)) in stores.into_iter().enumerate() {
        for revalidates in [false, true] {
            let cache = open(&place.path().join(format!("{number}-{revalidates}")), 1 << 20);
            let store = Recorder::new(Arc::clone(&store));
            let cached = Cached::new(Arc::clone(&store) as _, Arc::clone(&cache)).revalidating(revalidates);
            conformance::check_ranges(&cached, root, conformance::OBJECTS);
            let (first, before) = (cache.stats(), store.given.load(SeqCst));
            assert_eq!((first.misses, first.passes, first.corrupt, first.stale), (15, 0, 0, 0), "{first:?}");
            conformance::check_ranges(&cached, root, conformance::OBJECTS);
            let second = cache.stats();
            assert_eq!((second.misses, second.passes, second.stale), (first.misses, 0, 0), "{second:?}");
            assert_eq!(store.given.load(SeqCst), before, "the store was asked only for what it has to refuse");
        }
    }
}

#[test]
fn a_range_is_fetched_once_as_it_was_asked_for_and_kept_over_a_restart() {
    let bench = Bench::new(1 << 20);
    let ranges = [0..5_000, 5_000..20_000, 4_999..5_001, SIZE as u64 - 1..SIZE as u64];
    for _ in 0..3 {
        ranges.iter().for_each(|range| assert_eq!(bench.range(range.clone()), part(range)));
    }
    assert_eq!(bench.store.asked(), ranges.each_ref().map(|range| Some(range.clone())), "no byte more than was wanted");
    let stats = bench.cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.passes), (8, 4, 0), "{stats:?}");
    assert_eq!(stats.bytes, 8_192 + 16_384 + 4_096 + 4_096);
    let info = Cache::info(&bench.root()).unwrap();
    assert_eq!((info.entries, info.bytes), (4, stats.bytes));
    assert_eq!(Cache::verify(&bench.root(), &mut |_, _| {}).unwrap().bytes, 5_000 + 15_000 + 2 + 1);
    let again = Cached::new(Arc::clone(&bench.store) as _, open(&bench.root(), 1 << 20));
    assert_eq!(bench.fetch(&again, 5_000..20_000, bench.stat()).unwrap(), part(&(5_000..20_000)));
    assert_eq!(bench.store.asked().len(), 4);
}

#[test]
fn whatever_is_done_to_a_kept_range_it_is_found_removed_and_got_again() {
    let bench = Bench::new(1 << 20);
    let range = 1_000..6_000;
    bench.range(range.clone());
    let file = entries(&bench.root()).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut damages = damaged(&whole, &[0, 2_500, 5_000, whole.len() - 56, whole.len() - 1]);
    // The entry of another range in its place.
    bench.range(1_000..6_001);
    let other = entries(&bench.root()).into_iter().find(|entry| *entry != file).unwrap();
    damages.extend([fs::read(&other).unwrap(), vec![0; whole.len()]]);
    for (number, damage) in damages.iter().enumerate() {
        fs::write(&file, damage).unwrap();
        assert_eq!(bench.range(range.clone()), part(&range), "damage {number}");
        let stats = bench.cache.stats();
        assert_eq!((stats.corrupt, stats.misses), (number as u64 + 1, number as u64 + 3), "{stats:?}");
        assert_eq!(fs::read(&file).unwrap(), whole, "healed");
        assert_eq!(stats.bytes, 2 * 8_192, "and counted right");
    }
}

#[test]
fn threads_that_want_one_range_get_it_once_and_others_do_not_wait_for_it() {
    let bench = Bench::new(1 << 20);
    bench.store.holds.store(true, SeqCst);
    let barrier = Barrier::new(17);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                assert_eq!(bench.range(7..50_000), part(&(7..50_000)));
            });
        }
        barrier.wait();
        while bench.store.asked().is_empty() {
            std::thread::yield_now();
        }
        let other = scope.spawn(|| bench.range(8..50_000));
        while bench.store.asked().len() < 2 {
            std::thread::yield_now();
        }
        bench.store.holds.store(false, SeqCst);
        assert_eq!(other.join().unwrap(), part(&(8..50_000)));
    });
    let stats = bench.cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.passes, bench.store.asked().len()), (15, 2, 0, 2), "{stats:?}");
}

#[test]
fn a_range_of_another_version_is_never_given() {
    let bench = Bench::new(1 << 20);
    let (range, old) = (10..5_000, bench.stat());
    bench.range(range.clone());
    let newer: Vec<u8> = content().iter().map(|byte| !byte).collect();
    crate::rewrite(&bench.shard, &newer);
    let new = bench.stat();
    assert_ne!(old, new);
    // Whoever knows the old one only is given what was kept of it, unless the store is asked.
    let read = |cached: &Cached, stat| bench.fetch(cached, range.clone(), stat);
    assert_eq!(read(&bench.cached, old).unwrap(), part(&range));
    let error = read(&bench.cached.clone().revalidating(true), old).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Changed, Some(&*bench.shard)), "{error}");
    for _ in 0..2 {
        assert_eq!(read(&bench.cached, new).unwrap(), newer[10..5_000]);
    }
    let stats = bench.cache.stats();
    assert_eq!((stats.stale, stats.misses, stats.bytes), (1, 2, 8_192), "{stats:?}");
    // Who comes with an old version is told so, and costs nobody the new one.
    assert_eq!(read(&bench.cached, old).unwrap_err().kind(), Kind::Changed);
    let before = bench.store.asked().len();
    assert_eq!(read(&bench.cached, new).unwrap(), newer[10..5_000]);
    assert_eq!((bench.store.asked().len(), bench.cache.stats().stale), (before, 1));
}

#[test]
fn a_whole_object_that_is_kept_serves_its_ranges() {
    let bench = Bench::new(1 << 20);
    assert_eq!(read(&bench.cached, &bench.shard), content());
    for range in [0..10, 70_000..90_000, 0..SIZE as u64] {
        assert_eq!(bench.range(range.clone()), part(&range));
    }
    assert_eq!((bench.store.asked(), bench.cache.stats().hits), (vec![None], 3));
    assert_eq!(entries(&bench.root()).len(), 1, "nothing is kept twice");
    // Damaged far from what is asked for: nothing of it is believed.
    let file = entries(&bench.root()).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    bytes[50_000] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(bench.range(0..10), part(&(0..10)));
    assert_eq!((bench.store.asked(), bench.cache.stats().corrupt), (vec![None, Some(0..10)], 1));
    assert!(!file.exists());
    // Of another version it serves nothing, and stays what it is for those who read all of it.
    bench.cached.read(&bench.shard, LONG, &mut unlimited).unwrap();
    crate::rewrite(&bench.shard, &content()[1..]);
    assert_eq!(bench.range(0..10), content()[1..11]);
    assert!(file.exists());
}

#[test]
fn the_limit_holds_for_ranges_and_one_larger_than_the_cache_passes() {
    let limit = 10 * 8_192;
    let bench = Bench::new(limit);
    for round in 0..2 {
        for at in (0..90_000).step_by(1_000) {
            let range = at..at + 5_000;
            assert_eq!(bench.range(range.clone()), part(&range), "{round}");
            assert!(bench.cache.stats().bytes <= limit);
        }
    }
    let held: u64 =
        entries(&bench.root()).iter().map(|file| fs::metadata(file).unwrap().len().div_ceil(4096) * 4096).sum();
    let stats = bench.cache.stats();
    assert!(stats.evictions > 100 && stats.bytes == held, "{stats:?}");
    for _ in 0..2 {
        assert_eq!(bench.range(0..90_000), part(&(0..90_000)));
    }
    assert_eq!(bench.cache.stats().passes, 2);
}

#[test]
fn a_range_that_is_doubted_comes_from_the_store() {
    let bench = Bench::new(1 << 20);
    bench.range(0..100);
    bench.range(100..200);
    bench.cached.doubt_range(&bench.shard, 0..100);
    assert_eq!((bench.range(0..100), bench.range(100..200)), (part(&(0..100)), part(&(100..200))));
    assert_eq!(bench.store.asked(), [0..100, 100..200, 0..100].map(Some), "and the others are trusted");
    // It may have come out of the whole object.
    read(&bench.cached, &bench.shard);
    bench.cached.doubt_range(&bench.shard, 0..100);
    bench.range(0..100);
    assert_eq!(bench.store.asked()[3..], [None, Some(0..100)]);
}

#[test]
fn a_range_that_failed_leaves_nothing_behind() {
    let bench = Bench::new(1 << 20);
    bench.store.fails.store(true, SeqCst);
    let error = bench.fetch(&bench.cached, 0..100, bench.stat()).unwrap_err();
    assert!(error.is_transient() && error.path() == Some(&*bench.shard), "{error}");
    assert!(entries(&bench.root()).is_empty());
    bench.store.fails.store(false, SeqCst);
    assert_eq!(bench.range(0..100), part(&(0..100)));
    assert_eq!(bench.range(3..3), b"");
    let beyond = bench.fetch(&bench.cached, 0..SIZE as u64 + 1, bench.stat());
    assert_eq!(beyond.unwrap_err().path(), Some(&*bench.shard), "as the store says");
    assert_eq!(entries(&bench.root()).len(), 1);
}

#[test]
fn a_second_read_goes_around_the_cache_and_one_that_waits_can_be_cancelled() {
    let bench = Bench::new(1 << 20);
    let request = ReadRequest::new(&bench.shard, LONG).with_range(100..900);
    let (begun, go_on, cancel) = (Barrier::new(2), Barrier::new(2), Cancel::default());
    std::thread::scope(|scope| {
        // The first has begun, and waits for its memory.
        let first = scope.spawn(|| {
            bench.cached.fetch(&request, &mut |size| {
                begun.wait();
                go_on.wait();
                unlimited(size)
            })
        });
        begun.wait();
        let waiting = scope.spawn(|| bench.cached.fetch(&request.clone().with_cancel(&cancel), &mut unlimited));
        let second = bench.cached.origin().unwrap().fetch(&request, &mut unlimited).unwrap();
        assert_eq!(second.bytes, part(&(100..900)));
        cancel.raise();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), Kind::Stopped);
        go_on.wait();
        assert_eq!(first.join().unwrap().unwrap().bytes, part(&(100..900)));
    });
    assert_eq!((bench.cache.stats().misses, bench.store.asked().len()), (1, 2));
}

#[test]
fn a_range_of_no_known_version_is_taken_from_what_is_kept_until_it_is_doubted() {
    let bench = Bench::new(1 << 20);
    let request = ReadRequest::new(&bench.shard, LONG).with_range(100..900);
    let read = |cached: &Cached| cached.fetch(&request, &mut unlimited).unwrap();
    let old = bench.stat();
    assert_eq!((read(&bench.cached).stat, read(&bench.cached).stat), (old, old));
    let newer: Vec<u8> = content().iter().map(|byte| !byte).collect();
    crate::rewrite(&bench.shard, &newer);
    let object = read(&bench.cached);
    assert!(object.bytes == part(&(100..900)) && object.stat == old, "the version is said with it");
    let object = read(&bench.cached.clone().revalidating(true));
    assert!(object.bytes == newer[100..900] && object.stat == bench.stat());
    crate::rewrite(&bench.shard, &content());
    bench.cached.doubt_range(&bench.shard, 100..900);
    assert_eq!(read(&bench.cached).stat, bench.stat());
    assert_eq!(bench.store.asked().len(), 3);
}

#[test]
fn a_whole_object_of_another_version_is_not_given_for_the_one_expected() {
    let bench = Bench::new(1 << 20);
    let old = bench.stat();
    read(&bench.cached, &bench.shard);
    crate::rewrite(&bench.shard, &content()[1..]);
    let whole = ReadRequest::new(&bench.shard, LONG);
    let expecting = |stat| bench.cached.fetch(&whole.clone().with_expected(stat), &mut unlimited);
    assert_eq!(expecting(old).unwrap().bytes, content(), "kept");
    assert_eq!(expecting(bench.stat()).unwrap().bytes, content()[1..]);
    assert_eq!(expecting(old).unwrap_err().kind(), Kind::Changed);
    let stats = bench.cache.stats();
    assert_eq!((stats.misses, stats.stale), (2, 1), "{stats:?}");
}
