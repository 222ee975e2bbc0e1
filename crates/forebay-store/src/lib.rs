//! The storage layer. The only crate of forebay that touches disk or network.
//!
//! A [`Store`] reads objects and lists directories; a [`Sink`] writes copies of them. Both report errors and decide
//! nothing: retry, replace and stop belong to the loader.

#![allow(clippy::disallowed_methods, reason = "this is the crate that touches the disk")]

mod capabilities;
mod hint;
mod kept;
mod ledger;
mod local;
pub mod machine;
mod mapped;
mod mount;
mod mount_state;
mod read_request;
mod reader;
mod remote;
mod repairs;
mod replace;
mod sink;
mod store;
mod stuck;
#[cfg(feature = "testing")]
pub mod testing;
mod wrap;

pub use capabilities::Capabilities;
pub use kept::KeptFiles;
pub use ledger::LedgerFile;
pub use local::Local;
pub use mapped::Mapped;
pub use mount::{Mount, MountKind, MountTable, Site};
pub use mount_state::{MountState, Requests};
pub use read_request::ReadRequest;
pub use remote::{
    Protocol, Remote, StorageOptions, Sum, Traffic, file_path, is_same_origin, is_url, protocol_of, read_setting,
    split_url, take_warnings,
};
pub use repairs::Repairs;
pub use replace::Replacement;
pub use sink::{Age, DirectorySink, Held, ObjectSink, Sink, SinkEntry, Writing, check_name, is_part, real_path};
pub use store::{Allot, Bytes, Cancel, Object, Stat, Stop, Store};
pub use stuck::{Stuck, late, too_many_stuck};
pub use wrap::{
    Cache, CacheInfo, CacheOptions, CacheStats, Cached, Cleared, Damaged, Isolated, MemoryCache, MemoryCached, Readers,
    Routed, Verified,
};
