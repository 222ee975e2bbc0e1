//! Recipes: how the engine turns samples into columns, from Python's description.

use std::sync::Arc;

use forebay::{
    ArrayArchive, BytesRecipe, CodecRecipe, ColumnKind, CsvColumn, CsvRecipe, DocumentRule, Element, Encoding, Endian,
    FieldsRecipe, InvalidText, JsonRecipe, LimitedRecipe, MappedRecipe, NamedArraysRecipe, NpyRecipe, Opened,
    PartsRecipe, PixelsRecipe, RawRecipe, ScalarRecipe, TextRecipe, TokenSpec, TokensRecipe,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::call::{PyCall, PyCodec};
use crate::errors::convert;
use crate::pipeline::Pipeline;

/// A recipe.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Recipe {
    pub(crate) native: Arc<dyn forebay::Recipe>,
    /// The user's callable in it, for the garbage collector.
    call: Option<Arc<PyCall>>,
    /// Its pipeline, which shows its own callables to the garbage collector.
    pipeline: Option<Py<Pipeline>>,
    /// Those that it is made of.
    bases: Vec<Py<Recipe>>,
}

impl Recipe {
    fn of(native: impl forebay::Recipe + 'static) -> Self {
        Self::of_native(Arc::new(native))
    }

    pub(crate) fn of_native(native: Arc<dyn forebay::Recipe>) -> Self {
        Self { native, call: None, pipeline: None, bases: Vec::new() }
    }

    /// The same, which holds these.
    pub(crate) fn with_bases(self, bases: Vec<Py<Self>>) -> Self {
        Self { bases, ..self }
    }
}

/// Name, kind, and the shape and type of arrays that have one.
type Column = (String, &'static str, Option<Vec<usize>>, Option<&'static str>);

#[pymethods]
impl Recipe {
    /// Images with transforms; `open` is the user's function for opening a path, in place of reading and decoding it.
    #[staticmethod]
    fn image(pipeline: Bound<'_, Pipeline>, open: Option<Py<PyAny>>) -> Self {
        let transforms = Arc::clone(&pipeline.get().native);
        let call = open.map(|callable| Arc::new(PyCall::new("loader".to_owned(), callable)));
        let native: Arc<dyn forebay::Recipe> = match &call {
            Some(call) => Arc::new(Opened::new(Arc::clone(call) as _, transforms)),
            None => transforms,
        };
        Self { native, call, pipeline: Some(pipeline.unbind()), bases: Vec::new() }
    }

    /// Pictures that are kept as their pixels, with transforms.
    #[staticmethod]
    fn pixels(pipeline: Bound<'_, Pipeline>) -> Self {
        let recipe = PixelsRecipe::new(Arc::clone(&pipeline.get().native));
        Self { pipeline: Some(pipeline.unbind()), ..Self::of(recipe) }
    }

    /// Text in "utf-8", "ascii" or "latin-1"; invalid bytes: "strict", "replace" or "ignore".
    #[staticmethod]
    fn text(encoding: &str, errors: &str, is_line: bool) -> PyResult<Self> {
        let encoding = match encoding {
            "utf-8" => Encoding::Utf8,
            "ascii" => Encoding::Ascii,
            "latin-1" => Encoding::Latin1,
            other => return Err(PyValueError::new_err(format!("encoding: {other:?} is not native"))),
        };
        let invalid = match errors {
            "strict" => InvalidText::Strict,
            "replace" => InvalidText::Replace,
            "ignore" => InvalidText::Ignore,
            other => return Err(PyValueError::new_err(format!("errors: {other:?} is not native"))),
        };
        Ok(Self::of(TextRecipe { encoding, invalid, is_line }))
    }

    /// Text in another encoding that Python knows: its codec decodes it, under the GIL.
    #[staticmethod]
    fn codec(encoding: String, errors: String) -> Self {
        Self::of(CodecRecipe::new(Arc::new(PyCodec { encoding, errors })))
    }

    #[staticmethod]
    fn bytes() -> Self {
        Self::of(BytesRecipe)
    }

    /// Raw elements; with `is_of_any_length` the file's size determines the first dimension, and `shape` the others.
    #[staticmethod]
    fn raw(
        py: Python<'_>,
        dtype: &str,
        shape: Vec<usize>,
        is_of_any_length: bool,
        is_big_endian: bool,
    ) -> PyResult<Self> {
        let element = Element::from_name(dtype).ok_or_else(|| PyValueError::new_err(format!("dtype: {dtype:?}")))?;
        let endian = if is_big_endian { Endian::Big } else { Endian::Little };
        let make = if is_of_any_length { RawRecipe::of_any_length } else { RawRecipe::new };
        Ok(Self::of(convert(py, make(shape, element, endian))?))
    }

    #[staticmethod]
    fn npy() -> Self {
        Self::of(NpyRecipe)
    }

    /// Some of the arrays of `.npz` or `.safetensors` files, by name.
    #[staticmethod]
    fn named_arrays(py: Python<'_>, archive: &str, names: Vec<String>) -> PyResult<Self> {
        Ok(Self::of(convert(py, NamedArraysRecipe::new(array_archive(archive)?, names))?))
    }

    /// The names of the arrays in such a file.
    #[staticmethod]
    fn array_names(py: Python<'_>, archive: &str, bytes: &[u8]) -> PyResult<Vec<String>> {
        convert(py, forebay::array_names(array_archive(archive)?, bytes))
    }

    #[staticmethod]
    fn json(fields: Vec<String>, is_line: bool) -> Self {
        Self::of(JsonRecipe { fields, is_line })
    }

    /// Whole numbers, written as text.
    #[staticmethod]
    fn integer() -> Self {
        Self::of(ScalarRecipe::integer())
    }

    /// Samples of several fields, each with its name and its recipe.
    #[staticmethod]
    fn fields(py: Python<'_>, fields: Vec<(String, Py<Self>)>) -> PyResult<Self> {
        let native = fields.iter().map(|(name, recipe)| (name.clone(), Arc::clone(&recipe.get().native))).collect();
        let recipe = convert(py, FieldsRecipe::new(native))?;
        let bases = fields.into_iter().map(|(_, recipe)| recipe).collect();
        Ok(Self { bases, ..Self::of(recipe) })
    }

    /// Records of CSV with `width` fields; of these columns: name, place and, for numbers, type.
    #[staticmethod]
    fn csv(
        py: Python<'_>,
        delimiter: u8,
        width: usize,
        columns: Vec<(String, usize, Option<String>)>,
    ) -> PyResult<Self> {
        let column = |(name, place, dtype): (String, usize, Option<String>)| {
            let element = dtype.map(|dtype| {
                Element::from_name(&dtype).ok_or_else(|| PyValueError::new_err(format!("dtype: {dtype:?}")))
            });
            Ok(CsvColumn { name, place, element: element.transpose()? })
        };
        let columns = columns.into_iter().map(column).collect::<PyResult<_>>()?;
        Ok(Self::of(convert(py, CsvRecipe::new(delimiter, width, columns))?))
    }

    /// A recipe for each dataset of several.
    #[staticmethod]
    fn parts(py: Python<'_>, recipes: Vec<Py<Self>>) -> PyResult<Self> {
        let natives = recipes.iter().map(|recipe| Arc::clone(&recipe.get().native)).collect();
        let native = convert(py, PartsRecipe::new(natives))?;
        Ok(Self { bases: recipes, ..Self::of(native) })
    }

    /// Tokens of `dtype` in rows of `length`. Documents end where the dataset says ("outlined"), at the token `document_end`, or
    /// nowhere.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    fn tokens(
        py: Python<'_>,
        dtype: &str,
        token_dtype: &str,
        length: usize,
        has_targets: bool,
        is_outlined: bool,
        document_end: Option<i64>,
        has_loss_mask: bool,
        pad: i64,
        vocab_size: Option<u64>,
    ) -> PyResult<Self> {
        let named =
            |name: &str| Element::from_name(name).ok_or_else(|| PyValueError::new_err(format!("dtype: {name:?}")));
        let (source, element) = (named(dtype)?, named(token_dtype)?);
        let documents = match document_end {
            _ if is_outlined => DocumentRule::Outlined,
            Some(end) => DocumentRule::EndedBy(end),
            None => DocumentRule::None,
        };
        let spec = TokenSpec { source, element, length, has_targets, documents, has_loss_mask, pad, vocab_size };
        Ok(Self::of(convert(py, TokensRecipe::new(spec))?))
    }

    /// The same, for objects of at most this many bytes.
    fn limited(slf: &Bound<'_, Self>, max_bytes: u64) -> Self {
        let recipe = LimitedRecipe::new(Arc::clone(&slf.get().native), max_bytes);
        Self { bases: vec![slf.clone().unbind()], ..Self::of(recipe) }
    }

    /// The same, followed by the user's function.
    fn mapped(slf: &Bound<'_, Self>, name: String, function: Py<PyAny>) -> Self {
        let call = Arc::new(PyCall::new(name, function));
        let recipe = MappedRecipe::new(Arc::clone(&slf.get().native), Arc::clone(&call) as _);
        Self { call: Some(call), bases: vec![slf.clone().unbind()], ..Self::of(recipe) }
    }

    #[getter]
    fn schema(&self) -> Vec<Column> {
        let column = |spec: forebay::ColumnSpec| {
            let (kind, layout) = match spec.kind {
                ColumnKind::Dense(layout) => ("dense", Some(layout)),
                ColumnKind::Arrays => ("arrays", None),
                ColumnKind::Text => ("text", None),
                ColumnKind::Bytes => ("bytes", None),
                ColumnKind::Objects => ("objects", None),
            };
            let dtype = layout.as_ref().map(|layout| layout.element.name());
            (spec.name.into_owned(), kind, layout.map(|layout| layout.shape), dtype)
        };
        self.native.schema().into_iter().map(column).collect()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pipeline)?;
        self.bases.iter().try_for_each(|base| visit.call(base))?;
        self.call.as_ref().map_or(Ok(()), |call| call.traverse(&visit))
    }

    fn __clear__(&self) {
        self.call.iter().for_each(|call| call.clear());
    }
}

fn array_archive(name: &str) -> PyResult<ArrayArchive> {
    match name {
        "npz" => Ok(ArrayArchive::Npz),
        "safetensors" => Ok(ArrayArchive::Safetensors),
        other => Err(PyValueError::new_err(format!("archive: {other:?}"))),
    }
}
