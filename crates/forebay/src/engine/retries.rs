//! Retries of samples that another scheduler makes: the workers of a dataset in Python, whose unit of work is a batch. The
//! decisions are those of `recover`; this module waits for nothing and reads nothing but the size and time of a file.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::{Chances, Error, Failure, Kind, Locator, Retry, Stage};
use forebay_store::{Local, Stat, Store};

use crate::engine::recover::Quarantine;

/// Why an attempt failed, as far as retries depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Trouble<'a> {
    /// The error number of a system call.
    pub errno: Option<i32>,
    /// What kind of trouble it is.
    pub kind: Kind,
    /// Where it happened.
    pub stage: Option<Stage>,
    /// The file that it is about.
    pub path: Option<&'a Path>,
}

impl Trouble<'_> {
    fn error(&self) -> Error {
        let mut error = Error::new(self.kind, "failed");
        if let Some(stage) = self.stage {
            error = error.at_stage(stage);
        }
        let is_transient = self.errno.and_then(Kind::of_errno).is_some_and(|(_, is_transient)| is_transient);
        if is_transient { error.transient() } else { error }
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It is tried again after this pause.
    Again(Duration),
    /// It is given up.
    GivenUp {
        /// Size and modification time of the file, where its bytes are to blame: quarantine ends when they change.
        file: Option<(u64, i64)>,
        /// The file was known to be bad, and has not changed since: it was not tried again.
        is_known: bool,
    },
}

/// How samples are tried again, and which files are known to be bad.
#[derive(Debug)]
pub struct Retries {
    retry: Retry,
    quarantine: Quarantine,
}

impl Retries {
    /// With the lines of files that are permanently bad: those of [`crate::Journal::known_bad`].
    pub fn new(retry: Retry, known_bad: &[Failure]) -> Self {
        Self { retry, quarantine: Quarantine::of(known_bad) }
    }

    /// Judges the attempt that failed last.
    pub fn judge(&self, tries: &mut Tries, trouble: &Trouble<'_>) -> Judged {
        tries.attempts = tries.attempts.saturating_add(1);
        let error = trouble.error();
        let path = trouble.path.filter(|_| error.kind().is_about_bytes(error.stage()));
        if let Some(path) = path
            && let locator = Locator::whole(path.to_owned())
            && let Some((_, Stat { size_bytes, mtime_ns })) = self.quarantine.check(&locator, &Local)
        {
            return Judged::GivenUp { file: Some((size_bytes, mtime_ns)), is_known: true };
        }
        let elapsed = tries.began.elapsed();
        if let Some(pause) = self.retry.judge(&error, tries.attempts, &mut tries.chances, elapsed, tries.jitter_key) {
            return Judged::Again(pause);
        }
        // A file that cannot be looked at has no quarantine.
        let stat = path.and_then(|path| Some((path, Local.stat(path).ok()?)));
        if let Some((path, stat)) = stat {
            self.quarantine.add(path, stat, &error);
        }
        Judged::GivenUp { file: stat.map(|(_, stat)| (stat.size_bytes, stat.mtime_ns)), is_known: false }
    }
}

/// The attempts at one sample.
#[derive(Debug)]
pub struct Tries {
    attempts: u32,
    chances: Chances,
    began: Instant,
    jitter_key: u64,
}

impl Tries {
    /// Of the sample in this slot of a batch, begun now.
    pub fn begin(batch: u64, slot: u32) -> Self {
        let jitter_key = Retry::jitter_key(batch, slot);
        Self { attempts: 0, chances: Chances::default(), began: Instant::now(), jitter_key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry {
        retries: 2,
        first_pause: Duration::from_millis(8),
        deadline: Duration::from_secs(60),
        is_spread: false,
    };

    fn trouble(errno: Option<i32>, kind: Kind, stage: Stage) -> Trouble<'static> {
        Trouble { errno, kind, stage: Some(stage), path: None }
    }

    #[test]
    fn pauses_are_those_of_the_engine() {
        let (retries, mut tries) = (Retries::new(RETRY, &[]), Tries::begin(3, 5));
        let eio = trouble(Some(libc::EIO), Kind::Unavailable, Stage::Fetch);
        for attempts in 1..=2 {
            let error = Error::new(Kind::Unavailable, "x").transient();
            let expected = RETRY.pause(&error, attempts, Duration::ZERO, Retry::jitter_key(3, 5)).unwrap();
            assert_eq!(retries.judge(&mut tries, &eio), Judged::Again(expected));
        }
        assert_eq!(retries.judge(&mut tries, &eio), Judged::GivenUp { file: None, is_known: false });
        let missing = trouble(Some(libc::ENOENT), Kind::NotFound, Stage::Fetch);
        assert!(matches!(retries.judge(&mut Tries::begin(0, 0), &missing), Judged::GivenUp { .. }));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test writes its own file")]
    fn a_file_known_to_be_bad_is_not_tried_again_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.jpg");
        std::fs::write(&path, b"bad").unwrap();
        let bad = Trouble { path: Some(&path), ..trouble(None, Kind::Undecodable, Stage::Decode) };
        let retries = Retries::new(RETRY, &[]);
        let mut tries = Tries::begin(0, 0);
        assert_eq!(retries.judge(&mut tries, &bad), Judged::Again(Duration::ZERO), "believed the second time");
        let Judged::GivenUp { file: Some((3, _)), is_known: false } = retries.judge(&mut tries, &bad) else { panic!() };
        let known = retries.judge(&mut Tries::begin(1, 0), &bad);
        assert!(matches!(known, Judged::GivenUp { file: Some((3, _)), is_known: true }), "{known:?}");
        std::fs::write(&path, b"other").unwrap();
        assert_eq!(retries.judge(&mut Tries::begin(2, 0), &bad), Judged::Again(Duration::ZERO));
    }
}
