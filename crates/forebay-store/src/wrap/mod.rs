//! Stores made of something below them: the same contract, and one more promise.

mod cache;
mod isolate;
mod memory;

#[cfg(feature = "testing")]
pub(crate) use cache::entry;
pub use cache::{Cache, CacheInfo, CacheOptions, CacheStats, Cached, Cleared, Damaged, Verified};
pub(crate) use isolate::Kept;
pub use isolate::{Isolated, Readers};
pub use memory::{MemoryCache, MemoryCached};
