//! What the target says of itself: `forebay-pack.json`, by what and from what it is packed, and while that is not complete, a record
//! beside the shards for each that is finished.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Failure, Result, hash_words};
use forebay_format::{FileVersion, SHARD_RULE, ShardIndex, read_index, write_index};
use forebay_store::SinkEntry;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::target::{Halt, Target};

/// The file that says what is packed here.
pub(crate) const STATE_NAME: &str = "forebay-pack.json";
/// The file with the index of all shards.
pub(crate) const INDEX_NAME: &str = "forebay.index";
/// The directory with a record of each finished shard.
pub(crate) const RECORDS_NAME: &str = ".forebay-pack";
/// Other versions of the state are not understood.
const FORMAT: u32 = 1;

/// What is packed, by which settings, and when it is complete, into what.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct State {
    pub(crate) format: u32,
    /// The version that began.
    pub(crate) forebay: String,
    /// Where the samples come from. It may move.
    pub(crate) source: String,
    /// Everything that the bytes depend on, by name.
    pub(crate) settings: Map<String, Value>,
    /// When the shards are complete.
    pub(crate) shards: Option<Vec<Finished>>,
}

/// A shard that is there.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Finished {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) samples: u64,
    pub(crate) failed: u64,
    pub(crate) saved: Saved,
}

/// What writing pictures again has saved.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Saved {
    /// Pictures that were written again.
    pub pictures: u64,
    /// Their bytes before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// How long they took to decode before.
    pub decode_seconds_before: f64,
    /// And after.
    pub decode_seconds_after: f64,
}

impl Saved {
    pub(crate) fn add(&mut self, other: &Self) {
        self.pictures += other.pictures;
        self.bytes_before += other.bytes_before;
        self.bytes_after += other.bytes_after;
        self.decode_seconds_before += other.decode_seconds_before;
        self.decode_seconds_after += other.decode_seconds_after;
    }
}

/// A finished shard, with its index and what failed in it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) finished: Finished,
    pub(crate) failures: Vec<Failure>,
    pub(crate) index: ShardIndex,
}

/// The part of a record that is JSON.
#[derive(Serialize, Deserialize)]
struct Head {
    fingerprint: String,
    finished: Finished,
    failures: Vec<Failure>,
}

impl State {
    pub(crate) fn new(source: String, settings: Map<String, Value>) -> Self {
        Self { format: FORMAT, forebay: env!("CARGO_PKG_VERSION").to_owned(), source, settings, shards: None }
    }

    /// A number of the settings: records of others are not used.
    pub(crate) fn fingerprint(&self) -> String {
        let words: Vec<_> = Value::Object(self.settings.clone()).to_string().bytes().map(u64::from).collect();
        format!("{:016x}", hash_words(&words))
    }

    /// What the target has. A file that is something else is an error: nothing is written over it.
    pub(crate) fn read(target: &Target, halt: &Halt) -> Result<Option<Self>> {
        let Some(bytes) = target.read(halt, Path::new(STATE_NAME))? else { return Ok(None) };
        let refused = |what: &str| {
            let error = Error::config(format!("is not what `forebay pack` writes here ({what})"));
            error.at_path(&target.root.join(STATE_NAME)).with_hint("choose another target, or remove what is there")
        };
        let state: Self = serde_json::from_slice(&bytes).map_err(|error| refused(&error.to_string()))?;
        if state.format != FORMAT {
            return Err(refused(&format!("format {}, of another version of forebay", state.format)));
        }
        Ok(Some(state))
    }

    pub(crate) fn write(&self, target: &Target, halt: &Halt, mtime_ns: i64) -> Result<()> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::internal("the settings could not be written as JSON").with_source(error))?;
        bytes.push(b'\n');
        target.put(halt, Path::new(STATE_NAME), &bytes, mtime_ns)
    }

    /// Refuses to go on with what was begun by other settings, or from another source.
    pub(crate) fn check_same(&self, begun: &Self, root: &Path) -> Result<()> {
        let names = self.settings.keys().chain(begun.settings.keys().filter(|name| !self.settings.contains_key(*name)));
        let differs = |name: &&String| self.settings.get(*name) != begun.settings.get(*name);
        let shown = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        let said: Vec<_> = names
            .filter(differs)
            .map(|name| match name.strip_prefix("source_") {
                Some(what) => format!("the {what} of the source's samples are others"),
                None => format!(
                    "{name} (expected {}, got {})",
                    shown(begun.settings.get(name)),
                    shown(self.settings.get(name))
                ),
            })
            .collect();
        if said.is_empty() {
            return Ok(());
        }
        let message = format!("target: was begun from another source or with other settings: {}", said.join("; "));
        Err(Error::config(message).at_path(root).with_hint(format!(
            "pack into another target, or remove this one to begin anew; it was begun from {:?}",
            begun.source
        )))
    }
}

/// The file of a shard's record.
fn record_name(shard: &str) -> PathBuf {
    Path::new(RECORDS_NAME).join(format!("{shard}.record"))
}

/// A shard in an index, whatever its time: copies have other ones, and its fields have checksums.
pub(crate) fn version_of(name: &str, size_bytes: u64) -> FileVersion {
    FileVersion::new(name.as_bytes(), size_bytes, 0).of_any_time()
}

impl Record {
    /// Writes it down. The shard is there by now.
    pub(crate) fn write(&self, target: &Target, halt: &Halt, fingerprint: &str, mtime_ns: i64) -> Result<()> {
        let head = Head {
            fingerprint: fingerprint.to_owned(),
            finished: self.finished.clone(),
            failures: self.failures.clone(),
        };
        let mut bytes = serde_json::to_vec(&head)
            .map_err(|error| Error::internal("a record could not be written as JSON").with_source(error))?;
        bytes.push(b'\n');
        let Finished { name, size_bytes, .. } = &self.finished;
        bytes.extend(write_index(SHARD_RULE, [(version_of(name, *size_bytes), &self.index)].into_iter()));
        target.put(halt, &record_name(name), &bytes, mtime_ns)
    }

    fn parse(bytes: &[u8], fingerprint: &str) -> Option<Self> {
        let line = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..line]).ok()?;
        let index = index_of(&head.finished, &mut read_index(SHARD_RULE, &bytes[line + 1..])?)?;
        let Head { finished, failures, .. } = head;
        (head.fingerprint == fingerprint).then_some(Self { finished, failures, index })
    }
}

/// The index of a finished shard, if it is one of as many samples.
fn index_of(finished: &Finished, known: &mut HashMap<FileVersion, ShardIndex>) -> Option<ShardIndex> {
    let index = known.remove(&version_of(&finished.name, finished.size_bytes))?;
    (index.len() == finished.samples).then_some(index)
}

/// The finished shards of an earlier run that are still there, by their names. What is odd about one means that it is packed again.
pub(crate) fn read_records(target: &Target, halt: &Halt, begun: &State) -> Result<HashMap<String, Record>> {
    let (mut found, fingerprint) = (HashMap::new(), begun.fingerprint());
    if let Some(shards) = &begun.shards {
        let bytes = target.read(halt, Path::new(INDEX_NAME))?.unwrap_or_default();
        let mut known = read_index(SHARD_RULE, &bytes).unwrap_or_default();
        for finished in shards {
            if let Some(index) = index_of(finished, &mut known) {
                let record = Record { finished: finished.clone(), failures: Vec::new(), index };
                found.insert(finished.name.clone(), record);
            }
        }
    } else {
        for entry in halt.retried(target.retry, || target.sink.list(Path::new(RECORDS_NAME)))? {
            let SinkEntry::File(name, _) = entry else { continue };
            let Some(bytes) = target.read(halt, &Path::new(RECORDS_NAME).join(&name))? else { continue };
            if let Some(record) = Record::parse(&bytes, &fingerprint) {
                found.insert(record.finished.name.clone(), record);
            }
        }
    }
    let mut there = HashMap::new();
    for (name, record) in found {
        if target.size(halt, Path::new(&name))? == Some(record.finished.size_bytes) {
            there.insert(name, record);
        }
    }
    Ok(there)
}

/// Removes the records: the index has what they say.
pub(crate) fn remove_records(target: &Target, halt: &Halt) -> Result<()> {
    let directory = Path::new(RECORDS_NAME);
    for entry in halt.retried(target.retry, || target.sink.list(directory))? {
        if let SinkEntry::File(name, _) | SinkEntry::Part(name) = entry {
            halt.retried(target.retry, || target.sink.remove(&directory.join(&name)))?;
        }
    }
    halt.retried(target.retry, || target.sink.remove_directory(directory)).map(|_| ())
}
