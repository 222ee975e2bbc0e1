//! Classes in equal parts.
//!
//! An epoch is rounds in which every class comes once, in another order each time, so that at any position no class is more
//! than one sample ahead of another. Each class gives its samples by a permutation of its own, all of them once before any
//! comes again, and goes on in the next epoch where it stopped.

use std::sync::Arc;

use crate::hash::hash_words;
use crate::sampling::other_of;
use crate::{Blocks, Epoch, Error, Result, Shuffle};

const ROUNDS: u64 = 0x726F_756E_6473; // "rounds"
const CLASS: u64 = 0x0063_6C61_7373; // "class"

/// Samples with classes.
///
/// Holds 8 bytes per sample; clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balanced {
    /// The samples of each class, one class after the other.
    members: Arc<[u32]>,
    classes: Blocks,
    /// The class of each sample.
    class_of: Arc<[u32]>,
    samples: u64,
}

impl Balanced {
    /// An epoch of `samples` positions over samples of these classes, which are numbers from 0 on. Classes without samples are
    /// left out.
    pub fn new(class_of: &[u32], samples: u64) -> Result<Self> {
        if class_of.is_empty() || u32::try_from(class_of.len()).is_err() {
            let got = class_of.len();
            return Err(Error::config(format!("labels: expected 1 to {} samples, got {got}", u32::MAX)));
        }
        if samples == 0 {
            return Err(Error::config("num_samples: expected at least 1, got 0"));
        }
        let mut members: Vec<_> = (0..class_of.len() as u32).collect();
        members.sort_by_key(|sample| class_of[*sample as usize]);
        let lengths = members.chunk_by(|one, other| class_of[*one as usize] == class_of[*other as usize]);
        let classes = Blocks::new(lengths.map(|class| class.len() as u64))?;
        let mut numbered = vec![0; class_of.len()];
        for (place, sample) in (0..).zip(&members) {
            numbered[*sample as usize] = classes.locate(place).0 as u32;
        }
        Ok(Self { members: members.into(), classes, class_of: numbered.into(), samples })
    }

    /// Positions in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples that have a class.
    pub fn sample_count(&self) -> u64 {
        self.members.len() as u64
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        let members: Vec<_> = self.members.iter().map(|sample| u64::from(*sample)).collect();
        hash_words(&[CLASS, self.samples, self.classes.fingerprint(), hash_words(&members)])
    }

    pub(crate) fn order(&self, seed: u64, epoch: Epoch) -> BalancedOrder {
        let count = self.classes.block_count();
        let rounds = self.samples.div_ceil(count);
        BalancedOrder {
            balanced: self.clone(),
            first_round: epoch.0.wrapping_mul(rounds),
            rounds: Shuffle::new(count, hash_words(&[ROUNDS, seed]), Epoch(0)),
            inside: Shuffle::new(self.sample_count(), hash_words(&[CLASS, seed]), Epoch(0)),
        }
    }

    /// Another sample of the same class.
    pub(crate) fn other(&self, key: u64, original: u64) -> Option<u64> {
        let (first, end) = self.classes.range(self.class_of[original as usize] as usize);
        let class = &self.members[first as usize..end as usize];
        let place = class.binary_search(&(original as u32)).ok()? as u64;
        other_of(key, end - first, place).map(|place| class[place as usize].into())
    }
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub(crate) struct BalancedOrder {
    balanced: Balanced,
    /// Rounds before this epoch.
    first_round: u64,
    /// Its key, with a round as tweak, orders the classes of that round.
    rounds: Shuffle,
    /// Its key, with a class and a pass over it as tweak, orders the samples of that class.
    inside: Shuffle,
}

impl BalancedOrder {
    pub(crate) fn at(&self, position: u64) -> u64 {
        let count = self.balanced.classes.block_count();
        let round = self.first_round.wrapping_add(position / count);
        let class = self.rounds.tweaked(count, round).at(position % count);
        let (first, end) = self.balanced.classes.range(class as usize);
        let length = end - first;
        // Each round takes one sample of each class.
        let tweak = hash_words(&[class, round / length]);
        let place = self.inside.tweaked(length, tweak).at(round % length);
        self.balanced.members[(first + place) as usize].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn epoch(balanced: &Balanced, seed: u64, epoch: u64) -> Vec<u64> {
        let order = balanced.order(seed, Epoch(epoch));
        (0..balanced.samples()).map(|position| order.at(position)).collect()
    }

    proptest! {
        #[test]
        fn no_class_is_more_than_one_sample_ahead(class_of in prop::collection::vec(0u32..6, 1..60), samples in 1u64..90) {
            let balanced = Balanced::new(&class_of, samples).unwrap();
            let classes: std::collections::BTreeSet<_> = class_of.iter().copied().collect();
            for number in 0..3 {
                let mut counts: BTreeMap<_, _> = classes.iter().map(|class| (*class, 0u64)).collect();
                for sample in epoch(&balanced, 3, number) {
                    *counts.get_mut(&class_of[sample as usize]).unwrap() += 1;
                    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                    prop_assert!(most - least <= 1, "{counts:?}");
                }
            }
        }

        #[test]
        fn a_class_gives_each_sample_once_before_any_again(class_of in prop::collection::vec(0u32..4, 1..40)) {
            let count = class_of.iter().collect::<std::collections::BTreeSet<_>>().len() as u64;
            let balanced = Balanced::new(&class_of, 7 * count).unwrap();
            let order: Vec<_> = (0..9).flat_map(|number| epoch(&balanced, 1, number)).collect();
            for class in 0..4 {
                let length = class_of.iter().filter(|own| **own == class).count();
                let own: Vec<_> = order.iter().filter(|sample| class_of[**sample as usize] == class).collect();
                for pass in own.chunks_exact(length.max(1)) {
                    let distinct: std::collections::BTreeSet<_> = pass.iter().collect();
                    prop_assert_eq!(distinct.len(), length);
                }
            }
        }

        #[test]
        fn a_substitute_is_of_the_same_class(class_of in prop::collection::vec(0u32..6, 1..60), key: u64, original: usize) {
            let balanced = Balanced::new(&class_of, 1).unwrap();
            let original = original % class_of.len();
            match balanced.other(key, original as u64) {
                Some(other) => {
                    prop_assert!(other as usize != original && class_of[other as usize] == class_of[original]);
                }
                None => prop_assert_eq!(class_of.iter().filter(|class| **class == class_of[original]).count(), 1),
            }
        }
    }

    #[test]
    fn golden_orders_never_change() {
        let balanced = Balanced::new(&[0, 0, 0, 0, 7, 7, 3], 9).unwrap();
        assert_eq!(epoch(&balanced, 1, 2), [4, 3, 6, 6, 2, 5, 4, 2, 6]);
        assert_eq!(balanced.fingerprint(), 573_777_882_943_848_158);
    }

    #[test]
    fn nothing_to_balance_is_refused() {
        assert!(Balanced::new(&[], 1).unwrap_err().to_string().contains("labels: expected 1 to"));
        assert!(Balanced::new(&[1], 0).unwrap_err().to_string().contains("num_samples: expected at least 1, got 0"));
    }
}
