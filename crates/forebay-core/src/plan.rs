//! The order of an epoch: which sample is at which position, and which positions belong to which rank and step.
//!
//! Pure arithmetic without memory per sample. The *global* order is defined first (a permutation of the
//! dataset); a step takes the next `batch_size × world_size` positions of it and splits them among the ranks
//! in rank order. Threads do not appear here, so they can never matter.

use std::num::NonZeroU64;

use crate::hash::{hash_words, scale};
use crate::sampling::SamplingOrder;
use crate::shard_local::ShardLocal;
use crate::{Blocks, Epoch, Rank, SampleId, Sampling, Shuffle, Step, WorldSize};

/// How the samples of an epoch are ordered. Part of the state: an epoch cannot be resumed in another kind of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// The dataset's own order, in every epoch.
    Sequential,
    /// One permutation of all samples per epoch.
    Global,
    /// A permutation of blocks, then one of all samples inside each window of blocks: a reader needs no more than
    /// `window` blocks at a time.
    ///
    /// Windows are as few as possible and hold equal numbers of blocks, give or take one. A window of 1 keeps the
    /// samples of a block together; with a window of all blocks it is a whole shuffle.
    ShardLocal {
        /// How the dataset's samples lie in blocks.
        blocks: Blocks,
        /// The most blocks that are mixed with each other.
        window: NonZeroU64,
    },
    /// Samples by proportions, weights or classes: some come several times, others in no epoch.
    Sampled {
        /// Which.
        sampling: Sampling,
        /// Whether the sources of a mixture are permuted. Other samplings always are.
        is_shuffled: bool,
    },
}

impl OrderKind {
    /// Whether the order is another one in every epoch.
    pub fn is_shuffled(&self) -> bool {
        match self {
            Self::Sequential => false,
            Self::Global | Self::ShardLocal { .. } => true,
            Self::Sampled { is_shuffled, .. } => *is_shuffled,
        }
    }

    /// What it is called, of how many blocks it is made, and the share of all samples among which a sample is mixed with its
    /// neighbours: 1 for a shuffle of everything, 0 for none.
    pub fn described(&self) -> (&'static str, u64, f64) {
        match self {
            Self::Sequential => ("sequential", 0, 0.0),
            Self::Global => ("global", 0, 1.0),
            Self::ShardLocal { blocks, window } => {
                let windows = blocks.block_count().div_ceil(window.get()).max(1);
                ("window", blocks.block_count(), 1.0 / windows as f64)
            }
            Self::Sampled { is_shuffled, .. } => ("sampled", 0, f64::from(u8::from(*is_shuffled))),
        }
    }

    /// Whether a sample may come several times in an epoch.
    pub fn repeats(&self) -> bool {
        matches!(self, Self::Sampled { .. })
    }
}

/// What determines the order of every epoch.
///
/// ```
/// use std::num::NonZeroU64;
/// use forebay_core::{Blocks, Epoch, OrderKind, Plan, WorldSize};
///
/// let blocks = Blocks::new([4, 4, 2])?;
/// let len = blocks.sample_count();
/// let order = OrderKind::ShardLocal { blocks, window: NonZeroU64::MIN };
/// let plan = Plan { len, batch_size: 2, world_size: WorldSize(1), order, drop_last: false, seed: 0 };
/// let order = plan.epoch_order(Epoch(0));
/// let first = order.at(0); // any position, without those before it
/// assert!(first.0 < 10);
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Positions in an epoch: samples in the dataset, unless the order chooses among them.
    pub len: u64,
    /// Samples per rank and step.
    pub batch_size: u64,
    /// Ranks that share the epoch.
    pub world_size: WorldSize,
    /// How the samples of every epoch are ordered.
    pub order: OrderKind,
    /// Leave out the positions that do not fill a whole step, instead of a smaller last step.
    pub drop_last: bool,
    /// The key of the permutation and of all augmentation.
    pub seed: u64,
}

/// Where an epoch is entered: at its beginning, or where an earlier run (of any world size) left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Steps made before.
    pub step: Step,
    /// Positions of the global order consumed before.
    pub position: u64,
}

/// One sample's place in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in the global order of the epoch. Padding continues beyond the dataset's length.
    pub position: u64,
    /// The sample planned there.
    pub sample: SampleId,
    /// A repetition from the start of the order, so that all ranks make equal steps.
    pub padded: bool,
}

/// One rank's share of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// Its step within the epoch.
    pub step: Step,
    /// Its samples, in order of delivery.
    pub places: Vec<Place>,
    /// Positions of the global order consumed once every rank has made this step.
    pub end_position: u64,
}

impl Plan {
    fn global_batch(&self) -> u64 {
        self.batch_size.saturating_mul(u64::from(self.world_size.0))
    }

    /// Steps left in an epoch entered at `origin`; the same on every rank.
    pub fn steps_from(&self, origin: Origin) -> u64 {
        let rest = self.len.saturating_sub(origin.position);
        if self.drop_last { rest / self.global_batch() } else { rest.div_ceil(self.global_batch()) }
    }

    /// Steps in a whole epoch.
    pub fn steps(&self) -> u64 {
        self.steps_from(Origin::default())
    }

    /// Positions that each rank handles from `origin` to the end of the epoch, padding included.
    pub fn planned_from(&self, origin: Origin) -> u64 {
        match self.steps_from(origin) {
            0 => 0,
            steps => (steps - 1) * self.batch_size + self.share_of(origin.position + self.global_batch() * (steps - 1)),
        }
    }

    /// How many positions each rank takes from the step that begins at `start`.
    fn share_of(&self, start: u64) -> u64 {
        let rest = (self.len - start).min(self.global_batch());
        rest.div_ceil(u64::from(self.world_size.0))
    }

    /// The first position of a step, or `None` past the end of the epoch or before `origin`.
    fn start_of(&self, origin: Origin, step: Step) -> Option<u64> {
        let made = step.0.checked_sub(origin.step.0)?;
        (made < self.steps_from(origin)).then(|| origin.position + made * self.global_batch())
    }

    /// How many samples [`Plan::batch`] has, without computing them.
    pub fn batch_len(&self, origin: Origin, step: Step) -> Option<u64> {
        self.start_of(origin, step).map(|start| self.share_of(start))
    }

    /// One rank's batch of one step, or `None` past the end of the epoch or before `origin`.
    ///
    /// Computes the epoch's order first; [`Plan::batch_of`] is for many batches of one epoch.
    pub fn batch(&self, epoch: Epoch, origin: Origin, step: Step, rank: Rank) -> Option<PlannedBatch> {
        let order = self.epoch_order(epoch);
        self.batch_of(&order, epoch, origin, step, rank)
    }

    /// As [`Plan::batch`], with the epoch's order computed once by the caller.
    pub fn batch_of(
        &self,
        order: &EpochOrder,
        epoch: Epoch,
        origin: Origin,
        step: Step,
        rank: Rank,
    ) -> Option<PlannedBatch> {
        let share = self.batch_len(origin, step)?;
        let start = self.start_of(origin, step)?;
        let first = start + share * u64::from(rank.0);
        let places = (first..first + share)
            .map(|position| {
                let padded = position >= self.len;
                Place { position, sample: self.sample_at(order, position), padded }
            })
            .collect();
        let end_position = (start + self.global_batch()).min(self.len);
        Some(PlannedBatch { epoch, step, places, end_position })
    }

    /// The sample planned at a position of the global order, which padding continues beyond the dataset's length.
    pub fn sample_at(&self, order: &EpochOrder, position: u64) -> SampleId {
        // `% len`: a dataset smaller than the world wraps more than once.
        order.at(if position < self.len { position } else { (position - self.len) % self.len })
    }

    /// The global order of an epoch. Shard-local order permutes its blocks here, once for all positions.
    ///
    /// # Panics
    /// If the blocks of a shard-local order do not hold `len` samples.
    pub fn epoch_order(&self, epoch: Epoch) -> EpochOrder {
        EpochOrder(match &self.order {
            OrderKind::Sequential => Inner::Sequential,
            OrderKind::Global => Inner::Global(Shuffle::new(self.len, self.seed, epoch)),
            OrderKind::ShardLocal { blocks, window } => {
                let held = blocks.sample_count();
                assert!(held == self.len, "the blocks hold {held} samples, the plan has {}", self.len);
                Inner::ShardLocal(ShardLocal::new(blocks, *window, self.seed, epoch))
            }
            OrderKind::Sampled { sampling, is_shuffled } => {
                Inner::Sampled(sampling.order(self.seed, epoch, *is_shuffled))
            }
        })
    }

    /// Samples in the dataset.
    pub fn sample_count(&self) -> u64 {
        match &self.order {
            OrderKind::Sampled { sampling, .. } => sampling.sample_count(),
            _ => self.len,
        }
    }

    /// The `attempt`-th substitute for the sample planned at `position`: deterministic, and never `original`
    /// itself when there is another sample. Where the order chooses samples, it is chosen in the same way: from the same source
    /// of a mixture, by the weights, of the same class.
    pub fn substitute(&self, epoch: Epoch, position: u64, original: SampleId, attempt: u32) -> SampleId {
        if let OrderKind::Sampled { sampling, .. } = &self.order {
            let key = hash_words(&[SUBSTITUTE, self.seed, epoch.0, position, u64::from(attempt)]);
            if let Some(sample) = sampling.substitute(key, original.0) {
                return SampleId(sample);
            }
        }
        substitute(self.sample_count(), self.seed, epoch, position, original, attempt)
    }
}

const SUBSTITUTE: u64 = 0x7375_6273_7469_7475; // "substitu"

/// As [`Plan::substitute`], for an order that is not a plan's: of a dataset of `len` samples.
pub fn substitute(len: u64, seed: u64, epoch: Epoch, position: u64, original: SampleId, attempt: u32) -> SampleId {
    if len < 2 {
        return original;
    }
    let hash = hash_words(&[SUBSTITUTE, seed, epoch.0, position, u64::from(attempt)]);
    let drawn = scale(hash, len - 1);
    SampleId(if drawn >= original.0 { drawn + 1 } else { drawn })
}

/// The global order of one epoch: position → sample.
#[derive(Clone, Debug)]
pub struct EpochOrder(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Sequential,
    Global(Shuffle),
    ShardLocal(ShardLocal),
    Sampled(SamplingOrder),
}

impl EpochOrder {
    /// The sample at a position below the epoch's length.
    pub fn at(&self, position: u64) -> SampleId {
        SampleId(match &self.0 {
            Inner::Sequential => position,
            Inner::Global(shuffle) => shuffle.at(position),
            Inner::ShardLocal(order) => order.at(position),
            Inner::Sampled(order) => order.at(position),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Balanced, Mixture, Weighted};
    use proptest::prelude::*;

    fn plan(len: u64, batch_size: u64, world: u32, drop_last: bool) -> Plan {
        Plan { len, batch_size, world_size: WorldSize(world), order: OrderKind::Global, drop_last, seed: 11 }
    }

    /// The same in blocks of 7 samples, the last one shorter, and windows of 3 blocks.
    fn shard_local(plan: &Plan) -> Plan {
        let &Plan { len, batch_size, world_size, drop_last, seed, .. } = plan;
        let blocks = Blocks::new((0..len.div_ceil(7)).map(|block| (len - block * 7).min(7))).unwrap();
        let order = OrderKind::ShardLocal { blocks, window: NonZeroU64::new(3).unwrap() };
        Plan { len, batch_size, world_size, order, drop_last, seed }
    }

    /// The global sequence of real (not padded) samples from `origin` on, read off all ranks.
    fn remaining(plan: &Plan, epoch: Epoch, origin: Origin) -> Vec<SampleId> {
        let mut out = Vec::new();
        for step in 0..plan.steps_from(origin) {
            for rank in 0..plan.world_size.0 {
                let batch = plan.batch(epoch, origin, Step(origin.step.0 + step), Rank(rank)).unwrap();
                out.extend(batch.places.iter().filter(|place| !place.padded).map(|place| place.sample));
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_rank_makes_equal_steps_of_equal_size(
            len in 1u64..200, batch in 1u64..17, world in 1u32..9, drop_last: bool,
        ) {
            let plan = plan(len, batch, world, drop_last);
            for step in 0..plan.steps() {
                let sizes: Vec<_> = (0..world)
                    .map(|rank| plan.batch(Epoch(0), Origin::default(), Step(step), Rank(rank)).unwrap().places.len())
                    .collect();
                prop_assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]), "{sizes:?}");
                prop_assert!(!drop_last || sizes[0] as u64 == batch);
            }
            for rank in 0..world {
                let batches = (0..plan.steps()).map(|step| plan.batch(Epoch(0), Origin::default(), Step(step), Rank(rank)));
                let planned: usize = batches.map(|batch| batch.unwrap().places.len()).sum();
                prop_assert_eq!(planned as u64, plan.planned_from(Origin::default()));
                prop_assert!(plan.batch(Epoch(0), Origin::default(), Step(plan.steps()), Rank(rank)).is_none());
            }
        }

        #[test]
        fn an_epoch_covers_every_sample_once(len in 1u64..200, batch in 1u64..17, world in 1u32..9) {
            let mut samples = remaining(&plan(len, batch, world, false), Epoch(3), Origin::default());
            samples.sort_unstable();
            prop_assert_eq!(samples, (0..len).map(SampleId).collect::<Vec<_>>());
            let mut samples = remaining(&shard_local(&plan(len, batch, world, false)), Epoch(3), Origin::default());
            samples.sort_unstable();
            prop_assert_eq!(samples, (0..len).map(SampleId).collect::<Vec<_>>());
        }

        #[test]
        fn resuming_on_another_world_continues_the_same_order(
            len in 1u64..200, batch in 1u64..9, world in 1u32..5, other_batch in 1u64..9, other in 1u32..5, stop in 0u64..40,
        ) {
            let first = plan(len, batch, world, false);
            let all = remaining(&first, Epoch(1), Origin::default());
            let stop = stop.min(first.steps());
            let position = match stop {
                0 => 0,
                _ => first.batch(Epoch(1), Origin::default(), Step(stop - 1), Rank(0)).unwrap().end_position,
            };
            let second = plan(len, other_batch, other, false);
            let origin = Origin { step: Step(stop), position };
            let rest = remaining(&second, Epoch(1), origin);
            prop_assert_eq!(&rest[..], &all[position as usize..]);

            // Steps, positions and ranks do not depend on the kind of order; only the samples do.
            let all = remaining(&shard_local(&first), Epoch(1), Origin::default());
            let rest = remaining(&shard_local(&second), Epoch(1), origin);
            prop_assert_eq!(&rest[..], &all[position as usize..]);
        }

        #[test]
        fn a_sampled_epoch_goes_on_with_another_world(
            samples in 1u64..120, batch in 1u64..9, world in 1u32..5, other_batch in 1u64..9, other in 1u32..5, stop in 0u64..20,
        ) {
            for kind in samplings(samples) {
                let samples = kind.samples();
                let order = OrderKind::Sampled { sampling: kind, is_shuffled: true };
                let first = Plan { len: samples, order, ..plan(samples, batch, world, false) };
                let all = remaining(&first, Epoch(1), Origin::default());
                prop_assert_eq!(all.len() as u64, samples);
                let stop = stop.min(first.steps());
                let position = (stop * batch * u64::from(world)).min(samples);
                let second = Plan { batch_size: other_batch, world_size: WorldSize(other), ..first };
                let rest = remaining(&second, Epoch(1), Origin { step: Step(stop), position });
                prop_assert_eq!(&rest[..], &all[position as usize..]);
            }
        }

        #[test]
        fn a_substitute_is_another_sample(len in 2u64..50, original in 0u64..50, position: u64, attempt: u32) {
            let original = SampleId(original % len);
            let substitute = plan(len, 1, 1, false).substitute(Epoch(0), position, original, attempt);
            prop_assert!(substitute != original && substitute.0 < len);
            // Substitutes come from the whole dataset in every kind of order.
            let plan = shard_local(&plan(len, 1, 1, false));
            prop_assert_eq!(substitute, plan.substitute(Epoch(0), position, original, attempt));
        }
    }

    /// Of 20 samples.
    fn samplings(samples: u64) -> [Sampling; 4] {
        let weights = [(0, vec![0.7, 0.3]), (130, vec![0.2, 0.8])];
        let each: Vec<_> = (0..20).map(f64::from).collect();
        let classes: Vec<_> = (0..20).map(|sample| sample % 3).collect();
        [
            Sampling::Mixture(Mixture::new(&[15, 5], samples, &weights).unwrap()),
            Sampling::Weighted(Weighted::new(&each, samples, true).unwrap()),
            Sampling::Weighted(Weighted::new(&each, samples.min(19), false).unwrap()),
            Sampling::Balanced(Balanced::new(&classes, samples).unwrap()),
        ]
    }

    #[test]
    fn a_substitute_is_chosen_as_samples_are() {
        let [mixture, weighted, _, balanced] = samplings(40);
        let substitutes = |sampling, original| {
            let order = OrderKind::Sampled { sampling, is_shuffled: true };
            let plan = Plan { len: 40, order, ..plan(40, 1, 1, false) };
            (0..200).map(move |position| plan.substitute(Epoch(0), position, SampleId(original), 1).0)
        };
        assert!(substitutes(mixture.clone(), 3).all(|sample| sample < 15 && sample != 3));
        assert!(substitutes(mixture, 16).all(|sample| sample >= 15 && sample != 16));
        assert!(substitutes(weighted, 19).all(|sample| sample != 0 && sample != 19));
        assert!(substitutes(balanced, 4).all(|sample| sample % 3 == 1 && sample != 4));
    }

    #[test]
    fn padding_repeats_the_start_of_the_order_and_is_marked() {
        let plan = plan(10, 2, 4, false); // global batch 8: the last step has 2 samples for 4 ranks
        let order = plan.epoch_order(Epoch(0));
        let last = |rank| plan.batch(Epoch(0), Origin::default(), Step(1), Rank(rank)).unwrap().places;
        assert_eq!(plan.steps(), 2);
        assert!(!last(0)[0].padded && !last(1)[0].padded);
        assert_eq!(last(2), [Place { position: 10, sample: order.at(0), padded: true }]);
        assert_eq!(last(3), [Place { position: 11, sample: order.at(1), padded: true }]);
        assert_eq!(plan.planned_from(Origin::default()), 3);
    }

    #[test]
    fn a_world_larger_than_the_dataset_still_fills_every_rank() {
        let plan = plan(3, 4, 8, false);
        for rank in 0..8 {
            assert_eq!(plan.batch(Epoch(0), Origin::default(), Step(0), Rank(rank)).unwrap().places.len(), 1);
        }
    }

    #[test]
    fn drop_last_leaves_out_what_does_not_fill_a_step() {
        assert_eq!(plan(10, 2, 4, true).steps(), 1);
        assert_eq!(plan(7, 2, 4, true).steps(), 0);
    }

    #[test]
    fn a_sequential_order_is_that_of_the_dataset() {
        let plan = Plan { order: OrderKind::Sequential, ..plan(50, 4, 1, false) };
        assert_eq!(remaining(&plan, Epoch(2), Origin::default()), (0..50).map(SampleId).collect::<Vec<_>>());
    }

    #[test]
    fn padding_repeats_the_start_of_a_shard_local_order() {
        let plan = shard_local(&plan(10, 2, 4, false));
        let last = plan.batch(Epoch(0), Origin::default(), Step(1), Rank(3)).unwrap().places;
        assert_eq!(last, [Place { position: 11, sample: plan.epoch_order(Epoch(0)).at(1), padded: true }]);
    }

    #[test]
    #[should_panic(expected = "the blocks hold 10 samples, the plan has 11")]
    fn refuses_blocks_of_another_dataset() {
        Plan { len: 11, ..shard_local(&plan(10, 2, 4, false)) }.epoch_order(Epoch(0));
    }
}
