//! Doubles for tests, and the suite that every store has to pass. Compiled only with the feature `testing`.

pub mod conformance;
mod hostile;
mod memory;
mod missing;
mod scripted;

pub use hostile::{EntryFile, read_ledger};
pub use memory::Memory;
pub use missing::missing;
pub use scripted::{Fault, Scripted};
