//! A keyed permutation of `0..n` with O(1) access in both memory and time.
//!
//! A balanced Feistel network over the next even power of two, walked until it lands inside `0..n`
//! (format-preserving encryption by cycle walking). Any rank can ask for any position without drawing the
//! ones before it: shuffle, resume, `explain` and elastic world sizes all follow from that.

use crate::Epoch;
use crate::hash::{hash_words, mix};

/// Rounds of the network. Four make a pseudorandom permutation in theory; eight leave room for the
/// short halves of small datasets (the uniformity test below fails with two).
const ROUNDS: usize = 8;

/// The smallest domain is 2⁸, so that a half has at least 16 values and tiny datasets shuffle well too.
const MIN_BITS: u32 = 8;

/// The permutation of one epoch.
#[derive(Clone, Debug)]
pub struct Shuffle {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Shuffle {
    /// The permutation of `0..len` for this seed and epoch.
    pub fn new(len: u64, seed: u64, epoch: Epoch) -> Self {
        let mut keys = [0; ROUNDS];
        for (round, key) in keys.iter_mut().enumerate() {
            *key = hash_words(&[seed, epoch.0, round as u64]);
        }
        Self { len, half_bits: half_bits(len), keys }
    }

    /// One of many permutations under the same keys, of another length: cheaper than [`Shuffle::new`], which hashes
    /// every key.
    #[inline]
    pub(crate) fn tweaked(&self, len: u64, tweak: u64) -> Self {
        let tweak = hash_words(&[tweak]);
        Self { len, half_bits: half_bits(len), keys: self.keys.map(|key| key ^ tweak) }
    }

    /// The element at `position`. A bijection on `0..len`.
    ///
    /// # Panics
    /// If `position` is not below `len`: the plan never asks for that.
    #[inline]
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} is outside 0..{}", self.len);
        let mut x = position;
        loop {
            x = self.encrypt(x);
            if x < self.len {
                return x;
            }
        }
    }

    #[inline]
    fn encrypt(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// Half the bits of the network's domain.
#[inline]
fn half_bits(len: u64) -> u32 {
    (u64::BITS - len.saturating_sub(1).leading_zeros()).max(MIN_BITS).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_bijection(len in 1u64..3000, seed: u64, epoch: u64) {
            let shuffle = Shuffle::new(len, seed, Epoch(epoch));
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let value = shuffle.at(position) as usize;
                prop_assert!(!seen[value], "{value} twice");
                seen[value] = true;
            }
        }
    }

    #[test]
    fn is_uniform_over_seeds() {
        // Where does element 0 of 0..10 go? 100 cells of 1,000 expected: chi-squared, 81 degrees of freedom.
        let (len, draws) = (10u64, 10_000u64);
        let mut counts = vec![0u64; (len * len) as usize];
        for seed in 0..draws {
            let shuffle = Shuffle::new(len, seed, Epoch(0));
            for position in 0..len {
                counts[(position * len + shuffle.at(position)) as usize] += 1;
            }
        }
        let expected = (draws / len) as f64;
        let chi2: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        assert!(chi2 < 150.0, "chi-squared {chi2} of 81 degrees of freedom"); // p < 1e-5 beyond
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let shuffle = Shuffle::new(100_000, 3, Epoch(1));
        let close = (1..100_000).filter(|&p| shuffle.at(p).abs_diff(shuffle.at(p - 1)) < 100).count();
        assert!(close < 400, "{close} of 99,999 neighbours stayed within 100 (200 expected by chance)");
    }

    #[test]
    fn golden_order_never_changes() {
        let order = |len, seed, epoch| {
            let shuffle = Shuffle::new(len, seed, Epoch(epoch));
            (0..len).map(|p| shuffle.at(p)).collect::<Vec<_>>()
        };
        assert_eq!(order(8, 0, 0), GOLDEN_8_0_0);
        assert_ne!(order(8, 0, 1), GOLDEN_8_0_0);
        assert_ne!(order(8, 1, 0), GOLDEN_8_0_0);
    }

    const GOLDEN_8_0_0: [u64; 8] = [0, 2, 5, 7, 4, 1, 6, 3];

    #[test]
    fn handles_the_largest_datasets() {
        let shuffle = Shuffle::new(u64::MAX >> 2, 0, Epoch(0));
        assert!(shuffle.at(12345) < u64::MAX >> 2);
        assert_eq!(Shuffle::new(1, 5, Epoch(5)).at(0), 0);
    }
}
