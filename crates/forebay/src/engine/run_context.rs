//! The run context: what the threads of a stream share and never change.

use std::sync::Arc;

use forebay_core::{Clock, Config, Plan};
use forebay_decode::Dense;
use forebay_store::Stop;

use crate::batch::buffer_pool::BufferPool;
use crate::batch::column::Schema;
use crate::engine::decoded_cache::DecodedCache;
use crate::engine::landmark_cache::LandmarkCache;
use crate::engine::recover::Quarantine;
use crate::record::stats::Meters;
use crate::source::Source;

/// What is loaded, by which settings, and where its effects are recorded.
pub(crate) struct RunContext {
    pub(crate) source: Source,
    pub(crate) schema: Schema,
    /// Of each column, where samples are made in place; else none.
    pub(crate) layouts: Vec<Dense>,
    pub(crate) config: Config,
    pub(crate) plan: Plan,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) quarantine: Arc<Quarantine>,
    pub(crate) landmark_cache: Arc<LandmarkCache>,
    /// `None` unless the configuration asks for it.
    pub(crate) decoded_cache: Option<Arc<DecodedCache>>,
    pub(crate) pool: Arc<BufferPool>,
    /// Ends reads that hang, where the store can.
    pub(crate) stop_reads: Option<Stop>,
}

impl RunContext {
    /// Bytes of one sample's places in a batch; 0 where samples have no fixed shape.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.layouts.iter().map(|layout| layout.size_bytes() as u64).sum()
    }
}
