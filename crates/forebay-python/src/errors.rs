//! Converts errors to Python exceptions. The classes are Python's own (`forebay.errors`), found by code.

use forebay::{Error, REGISTRY, Registered, worded};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::hint::argument;

/// An exception raised by the user's callable, inside an [`Error`].
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) PyErr);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Raised {}

/// The exception for an error.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|failed| failed)
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    fields.set_item("path", error.path().map(std::path::Path::as_os_str))?;
    fields.set_item("index", error.index())?;
    fields.set_item("stage", error.stage().map(forebay::Stage::name))?;
    fields.set_item("errno", error.errno())?;
    fields.set_item("attempts", error.attempts())?;
    fields.set_item("elapsed_seconds", error.elapsed().as_secs_f64())?;
    fields.set_item("hint", error.hint_in(argument))?;
    fields.set_item("detail", error.detail())?;
    // `into_value` attaches the traceback, which `value` does not.
    let cause = error.source_as::<Raised>().map(|raised| raised.0.clone_ref(py).into_value(py));
    let arguments = (error.kind().slug(), error.to_string(), fields, cause);
    let exception = py.import("forebay.errors")?.getattr("_raise")?.call1(arguments)?;
    Ok(PyErr::from_value(exception))
}

/// Converts an engine's result to Python's.
pub(crate) fn convert<T>(py: Python<'_>, result: forebay::Result<T>) -> PyResult<T> {
    result.map_err(|error| to_python(py, &error))
}

/// Code, class, builtin, meaning and hint of every kind of error.
#[pyfunction]
pub(crate) fn error_registry() -> Vec<(&'static str, &'static str, &'static str, &'static str, String)> {
    let row = |row: &Registered| (row.slug, row.class, row.builtin, row.meaning, worded(row.hint, argument));
    REGISTRY.iter().map(row).collect()
}
