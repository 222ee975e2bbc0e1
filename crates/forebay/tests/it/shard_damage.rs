//! Shards that are damaged at random places, before their index is made and after it: what is delivered and what has
//! failed is what was planned, what is delivered is right wherever the format can tell, and nothing panics or hangs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use forebay::{
    BytesRecipe, Config, Dataset, Epoch, Error, FieldsRecipe, FolderIndex, IndexPlace, Kind, Loader, Local, OnError,
    Recipe, SampleId, ShardFormat, Shards, Source, Store, Value,
};
use tempfile::TempDir;

/// Of each format, before the index and after it.
const DAMAGES: u64 = 500;
/// For all damages of a format; a tenth of it is usual.
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that look random, the same ones every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// One damage, and what was done.
fn damage(bytes: &mut Vec<u8>, numbers: &mut Numbers) -> String {
    let at = numbers.below(bytes.len());
    match numbers.below(5) {
        0 | 1 => {
            let bit = 1 << numbers.below(8);
            bytes[at] ^= bit;
            format!("bit {bit:#x} of byte {at}")
        }
        2 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        3 => {
            let garbage: Vec<u8> = (0..1 + numbers.below(2000)).map(|_| numbers.below(256) as u8).collect();
            let said = format!("{} bytes put in at {at}", garbage.len());
            bytes.splice(at..at, garbage);
            said
        }
        _ => {
            let end = bytes.len().min(at + 1 + numbers.below(2000));
            bytes[at..end].fill(0);
            format!("zeros in {at}..{end}")
        }
    }
}

/// A dataset of a format: its files, and how it is opened.
struct Subject {
    folder: TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
    open: fn(&Path, &[PathBuf]) -> forebay::Result<Opened>,
    /// Whether the format has checksums of its own: then what is delivered is right even if it was damaged before the index.
    has_checksums: bool,
    /// Whether the index has them: then damage that leaves size and time as they were is seen, too.
    is_hashed: bool,
}

struct Opened {
    shards: Arc<Shards>,
    recipe: Arc<dyn Recipe>,
}

impl Subject {
    fn new(files: Vec<(String, Vec<u8>)>, open: fn(&Path, &[PathBuf]) -> forebay::Result<Opened>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = files.into_iter().map(|(name, bytes)| (folder.path().join(name), bytes)).collect();
        Self { folder, files, open, has_checksums: false, is_hashed: false }
    }

    /// The files of a format in the folder of golden ones, of which those with this ending can be damaged.
    fn golden(format: &str, ending: &str, open: fn(&Path, &[PathBuf]) -> forebay::Result<Opened>) -> Self {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/golden/shards").join(format);
        let mut files = Vec::new();
        let made = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(place).unwrap() {
            let entry = entry.unwrap();
            let (name, bytes) = (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
            match name.contains(ending) {
                true => files.push((made.path().join(name), bytes)),
                false => fs::write(made.path().join(name), bytes).unwrap(),
            }
        }
        files.sort();
        assert!(files.len() > 1, "{format} has files that end with {ending}");
        Self { folder: made, files, open, has_checksums: false, is_hashed: false }
    }

    fn open(&self) -> forebay::Result<Opened> {
        let paths: Vec<_> = self.files.iter().map(|(path, _)| path.clone()).collect();
        (self.open)(self.folder.path(), &paths)
    }

    /// Writes a file with a time of its own.
    fn write(&self, file: usize, bytes: &[u8], seconds: u64) {
        let path = &self.files[file].0;
        fs::write(path, bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    fn restore(&self) {
        (0..self.files.len()).for_each(|file| self.write(file, &self.files[file].1, 0));
    }

    /// What each sample is while nothing is damaged; `None` of one that has no value in a column of Arrow.
    fn originals(&self) -> (Opened, Vec<Option<String>>) {
        self.restore();
        let opened = self.open().unwrap();
        assert_eq!(opened.shards.notes(), [], "what is damaged here");
        let samples: Vec<_> = opened.samples().into_iter().map(Result::ok).collect();
        assert!(samples.iter().flatten().count() >= 4);
        (opened, samples)
    }
}

impl Opened {
    fn source(&self) -> Source {
        Source {
            dataset: Arc::clone(&self.shards) as Arc<dyn Dataset>,
            store: Arc::new(Local),
            recipe: Arc::clone(&self.recipe),
        }
    }

    fn samples(&self) -> Vec<forebay::Result<String>> {
        let source = self.source();
        let load = |sample| source.load(SampleId(sample), 0, Epoch(0)).map(|value| text(&value));
        (0..self.shards.len()).map(load).collect()
    }
}

/// A value as text that can be compared.
fn text(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => {
            let hex = bytes.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            });
            format!("{hex};")
        }
        Value::Row(values) => values.iter().map(text).collect(),
        other => panic!("{other:?} is not bytes"),
    }
}

fn files_at(paths: &[PathBuf]) -> Arc<dyn Dataset> {
    Arc::new(FolderIndex::of_paths(paths.iter().map(PathBuf::as_path)).unwrap())
}

fn bytes_of(names: &[String]) -> Vec<(String, Arc<dyn Recipe>)> {
    names.iter().map(|name| (name.clone(), Arc::new(BytesRecipe) as Arc<dyn Recipe>)).collect()
}

fn tar(root: &Path, paths: &[PathBuf]) -> forebay::Result<Opened> {
    let store: Arc<dyn Store> = Arc::new(Local);
    let fields = ["cls", "txt"].map(|name| vec![name.to_owned()]).to_vec();
    let shards = Shards::tar(files_at(paths), &store, root, &IndexPlace::Beside)?.with_fields(fields);
    let recipe = FieldsRecipe::new(bytes_of(&["cls".to_owned(), "txt".to_owned()]))?;
    Ok(Opened { shards: Arc::new(shards), recipe: Arc::new(recipe) })
}

/// Of every other format. TFRecords are samples as they are.
fn formatted(root: &Path, paths: &[PathBuf]) -> forebay::Result<Opened> {
    let store: Arc<dyn Store> = Arc::new(Local);
    let given = files_at(paths);
    let found = match ShardFormat::of_directory(&store, root)? {
        Some(format) => Some(format),
        None => ShardFormat::of_files(&*given, &store)?,
    };
    let format = found.ok_or_else(|| Error::new(Kind::Undecodable, "is taken for an archive"))?;
    let files = format.files()?.map_or(given, |files| Arc::new(files) as Arc<dyn Dataset>);
    let open = |wanted: Option<&[Vec<String>]>| {
        format.open(Arc::clone(&files), &store, (root, &IndexPlace::Beside), wanted, false)
    };
    let opened = open(None)?;
    let readable = opened.fields.all().iter().filter(|field| opened.fields.has_bytes(field));
    let names: Vec<_> = readable.map(|field| field.name.clone()).collect();
    let wanted: Vec<_> = names.iter().map(|name| vec![name.clone()]).collect();
    let opened = open(Some(&wanted))?;
    let columns = bytes_of(&names).into_iter().map(|(name, recipe)| (name.clone(), vec![name], recipe)).collect();
    let recipe = opened.fields.recipe(columns)?;
    Ok(Opened { shards: Arc::new(opened.shards), recipe })
}

/// The kinds of errors that a sample may have, and a dataset that is refused.
fn check_error(error: &Error, said: &str) {
    let is_expected = matches!(
        error.kind(),
        Kind::Corrupt | Kind::Stale | Kind::Changed | Kind::Undecodable | Kind::NotFound | Kind::Exhausted
    );
    assert!(is_expected && !error.is_transient(), "{said}: {error} ({:?})", error.kind());
}

/// The epoch of a loader that leaves out what has failed.
fn check_books(opened: &Opened, failed: u64, said: &str) {
    let config = Config { batch_size: 7, shuffle: true, on_error: OnError::Skip, ..Config::default() };
    let loader = Arc::new(Loader::new(opened.source(), config).unwrap());
    for batch in loader.epoch().unwrap() {
        batch.unwrap_or_else(|error| panic!("{said}: {error}"));
    }
    let books = loader.books();
    let books = books.first().map(|(_, books)| *books).unwrap();
    assert_eq!((books.planned, books.skipped), (opened.shards.len(), failed), "{said}");
    assert_eq!(books.planned, books.delivered + books.replaced + books.skipped, "{said}");
}

fn after_the_index(subject: &Subject, seed: u64) {
    let started = Instant::now();
    let (opened, originals) = subject.originals();
    let mut numbers = Numbers(seed);
    let mut failures = 0;
    for round in 0..DAMAGES {
        let file = numbers.below(subject.files.len());
        let mut bytes = subject.files[file].1.clone();
        let mut said = damage(&mut bytes, &mut numbers);
        // Where the index has checksums, damage need not show in size and time.
        let is_rot = subject.is_hashed && numbers.below(2) == 0;
        subject.write(file, &bytes, if is_rot { 0 } else { 1 + round });
        write!(said, " of {:?}, damage {round} after the index (rot: {is_rot})", subject.files[file].0).unwrap();
        let samples = opened.samples();
        assert_eq!(samples.len(), originals.len());
        let mut failed = 0;
        for (sample, original) in samples.iter().zip(&originals) {
            match sample {
                Ok(sample) => assert_eq!(Some(sample), original.as_ref(), "{said}: what is delivered is what it was"),
                Err(error) => {
                    check_error(error, &said);
                    failed += 1;
                }
            }
        }
        if round % 50 == 0 {
            check_books(&opened, failed, &said);
        }
        failures += failed;
        subject.write(file, &subject.files[file].1, 0);
        assert!(started.elapsed() < PATIENCE, "{said}");
    }
    assert!(failures >= DAMAGES / 4, "{failures}");
}

fn before_the_index(subject: &Subject, seed: u64) {
    let started = Instant::now();
    let (_, originals) = subject.originals();
    let known: BTreeSet<_> = originals.iter().flatten().collect();
    let mut numbers = Numbers(seed);
    let (mut refused, mut failures, mut lost) = (0, 0, 0);
    for round in 0..DAMAGES {
        let file = numbers.below(subject.files.len());
        let mut bytes = subject.files[file].1.clone();
        let mut said = damage(&mut bytes, &mut numbers);
        write!(said, " of {:?}, damage {round} before the index", subject.files[file].0).unwrap();
        subject.write(file, &bytes, 1 + round);
        match subject.open() {
            Err(error) => {
                check_error(&error, &said);
                refused += 1;
            }
            Ok(opened) => {
                let mut failed = 0;
                for sample in opened.samples() {
                    match sample {
                        Ok(sample) if subject.has_checksums => {
                            assert!(known.contains(&sample), "{said}: what is delivered is one of the samples")
                        }
                        Ok(_) => {}
                        Err(error) => {
                            check_error(&error, &said);
                            failed += 1;
                        }
                    }
                }
                if opened.shards.len() < originals.len() as u64 {
                    let said = format!("{said}: {} of {}", opened.shards.len(), originals.len());
                    assert_ne!(opened.shards.notes(), [], "{said}: what is lost is said");
                    lost += 1;
                }
                if round % 50 == 0 {
                    check_books(&opened, failed, &said);
                }
                failures += failed;
            }
        }
        subject.write(file, &subject.files[file].1, 0);
        assert!(started.elapsed() < PATIENCE, "{said}");
    }
    assert!(failures + refused + lost >= DAMAGES / 10, "{failures} failed, {refused} refused, {lost} lost");
}

/// Archives of a few hundred members.
fn archives() -> Subject {
    let archive = |first: usize| {
        let mut bytes = Vec::new();
        for number in first..first + 80 {
            let content = format!("sample {number} ").repeat(1 + number % 90);
            for (field, content) in [("cls", number.to_string()), ("txt", content)] {
                bytes.extend(member(&format!("{number:05}.{field}"), content.as_bytes()));
            }
        }
        bytes.extend([0; 1024]);
        bytes
    };
    let files = vec![("0.tar".to_owned(), archive(0)), ("1.tar".to_owned(), archive(80))];
    Subject { is_hashed: true, ..Subject::new(files, tar) }
}

/// A file in an archive, as ustar has it.
fn member(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn tar_archives_damaged_at_random_places() {
    after_the_index(&archives(), 1);
    before_the_index(&archives(), 2);
}

#[test]
fn mds_shards_damaged_at_random_places() {
    let subject = Subject::golden("mds", ".mds", formatted);
    after_the_index(&subject, 3);
    before_the_index(&subject, 4);
}

#[test]
fn litdata_chunks_damaged_at_random_places() {
    let subject = Subject::golden("litdata", ".bin", formatted);
    after_the_index(&subject, 5);
    before_the_index(&subject, 6);
}

#[test]
fn tfrecords_damaged_at_random_places() {
    let golden = Subject::golden("tfrecord", ".tfrecord", formatted);
    let subject = Subject { is_hashed: true, has_checksums: true, ..golden };
    after_the_index(&subject, 7);
    before_the_index(&subject, 8);
}

#[test]
fn arrow_files_damaged_at_random_places() {
    let subject = Subject::golden("arrow", ".arrow", formatted);
    after_the_index(&subject, 9);
    before_the_index(&subject, 10);
}
