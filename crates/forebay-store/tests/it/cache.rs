//! The cache: the contract of a store, and what becomes of it when its disk, its files or its users fail.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};

use forebay_core::{Error, Kind, Listing, Result};
use forebay_store::testing::{Fault, Memory, Scripted, conformance};
use forebay_store::{Allot, Cache, CacheOptions, CacheStats, Cached, Cancel, Local, Object, ReadRequest, Stat, Store};
use tempfile::TempDir;

const ROOT: &str = "/data";
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn unlimited(size: u64) -> Result<Vec<u8>> {
    Ok(Vec::with_capacity(size as usize))
}

pub(crate) fn read(store: &dyn Store, path: &Path) -> Vec<u8> {
    store.read(path, LONG, &mut unlimited).unwrap().bytes.to_vec()
}

fn path(number: usize) -> PathBuf {
    Path::new(ROOT).join(format!("{number}.jpg"))
}

fn content(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + number) as u8).collect()
}

/// Objects of one size, which counts its reads, in front of which lies a cache.
struct Bench {
    place: TempDir,
    store: Arc<Scripted<Memory>>,
    cache: Arc<Cache>,
    cached: Cached,
}

fn options(limit_bytes: u64) -> CacheOptions {
    CacheOptions { limit_bytes: Some(limit_bytes), pause: Duration::from_millis(200) }
}

fn memory(count: usize, size: usize) -> Arc<Scripted<Memory>> {
    let mut memory = Memory::default();
    (0..count).for_each(|number| memory.insert(path(number), content(number, size)));
    Arc::new(Scripted::new(memory))
}

impl Bench {
    fn new(count: usize, size: usize, limit_bytes: u64) -> Self {
        let place = tempfile::tempdir().unwrap();
        Self::at(place, count, size, limit_bytes)
    }

    fn at(place: TempDir, count: usize, size: usize, limit_bytes: u64) -> Self {
        let store = memory(count, size);
        let cache = Cache::open(&place.path().join("cache"), options(limit_bytes)).unwrap();
        let cached = Cached::new(Arc::clone(&store) as _, Arc::clone(&cache));
        Self { place, store, cache, cached }
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("cache")
    }

    fn read(&self, number: usize) -> Vec<u8> {
        read(&self.cached, &path(number))
    }

    fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

/// Files below a directory, links not followed.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(root) else { return found };
    for entry in entries.map(|entry| entry.unwrap()) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            _ => found.push(entry.path()),
        }
    }
    found
}

/// The files of entries, those on their way included.
pub(crate) fn entries(root: &Path) -> Vec<PathBuf> {
    let is_entry = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        let shard = path.parent().unwrap().file_name().unwrap().to_str().unwrap_or_default();
        let digits = format!("{shard}{}", name.strip_suffix(".part").unwrap_or(name));
        digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    files(&root.join("v1")).into_iter().filter(is_entry).collect()
}

#[test]
fn the_directory_of_another_user_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let open = |path: &Path| Cache::open(path, CacheOptions::default());
    drop(open(root.path()).unwrap());
    let entries =
        fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    for theirs in [root.path(), &entries] {
        if let Err(error) = std::os::unix::fs::chown(theirs, Some(65_534), None) {
            // Only root can make a directory another user's; what root owns is refused to nobody.
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            assert_eq!(open(Path::new("/proc/self/task")).unwrap_err().kind(), Kind::Config);
            continue;
        }
        let error = open(root.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.to_string().contains("got one owned by uid 65534"), "{error}");
        std::os::unix::fs::chown(theirs, Some(0), None).unwrap();
    }
    drop(open(root.path()).unwrap());
}

#[test]
fn a_cache_conforms_as_the_store_behind_it_does() {
    let (place, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut memory = Memory::default();
    for (name, content) in conformance::OBJECTS {
        memory.insert(Path::new(ROOT).join(name), *content);
        let path = data.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let cache = Cache::open(&place.path().join("cache"), options(1 << 20)).unwrap();
    let stores: [(Arc<dyn Store>, &Path); 2] = [(Arc::new(memory), Path::new(ROOT)), (Arc::new(Local), data.path())];
    for (store, root) in stores {
        for revalidates in [false, true] {
            let cached = Cached::new(Arc::clone(&store), Arc::clone(&cache)).revalidating(revalidates);
            for _ in 0..2 {
                conformance::check(&cached, root);
            }
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.corrupt, stats.passes), (2 * 4, 0, 0), "{stats:?}");
    // Whole objects only; reads of parts are hits as well, and those that are refused their memory count nowhere.
    assert!(stats.hits >= 2 * 4 * 4 - 2 * 4, "{stats:?}");
    let cached = Cached::new(Arc::new(Local), Arc::clone(&cache)).revalidating(true);
    conformance::check_changes(&cached, data.path(), &crate::rewrite);
    assert!(cache.stats().stale > 0);
}

#[test]
fn the_second_read_asks_nothing_and_an_object_is_kept_over_a_restart() {
    let bench = Bench::new(3, 10_000, 1 << 20);
    for _ in 0..3 {
        (0..3).for_each(|number| assert_eq!(bench.read(number), content(number, 10_000)));
    }
    assert_eq!(bench.store.total_reads(), 3);
    let stats = bench.stats();
    assert_eq!((stats.hits, stats.misses, stats.bytes), (6, 3, 3 * 12_288), "{stats:?}");
    let again = Cache::open(&bench.root(), options(1 << 20)).unwrap();
    let cached = Cached::new(Arc::clone(&bench.store) as _, again);
    assert_eq!(read(&cached, &path(1)), content(1, 10_000));
    assert_eq!(bench.store.total_reads(), 3);
}

#[test]
fn what_is_in_the_directory_is_for_one_user_and_marked() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(1, 100, 1 << 20);
    bench.read(0);
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bench.root()), 0o700);
    let (entry, tag) = (&entries(&bench.root())[0], fs::read_to_string(bench.root().join("CACHEDIR.TAG")).unwrap());
    assert_eq!((mode(entry), mode(entry.parent().unwrap())), (0o600, 0o700));
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
    assert!(bench.root().join("forebay-cache").is_file());
}

/// What bits that flip at these places, and lost ends, make of an entry.
pub(crate) fn damaged(whole: &[u8], flipped: &[usize]) -> Vec<Vec<u8>> {
    let flip = |at: &usize| {
        let mut bytes = whole.to_vec();
        bytes[*at] ^= 0x10;
        bytes
    };
    let cut = [0, 1, 5_000, whole.len() - 1].map(|length| whole[..length].to_vec());
    flipped.iter().map(flip).chain(cut).collect()
}

#[test]
fn whatever_is_done_to_an_entry_it_is_found_removed_and_got_again() {
    let size = 5_000;
    let bench = Bench::new(1, size, 1 << 20);
    bench.read(0);
    let file = entries(&bench.root()).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut damages = damaged(&whole, &[0, size / 2, size, whole.len() - 56, whole.len() - 40, whole.len() - 1]);
    damages.extend([vec![0; whole.len()], [&whole[..], b"more"].concat(), b"#!/bin/sh\n".to_vec()]);
    for (number, damage) in damages.iter().enumerate() {
        fs::write(&file, damage).unwrap();
        assert_eq!(bench.read(0), content(0, size), "damage {number}");
        let stats = bench.stats();
        assert_eq!((stats.corrupt, stats.misses), (number as u64 + 1, number as u64 + 2), "{stats:?}");
        assert_eq!(fs::read(&file).unwrap(), whole, "healed");
        assert_eq!(stats.bytes, 8_192, "and counted right");
    }
}

#[test]
fn an_entry_of_another_object_in_its_place_is_not_taken_for_it() {
    let bench = Bench::new(2, 1_000, 1 << 20);
    bench.read(0);
    let first = entries(&bench.root()).remove(0);
    bench.read(1);
    let second = entries(&bench.root()).into_iter().find(|file| *file != first).unwrap();
    fs::copy(&first, &second).unwrap();
    assert_eq!(bench.read(1), content(1, 1_000));
    assert_eq!(bench.stats().corrupt, 1);
}

#[test]
fn links_and_directories_in_the_place_of_entries_lead_nowhere() {
    let bench = Bench::new(3, 1_000, 1 << 20);
    (0..3).for_each(|number| drop(bench.read(number)));
    let outside = bench.place.path().join("precious");
    fs::write(&outside, "mine").unwrap();
    let files = entries(&bench.root());
    fs::remove_file(&files[0]).unwrap();
    std::os::unix::fs::symlink(&outside, &files[0]).unwrap();
    fs::remove_file(&files[1]).unwrap();
    fs::create_dir(&files[1]).unwrap();
    fs::write(files[1].join("foreign"), "mine").unwrap();
    let shard = files[2].parent().unwrap();
    fs::rename(shard, bench.place.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(bench.place.path().join("moved"), shard).unwrap();
    for _ in 0..2 {
        (0..3).for_each(|number| assert_eq!(bench.read(number), content(number, 1_000)));
    }
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    assert_eq!(fs::read(files[1].join("foreign")).unwrap(), b"mine");
    assert!(fs::symlink_metadata(shard).unwrap().is_symlink());
    assert!(bench.cached.cache_notice().is_some(), "a directory that cannot be used is told");
}

#[test]
fn the_oldest_go_when_there_is_no_room_and_the_limit_holds() {
    let bench = Bench::new(40, 5_000, 10 * 8_192);
    // Each takes two blocks with what stands behind it.
    for number in 0..10 {
        bench.read(number);
        let file = entries(&bench.root());
        assert_eq!(file.len(), number + 1);
    }
    let by_number: HashMap<usize, PathBuf> = (0..10)
        .map(|number| {
            let name = path(number);
            let name = name.to_str().unwrap().as_bytes();
            let has = |file: &PathBuf| fs::read(file).unwrap().windows(name.len()).any(|window| window == name);
            (number, entries(&bench.root()).into_iter().find(has).unwrap())
        })
        .collect();
    for (number, file) in &by_number {
        // Of these the middle ones were used last.
        let age = if (4..8).contains(number) { 20 } else { 1_000 };
        let mtime = SystemTime::now() - Duration::from_secs(age);
        fs::File::options().write(true).open(file).unwrap().set_modified(mtime).unwrap();
    }
    // Used now, which is noted because the last time is long ago.
    bench.read(0);
    bench.read(20);
    let stats = bench.stats();
    assert!(stats.evictions >= 1 && stats.bytes <= 10 * 8_192, "{stats:?}");
    for number in [0, 4, 5, 6, 7] {
        assert!(by_number[&number].exists(), "{number} was used lately");
    }
    for number in 0..40 {
        bench.read(number);
        let held: u64 =
            entries(&bench.root()).iter().map(|file| fs::metadata(file).unwrap().len().div_ceil(4096) * 4096).sum();
        assert!(held <= 10 * 8_192, "{held}");
        assert_eq!(bench.stats().bytes, held);
    }
}

#[test]
fn an_object_larger_than_the_cache_passes() {
    let bench = Bench::new(1, 100_000, 50_000);
    (0..2).for_each(|_| assert_eq!(bench.read(0), content(0, 100_000)));
    let stats = bench.stats();
    assert_eq!((stats.passes, stats.misses, stats.bytes), (2, 0, 0));
    assert!(entries(&bench.root()).is_empty() && bench.cached.cache_notice().is_none());
}

#[test]
fn threads_that_want_one_object_get_it_once() {
    let bench = Bench::new(1, 50_000, 1 << 20);
    bench.store.script(path(0), vec![Fault::Wait]);
    let barrier = Barrier::new(17);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                assert_eq!(bench.read(0), content(0, 50_000));
            });
        }
        barrier.wait();
        while bench.store.reads(&path(0)) == 0 {
            std::thread::yield_now();
        }
        bench.store.release();
    });
    assert_eq!(bench.store.total_reads(), 1);
    let stats = bench.stats();
    assert_eq!((stats.hits, stats.misses, stats.passes), (15, 1, 0), "{stats:?}");
}

#[test]
fn a_read_that_failed_is_tried_by_the_next_and_keeps_nothing() {
    let bench = Bench::new(1, 500, 1 << 20);
    bench.store.script(path(0), vec![Fault::Errno(libc::EIO), Fault::Panic]);
    let error = bench.cached.read(&path(0), LONG, &mut unlimited).unwrap_err();
    assert!((error.kind(), error.is_transient()) == (Kind::Unavailable, true), "{error}");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.read(0)));
    assert!(panicked.is_err());
    assert!(entries(&bench.root()).is_empty(), "{:?}", entries(&bench.root()));
    assert_eq!(bench.read(0), content(0, 500));
    assert_eq!(bench.stats().misses, 1);
}

#[test]
fn a_waiter_whose_time_is_up_reads_by_itself_and_keeps_nothing() {
    let bench = Bench::new(1, 500, 1 << 20);
    bench.store.script(path(0), vec![Fault::Wait]);
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| bench.read(0));
        while bench.store.reads(&path(0)) == 0 {
            std::thread::yield_now();
        }
        let (within, started) = (Duration::from_millis(400), Instant::now());
        let object = bench.cached.read(&path(0), within, &mut unlimited).unwrap();
        assert!(started.elapsed() >= within / 2 && object.bytes == content(0, 500));
        // The same from another process, which knows nothing of the first one's threads.
        let other = Cached::new(Arc::clone(&bench.store) as _, Cache::open(&bench.root(), options(1 << 20)).unwrap());
        assert!(other.read(&path(0), within, &mut unlimited).unwrap().bytes == content(0, 500));
        assert_eq!((bench.stats().passes, other.cache().unwrap().passes), (1, 1));
        bench.store.release();
        assert_eq!(stuck.join().unwrap(), content(0, 500));
    });
    assert_eq!((bench.store.total_reads(), bench.stats().misses), (3, 1));
    assert_eq!(bench.read(0), content(0, 500));
    assert_eq!(bench.store.total_reads(), 3, "the one that was waited for kept it");
}

#[test]
fn a_stop_ends_the_waiting() {
    let bench = Bench::new(1, 500, 1 << 20);
    bench.store.script(path(0), vec![Fault::Wait]);
    let (stoppable, stop) = bench.cached.stoppable().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| bench.read(0));
        while bench.store.reads(&path(0)) == 0 {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| stoppable.read(&path(0), LONG, &mut unlimited).unwrap_err());
        stop.raise();
        assert_eq!(waiting.join().unwrap().kind(), Kind::Stopped);
        bench.store.release();
    });
}

#[test]
fn a_read_that_is_cancelled_lets_go_of_what_others_wait_for() {
    let bench = Bench::new(1, 500, 1 << 20);
    bench.store.script(path(0), vec![Fault::WaitCancel]);
    let (first, waiting) = (Cancel::default(), Cancel::default());
    // One that waits for the other thread's read, one that waits for the other process's, and one that goes on.
    let elsewhere = Cached::new(Arc::clone(&bench.store) as _, Cache::open(&bench.root(), options(1 << 20)).unwrap());
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| bench.cached.read_unless(&path(0), LONG, &first, &mut unlimited).unwrap_err());
        while bench.store.reads(&path(0)) == 0 {
            std::thread::yield_now();
        }
        let others = [&bench.cached, &elsewhere].map(|cached| {
            let (cached, waiting) = (cached.clone(), waiting.clone());
            scope.spawn(move || cached.read_unless(&path(0), LONG, &waiting, &mut unlimited).unwrap_err())
        });
        let patient = scope.spawn(|| bench.read(0));
        waiting.raise();
        others.into_iter().for_each(|other| assert_eq!(other.join().unwrap().kind(), Kind::Stopped));
        let started = Instant::now();
        first.raise();
        assert_eq!(stuck.join().unwrap().kind(), Kind::Stopped);
        assert_eq!(patient.join().unwrap(), content(0, 500));
        assert!(started.elapsed() < LONG / 4, "without waiting out its time: {:?}", started.elapsed());
    });
    assert_eq!((bench.store.total_reads(), bench.stats().misses, entries(&bench.root()).len()), (2, 1, 1));
}

#[test]
fn memory_is_asked_for_once_and_again_only_for_another_size() {
    let data = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = data.path().join("1.jpg");
    fs::write(&file, content(1, 3_000)).unwrap();
    let cached = Cached::new(Arc::new(Local), Cache::open(&place.path().join("cache"), options(1 << 20)).unwrap());
    let asked = |cached: &Cached| {
        let mut asked = Vec::new();
        let object = cached.read(&file, LONG, &mut |size| {
            asked.push(size);
            Ok(Vec::new())
        });
        (object.unwrap().bytes.to_vec(), asked)
    };
    assert_eq!(asked(&cached), (content(1, 3_000), vec![3_000]));
    assert_eq!(asked(&cached), (content(1, 3_000), vec![3_000]));
    let damage = || {
        let entry = entries(&place.path().join("cache")).remove(0);
        let mut bytes = fs::read(&entry).unwrap();
        bytes[7] ^= 1;
        fs::write(&entry, bytes).unwrap();
    };
    damage();
    assert_eq!(asked(&cached), (content(1, 3_000), vec![3_000]), "the memory of the damaged copy is used");
    damage();
    fs::write(&file, content(1, 4_000)).unwrap();
    assert_eq!(asked(&cached), (content(1, 4_000), vec![3_000, 4_000]));
}

#[test]
fn an_entry_is_trusted_until_it_is_doubted() {
    let data = tempfile::tempdir().unwrap();
    let bench = Bench::new(0, 0, 1 << 20);
    let file = data.path().join("1.jpg");
    let cached = Cached::new(Arc::new(Local), Arc::clone(&bench.cache));
    fs::write(&file, "old").unwrap();
    assert_eq!(read(&cached, &file), b"old");
    fs::write(&file, "newer").unwrap();
    assert_eq!(read(&cached, &file), b"old");
    let asks = cached.clone().revalidating(true);
    assert_eq!(read(&asks, &file), b"newer", "one that asks never gives the old one");
    assert_eq!(bench.stats().stale, 1);
    fs::write(&file, "newest").unwrap();
    cached.doubt(&file);
    assert_eq!(read(&cached, &file), b"newest");
    assert_eq!(bench.stats().bytes, 4_096);
    assert_eq!(cached.origin().unwrap().stat(&file).unwrap(), Local.stat(&file).unwrap());
}

/// A store of another place with the same paths.
#[derive(Debug)]
struct Elsewhere(Arc<dyn Store>, &'static str);

impl Store for Elsewhere {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        self.0.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.0.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.0.list(directory)
    }

    fn identity(&self) -> String {
        self.1.to_owned()
    }
}

#[test]
fn two_servers_with_the_same_names_are_not_mixed_up() {
    let bench = Bench::new(1, 100, 1 << 20);
    let mut other = Memory::default();
    other.insert(path(0), "other");
    let others = Cached::new(Arc::new(Elsewhere(Arc::new(other), "http://other")), Arc::clone(&bench.cache));
    for _ in 0..2 {
        assert_eq!((bench.read(0), read(&others, &path(0))), (content(0, 100), b"other".to_vec()));
    }
}

#[test]
fn a_directory_with_anything_in_it_is_refused_and_left_alone() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("thesis.tex"), "mine").unwrap();
    let error = Cache::open(place.path(), options(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.to_string().contains("contains \"thesis.tex\"") && error.hint().contains("`cache`"), "{error}");
    assert_eq!(files(place.path()).len(), 1);
    for check in [Cache::clear(place.path()).unwrap_err(), Cache::info(place.path()).unwrap_err()] {
        assert!(check.to_string().contains("is not a forebay cache"), "{check}");
    }
    // A directory of the user's that is called as one of ours would be.
    let models = tempfile::tempdir().unwrap();
    fs::create_dir(models.path().join("v1")).unwrap();
    let error = Cache::open(models.path(), options(1 << 20)).unwrap_err();
    assert!(error.to_string().contains("contains \"v1\""), "{error}");
    let error = Cache::open(&place.path().join("thesis.tex"), options(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), Kind::Config, "{error}");
    assert_eq!(Cache::info(&place.path().join("none")).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn clearing_beside_readers_is_no_trouble_for_them() {
    let bench = Bench::new(200, 100, 1 << 30);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2_000 {
                Cache::clear(&bench.root()).unwrap();
            }
            is_over.store(true, Relaxed);
        });
        for first in 0..4 {
            let (bench, is_over) = (&bench, &is_over);
            scope.spawn(move || {
                let numbers = (0..200).cycle().skip(first * 50).take_while(|_| !is_over.load(Relaxed));
                numbers.for_each(|number| assert_eq!(bench.read(number), content(number, 100)));
            });
        }
    });
    assert_eq!(bench.cached.cache_notice(), None);
}

#[test]
fn what_is_not_ours_survives_eviction_clearing_and_verifying() {
    let bench = Bench::new(50, 5_000, 4 * 8_192);
    bench.read(0);
    let root = bench.root();
    let shard = entries(&root)[0].parent().unwrap().to_owned();
    let hex = "0123456789abcdef0123456789abcd";
    let foreign = [
        root.join("notes.txt"),
        root.join("v1/README"),
        shard.join("mine.jpg"),
        shard.join(format!("{hex}.bak")),
        shard.join(&hex[1..]),
        shard.join(hex.to_uppercase()),
        root.join("v1/zz").join(hex),
    ];
    for file in &foreign {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "mine").unwrap();
    }
    // Another version's, which this one does not read.
    let other = root.join("v2/00").join(hex);
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(&other, "of the future").unwrap();
    (0..50).for_each(|number| assert_eq!(bench.read(number), content(number, 5_000)));
    assert!(bench.stats().evictions > 40);
    let all_there = || foreign.iter().all(|file| fs::read(file).is_ok_and(|text| text == b"mine"));
    assert!(all_there() && other.exists());
    let info = Cache::info(&root).unwrap();
    assert_eq!((info.entries, info.bytes), (entries(&root).len() as u64, bench.stats().bytes), "{info:?}");
    assert_eq!((info.other_formats.0, info.limit_bytes), (1, Some(4 * 8_192)));
    assert!(info.foreign >= 5, "{info:?}");
    let file = entries(&root).remove(0);
    let length = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(length - 1).unwrap();
    let verified = Cache::verify(&root, &mut |_, _| {}).unwrap();
    assert_eq!((verified.entries, verified.damaged.len()), (info.entries - 1, 1), "{verified:?}");
    assert!(verified.damaged[0].is_removed && !file.exists() && all_there() && other.exists());
    assert!(Cache::verify(&root, &mut |_, _| {}).unwrap().damaged.is_empty());
    let cleared = Cache::clear(&root).unwrap();
    assert_eq!(cleared.entries, info.entries - 1 + 1, "those of the other version too");
    assert!(entries(&root).is_empty() && !other.exists() && all_there());
    assert_eq!(bench.stats().bytes, 0);
    assert_eq!(bench.read(7), content(7, 5_000), "it is still a cache");
    assert_eq!(bench.stats().bytes, 8_192);
}

#[test]
fn a_count_that_is_lost_or_wrong_is_counted_anew() {
    let bench = Bench::new(8, 5_000, 1 << 20);
    (0..4).for_each(|number| drop(bench.read(number)));
    let usage = bench.root().join("v1/usage");
    let whole = fs::read(&usage).unwrap();
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    for (number, damage) in
        [None, Some(vec![]), Some(flipped), Some(whole[..100].to_vec()), Some(vec![0; 5_000])].into_iter().enumerate()
    {
        match damage {
            Some(bytes) => fs::write(&usage, bytes).unwrap(),
            None => fs::remove_file(&usage).unwrap(),
        }
        if number < 4 {
            bench.read(4 + number);
        } else {
            Cache::open(&bench.root(), options(1 << 20)).unwrap();
        }
        assert_eq!(bench.stats().bytes, entries(&bench.root()).len() as u64 * 8_192, "damage {number}");
    }
}

#[test]
fn a_cache_that_was_removed_in_the_middle_of_a_run_comes_back() {
    let bench = Bench::new(4, 1_000, 1 << 20);
    bench.read(0);
    fs::remove_dir_all(bench.root()).unwrap();
    assert_eq!(bench.read(1), content(1, 1_000));
    assert!(bench.cached.cache_notice().is_some_and(|said| said.contains("cannot store everything")));
    let until = Instant::now() + Duration::from_secs(20);
    while entries(&bench.root()).is_empty() {
        assert!(Instant::now() < until, "{:?}", bench.stats());
        assert_eq!(bench.read(2), content(2, 1_000));
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = bench.store.total_reads();
    assert_eq!(bench.read(2), content(2, 1_000));
    assert_eq!(bench.store.total_reads(), before);
}

#[test]
fn a_lock_that_somebody_keeps_does_not_stop_anybody() {
    let bench = Bench::new(3, 1_000, 1 << 20);
    bench.read(0);
    // As a process that was stopped at the wrong moment.
    let usage = fs::File::open(bench.root().join("v1/usage")).unwrap();
    usage.lock().unwrap();
    let started = Instant::now();
    assert_eq!(bench.read(1), content(1, 1_000));
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(bench.read(0), content(0, 1_000), "what is there can be read");
    let started = Instant::now();
    assert_eq!(bench.read(2), content(2, 1_000));
    assert!(started.elapsed() < Duration::from_secs(1), "and is not waited for each time");
    assert_eq!((bench.stats().passes, bench.stats().hits), (2, 1));
    assert!(bench.cached.cache_notice().unwrap().contains("lslocks"));
    let entry = entries(&bench.root()).remove(0);
    fs::write(&entry, "damaged").unwrap();
    assert_eq!(bench.read(0), content(0, 1_000));
    assert!(!entry.exists(), "what is damaged goes without the lock");
}

#[test]
fn a_stat_that_fails_is_an_error_where_it_was_asked_for() {
    let bench = Bench::new(0, 0, 1 << 20);
    let asks = bench.cached.clone().revalidating(true);
    let error: Error = asks.read(&path(5), LONG, &mut unlimited).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}
