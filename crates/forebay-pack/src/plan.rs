//! Which sample goes into which shard: a function of the source's listing and of the settings alone. Neither what is found out while
//! packing (a bad sample, how small a picture became) nor the number of threads moves a sample to another shard.

use forebay_core::{Epoch, Error, Result, Shuffle};
use xxhash_rust::xxh3::Xxh3;

use crate::source::{LABEL_FIELD, Samples};
use crate::tar::{END, member_bytes};

/// Where shards end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of a shard, in bytes. One sample may be larger.
    pub(crate) shard_bytes: Option<u64>,
    /// Of a shard.
    pub(crate) samples: Option<u64>,
}

/// What was planned for every sample and shard.
pub(crate) struct Plan {
    order: Option<Shuffle>,
    /// What each sample takes in an archive, by its number in the source.
    bytes: Vec<u64>,
    /// Where each shard ends, in the order of packing.
    ends: Vec<u64>,
    pub(crate) contents: Contents,
}

/// What tells two sources apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) samples: u64,
    /// Keys, fields and labels.
    pub(crate) names: String,
    pub(crate) sizes: String,
    /// Times, etags and checksums.
    pub(crate) versions: String,
}

impl Plan {
    pub(crate) fn new(samples: &Samples, limits: Limits, shuffle: Option<u64>) -> Result<Self> {
        let (mut names, mut sizes, mut versions) = (Xxh3::new(), Xxh3::new(), Xxh3::new());
        let mut bytes = Vec::new();
        let no_memory = |_| Error::new(forebay_core::Kind::Exhausted, "no memory was left for the plan of its samples");
        bytes.try_reserve_exact(samples.len() as usize).map_err(no_memory)?;
        for number in 0..samples.len() {
            let Ok(sample) = samples.get(number) else {
                names.update(b"\0bad\0");
                bytes.push(0);
                continue;
            };
            let mut taken = 0;
            names.update(sample.key.as_bytes());
            let label = sample.label_text();
            for piece in &sample.pieces {
                sizes.update(&piece.size.to_le_bytes());
                let stamp = piece.expected.and_then(|expected| expected.stamp_ns).unwrap_or_default();
                versions.update(&stamp.to_le_bytes());
                versions.update(&piece.hash.unwrap_or_default().to_le_bytes());
                for (field, size) in samples.planned(piece) {
                    names.update(b"\0");
                    names.update(field.as_bytes());
                    taken += member_bytes(&format!("{}.{field}", sample.key), size);
                }
            }
            if let Some(label) = label {
                names.update(b"\0=");
                names.update(label.as_bytes());
                taken += member_bytes(&format!("{}.{LABEL_FIELD}", sample.key), label.len() as u64);
            }
            names.update(b"\0\0");
            bytes.push(taken);
        }
        let order = shuffle.map(|seed| Shuffle::new(samples.len(), seed, Epoch(0)));
        let text = |hash: &Xxh3| format!("{:032x}", hash.digest128());
        let (names, sizes, versions) = (text(&names), text(&sizes), text(&versions));
        let contents = Contents { samples: samples.len(), names, sizes, versions };
        let mut plan = Self { order, bytes, ends: Vec::new(), contents };
        plan.ends = plan.cut(limits);
        Ok(plan)
    }

    fn cut(&self, limits: Limits) -> Vec<u64> {
        let most = limits.shard_bytes.unwrap_or(u64::MAX).saturating_sub(END.len() as u64);
        let (mut ends, mut start, mut taken) = (Vec::new(), 0, 0_u64);
        for position in 0..self.len() {
            let next = self.bytes_at(position);
            let is_full = limits.samples.is_some_and(|samples| position - start >= samples);
            if position > start && (is_full || taken.saturating_add(next) > most) {
                ends.push(position);
                (start, taken) = (position, 0);
            }
            taken = taken.saturating_add(next);
        }
        ends.push(self.len());
        ends
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn shard_count(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The positions of a shard's samples in the order of packing.
    pub(crate) fn shard(&self, shard: u32) -> std::ops::Range<u64> {
        let start = shard.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start..self.ends[shard as usize]
    }

    /// The number in the source of the sample at a position.
    pub(crate) fn sample_at(&self, position: u64) -> u64 {
        self.order.as_ref().map_or(position, |order| order.at(position))
    }

    /// What the sample at a position takes in an archive, as it is in the source.
    pub(crate) fn bytes_at(&self, position: u64) -> u64 {
        self.bytes[self.sample_at(position) as usize]
    }

    /// What a shard takes, if its samples stay as they are.
    pub(crate) fn shard_bytes(&self, shard: u32) -> u64 {
        self.shard(shard).map(|position| self.bytes_at(position)).sum::<u64>() + END.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(bytes: &[u64], shard_bytes: Option<u64>, samples: Option<u64>) -> Vec<u64> {
        let contents = Contents { samples: 0, names: String::new(), sizes: String::new(), versions: String::new() };
        let plan = Plan { order: None, bytes: bytes.to_vec(), ends: Vec::new(), contents };
        plan.cut(Limits { shard_bytes, samples })
    }

    #[test]
    fn shards_end_where_the_next_sample_would_be_too_much() {
        let bytes = [1000, 1000, 1000, 5000, 1000, 0, 1000];
        assert_eq!(plan(&bytes, Some(3024), None), [2, 3, 4, 7]);
        assert_eq!(plan(&bytes, Some(2024), None), [1, 2, 3, 4, 6, 7], "what takes nothing needs no room");
        assert_eq!(plan(&bytes, None, Some(3)), [3, 6, 7]);
        assert_eq!(plan(&bytes, Some(3024), Some(1)), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(plan(&bytes, None, None), [7]);
        assert_eq!(plan(&[u64::MAX, u64::MAX], Some(u64::MAX), None), [1, 2]);
    }
}
