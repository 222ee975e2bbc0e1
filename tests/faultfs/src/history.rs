//! What a power cut would leave after each change: `faultfs … writable HISTORY`.
//!
//! A file's bytes reach the disk with its fsync, a directory's entries with the directory's. After every call that changes
//! something, HISTORY gets two folders. `NNNN-synced` has only the names and bytes that reached the disk. `NNNN-named` has
//! all names, but only the bytes that reached the disk: journaling file systems may write a name before the bytes of its
//! file. Folders equal to the last one are left out.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The number of a file, which stays when it is renamed.
    File(u64),
    Directory,
}

/// The entries of each directory, by its path below the mount.
pub(crate) type Names = BTreeMap<PathBuf, BTreeMap<OsString, Named>>;
/// All files that a power cut would leave, with their bytes; directories have none.
type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

#[derive(Debug)]
pub(crate) struct History {
    folder: PathBuf,
    bytes: HashMap<u64, Vec<u8>>,
    names: Names,
    changes: usize,
    last: [Option<Tree>; 2],
}

impl History {
    /// Everything that is there now is on the disk.
    pub(crate) fn new(folder: PathBuf, names: Names, bytes: HashMap<u64, Vec<u8>>) -> Self {
        Self { folder, bytes, names, changes: 0, last: Default::default() }
    }

    pub(crate) fn file_synced(&mut self, node: u64, file: &File) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, 0)?;
        self.bytes.insert(node, bytes);
        Ok(())
    }

    pub(crate) fn directory_synced(&mut self, path: &Path, all: &Names) {
        self.names.insert(path.to_owned(), all.get(path).cloned().unwrap_or_default());
    }

    /// Writes down what would be left now; `all` are the names as the mount shows them.
    pub(crate) fn note(&mut self, all: &Names) -> io::Result<()> {
        self.changes += 1;
        for (kind, word) in ["synced", "named"].into_iter().enumerate() {
            let mut tree = Tree::new();
            self.collect(if kind == 0 { &self.names } else { all }, Path::new(""), &mut tree);
            if self.last[kind].as_ref() != Some(&tree) {
                lay_out(&self.folder.join(format!("{:04}-{word}", self.changes)), &tree)?;
                self.last[kind] = Some(tree);
            }
        }
        Ok(())
    }

    fn collect(&self, names: &Names, directory: &Path, tree: &mut Tree) {
        for (name, named) in names.get(directory).into_iter().flatten() {
            let path = directory.join(name);
            match named {
                Named::File(node) => {
                    tree.insert(path, Some(self.bytes.get(node).cloned().unwrap_or_default()));
                }
                Named::Directory => {
                    tree.insert(path.clone(), None);
                    self.collect(names, &path, tree);
                }
            }
        }
    }
}

fn lay_out(root: &Path, tree: &Tree) -> io::Result<()> {
    fs::create_dir(root)?;
    for (path, bytes) in tree {
        match bytes {
            Some(bytes) => fs::write(root.join(path), bytes)?,
            None => fs::create_dir(root.join(path))?,
        }
    }
    Ok(())
}
