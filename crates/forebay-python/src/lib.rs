//! `forebay._forebay`: the engine's Python binding. Conversion only, no decisions.
//!
//! Python objects reach other threads only inside [`call::PyCall`], which attaches the thread to the interpreter while
//! the user's callable runs. Everything that may wait does so detached: with the GIL released, or, in a Python without
//! a GIL, out of the way of its garbage collector, which stops every attached thread.

use pyo3::prelude::*;

mod array;
mod call;
mod engine;
mod errors;
mod hint;
mod index;
mod journal;
mod pipeline;
mod place;
mod recipe;
mod run;
mod sampling;
mod scan;
mod shards;
mod watched;

/// CPUs that this process may run on.
#[pyfunction]
fn available_cpus() -> usize {
    forebay::machine::available_cpus()
}

/// Prints the calls in flight of every loader whenever this signal arrives.
#[pyfunction]
fn dump_on_signal(py: Python<'_>, signal: i32) -> PyResult<()> {
    errors::convert(py, forebay::dump_on_signal(signal))
}

/// The `forebay` command; returns its exit status.
#[pyfunction]
fn run_cli(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| forebay_cli::main(arguments))
}

// Needs no GIL: every class is frozen, mutable state is behind its own mutex, and no mutex is held while Python code
// runs (decisions/0024).
#[pymodule(gil_used = false)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<array::Array>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<index::Index>()?;
    module.add_class::<place::DatasetCache>()?;
    module.add_class::<journal::Account>()?;
    module.add_class::<journal::Journal>()?;
    module.add_class::<journal::Retries>()?;
    module.add_class::<journal::Tries>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<recipe::Recipe>()?;
    module.add_class::<run::Batch>()?;
    module.add_class::<run::Run>()?;
    module.add_class::<sampling::Sampling>()?;
    module.add_class::<shards::ShardFields>()?;
    module.add_class::<shards::ShardFormat>()?;
    module.add_function(wrap_pyfunction!(available_cpus, module)?)?;
    module.add_function(wrap_pyfunction!(call::end_calls, module)?)?;
    module.add_function(wrap_pyfunction!(dump_on_signal, module)?)?;
    module.add_function(wrap_pyfunction!(errors::error_registry, module)?)?;
    module.add_function(wrap_pyfunction!(hint::hint_settings, module)?)?;
    module.add_function(wrap_pyfunction!(journal::classify, module)?)?;
    module.add_function(wrap_pyfunction!(journal::substitute, module)?)?;
    module.add_function(wrap_pyfunction!(scan::find_classes, module)?)?;
    module.add_function(wrap_pyfunction!(array::pad, module)?)?;
    module.add_function(wrap_pyfunction!(scan::list_files, module)?)?;
    module.add_function(wrap_pyfunction!(scan::open_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(scan::split_url, module)?)?;
    module.add_function(wrap_pyfunction!(scan::scan, module)?)?;
    module.add_function(wrap_pyfunction!(scan::scan_files, module)?)?;
    module.add_function(wrap_pyfunction!(scan::take_warnings, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::apply, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::load_one, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::transform_limits, module)?)?;
    module.add_function(wrap_pyfunction!(pipeline::transform_table, module)?)?;
    module.add_function(wrap_pyfunction!(run_cli, module)?)?;
    module.add_function(wrap_pyfunction!(shards::shard_directory, module)?)?;
    module.add("MAX_SUBSTITUTES", forebay::MAX_SUBSTITUTES)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
