//! The user's callables (a transform, or a function that opens a sample), run by CPU threads attached to the
//! interpreter.

use std::ffi::c_long;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Codec, Custom, Decoded, Error, Image, Kind, Open, Stage, Tensor, TensorData, Value};
use parking_lot::{Mutex, MutexGuard};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyUnicodeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::array::Array;
use crate::errors::Raised;

/// A Python callable with its name for messages.
///
/// It may refer back to the loader (a method of the object that owns it), so Python's garbage collector has to see it:
/// the classes that own a `PyCall` traverse and clear it.
pub(crate) struct PyCall {
    name: String,
    callable: Mutex<Option<Py<PyAny>>>,
}

impl PyCall {
    pub(crate) fn new(name: String, callable: Py<PyAny>) -> Self {
        Self { name, callable: Mutex::new(Some(callable)) }
    }

    /// Shows the callable to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The lock is held only while the pointer is copied. Then the callable is in use: it is visited at the next
        // collection.
        self.callable.try_lock().map_or(Ok(()), |callable| visit.call(&*callable))
    }

    /// Drops the callable: the garbage collector found that it is unreachable.
    pub(crate) fn clear(&self) {
        let callable = self.callable.lock().take();
        drop(callable);
    }

    fn callable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let callable = self.callable.lock();
        let callable = callable.as_ref().map(|callable| callable.bind(py).clone());
        callable.ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("its loader was garbage-collected"))
    }

    /// Runs `action` with this thread attached to the interpreter; an exception in it is the user's own.
    fn attached(&self, stage: Stage, action: impl FnOnce(Python<'_>) -> PyResult<Value>) -> forebay::Result<Value> {
        attached(|py| action(py).map_err(|raised| self.explain(py, raised, stage)))
    }

    /// Turns the user's exception into an error about the sample. A failed system call keeps its errno, and thus its
    /// retries.
    fn explain(&self, py: Python<'_>, raised: PyErr, stage: Stage) -> Error {
        let errno = raised.value(py).getattr("errno").ok().and_then(|errno| errno.extract::<i32>().ok());
        let is_system = raised.is_instance_of::<pyo3::exceptions::PyOSError>(py);
        let text = format!("failed in {}: {raised}", self.name);
        let error = match errno.filter(|_| is_system) {
            Some(errno) => Error::io(&format!("handled by {}", self.name), std::io::Error::from_raw_os_error(errno)),
            // A user's function that refuses a file says that the file is bad, which is worth a fresh read.
            None if stage == Stage::Decode => Error::new(Kind::Undecodable, text),
            None => Error::new(Kind::UserCode, text),
        };
        error
            .with_hint(format!(
                "call {} with this file alone to debug it: the exception comes from user code",
                self.name
            ))
            .with_source(Raised(raised))
            .at_stage(stage)
    }
}

/// Runs `action` with this thread attached to the interpreter, unless the interpreter is shutting down.
fn attached<T>(action: impl FnOnce(Python<'_>) -> forebay::Result<T>) -> forebay::Result<T> {
    let stopped = || Err(Error::new(Kind::Stopped, "the interpreter is shutting down"));
    let call = |py: Python<'_>| {
        let _inside = Inside::enter(py);
        action(py)
    };
    Python::try_attach(call).unwrap_or_else(stopped)
}

/// One of Python's encodings.
pub(crate) struct PyCodec {
    /// By Python's name.
    pub(crate) encoding: String,
    /// What becomes of bytes that are no text, by Python's name.
    pub(crate) errors: String,
}

impl Codec for PyCodec {
    fn name(&self) -> &str {
        &self.encoding
    }

    fn decode(&self, bytes: &[u8]) -> forebay::Result<Decoded> {
        attached(|py| match PyBytes::new(py, bytes).call_method1("decode", (&self.encoding, &self.errors)) {
            Ok(text) => Ok(Decoded::Text(Value::Opaque(Box::new(text.unbind())))),
            Err(raised) if raised.is_instance_of::<PyUnicodeError>(py) => {
                let start = raised.value(py).getattr("start").and_then(|start| start.extract());
                Ok(Decoded::Invalid { at: start.ok() })
            }
            Err(raised) => {
                let text = format!("could not be decoded as {}: {raised}", self.encoding);
                Err(Error::new(Kind::Undecodable, text).with_source(Raised(raised)).at_stage(Stage::Decode))
            }
        })
    }
}

/// Threads that are running a user's callable, by Python's thread ids.
static INSIDE: Mutex<Vec<c_long>> = Mutex::new(Vec::new());

fn inside() -> MutexGuard<'static, Vec<c_long>> {
    INSIDE.lock()
}

/// Registers a thread as running a user's callable until dropped.
struct Inside(c_long);

impl Inside {
    fn enter(_attached: Python<'_>) -> Self {
        // SAFETY: the thread is attached.
        let number = unsafe { pyo3::ffi::PyThread_get_thread_ident() } as c_long;
        inside().push(number);
        Self(number)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inside = inside();
        if let Some(at) = inside.iter().position(|number| *number == self.0) {
            inside.swap_remove(at);
        }
    }
}

/// Makes callables that still run raise `SystemExit`, and waits briefly for them to end. Called before the interpreter
/// exits: it would stop their threads in the middle of the native code that called Python. A thread that waits in C
/// does not wake up, and does no harm.
#[pyfunction]
pub(crate) fn end_calls(py: Python<'_>) {
    const PATIENCE: Duration = Duration::from_millis(200);
    let exit = py.get_type::<pyo3::exceptions::PySystemExit>();
    let numbers = inside().clone();
    for number in numbers {
        // SAFETY: this thread is attached, and `exit` is an exception. A thread that has ended meanwhile is not found.
        unsafe { pyo3::ffi::PyThreadState_SetAsyncExc(number, exit.as_ptr()) };
    }
    let began = Instant::now();
    py.detach(|| {
        while !inside().is_empty() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

impl Custom for PyCall {
    fn name(&self) -> &str {
        &self.name
    }

    fn apply(&self, value: Value, _seed: u64) -> forebay::Result<Value> {
        self.attached(Stage::Transform, |py| {
            let argument = match value {
                Value::Opaque(object) => opaque(object)?.into_bound(py),
                value => conversions(py)?.call_method1("to_python", (to_array(py, value)?,))?,
            };
            from_python(self.callable(py)?.call1((argument,))?)
        })
    }
}

impl Open for PyCall {
    fn open(&self, path: &Path) -> forebay::Result<Value> {
        self.attached(Stage::Decode, |py| from_python(self.callable(py)?.call1((path.as_os_str(),))?))
    }
}

fn conversions(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("forebay._arrays.python_values")
}

fn opaque(object: Box<dyn std::any::Any + Send>) -> PyResult<Py<PyAny>> {
    let object = object.downcast::<Py<PyAny>>();
    object
        .map(|object| *object)
        .map_err(|_| pyo3::exceptions::PyTypeError::new_err("an opaque value of another language"))
}

/// A value for Python: an array, or the object that the user's callable returned.
pub(crate) fn to_array(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        Value::Image(image) => Bound::new(py, Array::image(image))?.into_any(),
        Value::Tensor(tensor) => Bound::new(py, Array::tensor(tensor))?.into_any(),
        Value::Array(array) => Bound::new(py, Array::rows(array))?.into_any(),
        Value::Text(text) => PyString::new(py, &text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
        Value::Json(value) => json(py, value)?,
        Value::Row(values) => {
            let values = values.into_iter().map(|value| to_array(py, value)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, values)?.into_any()
        }
        Value::Opaque(object) => opaque(object)?.into_bound(py),
    })
}

/// A JSON value as `json.loads` returns it. The parser has bounded its depth.
fn json(py: Python<'_>, value: serde_json::Value) -> PyResult<Bound<'_, PyAny>> {
    use serde_json::Value as Json;
    Ok(match value {
        Json::Null => py.None().into_bound(py),
        Json::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => whole.into_pyobject(py)?.into_any(),
            (None, Some(whole)) => whole.into_pyobject(py)?.into_any(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any(),
        },
        Json::String(text) => PyString::new(py, &text).into_any(),
        Json::Array(items) => {
            let items = items.into_iter().map(|item| json(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Json::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, json(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

/// A callable's return value, converted for native transforms if possible.
fn from_python(object: Bound<'_, PyAny>) -> PyResult<Value> {
    value_of(&conversions(object.py())?.call_method1("from_python", (object,))?)
}

/// The tuple of `forebay._arrays.python_values.from_python`.
pub(crate) fn value_of(parts: &Bound<'_, PyAny>) -> PyResult<Value> {
    let parts = parts.cast::<PyTuple>()?;
    let wrong = |what: &str| pyo3::exceptions::PyTypeError::new_err(format!("expected {what} in a converted value"));
    match parts.get_item(0)?.extract::<String>()?.as_str() {
        "image" => {
            let (_, data, height, width, channels): (String, Bound<'_, PyAny>, u32, u32, u32) = parts.extract()?;
            let pixels = bytes_of(&data)?;
            if pixels.len() as u64 != u64::from(height) * u64::from(width) * u64::from(channels)
                || !matches!(channels, 1 | 3)
            {
                return Err(wrong("height × width × channels bytes, 1 or 3 channels"));
            }
            Ok(Value::Image(Image { width, height, channels, pixels }))
        }
        "tensor" => {
            type Parts<'py> = (String, Bound<'py, PyAny>, String, (u32, u32, u32));
            let (_, data, dtype, (channels, height, width)): Parts<'_> = parts.extract()?;
            let bytes = bytes_of(&data)?;
            let data = match dtype.as_str() {
                "uint8" => TensorData::U8(bytes),
                "float32" => {
                    let floats =
                        bytes.chunks_exact(4).map(|part| f32::from_ne_bytes([part[0], part[1], part[2], part[3]]));
                    TensorData::F32(floats.collect())
                }
                _ => return Err(wrong("uint8 or float32")),
            };
            let count = match &data {
                TensorData::U8(data) => data.len(),
                TensorData::F32(data) => data.len(),
            };
            if count as u64 != u64::from(channels) * u64::from(height) * u64::from(width) {
                return Err(wrong("channels × height × width elements"));
            }
            Ok(Value::Tensor(Tensor { channels, height, width, data }))
        }
        "opaque" => Ok(Value::Opaque(Box::new(parts.get_item(1)?.unbind()))),
        _ => Err(wrong("\"image\", \"tensor\" or \"opaque\"")),
    }
}

/// The bytes of anything with a contiguous buffer.
fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let view = data.py().import("builtins")?.getattr("memoryview")?.call1((data,))?.call_method1("cast", ("B",))?;
    PyBuffer::<u8>::get(&view)?.to_vec(data.py())
}
