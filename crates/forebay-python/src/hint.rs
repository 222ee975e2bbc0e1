//! Hints in Python's words: settings are arguments.

use forebay::{SETTINGS, Setting};
use pyo3::prelude::*;

/// A setting as an argument: `retries`, allow_empty=True, storage_options={"profile": …}.
pub(crate) fn argument(Setting { name, key, value }: Setting<'_>) -> String {
    let value = value.map(|value| match value {
        "true" => "True",
        "false" => "False",
        other => other,
    });
    match (key, value) {
        (Some(key), value) => format!("{name}={{\"{key}\": {}}}", value.unwrap_or("…")),
        (None, Some(value)) => format!("{name}={value}"),
        (None, None) => format!("`{name}`"),
    }
}

/// Every setting that a hint may name, and how it is written where it is to be true.
#[pyfunction]
pub(crate) fn hint_settings() -> Vec<(&'static str, String)> {
    SETTINGS.iter().map(|name| (*name, argument(Setting { name, key: None, value: Some("true") }))).collect()
}
