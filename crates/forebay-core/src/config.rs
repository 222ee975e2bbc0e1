//! The settings of a loader, checked before any thread starts: all that is wrong is said at once.

use std::num::NonZeroU64;
use std::path::PathBuf;

use crate::{
    Blocks, Error, FailureLimit, Hedge, Isolate, OnError, OrderKind, Plan, Rank, Result, Retry, Sampling, Wording,
    WorldSize, neutral,
};

/// What is wrong with some settings, collected.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// Notes a problem unless `fine`.
    pub fn expect(&mut self, fine: bool, problem: impl FnOnce() -> String) {
        if !fine {
            self.0.push(problem());
        }
    }

    /// One error that lists them all, or nothing.
    pub fn into_result(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::config(self.0.join("; "))) }
    }
}

/// The settings of a loader. The names are those of Python's `DataLoader`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Samples per batch, on each rank.
    pub batch_size: u64,
    /// Permute each epoch.
    pub shuffle: bool,
    /// Permute the dataset's blocks, and the samples inside windows of so many blocks, instead of all samples at once. Has no
    /// effect without `shuffle`.
    pub shuffle_window: Option<NonZeroU64>,
    /// Which samples an epoch has, where it is not every one once. `shuffle` is about the sources of a mixture then.
    pub sampling: Option<Sampling>,
    /// Leave out an incomplete last step.
    pub drop_last: bool,
    /// The key of order and augmentation; the same on every rank.
    pub seed: u64,
    /// This process among all ranks.
    pub rank: Rank,
    /// How many ranks share each epoch.
    pub world_size: WorldSize,
    /// Threads that decode and transform.
    pub cpu_threads: usize,
    /// Threads that read, to begin with.
    pub io_threads: usize,
    /// Threads that read where more of them make the storage give more; as many as `io_threads` leaves it at that.
    pub max_io_threads: usize,
    /// Batches prepared ahead of the consumer.
    pub prefetch_batches: usize,
    /// Only one, where that is seen to be enough.
    pub prefetch_shrinks: bool,
    /// Bytes that compressed, decoded and batched data may take together.
    pub memory_budget: u64,
    /// Bytes that reading and decoding one sample may take; one that needs more has failed. `None`: as many as
    /// `memory_budget`. More than that is taken by one sample at a time.
    pub max_sample_bytes: Option<u64>,
    /// Bytes in which decoded pictures are kept from epoch to epoch, beside `memory_budget`. `None`: none are kept.
    pub decoded_cache_bytes: Option<u64>,
    /// What becomes of a sample that cannot be had.
    pub on_error: OnError,
    /// When too many samples failed.
    pub max_failures: Option<FailureLimit>,
    /// How transient errors are tried again.
    pub retry: Retry,
    /// Whether files are read by processes that may be lost. Who makes the source picks its store by it.
    pub isolate: Isolate,
    /// When a slow read gets a second one beside it.
    pub hedge: Option<Hedge>,
    /// Threads or reader processes that may be stuck in the kernel before the run stops.
    pub max_lost_threads: usize,
    /// The JSONL file that failures are appended to and quarantine is read from.
    pub ledger: Option<PathBuf>,
    /// The front end whose words the hints of failures and of the ledger have.
    pub wording: Wording,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: 1,
            shuffle: false,
            shuffle_window: None,
            sampling: None,
            drop_last: false,
            seed: 0,
            rank: Rank(0),
            world_size: WorldSize(1),
            cpu_threads: 1,
            io_threads: 4,
            max_io_threads: 4,
            prefetch_batches: 4,
            prefetch_shrinks: false,
            memory_budget: 1 << 30,
            max_sample_bytes: None,
            decoded_cache_bytes: None,
            on_error: OnError::Raise,
            max_failures: None,
            retry: Retry::default(),
            isolate: Isolate::default(),
            hedge: None,
            max_lost_threads: Self::MAX_LOST_THREADS,
            ledger: None,
            wording: neutral,
        }
    }
}

impl Config {
    /// More threads than this is a typing error, not a plan.
    const MAX_THREADS: usize = 4096;
    /// Each lost one holds a stack or a process, little memory, and what it has open. Not measured.
    const MAX_LOST_THREADS: usize = 256;

    /// Checks every setting.
    pub fn check(&self) -> Result<()> {
        let mut problems = Problems::default();
        problems.expect(self.batch_size > 0, || "batch_size: expected at least 1, got 0".into());
        problems.expect(self.world_size.0 > 0, || "world_size: expected at least 1, got 0".into());
        problems.expect(self.rank.0 < self.world_size.0.max(1), || {
            format!("rank: expected 0 to {}, got {}", self.world_size.0.max(1) - 1, self.rank)
        });
        for (name, threads) in [("num_workers", self.cpu_threads), ("io_threads", self.io_threads)] {
            problems.expect((1..=Self::MAX_THREADS).contains(&threads), || {
                format!("{name}: expected 1 to {}, got {threads}", Self::MAX_THREADS)
            });
        }
        if let Some(hedge) = &self.hedge {
            problems.expect(hedge.is_sensible(), || {
                format!("hedge: expected a quantile from p1 to p99.99 or seconds above 0, got {hedge}")
            });
        }
        problems.expect(self.prefetch_batches > 0, || "prefetch_factor: expected at least 1, got 0".into());
        problems.expect(self.memory_budget > 0, || "memory_budget: expected at least 1 byte, got 0".into());
        problems
            .expect(self.max_sample_bytes != Some(0), || "max_sample_bytes: expected at least 1 byte, got 0".into());
        problems.expect(!self.retry.deadline.is_zero(), || "deadline_seconds: expected more than 0, got 0".into());
        if let Some(FailureLimit::Fraction(fraction)) = self.max_failures {
            problems.expect((0.0..=1.0).contains(&fraction), || {
                format!("max_failures: expected a count or a fraction from 0 to 1, got {fraction}")
            });
        }
        problems.expect(self.on_error != OnError::Skip || self.world_size.0 <= 1, || {
            format!(
                "on_error: \"skip\" with {} ranks would let them drift apart and hang the next collective; \
                 use \"replace\", which keeps every rank at equal steps",
                self.world_size
            )
        });
        problems.into_result()
    }

    /// Bytes that one sample may take.
    pub fn max_sample_bytes(&self) -> u64 {
        self.max_sample_bytes.unwrap_or(self.memory_budget)
    }

    /// The plan over a dataset of this many samples, which may lie in blocks.
    pub fn plan(&self, len: u64, blocks: Option<Blocks>) -> Result<Plan> {
        let Self { batch_size, world_size, drop_last, seed, .. } = *self;
        if let Some(sampling) = &self.sampling {
            if sampling.sample_count() != len {
                let got = sampling.sample_count();
                let message = format!("weights and labels: expected {len}, one for each sample, got {got}");
                return Err(Error::config(message));
            }
            if let Some(window) = self.shuffle_window {
                let message = format!("shuffle_window: expected none beside a mixture or a sampler, got {window}");
                return Err(Error::config(message));
            }
            let is_shuffled = self.shuffle || !matches!(sampling, Sampling::Mixture(_));
            let order = OrderKind::Sampled { sampling: sampling.clone(), is_shuffled };
            return Ok(Plan { len: sampling.samples(), batch_size, world_size, order, drop_last, seed });
        }
        let order = match (self.shuffle, self.shuffle_window, blocks) {
            (false, ..) => OrderKind::Sequential,
            (true, None, _) => OrderKind::Global,
            (true, Some(window), Some(blocks)) if blocks.sample_count() == len => {
                OrderKind::ShardLocal { blocks, window }
            }
            (true, Some(_), Some(blocks)) => {
                let held = blocks.sample_count();
                return Err(Error::internal(format!("the dataset has {len} samples and blocks of {held}")));
            }
            (true, Some(window), None) => {
                let message = format!("shuffle_window: expected a dataset whose samples lie in blocks, got {window}");
                return Err(Error::config(message).with_hint("without a window, all samples are shuffled"));
            }
        };
        Ok(Plan { len, batch_size, world_size, order, drop_last, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_everything_that_is_wrong_at_once() {
        let config = Config {
            batch_size: 0,
            rank: Rank(4),
            world_size: WorldSize(4),
            cpu_threads: 0,
            on_error: OnError::Skip,
            max_failures: Some(FailureLimit::Fraction(1.5)),
            ..Config::default()
        };
        let text = config.check().unwrap_err().to_string();
        for part in ["batch_size", "rank: expected 0 to 3, got 4", "num_workers", "\"skip\" with 4 ranks", "got 1.5"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(Config::default().check().is_ok());
    }
}
