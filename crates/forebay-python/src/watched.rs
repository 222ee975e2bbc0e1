//! Calls that may hang run in their own thread while this one checks for signals, so that Ctrl-C ends the wait.

use std::time::Duration;

use forebay::Bounded;
use pyo3::prelude::*;

use crate::errors::convert;

/// How often signals are checked during a wait: short enough for Ctrl-C.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Returns the result of `call`. On Ctrl-C its thread is abandoned, and ends when the call returns.
pub(crate) fn watched<T: Send + 'static>(
    py: Python<'_>,
    thread: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let mut call = convert(py, Bounded::start(thread, call))?;
    loop {
        if let Some(result) = py.detach(|| call.poll(SLICE)) {
            return Ok(result);
        }
        py.check_signals()?;
    }
}
