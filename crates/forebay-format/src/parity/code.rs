//! Making the parity of a group, and making its lost blocks again.

use forebay_core::{Error, Kind, Result};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::layout::ParityLayout;
use super::record::GroupRecord;
use crate::content_hash;

/// The code's own errors are about counts that were checked before.
fn unexpected(error: reed_solomon_simd::Error) -> Error {
    Error::internal(format!("parity was given wrong blocks: {error}"))
}

/// The code allocates without a way to fail: whether there is so much memory is asked first.
fn check_memory(layout: &ParityLayout) -> Result<()> {
    let bytes = layout.work_bytes();
    let no_memory = |_| Error::new(Kind::Exhausted, format!("no memory was left for its parity ({bytes} bytes)"));
    Vec::<u8>::new().try_reserve_exact(bytes as usize).map_err(no_memory)
}

/// A block that was made again: its number in the file, and its bytes.
pub type MadeBlock = (u64, Vec<u8>);

/// Makes the parity of a group from its blocks, given in their order.
pub struct GroupEncoder {
    layout: ParityLayout,
    group: u64,
    block_count: u32,
    encoder: ReedSolomonEncoder,
    hashes: Vec<u64>,
    /// The last block of a file, filled up with zeros.
    padded: Vec<u8>,
}

impl GroupEncoder {
    /// Takes [`ParityLayout::work_bytes`].
    pub fn new(layout: &ParityLayout, group: u64) -> Result<Self> {
        check_memory(layout)?;
        let (block_count, parity) = (layout.group_blocks(group), layout.parity_blocks() as usize);
        let encoder = ReedSolomonEncoder::new(block_count as usize, parity, layout.block_bytes() as usize);
        let (hashes, padded) = (Vec::with_capacity(block_count as usize), Vec::new());
        Ok(Self { layout: *layout, group, block_count, encoder: encoder.map_err(unexpected)?, hashes, padded })
    }

    /// Adds the next blocks: whole ones, but for the last one of the file.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let block_bytes = self.layout.block_bytes() as usize;
        for block in bytes.chunks(block_bytes) {
            self.hashes.push(content_hash(block));
            let added = match block.len() == block_bytes {
                true => self.encoder.add_original_shard(block),
                false => self.encoder.add_original_shard(fill(&mut self.padded, block, block_bytes)),
            };
            added.map_err(unexpected)?;
        }
        Ok(())
    }

    /// The record of the group, and its parity blocks one after the other.
    pub fn finish(mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        if self.hashes.len() != self.block_count as usize {
            let (expected, got) = (self.block_count, self.hashes.len());
            return Err(Error::internal(format!("parity: expected {expected} blocks in a group, got {got}")));
        }
        let made = self.encoder.encode().map_err(unexpected)?;
        let (mut parity, mut hashes) = (Vec::new(), Vec::new());
        for block in made.recovery_iter() {
            hashes.push(content_hash(block));
            parity.extend_from_slice(block);
        }
        let record = GroupRecord::new(self.group, self.hashes, hashes);
        Ok((record.to_bytes(&self.layout), parity))
    }
}

fn fill<'a>(padded: &'a mut Vec<u8>, block: &[u8], block_bytes: usize) -> &'a [u8] {
    padded.clear();
    padded.extend_from_slice(block);
    padded.resize(block_bytes, 0);
    padded
}

/// Makes the lost blocks of a group again, from the others and its parity. Whatever it is offered, it gives only blocks that
/// have their checksum.
pub struct GroupRepair<'a> {
    layout: ParityLayout,
    record: &'a GroupRecord,
    decoder: ReedSolomonDecoder,
    has_block: Vec<bool>,
    has_parity: Vec<bool>,
    padded: Vec<u8>,
}

impl<'a> GroupRepair<'a> {
    /// Takes [`ParityLayout::work_bytes`].
    pub fn new(layout: &ParityLayout, record: &'a GroupRecord) -> Result<Self> {
        check_memory(layout)?;
        let (blocks, parity) = (record.block_count() as usize, layout.parity_blocks() as usize);
        let decoder = ReedSolomonDecoder::new(blocks, parity, layout.block_bytes() as usize).map_err(unexpected)?;
        let (has_block, has_parity) = (vec![false; blocks], vec![false; parity]);
        Ok(Self { layout: *layout, record, decoder, has_block, has_parity, padded: Vec::new() })
    }

    /// Offers what was read in the place of a block, or where it may be instead. Returns whether it is the block.
    pub fn offer(&mut self, number: u32, bytes: &[u8]) -> Result<bool> {
        if self.has(number) {
            return Ok(true);
        }
        if !self.record.is_block(number, bytes) {
            return Ok(false);
        }
        let block_bytes = self.layout.block_bytes() as usize;
        let added = match bytes.len() == block_bytes {
            true => self.decoder.add_original_shard(number as usize, bytes),
            false => self.decoder.add_original_shard(number as usize, fill(&mut self.padded, bytes, block_bytes)),
        };
        added.map_err(unexpected)?;
        self.has_block[number as usize] = true;
        Ok(true)
    }

    /// The same for a parity block.
    pub fn offer_parity(&mut self, number: u32, bytes: &[u8]) -> Result<bool> {
        match self.has_parity.get(number as usize) {
            Some(true) => return Ok(true),
            Some(false) if self.record.is_parity(number, bytes) => {}
            _ => return Ok(false),
        }
        self.decoder.add_recovery_shard(number as usize, bytes).map_err(unexpected)?;
        self.has_parity[number as usize] = true;
        Ok(true)
    }

    /// Whether it has a block.
    pub fn has(&self, number: u32) -> bool {
        self.has_block.get(number as usize).is_some_and(|has| *has)
    }

    /// The blocks that it does not have.
    pub fn lost(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.has_block).filter(|(_, has)| !**has).map(|(number, _)| number)
    }

    /// How many parity blocks it lacks.
    pub fn needs_parity(&self) -> usize {
        let has = self.has_parity.iter().filter(|has| **has).count();
        self.lost().count().saturating_sub(has)
    }

    /// The lost blocks, each by its number in the file with its bytes; `None` if more are lost than there is parity for.
    pub fn finish(mut self) -> Result<Option<Vec<MadeBlock>>> {
        let lost: Vec<_> = self.lost().collect();
        if lost.is_empty() {
            return Ok(Some(Vec::new()));
        }
        if self.needs_parity() > 0 {
            return Ok(None);
        }
        let decoded = self.decoder.decode().map_err(unexpected)?;
        let mut made = Vec::with_capacity(lost.len());
        for number in lost {
            let block = self.layout.block_of(self.record.group(), number);
            let range = self.layout.block_range(block);
            let restored = decoded.restored_original(number as usize);
            let bytes = restored.and_then(|bytes| bytes.get(..(range.end - range.start) as usize));
            match bytes.filter(|bytes| self.record.is_block(number, bytes)) {
                Some(bytes) => made.push((block, bytes.to_vec())),
                // Parity that was made of other blocks: a sidecar that was forged, or written by broken memory.
                None => return Ok(None),
            }
        }
        Ok(Some(made))
    }
}
