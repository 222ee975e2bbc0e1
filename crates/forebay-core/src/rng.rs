//! Randomness of one sample: a counter-based stream keyed by (seed, epoch, sample, purpose).
//!
//! No thread, rank, order or earlier draw influences it, so augmentation is identical for any thread count,
//! world size and resume. Statistical quality is that of SplitMix64; it is not for secrets.

use crate::hash::{hash_words, mix, scale};
use crate::{Epoch, SampleId};

/// A stream of random numbers that depends on its key alone.
#[derive(Clone, Debug)]
pub struct Rng {
    key: u64,
    counter: u64,
}

impl Rng {
    /// The stream of one sample in one epoch.
    pub fn for_sample(seed: u64, epoch: Epoch, sample: SampleId) -> Self {
        Self { key: hash_words(&[seed, epoch.0, sample.0]), counter: 0 }
    }

    /// An independent stream for one purpose (one transform), so that a draw added here shifts nothing there.
    pub fn fork(&self, purpose: u64) -> Self {
        Self { key: hash_words(&[self.key, purpose]), counter: 0 }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        mix(self.key ^ mix(self.counter))
    }

    /// Uniform in `[0, 1)`, 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` when the range is empty.
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform integer in `0..bound`; 0 when `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.next_u64(), bound)
    }

    /// True with the given probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_every_part_of_the_key() {
        let draw = |seed, epoch, sample, purpose| {
            Rng::for_sample(seed, Epoch(epoch), SampleId(sample)).fork(purpose).next_u64()
        };
        let base = draw(1, 2, 3, 4);
        assert_eq!(base, draw(1, 2, 3, 4));
        for other in [draw(9, 2, 3, 4), draw(1, 9, 3, 4), draw(1, 2, 9, 4), draw(1, 2, 3, 9)] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn uniform_and_normal_have_the_right_moments() {
        let mut rng = Rng::for_sample(7, Epoch(0), SampleId(0));
        let n = 100_000;
        let (mut sum, mut normal_sum, mut normal_squares) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            sum += rng.uniform(2.0, 4.0);
            let x = rng.normal();
            normal_sum += x;
            normal_squares += x * x;
        }
        assert!((sum / n as f64 - 3.0).abs() < 0.01);
        assert!((normal_sum / n as f64).abs() < 0.02);
        assert!((normal_squares / n as f64 - 1.0).abs() < 0.03);
    }
}
