//! The threads' side of a run: what is read and decoded next, within which memory, and what happens when a call fails, hangs or
//! is slow. It makes batches; `crate::loader` delivers them.

pub(crate) mod concurrency;
pub(crate) mod condition;
pub(crate) mod decode;
pub(crate) mod decoded_cache;
pub(crate) mod decodes_in_flight;
pub(crate) mod fetch;
pub(crate) mod item;
pub(crate) mod landmark_cache;
pub(crate) mod memory;
pub(crate) mod prefetch_depth;
pub(crate) mod reads_in_flight;
pub(crate) mod recover;
pub(crate) mod retries;
pub(crate) mod run_context;
pub(crate) mod watchdog;
pub(crate) mod work_queue;
