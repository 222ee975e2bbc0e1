//! The cache on disks that are full, read-only or limited, and its owners killed: real file systems, real processes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Kind, Listing, Result};
use forebay_store::testing::{Memory, missing};
use forebay_store::{Allot, Cache, CacheOptions, Cached, Object, ReadRequest, Stat, Store};
use tempfile::TempDir;

use crate::cache::{entries, read, unlimited};

const SIZE: usize = 60_000;
const LONG: Duration = Duration::from_secs(60);

fn path(number: usize) -> PathBuf {
    PathBuf::from(format!("/data/{number}.jpg"))
}

fn content(number: usize) -> Vec<u8> {
    (0..SIZE).map(|at| (at * 3 + number) as u8).collect()
}

fn memory(count: usize) -> Arc<dyn Store> {
    let mut memory = Memory::default();
    (0..count).for_each(|number| memory.insert(path(number), content(number)));
    Arc::new(memory)
}

fn options(limit_bytes: u64) -> CacheOptions {
    CacheOptions { limit_bytes: Some(limit_bytes), pause: Duration::from_millis(100) }
}

/// Something mounted, until it is dropped.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    /// A file system in memory; `None` where mounting is allowed to be impossible.
    pub(crate) fn tmpfs(point: &Path, settings: &str) -> Option<Self> {
        fs::create_dir_all(point).unwrap();
        Self::mount("tmpfs", point, "tmpfs", 0, settings)
    }

    fn mount(source: &str, point: &Path, kind: &str, flags: libc::c_ulong, settings: &str) -> Option<Self> {
        let text = |bytes: &[u8]| std::ffi::CString::new(bytes).unwrap();
        let (source, target) = (text(source.as_bytes()), text(point.as_os_str().as_bytes()));
        let (kind, settings) = (text(kind.as_bytes()), text(settings.as_bytes()));
        // SAFETY: all are C strings for the length of the call.
        let answer =
            unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, settings.as_ptr().cast()) };
        if answer != 0 {
            missing("mount", &format!("mounting failed: {}", std::io::Error::last_os_error()));
            return None;
        }
        Some(Self(point.to_owned()))
    }

    /// A file system that answers nothing until the file beside it is closed.
    fn hung(point: &Path) -> Option<(Self, fs::File)> {
        let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device =
            device.inspect_err(|error| missing("fuse", &format!("/dev/fuse cannot be opened: {error}"))).ok()?;
        let settings = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        Some((Self::mount("hung", point, "fuse", 0, &settings)?, device))
    }

    fn read_only(&self, is_read_only: bool) {
        let flag = if is_read_only { libc::MS_RDONLY } else { 0 };
        let again = Self::mount("", &self.0, "", libc::MS_REMOUNT | flag, "");
        // It is one mount, which is unmounted once.
        std::mem::forget(again.unwrap());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = std::ffi::CString::new(self.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string for the length of the call.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Writes until nothing more fits.
pub(crate) fn fill_up(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    for size in [1 << 16, 1 << 12] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

#[test]
fn a_full_disk_makes_the_cache_smaller_and_fails_nothing() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Mounted::tmpfs(place.path(), "size=2m") else { return };
    let root = disk.0.join("cache");
    let cache = Cache::open(&root, options(100 << 20)).unwrap();
    let cached = Cached::new(memory(100), Arc::clone(&cache));
    // The limit is more than the disk has.
    for number in 0..60 {
        assert_eq!(read(&cached, &path(number)), content(number), "{number}");
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.misses > 30, "{stats:?}");
    assert!(stats.limit_bytes < 2 << 20, "{stats:?}");
    let said = cached.cache_notice().unwrap();
    assert!(said.contains("No space left on device") && said.contains("is full (bytes free: "), "{said}");
    // Somebody else takes what is left, and what is given up.
    fill_up(&disk.0.join("filler"));
    for number in 60..100 {
        assert_eq!(read(&cached, &path(number)), content(number), "{number}");
    }
    assert!(!entries(&root).is_empty(), "what was there stays of use");
    fs::remove_file(disk.0.join("filler")).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let (before, mut number) = (cache.stats().misses, 0);
    while cache.stats().misses < before + 10 {
        assert!(Instant::now() < until, "it keeps things again: {:?}", cache.stats());
        read(&cached, &path(number % 100));
        number += 1;
    }
    assert_eq!(Cache::verify(&root, &mut |_, _| {}).unwrap().damaged, []);
}

#[test]
fn a_disk_without_inodes_passes() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Mounted::tmpfs(place.path(), "size=2m,nr_inodes=12") else { return };
    let cached = Cached::new(memory(30), Cache::open(&disk.0.join("cache"), options(1 << 20)).unwrap());
    for round in 0..2 {
        (0..30).for_each(|number| assert_eq!(read(&cached, &path(number)), content(number), "{round}"));
    }
    let stats = cached.cache().unwrap();
    assert!(stats.passes > 20, "{stats:?}");
    assert!(cached.cache_notice().unwrap().contains("inodes free: 0"), "{:?}", cached.cache_notice());
}

#[test]
fn a_disk_that_runs_out_of_inodes_makes_the_cache_smaller() {
    let place = tempfile::tempdir().unwrap();
    // Some 230 directories will be made for 600 objects, and this many objects do not fit beside them.
    let Some(disk) = Mounted::tmpfs(place.path(), "size=80m,nr_inodes=400") else { return };
    let cache = Cache::open(&disk.0.join("cache"), options(70 << 20)).unwrap();
    let cached = Cached::new(memory(600), Arc::clone(&cache));
    for number in 0..600 {
        assert_eq!(read(&cached, &path(number)), content(number), "{number}");
    }
    let stats = cache.stats();
    assert!(stats.evictions > 100 && stats.misses > 500, "{stats:?}");
    assert!(cached.cache_notice().unwrap().contains("inodes free: 0"), "{:?}", cached.cache_notice());
}

#[test]
fn a_disk_that_becomes_read_only_is_read() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Mounted::tmpfs(place.path(), "size=4m") else { return };
    let root = disk.0.join("cache");
    let cached = Cached::new(memory(20), Cache::open(&root, options(1 << 20)).unwrap());
    (0..5).for_each(|number| drop(read(&cached, &path(number))));
    disk.read_only(true);
    (0..10).for_each(|number| assert_eq!(read(&cached, &path(number)), content(number)));
    let stats = cached.cache().unwrap();
    assert_eq!((stats.hits, stats.passes, stats.misses), (5, 5, 5), "{stats:?}");
    assert!(cached.cache_notice().unwrap().contains("is mounted read-only"), "{:?}", cached.cache_notice());
    let before = cached.cache().unwrap();
    cached.doubt(&path(3));
    (0..2).for_each(|_| assert_eq!(read(&cached, &path(3)), content(3)));
    let after = cached.cache().unwrap();
    assert_eq!((after.hits, after.passes), (before.hits, before.passes + 2), "what is doubted is not read from it");
    // One that begins like that, too.
    let late = Cached::new(memory(20), Cache::open(&root, options(1 << 20)).unwrap());
    (0..10).for_each(|number| assert_eq!(read(&late, &path(number)), content(number)));
    assert_eq!((late.cache().unwrap().hits, late.cache().unwrap().passes), (5, 5));
    let new = Cached::new(memory(20), Cache::open(&disk.0.join("new"), options(1 << 20)).unwrap());
    assert_eq!(read(&new, &path(1)), content(1));
    assert!(new.cache_notice().is_some());
    disk.read_only(false);
    let until = Instant::now() + Duration::from_secs(20);
    while new.cache().unwrap().hits == 0 {
        assert!(Instant::now() < until);
        read(&new, &path(1));
    }
}

#[test]
fn a_disk_that_hangs_holds_up_only_the_thread_that_tries_it() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("cache");
    let cache = Cache::open(&root, options(1 << 20)).unwrap();
    let cached = Arc::new(Cached::new(memory(10), Arc::clone(&cache)));
    read(&*cached, &path(0));
    // It is gone: nothing is written for a while.
    fs::remove_dir_all(&root).unwrap();
    read(&*cached, &path(1));
    assert!(cache.notice().is_some());
    fs::create_dir(&root).unwrap();
    let Some((hung, device)) = Mounted::hung(&root) else { return };
    // From now on whoever finds the pause over tries the directory, and is stuck in it.
    let (told, tell) = std::sync::mpsc::channel();
    let trying = std::thread::Builder::new().spawn({
        let cached = Arc::clone(&cached);
        move || {
            let until = Instant::now() + Duration::from_secs(20);
            while Instant::now() < until {
                let started = Instant::now();
                read(&*cached, &path(2));
                if started.elapsed() > Duration::from_secs(1) {
                    return told.send(true).unwrap();
                }
            }
            told.send(false).unwrap();
        }
    });
    let stuck = || tell.recv_timeout(Duration::from_secs(1));
    // It reads without end until it is stuck, and then says nothing.
    let until = Instant::now() + Duration::from_secs(10);
    let mut passes = cache.stats().passes;
    loop {
        assert!(Instant::now() < until, "nobody tried the directory");
        assert!(stuck().is_err(), "the directory did not hang");
        if std::mem::replace(&mut passes, cache.stats().passes) == passes {
            break;
        }
    }
    for number in 3..10 {
        assert_eq!(read(&*cached, &path(number)), content(number), "the others are not stuck with it");
    }
    assert_eq!(cache.stats().passes, passes + 7);
    drop(device);
    assert_eq!(tell.recv_timeout(Duration::from_secs(20)), Ok(true));
    trying.unwrap().join().unwrap();
    drop(hung);
}

/// Makes a path one that nobody may change, root included, until it is dropped.
struct Immutable<'a>(&'a Path);

impl<'a> Immutable<'a> {
    fn new(path: &'a Path) -> Option<Self> {
        let is_done =
            Command::new("chattr").arg("+i").arg(path).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
        if !is_done {
            missing("chattr", "it cannot protect files here");
        }
        is_done.then_some(Self(path))
    }
}

impl Drop for Immutable<'_> {
    fn drop(&mut self) {
        assert!(Command::new("chattr").arg("-i").arg(self.0).status().unwrap().success());
    }
}

#[test]
fn what_may_not_be_changed_is_passed_by_and_read() {
    let (_place, root) = root();
    let cached = Cached::new(memory(40), Cache::open(&root, options(10 * 65_536)).unwrap());
    (0..3).for_each(|number| drop(read(&cached, &path(number))));
    let (folder, kept) = (root.join("v1"), entries(&root).remove(0));
    {
        let Some(_folder) = Immutable::new(&folder) else { return };
        (0..40).for_each(|number| assert_eq!(read(&cached, &path(number)), content(number)));
        let stats = cached.cache().unwrap();
        assert!(stats.hits >= 3 && stats.passes > 30, "{stats:?}");
        assert!(cached.cache_notice().unwrap().contains("Operation not permitted"), "{:?}", cached.cache_notice());
    }
    // An entry that cannot be evicted is not the end of evicting.
    let Some(_kept) = Immutable::new(&kept) else { return };
    let until = Instant::now() + Duration::from_secs(20);
    while cached.cache().unwrap().evictions < 10 {
        assert!(Instant::now() < until, "{:?}", cached.cache());
        (0..40).for_each(|number| assert_eq!(read(&cached, &path(number)), content(number)));
    }
    assert!(kept.exists() && cached.cache().unwrap().bytes <= 10 * 65_536);
}

#[test]
fn what_may_not_be_written_is_a_wrong_setting() {
    let error = Cache::open(Path::new("/proc/forebay"), options(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.to_string().contains("cannot be the cache"), "{error}");
}

/// Objects that take their time, and a line on stdout for each that is asked for.
#[derive(Debug)]
struct Slow(Arc<dyn Store>, Duration);

impl Store for Slow {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        writeln!(std::io::stdout().lock(), "fetch {}", request.path.display()).unwrap();
        std::thread::sleep(self.1);
        self.0.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.0.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        self.0.list(directory)
    }
}

/// Another process, which reads one object, by several threads.
#[test]
#[ignore = "run by `start`, for the tests below"]
fn child() {
    let root = PathBuf::from(std::env::var_os("FOREBAY_CACHE_CHILD").unwrap());
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let slow = Slow(memory(10), Duration::from_millis(number("FOREBAY_CACHE_MILLISECONDS")));
    let cache = Cache::open(&root, options(1 << 20)).unwrap();
    let cached = Cached::new(Arc::new(slow), cache);
    std::thread::scope(|scope| {
        for _ in 0..number("FOREBAY_CACHE_THREADS") {
            scope.spawn(|| assert_eq!(read(&cached, &path(3)), content(3)));
        }
    });
    let stats = cached.cache().unwrap();
    writeln!(std::io::stdout().lock(), "done {} {} {}", stats.hits, stats.misses, stats.passes).unwrap();
}

fn start(root: &Path, threads: u32, milliseconds: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "cache_disk::child", "--nocapture", "--test-threads=1"])
        .env("FOREBAY_CACHE_CHILD", root)
        .env("FOREBAY_CACHE_THREADS", threads.to_string())
        .env("FOREBAY_CACHE_MILLISECONDS", milliseconds.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until a child has asked its store.
fn asked(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("fetch ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
    }
    said
}

fn finished(mut child: Child) -> (usize, String) {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    let done = said.lines().find_map(|line| line.split_once("done ")).map(|(_, counts)| counts.to_owned());
    (said.matches("fetch ").count(), done.unwrap())
}

fn root() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("cache");
    (place, root)
}

#[test]
fn processes_that_want_one_object_get_it_once() {
    let (_place, root) = root();
    let children: Vec<_> = (0..4).map(|_| start(&root, 8, 700)).collect();
    let done: Vec<_> = children.into_iter().map(finished).collect();
    assert_eq!(done.iter().map(|(fetches, _)| fetches).sum::<usize>(), 1, "{done:?}");
    assert_eq!(done.iter().filter(|(_, counts)| counts == "8 0 0").count(), 3, "{done:?}");
    assert_eq!(done.iter().filter(|(_, counts)| counts == "7 1 0").count(), 1, "{done:?}");
}

#[test]
fn when_the_one_that_gets_it_is_killed_another_one_takes_over() {
    let (_place, root) = root();
    let mut first = start(&root, 4, 60_000);
    let _said = asked(&mut first);
    // What it would have written lies there, locked.
    assert_eq!(entries(&root).len(), 1);
    let others: Vec<_> = (0..3).map(|_| start(&root, 4, 50)).collect();
    first.kill().unwrap();
    first.wait().unwrap();
    let started = Instant::now();
    let done: Vec<_> = others.into_iter().map(finished).collect();
    assert_eq!(done.iter().map(|(fetches, _)| fetches).sum::<usize>(), 1, "{done:?}");
    assert!(started.elapsed() < Duration::from_secs(15), "without waiting out its time: {:?}", started.elapsed());
    let held = Cache::info(&root).unwrap();
    assert_eq!((held.entries, held.parts), (1, 0));
}

#[test]
fn one_that_is_stopped_and_not_dead_is_waited_for_half_the_time() {
    let (_place, root) = root();
    let mut first = start(&root, 1, 60_000);
    let _said = asked(&mut first);
    let cached = Cached::new(memory(10), Cache::open(&root, options(1 << 20)).unwrap());
    let started = Instant::now();
    let object = cached.read(&path(3), Duration::from_secs(1), &mut unlimited).unwrap();
    assert!(object.bytes == content(3));
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_millis(500) && elapsed < Duration::from_millis(950), "{elapsed:?}");
    assert_eq!(cached.cache().unwrap().passes, 1);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(cached.read(&path(3), LONG, &mut unlimited).unwrap().bytes == content(3));
    assert_eq!(cached.cache().unwrap().misses, 1, "and then it is kept");
}

#[test]
fn what_the_dead_left_behind_is_swept_up() {
    let (_place, root) = root();
    let mut first = start(&root, 1, 60_000);
    let _said = asked(&mut first);
    first.kill().unwrap();
    first.wait().unwrap();
    let part = entries(&root).remove(0);
    // As if it had been killed while it wrote.
    fs::File::options().write(true).open(&part).unwrap().set_len(500_000).unwrap();
    fs::remove_file(root.join("v1/usage")).unwrap();
    let cached = Cached::new(memory(10), Cache::open(&root, options(200_000)).unwrap());
    assert!(!part.exists());
    for number in 0..10 {
        assert_eq!(read(&cached, &path(number)), content(number));
    }
    let stats = cached.cache().unwrap();
    assert!(stats.misses == 10 && stats.bytes <= 200_000, "{stats:?}");
}

#[test]
fn a_forked_child_uses_the_cache_of_its_parent() {
    let (_place, root) = root();
    let cached = Cached::new(memory(10), Cache::open(&root, options(1 << 20)).unwrap());
    read(&cached, &path(1));
    // SAFETY: the child reads, and leaves without unwinding or exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = read(&cached, &path(1)) == content(1) && read(&cached, &path(2)) == content(2);
        let stats = cached.cache().unwrap_or_default();
        let is_counted = (stats.hits, stats.misses) == (1, 2);
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!(is_right && is_counted))) };
    }
    let mut status = 0;
    // SAFETY: it is this test's own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(read(&cached, &path(2)), content(2));
    assert_eq!(cached.cache().unwrap().hits, 1, "what the child kept");
}
