//! One pass over an epoch, and its batches.

use std::time::{Duration, Instant};

use forebay::{Column, Next, SampleId, Scalars};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::array::Array;
use crate::call::to_array;
use crate::errors::convert;
use crate::watched::SLICE;

/// One batch.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Batch {
    #[pyo3(get)]
    epoch: u64,
    #[pyo3(get)]
    step: u64,
    /// The recipe's columns by name: an array, or a list if the samples differ in shape.
    #[pyo3(get)]
    content: Py<PyDict>,
    /// The dataset's columns by name.
    #[pyo3(get)]
    scalars: Py<PyDict>,
    #[pyo3(get)]
    indices: Vec<u64>,
    #[pyo3(get)]
    failed: u64,
    receipt: forebay::Receipt,
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.indices.len()
    }
}

impl Batch {
    fn new(py: Python<'_>, batch: forebay::Batch) -> PyResult<Self> {
        let count = batch.len();
        let (content, scalars) = (PyDict::new(py), PyDict::new(py));
        for forebay::NamedColumn { name, column } in batch.columns {
            match column {
                Column::Scalars(values) => scalars.set_item(&*name, scalar_column(py, values)?)?,
                column => content.set_item(&*name, content_column(py, column, count)?)?,
            }
        }
        Ok(Self {
            epoch: batch.epoch.0,
            step: batch.step.0,
            content: content.unbind(),
            scalars: scalars.unbind(),
            indices: batch.samples.into_iter().map(|sample| sample.0).collect(),
            failed: batch.failed,
            receipt: batch.receipt,
        })
    }
}

fn content_column(py: Python<'_>, column: Column, count: usize) -> PyResult<Bound<'_, PyAny>> {
    let list = PyList::empty(py);
    match column {
        Column::Dense { buffer, layout } => return Ok(Bound::new(py, Array::batch(buffer, count, &layout))?.into_any()),
        Column::Ragged(arrays) => {
            arrays.into_iter().try_for_each(|array| list.append(Bound::new(py, Array::rows(array))?))?;
        }
        Column::Text(texts) => texts.iter().try_for_each(|text| list.append(text))?,
        Column::Bytes(all) => all.iter().try_for_each(|bytes| list.append(PyBytes::new(py, bytes)))?,
        Column::Objects(values) => values.into_iter().try_for_each(|value| list.append(to_array(py, value)?))?,
        Column::Scalars(values) => return scalar_column(py, values),
    }
    Ok(list.into_any())
}

/// A column of scalars: an array of numbers, or a list of strings.
pub(crate) fn scalar_column(py: Python<'_>, values: Scalars) -> PyResult<Bound<'_, PyAny>> {
    let array = match values {
        Scalars::I64(values) => Array::integers(values),
        Scalars::F64(values) => Array::doubles(values),
        Scalars::Bool(values) => {
            let count = values.len();
            Array::elements(values.into_iter().map(u8::from).collect(), vec![count], "bool")
        }
        Scalars::Text(texts) => return Ok(PyList::new(py, texts)?.into_any()),
    };
    Ok(Bound::new(py, array)?.into_any())
}

/// One pass over an epoch.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Run {
    run: Mutex<Option<forebay::Run>>,
    /// For other threads, while one of them waits in `next`.
    watch: Option<forebay::Watch>,
}

impl Run {
    pub(crate) fn new(run: forebay::Run) -> Self {
        Self { watch: run.watch(), run: Mutex::new(Some(run)) }
    }

    /// Closes the run while another thread may wait in it.
    fn take(&self) -> Option<forebay::Run> {
        if let Some(mut run) = self.run.try_lock() {
            return run.take();
        }
        // It has been polled, so the threads behind the watch are this process's own.
        self.watch.iter().for_each(forebay::Watch::interrupt);
        self.run.lock().take()
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        action: impl FnOnce(&mut forebay::Run) -> forebay::Result<T> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let mut run = self.run.lock();
            run.as_mut().map(action)
        });
        let closed = || Err(forebay::Error::new(forebay::Kind::Stopped, "this iteration was closed"));
        convert(py, result.unwrap_or_else(closed))
    }
}

#[pymethods]
impl Run {
    /// The next batch; `None` at the end of the epoch, `False` if it is not complete within `patience_seconds`.
    #[pyo3(signature = (patience_seconds = f64::INFINITY))]
    fn next(&self, py: Python<'_>, patience_seconds: f64) -> PyResult<Py<PyAny>> {
        let asked = Instant::now();
        loop {
            match self.with(py, |run| run.poll(SLICE))? {
                Next::Batch(batch) => return Ok(Py::new(py, Batch::new(py, batch)?)?.into_any()),
                Next::Pending => py.check_signals()?,
                Next::End => return Ok(py.None()),
            }
            if asked.elapsed().as_secs_f64() >= patience_seconds {
                return Ok(false.into_pyobject(py)?.to_owned().into_any().unbind());
            }
        }
    }

    /// Records a batch as delivered: it is about to reach the training loop.
    fn commit(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        let receipt = batch.receipt;
        self.with(py, |run| {
            run.commit(receipt);
            Ok(())
        })
    }

    /// Whether another batch is planned.
    fn is_more_planned(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |run| Ok(run.is_more_planned()))
    }

    /// The threads' current calls, longest first.
    fn in_flight<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        let items = py.detach(|| self.watch.as_ref().map(forebay::Watch::in_flight).unwrap_or_default());
        for item in items {
            let row = PyDict::new(py);
            row.set_item("path", item.path.into_os_string())?;
            row.set_item("index", item.sample.0)?;
            row.set_item("stage", item.stage.name())?;
            row.set_item("thread", item.thread)?;
            row.set_item("attempt", item.attempt)?;
            row.set_item("elapsed_seconds", item.elapsed.as_secs_f64())?;
            row.set_item("mount", item.mount.as_ref().map(|mount| mount.point.as_os_str().to_owned()))?;
            row.set_item("filesystem", item.mount.as_ref().map(|mount| &mount.filesystem))?;
            rows.append(row)?;
        }
        Ok(rows)
    }

    /// The same as a phrase, with the state of the mounts.
    fn in_words(&self, py: Python<'_>) -> String {
        py.detach(|| self.watch.as_ref().map_or("nothing".to_owned(), forebay::Watch::in_words))
    }

    /// A sentence about what the loop has waited for this long.
    fn stall_in_words(&self, py: Python<'_>, waited_seconds: f64) -> PyResult<String> {
        self.with(py, |run| Ok(run.stall_in_words(seconds(waited_seconds))))
    }

    /// Records such a stall in the ledger, if there is one.
    fn note_stall(&self, py: Python<'_>, waited_seconds: f64) -> PyResult<()> {
        self.with(py, |run| {
            run.note_stall(seconds(waited_seconds));
            Ok(())
        })
    }

    fn give(&self, py: Python<'_>, samples: Vec<u64>) -> PyResult<()> {
        self.with(py, |run| run.give(samples.into_iter().map(SampleId).collect()))
    }

    fn close_order(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |run| run.close_order())
    }

    /// Ends the run without waiting for its threads; closing the loader does that.
    fn abandon(&self, py: Python<'_>) {
        py.detach(|| self.take().map(forebay::Run::abandon));
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop_detached(self.run.lock().take());
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// Drops a value whose drop joins threads. They may be waiting to attach, so this thread must be detached. Once the
/// interpreter is shutting down they can never attach, so they are not waited for.
pub(crate) fn drop_detached<T: Send>(value: Option<T>) {
    let Some(value) = value else { return };
    let mut value = std::mem::ManuallyDrop::new(value);
    Python::try_attach(|py| {
        // SAFETY: the value is dropped once, here; without an interpreter it is leaked on purpose.
        py.detach(|| unsafe { std::mem::ManuallyDrop::drop(&mut value) });
    });
}
