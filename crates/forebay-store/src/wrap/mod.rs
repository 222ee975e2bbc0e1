//! Stores made of something below them: the same contract, and one more promise.

mod cache;
mod isolate;

#[cfg(feature = "testing")]
pub(crate) use cache::entry;
pub use cache::{Cache, CacheInfo, CacheOptions, CacheStats, Cached, Cleared, Damaged, Verified};
pub(crate) use isolate::Kept;
pub use isolate::{Isolated, Readers};
