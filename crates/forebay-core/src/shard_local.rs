//! The shard-local order: a keyed permutation of blocks, then one of all samples inside a window of blocks.
//!
//! A global shuffle makes every read a random one. Where samples lie in shards, a reader wants to open a few blocks,
//! use them up and go on. Here the blocks are permuted, consecutive permuted blocks form windows, and the samples of a
//! window are permuted together. Every position is computed on its own from (seed, epoch): there is no shuffle buffer
//! to fill or to save, and an epoch can be entered anywhere (decisions/0041).

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::hash::hash_words;
use crate::{Epoch, Error, Result, Shuffle};

const BLOCKS: u64 = 0x626C_6F63_6B73; // "blocks"
const WINDOW: u64 = 0x7769_6E64_6F77; // "window"

/// How the samples of a dataset lie in blocks: consecutive ranges of samples that are best read together, such as
/// shards, chunks or row groups. Blocks may differ in length and may be empty.
///
/// Holds 8 bytes per block; clones share them.
///
/// ```
/// use forebay_core::Blocks;
///
/// let blocks = Blocks::new([3, 0, 4])?; // samples 0..3, none, 3..7
/// assert_eq!((blocks.block_count(), blocks.sample_count()), (3, 7));
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Where each block ends, in samples.
    ends: Arc<[u64]>,
    fingerprint: u64,
}

impl Blocks {
    /// Blocks of these lengths, in the dataset's own order.
    pub fn new(lengths: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut end = 0u64;
        let ends = lengths.into_iter().enumerate().map(|(block, length)| {
            end = end.checked_add(length).ok_or_else(|| {
                Error::config(format!(
                    "blocks: expected fewer than 2^64 samples, got {end} + {length} at block {block}"
                ))
            })?;
            Ok(end)
        });
        let ends = ends.collect::<Result<Arc<[u64]>>>()?;
        let fingerprint = hash_words(&ends);
        Ok(Self { ends, fingerprint })
    }

    /// Samples in all blocks.
    pub fn sample_count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Blocks, empty ones included.
    pub fn block_count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// A hash of all lengths: a state of other blocks is recognised by it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The block that a sample is in, and its place there. The sample has to be one of them.
    pub fn locate(&self, sample: u64) -> (u64, u64) {
        let block = self.ends.partition_point(|end| *end <= sample);
        (block as u64, sample - self.range(block).0)
    }

    /// The length of each block.
    pub fn lengths(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.ends.len()).map(|block| {
            let (first, end) = self.range(block);
            end - first
        })
    }

    /// Where a block begins and ends.
    pub(crate) fn range(&self, block: usize) -> (u64, u64) {
        (if block == 0 { 0 } else { self.ends[block - 1] }, self.ends[block])
    }
}

/// A block's place in the order of one epoch.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// The position after its last.
    end: u64,
    /// Its first sample minus its first position, modulo 2⁶⁴.
    shift: u64,
}

/// Windows over permuted blocks: as few as `max_blocks` allows, and equal in blocks but for one. A shorter last window
/// instead could hold a single block, and then every epoch would end with an unmixed one.
#[derive(Clone, Copy, Debug)]
struct Windows {
    /// Blocks of a shorter window.
    blocks: usize,
    /// How many windows, from the first on, have one block more.
    longer: usize,
}

impl Windows {
    fn new(block_count: usize, max_blocks: NonZeroU64) -> Self {
        let max_blocks = usize::try_from(max_blocks.get()).unwrap_or(usize::MAX);
        let windows = block_count.div_ceil(max_blocks).max(1);
        Self { blocks: block_count / windows, longer: block_count % windows }
    }

    /// The window that holds a block, by the block's place in the epoch.
    fn of(&self, place: usize) -> usize {
        let in_longer = self.longer * (self.blocks + 1);
        match place.checked_sub(in_longer) {
            None => place / (self.blocks + 1),
            Some(beyond) => self.longer + beyond / self.blocks,
        }
    }

    /// The place of a window's first block.
    fn first(&self, window: usize) -> usize {
        window * self.blocks + window.min(self.longer)
    }
}

/// The shard-local order of one epoch. Holds 16 bytes per block, none per sample.
#[derive(Clone, Debug)]
pub(crate) struct ShardLocal {
    placed: Vec<Placed>,
    windows: Windows,
    /// Its key, with a window's number as tweak, permutes that window.
    inside: Shuffle,
}

impl ShardLocal {
    pub(crate) fn new(blocks: &Blocks, window: NonZeroU64, seed: u64, epoch: Epoch) -> Self {
        let shuffle = Shuffle::new(blocks.block_count(), hash_words(&[BLOCKS, seed]), epoch);
        let mut end = 0;
        let place = |place| {
            let (first, last) = blocks.range(shuffle.at(place) as usize);
            let shift = first.wrapping_sub(end);
            end += last - first;
            Placed { end, shift }
        };
        Self {
            placed: (0..blocks.block_count()).map(place).collect(),
            windows: Windows::new(blocks.ends.len(), window),
            inside: Shuffle::new(blocks.sample_count(), hash_words(&[WINDOW, seed]), epoch),
        }
    }

    /// The sample at a position. A bijection on `0..sample_count`.
    ///
    /// # Panics
    /// If `position` is not below the number of samples: the plan never asks for that.
    pub(crate) fn at(&self, position: u64) -> u64 {
        let total = self.start_of(self.placed.len());
        assert!(position < total, "position {position} is outside 0..{total}");
        let window = self.windows.of(self.place_of(0, self.placed.len(), position));
        let (first, after) = (self.windows.first(window), self.windows.first(window + 1));
        let start = self.start_of(first);
        let inside = self.inside.tweaked(self.start_of(after) - start, window as u64);
        let drawn = start + inside.at(position - start);
        drawn.wrapping_add(self.placed[self.place_of(first, after, drawn)].shift)
    }

    /// The block among places `first..after` that has a position. Never an empty one.
    fn place_of(&self, first: usize, after: usize, position: u64) -> usize {
        first + self.placed[first..after].partition_point(|block| block.end <= position)
    }

    fn start_of(&self, place: usize) -> u64 {
        if place == 0 { 0 } else { self.placed[place - 1].end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(lengths: &[u64], window: u64, seed: u64, epoch: u64) -> ShardLocal {
        let blocks = Blocks::new(lengths.iter().copied()).unwrap();
        ShardLocal::new(&blocks, NonZeroU64::new(window).unwrap(), seed, Epoch(epoch))
    }

    fn samples(lengths: &[u64], window: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let order = order(lengths, window, seed, epoch);
        (0..lengths.iter().sum()).map(|position| order.at(position)).collect()
    }

    /// The block of every sample.
    fn blocks_of(lengths: &[u64]) -> Vec<usize> {
        lengths.iter().enumerate().flat_map(|(block, &length)| std::iter::repeat_n(block, length as usize)).collect()
    }

    /// Each sample once; and the order is cut into the fewest windows, each of whole blocks, at most `window` of them.
    fn check(lengths: &[u64], window: u64, seed: u64, epoch: u64) {
        let order = order(lengths, window, seed, epoch);
        let (total, count) = (lengths.iter().sum::<u64>(), lengths.len());
        let drawn: Vec<_> = (0..total).map(|position| order.at(position)).collect();
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..total).collect::<Vec<_>>(), "{lengths:?} by {window}");

        let block_of = blocks_of(lengths);
        let (mut place, mut position, mut windows, mut sizes) = (0, 0, 0, Vec::new());
        while place < count {
            let after = order.windows.first(windows + 1);
            assert!((place..after).all(|place| order.windows.of(place) == windows));
            sizes.push(after - place);
            let end = order.placed[after - 1].end as usize;
            let mut seen: Vec<_> = drawn[position..end].iter().map(|&sample| block_of[sample as usize]).collect();
            let samples_of_seen = |seen: &[usize]| seen.iter().map(|&block| lengths[block]).sum::<u64>();
            seen.sort_unstable();
            seen.dedup();
            assert!(seen.len() as u64 <= window, "{} blocks in a window of {window}", seen.len());
            assert_eq!(samples_of_seen(&seen), (end - position) as u64, "a block is cut by a window's end");
            (place, position, windows) = (after, end, windows + 1);
        }
        assert_eq!((place, position as u64), (count, total));
        assert_eq!(windows as u64, (count as u64).div_ceil(window));
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1 && *most as u64 <= window), "{sizes:?}");
    }

    #[test]
    fn samples_are_located_in_blocks_of_which_some_are_empty() {
        let blocks = Blocks::new([0, 3, 0, 0, 2, 0]).unwrap();
        let located: Vec<_> = (0..5).map(|sample| blocks.locate(sample)).collect();
        assert_eq!(located, [(1, 0), (1, 1), (1, 2), (4, 0), (4, 1)]);
    }

    proptest! {
        #[test]
        fn is_a_bijection_that_stays_inside_its_windows(
            lengths in prop::collection::vec(prop_oneof![Just(0), Just(1), 0u64..60], 0..40),
            window in 1u64..50, seed: u64, epoch: u64,
        ) {
            check(&lengths, window, seed, epoch);
        }
    }

    #[test]
    fn all_small_layouts_are_bijections_that_stay_inside_their_windows() {
        for count in 0..=5u32 {
            for code in 0..4u64.pow(count) {
                let lengths: Vec<_> = (0..count).map(|block| code / 4u64.pow(block) % 4).collect();
                for window in 1..=u64::from(count) + 1 {
                    check(&lengths, window, code, window);
                }
            }
        }
    }

    #[test]
    fn huge_windows_are_one_window() {
        let lengths = [5, 9, 2, 7];
        assert_eq!(samples(&lengths, u64::MAX, 1, 1), samples(&lengths, 4, 1, 1));
        assert_ne!(samples(&lengths, 4, 1, 1), samples(&lengths, 3, 1, 1));
    }

    #[test]
    fn epochs_and_seeds_change_blocks_and_samples() {
        // One block: only the order inside can differ. Blocks of one sample, one a window: only the order of blocks.
        for (lengths, window) in [(vec![100], 1), (vec![1; 100], 1), (vec![10; 10], 3)] {
            let base = samples(&lengths, window, 7, 0);
            assert_eq!(base, samples(&lengths, window, 7, 0));
            assert_ne!(base, samples(&lengths, window, 7, 1), "epochs of {lengths:?}");
            assert_ne!(base, samples(&lengths, window, 8, 0), "seeds of {lengths:?}");
        }
    }

    #[test]
    fn windows_of_one_length_have_different_orders() {
        let drawn = samples(&[50; 20], 1, 3, 0);
        let inside: std::collections::HashSet<Vec<u64>> =
            drawn.chunks(50).map(|window| window.iter().map(|sample| sample % 50).collect()).collect();
        assert_eq!(inside.len(), 20);
    }

    #[test]
    fn golden_order_never_changes() {
        assert_eq!(samples(&[3, 0, 4, 1, 5, 2, 3], 3, 0, 0), GOLDEN);
    }

    const GOLDEN: [u64; 18] = [12, 17, 9, 10, 11, 16, 15, 8, 2, 0, 7, 1, 14, 3, 13, 5, 4, 6];

    /// Chi-squared of counts that should all be equal.
    fn chi_squared(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
    }

    /// Chi-squared of (position, sample) over many seeds; 81 degrees of freedom with 10 samples.
    fn uniformity(lengths: &[u64], window: u64) -> f64 {
        let mut counts = vec![0; 100];
        for seed in 0..4_000 {
            for (position, sample) in samples(lengths, window, seed, 0).into_iter().enumerate() {
                counts[position * 10 + sample as usize] += 1;
            }
        }
        chi_squared(&counts)
    }

    #[test]
    fn one_window_over_all_blocks_is_a_whole_shuffle() {
        for lengths in [vec![3, 1, 0, 4, 2], vec![10], vec![1; 10]] {
            let chi2 = uniformity(&lengths, lengths.len() as u64);
            assert!(chi2 < 150.0, "{lengths:?}: chi-squared {chi2} of 81 degrees of freedom"); // p < 1e-5 beyond
        }
        // With smaller windows, over blocks of equal length, each sample still comes at each position equally often.
        for (lengths, window) in [(vec![2; 5], 1), (vec![1; 10], 3)] {
            let chi2 = uniformity(&lengths, window);
            assert!(chi2 < 150.0, "{lengths:?} by {window}: chi-squared {chi2} of 81 degrees of freedom");
        }
        // The test sees what is not uniform: in windows of two blocks, the place of a long block shows.
        assert!(uniformity(&[1, 1, 1, 1, 6], 2) > 1000.0);
    }

    #[test]
    fn pairs_of_samples_are_mixed_inside_a_window_and_not_beyond() {
        // 1,000 blocks of 100 samples, windows of 10. Neighbours in the order share a block by chance: 99 in 999.
        let drawn = samples(&[100; 1000], 10, 5, 2);
        let same = drawn.windows(2).filter(|pair| pair[0] / 100 == pair[1] / 100).count();
        assert!((9_500..10_300).contains(&same), "{same} of 99,999 neighbours share a block (9,909 by chance)");

        // Where in its window a sample comes says nothing about where in its block it lies: 10 × 10 cells, 81 degrees
        // of freedom; and nothing about which of the window's blocks it is from.
        let (mut by_offset, mut by_block) = (vec![0; 100], vec![0; 100]);
        for window in drawn.chunks(1000) {
            let mut blocks: Vec<_> = window.iter().map(|sample| sample / 100).collect();
            blocks.sort_unstable();
            blocks.dedup();
            for (position, sample) in window.iter().enumerate() {
                let block = blocks.binary_search(&(sample / 100)).unwrap();
                by_offset[position / 100 * 10 + (sample % 100 / 10) as usize] += 1;
                by_block[position / 100 * 10 + block] += 1;
            }
        }
        for chi2 in [chi_squared(&by_offset), chi_squared(&by_block)] {
            assert!((30.0..150.0).contains(&chi2), "chi-squared {chi2} of 81 degrees of freedom");
        }
    }

    #[test]
    fn blocks_move_through_the_whole_epoch() {
        // A block's first position, over epochs, in tenths of the epoch: 9 degrees of freedom.
        let mut counts = vec![0; 10];
        for epoch in 0..2_000 {
            let order = order(&[10; 50], 5, 9, epoch);
            let position = (0..500).find(|&position| order.at(position) / 10 == 17).unwrap();
            counts[position as usize / 50] += 1;
        }
        let chi2 = chi_squared(&counts);
        assert!(chi2 < 40.0, "chi-squared {chi2} of 9 degrees of freedom: {counts:?}"); // p < 1e-5 beyond
    }

    #[test]
    fn handles_the_largest_datasets_without_memory_per_sample() {
        // 2⁴⁰ samples: in 1,000 blocks of lengths that differ, in two blocks, and in one window.
        let total = 1u64 << 40;
        let uneven: Vec<_> = (0..999).map(|block| total / 1000 - 500 + block).collect();
        let rest = total - uneven.iter().sum::<u64>();
        let uneven: Vec<_> = uneven.into_iter().chain([rest]).collect();
        for (lengths, window) in [(uneven.clone(), 16), (uneven, 1000), (vec![total - 1, 1], 1), (vec![total], 1)] {
            let order = order(&lengths, window, 1, 0);
            let positions = (0..1000).map(|step| step * (total / 1000)).chain([total - 1]);
            let drawn: std::collections::HashSet<_> = positions.map(|position| order.at(position)).collect();
            assert_eq!(drawn.len(), 1001);
            assert!(drawn.iter().all(|&sample| sample < total));
        }
    }

    #[test]
    fn refuses_lengths_that_overflow() {
        assert_eq!(Blocks::new([u64::MAX]).unwrap().sample_count(), u64::MAX);
        let error = Blocks::new([5, u64::MAX]).unwrap_err();
        assert_eq!(error.kind(), crate::Kind::Config);
        assert!(error.to_string().contains("at block 1"), "{error}");
    }

    #[test]
    #[should_panic(expected = "outside 0..3")]
    fn refuses_positions_beyond_the_last() {
        order(&[3], 1, 0, 0).at(3);
    }
}
