//! A manifest: the samples of a folder in one file, so that nobody has to list the folder.
//!
//! Parquet is what `forebay scan` writes; CSV and JSON lines are what people write. All three become the same index, and
//! all are hostile until parsed: a path may not leave the root, a count is believed when that many rows have come, and
//! whatever is wrong is named by file, row and column. Bytes in, bytes out: whoever calls reads and writes the file.

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
use rows::{Finished, Rows, Wrong};

pub use compare::Difference;
pub use labels::Labels;
pub use write::write_manifest;

/// The number of the format: of one that is higher, this version may misunderstand something.
const FORMAT: u32 = 1;

/// What is kept of a manifest's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Names, classes, and the versions that what is read is compared with.
    Names,
    /// Also the checksums ([`FolderIndex::verify`]): 8 bytes a sample.
    Checksums,
    /// Everything, as [`Facts`].
    Facts,
}

/// What is known of a sample beside its path and class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Size, time, etag.
    pub version: Version,
    /// What a look into the file told; `None` if nobody looked, or it could not be read.
    pub content: Option<Box<Content>>,
}

/// What a look into a file told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// [`content_hash`] of the bytes.
    pub xxh3: u64,
    /// What kind of picture it is; `None` if it is none.
    pub picture: Option<Picture>,
}

/// What the first bytes of a picture told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Its format, by content.
    pub format: Box<str>,
}

/// What a manifest's `xxh3` is: XXH3 of 64 bits of the whole file.
pub fn content_hash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// [`content_hash`] of bytes that come piece by piece.
#[derive(Clone, Default)]
pub struct ContentHash(xxhash_rust::xxh3::Xxh3);

impl ContentHash {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all that came.
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
    /// What is known of each of them; empty unless it was asked for.
    pub facts: Vec<Facts>,
    /// What they are labelled with, where that was asked for in place of their classes.
    pub labels: Vec<ScalarColumn>,
    /// The root that was written down.
    pub recorded_root: Option<PathBuf>,
    /// The version of forebay that wrote it.
    pub written_by: Option<String>,
    /// Names of its columns.
    pub columns: Vec<String>,
}

/// What stands in a manifest beside its rows.
#[derive(Debug, Default)]
struct Head {
    root: Option<String>,
    version: Option<String>,
    fingerprint: Option<String>,
    /// Classes without samples.
    empty_classes: Vec<(String, u32)>,
    columns: Vec<String>,
}

/// Reads a manifest. `path` is where its bytes came from: its ending tells CSV from JSON lines, and its folder is the
/// root unless `root` or the manifest itself says otherwise. `keeps` says what of each sample, `labels` what it is labelled with.
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
            false => "it does not begin like one",
        })),
        _ => Err(Error::config(format!(
            "is no manifest that forebay knows (expected .parquet, .csv or .jsonl, got .{ending})"
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
        let message = "has other rows than `forebay scan` wrote; states of the folder will not fit";
        index.push_note(Note { path: path.to_owned(), message: message.to_owned() });
    }
    Ok(Manifest { index, facts, labels, recorded_root: recorded, written_by: head.version, columns: head.columns })
}

/// Whether a root is the one that was written down, which is absolute.
fn is_same(root: &Path, recorded: &Path) -> bool {
    root == recorded || std::path::absolute(root).is_ok_and(|root| root == recorded)
}

impl Wrong {
    /// The error, for a row that goes by this name.
    fn at(self, place: &str) -> Error {
        let Self { column, message, hint } = self;
        let hint = hint.unwrap_or("correct it, or make the manifest again with `forebay scan`");
        Error::new(Kind::Config, format!("has something wrong in {place}, column {column:?}: {message}"))
            .with_hint(hint)
    }
}

/// A row of a table that counts them, as pandas does.
fn row_name(row: u64) -> String {
    format!("row {row} (the first is 0)")
}

/// Text of a manifest in a message: as much as helps.
fn shown(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
