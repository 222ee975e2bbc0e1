//! Arrays that share Rust's memory with Python through the buffer protocol, without a copy.

use std::ffi::c_int;

use forebay::{Buffer, Image, Order, Tensor, TensorData};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::convert;

/// The owner of the memory, which frees it when the last view is gone.
enum Owner {
    Pooled(#[expect(dead_code, reason = "kept for its drop: the block returns to the pool")] Buffer),
    Lent(Py<PyAny>),
    Bytes(#[expect(dead_code, reason = "kept for its drop")] Vec<u8>),
    Floats(#[expect(dead_code, reason = "kept for its drop")] Vec<f32>),
    Integers(#[expect(dead_code, reason = "kept for its drop")] Vec<i64>),
    Doubles(#[expect(dead_code, reason = "kept for its drop")] Vec<f64>),
}

/// An n-dimensional array of numbers, as bytes through the buffer protocol.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Array {
    start: *mut u8,
    size_bytes: usize,
    owner: Owner,
    shape: Vec<usize>,
    #[pyo3(get)]
    dtype: &'static str,
    #[pyo3(get)]
    kind: &'static str,
    /// Whether the memory layout is interleaved, though the shape is planar.
    #[pyo3(get)]
    is_interleaved: bool,
}

// SAFETY: the memory belongs to `owner` alone, which is Send; `start` points into it.
unsafe impl Send for Array {}
// SAFETY: nothing here reads or writes the memory after the array was created. `&Array` exposes the pointer through the
// buffer protocol: writing through two views at a time without a GIL is the user's responsibility, as with any NumPy
// array.
unsafe impl Sync for Array {}

impl Array {
    /// A dense batch.
    pub(crate) fn batch(buffer: Buffer, count: usize, layout: &forebay::Dense) -> Self {
        let shape = std::iter::once(count).chain(layout.shape.iter().copied()).collect();
        let (start, size_bytes) = (buffer.as_ptr(), layout.size_bytes() * count);
        let owner = match buffer.into_lender().map(|lender| lender.downcast::<Py<PyAny>>()) {
            Ok(Ok(lender)) => Owner::Lent(*lender),
            Ok(Err(_)) => unreachable!("only Python objects are lent here"),
            Err(buffer) => Owner::Pooled(buffer),
        };
        let is_interleaved = layout.order == Order::Interleaved;
        Self { start, size_bytes, owner, shape, dtype: layout.element.name(), kind: "tensor", is_interleaved }
    }

    /// A picture, rows of pixels.
    pub(crate) fn image(mut image: Image) -> Self {
        let shape = vec![image.height as usize, image.width as usize, image.channels as usize];
        let (start, size_bytes) = (image.pixels.as_mut_ptr(), image.pixels.len());
        let owner = Owner::Bytes(image.pixels);
        Self { start, size_bytes, owner, shape, dtype: "uint8", kind: "image", is_interleaved: false }
    }

    /// One sample, row by row.
    pub(crate) fn rows(array: forebay::Array) -> Self {
        Self::elements(array.bytes, array.shape, array.element.name())
    }

    /// One sample, planes of elements.
    pub(crate) fn tensor(tensor: Tensor) -> Self {
        let layout = tensor.layout();
        let shape = vec![layout.channels as usize, layout.height as usize, layout.width as usize];
        let (start, owner) = match tensor.data {
            TensorData::U8(mut data) => (data.as_mut_ptr(), Owner::Bytes(data)),
            TensorData::F32(mut data) => (data.as_mut_ptr().cast(), Owner::Floats(data)),
        };
        let (size_bytes, dtype) = (layout.size_bytes(), layout.dtype.name());
        Self { start, size_bytes, owner, shape, dtype, kind: "tensor", is_interleaved: false }
    }

    /// 64-bit floats.
    pub(crate) fn doubles(mut values: Vec<f64>) -> Self {
        let (start, count) = (values.as_mut_ptr().cast(), values.len());
        let owner = Owner::Doubles(values);
        let (size_bytes, shape) = (count * size_of::<f64>(), vec![count]);
        Self { start, size_bytes, owner, shape, dtype: "float64", kind: "tensor", is_interleaved: false }
    }

    /// Elements of a named type, row by row.
    pub(crate) fn elements(mut bytes: Vec<u8>, shape: Vec<usize>, dtype: &'static str) -> Self {
        let (start, size_bytes) = (bytes.as_mut_ptr(), bytes.len());
        Self { start, size_bytes, owner: Owner::Bytes(bytes), shape, dtype, kind: "tensor", is_interleaved: false }
    }

    /// Labels.
    pub(crate) fn integers(mut values: Vec<i64>) -> Self {
        let (start, count) = (values.as_mut_ptr().cast(), values.len());
        let owner = Owner::Integers(values);
        let (size_bytes, shape) = (count * size_of::<i64>(), vec![count]);
        Self { start, size_bytes, owner, shape, dtype: "int64", kind: "tensor", is_interleaved: false }
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The lender of the memory, if it was lent.
    #[getter]
    fn lender(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &self.owner {
            Owner::Lent(lender) => Some(lender.clone_ref(py)),
            _ => None,
        }
    }

    /// # Safety
    /// Called by the interpreter with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let array = slf.get();
        let size = array.size_bytes as ffi::Py_ssize_t;
        // SAFETY: `view` is not null and the interpreter's to fill; the memory lives as long as `slf`, which the view
        // keeps alive; it is writable, like every tensor of a batch.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), array.start.cast(), size, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Pads arrays of different shapes into one, with `fill`, the bytes of one element.
#[pyfunction]
pub(crate) fn pad(py: Python<'_>, arrays: Vec<Bound<'_, Array>>, fill: Vec<u8>) -> PyResult<Array> {
    let dtype = arrays.first().map_or("uint8", |array| array.get().dtype);
    if let Some(other) = arrays.iter().find(|array| array.get().dtype != dtype) {
        let other = other.get().dtype;
        let message = format!("ragged: expected arrays of one type to pad, got some of {dtype} and some of {other}");
        return convert(py, Err(forebay::Error::config(message)));
    }
    let parts = arrays.iter().map(|array| {
        let array = array.get();
        // SAFETY: the memory is initialised and belongs to `array`, which `arrays` keeps alive. It is written to only through
        // the buffer protocol, and these arrays were not handed to the user yet.
        (unsafe { std::slice::from_raw_parts(array.start, array.size_bytes) }, array.shape.as_slice())
    });
    let padded = forebay::pad(&parts.collect::<Vec<_>>(), &fill);
    let (bytes, shape) = convert(py, padded)?;
    Ok(Array::elements(bytes, shape, dtype))
}
