//! Several processes on one small cache, killed at random, while its files are flipped, cut and replaced and its disk is
//! filled: no wrong byte, no more than the limit, nothing foreign lost, and nothing got twice while it is there.
//!
//! Six seconds of it here; `make torture-cache` runs two minutes and prints what it saw.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_core::{Listing, Result, hash_words};
use forebay_store::{Allot, Cache, CacheOptions, Cached, Object, ReadRequest, Stat, Store};

use crate::cache::{entries, unlimited};
use crate::cache_disk::{Mounted, fill_up};

const PROCESSES: usize = 4;
const THREADS: usize = 16;
const OBJECTS: u64 = 2_000;
const MAX_OBJECT: u64 = 128_000;

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 += 1;
        hash_words(&[self.0]) % bound
    }
}

fn size(number: u64) -> u64 {
    1_000 + hash_words(&[number, 1]) % (MAX_OBJECT - 1_000)
}

fn content(number: u64) -> Vec<u8> {
    let words = size(number).div_ceil(8);
    let mut bytes: Vec<u8> = (0..words).flat_map(|word| hash_words(&[number, word]).to_le_bytes()).collect();
    bytes.truncate(size(number) as usize);
    bytes
}

/// What is cached: made up, a few milliseconds away, and every read of it written down.
#[derive(Debug)]
struct Origin {
    log: File,
    contents: Vec<Vec<u8>>,
}

impl Store for Origin {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let number: u64 = request.path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        (&self.log).write_all(format!("{number}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_micros(500 + hash_words(&[number, 2]) % 3_000));
        let stat = self.stat(request.path)?;
        let range = request.bytes_of(stat)?;
        let mut bytes = allot(range.end - range.start)?;
        bytes.clear();
        bytes.extend_from_slice(&self.contents[number as usize][range.start as usize..range.end as usize]);
        Ok(Object { bytes: bytes.into(), stat })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let number: u64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        Ok(Stat { size_bytes: size(number), mtime_ns: 1 })
    }

    fn list(&self, _: &Path) -> Result<Listing> {
        Ok(Listing::new((0, 0)))
    }
}

/// One of the processes. It reads until it is killed.
#[test]
#[ignore = "run by a_tortured_cache_gives_no_wrong_byte"]
fn child() {
    let text = |name: &str| std::env::var(name).unwrap();
    let work = &PathBuf::from(text("FOREBAY_TORTURE"));
    let (root, seed) =
        (PathBuf::from(text("FOREBAY_TORTURE_CACHE")), text("FOREBAY_TORTURE_SEED").parse::<u64>().unwrap());
    let log = File::options().append(true).create(true).open(work.join("fetches")).unwrap();
    let origin = Origin { log, contents: (0..OBJECTS).map(content).collect() };
    let counts = Mutex::new(File::create(work.join(format!("counts-{seed}"))).unwrap());
    let limit_bytes = Some(text("FOREBAY_TORTURE_LIMIT").parse().unwrap());
    let cache = Cache::open(&root, CacheOptions { limit_bytes, pause: Duration::from_millis(300) }).unwrap();
    let origin = Arc::new(origin);
    let cached = Cached::new(Arc::clone(&origin) as _, Arc::clone(&cache));
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (cached, cache, counts, origin) = (&cached, &cache, &counts, &origin);
            scope.spawn(move || {
                let mut dice = Dice(hash_words(&[seed, thread]));
                loop {
                    // Half of them of the few that fit, so that there is something to hit.
                    let number = if dice.below(2) == 0 { dice.below(OBJECTS) } else { dice.below(OBJECTS / 40) };
                    let path = Path::new("/made/up").join(number.to_string());
                    let (within, whole) = (Duration::from_secs(20), &origin.contents[number as usize]);
                    let read = match dice.below(3) {
                        // A quarter of it, as a shard would be asked for its samples.
                        0 => {
                            let (quarter, length) = (dice.below(4), whole.len() as u64);
                            let range = quarter * length / 4..(quarter + 1) * length / 4;
                            let expected = &whole[range.start as usize..range.end as usize];
                            let stat = origin.stat(&path).unwrap();
                            let request = ReadRequest::new(&path, within).with_range(range).with_expected(stat);
                            cached.fetch(&request, &mut unlimited).map(|object| object.bytes == *expected)
                        }
                        _ => cached.read(&path, within, &mut unlimited).map(|object| object.bytes == *whole),
                    };
                    let is_right = *read.as_ref().unwrap_or(&false);
                    if !is_right {
                        let why = read.map_or_else(|error| error.to_string(), |_| "other bytes".to_owned());
                        fs::write(work.join(format!("wrong-{seed}")), format!("{number}: {why}")).unwrap();
                        std::process::abort();
                    }
                    let file = counts.lock().unwrap();
                    let stats = cache.stats();
                    let words = [stats.hits, stats.misses, stats.passes, stats.corrupt, stats.evictions];
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    file.write_all_at(&bytes, 0).unwrap();
                }
            });
        }
    });
}

struct Torture {
    work: PathBuf,
    root: PathBuf,
    limit: u64,
    started: u64,
}

impl Torture {
    fn start(&mut self) -> Child {
        self.started += 1;
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "cache_torture::child", "--nocapture", "--test-threads=1"])
            .env("FOREBAY_TORTURE", &self.work)
            .env("FOREBAY_TORTURE_CACHE", &self.root)
            .env("FOREBAY_TORTURE_LIMIT", self.limit.to_string())
            .env("FOREBAY_TORTURE_SEED", self.started.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn counts(&self) -> [u64; 5] {
        let mut total = [0; 5];
        for seed in 1..=self.started {
            let bytes = fs::read(self.work.join(format!("counts-{seed}"))).unwrap_or_default();
            for (sum, word) in total.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum += u64::from_le_bytes(word.try_into().unwrap());
            }
        }
        total
    }

    fn assert_nothing_wrong(&self) {
        for seed in 1..=self.started {
            if let Ok(said) = fs::read_to_string(self.work.join(format!("wrong-{seed}"))) {
                panic!("a wrong byte or a failed read: {said}");
            }
        }
    }
}

/// What came and went in the directories of entries, as the kernel saw it.
#[derive(Default)]
struct Residences {
    is_there: HashMap<Vec<u8>, bool>,
    begun: u64,
    /// Entries that came while they were there: got twice in one residence.
    twice: u64,
}

impl Residences {
    fn note(&mut self, name: &[u8], mask: u32) {
        if name.ends_with(b".part") || name.len() != 30 {
            return;
        }
        let is_there = self.is_there.entry(name.to_owned()).or_default();
        if mask & libc::IN_MOVED_TO == 0 {
            *is_there = false;
            return;
        }
        self.begun += 1;
        if *is_there {
            self.twice += 1;
            eprintln!("{:?} came while it was there", String::from_utf8_lossy(name));
        }
        *is_there = true;
    }
}

/// Watches all directories of entries.
fn watch(root: &Path) -> File {
    // SAFETY: takes no memory.
    let descriptor = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
    assert!(descriptor >= 0);
    for shard in 0..256 {
        let path = root.join(format!("v1/{shard:02x}"));
        fs::create_dir_all(&path).unwrap();
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string for the length of the call.
        let watch = unsafe { libc::inotify_add_watch(descriptor, path.as_ptr(), libc::IN_MOVED_TO | libc::IN_DELETE) };
        assert!(watch >= 0, "{}", std::io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nobody else has it.
    unsafe { File::from_raw_fd(descriptor) }
}

/// Takes over what the kernel has seen so far.
fn observe(events: &File, residences: &mut Residences) {
    let mut buffer = [0; 1 << 16];
    loop {
        let Ok(count) = std::io::Read::read(&mut &*events, &mut buffer) else { return };
        let mut rest = &buffer[..count];
        while rest.len() >= 16 {
            let number = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            let (mask, length) = (number(4), number(12) as usize);
            assert_eq!(mask & libc::IN_Q_OVERFLOW, 0, "too much happened to be seen");
            let name: Vec<u8> = rest[16..16 + length].iter().copied().take_while(|byte| *byte != 0).collect();
            residences.note(&name, mask);
            rest = &rest[16 + length..];
        }
    }
}

/// Does something to one file of the cache.
fn damage(root: &Path, precious: &Path, dice: &mut Dice) {
    let found = entries(root);
    if found.is_empty() {
        return;
    }
    let file = &found[dice.below(found.len() as u64) as usize];
    // Whatever fails: the file is gone by now, or a link from an earlier round.
    let open = || File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(file).ok();
    let length = fs::metadata(file).map_or(0, |metadata| metadata.len());
    let _done = match dice.below(10) {
        0..=4 => open().map(|open| {
            let mut byte = [0];
            let at = dice.below(length.max(1));
            let _read = open.read_exact_at(&mut byte, at);
            open.write_all_at(&[byte[0] ^ 1 << dice.below(8)], at)
        }),
        5..=6 => open().map(|open| open.set_len(dice.below(length.max(1)))),
        7 => open().map(|open| open.set_len(length + 1 + dice.below(5_000))),
        8 => Some(fs::remove_file(file)),
        _ => Some(fs::remove_file(file).and_then(|()| std::os::unix::fs::symlink(precious, file))),
    };
    if dice.below(40) == 0 {
        let usage = File::options().write(true).open(root.join("v1/usage"));
        let _done = usage.map(|usage| match dice.below(2) {
            0 => usage.set_len(dice.below(2_000)),
            _ => usage.write_all_at(&[dice.below(256) as u8; 16], dice.below(2_000)),
        });
    }
}

/// Bytes of entries on the disk, whole or not.
fn held(root: &Path) -> u64 {
    let length = |file: &PathBuf| fs::symlink_metadata(file).map_or(0, |metadata| metadata.len());
    entries(root).iter().map(|file| length(file).div_ceil(4_096) * 4_096).sum()
}

fn foreign(root: &Path) -> Vec<(PathBuf, u64)> {
    let names = ["mine.txt", "v1/mine", "v1/7f/mine.jpg", "v1/00/0123456789abcdef0123456789abcd.bak", "v3/00/x"];
    let write = |name: &str| {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, name).unwrap();
        let inode = fs::metadata(&file).unwrap().ino();
        (file, inode)
    };
    names.map(write).into()
}

#[test]
fn a_tortured_cache_gives_no_wrong_byte() {
    let seconds = std::env::var("FOREBAY_TORTURE_SECONDS").map_or(6, |text| text.parse::<u64>().unwrap());
    let place = tempfile::tempdir().unwrap();
    let data: u64 = (0..OBJECTS).map(size).sum();
    let limit = data * 3 / 100;
    // Without the right to mount, the disk is not filled.
    let disk = Mounted::tmpfs(&place.path().join("disk"), &format!("size={}", 2 * limit));
    let root = place.path().join("disk/cache");
    let mut torture = Torture { work: place.path().to_owned(), root: root.clone(), limit, started: 0 };
    drop(Cache::open(&root, CacheOptions { limit_bytes: Some(limit), ..CacheOptions::default() }).unwrap());
    let (events, foreign, precious) = (watch(&root), foreign(&root), place.path().join("precious"));
    fs::write(&precious, "mine").unwrap();

    let mut children: Vec<Child> = (0..PROCESSES).map(|_| torture.start()).collect();
    let (started, is_over) = (Instant::now(), AtomicBool::new(false));
    let (residences, most, damages) = (Mutex::new(Residences::default()), AtomicU64::new(0), AtomicU64::new(0));
    let (mut kills, mut fills) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                observe(&events, &mut residences.lock().unwrap());
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                most.fetch_max(held(&root), SeqCst);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        scope.spawn(|| {
            let mut dice = Dice(7);
            while !is_over.load(SeqCst) {
                damage(&root, &precious, &mut dice);
                damages.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        let every = if seconds < 30 { 1 } else { 5 };
        let mut dice = Dice(started.elapsed().subsec_nanos().into());
        for tick in 1..=seconds {
            std::thread::sleep((started + Duration::from_secs(tick)).saturating_duration_since(Instant::now()));
            torture.assert_nothing_wrong();
            if tick % every == 0 && tick < seconds {
                let mut victim = children.remove(dice.below(PROCESSES as u64) as usize);
                victim.kill().unwrap();
                victim.wait().unwrap();
                kills += 1;
                children.push(torture.start());
            }
            let filler = place.path().join("disk/filler");
            match tick % (2 * every + 1) {
                1 if disk.is_some() => {
                    fill_up(&filler);
                    fills += 1;
                }
                2 => drop(fs::remove_file(&filler)),
                _ => {}
            }
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        is_over.store(true, SeqCst);
    });
    torture.assert_nothing_wrong();
    let residences = residences.into_inner().unwrap();
    let fetches = fs::read_to_string(place.path().join("fetches")).unwrap().lines().count() as u64;
    let [hits, misses, passes, corrupt, evictions] = torture.counts();
    let most = most.into_inner();
    eprintln!(
        "{seconds} s, {PROCESSES} processes of {THREADS} threads, {kills} killed, {} files attacked, disk filled {fills} times\n\
         {} reads: {hits} hits, {misses} misses, {passes} passes; {fetches} fetches\n\
         {corrupt} entries found damaged, {evictions} evicted, {} residences, {} of them fetched for twice\n\
         limit {limit} bytes ({data} of data), most held {most}",
        damages.into_inner(),
        hits + misses + passes,
        residences.begun,
        residences.twice,
    );
    for (file, inode) in &foreign {
        assert_eq!(fs::metadata(file).map(|metadata| metadata.ino()).ok(), Some(*inode), "{file:?}");
        assert!(root.join(fs::read_to_string(file).unwrap()) == *file);
    }
    assert!(fs::read(&precious).unwrap() == b"mine");
    assert!(hits > 100 && misses > 100 && corrupt > 0 && evictions > 0, "it was not much of a torture");
    // Whoever was killed may have had one object in hand for each thread, and told nobody.
    let untold = (kills + PROCESSES as u64) * THREADS as u64;
    let told = misses + passes;
    assert!(told <= fetches && fetches <= told + untold, "fetches: {fetches}, of which told: {told}");
    assert!(residences.begun + passes + untold >= fetches, "each fetch is an entry, or passed on");
    assert_eq!(residences.twice, 0, "an object was got that was there");
    let slack = (PROCESSES * THREADS) as u64 * MAX_OBJECT.div_ceil(4_096) * 4_096;
    assert!(most <= limit + slack, "the limit is {limit}, and {most} were held");
    let verified = Cache::verify(&root, &mut |_, _| {}).unwrap();
    assert!(verified.damaged.iter().all(|damaged| damaged.is_removed));
    assert!(Cache::verify(&root, &mut |_, _| {}).unwrap().damaged.is_empty());
}
