//! What is packed: the files of a folder or a manifest, or the samples of archives, each as a key and the fields that it will have.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{
    Dataset, IndexPlace, ScanProgress, ShardFormat, Shards, examine_samples, is_parquet_manifest, open_manifest,
    open_store, scan_folder, scan_manifest,
};
use forebay_core::{Config, Error, Expected, Kind, Locator, Result, SampleId, Stage, Version, stamp_ns};
use forebay_format::{Facts, FolderIndex, IMAGE_EXTENSIONS, Keeps, Labels, Lost, ScanOptions, ShardIndex};
use forebay_store::{StorageOptions, Store};
use xxhash_rust::xxh3::xxh3_64;

use crate::names::{FileName, MAX_NAME_BYTES, kept_key};
use crate::typed::Typed;

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A folder of files; each is a sample.
    Folder,
    /// A manifest of files.
    Manifest,
    /// Shards of one format: a file, a folder of them, or the directory of their index.
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
    /// Of shards, the fields that are packed: each has several names, of which the first counts that a sample has. `None` are all.
    pub fields: Option<Vec<Vec<String>>>,
}

/// The field with the label.
pub(crate) const LABEL_FIELD: &str = "cls";

/// What is in a piece.
#[derive(Clone, Debug)]
pub(crate) enum Holds {
    /// The field of this name.
    Field(String),
    /// The values of these columns of the source, by number.
    Columns(Range<usize>),
}

/// What is read of a sample at once: one field in most sources.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) holds: Holds,
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
    Members {
        shards: Shards,
        /// The fields that are packed, if not all.
        fields: Option<Vec<Vec<String>>>,
    },
    Typed(Typed),
}

impl Source {
    /// Finds the samples. `watch` is told how far that is.
    pub(crate) fn open(&self, threads: usize, watch: &mut dyn FnMut(ScanProgress)) -> Result<Samples> {
        let config = Config { io_threads: threads, max_io_threads: threads, ..Config::default() };
        let kind = match self.kind.or_else(|| kind_by_name(&self.path)) {
            Some(kind) => kind,
            None => self.look(&config)?,
        };
        if self.fields.is_some() && kind != SourceKind::Shards {
            let error = Error::config("--fields: expected shards as the source, got files");
            return Err(error.with_hint("a file is a field: --extension says which files are samples"));
        }
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

    /// What a Parquet file is, by its columns, or a folder, by the names in it.
    fn look(&self, config: &Config) -> Result<SourceKind> {
        if self.path.file_name().is_some_and(|name| has_ending(name, ".parquet")) {
            return self.look_at_parquet(config);
        }
        let (store, root) = open_store(&self.path, &self.options, config)?;
        if !store.capabilities().can_list {
            // An index of their own lists shards where nothing else does.
            if ShardFormat::of_directory(&store, &root)?.is_some() {
                return Ok(SourceKind::Shards);
            }
            return Err(Error::config("source: HTTP servers cannot list their files").at_path(&root).with_hint(
                "give a manifest, a shard, the directory of an index.json, or the URL of the store behind it (s3://, gs://, az://)",
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
        // A file of Parquet beside pictures, or beside directories of them, may be anything.
        let has_files_of_parquet = has(&[".parquet"])
            && !has(IMAGE_EXTENSIONS)
            && !listing.iter().any(|entry| entry.is_directory && !entry.name.as_bytes().starts_with(b"."));
        let has_named = listing
            .iter()
            .any(|entry| !entry.is_directory && is_shard_name(entry.name) && !has_ending(entry.name, ".parquet"));
        if is_directory_of_shards || has_files_of_parquet || has_named {
            return Ok(SourceKind::Shards);
        }
        if has(&[".mds"]) {
            let error = Error::config("source: holds MDS shards without their index.json").at_path(&root);
            return Err(error.with_hint("name the directory that has the index.json of the shards"));
        }
        Ok(SourceKind::Folder)
    }

    fn look_at_parquet(&self, config: &Config) -> Result<SourceKind> {
        // Only a manifest has a root, and options of that root's store.
        if self.root.is_some() {
            return Ok(SourceKind::Manifest);
        }
        let (store, path) = open_store(&self.path, &self.options, config)?;
        let is_manifest = is_parquet_manifest(&store, &path)?;
        Ok(if is_manifest { SourceKind::Manifest } else { SourceKind::Shards })
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
        let (store, root) = open_store(&self.path, &self.options, config)?;
        let is_file = self.path.file_name().is_some_and(is_shard_name);
        let directory = if is_file { None } else { ShardFormat::of_directory(&store, &root)? };
        let (files, root) = match &directory {
            Some(format) => (format.files()?, root),
            None if is_file => {
                let above = root.parent().unwrap_or(Path::new("")).to_owned();
                (Some(FolderIndex::of_paths(std::iter::once(&*root))?), above)
            }
            None => (Some(files_of_shards(&store, &root)?), root),
        };
        let no_files = || Error::new(Kind::NotFound, "has no shards").at_path(&self.path);
        let files: Arc<dyn Dataset> = Arc::new(files.ok_or_else(no_files)?);
        let format = match directory {
            Some(format) => Some(format),
            None => ShardFormat::of_files(&*files, &store)?,
        };
        let (of, store) = match format {
            Some(format) => {
                let (typed, store) = Typed::open(&format, files, (&store, root), self.fields.as_deref())?;
                (Of::Typed(typed), store)
            }
            None => {
                let shards = Shards::tar(files, &store, &root, &IndexPlace::Beside)?;
                (Of::Members { shards, fields: self.fields.clone() }, store)
            }
        };
        let mut samples = Samples { store, of, apart: HashMap::new(), notes: Vec::new() };
        let notes = samples.shards().map(Shards::notes).unwrap_or_default();
        samples.notes = notes.iter().map(|note| format!("{:?} {}", note.path, note.message)).collect();
        Ok(samples.with_keys_apart())
    }
}

/// The shards in a folder, at any depth: its archives, or where there are none, its files of other formats.
fn files_of_shards(store: &Arc<dyn Store>, root: &Path) -> Result<FolderIndex> {
    let options = ScanOptions { extensions: vec![String::new()], is_flat: true, ..ScanOptions::default() };
    let all = scan_folder(store, root, &options, None)?;
    let paths: Vec<_> = (0..all.len()).map(|file| all.path(SampleId(file))).collect();
    let of = |is_shard: fn(&OsStr) -> bool| -> Vec<&Path> {
        paths.iter().filter(|path| path.file_name().is_some_and(is_shard)).map(PathBuf::as_path).collect()
    };
    let archives = of(|name| has_ending(name, ".tar"));
    let found = if archives.is_empty() { of(is_shard_name) } else { archives };
    if found.is_empty() {
        let message = format!("holds no shards (expected files ending in {})", SHARD_ENDINGS.join(", "));
        return Err(Error::new(Kind::NotFound, message).at_path(root).at_stage(Stage::Scan));
    }
    FolderIndex::of_paths(found.into_iter())
}

/// Endings of shards. Those of MDS and LitData are found by the index of their directory.
const SHARD_ENDINGS: [&str; 6] = [".tar", ".tfrecord", ".tfrecords", ".tfrec", ".arrow", ".parquet"];

fn has_ending(name: &OsStr, ending: &str) -> bool {
    let (name, ending) = (name.as_bytes(), ending.as_bytes());
    name.len().checked_sub(ending.len()).is_some_and(|start| name[start..].eq_ignore_ascii_case(ending))
}

/// Whether a file is a shard by its name: by its ending, or as TensorFlow numbers them, `train-00000-of-01024`.
fn is_shard_name(name: &OsStr) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_numbered = |name: &str| {
        let (rest, count) = name.rsplit_once("-of-")?;
        let (_, number) = rest.rsplit_once('-')?;
        Some(is_number(number) && is_number(count))
    };
    SHARD_ENDINGS.iter().any(|ending| has_ending(name, ending)) || name.to_str().and_then(is_numbered) == Some(true)
}

/// What a name says of a source.
fn kind_by_name(path: &Path) -> Option<SourceKind> {
    let name = path.file_name()?;
    // Of Parquet the columns tell.
    if is_shard_name(name) && !has_ending(name, ".parquet") {
        return Some(SourceKind::Shards);
    }
    let is_manifest = [".csv", ".jsonl", ".ndjson"].iter().any(|ending| has_ending(name, ending));
    is_manifest.then_some(SourceKind::Manifest)
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
            Of::Members { shards, .. } | Of::Typed(Typed { shards, .. }) => shards.len(),
        }
    }

    /// The shards that the samples are in.
    fn shards(&self) -> Option<&Shards> {
        match &self.of {
            Of::Files { .. } => None,
            Of::Members { shards, .. } | Of::Typed(Typed { shards, .. }) => Some(shards),
        }
    }

    /// Those whose fields are typed values.
    pub(crate) fn typed(&self) -> Option<&Typed> {
        if let Of::Typed(typed) = &self.of { Some(typed) } else { None }
    }

    pub(crate) fn typed_mut(&mut self) -> Option<&mut Typed> {
        if let Of::Typed(typed) = &mut self.of { Some(typed) } else { None }
    }

    /// The names and the sizes of the fields that a piece is planned as.
    pub(crate) fn planned(&self, piece: &Piece) -> Vec<(String, u64)> {
        match (&piece.holds, self.typed()) {
            (Holds::Field(field), _) => vec![(field.clone(), piece.size)],
            (Holds::Columns(columns), Some(typed)) => typed.planned(columns.clone(), piece.size).collect(),
            (Holds::Columns(_), None) => Vec::new(),
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
            Of::Members { .. } | Of::Typed(_) => 0,
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
                let holds = Holds::Field(field);
                let piece = Piece { holds, locator, size, expected, hash, lost: None, is_file: true };
                Sample { key, pieces: vec![piece], label }
            }
            Of::Typed(typed) => {
                let mut made = typed.sample(sample, apart.is_some())?;
                number(&mut made.key, sample, apart);
                made
            }
            Of::Members { shards, fields } => {
                let (file, index, place) = shards.shard_of(SampleId(sample));
                let path = shards.file_path(file);
                let mut own = String::new();
                index.write_key(place, &mut own);
                let archive = path.file_name().unwrap_or_default().to_string_lossy();
                let mut key = kept_key(&own, apart.map(|_| &*archive));
                number(&mut key, sample, apart);
                let mut pieces = Vec::new();
                let numbers = match fields {
                    None => index.fields_of(place).to_vec(),
                    Some(fields) => wanted_of(index, place, fields)
                        .map_err(|error| error.at_path(&Locator::whole(path.clone()).name()).at_stage(Stage::Scan))?,
                };
                for number in numbers {
                    let Some((_, part)) = index.find(place, &[number]) else { continue };
                    let field = index.fields()[usize::from(number)].clone();
                    let member = Some(format!("{own}.{field}"));
                    let size = part.range.end - part.range.start;
                    let locator = Locator { path: path.clone(), range: Some(part.range), member };
                    let (hash, lost) = (part.hash, part.lost);
                    let holds = Holds::Field(field);
                    pieces.push(Piece { holds, locator, size, expected: None, hash, lost, is_file: false });
                }
                Sample { key, pieces, label: None }
            }
        };
        let fields = made.pieces.iter().flat_map(|piece| self.planned(piece));
        let longest = fields.map(|(field, _)| field.len()).max().unwrap_or_default();
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

/// The numbers of the fields that are wanted of a sample; an error where it lacks one.
fn wanted_of(index: &ShardIndex, place: u64, wanted: &[Vec<String>]) -> Result<Vec<u16>> {
    let own = index.fields_of(place);
    let name = |number: &u16| &*index.fields()[usize::from(*number)];
    let find = |names: &Vec<String>| {
        let found = names.iter().find_map(|wanted| own.iter().find(|own| name(own).eq_ignore_ascii_case(wanted)));
        found.copied().ok_or_else(|| {
            let (expected, got) = (names.join(" or "), own.iter().map(name).collect::<Vec<_>>().join(", "));
            Error::new(Kind::Corrupt, format!("has no field (expected {expected}, got {got})"))
        })
    };
    wanted.iter().map(find).collect()
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
