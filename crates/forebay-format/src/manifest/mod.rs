//! A manifest: the samples of a folder in one file, so that the folder need not be listed.
//!
//! `forebay scan` writes Parquet; people write CSV and JSON lines. All three become the same index. Input is untrusted:
//! a path may not leave the root, claimed counts are checked against the rows present, and errors name file, row and
//! column. The caller reads and writes the file.

mod compare;
mod csv;
mod jsonl;
mod labels;
mod parquet;
mod rows;
mod write;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result, ScalarColumn, Stage, Version};

use crate::index::{FolderIndex, Note};
use rows::{CellError, Finished, Rows};

pub use compare::Difference;
pub use labels::Labels;
pub use write::write_manifest;

/// The format version. Files with a higher one are refused, because this version might misread them.
const FORMAT: u32 = 1;

/// Which parts of a manifest's rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Names, classes, and the versions that reads are compared with.
    Names,
    /// Also the checksums ([`FolderIndex::verify`]): 8 bytes a sample.
    Checksums,
    /// Everything, as [`Facts`].
    Facts,
}

/// What is known about a sample besides its path and class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Size, time, etag.
    pub version: Version,
    /// What reading the file gave; `None` if it was not read, or could not be.
    pub content: Option<Box<Content>>,
}

/// What reading a file gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// [`content_hash`] of the bytes.
    pub xxh3: u64,
    /// The picture's properties; `None` if it is not a picture.
    pub picture: Option<Picture>,
}

/// Properties from a picture's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Its format, by content.
    pub format: Box<str>,
}

/// The `xxh3` of a manifest: 64-bit XXH3 of the whole file.
pub fn content_hash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// [`content_hash`] of bytes that arrive piece by piece.
#[derive(Clone, Default)]
pub struct ContentHash(xxhash_rust::xxh3::Xxh3);

impl ContentHash {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContentHash({:016x})", self.finish())
    }
}

/// A manifest that was read.
#[derive(Debug)]
pub struct Manifest {
    /// Its samples, in the order of its rows.
    pub index: FolderIndex,
    /// The facts of each sample; empty unless [`Keeps::Facts`].
    pub facts: Vec<Facts>,
    /// The label columns, if they were requested in place of classes.
    pub labels: Vec<ScalarColumn>,
    /// The root recorded in the manifest.
    pub recorded_root: Option<PathBuf>,
    /// The version of forebay that wrote it.
    pub written_by: Option<String>,
    /// Names of its columns.
    pub columns: Vec<String>,
}

/// The metadata of a manifest besides its rows.
#[derive(Debug, Default)]
struct Head {
    root: Option<String>,
    version: Option<String>,
    fingerprint: Option<String>,
    /// Classes without samples.
    empty_classes: Vec<(String, u32)>,
    columns: Vec<String>,
}

/// Reads a manifest. `path` is where its bytes came from: its ending distinguishes CSV from JSON lines, and its folder
/// is the root unless `root` or the manifest itself says otherwise. `keeps` selects what is kept of each sample,
/// `labels` its labels.
pub fn read_manifest(
    bytes: Bytes,
    path: &Path,
    root: Option<&Path>,
    keeps: Keeps,
    labels: &Labels,
) -> Result<Manifest> {
    let place = |error: Error| error.at_path(path).at_stage(Stage::Scan);
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let mut rows = Rows::new(keeps, labels);
    let head = match ending.as_str() {
        _ if bytes.starts_with(b"PAR1") => parquet::read(bytes, &mut rows),
        "csv" => csv::read(&bytes, &mut rows),
        "jsonl" | "ndjson" => jsonl::read(&bytes, &mut rows),
        "parquet" | "parq" | "pq" => Err(parquet::damaged(match bytes.is_empty() {
            true => "it is empty",
            false => "its first bytes are not those of a Parquet file",
        })),
        _ => Err(Error::config(format!(
            "is not a manifest that forebay can read (expected .parquet, .csv or .jsonl, got .{ending})"
        ))
        .with_hint("make one with `forebay scan ROOT -o NAME.parquet`, or write a CSV with the columns path,class")),
    };
    let head = head.map_err(place)?;
    if rows.is_empty() {
        return Err(place(Error::config("has no rows (expected one for each sample)")));
    }
    let Finished { mut index, facts, labels } =
        rows.finish(head.empty_classes).map_err(|wrong| place(wrong.at("its metadata")))?;
    let recorded = head.root.map(PathBuf::from);
    let folder = || path.parent().unwrap_or(Path::new("")).to_owned();
    let is_copy = root.is_some_and(|root| recorded.as_deref().is_some_and(|recorded| !is_same(root, recorded)));
    let root = root.map(Path::to_owned).or_else(|| recorded.clone()).unwrap_or_else(folder);
    index.move_to(&root, is_copy);
    let is_of_classes = index.has_classes();
    if head.fingerprint.is_some_and(|fingerprint| is_of_classes && fingerprint != index.identity().fingerprint) {
        let message = "was changed after `forebay scan` wrote it; resume states of the folder will not match";
        index.push_note(Note { path: path.to_owned(), message: message.to_owned() });
    }
    Ok(Manifest { index, facts, labels, recorded_root: recorded, written_by: head.version, columns: head.columns })
}

/// Whether a root is the recorded one, which is absolute.
fn is_same(root: &Path, recorded: &Path) -> bool {
    root == recorded || std::path::absolute(root).is_ok_and(|root| root == recorded)
}

impl CellError {
    /// The error for a row, whose name is `place`.
    fn at(self, place: &str) -> Error {
        let Self { column, message, hint } = self;
        let hint = hint.unwrap_or("correct it, or create the manifest again with `forebay scan`");
        Error::new(Kind::Config, format!("is invalid in {place}, column {column:?}: {message}")).with_hint(hint)
    }
}

/// The name of a row in a table that numbers rows, as pandas does.
fn row_name(row: u64) -> String {
    format!("row {row} (the first is 0)")
}

/// Text of a manifest for a message, shortened.
fn shown(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
