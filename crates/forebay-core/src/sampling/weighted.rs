//! Draws by weights, with replacement or without.
//!
//! With replacement every position is a draw of its own, keyed by (seed, epoch, position), from an alias table: constant time
//! for any number of samples. Without, an epoch is a table that is made when it begins.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::hash::{hash_words, mix, scale};
use crate::{Epoch, Error, Result};

const WEIGHTED: u64 = 0x7765_6967_6874_6564; // "weighted"
const CHOSEN: u64 = 0x6368_6F73_656E; // "chosen"
/// Draws of a substitute before one is looked for in order: only weights that leave hardly another choice need them.
const MAX_DRAWS: u64 = 64;

/// Samples with weights.
///
/// Holds 16 bytes per sample; clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighted {
    table: Arc<[Alias]>,
    /// Weights as they were given, as bits.
    weights: Arc<[u64]>,
    samples: u64,
    has_replacement: bool,
    fingerprint: u64,
}

/// One of as many equally likely choices as there are samples: its own sample below a threshold, another one above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alias {
    threshold: u32,
    other: u32,
}

impl Weighted {
    /// An epoch of `samples` draws. Without replacement no sample is drawn twice in an epoch.
    pub fn new(weights: &[f64], samples: u64, has_replacement: bool) -> Result<Self> {
        if u32::try_from(weights.len()).is_err() {
            let got = weights.len();
            return Err(Error::config(format!("weights: expected at most {} samples, got {got}", u32::MAX)));
        }
        if let Some((place, weight)) = (0..).zip(weights).find(|(_, weight)| !weight.is_finite() || **weight < 0.0) {
            let message = format!("weights: expected finite numbers of at least 0, got {weight} for sample {place}");
            return Err(Error::config(message));
        }
        let positive = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        if positive == 0 {
            let got = weights.len();
            return Err(Error::config(format!("weights: expected at least one above 0, got none of {got}")));
        }
        if samples == 0 {
            return Err(Error::config("num_samples: expected at least 1, got 0"));
        }
        if !has_replacement && samples > positive {
            let message = format!("num_samples: expected at most {positive} without replacement, got {samples}");
            let hint = "as many samples have weights above 0: draw fewer, or with replacement";
            return Err(Error::config(message).with_hint(hint));
        }
        let table: Arc<[Alias]> = if has_replacement { table(weights).into() } else { Arc::default() };
        let weights: Arc<[u64]> = weights.iter().map(|weight| weight.to_bits()).collect();
        let fingerprint = hash_words(&[WEIGHTED, samples, has_replacement.into(), hash_words(&weights)]);
        Ok(Self { table, weights, samples, has_replacement, fingerprint })
    }

    /// Positions in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples that have a weight.
    pub fn sample_count(&self) -> u64 {
        self.weights.len() as u64
    }

    pub(crate) fn has_replacement(&self) -> bool {
        self.has_replacement
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The draw of a position, with replacement.
    pub(crate) fn drawn(&self, seed: u64, epoch: Epoch, position: u64) -> u64 {
        self.draw(hash_words(&[WEIGHTED, seed, epoch.0, position]))
    }

    fn draw(&self, key: u64) -> u64 {
        let place = scale(key, self.table.len() as u64);
        let Alias { threshold, other } = self.table[place as usize];
        // The upper bits have chosen the place.
        if ((mix(key) >> 32) as u32) < threshold { place } else { other.into() }
    }

    /// The samples of an epoch without replacement, in order: those whose clocks, which run at the speed of their weights,
    /// strike first. It is the distribution of draws one after the other.
    pub(crate) fn chosen(&self, seed: u64, epoch: Epoch) -> Vec<u32> {
        let key = hash_words(&[CHOSEN, seed, epoch.0]);
        let clock = |(sample, bits): (u32, &u64)| {
            let weight = f64::from_bits(*bits);
            let uniform = ((hash_words(&[key, sample.into()]) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            (weight > 0.0).then(|| (-logarithm(uniform) / weight, sample))
        };
        let mut clocks: Vec<_> = (0..).zip(&*self.weights).filter_map(clock).collect();
        let by_time = |one: &(f64, u32), other: &(f64, u32)| match one.0.total_cmp(&other.0) {
            Ordering::Equal => one.1.cmp(&other.1),
            different => different,
        };
        let count = self.samples as usize;
        if count < clocks.len() {
            clocks.select_nth_unstable_by(count, by_time);
            clocks.truncate(count);
        }
        clocks.sort_unstable_by(by_time);
        clocks.into_iter().map(|(_, sample)| sample).collect()
    }

    /// Another sample with a weight above 0, by the weights where there is replacement and by chance where not.
    pub(crate) fn other(&self, key: u64, original: u64) -> Option<u64> {
        let has_weight = |sample: &u64| f64::from_bits(self.weights[*sample as usize]) > 0.0;
        let draw = |attempt: u64| {
            let key = hash_words(&[key, attempt]);
            if self.has_replacement { self.draw(key) } else { scale(key, self.sample_count()) }
        };
        let is_other = |sample: &u64| *sample != original && has_weight(sample);
        let drawn = (0..MAX_DRAWS).map(draw).find(is_other);
        drawn.or_else(|| {
            let count = self.sample_count();
            (0..count).map(|step| (scale(key, count) + step) % count).find(is_other)
        })
    }
}

/// Vose's alias table.
fn table(weights: &[f64]) -> Vec<Alias> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let sum: f64 = weights.iter().map(|weight| weight / largest).sum();
    // What each has, where the mean is 1.
    let mut has: Vec<_> = weights.iter().map(|weight| weight / largest / sum * weights.len() as f64).collect();
    let (mut poor, mut rich): (Vec<u32>, Vec<u32>) =
        (0..weights.len() as u32).rev().partition(|place| has[*place as usize] < 1.0);
    let itself = |place| Alias { threshold: u32::MAX, other: place };
    let mut table: Vec<_> = (0..weights.len() as u32).map(itself).collect();
    // Rounding leaves some without a partner: they are their own, unless they must not be drawn at all.
    let heaviest = (0..weights.len()).max_by(|one, other| has[*one].total_cmp(&has[*other])).unwrap_or(0) as u32;
    while let Some(place) = poor.pop() {
        let own = has[place as usize];
        let Some(&giver) = rich.last() else {
            if weights[place as usize] == 0.0 {
                table[place as usize] = Alias { threshold: 0, other: heaviest };
            }
            continue;
        };
        table[place as usize] = Alias { threshold: (own * f64::from(u32::MAX)) as u32, other: giver };
        let left = (has[giver as usize] + own) - 1.0;
        has[giver as usize] = left;
        if left < 1.0 {
            rich.pop();
            poor.push(giver);
        }
    }
    table
}

/// The natural logarithm of a number above 0, by arithmetic that gives the same bits on every machine: those of system
/// libraries differ in the last one, and all ranks have to agree.
fn logarithm(x: f64) -> f64 {
    // x = mantissa · 2^exponent with a mantissa from √½ to √2; no number here is subnormal.
    let bits = x.to_bits();
    let (mut mantissa, mut exponent) =
        (f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52)), (bits >> 52) as i64 - 1023);
    if mantissa > std::f64::consts::SQRT_2 {
        (mantissa, exponent) = (mantissa / 2.0, exponent + 1);
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is at most 0.172, so 20 terms are more than there are bits.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let squared = z * z;
    let series = (0..20).rev().fold(0.0, |sum, term| sum * squared + 1.0 / f64::from(2 * term + 1));
    2.0 * z * series + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn draws_follow_the_weights() {
        let weights = [1.0, 0.0, 3.0, 6.0, 0.5];
        let weighted = Weighted::new(&weights, 100, true).unwrap();
        let (draws, sum) = (200_000, 10.5);
        let mut counts = [0u64; 5];
        for position in 0..draws {
            counts[weighted.drawn(3, Epoch(1), position) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        let chi_squared: f64 = (counts.iter().zip(weights).filter(|(_, weight)| *weight > 0.0))
            .map(|(count, weight)| {
                let expected = draws as f64 * weight / sum;
                (*count as f64 - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_squared < 21.0, "chi-squared {chi_squared} of 3 degrees of freedom"); // p < 1e-4 beyond
    }

    #[test]
    fn without_replacement_no_sample_comes_twice_and_heavy_ones_come_early() {
        let weights: Vec<_> = (0..100).map(|place| if place < 10 { 0.0 } else { f64::from(place) }).collect();
        let weighted = Weighted::new(&weights, 50, false).unwrap();
        let mut firsts = 0;
        for epoch in 0..400 {
            let mut chosen = weighted.chosen(1, Epoch(epoch));
            assert_eq!(chosen.len(), 50);
            firsts += u32::from(chosen[0] >= 55);
            chosen.sort_unstable();
            assert!(chosen[0] >= 10 && chosen.windows(2).all(|pair| pair[0] < pair[1]));
        }
        // 70.7 % of the weight: 283 of 400 expected, give or take 9.
        assert!((246..320).contains(&firsts), "{firsts}");
    }

    proptest! {
        #[test]
        fn a_sample_without_weight_is_never_drawn_and_never_a_substitute(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300f64..1e300, 0.0f64..1.0], 1..40),
            has_replacement: bool,
            seed: u64,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let weighted = Weighted::new(&weights, 1, has_replacement).unwrap();
            let positive = weights.iter().filter(|weight| **weight > 0.0).count();
            for position in 0..100 {
                if has_replacement {
                    let drawn = weighted.drawn(seed, Epoch(0), position);
                    prop_assert!(weights[drawn as usize] > 0.0, "{drawn}");
                }
                let original = position % weights.len() as u64;
                match weighted.other(hash_words(&[seed, position]), original) {
                    Some(other) => prop_assert!(other != original && weights[other as usize] > 0.0),
                    None => prop_assert!(positive == 0 || positive == 1 && weights[original as usize] > 0.0),
                }
            }
        }

        #[test]
        fn the_logarithm_is_that_of_the_library_but_for_its_last_bits(x in 1e-16f64..1.0) {
            prop_assert!((logarithm(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs().max(1e-3));
        }
    }

    #[test]
    fn golden_draws_never_change() {
        let weights = [1.0, 2.0, 3.0, 4.0, 0.0, 5.0];
        let weighted = Weighted::new(&weights, 12, true).unwrap();
        let drawn: Vec<_> = (0..12).map(|position| weighted.drawn(1, Epoch(2), position)).collect();
        assert_eq!(drawn, [2, 3, 3, 5, 1, 0, 2, 5, 3, 5, 5, 2]);
        assert_eq!(weighted.fingerprint(), 7_964_506_956_370_313_389);
        assert_eq!(Weighted::new(&weights, 5, false).unwrap().chosen(1, Epoch(2)), [2, 5, 3, 1, 0]);
    }

    #[test]
    fn wrong_weights_are_refused() {
        for (weights, samples, has_replacement, message) in [
            (&[1.0, -1.0][..], 1, true, "weights: expected finite numbers of at least 0, got -1 for sample 1"),
            (&[f64::NAN], 1, true, "got NaN for sample 0"),
            (&[0.0, 0.0], 1, true, "weights: expected at least one above 0, got none of 2"),
            (&[], 1, true, "got none of 0"),
            (&[1.0], 0, true, "num_samples: expected at least 1"),
            (&[1.0, 0.0, 2.0], 3, false, "num_samples: expected at most 2 without replacement, got 3"),
        ] {
            let error = Weighted::new(weights, samples, has_replacement).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
