//! Batches: their memory, and how samples are put together in it.

pub(crate) mod assemble;
pub(crate) mod buffer_pool;
pub(crate) mod column;
pub(crate) mod places;
