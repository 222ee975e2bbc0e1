//! Every store, and every wrapper of one, against the contract. Real servers are started on loopback. One that is
//! not installed fails its test, unless `FOREBAY_ALLOW_MISSING` names it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests, with real servers")]

mod cache;
mod cache_disk;
mod cache_ranges;
mod cache_torture;
mod errors;
mod isolate;
mod kept;
mod lying;
mod mapped;
mod memory_cache;
mod redirect;
mod remote;
mod remote_ranges;
mod routed;
mod scripted;
mod servers;

use std::path::Path;
use std::time::Duration;

use forebay_store::testing::{Memory, Scripted, conformance};
use forebay_store::{DirectorySink, Local, ReadRequest, Store};

#[test]
fn local_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in conformance::OBJECTS {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    conformance::check(&Local, folder.path());
    conformance::check(&Scripted::new(Local), folder.path());
    conformance::check_changes(&Local, folder.path(), &rewrite);
}

/// Bytes that a process or a thread has read, by the kernel's count.
fn read_bytes(of: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{of}/io")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// A shard too large to be read for one sample, which takes no space on the disk.
fn sparse_shard(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("train-0000.tar");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"sample", 1 << 39).unwrap();
    path
}

#[test]
fn of_a_local_shard_only_the_range_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = sparse_shard(folder.path());
    let request = ReadRequest::new(&path, Duration::MAX).with_range(1 << 39..(1 << 39) + 6);
    let before = read_bytes("thread-self");
    let object = Local.fetch(&request, &mut |_| Ok(Vec::new())).unwrap();
    let count = read_bytes("thread-self") - before;
    assert!(count < 1_000, "{count} bytes, and those of the count are among them");
    assert_eq!((&*object.bytes, object.stat.size_bytes), (&b"sample"[..], 1 << 40));
}

/// Writes over a file, and sets its time: one tick of a file system's clock may be longer than the whole test.
fn rewrite(path: &Path, content: &[u8]) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static TIME: AtomicU64 = AtomicU64::new(1_000_000_000);
    std::fs::write(path, content).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(TIME.fetch_add(1, Relaxed));
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn memory_keeps_the_contract() {
    let mut store = Memory::default();
    for (name, content) in conformance::OBJECTS {
        store.insert(Path::new("/root").join(name), *content);
    }
    conformance::check(&store as &dyn Store, Path::new("/root"));
}

#[test]
fn a_directory_takes_copies() {
    for verifies in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("new/target");
        conformance::check_sink(&DirectorySink::open(&root, verifies).unwrap(), &Local, &root);
    }
}
