//! One line of the ledger: a sample that failed, or that was got only after a retry.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::locator::name_of;
use crate::{Error, Kind, Locator, Result, Stage};

/// What became of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A substitute was delivered.
    Replaced,
    /// It was left out.
    Skipped,
    /// A later attempt succeeded: it was delivered as planned.
    Recovered,
    /// It ended the iteration (`on_error="raise"`).
    Raised,
    /// Nothing yet: the loop waited for it, longer than `stall_seconds`. Only in ledgers.
    Stalled,
}

impl Outcome {
    /// The name used in the ledger and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Skipped => "skipped",
            Self::Recovered => "recovered",
            Self::Raised => "raised",
            Self::Stalled => "stalled",
        }
    }

    /// The outcome with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Replaced, Self::Skipped, Self::Recovered, Self::Raised, Self::Stalled]
            .into_iter()
            .find(|outcome| outcome.name() == name)
    }

    /// It says what became of a sample. A stall does not: it is over when the sample comes.
    pub const fn is_of_a_sample(self) -> bool {
        !matches!(self, Self::Stalled)
    }

    /// The sample was not delivered as planned.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::Replaced | Self::Skipped | Self::Raised)
    }
}

/// A failure with its address. The ledger's lines and `loader.failures` have these names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The sample's path. Bytes that are not UTF-8 are written as U+FFFD; `path_bytes` then has them.
    pub path: String,
    /// The path in hexadecimal, only when it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The part of the file that the sample is, where that has a name: a member of an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Where that part begins in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The sample's index in the dataset.
    pub index: u64,
    /// The kind of error: a slug of the registry.
    pub code: String,
    /// Where it happened.
    pub stage: Option<Stage>,
    /// The system's error number.
    pub errno: Option<i32>,
    /// How often it was tried.
    pub attempts: u32,
    /// How long it was tried.
    pub elapsed_seconds: f64,
    /// What happened, as a sentence with the path.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// What the decoder or the kernel said in its own words.
    pub detail: Option<String>,
    /// The epoch.
    pub epoch: u64,
    /// The step within the epoch.
    pub step: u64,
    /// The position in the epoch's global order.
    pub position: u64,
    /// The rank.
    pub rank: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The index of the sample delivered instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substitute: Option<u64>,
    /// The file's size when it failed: quarantine ends when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The file's modification time when it failed: quarantine ends when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ns: Option<i64>,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
}

impl Failure {
    /// What an error says, to be completed with its address.
    pub fn of(error: &Error, path: &Path, outcome: Outcome) -> Self {
        Self {
            index: error.index().unwrap_or_default(),
            code: error.kind().slug().to_owned(),
            stage: error.stage(),
            errno: error.errno(),
            attempts: error.attempts(),
            elapsed_seconds: error.elapsed().as_secs_f64(),
            message: error.to_string(),
            hint: error.hint().to_owned(),
            detail: error.detail().map(str::to_owned),
            ..Self::at(path, outcome)
        }
    }

    /// Of this path, to be completed with what happened and its address.
    pub fn at(path: &Path, outcome: Outcome) -> Self {
        let (path, path_bytes) = encode_path(path);
        Self {
            path,
            path_bytes,
            member: None,
            offset: None,
            index: 0,
            code: String::new(),
            stage: None,
            errno: None,
            attempts: 0,
            elapsed_seconds: 0.0,
            message: String::new(),
            hint: String::new(),
            detail: None,
            epoch: 0,
            step: 0,
            position: 0,
            rank: 0,
            outcome,
            substitute: None,
            size_bytes: None,
            mtime_ns: None,
            unix_seconds: 0.0,
        }
    }

    /// The same of a sample whose bytes are there.
    pub fn located(self, locator: &Locator) -> Self {
        let (path, path_bytes) = encode_path(&locator.path);
        let offset = locator.range.as_ref().map(|range| range.start);
        Self { path, path_bytes, member: locator.member.clone(), offset, ..self }
    }

    /// What the failed part is kept by ([`Locator::name`]): one bad member condemns itself, and not its archive.
    pub fn name(&self) -> PathBuf {
        name_of(&self.path(), self.member.as_deref(), self.offset)
    }

    /// The path as the file system has it.
    pub fn path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        match self.path_bytes.as_deref().and_then(decode_hex) {
            Some(bytes) => std::ffi::OsString::from_vec(bytes).into(),
            None => PathBuf::from(&self.path),
        }
    }

    /// Permanently bad: the bytes themselves are, so reading them again cannot help until the file changes.
    pub fn is_permanent(&self) -> bool {
        let is_about_bytes = Kind::from_slug(&self.code).is_some_and(|kind| kind.is_about_bytes(self.stage));
        is_about_bytes && matches!(self.outcome, Outcome::Replaced | Outcome::Skipped)
    }

    /// Its message is a sentence about the path, as the engine writes it. A dataset in Python writes about a sample, which
    /// other code than the engine's decodes.
    pub fn is_about_its_path(&self) -> bool {
        self.message.starts_with(&format!("{:?} ", self.name()))
    }

    /// One line of the ledger, with its newline.
    pub fn to_line(&self) -> Result<String> {
        let mut line = serde_json::to_string(self)
            .map_err(|error| Error::internal("a failure could not be written as JSON").with_source(error))?;
        line.push('\n');
        Ok(line)
    }
}

fn encode_path(path: &Path) -> (String, Option<String>) {
    use std::os::unix::ffi::OsStrExt;
    let hex =
        path.to_str().is_none().then(|| path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect());
    (path.to_string_lossy().into_owned(), hex)
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_line_survives_the_round_trip_whatever_the_path() {
        for name in [b"cat/1\n\".jpg".to_vec(), b"cat/\xff\xfe.jpg".to_vec(), "katze/ü.jpg".into()] {
            let path = PathBuf::from(std::ffi::OsString::from_vec(name));
            let error = Error::new(Kind::Corrupt, "is truncated").at_path(&path).at_index(7).at_stage(Stage::Decode);
            let line = Failure::of(&error, &path, Outcome::Replaced).to_line().unwrap();
            assert_eq!(line.matches('\n').count(), 1);
            let back: Failure = serde_json::from_str(&line).unwrap();
            assert_eq!(back.path(), path);
            assert!(back.is_permanent() && back.is_about_its_path());
            let of_python = Failure { message: "sample 7 failed in the dataset: OSError".to_owned(), ..back };
            assert!(!of_python.is_about_its_path());
        }
    }
}
