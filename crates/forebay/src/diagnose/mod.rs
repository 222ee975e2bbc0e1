//! What is happening in a run: which calls are slow or stuck, on demand, on a signal, or when the loop waits for long.

pub(crate) mod bounded;
pub(crate) mod dump;
pub(crate) mod signal;
pub(crate) mod watch;
