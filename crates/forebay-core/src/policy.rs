//! What the loader does about trouble: retry, replace, skip, stop. Decisions only; the loader carries them out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hash::{hash_words, scale};
use crate::{Books, Error, Kind, Result};

/// What becomes of a sample that cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The iteration stops with the error of the first bad sample in planned order.
    #[default]
    Raise,
    /// A deterministic substitute takes its place: batch size, steps and order stay as planned.
    Replace,
    /// It is left out and the batch is smaller. One rank only: others would drift apart.
    Skip,
}

impl std::str::FromStr for OnError {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "raise" => Ok(Self::Raise),
            "replace" => Ok(Self::Replace),
            "skip" => Ok(Self::Skip),
            _ => Err(Error::config(format!("on_error: expected \"raise\", \"replace\" or \"skip\", got {text:?}"))),
        }
    }
}

/// Whether files are read by processes that may be lost, so that a mount that hangs cannot hang this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolate {
    /// Where the files lie on a mount that can hang.
    #[default]
    Auto,
    /// Wherever they lie.
    Always,
    /// Nowhere.
    Never,
}

impl std::str::FromStr for Isolate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(Error::config(format!("isolate: expected \"auto\", \"always\" or \"never\", got {text:?}"))),
        }
    }
}

/// When a slow read gets a second one beside it. The first that answers counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hedge {
    /// When it takes longer than this fraction of all reads so far.
    Quantile(f64),
    /// When it takes longer than this.
    After(Duration),
}

impl Hedge {
    pub(crate) fn is_sensible(&self) -> bool {
        match self {
            Self::Quantile(fraction) => (0.01..=0.9999).contains(fraction),
            Self::After(wait) => !wait.is_zero(),
        }
    }
}

impl std::fmt::Display for Hedge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quantile(fraction) => write!(f, "\"p{}\"", (fraction * 1e6).round() / 1e4),
            Self::After(wait) => write!(f, "{} s", wait.as_secs_f64()),
        }
    }
}

impl std::str::FromStr for Hedge {
    type Err = Error;

    /// `p99`, `p99.9` …
    fn from_str(text: &str) -> Result<Self> {
        let percent = text.strip_prefix('p').and_then(|number| number.parse::<f64>().ok());
        percent.map(|percent| Self::Quantile(percent / 100.0)).filter(Self::is_sensible).ok_or_else(|| {
            Error::config(format!("hedge: expected a quantile from \"p1\" to \"p99.99\" or seconds, got {text:?}"))
        })
    }
}

/// Substitutes tried for one position before the run stops: with half of the samples bad, 2⁻⁶⁴ is never.
pub const MAX_SUBSTITUTES: u32 = 64;

/// How many samples of an epoch may fail before the run stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailureLimit {
    /// At most this many.
    Count(u64),
    /// At most this fraction of the samples handled so far, judged once 100 have been.
    Fraction(f64),
}

impl FailureLimit {
    /// A fraction is not judged before this many samples: one bad file in the first ten is not 10 %.
    pub const PROBATION: u64 = 100;

    /// Whether these books are over the limit, and if so the error that stops the run.
    pub fn check(&self, books: &Books) -> Result<()> {
        let failed = books.failed();
        let (over, allowed) = match *self {
            Self::Count(count) => (failed > count, format!("{count}")),
            Self::Fraction(fraction) => (
                books.planned >= Self::PROBATION && failed as f64 > fraction * books.planned as f64,
                format!("{}% of them", fraction * 100.0),
            ),
        };
        if !over {
            return Ok(());
        }
        Err(Error::new(
            Kind::TooManyFailures,
            format!(
                "{failed} of the first {} samples of this epoch failed (max_failures allows {allowed})",
                books.planned
            ),
        ))
    }
}

/// Which of its second chances a sample has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    /// A decode error has had its fresh read.
    pub reread: bool,
    /// A file that was written to while it was read has had its second read.
    pub changed: bool,
}

/// How transient errors are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts after the first.
    pub retries: u32,
    /// The first pause; each later one doubles, up to [`Retry::MAX_PAUSE`].
    pub first_pause: Duration,
    /// No attempt starts later than this after the first.
    pub deadline: Duration,
    /// Whether a pause is anything from nothing to all of it, or from half of it: what many clients ask at once is better
    /// spread over all of it, what has few attempts needs the half for outages to pass.
    pub is_spread: bool,
}

impl Default for Retry {
    fn default() -> Self {
        // Pauses of 50 ms to 1.6 s: an outage of two seconds ends nothing, a file that always fails costs three.
        Self { retries: 6, first_pause: Duration::from_millis(50), deadline: Duration::from_secs(60), is_spread: false }
    }
}

impl Retry {
    /// Longer pauses than this help no storage and only delay the batch. Not measured.
    pub const MAX_PAUSE: Duration = Duration::from_secs(5);

    /// What storage may ask for at most: one that says an hour is asked again sooner. Not measured.
    pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

    /// What a sample's place in the run contributes to its jitter.
    pub const fn jitter_key(batch: u64, slot: u32) -> u64 {
        batch.wrapping_mul(0x1_0000_0001).wrapping_add(slot as u64)
    }

    /// The pause before a sample is tried again after an error, transient or not, or `None` when it is given up.
    pub fn judge(
        &self,
        error: &Error,
        attempts: u32,
        chances: &mut Chances,
        elapsed: Duration,
        jitter_key: u64,
    ) -> Option<Duration> {
        if error.is_transient() {
            return self.pause(error, attempts, elapsed, jitter_key);
        }
        // Promise 5: a decode error is guilty of nothing until one fresh read agrees.
        if error.kind().is_about_bytes(error.stage()) && !chances.reread {
            chances.reread = true;
            return Some(Duration::ZERO);
        }
        // Gives the writer a moment to finish.
        if error.kind() == Kind::Changed && !chances.changed {
            chances.changed = true;
            return Some(self.first_pause);
        }
        None
    }

    /// The pause before the next attempt after a transient error, or `None` when it is time to give up.
    ///
    /// The upper half of each pause, or all of it, is jitter, so that a thousand samples that failed together do not return
    /// together.
    /// Storage that asks for less load is left alone for as long as it says, and then for that pause; that it does
    /// says nothing about the sample, so that only the deadline ends it.
    pub fn pause(&self, error: &Error, attempts: u32, elapsed: Duration, jitter_key: u64) -> Option<Duration> {
        let has_attempts = attempts <= self.retries || (error.is_throttled() && self.retries > 0);
        if !error.is_transient() || !has_attempts {
            return None;
        }
        let doubled = self.first_pause.saturating_mul(1 << (attempts.saturating_sub(1)).min(16));
        let ceiling = doubled.min(Self::MAX_PAUSE);
        let floor = if self.is_spread { Duration::ZERO } else { ceiling / 2 };
        let jitter = scale(hash_words(&[jitter_key, u64::from(attempts)]), (ceiling - floor).as_nanos() as u64 + 1);
        let asked = error.retry_after().unwrap_or(Duration::ZERO).min(Self::MAX_RETRY_AFTER);
        let pause = asked + floor + Duration::from_nanos(jitter);
        (elapsed + pause <= self.deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hedge_is_a_quantile_or_a_time() {
        for (text, shown) in [("p99", "\"p99\""), ("p99.9", "\"p99.9\""), ("p50", "\"p50\"")] {
            assert_eq!(text.parse::<Hedge>().unwrap().to_string(), shown);
        }
        for text in ["99", "p0", "p100", "pNaN", "p", "", "p-1"] {
            assert!(text.parse::<Hedge>().is_err(), "{text}");
        }
        assert!(!Hedge::After(Duration::ZERO).is_sensible());
    }

    #[test]
    fn a_fraction_is_judged_after_probation() {
        let limit = FailureLimit::Fraction(0.01);
        let books = |planned, replaced| Books { planned, delivered: planned - replaced, replaced, ..Books::default() };
        assert!(limit.check(&books(99, 50)).is_ok());
        assert!(limit.check(&books(100, 1)).is_ok());
        let error = limit.check(&books(100, 2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 of the first 100 samples of this epoch failed (max_failures allows 1% of them)"
        );
    }

    #[test]
    fn a_count_allows_exactly_that_many() {
        let books = |skipped| Books { planned: 10, delivered: 10 - skipped, skipped, ..Books::default() };
        assert!(FailureLimit::Count(3).check(&books(3)).is_ok());
        assert!(FailureLimit::Count(3).check(&books(4)).is_err());
    }

    #[test]
    fn pauses_double_with_jitter_and_end() {
        let (first_pause, deadline) = (Duration::from_millis(100), Duration::from_secs(10));
        let retry = Retry { retries: 3, first_pause, deadline, ..Retry::default() };
        let error = Error::new(Kind::Unavailable, "x").transient();
        for attempts in 1..=3 {
            let pause = retry.pause(&error, attempts, Duration::ZERO, 7).unwrap();
            let ceiling = Duration::from_millis(100 << (attempts - 1));
            assert!(pause >= ceiling / 2 && pause <= ceiling, "{pause:?}");
        }
        assert_eq!(retry.pause(&error, 4, Duration::ZERO, 7), None);
        assert_eq!(retry.pause(&error, 1, Duration::from_secs(10), 7), None);
        assert_eq!(retry.pause(&Error::new(Kind::NotFound, "x"), 1, Duration::ZERO, 7), None);
    }

    #[test]
    fn pauses_that_are_spread_are_anything_up_to_all_of_it() {
        let retry = Retry { retries: 3, first_pause: Duration::from_millis(100), is_spread: true, ..Retry::default() };
        let error = Error::new(Kind::Unavailable, "x").transient();
        let pauses: Vec<_> =
            (0..1_000).map(|key| retry.pause(&error, 3, Duration::ZERO, key).unwrap().as_millis()).collect();
        for quarter in 0..4 {
            let count = pauses.iter().filter(|&&pause| pause / 100 == quarter).count();
            assert!((200..300).contains(&count), "{count} of 1,000 in quarter {quarter}");
        }
        assert!(pauses.iter().all(|&pause| pause <= 400));
    }

    #[test]
    fn storage_that_asks_for_less_load_is_left_alone_until_the_deadline() {
        let (first_pause, deadline) = (Duration::from_millis(100), Duration::from_secs(90));
        let retry = Retry { retries: 3, first_pause, deadline, is_spread: false };
        let busy = |seconds| Error::new(Kind::Unavailable, "x").throttled(Some(Duration::from_secs(seconds)));
        let pause = retry.pause(&busy(2), 1, Duration::ZERO, 7).unwrap();
        assert!(pause >= Duration::from_millis(2050) && pause <= Duration::from_millis(2100), "{pause:?}");
        assert!(retry.pause(&busy(2), 40, Duration::from_secs(80), 7).is_some(), "attempts do not count");
        assert_eq!(retry.pause(&busy(2), 4, Duration::from_secs(89), 7), None);
        let long = retry.pause(&busy(3600), 1, Duration::ZERO, 7).unwrap();
        assert!(long < Retry::MAX_RETRY_AFTER + Duration::from_secs(1), "{long:?}");
        assert_eq!(Retry { retries: 0, ..retry }.pause(&busy(0), 1, Duration::ZERO, 7), None, "none means none");
    }
}
