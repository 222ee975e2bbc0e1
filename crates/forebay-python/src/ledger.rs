//! The ledger of a Python dataset, written by the same thread as the loader's own.

use std::path::PathBuf;
use std::time::Duration;

use forebay::LedgerWriter;
use pyo3::prelude::*;

use crate::errors::convert;
use crate::watched::watched;

/// How long a ledger may take to be opened: as long as a read of a disk may take.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// A ledger that lines are appended to.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Ledger(LedgerWriter);

#[pymethods]
impl Ledger {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = watched(py, "forebay-ledger", move || LedgerWriter::open(&path, OPEN_LIMIT, |_| Ok(())))?;
        Ok(Self(convert(py, opened)?.0))
    }

    /// Appends one line. Waits a moment at most: what cannot be written yet is written later.
    fn append(&self, py: Python<'_>, line: &str) {
        py.detach(|| self.0.append_lines(line, 1));
    }

    /// Why lines are missing from the file, if any are.
    fn trouble(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.0.trouble())
    }

    /// Waits a moment for lines that were not written yet.
    fn flush(&self, py: Python<'_>) {
        py.detach(|| self.0.flush());
    }
}
