//! The record of what was asked for and what is finished, beside the files of tokens: `forebay-tokens.json`.
//!
//! A run that was interrupted goes on behind its last finished shard. One that asks for something else is refused: shards of two
//! corpora or of two tokenizers would lie side by side.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use forebay::{Replacement, State};
use forebay_core::{DatasetIdentity, Error, Kind, Result, Retry};
use forebay_store::{Local, ReadRequest, Store};
use serde::{Deserialize, Serialize};

use crate::documents::Documents;

const NAME: &str = "forebay-tokens.json";
const VERSION: u32 = 1;

/// What files of tokens depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    pub(crate) version: u32,
    /// The documents, by the files that they are in.
    pub(crate) corpus: DatasetIdentity,
    pub(crate) documents: Documents,
    /// A hash of the tokenizer's file.
    pub(crate) tokenizer: String,
    pub(crate) with_special: bool,
    pub(crate) end_of_document: Option<u32>,
    /// The type of the tokens.
    pub(crate) dtype: String,
    pub(crate) prefix: String,
    pub(crate) steps_per_shard: u64,
}

/// A finished pair of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Its documents.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Documents that had none, and are left out.
    pub empty: u64,
    /// Documents that failed.
    pub failed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) asked: Asked,
    pub(crate) shards: Vec<Shard>,
    /// Where the loader goes on, behind the last finished shard.
    pub(crate) state: Option<State>,
}

impl Asked {
    pub(crate) const VERSION: u32 = VERSION;
}

impl Record {
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join(NAME)
    }

    /// The record of an earlier run with the same settings, or a new one.
    pub(crate) fn open(directory: &Path, asked: Asked) -> Result<Self> {
        let path = Self::path(directory);
        let located = |error: Error| error.at_path(&path);
        let request = ReadRequest::new(&path, Retry::default().deadline);
        let bytes = match Local.fetch(&request, &mut |_| Ok(Vec::new())) {
            Ok(object) => object.bytes.into_vec(),
            Err(error) if error.kind() == Kind::NotFound => return Ok(Self { asked, shards: Vec::new(), state: None }),
            Err(error) => return Err(located(error)),
        };
        let found: Self = serde_json::from_slice(&bytes).map_err(|error| {
            let message = "is no record of tokens that this version can read";
            let error = Error::new(Kind::Config, message).with_detail(error.to_string());
            located(error.with_hint("choose an empty directory with --output, or delete what is in this one"))
        })?;
        match found.asked == asked {
            true => Ok(found),
            false => {
                let message = format!("is of other settings: {}", difference(&found.asked, &asked));
                let hint = "choose another directory with --output, or delete what is in this one";
                Err(located(Error::new(Kind::Config, message).with_hint(hint)))
            }
        }
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::internal(format!("a record that cannot be written: {error}")))?;
        write(&Self::path(directory), format!("{text}\n").as_bytes())
    }
}

/// Puts a file in place, or leaves the one that is there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut replacement = Replacement::new(path)?;
    replacement.write_all(bytes).map_err(|error| Error::io("written", error).at_path(path))?;
    replacement.commit().map(|_| ())
}

/// The settings that differ, by name.
fn difference(found: &Asked, asked: &Asked) -> String {
    let value = |asked: &Asked| serde_json::to_value(asked).unwrap_or_default();
    let (found, asked) = (value(found), value(asked));
    let names = asked.as_object().into_iter().flatten().filter(|(name, now)| found.get(name) != Some(now));
    let shown = names.map(|(name, now)| {
        let before = found.get(name).map_or("nothing".to_owned(), ToString::to_string);
        format!("{name} (there {before}, asked for {now})")
    });
    shown.collect::<Vec<_>>().join(", ")
}
