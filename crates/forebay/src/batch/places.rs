//! The places of samples in a batch: one buffer for each column that is written in place.

use std::sync::Arc;

use forebay_core::Result;
use forebay_decode::Dense;
use smallvec::SmallVec;

use crate::batch::buffer_pool::{Buffer, BufferPool};

/// The slots of one sample, one for each column.
pub(crate) type Slots<'a> = SmallVec<[&'a mut [u8]; 2]>;

/// Whether a column takes memory that is lent, in blocks for the largest one: labels would waste what pictures need.
pub(crate) fn is_lent(layout: &Dense, layouts: &[Dense]) -> bool {
    let largest = layouts.iter().map(Dense::size_bytes).max().unwrap_or(0);
    layout.size_bytes() >= largest / 4
}

/// The memory of a batch whose samples are written in place.
#[derive(Debug)]
pub(crate) struct Places(SmallVec<[(Buffer, usize); 2]>);

impl Places {
    /// Memory for so many samples, lent where some is idle.
    pub(crate) fn take(pool: &Arc<BufferPool>, layouts: &[Dense], count: usize) -> Result<Self> {
        let take = |layout: &Dense| {
            let slot_bytes = layout.size_bytes();
            let lent = if is_lent(layout, layouts) { pool.take_lent(slot_bytes * count) } else { None };
            Ok((lent.map_or_else(|| pool.take(slot_bytes * count), Ok)?, slot_bytes))
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::Element;
    use forebay_decode::Order;
    use std::ptr::NonNull;

    #[test]
    fn labels_leave_lent_memory_to_pictures() {
        let dense = |shape: &[usize], element| Dense { shape: shape.to_vec(), element, order: Order::default() };
        let layouts = [dense(&[], Element::I64), dense(&[3, 4, 4], Element::U8)];
        let pool = Arc::new(BufferPool::new(4));
        let mut memory = vec![0_u64; 24];
        let start = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the vector is its own lender, and its heap memory does not move with it.
        unsafe { pool.lend(start, 192, Box::new(memory)) };
        let mut places = Places::take(&pool, &layouts, 4).unwrap();
        let from_lender: Vec<_> = places.columns().map(|(bytes, _)| bytes.as_ptr() == start.as_ptr()).collect();
        assert_eq!(from_lender, [false, true]);
    }
}
