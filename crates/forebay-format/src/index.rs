//! The samples of a folder in memory: about four bytes each besides the file's name, and sixteen if a manifest declares
//! their versions.
//!
//! A directory is stored once; a sample is a slice of one shared string of names. Its class is that of its
//! directory, so nothing is stored for it at all.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_core::{DatasetIdentity, Error, Expected, Kind, Listing, Result, SampleId, Version};
use xxhash_rust::xxh3::Xxh3;

use crate::manifest::content_hash;
use crate::versions::Versions;

/// Stands for an unknown checksum.
const UNKNOWN: u64 = 0;

/// A remark about the folder that is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The path it is about.
    pub path: PathBuf,
    /// The remark, as a predicate about the path.
    pub message: String,
}

impl Note {
    /// For a name that paths cannot represent.
    pub fn refused(directory: &Path, name: &str) -> Self {
        let message =
            "is skipped: paths cannot have this name (an empty component, \".\", \"..\" or control characters)";
        Self { path: Listing::refused_path(directory, name), message: message.to_owned() }
    }
}

/// The samples below a root, by class.
#[derive(Debug, Default)]
pub struct FolderIndex {
    root: PathBuf,
    classes: Vec<String>,
    class_indices: Vec<u32>,
    notes: Vec<Note>,
    empty_classes: Vec<String>,
    /// Directories below the root, each once.
    paths: Vec<Box<Path>>,
    runs: Vec<Run>,
    /// All file names, concatenated.
    names: Vec<u8>,
    /// For each sample, where its name ends, counted from its run's `names_start`.
    name_ends: Vec<u32>,
    versions: Versions,
    /// For each sample, 0 if it is unknown; `None` unless reads are verified. (One file in 2^64 has the checksum 0.)
    checksums: Option<Vec<u64>>,
    identity: OnceLock<DatasetIdentity>,
}

/// Consecutive samples of the same directory and class.
#[derive(Debug)]
struct Run {
    /// Index into `paths`.
    path: u32,
    class_index: u32,
    first_sample: u64,
    names_start: u64,
}

impl FolderIndex {
    /// An empty index below `root`; `class_indices[i]` is the label of `classes[i]`.
    pub(crate) fn new(root: &Path, classes: Vec<String>, class_indices: Vec<u32>) -> Self {
        Self { root: root.to_owned(), classes, class_indices, ..Self::default() }
    }

    /// Adds a directory and its samples: their names, concatenated, and where each ends.
    pub(crate) fn push_directory(&mut self, path: &Path, class_index: u32, names: &[u8], ends: &[u32]) {
        let (first_sample, names_start) = (self.name_ends.len() as u64, self.names.len() as u64);
        let path = self.push_path(path);
        self.runs.push(Run { path, class_index, first_sample, names_start });
        self.names.extend_from_slice(names);
        self.name_ends.extend_from_slice(ends);
    }

    /// Adds a directory without samples yet. Returns its number.
    pub(crate) fn push_path(&mut self, path: &Path) -> u32 {
        self.paths.push(path.into());
        u32::try_from(self.paths.len() - 1).expect("there are fewer than 2^32 directories")
    }

    /// Adds one sample to a directory that was added before.
    pub(crate) fn push_sample(&mut self, path: u32, class_index: u32, name: &[u8], version: &Version) {
        let sample = self.len();
        let names_start = match self.runs.last() {
            // The ends of names are 32-bit offsets.
            Some(run)
                if (run.path, run.class_index) == (path, class_index)
                    && self.names.len() as u64 - run.names_start + (name.len() as u64) < u64::from(u32::MAX) =>
            {
                run.names_start
            }
            _ => {
                let names_start = self.names.len() as u64;
                self.runs.push(Run { path, class_index, first_sample: sample, names_start });
                names_start
            }
        };
        self.names.extend_from_slice(name);
        self.name_ends.push((self.names.len() as u64 - names_start) as u32);
        self.versions.push(sample, version);
    }

    /// Adds the checksum of the sample that was added last.
    pub(crate) fn push_checksum(&mut self, checksum: Option<u64>) {
        self.checksums.get_or_insert_default().push(checksum.unwrap_or(UNKNOWN));
    }

    /// Names the classes, and makes each sample's provisional class its label.
    pub(crate) fn set_classes(&mut self, classes: Vec<(String, u32)>, labels: &[u32]) {
        (self.classes, self.class_indices) = classes.into_iter().unzip();
        self.runs.iter_mut().for_each(|run| run.class_index = labels[run.class_index as usize]);
    }

    /// Sets another root. If it is a copy, the recorded times and etags do not apply.
    pub(crate) fn move_to(&mut self, root: &Path, is_copy: bool) {
        self.root = root.to_owned();
        if is_copy {
            self.versions.forget_stamps();
        }
    }

    pub(crate) fn push_note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Removes the classes: the samples have none.
    pub(crate) fn forget_classes(&mut self) {
        (self.classes, self.class_indices, self.empty_classes) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// Says which of the classes have no samples.
    pub(crate) fn set_empty_classes(&mut self, classes: Vec<String>) {
        self.empty_classes = classes;
    }

    pub(crate) fn finish(&mut self) {
        self.paths.shrink_to_fit();
        self.runs.shrink_to_fit();
        self.versions.shrink();
        self.checksums.iter_mut().for_each(Vec::shrink_to_fit);
        self.names.shrink_to_fit();
        self.name_ends.shrink_to_fit();
    }

    /// The folder that was scanned.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of the classes, sorted.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The label of each class, in the order of [`FolderIndex::classes`].
    pub fn class_indices(&self) -> &[u32] {
        &self.class_indices
    }

    /// Remarks of the scan.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The classes in whose folders a scan found no samples, in their order.
    pub fn empty_classes(&self) -> &[String] {
        &self.empty_classes
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.name_ends.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.name_ends.is_empty()
    }

    fn run_of(&self, sample: u64) -> &Run {
        let after = self.runs.partition_point(|run| run.first_sample <= sample);
        &self.runs[after - 1]
    }

    fn directory_of(&self, run: &Run) -> &Path {
        &self.paths[run.path as usize]
    }

    fn name_of(&self, run: &Run, sample: u64) -> &OsStr {
        let start = match sample > run.first_sample {
            true => self.name_ends[sample as usize - 1],
            false => 0,
        };
        let base = run.names_start as usize;
        OsStr::from_bytes(&self.names[base + start as usize..base + self.name_ends[sample as usize] as usize])
    }

    /// A sample's path, below the root as the root was given.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn path(&self, sample: SampleId) -> PathBuf {
        let mut path = PathBuf::new();
        self.write_path(sample, &mut path);
        path
    }

    /// The same, written into `path`, whose memory is reused.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn write_path(&self, sample: SampleId, path: &mut PathBuf) {
        let run = self.run_of(sample.0);
        let (directory, name) = (self.directory_of(run), self.name_of(run, sample.0));
        path.clear();
        path.reserve(self.root.as_os_str().len() + directory.as_os_str().len() + name.len() + 2);
        path.push(&self.root);
        path.push(directory);
        path.push(name);
    }

    /// Runs of consecutive samples in one directory: the directory below the root, their label, their names.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&Path, u32, impl Iterator<Item = &OsStr>)> {
        self.runs.iter().enumerate().map(move |(position, run)| {
            let end = self.runs.get(position + 1).map_or(self.len(), |next| next.first_sample);
            let names = (run.first_sample..end).map(move |sample| self.name_of(run, sample));
            (self.directory_of(run), run.class_index, names)
        })
    }

    /// The version that a manifest declares for a sample; `None` if it declares none.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn expected(&self, sample: SampleId) -> Option<Expected> {
        self.versions.get(sample.0)
    }

    /// Fails if the bytes do not match the sample's checksum in the manifest. Passes if checksums were not kept.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn verify(&self, sample: SampleId, bytes: &[u8]) -> Result<()> {
        let Some(checksums) = &self.checksums else { return Ok(()) };
        let expected = checksums[sample.0 as usize];
        if expected == UNKNOWN {
            let hint = "it could not be read when the manifest was made: run `forebay scan --deep` again";
            return Err(Error::new(Kind::Stale, "has no checksum in the manifest").with_hint(hint));
        }
        let got = content_hash(bytes);
        if expected == got {
            return Ok(());
        }
        let message = format!("is not what the manifest describes (expected checksum {expected:016x}, got {got:016x})");
        let hint = "its bytes have changed and its size has not, in two reads: restore it from its source, or run \
                    `forebay scan --deep` again if it was changed on purpose";
        Err(Error::new(Kind::Corrupt, message).with_hint(hint))
    }

    /// Whether samples have classes.
    pub fn has_classes(&self) -> bool {
        !self.classes.is_empty()
    }

    /// An index of individually named files, in this order. Their common directory is the root.
    pub fn of_paths<'a>(paths: impl Iterator<Item = &'a Path> + Clone) -> Result<Self> {
        let wrong = |path: &Path| Error::config(format!("paths: expected paths of files, got {path:?}"));
        let mut root: Option<&Path> = None;
        for path in paths.clone() {
            let parent = path.parent().filter(|_| path.file_name().is_some()).ok_or_else(|| wrong(path))?;
            let above = |root: &'a Path| root.ancestors().find(|above| parent.starts_with(above));
            root = Some(root.map_or(parent, |root| above(root).unwrap_or(Path::new(""))));
        }
        let mut index = Self { root: root.unwrap_or(Path::new("")).to_owned(), ..Self::default() };
        let mut directories = HashMap::new();
        for path in paths {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(wrong(path)) };
            if path.as_os_str().as_bytes().contains(&0) {
                return Err(Error::config(format!("paths: expected no NUL in a path, got {path:?}")));
            }
            let below = parent.strip_prefix(&index.root).map_err(|_| wrong(path))?;
            let directory = match directories.get(below) {
                Some(number) => *number,
                None => {
                    let number = index.push_path(below);
                    directories.insert(below.to_owned(), number);
                    number
                }
            };
            index.push_sample(directory, 0, name.as_bytes(), &Version::default());
        }
        index.finish();
        Ok(index)
    }

    /// Whether there is a checksum of any sample.
    pub fn has_checksums(&self) -> bool {
        self.checksums.as_ref().is_some_and(|all| all.iter().any(|checksum| *checksum != UNKNOWN))
    }

    /// A sample's label.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn label(&self, sample: SampleId) -> i64 {
        i64::from(self.run_of(sample.0).class_index)
    }

    /// The identity that a resume state is bound to: every relative path and label, in order; not the root, which may
    /// move.
    pub fn identity(&self) -> DatasetIdentity {
        self.identity.get_or_init(|| self.hash()).clone()
    }

    fn hash(&self) -> DatasetIdentity {
        /// The hash is fed some thousand bytes at a time: feeding each sample's parts separately would take most of the
        /// time.
        const ENOUGH_BYTES: usize = 16 << 10;
        let (mut hash, mut bytes) = (Xxh3::new(), Vec::with_capacity(2 * ENOUGH_BYTES));
        for (directory, class_index, names) in self.runs() {
            for name in names {
                push_relative(&mut bytes, directory, name);
                bytes.push(0);
                bytes.extend_from_slice(&class_index.to_le_bytes());
                if bytes.len() >= ENOUGH_BYTES {
                    hash.update(&bytes);
                    bytes.clear();
                }
            }
        }
        hash.update(&bytes);
        DatasetIdentity {
            samples: self.len(),
            classes: self.classes.len() as u64,
            fingerprint: format!("{:032x}", hash.digest128()),
        }
    }

    /// Memory of the index in bytes.
    pub fn memory_bytes(&self) -> usize {
        let paths: usize = self.paths.iter().map(|path| size_of::<Box<Path>>() + path.as_os_str().len()).sum();
        let runs = self.runs.capacity() * size_of::<Run>();
        let names = self.names.capacity() + self.name_ends.capacity() * size_of::<u32>();
        let checksums = self.checksums.as_ref().map_or(0, |all| all.capacity() * size_of::<u64>());
        paths + runs + names + self.versions.memory_bytes() + checksums
    }
}

/// Adds a sample's path below the root.
pub(crate) fn push_relative(to: &mut Vec<u8>, directory: &Path, name: &OsStr) {
    if !directory.as_os_str().is_empty() {
        to.extend_from_slice(directory.as_os_str().as_bytes());
        to.push(b'/');
    }
    to.extend_from_slice(name.as_bytes());
}
