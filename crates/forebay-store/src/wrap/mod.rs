//! Stores made of something below them: the same contract, and one more promise.

mod isolate;

pub(crate) use isolate::Kept;
pub use isolate::{Isolated, Readers};
