#![allow(clippy::disallowed_methods, reason = "real files")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use forebay_core::Listing;
use forebay_store::{Allot, Local, Object};

use super::*;
use crate::source::manifest::{Scanned, scan_manifest};

/// Local files; what was read of them and how, and what fails.
#[derive(Debug, Default)]
struct Watched {
    ranges: Mutex<Vec<(PathBuf, Range<u64>)>>,
    /// Whole files that are in memory now, and the most there were at a time, in bytes.
    whole: Mutex<(u64, u64)>,
    /// Ranges that begin here fail once.
    fails_at: Mutex<Vec<u64>>,
    /// Ranges that begin here find another file.
    changes_at: Option<u64>,
}

impl Store for Watched {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        match &request.range {
            Some(range) => self.note_range(request.path, range)?,
            None => return self.read_whole(request, allot),
        }
        Local.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Local.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        Local.list(directory)
    }
}

impl Watched {
    fn read_whole(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let object = Local.fetch(request, allot)?;
        let size = object.bytes.len() as u64;
        {
            let mut whole = self.whole.lock().unwrap();
            whole.0 += size;
            whole.1 = whole.1.max(whole.0);
        }
        // Long enough for others to come in between if they may.
        std::thread::sleep(Duration::from_millis(20));
        self.whole.lock().unwrap().0 -= size;
        Ok(object)
    }

    fn note_range(&self, path: &Path, range: &Range<u64>) -> Result<()> {
        self.ranges.lock().unwrap().push((path.to_owned(), range.clone()));
        let mut fails = self.fails_at.lock().unwrap();
        if let Some(position) = fails.iter().position(|at| *at == range.start) {
            fails.remove(position);
            return Err(Error::io("read", std::io::Error::from_raw_os_error(libc::EIO)));
        }
        drop(fails);
        if self.changes_at == Some(range.start) {
            OpenOptions::new().write(true).open(path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }
        Ok(())
    }
}

const MIB: u64 = 1 << 20;

/// A picture of one pixel with so many bytes behind it, which take no space on the disk.
fn bitmap(path: &Path, size: u64) {
    let head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".as_slice();
    write(path, &[head, &[0; 24], &[1, 2, 3, 0]].concat(), size);
}

fn write(path: &Path, head: &[u8], size: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, head).unwrap();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.set_len(size - 3).unwrap();
    file.write_all(b"end").unwrap();
}

/// A grey picture of one pixel whose directory comes after everything else, as most programs write it.
fn tiff(path: &Path, size: u64) {
    let entry = |tag: u16, value: u32| {
        let kind = if tag == 273 { 4_u16 } else { 3 };
        [&tag.to_le_bytes()[..], &kind.to_le_bytes(), &1_u32.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    let fields = [(256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 1)];
    let entries: Vec<u8> = fields.iter().flat_map(|&(tag, value)| entry(tag, value)).collect();
    let directory = [&(fields.len() as u16).to_le_bytes()[..], &entries, &[0; 4]].concat();
    let at = size - directory.len() as u64;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [&b"II*\0"[..], &(at as u32).to_le_bytes(), &[7]].concat()).unwrap();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.set_len(at).unwrap();
    file.write_all(&directory).unwrap();
}

fn scanned(store: &Arc<Watched>, root: &Path) -> Scanned {
    let store = Arc::clone(store) as Arc<dyn Store>;
    let options = ScanOptions {
        extensions: [".bmp", ".tiff", ".dat", ".jpg"].map(str::to_owned).into(),
        ..ScanOptions::images()
    };
    scan_manifest(&store, root, &options, Some(&mut |_, _| Ok(())), None, &mut |_| {}).unwrap()
}

fn content(scanned: &Scanned, name: &str) -> Content {
    let index = &scanned.index;
    let mut samples = (0..index.len()).map(forebay_core::SampleId);
    let sample = samples.find(|sample| index.path(*sample).ends_with(name)).unwrap();
    *scanned.facts[sample.0 as usize].content.clone().unwrap()
}

#[test]
fn a_large_file_is_read_in_pieces_and_hashes_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sizes = [PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 21 * MIB + 17];
    for (number, size) in sizes.iter().enumerate() {
        bitmap(&root.join(format!("a/{number}.bmp")), *size);
    }
    write(&root.join("b/numbers.dat"), b"no picture", 9 * MIB);
    let store = Arc::new(Watched { fails_at: Mutex::new(vec![PIECE_BYTES, 0]), ..Watched::default() });
    let scanned = scanned(&store, root);
    assert!(scanned.problems.is_empty(), "{:?}", scanned.problems);
    assert_eq!((scanned.files_read, scanned.bytes_read), (5, sizes.iter().sum::<u64>() + 9 * MIB));
    for number in 0..sizes.len() {
        let name = format!("a/{number}.bmp");
        let Content { xxh3, picture } = content(&scanned, &name);
        assert_eq!(xxh3, content_hash(&fs::read(root.join(name)).unwrap()));
        assert_eq!(picture, Some(Picture { width: 1, height: 1, format: "BMP".into() }));
    }
    assert_eq!(content(&scanned, "b/numbers.dat").picture, None);
    let ranges = store.ranges.lock().unwrap();
    assert!(ranges.iter().all(|(_, range)| range.end - range.start <= PIECE_BYTES));
    // Two, two, three and two pieces, and two that were asked for again: only those.
    assert_eq!(ranges.len(), 2 + 2 + 3 + 2 + 2, "{ranges:?}");
    assert_eq!(store.whole.lock().unwrap().1, PIECE_BYTES, "the first is no larger than a piece");
}

#[test]
fn what_has_to_be_whole_waits_for_room() {
    let folder = tempfile::tempdir().unwrap();
    let count = 6;
    for number in 0..count {
        tiff(&folder.path().join(format!("a/{number}.tiff")), 60 * MIB);
    }
    tiff(&folder.path().join("a/large.tiff"), 300 * MIB);
    let store = Arc::new(Watched::default());
    let scanned = scanned(&store, folder.path());
    assert!(scanned.problems.is_empty(), "{:?}", scanned.problems);
    assert_eq!(scanned.files_read, count + 1);
    let picture = content(&scanned, "a/3.tiff").picture.unwrap();
    assert_eq!((picture.width, picture.height, &*picture.format), (1, 1, "TIFF"));
    let most = store.whole.lock().unwrap().1;
    assert_eq!(most, 300 * MIB, "four of the small ones, or the large one alone");
}

#[test]
fn what_changes_between_two_pieces_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    bitmap(&folder.path().join("a/1.bmp"), 3 * PIECE_BYTES);
    bitmap(&folder.path().join("a/2.bmp"), 100);
    let store = Arc::new(Watched { changes_at: Some(PIECE_BYTES), ..Watched::default() });
    let scanned = scanned(&store, folder.path());
    let [(_, error)] = &scanned.problems[..] else { panic!("{:?}", scanned.problems) };
    assert_eq!((error.kind(), scanned.files_read), (Kind::Changed, 1));
}

#[test]
fn a_large_file_that_is_no_picture_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a/1.jpg"), b"<html>", 100 * MIB);
    let store = Arc::new(Watched::default());
    let scanned = scanned(&store, folder.path());
    let [(_, error)] = &scanned.problems[..] else { panic!("{:?}", scanned.problems) };
    assert_eq!(error.kind(), Kind::Undecodable);
    let ranges = store.ranges.lock().unwrap();
    assert_eq!(ranges.iter().map(|(_, range)| range.clone()).collect::<Vec<_>>(), [0..PIECE_BYTES, 0..PIECE_BYTES]);
}

/// A server that changes a byte of the first reads: to another one each time, or always to the same.
fn doubt(times: u64, is_same: bool) -> Result<Content> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.bmp");
    bitmap(&path, 2 * PIECE_BYTES);
    let stat = Local.stat(&path).unwrap();
    let expected = Expected { size_bytes: Some(stat.size_bytes), stamp_ns: Some(stat.mtime_ns), by_etag: false };
    let store = Lying { count: Mutex::new(0), times, is_same };
    let mut probe = HeaderProbe::new(0, path, expected);
    loop {
        match probe.step(&store, Duration::from_secs(60))?.0 {
            ProbeStep::Continue(further) => probe = further,
            ProbeStep::Done(content) => return Ok(content),
        }
    }
}

/// Changes a byte of the first reads.
#[derive(Debug)]
struct Lying {
    count: Mutex<u64>,
    times: u64,
    is_same: bool,
}

impl Store for Lying {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        let Object { bytes, stat } = Local.fetch(request, allot)?;
        let mut bytes = bytes.into_vec();
        let mut count = self.count.lock().unwrap();
        if request.range.as_ref().is_some_and(|range| range.start > 0) && *count < self.times {
            *count += 1;
            bytes[100] = if self.is_same { 1 } else { *count as u8 };
        }
        Ok(Object { bytes: bytes.into(), stat })
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        Local.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        Local.list(directory)
    }

    fn sum(&self, path: &Path) -> Result<Option<Sum>> {
        Ok(Some(Sum::of(&fs::read(path).unwrap())))
    }
}

#[test]
fn bytes_that_do_not_add_up_are_read_once_more() {
    let right = doubt(0, false).unwrap();
    for is_same in [false, true] {
        assert_eq!(doubt(1, is_same).unwrap(), right);
        let error = doubt(2, is_same).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("bytes that are not those stored (CRC32C: expected"), "{error}");
    }
}
