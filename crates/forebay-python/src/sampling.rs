//! Orders by proportions, weights and classes, from Python's description.

use forebay::{Balanced, Error, Mixture, SampleId, Weighted};
use pyo3::prelude::*;

use crate::errors::convert;
use crate::index::{Index, scalars};

/// Which samples an epoch has.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Sampling {
    pub(crate) native: forebay::Sampling,
}

#[pymethods]
impl Sampling {
    /// Datasets of these lengths; weights from so many samples on.
    #[staticmethod]
    fn mixture(py: Python<'_>, lengths: Vec<u64>, samples: u64, weights: Vec<(u64, Vec<f64>)>) -> PyResult<Self> {
        let mixture = py.detach(|| Mixture::new(&lengths, samples, &weights));
        Ok(Self { native: forebay::Sampling::Mixture(convert(py, mixture)?) })
    }

    /// Draws by a weight for each sample.
    #[staticmethod]
    fn weighted(py: Python<'_>, weights: Vec<f64>, samples: u64, has_replacement: bool) -> PyResult<Self> {
        let weighted = py.detach(|| Weighted::new(&weights, samples, has_replacement));
        Ok(Self { native: forebay::Sampling::Weighted(convert(py, weighted)?) })
    }

    /// Equal parts of every class: of values, one for each sample, or of the dataset's own column of this name.
    #[staticmethod]
    fn balanced(
        py: Python<'_>,
        index: &Index,
        samples: u64,
        column: Option<&str>,
        values: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let classes = classes(index, column, values)?;
        let balanced = py.detach(|| Balanced::new(&classes, samples));
        Ok(Self { native: forebay::Sampling::Balanced(convert(py, balanced)?) })
    }

    /// Samples in an epoch.
    #[getter]
    fn samples(&self) -> u64 {
        self.native.samples()
    }
}

/// A number for the class of each sample: by given values, or by a column of the dataset, which may be its only one.
pub(crate) fn classes(index: &Index, column: Option<&str>, given: Option<Bound<'_, PyAny>>) -> PyResult<Vec<u32>> {
    if let Some(given) = given {
        return Ok(scalars("labels", &given)?.numbered());
    }
    let all: Vec<_> = (0..index.dataset.len()).map(SampleId).collect();
    let columns = index.dataset.scalars(&all);
    let names: Vec<_> = columns.iter().map(|column| column.name.to_string()).collect();
    let mut found = columns.into_iter().filter(|known| column.is_none_or(|column| *known.name == *column));
    match (found.next(), found.next()) {
        (Some(column), None) => Ok(column.values.numbered()),
        _ => {
            let expected = column.map_or("a dataset with one column of labels".to_owned(), |name| format!("{name:?}"));
            let error = Error::config(format!("labels: expected {expected}, got a dataset with {names:?}"));
            Python::attach(|py| convert(py, Err(error.with_hint("pass the labels themselves, one for each sample"))))
        }
    }
}
