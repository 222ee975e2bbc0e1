//! Transforms: turns a list of names and arguments into a checked pipeline.

use std::sync::Arc;

use forebay::{Detail, Dtype, Epoch, Error, Op, Order, Output, Rng, Scratch, Value};
use forebay_decode::{Argument, Row};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::call::{PyCall, to_array, value_of};
use crate::errors::convert;
use crate::index::Index;
use crate::recipe::Recipe;

/// A checked list of transforms.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Pipeline {
    pub(crate) native: Arc<forebay::Pipeline>,
    /// The user's callables in it, for the garbage collector.
    calls: Vec<Arc<PyCall>>,
    /// The pipeline that it was derived from, which shows the callables to the garbage collector: they must not be
    /// shown twice.
    base: Option<Py<Pipeline>>,
}

#[pymethods]
impl Pipeline {
    #[new]
    fn new(py: Python<'_>, ops: Vec<(String, Bound<'_, PyDict>)>) -> PyResult<Self> {
        let mut parser = Parser { calls: Vec::new(), depth: 0 };
        let ops = ops.iter().map(|(name, arguments)| parser.op(name, arguments)).collect::<PyResult<Vec<_>>>()?;
        let native = Arc::new(convert(py, forebay::Pipeline::new(ops))?);
        Ok(Self { native, calls: parser.calls, base: None })
    }

    /// The same transforms for batches of another type or order, on pictures of as much detail.
    fn with_output(slf: &Bound<'_, Self>, dtype: Option<&str>, is_interleaved: bool, is_fast: bool) -> PyResult<Self> {
        let dtype = dtype.map(self::dtype).transpose()?;
        let order = if is_interleaved { Order::Interleaved } else { Order::Planar };
        let native = slf.get().native.with_output(Output { dtype, order });
        let detail = if is_fast { Detail::Fast } else { Detail::Faithful };
        let native = Arc::new(convert(slf.py(), native)?.with_detail(detail));
        Ok(Self { native, calls: Vec::new(), base: Some(slf.clone().unbind()) })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.base)?;
        self.calls.iter().try_for_each(|call| call.traverse(&visit))
    }

    fn __clear__(&self) {
        self.calls.iter().for_each(|call| call.clear());
    }

    #[getter]
    fn layout(&self) -> Option<((u32, u32, u32), &'static str)> {
        let layout = self.native.layout()?;
        Some(((layout.channels, layout.height, layout.width), layout.dtype.name()))
    }

    fn __repr__(&self) -> String {
        self.native.to_string()
    }
}

fn dtype(name: &str) -> PyResult<Dtype> {
    let all = [Dtype::U8, Dtype::F32, Dtype::F16, Dtype::BF16];
    all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!("dtype: expected uint8, float32, float16 or bfloat16, got {name}"))
    })
}

/// From specs, (name, arguments), to ops; a spec may be an argument of another.
struct Parser {
    calls: Vec<Arc<PyCall>>,
    /// The nesting depth of the current transform.
    depth: usize,
}

impl Parser {
    /// Deeper arguments cannot be valid: each level of transforms is a transform in a list.
    const MAX_DEPTH: usize = 2 * Op::MAX_DEPTH + 2;

    fn op(&mut self, name: &str, given: &Bound<'_, PyDict>) -> PyResult<Op> {
        if name == "Custom" {
            let get = |name: &str| {
                let value = given.get_item(name)?;
                value.ok_or_else(|| PyTypeError::new_err(format!("Custom needs the argument {name}")))
            };
            let call = Arc::new(PyCall::new(get("name")?.extract()?, get("call")?.unbind()));
            self.calls.push(Arc::clone(&call));
            return Ok(Op::Custom(call));
        }
        let mut arguments = Vec::new();
        for (argument, value) in given {
            let argument = argument.extract::<String>()?;
            let parsed = self.inside(given.py(), |parser| parser.argument(&value))?;
            let parsed = parsed.ok_or_else(|| {
                PyTypeError::new_err(format!("{name}: {argument}: expected numbers, names or transforms, got {value}"))
            })?;
            arguments.push((argument, parsed));
        }
        convert(given.py(), Op::parse(name, arguments))
    }

    /// `None` for a value that no transform accepts.
    fn argument(&mut self, value: &Bound<'_, PyAny>) -> PyResult<Option<Argument>> {
        if let Ok((name, given)) = value.extract::<(String, Bound<'_, PyDict>)>() {
            return self.op(&name, &given).map(|op| Some(Argument::Op(op)));
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            let items = value.try_iter()?.map(|item| self.inside(value.py(), |parser| parser.argument(&item?)));
            return Ok(items.collect::<PyResult<Option<Vec<_>>>>()?.map(Argument::List));
        }
        Ok(if value.is_none() {
            Some(Argument::None)
        } else if let Ok(value) = value.cast::<PyBool>() {
            Some(Argument::Bool(value.is_true()))
        } else if let Ok(text) = value.extract::<String>() {
            Some(Argument::Text(text))
        } else if let Ok(value) = value.extract::<i64>() {
            Some(Argument::Integer(value))
        } else {
            value.extract::<f64>().ok().map(Argument::Number)
        })
    }

    /// Goes one level down.
    fn inside<T>(&mut self, py: Python<'_>, parse: impl FnOnce(&mut Self) -> PyResult<T>) -> PyResult<T> {
        if self.depth == Self::MAX_DEPTH {
            let message = format!("transform: expected at most {} levels of transforms, got more", Op::MAX_DEPTH);
            return convert(py, Err(Error::config(message)));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }
}

/// The table of transforms: name, arguments, accepted input, reference, difference.
#[pyfunction]
pub(crate) fn transform_table() -> Vec<(&'static str, Vec<&'static str>, &'static str, &'static str, &'static str)> {
    let row = |row: &Row| (row.name, row.arguments.to_vec(), row.takes.name(), row.reference, row.difference);
    Op::TABLE.iter().map(row).collect()
}

/// How deep transforms may be nested, and how many there may be.
#[pyfunction]
pub(crate) fn transform_limits() -> (usize, usize) {
    (Op::MAX_DEPTH, Op::MAX_COUNT)
}

/// Decodes and transforms one sample in the calling thread: `dataset[i]`.
#[pyfunction]
pub(crate) fn load_one<'py>(
    py: Python<'py>,
    index: &Index,
    sample: u64,
    recipe: &Recipe,
    seed: u64,
    epoch: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let sample = index.sample(sample)?;
    let source = crate::engine::source(index, Arc::clone(&index.store), recipe);
    let loaded = py.detach(|| source.load(sample, seed, Epoch(epoch)));
    to_array(py, convert(py, loaded)?)
}

/// Applies the transforms to a value (from `forebay._arrays.python_values.from_python`) in the calling thread.
#[pyfunction]
pub(crate) fn apply<'py>(
    py: Python<'py>,
    pipeline: &Pipeline,
    value: &Bound<'py, PyAny>,
    seed: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let value = value_of(value)?;
    let rng = Rng::for_sample(seed, Epoch(0), forebay::SampleId(0));
    let done: Result<Value, Error> = py.detach(|| pipeline.native.transform(value, &rng, &mut Scratch::default()));
    to_array(py, convert(py, done)?)
}
