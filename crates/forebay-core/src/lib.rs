//! Vocabulary and arithmetic of forebay: what a sample, a step, a plan, a failure and a state *are*.
//!
//! Nothing here does I/O or starts a thread, so everything here can be tested exhaustively. The other crates
//! add bytes (`forebay-store`), samples (`forebay-format`), pixels (`forebay-decode`) and time (`forebay`).

mod books;
mod clock;
mod column;
mod config;
mod element;
mod error;
mod frame;
mod hash;
mod hint;
mod ids;
mod ledger;
mod listing;
mod locator;
mod mixture;
mod plan;
mod policy;
mod rng;
mod sampling;
mod segment;
mod shard_local;
mod shuffle;
mod state;
mod version;

pub use books::Books;
pub use clock::{Clock, ManualClock, SystemClock};
pub use column::{ScalarColumn, Scalars};
pub use config::{Config, Problems};
pub use element::Element;
pub use error::{Error, Kind, REGISTRY, Registered, Result, Stage};
pub use frame::{FRAME_BYTES, FRAME_HEADER_BYTES, frame_length, masked_crc};
pub use hash::{hash_bytes, hash_words, mix};
pub use hint::{SETTINGS, Setting, Wording, neutral, worded};
pub use ids::{Epoch, Field, Rank, SampleId, Step, WorldSize};
pub use ledger::{Failure, Outcome};
pub use listing::{Entry, Listing};
pub use locator::Locator;
pub use mixture::Mixture;
pub use plan::{EpochOrder, OrderKind, Origin, Place, Plan, PlannedBatch, substitute};
pub use policy::{Chances, FailureLimit, Hedge, Isolate, MAX_SUBSTITUTES, OnError, Retry};
pub use rng::Rng;
pub use sampling::{Balanced, Sampling, SamplingIdentity, Weighted};
pub use segment::Segment;
pub use shard_local::Blocks;
pub use shuffle::Shuffle;
pub use state::{DatasetIdentity, ShardLocalIdentity, State};
pub use version::{Expected, Version, plain_etag, stamp_ns};
