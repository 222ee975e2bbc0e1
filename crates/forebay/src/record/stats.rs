//! Where time goes: per stage how many, how long, how long waited, and a one-word verdict.
//!
//! Counters are atomics, latencies go into logarithmic histograms (12 % wide buckets), so that recording costs
//! some nanoseconds and memory never grows.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::engine::decoded_cache::DecodedCacheStats;

/// Buckets per factor of two.
const STEPS: usize = 8;
/// 2⁴⁸ ns are three days.
const BUCKETS: usize = 48 * STEPS;

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Histogram(Vec<AtomicU64>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    fn record(&self, duration: Duration) {
        let nanos = (duration.as_nanos() as u64).max(1);
        let power = nanos.ilog2() as usize;
        let within = if power >= 3 { (nanos >> (power - 3)) as usize & (STEPS - 1) } else { 0 };
        self.0[(power * STEPS + within).min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// The duration that this fraction of the recorded ones stays below.
    fn quantile(&self, fraction: f64) -> Duration {
        let total: u64 = self.0.iter().map(|bucket| bucket.load(Relaxed)).sum();
        let rank = (total as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count.load(Relaxed);
            if seen >= rank.max(1) {
                let (power, within) = (bucket / STEPS, bucket % STEPS);
                // The middle of the bucket.
                let nanos = 2f64.powi(power as i32) * (1.0 + (within as f64 + 0.5) / STEPS as f64);
                return Duration::from_nanos(nanos as u64);
            }
        }
        Duration::ZERO
    }
}

/// What one stage did.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    items: AtomicU64,
    busy_nanos: AtomicU64,
    waiting_nanos: AtomicU64,
    latency: Histogram,
}

impl Meter {
    pub(crate) fn record(&self, busy: Duration) {
        self.items.fetch_add(1, Relaxed);
        self.busy_nanos.fetch_add(busy.as_nanos() as u64, Relaxed);
        self.latency.record(busy);
    }

    /// The duration that this fraction of the items stays below, once there are enough of them.
    pub(crate) fn quantile(&self, fraction: f64, least: u64) -> Option<Duration> {
        (self.items.load(Relaxed) >= least).then(|| self.latency.quantile(fraction))
    }

    pub(crate) fn record_waiting(&self, waited: Duration) {
        self.waiting_nanos.fetch_add(waited.as_nanos() as u64, Relaxed);
    }

    fn read(&self) -> StageStats {
        StageStats {
            items: self.items.load(Relaxed),
            busy: Duration::from_nanos(self.busy_nanos.load(Relaxed)),
            waiting: Duration::from_nanos(self.waiting_nanos.load(Relaxed)),
            p50: self.latency.quantile(0.50),
            p95: self.latency.quantile(0.95),
            p99: self.latency.quantile(0.99),
        }
    }
}

/// The meters of a loader, over its whole life.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) fetch: Meter,
    pub(crate) decode: Meter,
    pub(crate) transform: Meter,
    /// Per batch: from the first sample fetched to the last one written.
    pub(crate) assemble: Meter,
    /// Per batch: how long the consumer waited for it.
    pub(crate) deliver: Meter,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
    pub(crate) written_off: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) decodes_written_off: AtomicU64,
    pub(crate) decodes_lost: AtomicU64,
    pub(crate) concurrent_reads: AtomicU64,
    /// Time between the consumer's asking for a batch and its asking for the next.
    pub(crate) consumer_nanos: AtomicU64,
    /// Samples handed over of each dataset, where there are several.
    pub(crate) delivered: Mutex<Vec<u64>>,
}

/// What one stage did, all its threads together.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageStats {
    /// Samples (deliver and assemble: batches).
    pub items: u64,
    /// Time spent working.
    pub busy: Duration,
    /// Time its threads spent waiting for work, memory or the next stage.
    pub waiting: Duration,
    /// Half of the items took less.
    pub p50: Duration,
    /// 95 % of the items took less.
    pub p95: Duration,
    /// 99 % of the items took less.
    pub p99: Duration,
}

/// What keeps the loop from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was measured yet.
    Unknown,
    /// Reading.
    Storage,
    /// Decoding.
    Decode,
    /// Transforming.
    Transform,
    /// The training step: the loader waits for it.
    Consumer,
}

impl Verdict {
    /// The one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Storage => "storage-bound",
            Self::Decode => "decode-bound",
            Self::Transform => "transform-bound",
            Self::Consumer => "consumer-bound",
        }
    }
}

/// A reading of all meters.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Getting bytes.
    pub fetch: StageStats,
    /// Bytes to pixels.
    pub decode: StageStats,
    /// Pixels to tensors.
    pub transform: StageStats,
    /// Batches, from their first sample's fetch to their last one's end.
    pub assemble: StageStats,
    /// Batches handed over; `busy` is how long the consumer waited for them.
    pub deliver: StageStats,
    /// Bytes read.
    pub bytes_read: u64,
    /// Reads tried again.
    pub retries: u64,
    /// Second reads beside slow ones.
    pub hedges: u64,
    /// Those of them that answered first.
    pub hedges_won: u64,
    /// Reads whose thread was given up because they did not end in time; those of reader processes are theirs.
    pub written_off: u64,
    /// Threads that were given up and whose read has not ended yet.
    pub lost: u64,
    /// Decodes that took longer than their deadline.
    pub decodes_written_off: u64,
    /// CPU threads that are still stuck in one of them.
    pub decodes_lost: u64,
    /// Reads allowed at a time, now.
    pub concurrent_reads: u64,
    /// Pictures that were decoded with landmarks of an earlier epoch, or of an index.
    pub landmark_pictures: u64,
    /// Memory that landmarks of earlier epochs take, now.
    pub landmark_bytes: u64,
    /// What the decoded cache holds and has saved; `None` where there is none.
    pub decoded_cache: Option<DecodedCacheStats>,
    /// What keeps the loop from being faster.
    pub verdict: Verdict,
}

impl Meters {
    pub(crate) fn read(
        &self,
        (landmark_pictures, landmark_bytes): (u64, u64),
        decoded_cache: Option<DecodedCacheStats>,
    ) -> Stats {
        let mut stats = Stats {
            fetch: self.fetch.read(),
            decode: self.decode.read(),
            transform: self.transform.read(),
            assemble: self.assemble.read(),
            deliver: self.deliver.read(),
            bytes_read: self.bytes_read.load(Relaxed),
            retries: self.retries.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            hedges_won: self.hedges_won.load(Relaxed),
            written_off: self.written_off.load(Relaxed),
            lost: self.lost.load(Relaxed),
            decodes_written_off: self.decodes_written_off.load(Relaxed),
            decodes_lost: self.decodes_lost.load(Relaxed),
            concurrent_reads: self.concurrent_reads.load(Relaxed),
            landmark_pictures,
            landmark_bytes,
            decoded_cache,
            verdict: Verdict::Unknown,
        };
        stats.verdict = stats.judge(Duration::from_nanos(self.consumer_nanos.load(Relaxed)));
        stats
    }
}

impl Stats {
    /// The consumer is the bottleneck when it hardly waits. Otherwise it is the processors when their threads hardly
    /// wait for bytes, and the storage when they do.
    fn judge(&self, consumer: Duration) -> Verdict {
        let (waited, elapsed) = (self.deliver.busy, self.deliver.busy + consumer);
        let cpu_busy = self.decode.busy + self.transform.busy;
        if self.deliver.items == 0 {
            Verdict::Unknown
        } else if waited < elapsed.mul_f64(0.1) {
            Verdict::Consumer
        } else if self.decode.waiting > cpu_busy {
            Verdict::Storage
        } else if self.transform.busy > self.decode.busy {
            Verdict::Transform
        } else {
            Verdict::Decode
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (fraction, expected) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0)] {
            let got = histogram.quantile(fraction).as_secs_f64() * 1e6;
            assert!((got / expected - 1.0).abs() < 0.13, "{fraction}: {got} µs");
        }
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn the_slowest_stage_is_named() {
        let second = Duration::from_secs(1);
        let stage = |busy: u32, waiting: u32| StageStats {
            items: 1,
            busy: second * busy,
            waiting: second * waiting,
            ..Default::default()
        };
        let stats = |decode, transform, wait| Stats {
            fetch: stage(1, 0),
            decode,
            transform,
            assemble: stage(0, 0),
            deliver: stage(wait, 0),
            bytes_read: 0,
            retries: 0,
            hedges: 0,
            hedges_won: 0,
            written_off: 0,
            lost: 0,
            decodes_written_off: 0,
            decodes_lost: 0,
            concurrent_reads: 0,
            landmark_pictures: 0,
            landmark_bytes: 0,
            decoded_cache: None,
            verdict: Verdict::Unknown,
        };
        assert_eq!(stats(stage(1, 0), stage(1, 0), 0).judge(second), Verdict::Consumer);
        assert_eq!(stats(stage(5, 1), stage(1, 0), 5).judge(second), Verdict::Decode);
        assert_eq!(stats(stage(1, 1), stage(5, 0), 5).judge(second), Verdict::Transform);
        assert_eq!(stats(stage(1, 9), stage(1, 0), 5).judge(second), Verdict::Storage);
    }
}
