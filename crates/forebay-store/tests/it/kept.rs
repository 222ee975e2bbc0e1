//! Kept descriptors against the contract, and against everything that a path may lead to meanwhile.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_core::{Kind, Result};
use forebay_store::testing::conformance;
use forebay_store::{KeptFiles, Local, Object, ReadRequest, Stat, Store};

const PATIENCE: Duration = Duration::from_secs(60);

fn request(path: &Path) -> ReadRequest<'_> {
    ReadRequest::new(path, Duration::MAX).with_range(2..6)
}

fn read(store: &dyn Store, request: &ReadRequest<'_>) -> Result<Object> {
    store.fetch(request, &mut |_| Ok(Vec::new()))
}

fn file(folder: &Path, content: &str) -> PathBuf {
    let path = folder.join("train.txt");
    fs::write(&path, content).unwrap();
    path
}

/// Reads until that was by a kept descriptor.
fn kept(path: &Path) -> (KeptFiles, Stat) {
    let store = KeptFiles::default();
    let stat = read(&store, &request(path)).unwrap().stat;
    assert_eq!((store.kept_reads(), open_on(path)), (0, 1), "the first read opens it");
    assert_eq!(read(&store, &request(path)).unwrap().stat, stat);
    assert_eq!(store.kept_reads(), 1, "and the second one does not");
    (store, stat)
}

/// Waits until what was learnt of a file by the last read no longer counts for the next one.
fn wait_for_examination() {
    let since = Instant::now();
    while since.elapsed() <= Duration::from_millis(1) {
        std::thread::yield_now();
    }
}

/// How many descriptors of this process lead to files of this folder.
fn open_on(path: &Path) -> usize {
    let folder = fs::canonicalize(path.parent().unwrap()).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter(|entry| fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(&folder)))
        .count()
}

#[test]
fn kept_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in conformance::OBJECTS {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let store = KeptFiles::default();
    conformance::check(&store, folder.path());
    let before = store.kept_reads();
    conformance::check(&store, folder.path());
    assert!(store.kept_reads() > before + 20, "{} of {before}", store.kept_reads());
    conformance::check_changes(&store, folder.path(), &crate::rewrite);
}

#[test]
fn what_becomes_of_a_file_shows_in_the_next_read() {
    type Change<'a> = (&'a str, &'a dyn Fn(&Path), std::result::Result<&'a str, Kind>);
    let resize = |size: u64| move |path: &Path| File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    let replace = |path: &Path| {
        fs::write(path.with_extension("new"), "ABCDEFGH").unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    let append = |path: &Path| {
        use std::io::Write;
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
    };
    let touch = |path: &Path| {
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    let rewrite = |path: &Path| File::options().write(true).open(path).unwrap().write_all_at(b"XYZ", 3).unwrap();
    let changes: [Change<'_>; 8] = [
        ("replaced", &replace, Ok("CDEF")),
        ("deleted", &|path| fs::remove_file(path).unwrap(), Err(Kind::NotFound)),
        ("moved away", &|path| fs::rename(path, path.with_extension("old")).unwrap(), Err(Kind::NotFound)),
        ("cut", &resize(5), Err(Kind::Corrupt)),
        ("emptied", &resize(0), Err(Kind::Corrupt)),
        ("appended to", &append, Ok("cdef")),
        ("touched", &touch, Ok("cdef")),
        ("written to", &rewrite, Ok("cXYZ")),
    ];
    for (name, change, expected) in changes {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), "abcdefgh");
        let (store, stat) = kept(&path);
        change(&path);
        wait_for_examination();
        let [got, local] = [&store as &dyn Store, &Local].map(|store| read(store, &request(&path)));
        match expected {
            Ok(text) => {
                let (got, local) = (got.unwrap(), local.unwrap());
                assert_eq!((&*got.bytes, got.stat), (text.as_bytes(), local.stat), "{name}");
            }
            Err(kind) => {
                let (got, local) = (got.unwrap_err(), local.unwrap_err());
                assert_eq!(
                    (got.kind(), got.to_string(), got.hint()),
                    (kind, local.to_string(), local.hint()),
                    "{name}"
                );
            }
        }
        // Of a version that it no longer is, it is refused; two writes within a tick of the clock have the same time.
        if fs::metadata(&path).is_ok() && Local.stat(&path).unwrap() != stat {
            let error = read(&store, &request(&path).with_expected(stat)).unwrap_err();
            assert_eq!(error.kind(), Kind::Changed, "{name}");
        }
    }
}

#[test]
fn a_change_during_a_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "abcdefgh");
    let (store, _) = kept(&path);
    let before = store.kept_reads();
    let error = store
        .fetch(&request(&path), &mut |_| {
            crate::rewrite(&path, b"ABCDEFGH");
            Ok(Vec::new())
        })
        .unwrap_err();
    assert_eq!((store.kept_reads(), error.kind(), error.path()), (before + 1, Kind::Changed, Some(&*path)));
    assert_eq!(read(&store, &request(&path)).unwrap().bytes, b"CDEF");
    assert_eq!(store.kept_reads(), before + 1, "no descriptor of a failed read is used again");
}

#[test]
fn what_was_written_before_a_read_is_never_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "abcdefgh");
    let (store, _) = kept(&path);
    let mut refused = 0;
    for number in 0..1_000 {
        let content = format!("ab{number:04}");
        match number % 2 {
            0 => File::options().write(true).open(&path).unwrap().write_all_at(content.as_bytes(), 0).unwrap(),
            _ => crate::rewrite(&path, content.as_bytes()),
        }
        match read(&store, &request(&path)) {
            Ok(object) => assert_eq!(&*object.bytes, &content.as_bytes()[2..]),
            // It may have changed during the read, as far as the store knows; what is read next is there.
            Err(error) => {
                assert_eq!((error.kind(), error.is_transient()), (Kind::Changed, false), "{error}");
                assert_eq!(&*read(&store, &request(&path)).unwrap().bytes, &content.as_bytes()[2..]);
                refused += 1;
            }
        }
        // Then the next change is noticed by one examination or by the other.
        read(&store, &request(&path)).unwrap();
        if number % 3 == 0 {
            wait_for_examination();
        }
    }
    assert!(store.kept_reads() > 1_000, "{}, {refused} refused", store.kept_reads());
}

/// What no examination of the file itself tells: its path leads elsewhere.
#[test]
fn another_way_of_the_path_is_seen_soon() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("old", "abcdefgh"), ("new", "ABCDEFGH")] {
        fs::create_dir(folder.path().join(name)).unwrap();
        file(&folder.path().join(name), content);
    }
    let link = folder.path().join("current");
    symlink("old", &link).unwrap();
    let path = link.join("train.txt");
    let (store, _) = kept(&path);
    symlink("new", folder.path().join("next")).unwrap();
    fs::rename(folder.path().join("next"), &link).unwrap();
    let since = Instant::now();
    while read(&store, &request(&path)).unwrap().bytes == *b"cdef" {
        assert!(since.elapsed() < PATIENCE, "the old file is read for ever");
    }
    assert_eq!(read(&store, &request(&path)).unwrap().bytes, b"CDEF");
}

#[test]
fn permissions_that_are_taken_away_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "abcdefgh");
    let (store, _) = kept(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    wait_for_examination();
    let before = store.kept_reads();
    // Root may read everything.
    let [got, local] = [&store as &dyn Store, &Local].map(|store| read(store, &request(&path)).map(|read| read.stat));
    assert_eq!(got.map_err(|error| error.kind()), local.map_err(|error| error.kind()));
    assert_eq!(store.kept_reads(), before, "it was opened anew");
}

#[test]
fn as_many_descriptors_are_kept_as_there_may_be_and_none_after_a_rest() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..5).map(|number| folder.path().join(format!("{number}.txt"))).collect();
    paths.iter().for_each(|path| fs::write(path, "abcdefgh").unwrap());
    let store = KeptFiles::with_max_files(2);
    for path in paths.iter().chain(&paths) {
        assert_eq!(read(&store, &request(path)).unwrap().bytes, b"cdef");
        assert!(open_on(path) <= 2);
    }
    assert_eq!((store.kept_reads(), open_on(&paths[0])), (0, 2));
    store.doubt(&paths[4]);
    assert_eq!(open_on(&paths[0]), 1);
    store.rest();
    assert_eq!(open_on(&paths[0]), 0);
    // Whole objects and empty ranges are read as before.
    store.read(&paths[0], Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
    read(&store, &ReadRequest::new(&paths[0], Duration::MAX).with_range(3..3)).unwrap();
    assert_eq!(open_on(&paths[0]), 0);
    read(&store, &request(&paths[0])).unwrap();
    assert_eq!(open_on(&paths[0]), 1);
    drop(store);
    assert_eq!(open_on(&paths[0]), 0);
}

/// Runs a test of this file in a process of its own.
fn alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn kept_descriptors_make_room_for_others() {
    alone("kept::no_descriptor_is_left");
}

#[test]
#[ignore = "changes the limits of its process"]
fn no_descriptor_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3).map(|number| folder.path().join(format!("{number}.txt"))).collect();
    paths.iter().for_each(|path| fs::write(path, "abcdefgh").unwrap());
    let store = KeptFiles::default();
    for path in &paths[..2] {
        read(&store, &request(path)).unwrap();
    }
    // All that the process may have are open, two of them by the store.
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut others = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        others.push(file);
    }
    assert_eq!(read(&Local, &request(&paths[2])).unwrap_err().errno(), Some(libc::EMFILE));
    assert_eq!(read(&store, &request(&paths[2])).unwrap().bytes, b"cdef");
    others.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
    assert_eq!(store.list(folder.path()).unwrap().iter().count(), 3);
    others.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
    let error = read(&store, &request(&paths[0])).unwrap_err();
    assert_eq!((error.errno(), error.is_transient()), (Some(libc::EMFILE), true), "there is nothing left to close");
}

#[test]
fn a_forked_child_reads_and_never_waits() {
    alone("kept::reads_in_a_child");
}

#[test]
#[ignore = "forks"]
fn reads_in_a_child() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "abcdefgh");
    let (store, _) = kept(&path);
    let store = std::sync::Arc::new(store);
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    // The table is locked at some of the forks.
    let busy = {
        let (store, path, ended) = (store.clone(), path.clone(), ended.clone());
        std::thread::Builder::new().spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::SeqCst) {
                read(&*store, &request(&path)).unwrap();
                store.doubt(&path);
            }
        })
    };
    for _ in 0..200 {
        // SAFETY: the child reads, whose allocations a fork of glibc allows, and ends without running anything else.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            let is_right = (0..3).all(|_| read(&*store, &request(&path)).is_ok_and(|object| object.bytes == *b"cdef"));
            store.doubt(&path);
            store.rest();
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let (mut status, until) = (0, Instant::now() + PATIENCE);
        // SAFETY: `status` is an integer of this function.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            assert!(Instant::now() < until, "a child waits for a lock");
            std::thread::yield_now();
        }
        assert_eq!(status, 0);
    }
    ended.store(true, std::sync::atomic::Ordering::SeqCst);
    busy.unwrap().join().unwrap();
    assert_eq!(read(&*store, &request(&path)).unwrap().bytes, b"cdef", "the parent goes on");
}

#[test]
fn a_forked_child_leaves_the_numbers_of_kept_descriptors_alone() {
    alone("kept::uses_a_kept_number_in_a_child");
}

#[test]
#[ignore = "forks"]
fn uses_a_kept_number_in_a_child() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "abcdefgh");
    let (store, _) = kept(&path);
    let mut links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let number = links.find(|link| std::fs::read_link(link).is_ok_and(|file| file == path)).unwrap();
    let number: i32 = number.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let other = File::open("/dev/null").unwrap();
    // SAFETY: as in the test above.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // The number is something else's here, as it may be where another thread has opened the file during the fork.
        // SAFETY: both are numbers of this process.
        let is_another = unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&other), number) } == number;
        let is_right = (0..3).all(|_| read(&store, &request(&path)).is_ok_and(|object| object.bytes == *b"cdef"));
        store.doubt(&path);
        store.rest();
        drop(store);
        // SAFETY: asks about a number.
        let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        // SAFETY: as in the test above.
        unsafe { libc::_exit(i32::from(!(is_another && is_right && is_open))) };
    }
    let mut status = 0;
    // SAFETY: `status` is an integer of this function.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}
