//! Manifests: made of a folder, by listing it once, examining its files and reading those that changed; and opened in
//! place of a folder.

mod header_probe;
mod output;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Config, Error, Kind, Result, SampleId, Stage};
use forebay_format::{Difference, Facts, FolderIndex, Keeps, Labels, Manifest, ScanOptions, read_manifest};
use forebay_store::{StorageOptions, Store, is_same_origin, is_url, split_url};

use crate::scan::{WatchScan, once, scan_with_versions};
use crate::source::defaults::retry_of;
use crate::source::open_store;
pub use output::ManifestOutput;

/// A folder as a manifest will have it.
#[derive(Debug)]
pub struct Scanned {
    /// Its samples.
    pub index: Arc<FolderIndex>,
    /// What is known of each.
    pub facts: Vec<Facts>,
    /// What has changed since the earlier manifest, if there was one.
    pub difference: Option<Difference>,
    /// What could not be examined or read. Those samples are in the manifest all the same.
    pub problems: Vec<(SampleId, Error)>,
    /// Files that were read.
    pub files_read: u64,
    /// Their bytes.
    pub bytes_read: u64,
}

/// Is shown what is known so far, again and again while files are read, to write it down: what was read is then not read
/// again by the scan that follows one that was interrupted. An error ends the scan.
pub type KeepScan<'a> = dyn FnMut(&FolderIndex, &[Facts]) -> Result<()> + 'a;

/// Scans a folder for a manifest. Of what an earlier one (read with its facts) describes, only what changed is read, and
/// that only if `deep` asks for a look into files at all.
pub fn scan_manifest(
    store: &Arc<dyn Store>,
    root: &Path,
    options: &ScanOptions,
    deep: Option<&mut KeepScan<'_>>,
    earlier: Option<&Manifest>,
    watch: &mut WatchScan<'_>,
) -> Result<Scanned> {
    let (index, versions) = scan_with_versions(store, root, options, watch)?;
    let index = Arc::new(index);
    let mut facts: Vec<_> = versions.into_iter().map(|version| Facts { version, content: None }).collect();
    let mut problems = work::examine(store, &index, &mut facts, watch)?;
    let difference = earlier.map(|earlier| Difference::since(earlier, &index, &mut facts));
    if let (Some(earlier), Some(difference)) = (earlier, &difference) {
        check_root(earlier, difference, root)?;
    }
    let (mut files_read, mut bytes_read) = (0, 0);
    if let Some(keep) = deep {
        let read = work::read(store, &index, &mut facts, &problems, keep, watch)?;
        (files_read, bytes_read) = (read.files, read.bytes);
        problems.extend(read.problems);
        problems.sort_by_key(|(sample, _)| *sample);
    }
    Ok(Scanned { index, facts, difference, problems, files_read, bytes_read })
}

/// Asks for size and time of the samples that these were not known of; what could not be examined. Storage that is down is an
/// error, and not one for each sample.
pub fn examine_samples(
    store: &Arc<dyn Store>,
    index: &Arc<FolderIndex>,
    facts: &mut [Facts],
    watch: &mut WatchScan<'_>,
) -> Result<Vec<(SampleId, Error)>> {
    work::examine(store, index, facts, watch)
}

/// A manifest, and the store that its samples are read from. Touches the manifest and nothing else.
///
/// `path` is a file or a URL: Parquet, CSV or JSON lines. `root` says where its samples are, and has to be given where the
/// manifest records another origin than its own: what it says may not choose who gets credentials. Where it is not the
/// recorded one, times and etags are not compared, because those of a copy are others. `options` are those of both URLs.
pub fn open_manifest(
    path: &Path,
    root: Option<&Path>,
    options: &StorageOptions,
    config: &Config,
    keeps: Keeps,
    labels: &Labels,
) -> Result<(Manifest, Arc<dyn Store>)> {
    let manifest = read(path, root, options, keeps, labels)?;
    if root.is_none() {
        check_origin(path, &manifest)?;
    }
    let root = manifest.index.root();
    let (store, plain) = open_store(root, options, config)?;
    if plain != root {
        return Err(Error::config("says that its root is a URL with options in it").at_path(path).with_hint(format!(
            "give them in `storage_options`, and the root without them: `root={:?}`",
            plain.to_string_lossy()
        )));
    }
    Ok((manifest, store))
}

/// The recorded root is trusted where the manifest itself is: a user who may write the one may write the other.
fn check_origin(path: &Path, manifest: &Manifest) -> Result<()> {
    let Some(recorded) = manifest.recorded_root.as_deref() else { return Ok(()) };
    if is_same_origin(path, recorded) {
        return Ok(());
    }
    // A URL may have a password in it.
    let shown = match is_url(recorded) {
        true => split_url(recorded, &StorageOptions::default()).map(|(root, _)| root).unwrap_or_default(),
        false => recorded.to_owned(),
    };
    Err(Error::config(format!("says that its samples are elsewhere: expected a root, got none for {shown:?}"))
        .at_path(path)
        .with_hint(format!(
            "a manifest may not choose who is sent your credentials, or what is read: if that is where the samples are, \
             pass `root={shown:?}`"
        )))
}

fn read(path: &Path, root: Option<&Path>, options: &StorageOptions, keeps: Keeps, labels: &Labels) -> Result<Manifest> {
    let (store, path) = open_store(path, options, &Config { io_threads: 1, ..Config::default() })?;
    let retry = retry_of(&*store);
    let reader = Arc::clone(&store);
    let object = once(&store, &path, retry, move |path| reader.read(path, retry.deadline, &mut |_| Ok(Vec::new())));
    let object = object.map_err(|error| match error.kind() {
        // What else there is to say of it is about pictures.
        Kind::Undecodable => error.with_hint(
            "a manifest is one file; where Spark wrote a directory, it is the part-….parquet in it (coalesce(1) makes one)",
        ),
        _ => error,
    });
    let object = object.map_err(|error| error.at_stage(Stage::Scan))?;
    read_manifest(Bytes::from_owner(Held(object.bytes)), &path, root, keeps, labels)
}

/// An object's bytes, wherever they are.
struct Held(forebay_store::Bytes);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A manifest of something else, of which nothing would be left, is hardly what was meant.
fn check_root(earlier: &Manifest, difference: &Difference, root: &Path) -> Result<()> {
    let root = recorded_root(root)?;
    match earlier.recorded_root.as_deref() {
        Some(before) if before != Path::new(&root) && difference.deleted.len() as u64 == earlier.index.len() => {
            let message = format!("is a manifest of {before:?}, and none of its samples is in {root:?}");
            Err(Error::config(message))
        }
        _ => Ok(()),
    }
}

/// The root as a manifest records it: a URL without its options, or an absolute path, so that it can be opened from
/// anywhere.
pub fn recorded_root(root: &Path) -> Result<String> {
    let absolute: PathBuf = match is_url(root) {
        true => root.to_owned(),
        false => std::path::absolute(root).map_err(|error| Error::io("made absolute", error).at_path(root))?,
    };
    absolute.into_os_string().into_string().map_err(|root| {
        Error::config("is a root that is not UTF-8, which a manifest cannot hold").at_path(Path::new(&root))
    })
}

#[cfg(test)]
mod tests;
