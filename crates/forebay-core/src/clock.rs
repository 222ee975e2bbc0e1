//! Time as a value, so that tests of retries and deadlines need not wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where time comes from. Monotonic: setting the wall clock back moves no deadline.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Seconds since 1970, for the ledger only.
    fn unix_seconds(&self) -> f64;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn unix_seconds(&self) -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
    }
}

/// A clock that moves when told.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves time on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn unix_seconds(&self) -> f64 {
        self.now().as_secs_f64()
    }
}
