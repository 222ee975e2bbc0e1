//! The books of passes over Python datasets: the engine's own journal, limits, retries and substitutes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Books, Epoch, Failure, FailureLimit, Judged, Kind, Outcome, Rank, Retry, SampleId, Stage, Trouble};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::convert;
use crate::watched::watched;

/// A limit as Python gives it.
#[derive(FromPyObject)]
pub(crate) enum Limit {
    Count(u64),
    Fraction(f64),
}

impl From<Limit> for FailureLimit {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Count(count) => Self::Count(count),
            Limit::Fraction(fraction) => Self::Fraction(fraction),
        }
    }
}

/// A failure as a pass reports it; the account adds epoch, rank and time.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Row {
    path: PathBuf,
    index: u64,
    code: String,
    stage: Option<String>,
    errno: Option<i32>,
    attempts: u32,
    elapsed_seconds: f64,
    message: String,
    hint: String,
    detail: Option<String>,
    step: u64,
    position: u64,
    outcome: String,
    substitute: Option<u64>,
    size_bytes: Option<u64>,
    mtime_ns: Option<i64>,
}

impl Row {
    fn failure(self) -> PyResult<Failure> {
        let outcome = Outcome::from_name(&self.outcome).ok_or_else(|| {
            PyValueError::new_err(format!("outcome: expected one of a ledger's, got {:?}", self.outcome))
        })?;
        Ok(Failure {
            index: self.index,
            code: self.code,
            stage: self.stage.as_deref().and_then(Stage::from_name),
            errno: self.errno,
            attempts: self.attempts,
            elapsed_seconds: self.elapsed_seconds,
            message: self.message,
            hint: self.hint,
            detail: self.detail,
            step: self.step,
            position: self.position,
            substitute: self.substitute,
            size_bytes: self.size_bytes,
            mtime_ns: self.mtime_ns,
            ..Failure::at(&self.path, outcome)
        })
    }
}

fn failures(rows: Vec<Row>) -> PyResult<Vec<Failure>> {
    rows.into_iter().map(Row::failure).collect()
}

/// Failures, books and the ledger of one loader, over all its epochs.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Journal(Arc<forebay::Journal>);

#[pymethods]
impl Journal {
    #[new]
    fn new(py: Python<'_>, ledger: Option<PathBuf>) -> PyResult<Self> {
        let limit = Retry::default().deadline;
        let opened = match ledger {
            // The ledger may be on a mount that hangs.
            Some(path) => watched(py, "forebay-ledger", move || forebay::Journal::open(Some(&path), limit))?,
            None => forebay::Journal::open(None, limit),
        };
        Ok(Self(Arc::new(convert(py, opened)?)))
    }

    /// Opens the books of a pass, starting from those of the resumed state.
    #[pyo3(signature = (epoch, rank, max_failures, books = (0, 0, 0, 0)))]
    fn begin(&self, epoch: u64, rank: u32, max_failures: Option<Limit>, books: (u64, u64, u64, u64)) -> Account {
        let limit = max_failures.map(FailureLimit::from);
        Account(forebay::Account::open(Arc::clone(&self.0), Epoch(epoch), Rank(rank), limit, counted(books)))
    }

    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        failure_rows(py, py.detach(|| self.0.failures()))
    }

    fn books<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        book_rows(py, self.0.books())
    }

    fn report(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.report().to_string())
    }

    /// The ledger's lines of permanently bad files, for `Retries`.
    fn known_bad(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let lines = py.detach(|| self.0.known_bad().iter().map(Failure::to_line).collect());
        convert(py, lines)
    }

    /// Why lines are missing from the ledger, if any are.
    fn ledger_error(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.0.ledger_trouble())
    }

    /// Waits briefly for unwritten lines, and closes the ledger.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

fn counted((planned, delivered, replaced, skipped): (u64, u64, u64, u64)) -> Books {
    Books { planned, delivered, replaced, skipped, padded: 0 }
}

/// The books of one pass.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Account(forebay::Account);

#[pymethods]
impl Account {
    /// Records failures of a batch that is not delivered.
    fn enter(&self, py: Python<'_>, rows: Vec<Row>) -> PyResult<()> {
        let failures = failures(rows)?;
        py.detach(|| self.0.enter(failures));
        Ok(())
    }

    /// Records a delivered batch: planned, delivered, replaced, skipped. Returns the books after it.
    fn hand_over(&self, py: Python<'_>, batch: (u64, u64, u64, u64), rows: Vec<Row>) -> PyResult<(u64, u64, u64, u64)> {
        let failures = failures(rows)?;
        let books = convert(py, py.detach(|| self.0.hand_over(counted(batch), failures)))?;
        Ok((books.planned, books.delivered, books.replaced, books.skipped))
    }

    /// Checks that the books balance at the end of the epoch.
    fn check(&self, py: Python<'_>, expected_planned: Option<u64>) -> PyResult<()> {
        convert(py, self.0.check(expected_planned))
    }
}

/// The retry policy for samples.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Retries(Arc<forebay::Retries>);

#[pymethods]
impl Retries {
    /// A deadline of `None` means no deadline.
    #[new]
    fn new(retries: u32, deadline_seconds: Option<f64>, known_bad: Vec<String>) -> PyResult<Self> {
        let deadline = deadline_seconds
            .map_or(Ok(Duration::MAX), Duration::try_from_secs_f64)
            .map_err(|error| PyValueError::new_err(format!("deadline_seconds: {error}")))?;
        let known = known_bad
            .iter()
            .map(|line| serde_json::from_str::<Failure>(line))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PyValueError::new_err(format!("known_bad: {error}")))?;
        Ok(Self(Arc::new(forebay::Retries::new(Retry { retries, deadline, ..Retry::default() }, &known))))
    }

    /// The attempts for the sample in this slot of a batch.
    fn begin(&self, batch: u64, slot: u32) -> Tries {
        Tries { retries: Arc::clone(&self.0), tries: Mutex::new(forebay::Tries::begin(batch, slot)) }
    }
}

/// The attempts for one sample.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Tries {
    retries: Arc<forebay::Retries>,
    tries: Mutex<forebay::Tries>,
}

#[pymethods]
impl Tries {
    /// After a failed attempt: the pause before the next one in seconds, or `None` if the sample is given up; then size
    /// and modification time of the file that caused it, and whether it was known to be bad.
    fn after(
        &self,
        py: Python<'_>,
        errno: Option<i32>,
        code: &str,
        stage: &str,
        path: Option<PathBuf>,
    ) -> (Option<f64>, Option<(u64, i64)>, bool) {
        let kind = Kind::from_slug(code).unwrap_or(Kind::UserCode);
        let trouble = Trouble { errno, kind, stage: Stage::from_name(stage), path: path.as_deref() };
        let judged = py.detach(|| {
            let mut tries = self.tries.lock();
            self.retries.judge(&mut tries, &trouble)
        });
        match judged {
            Judged::Again(pause) => (Some(pause.as_secs_f64()), None, false),
            Judged::GivenUp { file, is_known } => (None, file, is_known),
        }
    }
}

/// The meaning of an errno: its code, and whether a later attempt may succeed.
#[pyfunction]
pub(crate) fn classify(errno: i32) -> Option<(&'static str, bool)> {
    Kind::of_errno(errno).map(|(kind, is_transient)| (kind.slug(), is_transient))
}

/// The substitute for a sample of a dataset of `length` at the `attempt`-th attempt, from 1.
#[pyfunction]
pub(crate) fn substitute(length: u64, seed: u64, epoch: u64, position: u64, original: u64, attempt: u32) -> u64 {
    forebay::substitute(length, seed, Epoch(epoch), position, SampleId(original), attempt).0
}

/// Failures as Python objects: attribute names, and paths as `os` functions return them.
pub(crate) fn failure_rows(py: Python<'_>, failures: Vec<Failure>) -> PyResult<Bound<'_, PyList>> {
    let rows = PyList::empty(py);
    for failure in failures {
        let row = from_json(py, &failure)?;
        row.set_item("path", failure.path().into_os_string())?;
        rows.append(row)?;
    }
    Ok(rows)
}

/// The books of epochs as Python objects.
pub(crate) fn book_rows(py: Python<'_>, epochs: Vec<(Epoch, Books)>) -> PyResult<Bound<'_, PyList>> {
    let rows = PyList::empty(py);
    for (epoch, books) in epochs {
        let row = from_json(py, &books)?;
        row.set_item("epoch", epoch.0)?;
        rows.append(row)?;
    }
    Ok(rows)
}

/// A serialisable value as a Python dictionary.
fn from_json<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyDict>> {
    let text = serde_json::to_string(value)
        .map_err(|error| PyRuntimeError::new_err(format!("a record could not be written as JSON: {error}")))?;
    Ok(py.import("json")?.call_method1("loads", (text,))?.cast_into()?)
}
