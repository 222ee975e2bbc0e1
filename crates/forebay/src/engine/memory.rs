//! The memory budget: what is charged, and buffers for reuse. It is part of the work queue's state, under its mutex.
//!
//! Memory is charged before it is taken. Compressed, decoded and batched bytes share one budget. A stage that holds nothing
//! admits a sample of any size, so the most that can be in use is the budget and one sample, and there is no deadlock.

use forebay_core::{Error, Result};

/// Spare buffers are not charged, so all of them together stay small: this many bytes, or a sixteenth of the budget. Without
/// them, each read of a large file would be into fresh pages, which the kernel zeroes first.
const MAX_SPARE_BYTES: u64 = 64 << 20;

/// What is returned to the budget in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    /// Samples that hold compressed bytes.
    pub(crate) holding: usize,
}

/// The bytes in use, and their limit.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit_bytes: u64,
    used_bytes: u64,
    /// Samples that hold compressed bytes, or wait for them in a read.
    holding: usize,
    /// Those among them that hold some of their fields and wait for the memory of the next one.
    pub(crate) waiting: usize,
    /// Empty buffers for compressed bytes.
    spare: Vec<Vec<u8>>,
    /// Their memory.
    spare_bytes: u64,
}

impl MemoryBudget {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, used_bytes: 0, holding: 0, waiting: 0, spare: Vec::new(), spare_bytes: 0 }
    }

    /// Bytes charged.
    #[cfg(all(test, feature = "shuttle"))]
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Whether so many more bytes stay within the budget.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.used_bytes + bytes <= self.limit_bytes
    }

    /// Whether a sample of this size may be read: it fits, or no other sample holds compressed bytes.
    pub(crate) fn admits_read(&self, bytes: u64) -> bool {
        self.fits(bytes) || self.holding == 0
    }

    /// Whether another field of a sample that holds some may be read: it fits, or no sample goes on without more memory. The
    /// caller counts among those that wait, once it does.
    pub(crate) fn admits_next_field(&self, bytes: u64) -> bool {
        self.fits(bytes) || self.waiting == self.holding
    }

    pub(crate) fn charge(&mut self, bytes: u64) {
        self.used_bytes += bytes;
    }

    /// Charges compressed bytes, and gives a buffer for them. `holding` is 1 for the first field of a sample, 0 for others.
    pub(crate) fn charge_read(&mut self, bytes: u64, holding: usize) -> Vec<u8> {
        self.used_bytes += bytes;
        self.holding += holding;
        let spare = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= spare.capacity() as u64;
        spare
    }

    /// Returns a charge. A charge that was never made is a bug, and an error: a counter that wrapped around would make every
    /// thread wait for memory forever.
    pub(crate) fn uncharge(&mut self, charge: Charge) -> Result<()> {
        let used_bytes = self.used_bytes.checked_sub(charge.bytes);
        if let (Some(used_bytes), Some(holding)) = (used_bytes, self.holding.checked_sub(charge.holding)) {
            (self.used_bytes, self.holding) = (used_bytes, holding);
            return Ok(());
        }
        Err(Error::internal(format!(
            "more memory was given back than was charged (charged: {} bytes, {} read; given back: {charge:?})",
            self.used_bytes, self.holding
        )))
    }

    /// Keeps a buffer for reuse, unless there are `max_spare` already, or too many bytes.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>, max_spare: usize) {
        let bytes = self.spare_bytes + buffer.capacity() as u64;
        let most = MAX_SPARE_BYTES.min(self.limit_bytes / 16);
        if buffer.capacity() > 0 && bytes <= most && self.spare.len() < max_spare {
            self.spare_bytes = bytes;
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Kind;

    #[test]
    fn a_sample_larger_than_the_budget_is_admitted_alone() {
        let mut memory = MemoryBudget::new(100);
        assert!(memory.admits_read(1_000) && !memory.fits(1_000));
        memory.charge_read(1_000, 1);
        assert!(!memory.admits_read(1));
        memory.uncharge(Charge { bytes: 1_000, holding: 1 }).unwrap();
        assert!(memory.admits_read(100) && memory.fits(100) && !memory.fits(101));
    }

    #[test]
    fn more_than_was_charged_cannot_be_returned() {
        let mut memory = MemoryBudget::new(100);
        memory.charge_read(10, 1);
        for charge in [Charge { bytes: 11, holding: 0 }, Charge { bytes: 0, holding: 2 }] {
            assert_eq!(memory.uncharge(charge).unwrap_err().kind(), Kind::Internal);
        }
        memory.uncharge(Charge { bytes: 10, holding: 1 }).unwrap();
    }

    #[test]
    fn buffers_are_reused_up_to_a_number_and_a_size_of_all_of_them() {
        let mut memory = MemoryBudget::new(16 * 100);
        let reused = |memory: &mut MemoryBudget| {
            let sizes: Vec<_> = (0..4).map(|_| memory.charge_read(0, 1).capacity()).collect();
            sizes.into_iter().filter(|&size| size > 0).collect::<Vec<_>>()
        };
        memory.reuse(Vec::new(), 2);
        memory.reuse(Vec::with_capacity(101), 2);
        assert_eq!(reused(&mut memory), [0; 0]);
        (0..3).for_each(|_| memory.reuse(Vec::with_capacity(8), 2));
        assert_eq!(reused(&mut memory), [8, 8]);
        [60, 41, 40].into_iter().for_each(|size| memory.reuse(Vec::with_capacity(size), 4));
        assert_eq!(reused(&mut memory), [40, 60]);
    }
}
