//! Calls that may hang, made in a thread of their own while this one looks at signals: Ctrl-C ends the wait.

use std::time::Duration;

use forebay::Bounded;
use pyo3::prelude::*;

use crate::errors::convert;

/// How long a wait goes on before signals are looked at: Ctrl-C is felt at once.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// What `call` gives. On Ctrl-C its thread is left alone, and ends when the call returns.
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
