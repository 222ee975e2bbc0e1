//! The landmark cache: positions in the entropy-coded data of pictures, noted in one epoch and used in the next (decisions/0025).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::SampleId;
use forebay_decode::Landmarks;

/// The most memory that it takes, however large the dataset is: about 500,000 pictures of 60 KB, or 70,000 of 600 KB.
const MAX_BYTES: u64 = 256 << 20;
/// It takes at most this fraction of `memory_budget`: one part in eight.
const PART_OF_BUDGET: u64 = 8;
/// Overhead of one entry of the map.
const ENTRY_BYTES: usize = 96;
/// `0` in this environment variable switches landmarks off, to measure what they gain and cost.
const VARIABLE: &str = "FOREBAY_LANDMARKS";
/// Each has its own mutex, so that threads seldom wait for each other.
const SEGMENTS: usize = 16;

/// The landmarks of samples. When it is full, no more are added.
#[derive(Debug)]
pub(crate) struct LandmarkCache {
    segments: [Mutex<HashMap<u64, Landmarks>>; SEGMENTS],
    is_on: bool,
    most: usize,
    used: AtomicUsize,
    pictures: AtomicU64,
}

impl LandmarkCache {
    pub(crate) fn new(memory_budget: u64) -> Self {
        let most = MAX_BYTES.min(memory_budget / PART_OF_BUDGET) as usize;
        Self { segments: Default::default(), is_on: true, most, used: AtomicUsize::new(0), pictures: AtomicU64::new(0) }
    }

    /// As the environment variable says: of size zero if landmarks are switched off.
    pub(crate) fn from_environment(memory_budget: u64) -> Self {
        let is_on = std::env::var_os(VARIABLE).is_none_or(|value| value != "0");
        Self { is_on, ..Self::new(if is_on { memory_budget } else { 0 }) }
    }

    /// Whether landmarks are used at all, those of an index included.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Counts pictures that were decoded with landmarks of an index, which are not kept here.
    pub(crate) fn count(&self, pictures: u64) {
        if pictures > 0 {
            self.pictures.fetch_add(pictures, Relaxed);
        }
    }

    /// Whether it has any capacity. If not, landmarks need not be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.most > 0
    }

    /// How many pictures were decoded with landmarks of an earlier epoch or of an index, and the bytes that those of earlier epochs
    /// take now.
    pub(crate) fn stats(&self) -> (u64, u64) {
        (self.pictures.load(Relaxed), self.used.load(Relaxed) as u64)
    }

    /// The landmarks of a sample; empty the first time.
    pub(crate) fn take(&self, sample: SampleId) -> Landmarks {
        let Some(known) = self.segment(sample).remove(&sample.0) else { return Landmarks::default() };
        self.used.fetch_sub(size_bytes(&known), Relaxed);
        known
    }

    /// Keeps the landmarks of a sample for the next epoch.
    pub(crate) fn keep(&self, sample: SampleId, known: Landmarks) {
        self.pictures.fetch_add(known.is_used().into(), Relaxed);
        let size = size_bytes(&known);
        // Several threads may find room at once: the limit may be exceeded by a few entries.
        if known.is_empty() || self.used.load(Relaxed) + size > self.most {
            return;
        }
        self.used.fetch_add(size, Relaxed);
        if let Some(other) = self.segment(sample).insert(sample.0, known) {
            self.used.fetch_sub(size_bytes(&other), Relaxed);
        }
    }

    fn segment(&self, sample: SampleId) -> MutexGuard<'_, HashMap<u64, Landmarks>> {
        self.segments[sample.0 as usize % SEGMENTS].lock().unwrap_or_else(PoisonError::into_inner)
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
        let (bytes, mut scratch) = (include_bytes!("../../../forebay-cli/assets/rings-0.jpg"), Scratch::default());
        scratch.lend(Landmarks::default());
        let pipeline = Pipeline::new(vec![Op::CenterCrop { size: 8.into() }]).unwrap();
        pipeline.run(bytes, &Rng::for_sample(0, Epoch(0), SampleId(0)), &mut scratch).unwrap();
        scratch.take_back().unwrap()
    }

    #[test]
    fn what_was_kept_is_there_once_and_in_bounds() {
        let size = size_bytes(&known());
        assert!(size > ENTRY_BYTES, "the picture has landmarks");
        let landmark_cache = LandmarkCache::new(2 * size as u64 * PART_OF_BUDGET);
        landmark_cache.keep(SampleId(9), Landmarks::default());
        for sample in [1, 17, 1, 5] {
            landmark_cache.keep(SampleId(sample), known());
        }
        let mut taken = |sample| !landmark_cache.take(SampleId(sample)).is_empty();
        assert_eq!([1, 17, 5, 9, 1].map(&mut taken), [true, true, false, false, false]);
        assert_eq!(landmark_cache.used.load(Relaxed), 0);
        landmark_cache.keep(SampleId(5), known());
        assert!(!landmark_cache.take(SampleId(5)).is_empty(), "there is room again");
        assert_eq!(landmark_cache.stats(), (0, 0), "none was decoded with what was known of it");
    }
}
