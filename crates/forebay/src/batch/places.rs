//! The places of samples in a batch: one buffer for each column that is written in place.

use std::sync::Arc;

use forebay_core::Result;
use forebay_decode::Dense;
use smallvec::SmallVec;

use crate::batch::buffer_pool::{Buffer, BufferPool};

/// The slots of one sample, one for each column.
pub(crate) type Slots<'a> = SmallVec<[&'a mut [u8]; 2]>;

/// The memory of a batch whose samples are written in place.
#[derive(Debug)]
pub(crate) struct Places(SmallVec<[(Buffer, usize); 2]>);

impl Places {
    /// Memory for so many samples, lent where some is idle.
    pub(crate) fn take(pool: &Arc<BufferPool>, layouts: &[Dense], count: usize) -> Result<Self> {
        let take = |layout: &Dense| {
            let slot_bytes = layout.size_bytes();
            let buffer = pool.take_lent(slot_bytes * count).map_or_else(|| pool.take(slot_bytes * count), Ok)?;
            Ok((buffer, slot_bytes))
        };
        layouts.iter().map(take).collect::<Result<_>>().map(Self)
    }

    /// The places of one sample.
    ///
    /// # Safety
    /// No other reference to these slots may exist while the result does. The work queue gives each slot to one thread at a
    /// time.
    pub(crate) unsafe fn slots(&self, slot: usize) -> Slots<'_> {
        // SAFETY: the buffers of columns are apart, and in each the caller has this slot alone.
        self.0.iter().map(|(buffer, size)| unsafe { buffer.slot(slot * size, *size) }).collect()
    }

    /// The columns' memory, each with the size of its slots, once no thread writes to it.
    pub(crate) fn columns(&mut self) -> impl Iterator<Item = (&mut [u8], usize)> {
        self.0.iter_mut().map(|(buffer, size)| (buffer.bytes(), *size))
    }

    /// The buffers, in the order of the columns.
    pub(crate) fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        self.0.into_iter().map(|(buffer, _)| buffer)
    }

    /// No longer counts buffers that a late thread may keep forever.
    pub(crate) fn leave(&self, pool: &BufferPool) {
        self.0.iter().for_each(|(buffer, _)| pool.leave(buffer));
    }
}
