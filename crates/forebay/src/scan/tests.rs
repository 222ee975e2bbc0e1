#![allow(clippy::disallowed_methods, reason = "a real tree, and the standard library's word on it")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use forebay_core::{Kind, SampleId, Stage, hash_words};
use forebay_store::{Allot, Isolated, Local, Object, ReadRequest, Stat};

use super::*;

const THREADS: [usize; 4] = [1, 2, 3, 8];

/// Everything that is known of an index.
#[derive(Debug, PartialEq)]
struct Known {
    samples: Vec<(PathBuf, i64)>,
    notes: Vec<(PathBuf, String)>,
    classes: Vec<String>,
    fingerprint: String,
}

fn known(index: &FolderIndex) -> Known {
    let sample = |sample| (index.path(SampleId(sample)), index.label(SampleId(sample)));
    Known {
        samples: (0..index.len()).map(sample).collect(),
        notes: index.notes().iter().map(|note| (note.path.clone(), note.message.clone())).collect(),
        classes: index.classes().to_vec(),
        fingerprint: index.identity().fingerprint,
    }
}

/// A number that depends on the words alone.
fn draw(words: &[u64], below: u64) -> u64 {
    hash_words(words) % below
}

/// Puts files, directories and links below `directory`, as `seed` has it. `all` are the directories so far, which links
/// lead to: to those above, which is a loop, and to others.
fn grow(seed: u64, directory: &Path, depth: u64, all: &mut Vec<PathBuf>) {
    all.push(directory.to_owned());
    let words = [seed, all.len() as u64];
    let name = |number: u64, ending: &[u8]| {
        let odd =
            [b"a".as_slice(), b"a-b", b"\xff\xfe", b"new\nline", "\u{fc}\u{1f600}".as_bytes(), b".", b" ", b"a.b"];
        let word = odd[draw(&[words[0], words[1], number, 1], odd.len() as u64) as usize];
        OsString::from_vec([word, number.to_string().as_bytes(), ending].concat())
    };
    for number in 0..draw(&[words[0], words[1], 2], 12) {
        let endings = [b".jpg".as_slice(), b".JPEG", b".txt", b".png", b""];
        let ending = endings[draw(&[words[0], words[1], number, 3], 5) as usize];
        fs::write(directory.join(name(number, ending)), []).unwrap();
    }
    for number in 100..100 + draw(&[words[0], words[1], 4], 4) {
        let below = directory.join(name(number, b""));
        match draw(&[words[0], words[1], number, 5], 4) {
            0 => {
                let target = &all[draw(&[words[0], words[1], number, 6], all.len() as u64) as usize];
                symlink(target, below).unwrap();
            }
            1 => symlink("nowhere.jpg", directory.join(name(number, b".jpg"))).unwrap(),
            _ if depth > 0 => {
                fs::create_dir(&below).unwrap();
                grow(seed, &below, depth - 1, all);
            }
            _ => symlink(".", below).unwrap(),
        }
    }
}

/// What the scan has to find, told in another way: by a tree walk with the standard library, and one sort at the end.
fn walk(whole: &Path, above: &[PathBuf], known: &mut Known, found: &mut Vec<(PathBuf, BTreeSet<PathBuf>)>) {
    let real = fs::canonicalize(whole).unwrap();
    if above.contains(&real) {
        known.notes.push((whole.to_owned(), "is a link to a directory above it; not followed".to_owned()));
        return;
    }
    let above = [above, &[real]].concat();
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(whole).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, &above, known, found);
        } else if ScanOptions::images().has_extension(path.file_name().unwrap()) {
            files.insert(path);
        }
    }
    found.push((whole.to_owned(), files));
}

fn expected(root: &Path, classes: &[String], fingerprint: String) -> Known {
    let mut known = Known { samples: Vec::new(), notes: Vec::new(), classes: classes.to_vec(), fingerprint };
    let mut empty = Vec::new();
    for (class, label) in classes.iter().zip(0..) {
        let (mut found, notes, samples) = (Vec::new(), known.notes.len(), known.samples.len());
        walk(&root.join(class), &[], &mut known, &mut found);
        let text = |path: &Path| path.as_os_str().to_owned();
        known.notes[notes..].sort_by_key(|(path, _)| text(path));
        found.sort_by_key(|(directory, _)| text(directory));
        for (_, files) in found {
            let mut files: Vec<_> = files.into_iter().collect();
            files.sort_by_key(|path| text(path));
            known.samples.extend(files.into_iter().map(|path| (path, label)));
        }
        if known.samples.len() == samples {
            empty.push((root.join(class), "has no samples".to_owned()));
        }
    }
    known.notes.extend(empty);
    known
}

#[test]
fn any_number_of_threads_finds_what_a_tree_walk_finds() {
    let (mut samples, mut loops) = (0, 0);
    for seed in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for (number, class) in ["b", "a-b", "a", "\u{fc}\n", "empty"].into_iter().enumerate() {
            fs::create_dir(root.join(class)).unwrap();
            if class != "empty" {
                grow(seed * 100 + number as u64, &root.join(class), 3, &mut Vec::new());
            }
        }
        fs::write(root.join("top.jpg"), []).unwrap();
        let options = ScanOptions { allow_empty: true, ..ScanOptions::images() };
        let serial = forebay_format::scan(&root, &options, &|directory| Local.list(directory), None).unwrap();
        let classes = ["a", "a-b", "b", "empty", "\u{fc}\n"].map(str::to_owned);
        let expected = expected(&root, &classes, serial.identity().fingerprint);
        assert_eq!(known(&serial), expected, "seed {seed}");
        let isolated: Arc<dyn Store> = Arc::new(Isolated::new(2, Duration::from_secs(30)));
        for (store, threads) in
            THREADS.map(|threads| (Arc::new(Local) as Arc<dyn Store>, threads)).into_iter().chain([(isolated, 2)])
        {
            let index = scan_with(&store, &root, &options, None, threads, Retry::default()).unwrap();
            assert_eq!(known(&index), expected, "seed {seed}, {threads} threads");
            let mut asked = Vec::new();
            let mut accept = |path: &Path| {
                asked.push(path.to_owned());
                Ok(options.has_extension(path.as_os_str()))
            };
            let index = scan_with(&store, &root, &options, Some(&mut accept), threads, Retry::default()).unwrap();
            assert_eq!(known(&index), expected, "seed {seed}, {threads} threads, own test");
            let accepted: Vec<_> = asked.into_iter().filter(|path| options.has_extension(path.as_os_str())).collect();
            assert_eq!(accepted, expected.samples.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>());
        }
        samples += expected.samples.len();
        loops += expected.notes.len() - 1;
    }
    assert!(samples > 500 && loops > 20, "{samples} samples and {loops} loops are too few to tell");
}

/// What a directory of `Scripted` does when it is listed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Hang,
    Deny,
    FailOnce,
    /// Comes a page further, and fails, twenty times.
    Pages,
    Panic,
}

/// `r` with the classes a, b and c, each with one file and one directory, which has one file.
#[derive(Debug)]
struct Scripted {
    script: Vec<(&'static str, Does)>,
    listed: Mutex<Vec<PathBuf>>,
    held: Mutex<Receiver<()>>,
}

impl Scripted {
    /// The store, and what lets go of everything that hangs when it is dropped.
    fn new(script: &[(&'static str, Does)]) -> (Arc<Self>, Sender<()>) {
        let (release, held) = channel();
        (Arc::new(Self { script: script.to_vec(), listed: Mutex::default(), held: Mutex::new(held) }), release)
    }

    fn scan(self: &Arc<Self>, threads: usize, deadline: Duration) -> Result<FolderIndex> {
        let store = Arc::clone(self) as Arc<dyn Store>;
        let retry = Retry { deadline, first_pause: Duration::from_millis(1), ..Retry::default() };
        scan_with(&store, Path::new("/proc/r"), &ScanOptions::images(), None, threads, retry)
    }
}

impl Store for Scripted {
    fn fetch(&self, _: &ReadRequest<'_>, _: &mut Allot<'_>) -> Result<Object> {
        unreachable!("nothing is read here")
    }

    fn stat(&self, _: &Path) -> Result<Stat> {
        unreachable!("nothing is examined here")
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        let times = {
            let mut listed = self.listed.lock().unwrap();
            listed.push(directory.to_owned());
            listed.iter().filter(|path| *path == directory).count()
        };
        let os = |number| Err(Error::io("listed", std::io::Error::from_raw_os_error(number)).at_path(directory));
        match self.script.iter().find(|(name, _)| directory == Path::new("/proc/r").join(name)) {
            Some((_, Does::Hang)) => {
                let released = self.held.lock().unwrap_or_else(|held| held.into_inner()).recv();
                return Err(Error::internal(format!("released: {released:?}")));
            }
            Some((_, Does::Deny)) => return os(libc::EACCES),
            Some((_, Does::FailOnce)) if times == 1 => return os(libc::EIO),
            Some((_, Does::Pages)) if times <= 20 => return os(libc::EIO).map_err(Error::progressed),
            Some((_, Does::Panic)) => panic!("a listing that panics"),
            _ => {}
        }
        let mut listing = Listing::new((
            0,
            hash_words(&directory.as_os_str().as_bytes().iter().map(|&byte| byte.into()).collect::<Vec<_>>()),
        ));
        let depth = directory.components().count() - 3;
        match depth {
            0 => ["a", "b", "c"].iter().for_each(|name| listing.push(OsStr::new(name), true)),
            1 => listing.push(OsStr::new("sub"), true),
            _ => {}
        }
        listing.push(OsStr::new("1.jpg"), false);
        Ok(listing)
    }
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn the_first_directory_that_fails_is_reported_whatever_the_others_do() {
    use Does::{Deny, Hang};
    for threads in THREADS {
        for (script, deadline, path, kind) in [
            (&[("b/sub", Deny), ("c", Deny)][..], LONG, "/proc/r/b/sub", Kind::Denied),
            (&[("a/sub", Deny), ("b", Deny), ("c/sub", Deny)], LONG, "/proc/r/a/sub", Kind::Denied),
            // What hangs after it is not waited for ...
            (&[("a", Deny), ("b", Hang), ("c", Hang)], LONG, "/proc/r/a", Kind::Denied),
            (&[("a/sub", Deny), ("c", Hang)], LONG, "/proc/r/a/sub", Kind::Denied),
            // ... and what hangs before it is.
            (&[("a", Hang), ("b", Deny), ("c", Deny)], SHORT, "/proc/r/a", Kind::Timeout),
            // The only thread is stuck in c, which nobody needs any more, when a/sub is still to be listed.
            (&[("a/sub", Deny), ("b", Deny), ("c", Hang)], LONG, "/proc/r/a/sub", Kind::Denied),
            // One thread is stuck in b when a/sub is found: another takes its place.
            (&[("a/sub", Deny), ("b", Hang)], SHORT, "/proc/r/a/sub", Kind::Denied),
            (&[("b", Hang)], SHORT, "/proc/r/b", Kind::Timeout),
        ] {
            // With one thread, nothing is found out about a/sub before c has been given up.
            if threads == 1 && deadline == LONG && script == [("a/sub", Deny), ("c", Hang)] {
                continue;
            }
            let (store, release) = Scripted::new(script);
            let started = Instant::now();
            let error = store.scan(threads, deadline).unwrap_err();
            assert_eq!((error.path(), error.kind()), (Some(Path::new(path)), kind), "{threads} threads, {script:?}");
            assert!(started.elapsed() < LONG / 2, "{threads} threads, {script:?}: {:?}", started.elapsed());
            drop(release);
        }
    }
}

#[test]
fn a_directory_that_does_not_answer_is_named() {
    let (store, release) = Scripted::new(&[("", Does::Hang)]);
    let error = store.scan(2, SHORT).unwrap_err();
    assert_eq!((error.kind(), error.stage(), error.attempts()), (Kind::Timeout, Some(Stage::Scan), 1));
    assert!(error.to_string().contains("\"/proc/r\" did not answer within 0.1 s (proc from proc on"), "{error}");
    drop(release);
}

#[test]
fn a_hiccup_of_any_directory_ends_nothing() {
    use Does::FailOnce;
    for threads in THREADS {
        let (store, _) = Scripted::new(&[("", FailOnce), ("a", FailOnce), ("b/sub", FailOnce), ("c", FailOnce)]);
        let index = store.scan(threads, LONG).unwrap();
        assert_eq!((index.len(), store.listed.lock().unwrap().len()), (6, 7 + 4));
    }
}

#[test]
fn a_directory_of_many_pages_has_attempts_for_each() {
    let (store, _) = Scripted::new(&[("b", Does::Pages)]);
    let index = store.scan(2, LONG).unwrap();
    assert_eq!((index.len(), store.listed.lock().unwrap().len()), (6, 7 + 20), "more than the retries of one");
}

#[test]
fn each_directory_is_listed_once() {
    let (store, _) = Scripted::new(&[]);
    store.scan(2, LONG).unwrap();
    let mut listed = store.listed.lock().unwrap().clone();
    listed.sort();
    let expected = ["", "a", "a/sub", "b", "b/sub", "c", "c/sub"].map(|name| Path::new("/proc/r").join(name));
    assert_eq!(listed, expected);
}

#[test]
fn a_panic_is_not_swallowed() {
    let (store, _) = Scripted::new(&[("b", Does::Panic)]);
    let panic = std::panic::catch_unwind(|| store.scan(2, LONG).map(drop)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a listing that panics"));
}
