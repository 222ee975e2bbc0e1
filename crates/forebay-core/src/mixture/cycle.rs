//! The cycle of a mixture: which source each of its positions belongs to.
//!
//! Weights become whole shares of a cycle, and the cycle is filled like the time of one processor: the j-th sample of a source
//! with n of Q shares may come from position ⌊(j-1)Q/n⌋ on and has to come before ⌈jQ/n⌉. The earliest deadline goes first. A
//! source that gets n/Q of every position keeps all of these windows, so whole samples can, too, and then every prefix of the
//! cycle is less than one sample away from the exact proportion, for each source (decisions/0053).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::{Error, Result};

/// The longest cycle, and the length of one whose weights have no short one: a weight is off by at most this fraction.
const MAX_LENGTH: u64 = 1 << 20;
/// How near to whole numbers multiples of weights have to be. Decimal fractions are off by some 1e-16.
const TOLERANCE: f64 = 1e-9;

/// The order of sources that repeats for as long as the weights stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    /// The source of each position.
    sources: Arc<[u16]>,
    /// Where each source's samples are, source by source.
    places: Arc<[u32]>,
    shares: Arc<[Share]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    /// Positions of the cycle.
    count: u64,
    /// Those of the sources before.
    first: u64,
}

impl Cycle {
    pub(super) fn new(weights: &[f64]) -> Result<Self> {
        let counts = shares(weights)?;
        let length: u64 = counts.iter().sum();
        let mut first = 0;
        let shares: Arc<[Share]> = counts
            .iter()
            .map(|&count| {
                first += count;
                Share { count, first: first - count }
            })
            .collect();
        let sources = filled(&counts, length);
        let mut places = vec![0; length as usize];
        let mut next: Vec<_> = shares.iter().map(|share| share.first as usize).collect();
        for (position, &source) in (0..).zip(&sources) {
            let place = &mut next[usize::from(source)];
            places[*place] = position;
            *place += 1;
        }
        Ok(Self { sources: sources.into(), places: places.into(), shares })
    }

    pub(super) fn length(&self) -> u64 {
        self.sources.len() as u64
    }

    /// How many positions of a cycle each source has.
    pub(super) fn shares(&self) -> impl Iterator<Item = u64> + '_ {
        self.shares.iter().map(|share| share.count)
    }

    /// The source of a position.
    pub(super) fn source_at(&self, position: u128) -> usize {
        let length = u128::from(self.length());
        usize::from(self.sources[(position % length) as usize])
    }

    /// How many samples of a source come before a position.
    pub(super) fn count_before(&self, position: u128, source: usize) -> u128 {
        let (length, Share { count, first }) = (u128::from(self.length()), self.shares[source]);
        if count == 0 {
            return 0;
        }
        let (cycles, within) = (position / length, (position % length) as u64);
        // One of the two whole numbers around the exact proportion: the next sample says which.
        let least = (u128::from(within) * u128::from(count) / length) as u64;
        let has_next = u64::from(self.places[(first + least) as usize]) < within;
        cycles * u128::from(count) + u128::from(least + u64::from(has_next))
    }
}

/// The positions of a cycle, dealt to sources by the earliest deadline.
fn filled(shares: &[u64], length: u64) -> Vec<u16> {
    let release = |source: usize, sample: u64| sample * length / shares[source];
    let deadline = |source: usize, sample: u64| ((sample + 1) * length).div_ceil(shares[source]);
    let mut given = vec![0; shares.len()];
    let with_share = (0..shares.len()).filter(|&source| shares[source] > 0);
    let mut waiting: BinaryHeap<_> = with_share.map(|source| Reverse((0, source))).collect();
    let mut ready = BinaryHeap::new();
    let mut sources = Vec::with_capacity(length as usize);
    for position in 0..length {
        while let Some(&Reverse((_, source))) = waiting.peek().filter(|Reverse((from, _))| *from <= position) {
            waiting.pop();
            ready.push(Reverse((deadline(source, given[source]), source)));
        }
        let Reverse((_, source)) = ready.pop().expect("as many samples are released as there are positions");
        sources.push(source as u16);
        given[source] += 1;
        if given[source] < shares[source] {
            waiting.push(Reverse((release(source, given[source]), source)));
        }
    }
    sources
}

/// Weights as whole shares of the shortest cycle that has them exactly, or of the longest one.
fn shares(weights: &[f64]) -> Result<Vec<u64>> {
    if let Some(weight) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
        return Err(Error::config(format!("weights: expected finite numbers of at least 0, got {weight}")));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(Error::config("weights: expected at least one above 0, got none"));
    }
    // Of these the sum is finite whatever the weights are.
    let weights: Vec<_> = weights.iter().map(|weight| weight / largest).collect();
    let smallest = weights.iter().copied().filter(|weight| *weight > 0.0).fold(1.0, f64::min);
    let sum: f64 = weights.iter().sum();
    let multiples = (1..=100).map(|factor| f64::from(factor) / smallest);
    let decimals = (0..=6).map(|digits| 10f64.powi(digits) / sum);
    Ok(multiples.chain(decimals).find_map(|scale| whole(&weights, scale)).unwrap_or_else(|| rounded(&weights, sum)))
}

/// The weights times a factor, where those are whole numbers and not too many.
fn whole(weights: &[f64], scale: f64) -> Option<Vec<u64>> {
    let mut sum = 0.0;
    let mut counts = Vec::with_capacity(weights.len());
    for weight in weights {
        let exact = weight * scale;
        let count = exact.round();
        sum += count;
        if sum > MAX_LENGTH as f64 || (exact - count).abs() > TOLERANCE * exact.max(1.0) {
            return None;
        }
        if *weight > 0.0 && count == 0.0 {
            return None;
        }
        counts.push(count as u64);
    }
    let divisor = counts.iter().copied().fold(0, greatest_common_divisor);
    Some(counts.into_iter().map(|count| count / divisor.max(1)).collect())
}

/// Shares of the longest cycle, by largest remainders. A weight above 0 has one at least.
fn rounded(weights: &[f64], sum: f64) -> Vec<u64> {
    let exact = |source: usize| weights[source] / sum * MAX_LENGTH as f64;
    let mut counts: Vec<_> = (0..weights.len())
        .map(|source| if weights[source] > 0.0 { (exact(source) as u64).max(1) } else { 0 })
        .collect();
    loop {
        let taken: u64 = counts.iter().sum();
        let lack = |source: &usize| exact(*source) - counts[*source] as f64;
        let by_lack = |one: &usize, other: &usize| lack(one).total_cmp(&lack(other)).then(other.cmp(one));
        let candidates = (0..counts.len()).filter(|&source| counts[source] > 0);
        match taken.cmp(&MAX_LENGTH) {
            std::cmp::Ordering::Equal => return counts,
            std::cmp::Ordering::Less => {
                let Some(source) = candidates.max_by(by_lack) else { return counts };
                counts[source] += 1;
            }
            std::cmp::Ordering::Greater => {
                let Some(source) = candidates.filter(|&source| counts[source] > 1).min_by(by_lack) else {
                    return counts;
                };
                counts[source] -= 1;
            }
        }
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(weights: &[f64]) -> Vec<u16> {
        Cycle::new(weights).unwrap().sources.to_vec()
    }

    proptest! {
        #[test]
        fn every_prefix_is_within_one_sample_of_the_exact_proportion(counts in prop::collection::vec(0u32..60, 1..12)) {
            prop_assume!(counts.iter().any(|count| *count > 0));
            let weights: Vec<_> = counts.iter().map(|count| f64::from(*count)).collect();
            let cycle = Cycle::new(&weights).unwrap();
            let length = cycle.length();
            let shares: Vec<_> = cycle.shares().collect();
            let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
            for (count, share) in counts.iter().zip(&shares) {
                prop_assert_eq!(u64::from(*count) * length, share * total, "shares are exact");
            }
            let mut counted = vec![0u64; counts.len()];
            for position in 0..2 * length {
                for (source, share) in shares.iter().enumerate() {
                    // |counted - position * share / length| < 1, in whole numbers.
                    let difference = (counted[source] * length).abs_diff(position * share);
                    prop_assert!(difference < length, "{counts:?}: source {source} before {position}");
                    prop_assert_eq!(cycle.count_before(position.into(), source), u128::from(counted[source]));
                }
                counted[cycle.source_at(position.into())] += 1;
            }
        }

        #[test]
        fn any_weights_have_a_cycle(weights in prop::collection::vec(1e-9f64..1e9, 1..9)) {
            let shares = shares(&weights).unwrap();
            let (sum, length): (f64, u64) = (weights.iter().sum(), shares.iter().sum());
            prop_assert!(length <= MAX_LENGTH);
            for (weight, share) in weights.iter().zip(shares) {
                let off = (weight / sum - share as f64 / length as f64).abs();
                // Half a share by rounding, and what weights too small for a share took from others.
                prop_assert!(share > 0 && off <= 10.0 / MAX_LENGTH as f64, "{weights:?}: {off}");
            }
        }
    }

    #[test]
    fn weights_get_the_shortest_cycle_that_has_them_exactly() {
        assert_eq!(shares(&[0.7, 0.3]).unwrap(), [7, 3]);
        assert_eq!(shares(&[1.0 / 3.0, 2.0 / 3.0]).unwrap(), [1, 2]);
        assert_eq!(shares(&[0.1234, 0.8766]).unwrap(), [617, 4383]);
        assert_eq!(shares(&[2.0, 0.0, 2.0]).unwrap(), [1, 0, 1]);
        assert_eq!(shares(&[1e300, 1e300]).unwrap(), [1, 1]);
        assert_eq!(shares(&[1.0, 1e-12]).unwrap(), [MAX_LENGTH - 1, 1]);
        assert_eq!(shares(&[0.1f64.sqrt(), 0.2]).unwrap().iter().sum::<u64>(), MAX_LENGTH);
    }

    #[test]
    fn golden_cycles_never_change() {
        assert_eq!(order(&[0.7, 0.3]), [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(order(&[0.5, 0.25, 0.25]), [0, 1, 0, 2]);
        assert_eq!(order(&[1.0, 1.0, 1.0]), [0, 1, 2]);
    }

    #[test]
    fn wrong_weights_are_refused() {
        for (weights, message) in [
            (&[1.0, -0.5][..], "weights: expected finite numbers of at least 0, got -0.5"),
            (&[1.0, f64::NAN], "got NaN"),
            (&[f64::INFINITY], "got inf"),
            (&[0.0, 0.0], "weights: expected at least one above 0, got none"),
            (&[], "got none"),
        ] {
            let error = Cycle::new(weights).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
