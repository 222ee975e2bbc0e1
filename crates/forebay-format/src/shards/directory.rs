//! `index.json`, which is beside shards and says what they are.

use std::collections::HashSet;

use forebay_core::{Error, Kind, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Listed, RecordField, litdata, mds};

/// `state.json` of a dataset that `datasets` has saved.
#[derive(Deserialize)]
struct SavedState {
    _data_files: Vec<SavedFile>,
    #[serde(default)]
    _indices_data_files: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct SavedFile {
    filename: String,
}

/// The files that the `state.json` of a dataset of Hugging Face names.
pub fn read_saved_dataset(bytes: &[u8]) -> Result<Vec<String>> {
    let state: SavedState = serde_json::from_slice(bytes)
        .map_err(|error| mds::corrupt("is no state of a saved dataset").with_detail(error.to_string()))?;
    if state._indices_data_files.is_some_and(|files| !files.is_empty()) {
        let error = Error::new(Kind::Undecodable, "has its samples in an order of their own (_indices_data_files)");
        return Err(
            error.with_hint("save it again: datasets.load_from_disk(…).save_to_disk(…) writes them in their order")
        );
    }
    if state._data_files.is_empty() {
        return Err(Error::new(Kind::NotFound, "lists no files"));
    }
    state._data_files.into_iter().map(|file| mds::checked_name(file.filename)).collect()
}

/// What a directory of shards says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its shards, by their names below it.
    pub files: Vec<(String, Listed)>,
    /// The fields of each sample, in their order.
    pub fields: Vec<RecordField>,
    /// Whether samples are tuples or lists: their fields are numbered.
    pub is_tuple: bool,
    /// Whether rows may be in Arrow files behind the tables of the shards, which say nothing then.
    pub has_rows_behind: bool,
    /// How shards are compressed, where plain ones may be beside them.
    pub compression: Option<String>,
}

/// What tells formats apart.
#[derive(Deserialize)]
struct Probe {
    shards: Option<IgnoredAny>,
    chunks: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
}

impl Directory {
    /// Reads an `index.json`: of MosaicML's streaming, or of LitData.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let probe: Probe = serde_json::from_slice(bytes)
            .map_err(|error| mds::corrupt("is not JSON, or of another form").with_detail(error.to_string()))?;
        let directory = match probe {
            Probe { shards: Some(_), .. } => mds::read(bytes)?,
            Probe { chunks: Some(_), config: Some(_), .. } => litdata::read(bytes)?,
            _ => {
                let message = "is no index of shards (expected \"shards\", as MosaicML's streaming writes it, or \"chunks\" \
                               and \"config\", as LitData does)";
                return Err(Error::new(Kind::Undecodable, message));
            }
        };
        if directory.files.is_empty() {
            return Err(Error::new(Kind::NotFound, "lists no shards"));
        }
        let mut names = HashSet::new();
        if let Some(field) = directory.fields.iter().find(|field| !names.insert(&*field.name)) {
            return Err(mds::corrupt(format!("names a column twice ({:?})", field.name)));
        }
        Ok(directory)
    }
}
