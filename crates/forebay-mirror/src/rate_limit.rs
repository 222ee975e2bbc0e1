//! A limit of bytes per second for all threads together.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When the next byte may be read.
#[derive(Debug)]
pub(super) struct RateLimit {
    bytes_per_second: f64,
    next: Mutex<Instant>,
}

/// Unused time is credited up to this much: a read itself takes some time.
const CREDIT: Duration = Duration::from_millis(500);

impl RateLimit {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1) as f64, next: Mutex::new(Instant::now()) }
    }

    /// How much is read at a time for an even load: the bytes of a sixteenth of a second, from 16 KiB to 8 MiB, which a
    /// request of 60 ms can deliver.
    pub(super) fn piece_bytes(&self) -> u64 {
        ((self.bytes_per_second / 16.0) as u64).clamp(16 << 10, 8 << 20)
    }

    /// How long to wait for these bytes.
    pub(super) fn reserve(&self, bytes: u64, now: Instant) -> Duration {
        let mut next = self.next.lock();
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        *next = (*next).max(earliest) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        next.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_time_that_they_are_given() {
        let rate_limit = RateLimit::new(1_000_000);
        let start = *rate_limit.next.lock();
        assert_eq!(rate_limit.reserve(500_000, start), Duration::from_millis(500));
        assert_eq!(rate_limit.reserve(500_000, start), Duration::from_secs(1), "those after others wait for them too");
        let later = start + Duration::from_millis(1_100);
        assert_eq!(rate_limit.reserve(500_000, later), Duration::from_millis(400), "a moment is made up for");
        let much_later = start + Duration::from_secs(60);
        assert_eq!(rate_limit.reserve(1_000_000, much_later), Duration::from_millis(500), "a minute is not");
        assert_eq!((RateLimit::new(8_000).piece_bytes(), RateLimit::new(8_000_000).piece_bytes()), (16 << 10, 500_000));
    }
}
