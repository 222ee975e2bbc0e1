//! What decoding has found in pictures, kept for the next time they come: places in their code to jump to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::SampleId;
use forebay_decode::Landmarks;

/// As much memory they take at most, however large the dataset is: about 500,000 pictures of 60 KB, or 70,000 of 600 KB.
const MAX_BYTES: u64 = 256 << 20;
/// Of `memory_budget` no more than one part in so many.
const PART_OF_BUDGET: u64 = 8;
/// What keeping them takes besides.
const ENTRY_BYTES: usize = 96;
/// `0` in this environment variable switches landmarks off, to measure what they gain and cost.
const VARIABLE: &str = "FOREBAY_LANDMARKS";
/// Threads seldom wait for each other.
const SHELVES: usize = 16;

/// The landmarks of samples. When there is no room left, no more are kept.
#[derive(Debug)]
pub(crate) struct Familiar {
    shelves: [Mutex<HashMap<u64, Landmarks>>; SHELVES],
    most: usize,
    used: AtomicUsize,
    pictures: AtomicU64,
}

impl Familiar {
    pub(crate) fn new(memory_budget: u64) -> Self {
        let most = MAX_BYTES.min(memory_budget / PART_OF_BUDGET) as usize;
        Self { shelves: Default::default(), most, used: AtomicUsize::new(0), pictures: AtomicU64::new(0) }
    }

    /// As the environment says: without room if they are switched off.
    pub(crate) fn from_environment(memory_budget: u64) -> Self {
        let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "0");
        Self::new(if is_off { 0 } else { memory_budget })
    }

    /// Whether any can be kept. If not, they need not be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.most > 0
    }

    /// How many pictures were decoded with landmarks of an earlier epoch, and the bytes that landmarks take now.
    pub(crate) fn stats(&self) -> (u64, u64) {
        (self.pictures.load(Relaxed), self.used.load(Relaxed) as u64)
    }

    /// What is known of a sample, which is nothing the first time.
    pub(crate) fn take(&self, sample: SampleId) -> Landmarks {
        let Some(known) = self.shelf(sample).remove(&sample.0) else { return Landmarks::default() };
        self.used.fetch_sub(size_bytes(&known), Relaxed);
        known
    }

    /// Keeps what is known of a sample until it comes again.
    pub(crate) fn keep(&self, sample: SampleId, known: Landmarks) {
        self.pictures.fetch_add(known.is_used().into(), Relaxed);
        let size = size_bytes(&known);
        // Several threads may find room at once: then it is a little more than the most.
        if known.is_empty() || self.used.load(Relaxed) + size > self.most {
            return;
        }
        self.used.fetch_add(size, Relaxed);
        if let Some(other) = self.shelf(sample).insert(sample.0, known) {
            self.used.fetch_sub(size_bytes(&other), Relaxed);
        }
    }

    fn shelf(&self, sample: SampleId) -> MutexGuard<'_, HashMap<u64, Landmarks>> {
        self.shelves[sample.0 as usize % SHELVES].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size_bytes(known: &Landmarks) -> usize {
    known.size_bytes() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use forebay_core::{Epoch, Rng};
    use forebay_decode::{Op, Pipeline, Scratch};

    use super::*;

    /// Of a picture of the demo, decoded once.
    fn known() -> Landmarks {
        let (bytes, mut scratch) = (include_bytes!("../../forebay-cli/assets/rings-0.jpg"), Scratch::default());
        scratch.lend(Landmarks::default());
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }]).unwrap();
        pipeline.run(bytes, &Rng::for_sample(0, Epoch(0), SampleId(0)), &mut scratch).unwrap();
        scratch.take_back().unwrap()
    }

    #[test]
    fn what_was_kept_is_there_once_and_in_bounds() {
        let size = size_bytes(&known());
        assert!(size > ENTRY_BYTES, "the picture has landmarks");
        let familiar = Familiar::new(2 * size as u64 * PART_OF_BUDGET);
        familiar.keep(SampleId(9), Landmarks::default());
        for sample in [1, 17, 1, 5] {
            familiar.keep(SampleId(sample), known());
        }
        let mut taken = |sample| !familiar.take(SampleId(sample)).is_empty();
        assert_eq!([1, 17, 5, 9, 1].map(&mut taken), [true, true, false, false, false]);
        assert_eq!(familiar.used.load(Relaxed), 0);
        familiar.keep(SampleId(5), known());
        assert!(!familiar.take(SampleId(5)).is_empty(), "there is room again");
        assert_eq!(familiar.stats(), (0, 0), "none was decoded with what was known of it");
    }
}
