//! Shards of other formats than tar: which format it is, and the fields of their samples.

use std::path::PathBuf;
use std::sync::Arc;

use forebay::FieldKind;
use pyo3::prelude::*;

use crate::errors::convert;
use crate::index::Index;
use crate::recipe::Recipe;
use crate::scan::{Options, scanning_store};
use crate::watched::watched;

/// The format of shards.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ShardFormat(pub(crate) forebay::ShardFormat);

/// The fields of samples in shards.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ShardFields(pub(crate) forebay::ShardFields);

#[pymethods]
impl ShardFields {
    /// All of them, by name.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.all().iter().map(|field| field.name.clone()).collect()
    }

    /// Whether samples are tuples: their fields are numbered.
    #[getter]
    fn is_tuple(&self) -> bool {
        self.0.is_tuple
    }

    /// What the field of one of these names is ("image", "pixels", "bytes", "value", "other", or
    /// "none" where it cannot be read), and what that is.
    fn kind(&self, py: Python<'_>, names: Vec<String>) -> PyResult<(&'static str, String)> {
        let field = convert(py, self.0.find(&names))?;
        Ok(match &field.kind {
            FieldKind::Picture => ("image", String::new()),
            FieldKind::Pixels => ("pixels", String::new()),
            FieldKind::Bytes => ("bytes", String::new()),
            FieldKind::Other(what) if !self.0.has_bytes(field) => ("none", what.clone()),
            FieldKind::Other(what) => ("other", what.clone()),
            _ => ("value", String::new()),
        })
    }

    /// What is made of a field that is a "value".
    fn value(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Recipe> {
        let made = self.0.value(&names);
        Ok(Recipe::of_native(convert(py, made)?))
    }

    /// Samples with these columns: the name of each, those that its field may have, and what is made of it.
    fn recipe(&self, py: Python<'_>, columns: Vec<(String, Vec<String>, Py<Recipe>)>) -> PyResult<Recipe> {
        let native =
            columns.iter().map(|(name, names, recipe)| (name.clone(), names.clone(), Arc::clone(&recipe.get().native)));
        let made = convert(py, self.0.recipe(native.collect()))?;
        Ok(Recipe::of_native(made).with_bases(columns.into_iter().map(|(_, _, recipe)| recipe).collect()))
    }
}

/// What the index of a directory of shards says, and the files that it names; `None` where it has none.
#[pyfunction]
pub(crate) fn shard_directory(
    py: Python<'_>,
    root: PathBuf,
    storage_options: Options,
) -> PyResult<Option<(Index, ShardFormat)>> {
    let (store, root) = scanning_store(py, root, storage_options)?;
    let reader = Arc::clone(&store);
    // If the mount hangs, only a signal ends the wait.
    let found = watched(py, "forebay-scan", move || forebay::ShardFormat::of_directory(&reader, &root))?;
    let Some(format) = convert(py, found)? else { return Ok(None) };
    let files = convert(py, format.files())?;
    Ok(files.map(|files| (Index::of(files, store), ShardFormat(format))))
}
