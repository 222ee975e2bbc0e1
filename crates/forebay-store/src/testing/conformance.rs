//! The conformance suite for stores and wrappers: the contract of [`Store`] as tests.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test suite reports by panicking")]

use std::path::Path;
use std::time::Duration;

use forebay_core::{Entry, Error, Expected, Kind, Result, stamp_ns};

use crate::read_request::ReadRequest;
use crate::sink::{Age, Held, Sink, SinkEntry};
use crate::store::{Cancel, Object, Stat, Store};

/// The objects that must exist below `root` before the suite runs.
pub const OBJECTS: &[(&str, &[u8])] = &[
    ("cat/1.jpg", b"one"),
    ("cat/deep/2.jpg", b"twotwo"),
    ("dog/empty.jpg", b""),
    ("dog/a b\n\u{fc}.jpg", b"odd name"),
];

/// The same for remote stores, whose client accepts no control characters in names.
pub const REMOTE_OBJECTS: &[(&str, &[u8])] = &[
    ("cat/1.jpg", b"one"),
    ("cat/deep/2.jpg", b"twotwo"),
    ("dog/empty.jpg", b""),
    ("dog/a b+c%20#?&~\u{fc}.jpg", b"odd name"),
];

/// Runs the whole suite.
pub fn check(store: &dyn Store, root: &Path) {
    check_objects(store, root, OBJECTS);
    lists_entries_and_knows_directories(store, root);
    directories_are_not_objects(store, root);
}

/// Runs the whole suite for a remote store.
pub fn check_remote(store: &dyn Store, root: &Path) {
    check_objects(store, root, REMOTE_OBJECTS);
    lists_entries_and_knows_directories(store, root);
    listings_tell_what_an_examination_tells(store, root);
    directories_are_not_objects(store, root);
}

/// The part of the suite that needs no directories: reading, and missing objects.
pub fn check_objects(store: &dyn Store, root: &Path, objects: &[(&str, &[u8])]) {
    what_a_store_says_of_itself_is_so(store, root);
    reads_all_bytes_and_asks_for_exactly_that_memory(store, root, objects);
    check_ranges(store, root, objects);
    missing_paths_are_not_found_and_not_transient(store, root);
}

fn what_a_store_says_of_itself_is_so(store: &dyn Store, root: &Path) {
    let capabilities = store.capabilities();
    assert_eq!(capabilities.is_remote, store.traffic().is_some(), "{store:?}");
    assert_eq!(capabilities.is_isolated, store.readers().is_some(), "{store:?}");
    assert_eq!(capabilities.is_cached, store.origin().is_some(), "{store:?}");
    assert_eq!(capabilities.can_list, store.list(root).is_ok(), "{store:?}");
    assert_ne!(capabilities.max_calls, Some(0), "{store:?}");
}

fn reads_all_bytes_and_asks_for_exactly_that_memory(store: &dyn Store, root: &Path, objects: &[(&str, &[u8])]) {
    for (name, content) in objects {
        let path = root.join(name);
        let mut asked = Vec::new();
        // A reused buffer's old content must not show through.
        let object = store.read(&path, Duration::MAX, &mut |size| {
            asked.push(size);
            Ok(vec![0xAA; 100])
        });
        let object = object.unwrap();
        assert_eq!(object.bytes, *content, "{name}");
        assert_eq!(asked, [content.len() as u64], "{name}");
        assert_eq!(object.stat, store.stat(&path).unwrap(), "{name}");
        assert_eq!(object.stat.size_bytes, content.len() as u64, "{name}");
        let refused = store.read(&path, Duration::MAX, &mut |_| Err(Error::internal("no memory"))).unwrap_err();
        assert_eq!(refused.kind(), Kind::Internal, "{name}");
    }
}

/// The result of a read, and the sizes it asked memory for. A reused buffer's old content must not show through.
fn fetch(store: &dyn Store, request: &ReadRequest<'_>) -> (Result<Object>, Vec<u64>) {
    let mut asked = Vec::new();
    let read = store.fetch(request, &mut |size| {
        asked.push(size);
        Ok(vec![0xAA; 100])
    });
    (read, asked)
}

/// Ranges of objects, and of changed objects. Part of [`check_objects`]; separate for tests in which no object may have
/// been read as a whole before.
pub fn check_ranges(store: &dyn Store, root: &Path, objects: &[(&str, &[u8])]) {
    for (name, content) in objects {
        let path = root.join(name);
        ranges_come_exactly_and_ask_for_exactly_their_memory(store, &path, content);
        ranges_of_other_versions_and_behind_the_end_are_refused(store, &path, content.len() as u64);
        reads_that_are_refused_or_cancelled_give_nothing(store, &path, content.len() as u64);
        if let Some(mut sum) = store.sum(&path).unwrap().filter(|_| content.len() > 2) {
            content.chunks(2).for_each(|chunk| sum.update(chunk));
            assert_eq!(sum.got(), Ok(()), "{name}");
        }
    }
    let path = root.join("cat/none.jpg");
    for range in [0..1, 0..0] {
        let (read, asked) = fetch(store, &ReadRequest::new(&path, Duration::MAX).with_range(range));
        let error = read.unwrap_err();
        assert_eq!((error.kind(), error.path(), asked), (Kind::NotFound, Some(&*path), vec![]), "{error}");
    }
}

fn ranges_come_exactly_and_ask_for_exactly_their_memory(store: &dyn Store, path: &Path, content: &[u8]) {
    let (size, stat) = (content.len() as u64, store.stat(path).unwrap());
    let ranges = [0..size, 0..0, size / 2..size / 2, size..size, 0..1, 1..2, 1..size, size.saturating_sub(1)..size];
    for range in ranges.into_iter().filter(|range| range.start <= range.end && range.end <= size) {
        for expected in [Some(stat), None] {
            let request = ReadRequest { expected, ..ReadRequest::new(path, Duration::MAX).with_range(range.clone()) };
            let before = store.traffic();
            let (read, asked) = fetch(store, &request);
            let object = read.unwrap_or_else(|error| panic!("{request:?}: {error}"));
            assert_eq!(object.bytes, content[range.start as usize..range.end as usize], "{request:?}");
            assert_eq!((object.stat, &*asked), (stat, &[range.end - range.start][..]), "{request:?}");
            // Only the bytes of the range are sent; for an empty range, none.
            if let (Some(before), Some(after)) = (before, store.traffic()) {
                assert!(after.bytes - before.bytes <= range.end - range.start, "{request:?}: {after:?}");
                let max_requests = if store.origin().is_some() { 2 } else { 1 };
                assert!(after.requests - before.requests <= max_requests, "{request:?}: {after:?}");
            }
        }
    }
}

fn ranges_of_other_versions_and_behind_the_end_are_refused(store: &dyn Store, path: &Path, size: u64) {
    let stat = store.stat(path).unwrap();
    let whole = ReadRequest::new(path, Duration::MAX);
    let refused = |request: &ReadRequest<'_>, kind: Kind| {
        let (read, asked) = fetch(store, request);
        let error = read.map(|object| object.bytes.len()).unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (kind, false), "{request:?}: {error}");
        assert_eq!((error.path(), &*asked), (Some(path), &[][..]), "{request:?}: {error}");
    };
    for range in [size..size + 1, size + 1..size + 1, size + 7..size + 9, 0..size + 1] {
        let behind = whole.clone().with_range(range);
        refused(&behind, Kind::Corrupt);
        refused(&behind.clone().with_expected(stat), Kind::Corrupt);
        refused(&behind.with_expected(Stat { size_bytes: size + 20, ..stat }), Kind::Changed);
    }
    for other in [Stat { size_bytes: size + 1, ..stat }, Stat { mtime_ns: stat.mtime_ns + 1, ..stat }] {
        refused(&whole.clone().with_expected(other), Kind::Changed);
        for range in [0..0, 0..size.min(1), 0..size] {
            refused(&whole.clone().with_range(range).with_expected(other), Kind::Changed);
        }
    }
}

fn reads_that_are_refused_or_cancelled_give_nothing(store: &dyn Store, path: &Path, size: u64) {
    let cancel = Cancel::default();
    cancel.raise();
    for range in [None, Some(0..size), Some(0..0)] {
        let request = ReadRequest { range, ..ReadRequest::new(path, Duration::MAX) };
        let mut count = 0;
        let refused = store.fetch(&request, &mut |_| {
            count += 1;
            Err(Error::internal("no memory"))
        });
        assert_eq!((refused.unwrap_err().kind(), count), (Kind::Internal, 1), "{request:?}");
        let (cancelled, asked) = fetch(store, &request.with_cancel(&cancel));
        let error = cancelled.unwrap_err();
        assert_eq!((error.kind(), error.path(), asked), (Kind::Stopped, Some(path), vec![]), "{error}");
    }
}

fn missing_paths_are_not_found_and_not_transient(store: &dyn Store, root: &Path) {
    let path = root.join("cat/none.jpg");
    let errors =
        [store.read(&path, Duration::MAX, &mut |_| Ok(Vec::new())).unwrap_err(), store.stat(&path).unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
        assert!(!error.is_transient());
        assert!(error.path().is_some_and(|path| path.starts_with(root)), "{error}");
    }
}

/// For manifests: an object that is listed and read later has the same version.
fn listings_tell_what_an_examination_tells(store: &dyn Store, root: &Path) {
    for directory in ["cat", "dog"].map(|name| root.join(name)) {
        let listing = store.list(&directory).unwrap();
        for (position, entry) in listing.iter().enumerate().filter(|(_, entry)| !entry.is_directory) {
            let version = listing.version(position).expect("a store tells size and time with the name");
            let stamp_ns = version.mtime_ns.map(|mtime_ns| stamp_ns(mtime_ns, version.etag.as_deref()));
            let expected = Expected { size_bytes: version.size_bytes, stamp_ns, by_etag: version.etag.is_some() };
            assert!(expected.size_bytes.is_some() && expected.stamp_ns.is_some(), "{entry:?}");
            let stat = store.stat(&directory.join(entry.name)).unwrap();
            assert_eq!(expected.differs(stat.size_bytes, stat.mtime_ns), None, "{entry:?}: {version:?}");
        }
    }
}

fn directories_are_not_objects(store: &dyn Store, root: &Path) {
    let error = store.read(&root.join("cat"), Duration::MAX, &mut |_| Ok(Vec::new())).unwrap_err();
    assert_eq!(error.kind(), Kind::Undecodable, "{error}");
}

fn lists_entries_and_knows_directories(store: &dyn Store, root: &Path) {
    let missing = store.list(&root.join("none")).unwrap_err();
    assert_eq!((missing.kind(), missing.is_transient()), (Kind::NotFound, false), "{missing}");
    assert_eq!(missing.path(), Some(&*root.join("none")), "{missing}");
    let names = |directory: &Path| {
        let listing = store.list(directory).unwrap();
        let name = |entry: Entry<'_>| (entry.name.to_str().unwrap().to_owned(), entry.is_directory);
        let mut names: Vec<_> = listing.iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(names(root), [("cat".to_owned(), true), ("dog".to_owned(), true)]);
    assert_eq!(names(&root.join("cat")), [("1.jpg".to_owned(), false), ("deep".to_owned(), true)]);
    let identity = |path: &str| store.list(&root.join(path)).unwrap().identity();
    assert_ne!(identity("cat"), identity("dog"));
    assert_ne!(identity("cat"), identity("cat/deep"));
    // A listing gives the same metadata as `stat`.
    let listing = store.list(&root.join("dog")).unwrap();
    assert_eq!(listing.len(), 2);
    for (position, entry) in listing.iter().enumerate() {
        let own = store.stat(&root.join("dog").join(entry.name)).unwrap();
        assert_eq!(Stat::listed(&listing, position).unwrap_or(own), own, "{entry:?}");
    }
}

/// The contract of [`Sink`]. `store` reads what `sink` writes below `root`, which must be empty.
pub fn check_sink(sink: &dyn Sink, store: &dyn Store, root: &Path) {
    let stat = |content: &[u8]| Stat { size_bytes: content.len() as u64, mtime_ns: 1_700_000_000_123_456_789 };
    let read = |name: &str| store.read(&root.join(name), Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
    assert_eq!(sink.held(Path::new("cat/1.jpg")).unwrap(), None);
    for (name, content) in
        [("cat/1.jpg", "one"), ("cat/a b+c%20#&~\u{fc}.jpg", "odd name"), ("cat/1.jpg", "another one"), ("e", "")]
    {
        sink.put(Path::new(name), content.as_bytes(), stat(content.as_bytes())).unwrap();
        assert_eq!(read(name).bytes, content.as_bytes(), "{name}");
        let held = Held { size_bytes: content.len() as u64, age: Age::SourceTime(1_700_000_000_123_456_789) };
        assert_eq!(sink.held(Path::new(name)).unwrap(), Some(held), "{name}");
    }
    let large: Vec<u8> = (0..20_000_000_u32).map(|number| (number.wrapping_mul(number) >> 11) as u8).collect();
    let mut writing = sink.begin(Path::new("large.tar"), stat(&large)).unwrap();
    let piece_bytes = writing.piece_bytes().unwrap_or(7_000_000) as usize;
    for (number, piece) in large.chunks(piece_bytes).enumerate() {
        writing.write((number * piece_bytes) as u64, piece).unwrap();
    }
    assert_eq!(sink.held(Path::new("large.tar")).unwrap(), None, "nothing of it is seen before it is complete");
    writing.finish().unwrap();
    assert!(read("large.tar").bytes == large);
    let held = sink.held(Path::new("large.tar")).unwrap().unwrap();
    let is_known = matches!(held.age, Age::SourceTime(1_700_000_000_123_456_789) | Age::WrittenAt(_));
    assert!(held.size_bytes == 20_000_000 && is_known, "{held:?}");
    let mut given_up = sink.begin(Path::new("given-up"), stat(&large)).unwrap();
    given_up.write(0, &large[..piece_bytes]).unwrap();
    given_up.discard().unwrap();
    let name = |entry: &SinkEntry| match entry {
        SinkEntry::Directory(name) => (name.to_str().unwrap().to_owned(), None),
        SinkEntry::File(name, held) => (name.to_str().unwrap().to_owned(), Some(held.size_bytes)),
        other => panic!("{other:?}"),
    };
    let mut names: Vec<_> = sink.list(Path::new("")).unwrap().iter().map(name).collect();
    names.sort();
    let expected = [("cat", None), ("e", Some(0)), ("large.tar", Some(20_000_000))];
    assert_eq!(names, expected.map(|(name, size)| (name.to_owned(), size)));
    for name in ["cat/1.jpg", "cat/a b+c%20#&~\u{fc}.jpg", "e", "large.tar", "e"] {
        sink.remove(Path::new(name)).unwrap();
        assert_eq!(sink.held(Path::new(name)).unwrap(), None, "{name}");
    }
    sink.remove_directory(Path::new("cat")).unwrap();
    // SeaweedFS has real directories, which remain.
    let left = sink.list(Path::new("")).unwrap();
    assert!(left.iter().all(|entry| matches!(entry, SinkEntry::Directory(_))), "{left:?}");
}

/// For stores whose objects can be changed: `write` replaces the content of a path in place, and changes its
/// modification time. A read returns the old content whole, or reports the change.
pub fn check_changes(store: &dyn Store, root: &Path, write: &dyn Fn(&Path, &[u8])) {
    let path = root.join("cat/changing.jpg");
    // The large ones take several pieces in every store that has pieces.
    for (size, size_after) in [(10, 10), (10, 20), (10, 3), (10, 0), (0, 10), (5 << 20, 5 << 20), (5 << 20, 1 << 10)] {
        let (old, new) = (vec![b'o'; size], vec![b'n'; size_after]);
        for range in [None, Some(size / 4..size), Some(size / 4..size / 2)] {
            write(&path, &old);
            let wanted = range.clone().unwrap_or(0..size);
            let range = range.map(|range| range.start as u64..range.end as u64);
            let request = ReadRequest { range, ..ReadRequest::new(&path, Duration::MAX) };
            let read = store.fetch(&request, &mut |_| {
                write(&path, &new);
                Ok(Vec::new())
            });
            match read {
                Ok(object) => {
                    assert!(
                        object.bytes == old[wanted],
                        "{request:?}, {size} to {size_after} bytes: part old, part new"
                    )
                }
                Err(error) => {
                    assert_eq!((error.kind(), error.is_transient()), (Kind::Changed, false), "{request:?}: {error}");
                    assert_eq!(error.path(), Some(path.as_path()), "{error}");
                }
            }
            let object = store.read(&path, Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
            assert!(object.bytes == new, "{request:?}: a call that starts afresh reads what is there now");
        }
    }
}
