//! The decoded cache: pictures as they are before the first random choice of their transforms, kept from epoch to epoch
//! (`cache="decoded"`).
//!
//! Nothing is evicted: an epoch needs every picture once, in another order each time, so what is removed for one is missed
//! for another. Pictures that fit stay; the others are read and decoded as without a cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::SampleId;
use forebay_decode::Image;

/// Overhead of one entry of the map.
const ENTRY_BYTES: u64 = 128;
/// Each has its own mutex, so that threads seldom wait for each other.
const SEGMENTS: usize = 16;

/// A picture before the first random choice.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) image: Image,
    /// How long its decoding took.
    pub(crate) decode: Duration,
    /// Bytes that were read for it.
    pub(crate) read_bytes: u64,
}

impl Decoded {
    fn charge(&self) -> u64 {
        self.image.pixels.capacity() as u64 + ENTRY_BYTES
    }
}

/// What the decoded cache holds, and what it has saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodedCacheStats {
    /// Pictures that it holds.
    pub samples: u64,
    /// Memory that they take.
    pub bytes: u64,
    /// The most it may take.
    pub limit_bytes: u64,
    /// Samples that were made from a kept picture, and so neither read nor decoded.
    pub hits: u64,
    /// Bytes that were not read because of them.
    pub saved_read_bytes: u64,
    /// Processor time that decoding them had taken the first time.
    pub saved_decode: Duration,
}

/// Pictures by sample.
#[derive(Debug)]
pub(crate) struct DecodedCache {
    segments: [Mutex<HashMap<u64, Arc<Decoded>>>; SEGMENTS],
    limit_bytes: u64,
    is_full: AtomicBool,
    samples: AtomicU64,
    bytes: AtomicU64,
    hits: AtomicU64,
    saved_read_bytes: AtomicU64,
    saved_decode_ns: AtomicU64,
}

impl DecodedCache {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            segments: Default::default(),
            limit_bytes,
            is_full: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            saved_read_bytes: AtomicU64::new(0),
            saved_decode_ns: AtomicU64::new(0),
        }
    }

    /// Whether a picture may still find room. Once one has not, whole pictures are no longer decoded in order to keep them.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full.load(Relaxed)
    }

    /// The picture of a sample.
    pub(crate) fn get(&self, sample: SampleId) -> Option<Arc<Decoded>> {
        let decoded = self.segment(sample).get(&sample.0).map(Arc::clone)?;
        self.hits.fetch_add(1, Relaxed);
        self.saved_read_bytes.fetch_add(decoded.read_bytes, Relaxed);
        self.saved_decode_ns.fetch_add(decoded.decode.as_nanos() as u64, Relaxed);
        Some(decoded)
    }

    /// Keeps a picture, if there is room.
    pub(crate) fn keep(&self, sample: SampleId, decoded: &Arc<Decoded>) {
        let charge = decoded.charge();
        let fits = |used: u64| used.checked_add(charge).filter(|used| *used <= self.limit_bytes);
        if self.bytes.fetch_update(Relaxed, Relaxed, fits).is_err() {
            self.is_full.store(true, Relaxed);
            return;
        }
        match self.segment(sample).insert(sample.0, Arc::clone(decoded)) {
            None => self.samples.fetch_add(1, Relaxed),
            // Two threads have decoded the same sample.
            Some(other) => self.bytes.fetch_sub(other.charge(), Relaxed),
        };
    }

    pub(crate) fn stats(&self) -> DecodedCacheStats {
        DecodedCacheStats {
            samples: self.samples.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            limit_bytes: self.limit_bytes,
            hits: self.hits.load(Relaxed),
            saved_read_bytes: self.saved_read_bytes.load(Relaxed),
            saved_decode: Duration::from_nanos(self.saved_decode_ns.load(Relaxed)),
        }
    }

    fn segment(&self, sample: SampleId) -> MutexGuard<'_, HashMap<u64, Arc<Decoded>>> {
        self.segments[sample.0 as usize % SEGMENTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_and_nothing_is_evicted() {
        let picture = |size: usize| {
            let image = Image { width: size as u32, height: 1, channels: 1, pixels: vec![1; size] };
            Arc::new(Decoded { image, decode: Duration::from_millis(2), read_bytes: 10 })
        };
        let cache = DecodedCache::new(2 * (100 + ENTRY_BYTES) + 50);
        cache.keep(SampleId(1), &picture(100));
        cache.keep(SampleId(1), &picture(100));
        assert!(cache.has_room());
        cache.keep(SampleId(17), &picture(100));
        cache.keep(SampleId(2), &picture(100));
        assert!(!cache.has_room());
        assert_eq!([1, 17, 2].map(|sample| cache.get(SampleId(sample)).is_some()), [true, true, false]);
        let DecodedCacheStats { samples, bytes, hits, saved_read_bytes, saved_decode, .. } = cache.stats();
        assert_eq!((samples, bytes, hits), (2, 2 * (100 + ENTRY_BYTES), 2));
        assert_eq!((saved_read_bytes, saved_decode), (20, Duration::from_millis(4)));
    }
}
