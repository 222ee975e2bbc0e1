//! The samples of a folder in memory: about four bytes each beside the file's own name.
//!
//! A directory is stored once; a sample is a slice of one shared string of names. Its class is that of its
//! directory, so nothing is stored for it at all.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_core::{DatasetIdentity, SampleId};
use xxhash_rust::xxh3::Xxh3;

/// Something about the folder that is no failure, but that its owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Where.
    pub path: PathBuf,
    /// What, as a predicate about the path.
    pub message: String,
}

/// The samples below a root, by class.
#[derive(Debug, Default)]
pub struct FolderIndex {
    root: PathBuf,
    classes: Vec<String>,
    class_indices: Vec<u32>,
    notes: Vec<Note>,
    directories: Vec<Directory>,
    /// All file names, one after the other.
    names: Vec<u8>,
    /// For each sample, where its name ends, counted from its directory's `names_start`.
    name_ends: Vec<u32>,
    identity: OnceLock<DatasetIdentity>,
}

#[derive(Debug)]
struct Directory {
    /// Relative to the root.
    path: Box<Path>,
    class_index: u32,
    first_sample: u64,
    names_start: u64,
}

impl FolderIndex {
    /// An empty index below `root`; `class_indices[i]` is the label of `classes[i]`.
    pub(crate) fn new(root: &Path, classes: Vec<String>, class_indices: Vec<u32>) -> Self {
        Self { root: root.to_owned(), classes, class_indices, ..Self::default() }
    }

    /// Adds a directory and its samples: their names, one after the other, and where each ends.
    pub(crate) fn push_directory(&mut self, path: &Path, class_index: u32, names: &[u8], ends: &[u32]) {
        let (first_sample, names_start) = (self.name_ends.len() as u64, self.names.len() as u64);
        self.directories.push(Directory { path: path.into(), class_index, first_sample, names_start });
        self.names.extend_from_slice(names);
        self.name_ends.extend_from_slice(ends);
    }

    pub(crate) fn push_note(&mut self, note: Note) {
        self.notes.push(note);
    }

    pub(crate) fn finish(&mut self) {
        self.directories.shrink_to_fit();
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

    /// What the scan noticed and passed over.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.name_ends.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.name_ends.is_empty()
    }

    fn directory_of(&self, sample: u64) -> &Directory {
        let after = self.directories.partition_point(|directory| directory.first_sample <= sample);
        &self.directories[after - 1]
    }

    fn name_of(&self, directory: &Directory, sample: u64) -> &OsStr {
        let start = match sample > directory.first_sample {
            true => self.name_ends[sample as usize - 1],
            false => 0,
        };
        let base = directory.names_start as usize;
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

    /// The same in place of what `path` was, whose memory is used again.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn write_path(&self, sample: SampleId, path: &mut PathBuf) {
        let directory = self.directory_of(sample.0);
        let name = self.name_of(directory, sample.0);
        path.clear();
        path.reserve(self.root.as_os_str().len() + directory.path.as_os_str().len() + name.len() + 2);
        path.push(&self.root);
        path.push(&directory.path);
        path.push(name);
    }

    /// A sample's label.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn label(&self, sample: SampleId) -> i64 {
        i64::from(self.directory_of(sample.0).class_index)
    }

    /// What a resume state is bound to: every relative path and label, in order; not the root, which may move.
    pub fn identity(&self) -> DatasetIdentity {
        self.identity.get_or_init(|| self.hash()).clone()
    }

    fn hash(&self) -> DatasetIdentity {
        /// A hash is fed some thousand bytes at a time: a sample's parts alone would take it longer than all the rest.
        const ENOUGH_BYTES: usize = 16 << 10;
        let (mut hash, mut bytes) = (Xxh3::new(), Vec::with_capacity(2 * ENOUGH_BYTES));
        for (position, directory) in self.directories.iter().enumerate() {
            let end = self.directories.get(position + 1).map_or(self.len(), |next| next.first_sample);
            let label = directory.class_index.to_le_bytes();
            for sample in directory.first_sample..end {
                bytes.extend_from_slice(directory.path.as_os_str().as_bytes());
                bytes.push(b'/');
                bytes.extend_from_slice(self.name_of(directory, sample).as_bytes());
                bytes.push(0);
                bytes.extend_from_slice(&label);
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

    /// Bytes that the index takes.
    pub fn memory_bytes(&self) -> usize {
        let directories: usize =
            self.directories.iter().map(|directory| size_of::<Directory>() + directory.path.as_os_str().len()).sum();
        self.names.capacity() + self.name_ends.capacity() * size_of::<u32>() + directories
    }
}
