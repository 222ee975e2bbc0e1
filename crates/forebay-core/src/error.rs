//! The one error type of forebay, and the registry of its kinds.
//!
//! An [`Error`] is one word wide. Its [`Kind`] says what the caller should do; its message says what happened,
//! as a predicate about the path it carries (`"cat/1.jpg" is truncated (…)`) or as a whole sentence when it
//! carries none. Hints are data, kept apart from messages. Only [`Error::is_transient`] and
//! [`Error::is_sample_local`] drive recovery.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Field;
use crate::hint::{Wording, worded};

/// Shorthand used throughout forebay.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of trouble it is; the slug is the public `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The path does not exist.
    NotFound,
    /// The path may not be read.
    Denied,
    /// The storage did not give the bytes, now.
    Unavailable,
    /// A deadline passed.
    Timeout,
    /// The file was written to while it was read.
    Changed,
    /// The file is another one than the manifest describes.
    Stale,
    /// The bytes are of a known format and damaged.
    Corrupt,
    /// The bytes are of no format forebay decodes.
    Undecodable,
    /// Code of the user's own raised an exception.
    UserCode,
    /// Memory, descriptors or a size limit ran out.
    Exhausted,
    /// A setting is wrong.
    Config,
    /// A resume state belongs to something else.
    StateMismatch,
    /// More samples failed than `max_failures` allows.
    TooManyFailures,
    /// A worker process ended.
    WorkerDied,
    /// The loader was closed, or is used after a fork.
    Stopped,
    /// A bug in forebay.
    Internal,
}

/// One row of the registry of error kinds. `docs/errors.md` and the Python classes are checked against it.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The kind.
    pub kind: Kind,
    /// The stable name: `Failure.code`, `ForebayError.code`, the ledger's `code`.
    pub slug: &'static str,
    /// The Python class.
    pub class: &'static str,
    /// The builtin that the Python class inherits as well.
    pub builtin: &'static str,
    /// What it means, one line.
    pub meaning: &'static str,
    /// What to do about it, unless the error has a better hint of its own.
    pub hint: &'static str,
    /// Concerns one sample only, so that `on_error` applies.
    pub sample_local: bool,
}

macro_rules! registry {
    ($($kind:ident $slug:literal $class:literal $builtin:literal $local:literal $meaning:literal => $hint:literal;)*) => {
        /// Every kind of error there is.
        pub const REGISTRY: &[Registered] = &[$(Registered {
            kind: Kind::$kind, slug: $slug, class: $class, builtin: $builtin,
            meaning: $meaning, hint: $hint, sample_local: $local,
        }),*];

        impl Kind {
            /// This kind's row of the registry.
            pub const fn registered(self) -> &'static Registered {
                &REGISTRY[self as usize]
            }
        }
    };
}

registry! {
    NotFound "not_found" "NotFoundError" "FileNotFoundError" true
        "the path does not exist"
        => "was it moved or deleted after the folder was scanned? construct the dataset again to rescan";
    Denied "denied" "AccessDeniedError" "PermissionError" true
        "the path may not be read by this user"
        => "check owner and mode of the file and of every directory above it";
    Unavailable "unavailable" "UnavailableError" "OSError" true
        "the storage did not give the bytes, after all retries"
        => "the storage is failing: look at the kernel log (dmesg) and at the mount; raise `retries` if it recovers by itself";
    Timeout "timeout" "DeadlineError" "TimeoutError" true
        "the deadline of the sample passed"
        => "the storage is slow or stuck; raise `deadline_seconds` if it is only slow";
    Changed "changed" "ChangedError" "OSError" true
        "the file was written to while it was read"
        => "train on files that are not being written: write under another name, and rename when complete; if nothing writes to them, the mount reports wrong times: check its options";
    Stale "stale" "StaleError" "OSError" true
        "the file is not the one that the manifest describes"
        => "it was written to after the manifest was made: run `forebay scan` again, which reads only what changed";
    Corrupt "corrupt" "CorruptError" "OSError" true
        "the file is of a known format, and damaged"
        => "the file itself is bad (a second read agreed): restore it from its source or delete it";
    Undecodable "undecodable" "UndecodableError" "OSError" true
        "the file is of no format that forebay decodes, or a transform refused it"
        => "forebay does not decode it, whatever its name says: convert it, open it yourself with `loader`, or exclude it with `is_valid_file`";
    UserCode "user_code" "UserCodeError" "RuntimeError" true
        "code of the user's own raised an exception: a dataset, a transform"
        => "the exception and the line are in the message and the detail: repair that code, or leave out the sample";
    Exhausted "exhausted" "ExhaustedError" "OSError" true
        "memory, descriptors or a size limit ran out"
        => "lower `num_workers` or the image size, or give the process more of what the message names";
    Config "config" "ConfigError" "ValueError" false
        "a setting is wrong"
        => "correct the setting named in the message";
    StateMismatch "state_mismatch" "StateMismatchError" "ValueError" false
        "the resume state belongs to another dataset or order"
        => "load it into a loader built like the one that wrote it";
    TooManyFailures "too_many_failures" "TooManyFailuresError" "RuntimeError" false
        "more samples failed than `max_failures` allows"
        => "see `report()`; repair the files, or raise `max_failures`";
    WorkerDied "worker_died" "WorkerDiedError" "RuntimeError" true
        "a worker ended while it held the sample"
        => "look at the signal and the stack in the detail";
    Stopped "stopped" "StoppedError" "RuntimeError" false
        "the loader was closed, or is used in a forked child"
        => "construct the loader in the process that iterates it";
    Internal "internal" "InternalError" "RuntimeError" false
        "a bug in forebay"
        => "please report it with this message";
}

impl Kind {
    /// The stable name.
    pub const fn slug(self) -> &'static str {
        self.registered().slug
    }

    /// A verdict about the bytes of a file, at this stage: only then is it worth a fresh read, and then believed.
    pub fn is_about_bytes(self, stage: Option<Stage>) -> bool {
        matches!(self, Self::Corrupt | Self::Undecodable) && stage == Some(Stage::Decode)
    }

    /// What a failed system call with this number means, and whether a later attempt may succeed (promise 5). `None` for
    /// numbers that say nothing about storage: what they mean depends on the call.
    ///
    /// The one list of transient numbers, for the engine and for datasets in Python.
    pub const fn of_errno(errno: i32) -> Option<(Self, bool)> {
        Some(match errno {
            libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG => (Self::NotFound, false),
            libc::EACCES | libc::EPERM => (Self::Denied, false),
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => (Self::Exhausted, true),
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => (Self::Exhausted, false),
            libc::ETIMEDOUT => (Self::Timeout, true),
            libc::EISDIR => (Self::Undecodable, false),
            libc::EIO
            | libc::ESTALE
            | libc::EAGAIN
            | libc::EINTR
            | libc::EBUSY
            | libc::ENOLCK
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ECONNREFUSED
            | libc::EPIPE
            | libc::ENOTCONN
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::ENETRESET
            | libc::EREMOTEIO
            | libc::EPROTO => (Self::Unavailable, true),
            libc::EROFS
            | libc::EUCLEAN
            | libc::EBADMSG
            | libc::ENOMEDIUM
            | libc::ESHUTDOWN
            | libc::ENONET
            | libc::ECOMM
            | libc::ETXTBSY => (Self::Unavailable, false),
            _ => return None,
        })
    }

    /// The kind with this slug.
    pub fn from_slug(slug: &str) -> Option<Self> {
        REGISTRY.iter().find(|row| row.slug == slug).map(|row| row.kind)
    }
}

/// Where in the data path something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Finding the samples.
    Scan,
    /// Getting the bytes.
    Fetch,
    /// Bytes to pixels.
    Decode,
    /// Pixels to what the user asked for.
    Transform,
    /// Samples into a batch.
    Assemble,
    /// The batch to the user.
    Deliver,
}

impl Stage {
    /// The name used in errors, ledger and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Fetch => "fetch",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::Assemble => "assemble",
            Self::Deliver => "deliver",
        }
    }

    /// The stage with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Scan, Self::Fetch, Self::Decode, Self::Transform, Self::Assemble, Self::Deliver]
            .into_iter()
            .find(|stage| stage.name() == name)
    }
}

/// What went wrong, where, and what to do about it. See the module's page for how to read the message.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    message: String,
    transient: bool,
    throttled: bool,
    progressed: bool,
    retry_after: Option<Duration>,
    sample_local: bool,
    stage: Option<Stage>,
    path: Option<PathBuf>,
    index: Option<u64>,
    field: Option<Field>,
    errno: Option<i32>,
    detail: Option<String>,
    hint: Option<Cow<'static, str>>,
    attempts: u32,
    elapsed: Duration,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind. Without a path the message is a sentence; with one, a predicate about it.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            transient: false,
            throttled: false,
            progressed: false,
            retry_after: None,
            sample_local: kind.registered().sample_local,
            stage: None,
            path: None,
            index: None,
            field: None,
            errno: None,
            detail: None,
            hint: None,
            attempts: 0,
            elapsed: Duration::ZERO,
            source: None,
        }))
    }

    /// A failed system call: `doing` names it, as in "could not be {doing}".
    pub fn io(doing: &str, source: std::io::Error) -> Self {
        let errno = source.raw_os_error();
        let (kind, transient) = classify(errno, source.kind());
        // `io::Error` ends in "(os error 5)"; the number is put in words that people search for.
        let mut reason = source.to_string();
        if let (Some(errno), Some(cut)) = (errno, reason.find(" (os error")) {
            reason.truncate(cut);
            reason = format!("{reason} [Errno {errno}]");
        }
        let mut error = Self::new(kind, format!("could not be {doing}: {reason}")).with_source(source);
        error.0.errno = errno;
        error.0.transient = transient;
        error
    }

    /// A setting is wrong.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// A bug in forebay.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// Marks the error as one that a later attempt may not meet.
    pub fn transient(mut self) -> Self {
        self.0.transient = true;
        self
    }

    /// Marks the error as a transient one of storage that asks for less load, and says when to come back if it said so.
    pub fn throttled(mut self, retry_after: Option<Duration>) -> Self {
        (self.0.transient, self.0.throttled, self.0.retry_after) = (true, true, retry_after);
        self
    }

    /// Marks the error of an attempt that made progress: the next attempt continues where it ended.
    pub fn progressed(mut self) -> Self {
        self.0.progressed = true;
        self
    }

    /// Marks the error as one that the next sample would meet as well, whatever its kind: `on_error` does not apply.
    pub fn of_every_sample(mut self) -> Self {
        self.0.sample_local = false;
        self
    }

    /// Adds the path it is about; an inner path is kept.
    pub fn at_path(mut self, path: &Path) -> Self {
        self.0.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Adds the sample it is about.
    pub fn at_index(mut self, index: u64) -> Self {
        self.0.index = Some(index);
        self
    }

    /// Adds the field of the sample that it is about; an inner field is kept.
    pub fn at_field(mut self, field: Field) -> Self {
        self.0.field.get_or_insert(field);
        self
    }

    /// It is about this part of what the path names: a field of a record.
    #[must_use]
    pub fn in_part(mut self, name: &str) -> Self {
        self.0.message = format!("(field {name:?}) {}", self.0.message);
        self
    }

    /// Adds the stage; an inner stage is kept.
    pub fn at_stage(mut self, stage: Stage) -> Self {
        self.0.stage.get_or_insert(stage);
        self
    }

    /// Adds what the decoder, the kernel or the worker said in its own words.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Replaces the kind's hint by a better one, which names settings as [`Wording`] says.
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the error number of the system call.
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.0.errno = Some(errno);
        self
    }

    /// Adds how often and how long it was tried.
    pub fn after(mut self, attempts: u32, elapsed: Duration) -> Self {
        self.0.attempts = attempts;
        self.0.elapsed = elapsed;
        self
    }

    /// Adds the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Its message without path, attempts or hint.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where in the data path it happened.
    pub fn stage(&self) -> Option<Stage> {
        self.0.stage
    }

    /// The path it is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The sample it is about.
    pub fn index(&self) -> Option<u64> {
        self.0.index
    }

    /// The field of the sample that it is about: the first where nothing else is known.
    pub fn field(&self) -> Field {
        self.0.field.unwrap_or_default()
    }

    /// The error number of the system call.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// What the decoder, the kernel or the worker said in its own words.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// What to do about it, with its settings in the words of no front end.
    pub fn hint(&self) -> &str {
        self.0.hint.as_deref().unwrap_or(self.0.kind.registered().hint)
    }

    /// What to do about it, in the words of a front end.
    pub fn hint_in(&self, wording: Wording) -> String {
        worded(self.hint(), wording)
    }

    /// How often it was tried.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// How long it was tried.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed
    }

    /// Whether the storage asked for less load.
    pub fn is_throttled(&self) -> bool {
        self.0.throttled
    }

    /// How long the storage asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether the attempt made progress, from which the next one continues.
    pub fn has_progressed(&self) -> bool {
        self.0.progressed
    }

    /// A later attempt, with the file opened again, may succeed.
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// The server no longer knows the file that it showed.
    pub fn is_stale(&self) -> bool {
        self.0.errno == Some(libc::ESTALE)
    }

    /// Concerns one sample only, so that `on_error` applies.
    pub fn is_sample_local(&self) -> bool {
        self.0.sample_local
    }

    /// The typed cause, if it is a `T` (how a binding finds the exception it put in).
    pub fn source_as<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.0.source.as_ref()?.downcast_ref()
    }
}

/// By its number, or where that says nothing by what the standard library makes of it.
fn classify(errno: Option<i32>, kind: std::io::ErrorKind) -> (Kind, bool) {
    errno.and_then(Kind::of_errno).unwrap_or(match kind {
        std::io::ErrorKind::NotFound => (Kind::NotFound, false),
        std::io::ErrorKind::PermissionDenied => (Kind::Denied, false),
        std::io::ErrorKind::TimedOut => (Kind::Timeout, true),
        std::io::ErrorKind::UnexpectedEof => (Kind::Unavailable, true),
        _ => (Kind::Unavailable, false),
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "{path:?} {}", self.message())?,
            None => f.write_str(self.message())?,
        }
        let (attempts, seconds) = (self.attempts(), self.elapsed().as_secs_f64());
        match (attempts > 1, seconds >= 0.1) {
            (true, true) => write!(f, ", after {attempts} attempts in {seconds:.1} s"),
            (true, false) => write!(f, ", after {attempts} attempts"),
            (false, true) => write!(f, ", after {seconds:.1} s"),
            (false, false) => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_rows_stand_where_their_kind_points() {
        for (position, row) in REGISTRY.iter().enumerate() {
            assert_eq!(row.kind as usize, position, "{}", row.slug);
            assert_eq!(Kind::from_slug(row.slug), Some(row.kind));
            assert_eq!(row.kind.slug(), row.slug);
        }
    }

    #[test]
    fn slugs_and_classes_are_unique_and_hints_are_phrases() {
        for (position, row) in REGISTRY.iter().enumerate() {
            let twin = REGISTRY[..position].iter().find(|other| other.slug == row.slug || other.class == row.class);
            assert!(twin.is_none(), "{} twice", row.slug);
            assert!(!row.hint.ends_with('.') && !row.meaning.ends_with('.'), "{}", row.slug);
        }
    }

    #[test]
    fn documented_table_equals_the_registry() {
        let documented = include_str!("../../../docs/errors.md");
        for row in REGISTRY {
            let line =
                format!("| `{}` | `{}` | `{}` | {} | {} |", row.slug, row.class, row.builtin, row.meaning, row.hint);
            assert!(documented.contains(&line), "docs/errors.md lacks this row:\n{line}");
        }
        assert_eq!(documented.matches("Error` |").count(), 2 * REGISTRY.len(), "docs/errors.md has a row too many");
    }

    #[test]
    fn transient_errors_are_those_of_promise_5() {
        let io = |errno| Error::io("read", std::io::Error::from_raw_os_error(errno));
        for errno in [libc::EIO, libc::ESTALE, libc::EAGAIN, libc::ECONNRESET, libc::EMFILE, libc::ETIMEDOUT] {
            assert!(io(errno).is_transient(), "errno {errno}");
        }
        for errno in [libc::ENOENT, libc::EACCES, libc::EISDIR, libc::ELOOP, libc::EINVAL] {
            assert!(!io(errno).is_transient(), "errno {errno}");
        }
        // Every number: what the table says is what an error of the engine's is.
        for errno in 1..200 {
            let error = io(errno);
            if let Some(expected) = Kind::of_errno(errno) {
                assert_eq!((error.kind(), error.is_transient()), expected, "errno {errno}");
            }
        }
        assert_eq!(Kind::of_errno(libc::EINVAL), None);
    }

    #[test]
    fn message_reads_as_a_sentence_about_its_path() {
        let error = Error::io("opened", std::io::Error::from_raw_os_error(libc::EIO))
            .at_path(Path::new("cat/1\n.jpg"))
            .after(4, Duration::from_millis(1500));
        assert_eq!(
            error.to_string(),
            "\"cat/1\\n.jpg\" could not be opened: Input/output error [Errno 5], after 4 attempts in 1.5 s"
        );
        assert_eq!(error.errno(), Some(5));
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }
}
