//! What is written beside the shards: the ledger of samples that are not in them, and in the end the index, the names of the classes
//! and a manifest of the shards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Failure, Kind, Result};
use forebay_format::{SHARD_RULE, write_index};
use forebay_store::LedgerFile;
use serde_json::{Map, Value, json};

use crate::Pack;
use crate::records::{INDEX_NAME, Record, State, remove_records, version_of};
use crate::source::Samples;
use crate::target::{Halt, Target};

const LEDGER_NAME: &str = "forebay-ledger.jsonl";
const CLASSES_NAME: &str = "classes.json";
/// How often a ledger that another process has locked is asked for, and with which pause.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Where failures are written down.
pub(crate) struct LedgerPlace {
    path: PathBuf,
    /// A file is opened when there is something to write, unless it was asked for by its name.
    file: parking_lot::Mutex<Option<LedgerFile>>,
    /// An object is written in the end.
    is_object: bool,
}

impl LedgerPlace {
    pub(crate) fn open(given: Option<&Path>, target: &Target) -> Result<Self> {
        let (path, is_object) = match given {
            Some(path) => (path.to_owned(), false),
            None => (target.root.join(LEDGER_NAME), target.is_remote),
        };
        let file = given.map(LedgerFile::open).transpose()?;
        Ok(Self { path, file: parking_lot::Mutex::new(file), is_object })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn append(&self, failures: &[Failure], halt: &Halt) -> Result<()> {
        if failures.is_empty() || self.is_object {
            return Ok(());
        }
        let lines = failures.iter().map(Failure::to_line).collect::<Result<String>>()?;
        let mut file = self.file.lock();
        let file = match &*file {
            Some(file) => file,
            None => file.insert(LedgerFile::open(&self.path)?),
        };
        for _ in 0..LOCK_ATTEMPTS {
            if file.append(&lines)? {
                return Ok(());
            }
            halt.sleep(LOCK_PAUSE)?;
        }
        let owner = file.lock_owner().unwrap_or("another process or machine".to_owned());
        let error = Error::new(Kind::Unavailable, format!("is locked by {owner}")).at_path(&self.path);
        Err(error.with_hint("end what holds it, or give --ledger another file"))
    }
}

impl Pack {
    /// Writes what belongs to complete shards, and that they are.
    pub(crate) fn complete(
        &self,
        state: State,
        records: &[Record],
        samples: &Samples,
        (target, halt): (&Target, &Halt),
        ledger: &LedgerPlace,
    ) -> Result<()> {
        if records.iter().all(|record| record.finished.samples == 0) {
            let error = Error::new(Kind::TooManyFailures, "all samples failed: there is nothing in the shards");
            return Err(error.with_hint("the ledger says why"));
        }
        let mtime_ns = samples.latest_ns();
        if ledger.is_object {
            let lines =
                records.iter().flat_map(|record| &record.failures).map(Failure::to_line).collect::<Result<String>>()?;
            if !lines.is_empty() {
                target.put(halt, Path::new(LEDGER_NAME), lines.as_bytes(), mtime_ns)?;
            }
        }
        let versions = records
            .iter()
            .map(|Record { finished, index, .. }| (version_of(&finished.name, finished.size_bytes), index));
        target.put(halt, Path::new(INDEX_NAME), &write_index(SHARD_RULE, versions), mtime_ns)?;
        let classes: Map<String, Value> =
            samples.classes().into_iter().map(|(name, label)| (name.to_owned(), label.into())).collect();
        if !classes.is_empty() {
            let mut bytes = serde_json::to_vec_pretty(&classes)
                .map_err(|error| Error::internal("the classes could not be written as JSON").with_source(error))?;
            bytes.push(b'\n');
            target.put(halt, Path::new(CLASSES_NAME), &bytes, mtime_ns)?;
        }
        let name = format!("{}.jsonl", self.prefix);
        target.put(halt, Path::new(&name), manifest(records).as_bytes(), mtime_ns)?;
        let shards = records.iter().map(|record| record.finished.clone()).collect();
        State { shards: Some(shards), ..state }.write(target, halt, mtime_ns)?;
        remove_records(target, halt)?;
        halt.retried(target.retry, || target.sink.sync())
    }
}

/// The manifest of the shards: they are below the folder that it is in, wherever that is copied to.
fn manifest(records: &[Record]) -> String {
    let line = |Record { finished, .. }: &Record| {
        json!({"path": finished.name, "size_bytes": finished.size_bytes, "samples": finished.samples}).to_string()
            + "\n"
    };
    records.iter().map(line).collect()
}
