//! The transforms: a list of names and arguments becomes a checked pipeline.

use std::sync::Arc;

use forebay::{
    Detail, Dtype, Epoch, Erase, Error, Interpolation, Op, Order, Output, Padding, PaddingMode, ResizeTo, Rng, Scratch,
    Size, Value,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use crate::call::{PyCall, to_array, value_of};
use crate::errors::convert;
use crate::index::Index;

/// A checked list of transforms.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Pipeline {
    pub(crate) native: Arc<forebay::Pipeline>,
    /// The user's own callables in it, for the garbage collector.
    calls: Vec<Arc<PyCall>>,
    /// What it was derived from, which shows those callables to the garbage collector: two may not.
    base: Option<Py<Pipeline>>,
}

#[pymethods]
impl Pipeline {
    #[new]
    fn new(py: Python<'_>, ops: Vec<(String, Bound<'_, PyDict>)>) -> PyResult<Self> {
        let mut calls = Vec::new();
        let ops = ops.iter().map(|(name, arguments)| op(name, arguments, &mut calls)).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { native: Arc::new(convert(py, forebay::Pipeline::new(ops))?), calls, base: None })
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

/// Arguments of one transform by name.
struct Arguments<'a, 'py> {
    op: &'a str,
    given: &'a Bound<'py, PyDict>,
}

impl<'py> Arguments<'_, 'py> {
    fn get<T: for<'a> FromPyObject<'a, 'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.given.get_item(name)?;
        let value = value.ok_or_else(|| PyTypeError::new_err(format!("{} needs the argument {name}", self.op)))?;
        value.extract::<T>().map_err(|error| {
            let error: PyErr = error.into();
            PyTypeError::new_err(format!("{}: {name}: {error}", self.op))
        })
    }

    fn wrong(&self, name: &str, expected: &str) -> PyErr {
        let got = self.given.get_item(name).ok().flatten().map_or("nothing".to_owned(), |value| value.to_string());
        PyValueError::new_err(format!("{}: {name}: expected {expected}, got {got}", self.op))
    }

    fn size(&self) -> PyResult<Size> {
        match *self.get::<Vec<u32>>("size")? {
            [edge] => Ok(edge.into()),
            [height, width] => Ok(Size { height, width }),
            _ => Err(self.wrong("size", "one or two numbers")),
        }
    }

    fn padding(&self, values: &[u32]) -> PyResult<Padding> {
        Padding::from_values(values).ok_or_else(|| self.wrong("padding", "one, two or four numbers"))
    }

    fn interpolation(&self) -> PyResult<Interpolation> {
        Ok(match self.get::<String>("interpolation")?.as_str() {
            "nearest" => Interpolation::Nearest,
            "nearest-exact" => Interpolation::NearestExact,
            "bilinear" => Interpolation::Bilinear,
            "bicubic" => Interpolation::Bicubic,
            "box" => Interpolation::Box,
            "hamming" => Interpolation::Hamming,
            "lanczos" => Interpolation::Lanczos,
            _ => return Err(self.wrong("interpolation", "nearest, bilinear, bicubic, box, hamming or lanczos")),
        })
    }

    fn padding_mode(&self) -> PyResult<PaddingMode> {
        Ok(match self.get::<String>("padding_mode")?.as_str() {
            "constant" => PaddingMode::Constant,
            "edge" => PaddingMode::Edge,
            "reflect" => PaddingMode::Reflect,
            "symmetric" => PaddingMode::Symmetric,
            _ => return Err(self.wrong("padding_mode", "constant, edge, reflect or symmetric")),
        })
    }
}

fn dtype(name: &str) -> PyResult<Dtype> {
    let all = [Dtype::U8, Dtype::F32, Dtype::F16, Dtype::BF16];
    all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!("dtype: expected uint8, float32, float16 or bfloat16, got {name}"))
    })
}

fn op(name: &str, given: &Bound<'_, PyDict>, calls: &mut Vec<Arc<PyCall>>) -> PyResult<Op> {
    let arguments = Arguments { op: name, given };
    let get = |name| arguments.get::<(f64, f64)>(name);
    Ok(match name {
        "Resize" => Op::Resize {
            size: match arguments.get::<Option<Vec<u32>>>("size")?.as_deref() {
                None => ResizeTo::LongEdge,
                Some([edge]) => ResizeTo::Edge(*edge),
                Some([height, width]) => ResizeTo::Exact(Size { height: *height, width: *width }),
                Some(_) => return Err(arguments.wrong("size", "one or two numbers")),
            },
            interpolation: arguments.interpolation()?,
            max_size: arguments.get("max_size")?,
            antialias: true,
        },
        "CenterCrop" => Op::CenterCrop { size: arguments.size()? },
        "RandomCrop" => Op::RandomCrop {
            size: arguments.size()?,
            padding: arguments
                .get::<Option<Vec<u32>>>("padding")?
                .map(|values| arguments.padding(&values))
                .transpose()?,
            pad_if_needed: arguments.get("pad_if_needed")?,
            fill: arguments.get("fill")?,
            padding_mode: arguments.padding_mode()?,
        },
        "RandomResizedCrop" => Op::RandomResizedCrop {
            size: arguments.size()?,
            scale: get("scale")?,
            ratio: get("ratio")?,
            interpolation: arguments.interpolation()?,
            antialias: true,
        },
        "RandomHorizontalFlip" => Op::RandomHorizontalFlip { p: arguments.get("p")? },
        "RandomVerticalFlip" => Op::RandomVerticalFlip { p: arguments.get("p")? },
        "Pad" => Op::Pad {
            padding: arguments.padding(&arguments.get::<Vec<u32>>("padding")?)?,
            fill: arguments.get("fill")?,
            padding_mode: arguments.padding_mode()?,
        },
        "Grayscale" => Op::Grayscale { num_output_channels: arguments.get("num_output_channels")? },
        "RandomGrayscale" => Op::RandomGrayscale { p: arguments.get("p")? },
        "ColorJitter" => Op::ColorJitter {
            brightness: arguments.get("brightness")?,
            contrast: arguments.get("contrast")?,
            saturation: arguments.get("saturation")?,
            hue: arguments.get("hue")?,
        },
        "GaussianBlur" => Op::GaussianBlur { kernel_size: arguments.get("kernel_size")?, sigma: get("sigma")? },
        "RandomRotation" => Op::RandomRotation {
            degrees: get("degrees")?,
            interpolation: arguments.interpolation()?,
            expand: arguments.get("expand")?,
            center: arguments.get("center")?,
            fill: arguments.get("fill")?,
        },
        "RandomErasing" => Op::RandomErasing {
            p: arguments.get("p")?,
            scale: get("scale")?,
            ratio: get("ratio")?,
            value: match arguments.get::<Option<Vec<f64>>>("value") {
                Ok(Some(values)) => Erase::Values(values),
                Ok(None) => Erase::Random,
                Err(_) if arguments.get::<String>("value")? == "random" => Erase::Random,
                Err(error) => return Err(error),
            },
        },
        "ToTensor" => Op::ToTensor,
        "ToImage" | "PILToTensor" => Op::ToImage,
        "ToDtype" => Op::ToDtype {
            dtype: dtype(&arguments.get::<String>("dtype")?)
                .map_err(|_| arguments.wrong("dtype", "uint8 or float32"))?,
            scale: arguments.get("scale")?,
        },
        "Normalize" => Op::Normalize { mean: arguments.get("mean")?, std: arguments.get("std")? },
        "Custom" => {
            let callable = arguments.get::<Bound<'_, PyAny>>("call")?.unbind();
            let call = Arc::new(PyCall::new(arguments.get("name")?, callable));
            calls.push(Arc::clone(&call));
            Op::Custom(call)
        }
        _ => return Err(PyValueError::new_err(format!("transform: expected one of forebay.transforms, got {name:?}"))),
    })
}

/// One sample, decoded and transformed in the calling thread: `dataset[i]`.
#[pyfunction]
pub(crate) fn load_one<'py>(
    py: Python<'py>,
    index: &Index,
    sample: u64,
    pipeline: &Pipeline,
    open: Option<Py<PyAny>>,
    seed: u64,
    epoch: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let sample = index.sample(sample)?;
    let (source, _) = crate::engine::source(index, Arc::clone(&index.store), pipeline, open);
    let loaded = py.detach(|| source.load(sample, seed, Epoch(epoch)));
    to_array(py, convert(py, loaded)?)
}

/// A value (as `forebay._values.from_python` gives it) through the transforms, in the calling thread.
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
