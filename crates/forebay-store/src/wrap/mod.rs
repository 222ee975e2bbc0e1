//! Stores that wrap another store: the same contract, and one more guarantee.

mod cache;
mod isolate;
mod memory;
mod routed;

#[cfg(feature = "testing")]
pub(crate) use cache::entry;
pub use cache::{Cache, CacheInfo, CacheOptions, CacheStats, Cached, Cleared, Damaged, Verified};
pub(crate) use isolate::WindowBytes;
pub use isolate::{Isolated, Readers};
pub use memory::{MemoryCache, MemoryCached};
pub use routed::Routed;
