//! The checksums of a group.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::ParityLayout;
use crate::content_hash;

/// The checksums of a group's blocks, and of its parity blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    group: u64,
    blocks: Vec<u64>,
    parity: Vec<u64>,
}

impl GroupRecord {
    pub(super) fn new(group: u64, blocks: Vec<u64>, parity: Vec<u64>) -> Self {
        Self { group, blocks, parity }
    }

    /// What a record says of this group; `None` if it is damaged, or of another one.
    pub fn parse(layout: &ParityLayout, group: u64, bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        let is_whole =
            bytes.len() as u64 == layout.record_bytes() && xxh3_64_with_seed(body, group) == u64::from_le_bytes(*sum);
        if !is_whole || group >= layout.group_count() {
            return None;
        }
        let mut words = body.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        let blocks = words.by_ref().take(layout.group_blocks(group) as usize).collect();
        let parity = words.take(layout.parity_blocks() as usize).collect();
        Some(Self { group, blocks, parity })
    }

    /// Its bytes in the sidecar.
    pub fn to_bytes(&self, layout: &ParityLayout) -> Vec<u8> {
        let body_bytes = layout.record_bytes() as usize - 8;
        let mut bytes: Vec<u8> = self.blocks.iter().chain(&self.parity).flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(body_bytes, 0);
        let sum = xxh3_64_with_seed(&bytes, self.group);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Its group.
    pub fn group(&self) -> u64 {
        self.group
    }

    /// How many blocks the group has.
    pub fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Whether these are the bytes of a block, by its number in the group.
    pub fn is_block(&self, number: u32, bytes: &[u8]) -> bool {
        self.blocks.get(number as usize).is_some_and(|hash| *hash == content_hash(bytes))
    }

    /// Whether these are the bytes of a parity block.
    pub fn is_parity(&self, number: u32, bytes: &[u8]) -> bool {
        self.parity.get(number as usize).is_some_and(|hash| *hash == content_hash(bytes))
    }
}
