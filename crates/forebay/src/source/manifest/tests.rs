#![allow(clippy::disallowed_methods, reason = "a real tree")]

use std::collections::HashMap;
use std::fs;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use forebay_core::{Epoch, Kind, Listing};
use forebay_decode::{Op, Pipeline};
use forebay_store::testing::Scripted;
use forebay_store::{Allot, Local, Object, ReadRequest, Stat};

use super::*;
use crate::scan::ScanProgress;
use crate::{Picture, Source};

/// A picture of one pixel, of this colour.
fn picture(colour: u8) -> Vec<u8> {
    let head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".as_slice();
    [head, &[0; 24], &[colour, colour, colour, 0]].concat()
}

/// `count` pictures of five classes below `root`.
fn plant(root: &Path, count: usize) -> Vec<PathBuf> {
    let path = |number: usize| root.join(format!("class{}/{number:05}.bmp", number % 5));
    let paths: Vec<_> = (0..count).map(path).collect();
    for (number, path) in paths.iter().enumerate() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, picture(number as u8)).unwrap();
    }
    paths
}

/// A time that no file has by itself.
fn touch(path: &Path, seconds: u64) {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::OpenOptions::new().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn scanned(store: &Arc<dyn Store>, root: &Path, deep: bool, earlier: Option<&Manifest>) -> Scanned {
    let keep: &mut KeepScan<'_> = &mut |_, _| Ok(());
    scan_manifest(store, root, &ScanOptions::images(), deep.then_some(keep), earlier, &mut |_| {}).unwrap()
}

fn at(path: &Path) -> ManifestOutput {
    ManifestOutput::open(path, &StorageOptions::default()).unwrap()
}

fn written(scanned: &Scanned, path: &Path, root: &str) -> u64 {
    at(path).write(&scanned.index, &scanned.facts, root).unwrap()
}

fn names(index: &FolderIndex, samples: &[SampleId]) -> Vec<PathBuf> {
    samples.iter().map(|sample| index.path(*sample)).collect()
}

#[test]
fn after_ten_files_changed_ten_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = (folder.path().join("data"), folder.path().join("m.parquet"));
    let paths = plant(&root, 500);
    let counted = Arc::new(Scripted::new(Local));
    let store = Arc::clone(&counted) as Arc<dyn Store>;
    let first = scanned(&store, &root, true, None);
    assert_eq!((first.files_read, counted.total_reads(), first.bytes_read), (500, 500, 500 * 58));
    assert!(first.problems.is_empty() && first.difference.is_none());
    let content = first.facts[7].content.as_deref().unwrap();
    let Picture { width, height, format } = content.picture.as_ref().unwrap();
    assert_eq!((*width, *height, &**format), (1, 1, "BMP"));
    assert!(written(&first, &output, "/elsewhere") > 1000);

    let earlier = at(&output).earlier().unwrap().unwrap();
    assert_eq!(earlier.index.identity(), first.index.identity());
    let same = scanned(&store, &root, true, Some(&earlier));
    assert_eq!((same.files_read, counted.total_reads()), (0, 500));
    assert!(same.difference.unwrap().is_empty());
    assert_eq!(same.facts, first.facts);

    // Another size, and the same size at another time.
    for path in &paths[..5] {
        fs::write(path, [picture(1), vec![0]].concat()).unwrap();
    }
    for path in &paths[5..10] {
        touch(path, 1_000_000);
    }
    let changed = scanned(&store, &root, true, Some(&earlier));
    assert_eq!((changed.files_read, counted.total_reads()), (10, 510));
    let difference = changed.difference.as_ref().unwrap();
    let mut expected = paths[..10].to_vec();
    expected.sort();
    assert_eq!(names(&changed.index, &difference.changed), expected);
    assert!(difference.added.is_empty() && difference.deleted.is_empty());

    let (new, gone) = (root.join("class3/new.bmp"), &paths[100]);
    fs::write(&new, picture(3)).unwrap();
    fs::remove_file(gone).unwrap();
    written(&changed, &output, "/elsewhere");
    let earlier = at(&output).earlier().unwrap().unwrap();
    let moved = scanned(&store, &root, true, Some(&earlier));
    let difference = moved.difference.unwrap();
    assert_eq!((moved.files_read, counted.total_reads()), (1, 511));
    assert_eq!((names(&moved.index, &difference.added), difference.changed.len()), (vec![new], 0));
    let gone = Path::new("/elsewhere").join(gone.strip_prefix(&root).unwrap());
    assert_eq!(names(&earlier.index, &difference.deleted), [gone]);
    // Without a look into files, what is known of them is kept.
    let shallow = scanned(&store, &root, false, Some(&earlier));
    assert_eq!(shallow.facts.iter().filter(|facts| facts.content.is_some()).count(), 499);
    assert_eq!(counted.total_reads(), 511);
}

#[test]
fn what_was_read_before_an_interruption_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = (folder.path().join("data"), folder.path().join("m.parquet"));
    plant(&root, 500);
    let counted = Arc::new(Scripted::new(Local));
    let store = Arc::clone(&counted) as Arc<dyn Store>;
    let mut kept = 0;
    let mut keep = |index: &FolderIndex, facts: &[Facts]| {
        kept = facts.iter().filter(|facts| facts.content.is_some()).count();
        if kept < 300 {
            return Ok(());
        }
        at(&output).write(index, facts, "/r")?;
        Err(Error::new(Kind::Stopped, "somebody pulled the plug"))
    };
    let options = ScanOptions::images();
    let stopped = scan_manifest(&store, &root, &options, Some(&mut keep), None, &mut |_| {});
    assert_eq!(stopped.unwrap_err().kind(), Kind::Stopped);
    let earlier = at(&output).earlier().unwrap().unwrap();
    let rest = scanned(&store, &root, true, Some(&earlier));
    assert_eq!((kept, rest.files_read), (300, 200));
    assert!(rest.facts.iter().all(|facts| facts.content.is_some()));
}

#[test]
fn what_cannot_be_examined_or_read_is_a_problem_and_stays_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let paths = plant(folder.path(), 20);
    fs::write(&paths[3], b"<html>").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("class1/link.bmp")).unwrap();
    let store: Arc<dyn Store> = Arc::new(Local);
    let scanned = scanned(&store, folder.path(), true, None);
    assert_eq!((scanned.index.len(), scanned.files_read), (21, 19));
    let problems: Vec<_> =
        scanned.problems.iter().map(|(sample, error)| (scanned.index.path(*sample), error.kind())).collect();
    let link = folder.path().join("class1/link.bmp");
    assert_eq!(problems, [(link, Kind::NotFound), (paths[3].clone(), Kind::Undecodable)]);
    let output = folder.path().join("m.parquet");
    written(&scanned, &output, "/r");
    assert_eq!(at(&output).earlier().unwrap().unwrap().index.len(), 21);
}

/// Local files, of which some cannot be examined for a while, or ever.
#[derive(Debug, Default)]
struct Failing {
    asked: Mutex<HashMap<PathBuf, u32>>,
    /// How often a file fails before it does not.
    times: u32,
}

impl Store for Failing {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        Local.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let asked = *self.asked.lock().unwrap().entry(path.to_owned()).and_modify(|count| *count += 1).or_insert(1);
        match path.extension().is_some_and(|ending| ending == "bmp") && asked <= self.times {
            true => Err(Error::io("examined", std::io::Error::from_raw_os_error(libc::EIO)).at_path(path)),
            false => Local.stat(path),
        }
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        Local.list(directory)
    }
}

#[test]
fn a_hiccup_of_any_file_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    plant(folder.path(), 300);
    let (mut done, mut last) = (0, None);
    let store: Arc<dyn Store> = Arc::new(Failing { times: 1, ..Failing::default() });
    let watched = scan_manifest(&store, folder.path(), &ScanOptions::images(), None, None, &mut |at| {
        if let ScanProgress::Examining { done: now, total } = at {
            assert!(now >= done && now <= total);
            (done, last) = (now, Some(total));
        }
    });
    let watched = watched.unwrap();
    assert!(watched.problems.is_empty());
    assert!(watched.facts.iter().all(|facts| facts.version.size_bytes == Some(58)));
    assert_eq!(last, Some(300));
    assert!(done > 0);
}

#[test]
fn a_recorded_root_is_trusted_where_its_manifest_is() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = (folder.path().join("data"), folder.path().join("m.parquet"));
    plant(&root, 3);
    let store: Arc<dyn Store> = Arc::new(Local);
    let scanned = scanned(&store, &root, false, None);
    let options = StorageOptions::new([("token".to_owned(), "hunter2hunter2".to_owned())]);
    let open = |root: Option<&str>| {
        open_manifest(&output, root.map(Path::new), &options, &Config::default(), Keeps::Names, &Labels::Class)
    };
    for recorded in ["http://127.0.0.1:1/train", "https://me:hunter2hunter2@evil.example/train", "s3://bucket/train"] {
        written(&scanned, &output, recorded);
        for options in [&options, &StorageOptions::default()] {
            let error = open_manifest(&output, None, options, &Config::default(), Keeps::Names, &Labels::Class)
                .map(drop)
                .unwrap_err();
            let plain = recorded.replace("me:hunter2hunter2@", "");
            assert_eq!((error.kind(), error.path()), (Kind::Config, Some(&*output)), "{error}");
            assert!(error.hint().ends_with(&format!("pass `root={plain:?}`")), "{}", error.hint());
            assert!(!format!("{error:?} {}", error.hint()).contains("hunter2"), "{error:?}");
        }
    }
    let (manifest, _) = open(Some("s3://bucket/train")).unwrap();
    assert_eq!(manifest.index.root(), Path::new("s3://bucket/train"), "whoever names it, may");
    written(&scanned, &output, "/anywhere");
    assert_eq!(open(None).unwrap().0.index.root(), Path::new("/anywhere"));
}

#[test]
fn a_manifest_is_opened_without_its_folder_and_finds_out_what_is_stale() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = (folder.path().join("data"), folder.path().join("m.parquet"));
    let paths = plant(&root, 10);
    let store: Arc<dyn Store> = Arc::new(Local);
    written(&scanned(&store, &root, false, None), &output, root.to_str().unwrap());
    let away = folder.path().join("away");
    fs::rename(&root, &away).unwrap();
    let open = |root: Option<&Path>| {
        let (manifest, store) =
            open_manifest(&output, root, &StorageOptions::default(), &Config::default(), Keeps::Names, &Labels::Class)
                .unwrap();
        Source::new(Arc::new(manifest.index), store, Pipeline::new(vec![Op::ToTensor]).unwrap())
    };
    let source = open(None);
    assert_eq!(source.dataset.len(), 10);
    let load = |source: &Source, sample| source.load(SampleId(sample), 0, Epoch(0)).map(drop);
    assert_eq!(load(&source, 0).unwrap_err().kind(), Kind::NotFound);
    fs::rename(&away, &root).unwrap();
    for sample in 0..10 {
        load(&source, sample).unwrap();
    }
    touch(&paths[0], 1_000_000);
    let error = load(&source, 0).unwrap_err();
    assert_eq!((error.kind(), error.path(), error.is_transient()), (Kind::Stale, Some(&*paths[0]), false));
    assert!(
        error.to_string().contains("is not what the manifest describes (its modification time moved by"),
        "{error}"
    );
    assert!(error.hint().contains("forebay scan"));
    fs::write(&paths[5], [picture(1), vec![0]].concat()).unwrap();
    let error = load(&source, 1).unwrap_err();
    assert!(error.to_string().contains("(expected 58 bytes, got 59)"), "{error}");
    // A copy has other times; another size is another file.
    let copy = folder.path().join("copy");
    plant(&copy, 10);
    let source = open(Some(&copy));
    load(&source, 0).unwrap();
    fs::write(copy.join("class0/00000.bmp"), [picture(1), vec![0]].concat()).unwrap();
    assert_eq!(load(&source, 0).unwrap_err().kind(), Kind::Stale);
}

#[test]
fn bytes_that_differ_from_their_checksum_are_damage_though_they_decode() {
    let folder = tempfile::tempdir().unwrap();
    let (root, output) = (folder.path().join("data"), folder.path().join("m.parquet"));
    let paths = plant(&root, 10);
    let store: Arc<dyn Store> = Arc::new(Local);
    written(&scanned(&store, &root, true, None), &output, root.to_str().unwrap());
    // As storage rots: the same size and the same time.
    let modified = fs::metadata(&paths[0]).unwrap().modified().unwrap();
    fs::write(&paths[0], picture(77)).unwrap();
    fs::OpenOptions::new().write(true).open(&paths[0]).unwrap().set_modified(modified).unwrap();
    let load = |keeps, sample| {
        let options = StorageOptions::default();
        let (manifest, store) =
            open_manifest(&output, None, &options, &Config::default(), keeps, &Labels::Class).unwrap();
        assert_eq!(manifest.index.has_checksums(), keeps == Keeps::Checksums);
        let source = Source::new(Arc::new(manifest.index), store, Pipeline::new(vec![Op::ToTensor]).unwrap());
        source.load(SampleId(sample), 0, Epoch(0)).map(drop)
    };
    load(Keeps::Names, 0).unwrap();
    load(Keeps::Checksums, 1).unwrap();
    let error = load(Keeps::Checksums, 0).unwrap_err();
    assert_eq!((error.kind(), error.stage(), error.path()), (Kind::Corrupt, Some(Stage::Decode), Some(&*paths[0])));
    let hash = |colour| forebay_format::content_hash(&picture(colour));
    let words = format!("(expected checksum {:016x}, got {:016x})", hash(0), hash(77));
    assert!(error.to_string().contains(&words), "{error}");
}

/// Local files that are examined only when two are asked for at a time.
#[derive(Debug, Default)]
struct Paired {
    asked: Mutex<usize>,
    pair: Condvar,
}

impl Store for Paired {
    fn fetch(&self, request: &ReadRequest<'_>, allot: &mut Allot<'_>) -> Result<Object> {
        Local.fetch(request, allot)
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        self.pair.notify_all();
        let waited = self.pair.wait_timeout_while(asked, Duration::from_secs(20), |asked| *asked < 2).unwrap();
        assert!(!waited.1.timed_out(), "one directory is examined by one thread");
        drop(waited);
        Local.stat(path)
    }

    fn list(&self, directory: &Path) -> Result<Listing> {
        Local.list(directory)
    }
}

#[test]
fn the_files_of_one_directory_are_examined_by_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("all");
    fs::create_dir(&class).unwrap();
    (0..400).for_each(|number| fs::write(class.join(format!("{number}.bmp")), picture(1)).unwrap());
    let store: Arc<dyn Store> = Arc::new(Paired::default());
    let scanned = scanned(&store, folder.path(), false, None);
    assert!(scanned.facts.iter().all(|facts| facts.version.size_bytes == Some(58)));
}
