//! Mapped files against the contract, and against everything that is a signal under a mapping.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_core::{Kind, Result};
use forebay_store::testing::conformance;
use forebay_store::{Local, Mapped, Object, ReadRequest, Store};

use crate::cache_disk::Mounted;

const PATIENCE: Duration = Duration::from_secs(60);

fn read(store: &dyn Store, request: &ReadRequest<'_>) -> Result<Object> {
    store.fetch(request, &mut |_| Ok(Vec::new()))
}

/// Reads until that is a copy from a mapping: a file that was changed a moment ago is none.
fn wait_until_mapped(store: &Mapped, path: &Path) {
    let (before, until) = (store.mapped_reads(), Instant::now() + PATIENCE);
    while store.mapped_reads() == before {
        assert!(Instant::now() < until, "{path:?} is not read through a mapping");
        read(store, &ReadRequest::new(path, Duration::MAX)).unwrap();
    }
}

/// Bytes that say where they are, none of them zero.
fn content(size: usize) -> Vec<u8> {
    (0..size).map(|place| (place / 7 % 255) as u8 + 1).collect()
}

fn file(folder: &Path, size: usize) -> PathBuf {
    let path = folder.join("train.bin");
    std::fs::write(&path, content(size)).unwrap();
    path
}

#[test]
fn mapped_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in conformance::OBJECTS {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let store = Mapped::default();
    conformance::check(&store, folder.path()); // as they were changed a moment ago
    for (name, _) in conformance::OBJECTS.iter().filter(|(_, content)| !content.is_empty()) {
        wait_until_mapped(&store, &folder.path().join(name));
    }
    let before = store.mapped_reads();
    conformance::check(&store, folder.path());
    assert!(store.mapped_reads() > before + 20, "{} of {before}", store.mapped_reads());
    conformance::check_changes(&store, folder.path(), &crate::rewrite);
}

#[test]
fn a_mapped_file_that_changes_during_a_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 100_000);
    let resize = |size: u64| move |path: &Path| File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    let rewrite = |path: &Path| File::options().write(true).open(path).unwrap().write_all_at(b"x", 9).unwrap();
    let touch = |path: &Path| {
        // Its time is set back: only the time that nobody can set tells.
        let time = std::fs::metadata(path).unwrap().modified().unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"y", 99).unwrap();
        file.set_modified(time).unwrap();
    };
    let replace = |path: &Path| {
        std::fs::write(path.with_extension("new"), b"another file").unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&Path), Option<Kind>);
    let changes: [Change<'_>; 6] = [
        ("cut in a page", &resize(99_999), Some(Kind::Changed)),
        ("cut", &resize(20_000), Some(Kind::Changed)),
        ("grown", &resize(200_000), Some(Kind::Changed)),
        ("written to", &rewrite, Some(Kind::Changed)),
        ("written to, and its time set back", &touch, None),
        // As with a descriptor: the file that was opened is still there.
        ("replaced", &replace, None),
    ];
    for (name, change, expected) in changes {
        std::fs::remove_file(&path).unwrap();
        let before = content(100_000);
        file(folder.path(), before.len());
        let store = Mapped::default();
        wait_until_mapped(&store, &path);
        let request = ReadRequest::new(&path, Duration::MAX).with_range(50..100_000);
        let got = store.fetch(&request, &mut |_| {
            change(&path);
            Ok(Vec::new())
        });
        match expected {
            Some(kind) => assert_eq!(got.unwrap_err().kind(), kind, "{name}"),
            None => {
                let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
                let now = std::fs::read(&path).unwrap();
                assert!(got.bytes == before[50..] || got.bytes == now[50..], "{name}");
            }
        }
        let got = read(&store, &ReadRequest::new(&path, Duration::MAX)).unwrap();
        assert!(got.bytes == std::fs::read(&path).unwrap(), "{name}: what is there now");
    }
}

#[test]
fn a_cut_file_says_the_same_as_without_a_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 100_000);
    let store = Mapped::default();
    wait_until_mapped(&store, &path);
    let whole = store.stat(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    let behind = ReadRequest::new(&path, Duration::MAX).with_range(50_000..60_000);
    for request in [behind.clone(), behind.with_expected(whole)] {
        let [mapped, local] = [&store as &dyn Store, &Local].map(|store| read(store, &request).unwrap_err());
        assert_eq!((mapped.kind(), mapped.to_string(), mapped.hint()), (local.kind(), local.to_string(), local.hint()));
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read(&store, &ReadRequest::new(&path, Duration::MAX)).unwrap_err().kind(), Kind::NotFound);
}

/// A page that the file system cannot give, though the file is as it was: of a hole, where a mapping needs memory and
/// pread does not. A disk that fails is no different to the handler.
#[test]
fn a_page_that_cannot_be_had_is_read_without_the_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Mounted::tmpfs(&folder.path().join("small"), "size=64k") else { return };
    let path = disk.0.join("train.bin");
    std::fs::write(&path, [7; 4096]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let store = Mapped::default();
    let until = Instant::now() + PATIENCE;
    let first = ReadRequest::new(&path, Duration::MAX).with_range(0..4096);
    while store.mapped_reads() == 0 {
        assert!(Instant::now() < until);
        assert_eq!(read(&store, &first).unwrap().bytes, [7; 4096]);
    }
    for _ in 0..3 {
        let before = store.mapped_reads();
        let object = read(&store, &ReadRequest::new(&path, Duration::MAX)).unwrap();
        assert!(object.bytes[..4096] == [7; 4096] && object.bytes[4096..].iter().all(|byte| *byte == 0));
        assert_eq!(store.mapped_reads(), before, "its mapping has no such page");
        assert_eq!(read(&store, &first).unwrap().bytes, [7; 4096]);
        assert_eq!(store.mapped_reads(), before + 1, "mapped afresh");
    }
}

/// One page of each; the file has many.
const SAMPLE_BYTES: usize = 4096;

/// Threads read samples of a file while it is cut and filled up again: each time while copies from its mapping are
/// being made. Every read gives the right bytes or an error of a kind that pread gives.
#[test]
fn a_file_that_is_cut_while_it_is_read_gives_right_bytes_or_an_error() {
    const SIZE: usize = 4 << 20;
    const THREADS: usize = 4;
    const CUTS: usize = 25;
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), SIZE);
    let expected = content(SIZE);
    let store = Mapped::default();
    wait_until_mapped(&store, &path);
    let (is_over, failures) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, path, expected, is_over, failures) = (&store, &path, &expected, &is_over, &failures);
            scope.spawn(move || {
                let mut place = thread * 7919;
                while !is_over.load(SeqCst) {
                    // Most are of one page, some of many, so that a cut falls into a copy.
                    place = place.wrapping_mul(25_214_903_917).wrapping_add(11);
                    let size = if place >> 60 == 0 { SIZE / 2 } else { SAMPLE_BYTES };
                    let begin = (place >> 20) % (SIZE - size);
                    let range = begin as u64..(begin + size) as u64;
                    match read(store, &ReadRequest::new(path, Duration::MAX).with_range(range)) {
                        Ok(object) => assert!(object.bytes == expected[begin..begin + size], "{begin}: wrong bytes"),
                        Err(error) => {
                            let kind = error.kind();
                            assert!(matches!(kind, Kind::Changed | Kind::Corrupt | Kind::Unavailable), "{error}");
                            failures.fetch_add(1, SeqCst);
                        }
                    }
                }
            });
        }
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for cut in 0..CUTS {
            let until = Instant::now() + PATIENCE;
            let before = store.mapped_reads();
            while store.mapped_reads() < before + 50 {
                assert!(Instant::now() < until, "the file is not mapped again");
                std::thread::yield_now();
            }
            // At the end of a page, and within one.
            let keeps = [0, SIZE / 2, SIZE / 3 + 1, SAMPLE_BYTES * 3][cut % 4];
            file.set_len(keeps as u64).unwrap();
            if cut % 2 == 0 {
                let before = failures.load(SeqCst);
                while failures.load(SeqCst) < before + 10 {
                    assert!(Instant::now() < until, "nobody noticed the cut");
                    std::thread::yield_now();
                }
            }
            file.write_all_at(&expected[keeps..], keeps as u64).unwrap();
        }
        is_over.store(true, SeqCst);
    });
    assert!(failures.load(SeqCst) > 0);
    wait_until_mapped(&store, &path);
    assert!(read(&store, &ReadRequest::new(&path, Duration::MAX)).unwrap().bytes == expected);
}

#[test]
fn a_page_that_is_gone_is_a_mark_and_the_rest_of_the_mapping_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 1 << 20);
    let store = Mapped::default();
    wait_until_mapped(&store, &path);
    let cut = ReadRequest::new(&path, Duration::MAX).with_range(0..1 << 20);
    let got = store.fetch(&cut, &mut |_| {
        File::options().write(true).open(&path).unwrap().set_len(1 << 19).unwrap();
        Ok(Vec::new())
    });
    let error = got.unwrap_err();
    assert_eq!(error.to_string(), format!("{path:?} changed while it was read (expected 1048576 bytes, got 524288)"));
    wait_until_mapped(&store, &path);
    let half = read(&store, &ReadRequest::new(&path, Duration::MAX)).unwrap();
    assert!(half.bytes == content(1 << 20)[..1 << 19], "mapped afresh");
}

#[test]
fn more_files_than_mappings_are_read_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let store = Mapped::default();
    let paths: Vec<_> = (0..1500).map(|number| folder.path().join(format!("{number}.bin"))).collect();
    for path in &paths {
        std::fs::write(path, path.as_os_str().as_encoded_bytes()).unwrap();
    }
    wait_until_mapped(&store, &paths[1499]);
    let before = store.mapped_reads();
    for path in paths.iter().rev().chain(&paths) {
        let object = read(&store, &ReadRequest::new(path, Duration::MAX)).unwrap();
        assert_eq!(object.bytes, path.as_os_str().as_encoded_bytes());
    }
    assert!(store.mapped_reads() >= before + 2900, "{}", store.mapped_reads() - before);
    let mapped =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches(folder.path().to_str().unwrap()).count();
    assert!((1..=512).contains(&mapped()), "{}", mapped());
    store.rest();
    assert_eq!(mapped(), 0);
}

#[test]
fn files_elsewhere_than_on_disks_of_this_machine_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 10);
    Mapped::check([path.clone(), folder.path().join("not there.bin")]).unwrap();
    let link = folder.path().join("link.bin");
    std::os::unix::fs::symlink("/proc/self/status", &link).unwrap();
    for (bad, said) in [
        (PathBuf::from("s3://bucket/a.bin"), "got a URL"),
        ("/proc/self/status".into(), "got some on \"/proc\" (proc from proc)"),
        (link.clone(), "got some on \"/proc\" (proc from proc)"),
    ] {
        let error = Mapped::check([path.clone(), bad]).unwrap_err();
        assert!(error.kind() == Kind::Config && error.to_string().contains(said), "{error}");
    }
    // One that has come there since is read, and not mapped.
    let store = Mapped::default();
    assert!(read(&store, &ReadRequest::new(Path::new("/proc/self/status"), Duration::MAX)).is_ok());
    assert_eq!(store.mapped_reads(), 0);
}

/// What a child process does that this test binary is started as, and what becomes of it: the signal that ended it, or its
/// exit status.
const CHILD: &str = "FOREBAY_TEST_BUS_ERROR";

extern "C" fn ends_with_seven(_signal: i32) {
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(7) };
}

/// As faulthandler's: it puts back what was there before, says something, and raises the signal again.
extern "C" fn raises_again(_signal: i32) {
    let said = b"reached\n";
    // SAFETY: async-signal-safe, and the pointers are to so many bytes, and to what `handle` has written.
    unsafe {
        libc::write(2, said.as_ptr().cast(), said.len());
        libc::sigaction(libc::SIGBUS, BEFORE.load(SeqCst), std::ptr::null_mut());
        libc::raise(libc::SIGBUS);
    }
}

/// What was there before the handler.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

fn handle(handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: zero is a valid sigaction, and the handlers are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        let before = Box::leak(Box::new(std::mem::zeroed()));
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, before), 0);
        BEFORE.store(before, SeqCst);
    }
}

/// A fault of another's mapping: a page behind the end of its file.
fn fault(folder: &Path) {
    let path = folder.join("foreign");
    std::fs::write(&path, b"").unwrap();
    let file = File::open(&path).unwrap();
    use std::os::fd::AsRawFd;
    // SAFETY: the system chooses the address; reading there is what is to fail.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::read_volatile(page.cast::<u8>());
    }
}

/// Cuts a file of its own during a read, which has to be an error and nothing else.
fn survive_a_cut(folder: &Path, before_the_read: impl Fn(&Path)) {
    let path = file(folder, 1 << 20);
    let store = Mapped::default();
    wait_until_mapped(&store, &path);
    before_the_read(&path);
    let got = store.fetch(&ReadRequest::new(&path, Duration::MAX), &mut |_| {
        File::options().write(true).open(&path).unwrap().set_len(1).unwrap();
        Ok(Vec::new())
    });
    assert_eq!(got.unwrap_err().kind(), Kind::Changed);
}

#[test]
#[ignore = "the program of the next test's children"]
fn as_a_child() {
    let case = std::env::var(CHILD).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let again = libc::SA_NODEFER;
    match case.as_str() {
        "a fault of another mapping" => {
            survive_a_cut(folder, |_| ());
            fault(folder);
        }
        "a handler before" => {
            handle(ends_with_seven, 0);
            survive_a_cut(folder, |_| ());
            fault(folder);
        }
        "a handler that raises again, before" => {
            handle(raises_again, again);
            survive_a_cut(folder, |_| ());
            fault(folder);
        }
        "a handler after" => {
            survive_a_cut(folder, |_| handle(ends_with_seven, 0));
            fault(folder);
        }
        "a handler that raises again, after" => {
            survive_a_cut(folder, |_| handle(raises_again, again));
            fault(folder);
        }
        "both" => {
            handle(ends_with_seven, 0);
            survive_a_cut(folder, |_| handle(raises_again, again));
            fault(folder);
        }
        "a blocked signal" => {
            // SAFETY: sigfillset makes a valid set of it.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigfillset(&raw mut set);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            }
            survive_a_cut(folder, |_| ());
        }
        "raised" => {
            // Not the standard library's own, which lets the first one pass.
            // SAFETY: takes two numbers.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            survive_a_cut(folder, |_| ());
            // SAFETY: takes a number.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        "forked" => survive_a_cut(folder, |path| {
            // SAFETY: the child maps nothing, cuts nothing, and ends by _exit.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    let is_read = read(&Local, &ReadRequest::new(path, Duration::MAX)).is_ok();
                    libc::_exit(if is_read { 0 } else { 1 });
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                assert_eq!(status, 0);
            }
        }),
        other => panic!("{other}"),
    }
}

#[test]
fn every_other_bus_error_goes_to_whom_it_would_have_gone() {
    let killed = (Some(libc::SIGBUS), None);
    for (case, expected, reached) in [
        ("a fault of another mapping", killed, 0),
        ("a handler before", (None, Some(7)), 0),
        ("a handler that raises again, before", killed, 1),
        ("a handler after", (None, Some(7)), 0),
        ("a handler that raises again, after", killed, 1),
        ("both", (None, Some(7)), 1),
        ("a blocked signal", (None, Some(0)), 0),
        ("raised", killed, 0),
        ("forked", (None, Some(0)), 0),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "mapped::as_a_child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, case);
        // SAFETY: setrlimit is async-signal-safe. No core files.
        unsafe {
            command.pre_exec(|| {
                libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
                Ok(())
            });
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.signal(), output.status.code()), expected, "{case}: {said}");
        assert!(said.matches("reached\n").count() == reached, "{case}: {said}");
    }
}
