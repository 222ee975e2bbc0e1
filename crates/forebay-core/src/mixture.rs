//! Mixtures: several sources in given proportions, which may change during training.
//!
//! Positions are counted over all epochs. Which source a position belongs to, and how many samples of that source come before
//! it, is arithmetic; so is the sample, by a permutation of each source per pass over it. A small source repeats, a large one
//! goes on in the next epoch where the last one left it, and nothing of that is kept anywhere (decisions/0053).

mod cycle;

use std::sync::Arc;

use crate::hash::hash_words;
use crate::mixture::cycle::Cycle;
use crate::{Blocks, Epoch, Error, Result, Shuffle};

const MIXTURE: u64 = 0x006D_6978_7475_7265; // "mixture"
/// More are a typing error. Cycles number them with 16 bits.
const MAX_SOURCES: usize = 1024;

/// Sources and their weights.
///
/// ```
/// use forebay_core::Mixture;
///
/// // Two sources of 100 and 20 samples, 7 to 3; equal parts from the 5000th sample of training on.
/// let mixture = Mixture::new(&[100, 20], 1000, &[(0, vec![0.7, 0.3]), (5000, vec![1.0, 1.0])])?;
/// assert_eq!(mixture.counts_before(1000), [700, 300]);
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture {
    /// The samples of each source, one source after the other.
    sources: Blocks,
    /// Positions in an epoch.
    samples: u64,
    phases: Arc<[Phase]>,
}

/// A stretch of training with the same weights.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Phase {
    /// Its first position since the start of training.
    start: u64,
    cycle: Cycle,
    /// Samples of each source before it.
    before: Arc<[u128]>,
}

impl Mixture {
    /// A mixture of sources of these lengths. `samples` is the length of an epoch; `weights` are those from some position on,
    /// counted since the start of training, over all ranks. The first begins at 0.
    pub fn new(lengths: &[u64], samples: u64, weights: &[(u64, Vec<f64>)]) -> Result<Self> {
        let count = lengths.len();
        if !(1..=MAX_SOURCES).contains(&count) {
            return Err(Error::config(format!("mix: expected 1 to {MAX_SOURCES} datasets, got {count}")));
        }
        if samples == 0 {
            return Err(Error::config("samples: expected at least 1, got 0"));
        }
        if weights.first().is_none_or(|(start, _)| *start != 0) {
            return Err(Error::config("weights: expected the first to begin at sample 0"));
        }
        if let Some(pair) = weights.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            let (one, other) = (pair[0].0, pair[1].0);
            return Err(Error::config(format!(
                "weights: expected growing numbers of samples, got {one} before {other}"
            )));
        }
        let mut phases: Vec<Phase> = Vec::with_capacity(weights.len());
        for (start, weights) in weights {
            if weights.len() != count {
                let got = weights.len();
                return Err(Error::config(format!("weights: expected {count}, one for each dataset, got {got}")));
            }
            let before = match phases.last() {
                None => vec![0; count],
                Some(last) => (0..count).map(|source| last.count_before((*start).into(), source)).collect(),
            };
            phases.push(Phase { start: *start, cycle: Cycle::new(weights)?, before: before.into() });
        }
        for (source, length) in lengths.iter().enumerate() {
            let is_drawn = phases.iter().any(|phase| phase.cycle.shares().nth(source).is_some_and(|share| share > 0));
            if !is_drawn {
                return Err(Error::config(format!("weights: expected one above 0 for dataset {source}, got only 0")));
            }
            if *length == 0 {
                return Err(Error::config(format!(
                    "mix: expected datasets with samples, got none in dataset {source}"
                )));
            }
        }
        Ok(Self { sources: Blocks::new(lengths.iter().copied())?, samples, phases: phases.into() })
    }

    /// Samples in all sources.
    pub fn sample_count(&self) -> u64 {
        self.sources.sample_count()
    }

    /// Positions in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many samples of each source come before a position that is counted since the start of training.
    pub fn counts_before(&self, position: u64) -> Vec<u128> {
        let phase = self.phase_of(position.into());
        (0..self.sources.block_count() as usize).map(|source| phase.count_before(position.into(), source)).collect()
    }

    /// The samples of the source that a sample is one of: the first, and how many.
    pub(crate) fn source_of(&self, sample: u64) -> (u64, u64) {
        let (source, place) = self.sources.locate(sample);
        (sample - place, self.length_of(source as usize))
    }

    /// What the order depends on beside the seed.
    pub(crate) fn fingerprint(&self) -> u64 {
        let phases = self.phases.iter().flat_map(|phase| std::iter::once(phase.start).chain(phase.cycle.shares()));
        let words: Vec<_> = [MIXTURE, self.samples, self.sources.fingerprint()].into_iter().chain(phases).collect();
        hash_words(&words)
    }

    pub(crate) fn order(&self, seed: u64, epoch: Epoch, is_shuffled: bool) -> MixtureOrder {
        let shuffle = |source: u64| {
            let key = hash_words(&[MIXTURE, seed, source]);
            Shuffle::new(self.length_of(source as usize), key, Epoch(0))
        };
        let shuffles =
            if is_shuffled { (0..self.sources.block_count()).map(shuffle).collect() } else { Arc::default() };
        let start = u128::from(epoch.0) * u128::from(self.samples);
        MixtureOrder { mixture: self.clone(), start, shuffles }
    }

    fn length_of(&self, source: usize) -> u64 {
        let (first, end) = self.sources.range(source);
        end - first
    }

    fn phase_of(&self, position: u128) -> &Phase {
        let after = self.phases.partition_point(|phase| u128::from(phase.start) <= position);
        &self.phases[after - 1]
    }
}

impl Phase {
    /// Samples of a source before a position of this phase, or its end, since the start of training.
    fn count_before(&self, position: u128, source: usize) -> u128 {
        self.before[source] + self.cycle.count_before(position - u128::from(self.start), source)
    }
}

/// The order of one epoch of a mixture.
#[derive(Clone, Debug)]
pub(crate) struct MixtureOrder {
    mixture: Mixture,
    /// Positions before this epoch.
    start: u128,
    /// The permutation of each source, which a pass over it tweaks; none where each source is in its own order.
    shuffles: Arc<[Shuffle]>,
}

impl MixtureOrder {
    /// The sample at a position of the epoch.
    pub(crate) fn at(&self, position: u64) -> u64 {
        let position = self.start + u128::from(position);
        let phase = self.mixture.phase_of(position);
        let source = phase.cycle.source_at(position - u128::from(phase.start));
        let drawn = phase.count_before(position, source);
        let (first, end) = self.mixture.sources.range(source);
        let length = end - first;
        let (pass, place) = ((drawn / u128::from(length)) as u64, (drawn % u128::from(length)) as u64);
        first + self.shuffles.get(source).map_or(place, |shuffle| shuffle.tweaked(length, pass).at(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mixture(lengths: &[u64], samples: u64, weights: &[(u64, &[f64])]) -> Mixture {
        let weights: Vec<_> = weights.iter().map(|(start, weights)| (*start, weights.to_vec())).collect();
        Mixture::new(lengths, samples, &weights).unwrap()
    }

    /// The samples of some epochs, one after the other.
    fn epochs(mixture: &Mixture, count: u64, is_shuffled: bool) -> Vec<u64> {
        let epoch = |epoch| {
            let order = mixture.order(5, Epoch(epoch), is_shuffled);
            (0..mixture.samples()).map(move |position| order.at(position)).collect::<Vec<_>>()
        };
        (0..count).flat_map(epoch).collect()
    }

    proptest! {
        #[test]
        fn a_source_gives_each_sample_once_before_any_again(
            lengths in prop::collection::vec(1u64..30, 1..5),
            samples in 1u64..80,
            change in 1u64..200,
            first in prop::collection::vec(1u32..10, 5),
            second in prop::collection::vec(1u32..10, 5),
        ) {
            let weights = |given: &[u32]| given[..lengths.len()].iter().map(|weight| f64::from(*weight)).collect();
            let weights = [(0, weights(&first)), (change, weights(&second))];
            let mixture = Mixture::new(&lengths, samples, &weights).unwrap();
            let order = epochs(&mixture, 400 / samples + 1, true);
            let mut first = 0;
            for (source, length) in lengths.iter().enumerate() {
                let own: Vec<_> = order.iter().filter(|sample| (first..first + length).contains(*sample)).collect();
                for pass in own.chunks_exact(*length as usize) {
                    let mut pass = pass.to_vec();
                    pass.sort_unstable();
                    prop_assert!(pass.windows(2).all(|pair| pair[0] < pair[1]), "source {source}: {pass:?}");
                }
                // Counting agrees with arithmetic.
                let counted = order[..order.len() / 2].iter().filter(|sample| (first..first + length).contains(*sample));
                let position = (order.len() / 2) as u64;
                prop_assert_eq!(counted.count() as u128, mixture.counts_before(position)[source]);
                first += length;
            }
        }
    }

    #[test]
    fn weights_change_at_their_sample_and_sources_go_on() {
        let mixture = mixture(&[10, 4], 16, &[(0, &[1.0, 1.0]), (24, &[0.0, 1.0]), (30, &[3.0, 1.0])]);
        let order = epochs(&mixture, 3, false);
        // Two epochs of equal parts up to 24; then six of the second source alone; then three to one.
        assert_eq!(order[..8], [0, 10, 1, 11, 2, 12, 3, 13]);
        assert_eq!(order[22..30], [1, 13, 10, 11, 12, 13, 10, 11]);
        assert_eq!(order[30..38], [2, 3, 4, 12, 5, 6, 7, 13]);
        assert_eq!(mixture.counts_before(24), [12, 12]);
        assert_eq!(mixture.counts_before(30), [12, 18]);
        assert_eq!(mixture.counts_before(34), [15, 19]);
    }

    #[test]
    fn golden_orders_never_change() {
        let mixture = mixture(&[5, 3], 10, &[(0, &[0.7, 0.3])]);
        assert_eq!(epochs(&mixture, 2, true), GOLDEN);
        assert_eq!(mixture.fingerprint(), 5_878_088_893_819_708_651);
    }

    const GOLDEN: [u64; 20] = [3, 1, 7, 0, 2, 5, 4, 1, 0, 6, 3, 4, 7, 2, 3, 5, 1, 4, 0, 6];

    #[test]
    fn positions_beyond_any_run_are_computed() {
        let mixture = mixture(&[1 << 50, 3], 1 << 60, &[(0, &[0.9, 0.1])]);
        let order = mixture.order(0, Epoch(1 << 60), true);
        assert!(order.at((1 << 60) - 1) < mixture.sample_count());
    }

    #[test]
    fn what_cannot_be_mixed_is_refused() {
        let refused = |lengths: &[u64], samples, weights: &[(u64, Vec<f64>)]| {
            Mixture::new(lengths, samples, weights).unwrap_err().to_string()
        };
        let equal = || vec![1.0, 1.0];
        assert!(refused(&[], 1, &[(0, vec![])]).contains("mix: expected 1 to 1024 datasets, got 0"));
        assert!(refused(&[1, 1], 0, &[(0, equal())]).contains("samples: expected at least 1"));
        assert!(refused(&[1, 1], 1, &[]).contains("expected the first to begin at sample 0"));
        assert!(refused(&[1, 1], 1, &[(3, equal())]).contains("expected the first to begin at sample 0"));
        let twice = refused(&[1, 1], 1, &[(0, equal()), (9, equal()), (9, equal())]);
        assert!(twice.contains("expected growing numbers of samples, got 9 before 9"), "{twice}");
        assert!(refused(&[1, 1], 1, &[(0, vec![1.0])]).contains("weights: expected 2, one for each dataset, got 1"));
        assert!(refused(&[1, 1], 1, &[(0, vec![1.0, 0.0])]).contains("expected one above 0 for dataset 1"));
        assert!(refused(&[1, 0], 1, &[(0, equal())]).contains("got none in dataset 1"));
    }
}
