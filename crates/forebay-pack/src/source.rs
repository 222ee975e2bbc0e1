//! What is packed: the files of a folder or a manifest, or the samples of archives, each as a key and the fields that it will have.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    IndexPlace, ScanProgress, ShardFormat, Shards, examine_samples, open_manifest, open_store, scan_folder,
    scan_manifest,
};
use forebay_core::{Config, Error, Expected, Kind, Locator, Result, SampleId, Stage, Version, stamp_ns};
use forebay_format::{Facts, FolderIndex, IMAGE_EXTENSIONS, Keeps, Labels, Lost, ScanOptions};
use forebay_store::{StorageOptions, Store};
use xxhash_rust::xxh3::xxh3_64;

use crate::names::{FileName, MAX_NAME_BYTES, kept_key};

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A folder of files; each is a sample.
    Folder,
    /// A manifest of files.
    Manifest,
    /// A tar archive, or a folder of them.
    Shards,
}

/// Where the samples come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// A folder, an archive or a manifest: a path or a URL.
    pub path: PathBuf,
    /// Settings of its store.
    pub options: StorageOptions,
    /// What it is; `None` goes by its name, and by what is in it.
    pub kind: Option<SourceKind>,
    /// Whether samples have labels: the directories of a folder, the classes of a manifest.
    pub has_labels: bool,
    /// Endings of files that are samples, in lower case with their dots; `None` are those of pictures.
    pub extensions: Option<Vec<String>>,
    /// Where the files of a manifest are, if not where it says.
    pub root: Option<PathBuf>,
}

/// The field with the label.
pub(crate) const LABEL_FIELD: &str = "cls";

/// One field of a sample, before it is read.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) field: String,
    pub(crate) locator: Locator,
    pub(crate) size: u64,
    /// What its object has to be.
    pub(crate) expected: Option<Expected>,
    /// The checksum that its bytes have to have.
    pub(crate) hash: Option<u64>,
    pub(crate) lost: Option<Lost>,
    pub(crate) is_file: bool,
}

/// A sample, before it is read.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) key: String,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) label: Option<i64>,
}

impl Sample {
    /// The text of its label.
    pub(crate) fn label_text(&self) -> Option<String> {
        self.label.map(|label| label.to_string())
    }
}

/// Why a sample has another key than it would have alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    /// Others differ in their ending, or their archive, alone.
    Longer,
    /// Others do not differ at all: a manifest names a file twice.
    Numbered,
}

/// The samples of a source.
pub(crate) struct Samples {
    pub(crate) store: Arc<dyn Store>,
    of: Of,
    apart: HashMap<u64, Apart>,
    /// What was noticed.
    pub(crate) notes: Vec<String>,
}

enum Of {
    Files {
        index: Arc<FolderIndex>,
        expected: Vec<Option<Expected>>,
        /// Of a manifest that has checksums.
        hashes: Vec<Option<u64>>,
        problems: HashMap<u64, (Kind, String)>,
        has_labels: bool,
    },
    Members(Shards),
}

impl Source {
    /// Finds the samples. `watch` is told how far that is.
    pub(crate) fn open(&self, threads: usize, watch: &mut dyn FnMut(ScanProgress)) -> Result<Samples> {
        let config = Config { io_threads: threads, max_io_threads: threads, ..Config::default() };
        let kind = match self.kind.or_else(|| kind_by_name(&self.path)) {
            Some(kind) => kind,
            None => self.look(&config)?,
        };
        let samples = match kind {
            SourceKind::Folder => self.folder(&config, watch),
            SourceKind::Manifest => self.manifest(&config, watch),
            SourceKind::Shards => self.shards(&config),
        }?;
        if samples.len() == 0 {
            return Err(Error::new(Kind::NotFound, "has no samples to pack").at_path(&self.path));
        }
        Ok(samples)
    }

    /// What a folder is, by the names in it.
    fn look(&self, config: &Config) -> Result<SourceKind> {
        let (store, root) = open_store(&self.path, &self.options, config)?;
        if !store.capabilities().can_list {
            return Err(Error::config("source: HTTP servers cannot list their files").at_path(&root).with_hint(
                "give a manifest, an archive (.tar), or the URL of the store behind it (s3://, gs://, az://)",
            ));
        }
        let listing = forebay::list_directory(&store, &root)?;
        let has = |endings: &[&str]| {
            let ends = |name: &str| endings.iter().any(|ending| name.to_ascii_lowercase().ends_with(ending));
            listing.iter().any(|entry| !entry.is_directory && ends(&entry.name.to_string_lossy()))
        };
        if has(&[".tar"]) {
            return Ok(SourceKind::Shards);
        }
        let is_directory_of_shards = has(&["index.json", "state.json", "dataset_dict.json"])
            && ShardFormat::of_directory(&store, &root)?.is_some();
        if is_directory_of_shards || has(&[".tfrecord", ".tfrecords", ".tfrec", ".arrow", ".mds"]) {
            let message = "source: shards of this format are not packed (expected files, a manifest, or tar archives)";
            let hint = "forebay loads MDS, LitData, TFRecord and Arrow shards as they are: `fb.Shards`";
            return Err(Error::config(message).at_path(&root).with_hint(hint));
        }
        Ok(SourceKind::Folder)
    }

    fn folder(&self, config: &Config, watch: &mut dyn FnMut(ScanProgress)) -> Result<Samples> {
        let (store, root) = open_store(&self.path, &self.options, config)?;
        let mut options = ScanOptions { is_flat: !self.has_labels, ..ScanOptions::images() };
        if let Some(extensions) = &self.extensions {
            options.extensions.clone_from(extensions);
        }
        let scanned = scan_manifest(&store, &root, &options, None, None, watch)?;
        let problems = scanned.problems;
        let expected = scanned.facts.iter().map(|facts| expected(&facts.version)).collect();
        self.files(store, scanned.index, (expected, Vec::new()), problems)
    }

    fn manifest(&self, config: &Config, watch: &mut dyn FnMut(ScanProgress)) -> Result<Samples> {
        let labels = if self.has_labels { Labels::Class } else { Labels::Columns(Vec::new()) };
        let root = self.root.as_deref();
        let (manifest, store) = open_manifest(&self.path, root, &self.options, config, Keeps::Facts, &labels)?;
        let (index, mut facts) = (Arc::new(manifest.index), manifest.facts);
        let problems = examine_samples(&store, &index, &mut facts, watch)?;
        // What the manifest says counts, and only what it does not say is what was found.
        let of = |(sample, facts): (u64, &Facts)| {
            let found = expected(&facts.version);
            let own = index.expected(SampleId(sample)).filter(|own| own.size_bytes.is_some());
            own.or(found)
        };
        let expected = (0..).zip(&facts).map(of).collect();
        let hashes = facts.iter().map(|facts| facts.content.as_ref().map(|content| content.xxh3)).collect();
        self.files(store, Arc::clone(&index), (expected, hashes), problems)
    }

    fn files(
        &self,
        store: Arc<dyn Store>,
        index: Arc<FolderIndex>,
        (expected, hashes): (Vec<Option<Expected>>, Vec<Option<u64>>),
        problems: Vec<(SampleId, Error)>,
    ) -> Result<Samples> {
        let has_labels = self.has_labels && index.has_classes();
        let is_label = |ending: &String| ending.eq_ignore_ascii_case(".cls");
        if has_labels && self.extensions.iter().flatten().any(is_label) {
            let error = Error::config("--extension: expected other endings than .cls, which is the field of the label");
            return Err(error.with_hint("pass --no-labels, or rename the files"));
        }
        let notes = index.notes().iter().map(|note| format!("{:?} {}", note.path, note.message)).collect();
        let mut known = HashMap::new();
        for (sample, error) in problems {
            // A file that cannot be examined for now has to be there when the shards are planned.
            if error.is_transient() || error.kind() == Kind::Timeout {
                return Err(error.with_hint("nothing was packed: run the same command again when the storage answers"));
            }
            known.insert(sample.0, (error.kind(), error.message().to_owned()));
        }
        let of = Of::Files { index, expected, hashes, problems: known, has_labels };
        Ok(Samples { store, of, apart: HashMap::new(), notes }.with_keys_apart())
    }

    fn shards(&self, config: &Config) -> Result<Samples> {
        let is_archive = self.path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar"));
        let (store, root) = open_store(&self.path, &self.options, config)?;
        let (files, root) = match is_archive {
            true => {
                let files = FolderIndex::of_paths(std::iter::once(&*root))?;
                let above = root.parent().unwrap_or(Path::new("")).to_owned();
                (files, above)
            }
            false => {
                let options =
                    ScanOptions { extensions: vec![".tar".to_owned()], is_flat: true, ..ScanOptions::default() };
                (scan_folder(&store, &root, &options, None)?, root)
            }
        };
        let shards = Shards::tar(Arc::new(files), &store, &root, &IndexPlace::Beside)?;
        let notes = shards.notes().iter().map(|note| format!("{:?} {}", note.path, note.message)).collect();
        Ok(Samples { store, of: Of::Members(shards), apart: HashMap::new(), notes }.with_keys_apart())
    }
}

/// What a name says of a source.
fn kind_by_name(path: &Path) -> Option<SourceKind> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "tar" => Some(SourceKind::Shards),
        "parquet" | "csv" | "jsonl" | "ndjson" => Some(SourceKind::Manifest),
        _ => None,
    }
}

/// What a file has to be, by what is known of it.
fn expected(version: &Version) -> Option<Expected> {
    let Version { size_bytes, mtime_ns, etag } = version;
    let stamp = |_| stamp_ns(mtime_ns.unwrap_or_default(), etag.as_deref());
    let has_stamp = (mtime_ns.is_some() || etag.is_some()).then_some(());
    size_bytes.map(|size| Expected { size_bytes: Some(size), stamp_ns: has_stamp.map(stamp), by_etag: etag.is_some() })
}

/// Whether a field of this name is a picture as a whole.
pub(crate) fn is_picture(field: &str) -> bool {
    let known = |ending: &&str| ending.strip_prefix('.').is_some_and(|ending| ending.eq_ignore_ascii_case(field));
    IMAGE_EXTENSIONS.iter().any(known) || field.eq_ignore_ascii_case("pnm") || field.eq_ignore_ascii_case("pbm")
}

impl Samples {
    pub(crate) fn len(&self) -> u64 {
        match &self.of {
            Of::Files { index, .. } => index.len(),
            Of::Members(shards) => forebay::Dataset::len(shards),
        }
    }

    /// The classes with their labels; none where samples have no labels.
    pub(crate) fn classes(&self) -> Vec<(&str, u32)> {
        match &self.of {
            Of::Files { index, has_labels: true, .. } => {
                index.classes().iter().map(String::as_str).zip(index.class_indices().iter().copied()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The latest time of a file, in nanoseconds since 1970: what shards are as old as.
    pub(crate) fn latest_ns(&self) -> i64 {
        match &self.of {
            Of::Files { expected, .. } => {
                let times = expected.iter().flatten().filter_map(|expected| expected.stamp_ns);
                times.max().unwrap_or_default().max(0)
            }
            Of::Members(_) => 0,
        }
    }

    /// A sample by its number in the source; an error where it is known that it cannot be packed.
    pub(crate) fn get(&self, sample: u64) -> Result<Sample> {
        let apart = self.apart.get(&sample).copied();
        let made = match &self.of {
            Of::Files { index, expected, hashes, problems, has_labels } => {
                let path = index.path(SampleId(sample));
                if let Some((kind, message)) = problems.get(&sample) {
                    return Err(Error::new(*kind, message.clone()).at_path(&path).at_stage(Stage::Scan));
                }
                let name = FileName::new(below(index, &path));
                let field = name.field();
                let mut key = name.key(apart.is_some());
                number(&mut key, sample, apart);
                let expected = expected.get(sample as usize).copied().flatten();
                let size = expected.and_then(|expected| expected.size_bytes).unwrap_or_default();
                let hash = hashes.get(sample as usize).copied().flatten();
                let label = has_labels.then(|| index.label(SampleId(sample)));
                let locator = Locator::whole(path);
                let piece = Piece { field, locator, size, expected, hash, lost: None, is_file: true };
                Sample { key, pieces: vec![piece], label }
            }
            Of::Members(shards) => {
                let (file, index, place) = shards.shard_of(SampleId(sample));
                let path = shards.file_path(file);
                let mut own = String::new();
                index.write_key(place, &mut own);
                let archive = path.file_name().unwrap_or_default().to_string_lossy();
                let mut key = kept_key(&own, apart.map(|_| &*archive));
                number(&mut key, sample, apart);
                let mut pieces = Vec::new();
                for number in index.fields_of(place) {
                    let Some((_, part)) = index.find(place, &[*number]) else { continue };
                    let field = index.fields()[usize::from(*number)].clone();
                    let member = Some(format!("{own}.{field}"));
                    let size = part.range.end - part.range.start;
                    let locator = Locator { path: path.clone(), range: Some(part.range), member };
                    let (hash, lost) = (part.hash, part.lost);
                    pieces.push(Piece { field, locator, size, expected: None, hash, lost, is_file: false });
                }
                Sample { key, pieces, label: None }
            }
        };
        let longest = made.pieces.iter().map(|piece| piece.field.len()).max().unwrap_or_default();
        if made.key.len() + longest.max(LABEL_FIELD.len()) + 1 > MAX_NAME_BYTES {
            let path = made.pieces.first().map(|piece| piece.locator.name()).unwrap_or_default();
            let message =
                format!("has a name that is too long for an archive (expected at most {MAX_NAME_BYTES} bytes)");
            return Err(Error::new(Kind::Undecodable, message).at_path(&path).at_stage(Stage::Scan));
        }
        Ok(made)
    }

    /// Finds samples whose keys are the same, and gives them others.
    fn with_keys_apart(mut self) -> Self {
        let all: Vec<u64> = (0..self.len()).collect();
        let repeated = self.repeated(&all);
        self.apart = repeated.iter().map(|sample| (*sample, Apart::Longer)).collect();
        let repeated = self.repeated(&repeated);
        self.apart.extend(repeated.into_iter().map(|sample| (sample, Apart::Numbered)));
        self
    }

    /// Those of these samples whose key another of them has as well. (One whose key only has the same hash gets a longer one, too.)
    fn repeated(&self, samples: &[u64]) -> Vec<u64> {
        let hash = |sample: u64| match self.get(sample) {
            Ok(found) => xxh3_64(found.key.as_bytes()),
            // It gets no key at all.
            Err(_) => xxh3_64(&sample.to_le_bytes()),
        };
        let mut hashes: Vec<(u64, u64)> = samples.iter().map(|sample| (hash(*sample), *sample)).collect();
        hashes.sort_unstable();
        let is_repeated = |at: usize| {
            let same = |other: Option<usize>| {
                other.and_then(|other| hashes.get(other)).is_some_and(|(hash, _)| *hash == hashes[at].0)
            };
            same(at.checked_sub(1)) || same(Some(at + 1))
        };
        (0..hashes.len()).filter(|at| is_repeated(*at)).map(|at| hashes[at].1).collect()
    }
}

/// The path of a file below the root.
fn below<'a>(index: &FolderIndex, path: &'a Path) -> &'a [u8] {
    path.strip_prefix(index.root()).unwrap_or(path).as_os_str().as_bytes()
}

fn number(key: &mut String, sample: u64, apart: Option<Apart>) {
    if apart == Some(Apart::Numbered) {
        key.push_str(&format!("%%{sample}"));
    }
}
