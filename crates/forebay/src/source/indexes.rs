//! Indexes of files with many samples each: made by reading every file once, and kept for later runs.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Kind, Result, SampleId, Stage};
use forebay_format::{FileIndex, FileScanner, FileVersion, Note, is_index, read_index, write_index};
use forebay_store::{Local, ReadRequest, Replacement, Stat, Store};

use crate::scan::once;
use crate::scan::sequential::{UnreadFile, buffer, index_files};
use crate::source::Dataset;
use crate::source::defaults::retry_of;
use crate::source::records::stats;

/// Where indexes are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep<'a> {
    /// Nowhere, and found nowhere.
    Nowhere,
    /// In this file of this machine.
    In(&'a Path),
    /// They are found in this file, which is beside the files themselves, and not written.
    Beside(&'a Path),
}

/// What was made of the files of a dataset, in their order.
pub(crate) struct Indexes<I> {
    pub(crate) indexes: Vec<I>,
    /// As the files were when they were read.
    pub(crate) stats: Vec<Stat>,
    /// What was noticed.
    pub(crate) notes: Vec<Note>,
}

/// The index of every file, whose path is known below `root`: as it was kept under the number `rule`, or made by a scanner for the file's size.
pub(crate) fn index_all<S: FileScanner>(
    files: &dyn Dataset,
    store: &Arc<dyn Store>,
    (root, keep): (Option<&Path>, Keep<'_>),
    rule: u64,
    scanner: impl Fn(u64) -> S,
) -> Result<Indexes<S::Index>> {
    index_by(files, store, (root, keep), rule, |unread| index_files(store, &scanner, unread))
}

/// The same for files whose indexes are made in some other way: by `make`, which is given those that were not kept.
pub(crate) fn index_by<I: FileIndex>(
    files: &dyn Dataset,
    store: &Arc<dyn Store>,
    (root, keep): (Option<&Path>, Keep<'_>),
    rule: u64,
    make: impl FnOnce(&[UnreadFile]) -> Result<Vec<I>>,
) -> Result<Indexes<I>> {
    index_and_complete(files, store, (root, keep), rule, (make, |_, _| Ok(false)))
}

/// The same, and then `complete` is given all files with their indexes, kept ones too, and says whether it has changed any.
pub(crate) fn index_and_complete<I: FileIndex>(
    files: &dyn Dataset,
    store: &Arc<dyn Store>,
    (root, keep): (Option<&Path>, Keep<'_>),
    rule: u64,
    (make, complete): (
        impl FnOnce(&[UnreadFile]) -> Result<Vec<I>>,
        impl FnOnce(&[UnreadFile], &mut [I]) -> Result<bool>,
    ),
) -> Result<Indexes<I>> {
    let stats = stats(files, store)?;
    let paths: Vec<_> = (0..files.len()).map(|file| files.path(SampleId(file))).collect();
    let version = |(path, stat): (&PathBuf, &Stat)| {
        let below = root.and_then(|root| path.strip_prefix(root).ok()).unwrap_or(path);
        FileVersion::new(below.as_os_str().as_encoded_bytes(), stat.size_bytes, stat.mtime_ns)
    };
    let versions: Vec<_> = paths.iter().zip(&stats).map(version).collect();
    let (mut known, mut notes) = read_kept(keep, store, rule)?;
    let is_known = |version: &FileVersion| known.contains_key(version) || known.contains_key(&version.of_any_time());
    let missing: Vec<_> = (0..versions.len()).filter(|&file| !is_known(&versions[file])).collect();
    let of_file = |file: usize| UnreadFile { path: paths[file].clone(), stat: stats[file] };
    let unread: Vec<_> = missing.iter().copied().map(of_file).collect();
    known.extend(missing.iter().map(|&file| versions[file]).zip(make(&unread)?));
    let find = |version: &FileVersion| {
        let found = known.get(version).or_else(|| known.get(&version.of_any_time()));
        found.cloned().ok_or_else(|| Error::internal("a file was left out of its index"))
    };
    let mut indexes = versions.iter().map(find).collect::<Result<Vec<I>>>()?;
    let all: Vec<_> = (0..paths.len()).map(of_file).collect();
    let is_new = complete(&all, &mut indexes)? || !unread.is_empty();
    let noticed = |(path, index): (&PathBuf, &I)| {
        let path = path.clone();
        index.notes().into_iter().map(move |message| Note { path: path.clone(), message })
    };
    notes.extend(paths.iter().zip(&indexes).flat_map(noticed));
    if let (Keep::In(kept), true) = (keep, is_new) {
        let bytes = write_index(rule, versions.into_iter().zip(&indexes));
        // Without it the next run reads the files again, and this one loses nothing.
        if let Err(error) = write_kept(kept, &bytes) {
            notes.push(Note { path: kept.to_path_buf(), message: format!("was not written: {}", error.message()) });
        }
    }
    Ok(Indexes { indexes, stats, notes })
}

/// What was kept, by the files that it is about.
type Kept<I> = HashMap<FileVersion, I>;

/// What an index file has. A file of something else is not overwritten.
fn read_kept<I: FileIndex>(keep: Keep<'_>, store: &Arc<dyn Store>, rule: u64) -> Result<(Kept<I>, Vec<Note>)> {
    let (path, store, is_ours) = match keep {
        Keep::Nowhere => return Ok((HashMap::new(), Vec::new())),
        Keep::In(path) => (path, Arc::new(Local) as Arc<dyn Store>, true),
        Keep::Beside(path) => (path, Arc::clone(store), false),
    };
    let (reader, owned, retry) = (Arc::clone(&store), path.to_owned(), retry_of(&*store));
    let read = once(&store, path, retry, move |_| {
        let request = ReadRequest::new(&owned, retry.deadline);
        reader.fetch(&request, &mut |size| buffer(size)).map(|object| object.bytes.into_vec())
    });
    let noted = |message: String| Ok((HashMap::new(), vec![Note { path: path.to_owned(), message }]));
    match read {
        Ok(bytes) if is_index(&bytes) => Ok((read_index(rule, &bytes).unwrap_or_default(), Vec::new())),
        Ok(_) if is_ours => {
            let error = Error::new(Kind::Config, "is no index of forebay's, and is not overwritten");
            Err(error.with_hint("give `index` a path of its own").at_path(path).at_stage(Stage::Scan))
        }
        Ok(_) => noted("is no index of forebay's, and was not used".to_owned()),
        Err(error) if error.kind() == Kind::NotFound => Ok((HashMap::new(), Vec::new())),
        Err(error) if is_ours => Err(error.at_path(path).at_stage(Stage::Scan)),
        Err(error) => noted(format!("was not read: {}", error.message())),
    }
}

fn write_kept(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut replacement = Replacement::new(path)?;
    replacement.write_all(bytes).map_err(|error| Error::io("written", error))?;
    replacement.commit().map(|_| ())
}
