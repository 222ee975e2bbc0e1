//! Reading in other processes: the contract, and what happens to readers that hang, die or are no longer needed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_core::{Kind, Result};
use forebay_store::testing::conformance;
use forebay_store::{Isolated, Local, Object, ReadRequest, Store};

const LONG: Duration = Duration::from_secs(60);

fn unlimited(size: u64) -> Result<Vec<u8>> {
    Ok(Vec::with_capacity(size as usize))
}

fn signal(process: u32, signal: i32) {
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

/// A file of its own directory, and a store that has one idle reader.
fn warm(deadline: Duration) -> (tempfile::TempDir, PathBuf, Isolated, u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.jpg");
    std::fs::write(&path, b"one").unwrap();
    let store = Isolated::new(4, deadline);
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    let [process] = store.idle_processes()[..] else { panic!("one read, one reader") };
    (folder, path, store, process)
}

/// Waits until it holds, and fails when it does not soon.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_gone(process: u32) -> bool {
    !Path::new(&format!("/proc/{process}")).exists()
}

/// The state of a process, as `/proc` has it: T is stopped.
fn state(process: u32) -> char {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    text.rsplit(") ").next().unwrap().chars().next().unwrap()
}

#[test]
fn isolated_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in conformance::OBJECTS {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let store = Isolated::new(2, LONG);
    conformance::check(&store, folder.path());
    conformance::check_changes(&store, folder.path(), &crate::rewrite);
}

#[test]
fn every_size_and_name_comes_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = Isolated::new(1, LONG);
    const WINDOW: usize = 1 << 20;
    let sizes = [0, 1, 4096, WINDOW - 1, WINDOW, WINDOW + 1, 50_000_000];
    for (number, size) in sizes.into_iter().enumerate() {
        let name = [b"\xff\xfe \n\xc3\xbc".as_slice(), number.to_string().as_bytes()].concat();
        let path = folder.path().join(OsStr::from_bytes(&name));
        let content: Vec<u8> = (0..size).map(|at| ((at * 31) >> 3) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let object = store.read(&path, Duration::MAX, &mut unlimited).unwrap();
        assert!(object.bytes == content, "{size} bytes");
        assert_eq!(object.stat, Local.stat(&path).unwrap());
    }
    let sorted = |store: &dyn Store| {
        let listing = store.list(folder.path()).unwrap();
        let mut entries: Vec<_> = listing.iter().map(|entry| (entry.name.to_owned(), entry.is_directory)).collect();
        entries.sort();
        (listing.identity(), entries)
    };
    assert_eq!(sorted(&store), sorted(&Local));
    assert_eq!(store.readers().unwrap().started, 1);
}

#[test]
fn of_a_shard_the_reader_reads_only_the_range() {
    let (folder, _, store, process) = warm(LONG);
    let path = crate::sparse_shard(folder.path());
    let read = |range: std::ops::Range<u64>| {
        let request = ReadRequest::new(&path, Duration::MAX).with_range(range);
        store.fetch(&request, &mut unlimited).unwrap()
    };
    let before = crate::read_bytes(&process.to_string());
    assert_eq!(read(1 << 39..(1 << 39) + 6).bytes, b"sample");
    assert!(read(7..7).bytes.is_empty());
    let count = crate::read_bytes(&process.to_string()) - before;
    assert!(count < 1_000, "{count} bytes, and two requests are among them");
    // In several pieces, as it is larger than the window.
    let object = read((1 << 39) - (3 << 20)..(1 << 39) + 6);
    assert_eq!((object.bytes.len(), &object.bytes[3 << 20..]), ((3 << 20) + 6, &b"sample"[..]));
    assert_eq!(store.readers().unwrap().started, 1);
}

#[test]
fn a_range_that_hangs_is_given_up_at_its_deadline() {
    let (_folder, path, store, process) = warm(Duration::from_millis(300));
    signal(process, libc::SIGSTOP);
    let request = ReadRequest::new(&path, LONG).with_range(0..2);
    let error = store.fetch(&request, &mut unlimited).unwrap_err();
    assert_eq!((error.kind(), error.is_transient(), error.path()), (Kind::Timeout, true, Some(&*path)), "{error}");
    assert_eq!(store.fetch(&request, &mut unlimited).unwrap().bytes, b"on", "by another reader");
}

/// Reads a file, and says whether it is used where the reader has put it rather than in the buffer allotted for it.
fn read_and_place(store: &Isolated, path: &Path) -> (Object, bool) {
    let mut allotted = std::ptr::null();
    let object = store.read(path, Duration::MAX, &mut |size| {
        let buffer = Vec::with_capacity(size as usize);
        allotted = buffer.as_ptr();
        Ok(buffer)
    });
    let object = object.unwrap();
    let is_in_place = object.bytes.as_ptr() != allotted;
    (object, is_in_place)
}

/// Files of 100 kB, each of one byte, and a store with one reader for them.
fn hundred_kilobytes(count: u8, deadline: Duration) -> (tempfile::TempDir, Vec<PathBuf>, Isolated) {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..count).map(|byte| folder.path().join(byte.to_string())).collect();
    (0..).zip(&paths).for_each(|(byte, path)| std::fs::write(path, [byte; 100_000]).unwrap());
    (folder, paths, Isolated::new(1, deadline))
}

#[test]
fn a_file_is_used_where_the_reader_put_it_and_copied_when_there_is_no_room() {
    let (_folder, paths, store) = hundred_kilobytes(40, LONG);
    for _ in 0..3 {
        let (objects, places): (Vec<_>, Vec<_>) = paths.iter().map(|path| read_and_place(&store, path)).unzip();
        // Each takes 112 of 1024 KiB, of which 256 stay free for the next read.
        assert_eq!(places, (0..40).map(|number| number < 6).collect::<Vec<_>>());
        for (byte, object) in (0..).zip(&objects) {
            assert!(object.bytes == [byte; 100_000], "file {byte}");
        }
        // What is dropped is used again; the others stay as they are.
        let (objects, dropped): (Vec<_>, Vec<_>) =
            objects.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
        assert!(dropped.into_iter().all(|(_, object)| object.bytes.into_buffer().capacity() >= 100_000));
        let again: Vec<_> = paths[30..].iter().map(|path| read_and_place(&store, path)).collect();
        assert!(again[0].1);
        for (byte, object) in (30..).zip(again) {
            assert!(object.0.bytes == [byte; 100_000], "file {byte}");
        }
        for (byte, object) in objects {
            assert!(object.bytes == [byte as u8; 100_000], "file {byte}");
        }
    }
    assert_eq!(store.readers().unwrap().started, 1);
}

#[test]
fn a_reader_with_room_is_preferred_to_one_without() {
    let (_folder, paths, _) = hundred_kilobytes(30, LONG);
    let store = Isolated::new(2, LONG);
    let at_once = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for path in &paths[..2] {
            scope.spawn(|| {
                store.read(path, Duration::MAX, &mut |size| {
                    at_once.wait();
                    unlimited(size)
                })
            });
        }
    });
    assert_eq!(store.idle_processes().len(), 2);
    let (_objects, places): (Vec<_>, Vec<_>) = paths.iter().map(|path| read_and_place(&store, path)).unzip();
    assert_eq!(places[..10], [true; 10], "more than one window holds");
    assert_eq!(store.readers().unwrap().started, 2);
}

#[test]
fn what_is_used_in_place_outlives_its_reader_and_the_store() {
    let (_folder, paths, store) = hundred_kilobytes(4, Duration::from_secs(1));
    let (first, is_in_place) = read_and_place(&store, &paths[1]);
    assert!(is_in_place);
    // Stopped and then killed while it was to fill another part of the same window.
    let [stuck] = store.idle_processes()[..] else { panic!("one read, one reader") };
    signal(stuck, libc::SIGSTOP);
    assert_eq!(store.read(&paths[2], Duration::MAX, &mut unlimited).unwrap_err().kind(), Kind::Timeout);
    let (second, is_in_place) = read_and_place(&store, &paths[2]);
    assert!(is_in_place);
    let [healthy] = store.idle_processes()[..] else { panic!("one read, one reader") };
    signal(healthy, libc::SIGKILL);
    soon("it is dead", || state(healthy) == 'Z');
    let (third, _) = read_and_place(&store, &paths[3]);
    let apart = |a: &Object, b: &Object| a.bytes.as_ptr().addr().abs_diff(b.bytes.as_ptr().addr()) >= 1 << 20;
    assert!(apart(&first, &second) && apart(&second, &third), "a window goes with its reader");
    drop(store);
    for (byte, object) in [(1, first), (2, second), (3, third)] {
        assert!(object.bytes == [byte; 100_000], "file {byte}");
    }
}

#[test]
fn what_is_used_in_place_is_given_back_by_any_thread() {
    let (_folder, paths, _) = hundred_kilobytes(50, LONG);
    let store = Isolated::new(3, LONG);
    let (send, receive) = std::sync::mpsc::sync_channel::<(u8, Object)>(8);
    let receive = std::sync::Mutex::new(receive);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let received = receive.lock().unwrap().recv();
                    let Ok((byte, object)) = received else { return };
                    assert!(object.bytes == [byte; 100_000], "file {byte}");
                }
            });
        }
        for number in 0..3 {
            let (send, store, paths) = (send.clone(), &store, &paths);
            scope.spawn(move || {
                for round in 0..200 {
                    let byte = ((round * 7 + number) % 50) as u8;
                    let object = store.read(&paths[usize::from(byte)], Duration::MAX, &mut unlimited).unwrap();
                    send.send((byte, object)).unwrap();
                }
            });
        }
        drop(send);
    });
    assert!(store.readers().unwrap().started <= 3);
    let (_objects, places): (Vec<_>, Vec<_>) = paths[..6].iter().map(|path| read_and_place(&store, path)).unzip();
    assert_eq!(places, [true; 6], "nothing stayed behind");
}

#[test]
fn a_directory_larger_than_the_window_is_listed_whole() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(240);
    for number in 0..5_000 {
        std::fs::write(folder.path().join(format!("{number}{long}")), []).unwrap();
    }
    std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
    let expected: BTreeSet<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for store in [&Isolated::new(1, LONG) as &dyn Store, &Local] {
        let listing = store.list(folder.path()).unwrap();
        assert_eq!(listing.len(), 5_001);
        assert_eq!(listing.iter().filter(|entry| entry.is_directory).count(), 1);
        assert!(listing.iter().map(|entry| entry.name.to_owned()).collect::<BTreeSet<_>>() == expected);
    }
}

#[test]
fn failures_are_those_of_reading_here() {
    let (folder, path, store, _) = warm(LONG);
    std::os::unix::fs::symlink("loop.jpg", folder.path().join("loop.jpg")).unwrap();
    let pipe = folder.path().join("pipe.jpg");
    let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let _listener = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let long = "x".repeat(300);
    let longer = "x/".repeat(5_000);
    let odd = [folder.path(), Path::new("/dev/zero"), Path::new("/proc/self/mem/x")];
    let names = ["loop.jpg", "pipe.jpg", "socket", "none", "1.jpg/2.jpg", "nul\0", &long, &longer];
    for path in odd.into_iter().map(PathBuf::from).chain(names.map(|name| folder.path().join(name))) {
        let (here, there) = (
            Local.read(&path, Duration::MAX, &mut unlimited).unwrap_err(),
            store.read(&path, Duration::MAX, &mut unlimited).unwrap_err(),
        );
        let facts = |error: &forebay_core::Error| (error.kind(), error.is_transient(), error.stage());
        assert_eq!(facts(&here), facts(&there), "{here} / {there}");
        if !path.as_os_str().as_bytes().contains(&0) {
            assert_eq!((here.to_string(), here.errno()), (there.to_string(), there.errno()));
        }
    }
    assert!(store.read(&path, Duration::MAX, &mut unlimited).is_ok());
    assert_eq!(store.readers().unwrap().started, 1, "an error costs no reader");
}

#[test]
fn a_file_that_changes_between_two_pieces_is_neither_half_old_nor_half_new() {
    let (folder, path, store, _) = warm(LONG);
    let large = folder.path().join("large");
    for (size_after, said) in [
        (3 << 20, "changed while it was read (its modification time moved by "),
        (4 << 20, "changed while it was read (expected 3145728 bytes, got 4194304)"),
        (100, "changed while it was read (expected 3145728 bytes, got 100)"),
    ] {
        crate::rewrite(&large, &vec![b'o'; 3 << 20]);
        let between_two_pieces = &mut |size| {
            crate::rewrite(&large, &vec![b'n'; size_after]);
            unlimited(size)
        };
        let error = store.read(&large, Duration::MAX, between_two_pieces).unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Changed, false));
        assert!(error.message().starts_with(said), "{error}");
    }
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    assert_eq!(store.readers().unwrap().started, 1, "an error costs no reader");
}

#[test]
fn relative_paths_are_those_of_this_process() {
    let (_folder, _path, store, _) = warm(LONG);
    assert_eq!(
        store.stat(Path::new("Cargo.toml")).unwrap(),
        Local.stat(&std::env::current_dir().unwrap().join("Cargo.toml")).unwrap()
    );
}

#[test]
fn a_reader_that_hangs_is_written_off_and_replaced() {
    let (_folder, path, store, process) = warm(Duration::from_millis(300));
    signal(process, libc::SIGSTOP);
    let started = Instant::now();
    let error = store.read(&path, Duration::MAX, &mut unlimited).unwrap_err();
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_millis(300) && elapsed < Duration::from_secs(5), "{elapsed:?}");
    assert_eq!((error.kind(), error.is_transient(), error.path()), (Kind::Timeout, true, Some(path.as_path())));
    assert!(error.message().starts_with("did not answer within 0.3 s ("), "{error}");
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    assert_ne!(store.idle_processes(), [process]);
    soon("the killed one is reaped", || store.readers().unwrap().lost == 0 && is_gone(process));
    let readers = store.readers().unwrap();
    assert_eq!((readers.alive, readers.started, readers.written_off, readers.died), (1, 2, 1, 0));
}

#[test]
fn waiting_for_a_free_reader_counts_towards_the_deadline() {
    let (_folder, paths, store) = hundred_kilobytes(2, Duration::from_secs(1));
    store.read(&paths[0], Duration::MAX, &mut unlimited).unwrap();
    let [only] = store.idle_processes()[..] else { panic!("one read, one reader") };
    for (is_stopped, held_for, said) in [
        (false, Duration::from_millis(1500), "was not read: all 1 reader processes were busy until its deadline"),
        // It gets the reader for the rest of its time, and no answer.
        (true, Duration::from_millis(600), "did not answer within 1.0 s"),
    ] {
        let (send, holding) = std::sync::mpsc::channel();
        let (error, elapsed) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = store.read(&paths[0], Duration::MAX, &mut |size| {
                    send.send(()).unwrap();
                    std::thread::sleep(held_for);
                    if is_stopped {
                        signal(only, libc::SIGSTOP);
                    }
                    unlimited(size)
                });
                assert!(held.is_ok(), "waiting for memory is not the storage's fault");
            });
            holding.recv().unwrap();
            let started = Instant::now();
            (store.read(&paths[1], Duration::MAX, &mut unlimited).unwrap_err(), started.elapsed())
        });
        assert_eq!((error.kind(), error.is_transient()), (Kind::Timeout, true));
        assert!(error.message().starts_with(said), "{error}");
        assert!(elapsed >= Duration::from_secs(1) && elapsed < Duration::from_millis(1500), "{elapsed:?}");
    }
}

#[test]
fn stat_and_list_have_the_deadline_too() {
    for call in [
        |store: &Isolated, path: &Path| store.stat(path).map(drop),
        |store: &Isolated, path: &Path| store.list(path.parent().unwrap()).map(drop),
    ] {
        let (_folder, path, store, process) = warm(Duration::from_millis(100));
        signal(process, libc::SIGSTOP);
        assert_eq!(call(&store, &path).unwrap_err().kind(), Kind::Timeout);
        assert!(call(&store, &path).is_ok());
    }
}

#[test]
fn a_reader_killed_during_a_read_is_a_transient_error_that_names_the_signal() {
    let (folder, path, store, process) = warm(LONG);
    let large = folder.path().join("large");
    std::fs::write(&large, vec![7; 3 << 20]).unwrap();
    let between_two_pieces = &mut |size| {
        signal(process, libc::SIGKILL);
        unlimited(size)
    };
    let error = store.read(&large, Duration::MAX, between_two_pieces).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true));
    assert!(error.to_string().ends_with("could not be read: its reader process ended, killed by signal 9"), "{error}");
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    assert_eq!((store.readers().unwrap().died, store.readers().unwrap().alive), (1, 1));
}

#[test]
fn a_reader_killed_between_two_reads_is_not_missed() {
    let (_folder, path, store, process) = warm(LONG);
    signal(process, libc::SIGKILL);
    soon("it is dead", || state(process) == 'Z');
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    assert_eq!((store.readers().unwrap().died, store.readers().unwrap().started), (1, 2));
}

#[test]
fn stopping_ends_a_call_that_hangs_and_only_its_own() {
    let (_folder, path, store, process) = warm(LONG);
    let (stoppable, stop) = store.stoppable().unwrap();
    signal(process, libc::SIGSTOP);
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        let read = scope.spawn(|| stoppable.read(&path, Duration::MAX, &mut unlimited));
        soon("the read is on its way", || store.idle_processes().is_empty());
        stop.raise();
        read.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), Kind::Stopped);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
}

#[test]
fn a_refused_buffer_leaves_the_reader_usable_and_nothing_open() {
    let (folder, path, store, process) = warm(LONG);
    let large = folder.path().join("large");
    std::fs::write(&large, vec![7; 3 << 20]).unwrap();
    let open = || std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let before = open();
    for _ in 0..500 {
        store.read(&large, Duration::MAX, &mut |_| Err(forebay_core::Error::internal("no"))).unwrap_err();
        store.read(&path, Duration::MAX, &mut unlimited).unwrap();
        store.read(&path.join("none"), Duration::MAX, &mut unlimited).unwrap_err();
    }
    assert_eq!((before, open()), (3, 3), "socket, window, /dev/null");
    assert_eq!(store.readers().unwrap().started, 1);
}

#[test]
fn many_threads_share_the_readers_there_are() {
    let (_folder, path, _, _) = warm(LONG);
    let store = Isolated::new(2, LONG);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| assert!(store.read(&path, Duration::MAX, &mut unlimited).is_ok())));
        }
    });
    assert!(store.readers().unwrap().started <= 2);
}

#[test]
fn readers_outlive_the_thread_that_needed_them_and_leave_with_the_store() {
    let (_folder, path, _, _) = warm(LONG);
    let store = Isolated::new(4, LONG);
    std::thread::scope(|scope| scope.spawn(|| store.read(&path, Duration::MAX, &mut unlimited).map(drop)).join())
        .unwrap()
        .unwrap();
    let [process] = store.idle_processes()[..] else { panic!("one read, one reader") };
    assert_eq!(store.read(&path, Duration::MAX, &mut unlimited).unwrap().bytes, b"one");
    assert_eq!(store.idle_processes(), [process]);
    signal(process, libc::SIGSTOP);
    drop(store);
    assert!(is_gone(process), "killed and reaped, stopped or not");
}

#[test]
fn a_reader_is_recognised_and_apart_from_the_terminal() {
    let (_folder, _path, _store, process) = warm(LONG);
    let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}")).unwrap();
    assert_eq!(read("comm"), b"forebay-reader\n");
    assert!(read("cmdline").starts_with(b"forebay-reader\0"));
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::getpgid(process as i32) }, process as i32);
    assert_eq!(std::fs::read_link(format!("/proc/{process}/cwd")).unwrap(), Path::new("/"));
}
