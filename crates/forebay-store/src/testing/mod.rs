//! Doubles for tests, and the suite that every store has to pass. Compiled only with the feature `testing`.

pub mod conformance;
mod memory;
mod scripted;

pub use memory::Memory;
pub use scripted::{Fault, Scripted};
