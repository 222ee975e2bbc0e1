//! Recipes: how the bytes of a sample become columns of a batch.
//!
//! Pictures go through a [`Pipeline`]; every other kind of sample has a file of its own in `recipe/`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Field, Result, Rng};

use crate::{Dense, Layout, Pipeline, Scratch, Tensor, Timing, Value};

mod arrays;
mod csv;
mod fields;
mod headed;
mod json;
mod limited;
mod mapped;
mod named_arrays;
mod parts;
mod pixels;
mod record;
mod scalar;
mod text;
mod tokens;

pub use arrays::{NpyRecipe, RawRecipe};
pub use csv::{CsvColumn, CsvRecipe, csv_fields};
pub use fields::FieldsRecipe;
pub use headed::HeadedArrayRecipe;
pub use json::JsonRecipe;
pub(crate) use json::size_bytes as json_bytes;
pub use limited::LimitedRecipe;
pub use mapped::MappedRecipe;
pub use named_arrays::{ArrayArchive, NamedArraysRecipe, array_names};
pub use parts::PartsRecipe;
pub use pixels::{PixelsRecipe, anymap};
pub use record::{
    ExampleRecord, Feature, FeatureKind, FramedRecord, Part, RecordFormat, RecordRecipe, SizedRecord, WantedFeature,
    features,
};
pub use scalar::ScalarRecipe;
pub use text::{BytesRecipe, Codec, CodecRecipe, Decoded, Encoding, InvalidText, TextRecipe};
pub use tokens::{DocumentRule, TokenSpec, TokensRecipe};

/// One column of a batch, as a recipe announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSpec {
    /// What it is called in a batch.
    pub name: Cow<'static, str>,
    /// What it holds.
    pub kind: ColumnKind,
}

impl ColumnSpec {
    /// A column.
    pub const fn new(name: &'static str, kind: ColumnKind) -> Self {
        Self { name: Cow::Borrowed(name), kind }
    }
}

/// What a column holds for each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// An array, of the same shape and type for all.
    Dense(Dense),
    /// An array, of a shape that is known when it is made.
    Arrays,
    /// A text.
    Text,
    /// Bytes.
    Bytes,
    /// Anything: what a user's own code makes, or a JSON value.
    Objects,
}

impl ColumnKind {
    /// Arrays of this shape; of any, where it is not known.
    fn arrays(layout: Option<&Dense>) -> Self {
        layout.map_or(Self::Arrays, |layout| Self::Dense(layout.clone()))
    }
}

/// What was read of a sample: the bytes of each of its fields. None where nothing is read before the recipe runs.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [&'a [u8]]);

impl<'a> Fields<'a> {
    /// The bytes of a sample that has a single field.
    pub fn only(self) -> &'a [u8] {
        self.0.first().copied().unwrap_or_default()
    }
}

/// One sample, as a recipe is given it.
pub struct Sample<'a> {
    /// What was read of it.
    pub fields: Fields<'a>,
    /// Where it is.
    pub path: &'a dyn Fn() -> PathBuf,
    /// Its random numbers.
    pub rng: &'a Rng,
    /// The thread's own memory.
    pub scratch: &'a mut Scratch,
    /// Its place in the batch, of the size that [`Recipe::layout`] says; without one it becomes a value.
    pub slot: Option<&'a mut [u8]>,
}

impl std::fmt::Debug for Sample<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<_> = self.fields.0.iter().map(|bytes| bytes.len()).collect();
        f.debug_struct("Sample").field("field_bytes", &sizes).finish_non_exhaustive()
    }
}

/// What a recipe made: a value, unless the sample went to its place in the batch; and how long it took.
pub type Made = (Option<Value>, Timing);

/// The way from a sample's bytes to its place in a batch.
///
/// Shared by threads, each of which brings its own [`Scratch`]. The result depends on the input and the [`Rng`] alone.
pub trait Recipe: Send + Sync {
    /// The columns it makes. With more than one, a sample that is made as a value is a [`Value::Row`] of as many.
    fn schema(&self) -> Vec<ColumnSpec>;
    /// The recipes of the datasets that samples come from, where each has its own: what makes a sample is the one of its dataset.
    fn parts(&self) -> Option<&[Arc<dyn Recipe>]> {
        None
    }
    /// How many fields of a sample it takes.
    fn field_count(&self) -> u32 {
        1
    }
    /// The largest object it takes: a larger one fails before memory is taken for it.
    fn max_bytes(&self) -> Option<u64> {
        None
    }
    /// Whether a sample's bytes are read before it runs. A recipe that opens files by itself says no.
    fn reads_bytes(&self) -> bool {
        true
    }
    /// Shape, type and order of every sample in a batch, where they are always the same: then samples are made in place.
    fn layout(&self) -> Option<&Dense>;
    /// The same of the columns behind the first, by a recipe of several columns that makes all of them in place.
    fn more_layouts(&self) -> &[Dense] {
        &[]
    }
    /// Bytes of memory that one sample takes at its peak, beside its own and its place in the batch: charged before it runs.
    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64>;
    /// The pipeline whose fixed beginning may be kept from epoch to epoch; `None` where there is nothing to keep.
    fn pipeline(&self) -> Option<&Pipeline> {
        None
    }
    /// Whether it uses what was learnt of a field in an epoch before ([`Scratch::lend`]), or when its index was made
    /// ([`Scratch::lend_annotation`]).
    fn uses_landmarks(&self, _field: Field) -> bool {
        false
    }
    /// The same recipe as one that costs less than handing a sample to another thread, where it is that.
    fn light(&self) -> Option<&dyn LightRecipe> {
        None
    }
    /// Makes one sample: in its place in the batch where it has one, else as a value.
    fn make(&self, sample: Sample<'_>) -> Result<Made>;
    /// The same, in the sample's places in several columns: the slot of `sample` is that of the first, and `more` are those of
    /// [`Recipe::more_layouts`], or none where it becomes a value.
    fn make_columns(&self, sample: Sample<'_>, _more: &mut [&mut [u8]]) -> Result<Made> {
        self.make(sample)
    }
    /// Whether bytes that failed would fail with any random choice, too: a verdict about the file.
    fn fails_always(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> bool {
        true
    }
    /// What a tensor that was made as a value is in a batch.
    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        Ok(made)
    }
    /// Writes a tensor that was made as a value into its place of a batch.
    fn place(&self, tensor: &Tensor, _slot: &mut [u8]) -> Result<()> {
        Err(Error::internal(format!("a recipe that makes no tensors has no place for one of {:?}", tensor.layout())))
    }
}

/// A recipe so cheap that the thread which has read a small sample makes it, too. It takes one field and draws no random
/// numbers.
pub trait LightRecipe {
    /// Bytes of memory that making a sample of this size takes: charged before it is read.
    fn memory_bytes(&self, size_bytes: u64) -> u64;
    /// The value that [`Recipe::make`] would make of these bytes, or its error.
    fn make(&self, bytes: &[u8]) -> Result<Value>;
    /// The same in the sample's places in a batch, one for each column: by recipes that have a layout.
    fn place(&self, _bytes: &[u8], _slots: &mut [&mut [u8]]) -> Result<()> {
        Err(Error::internal("a recipe that makes values was given places in a batch"))
    }
}

/// The layouts of all columns of a recipe that makes them in place; none where samples have no fixed shape.
pub fn layouts(recipe: &dyn Recipe) -> Vec<Dense> {
    recipe.layout().into_iter().chain(recipe.more_layouts()).cloned().collect()
}

impl Recipe for Pipeline {
    fn schema(&self) -> Vec<ColumnSpec> {
        let kind = self.dense().map_or(ColumnKind::Objects, |layout| ColumnKind::Dense(layout.clone()));
        vec![ColumnSpec::new("image", kind)]
    }

    fn layout(&self) -> Option<&Dense> {
        self.dense()
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        Self::memory_bytes(self, fields.only(), scratch)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(self)
    }

    fn uses_landmarks(&self, _field: Field) -> bool {
        self.decodes_part()
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let Sample { fields, rng, scratch, slot, .. } = sample;
        let bytes = fields.only();
        match slot {
            Some(slot) => self.run_into(bytes, rng, scratch, slot).map(|timing| (None, timing)),
            None => self.run(bytes, rng, scratch).map(|(value, timing)| (Some(value), timing)),
        }
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        Self::fails_always(self, fields.only(), scratch)
    }

    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        self.output().layout(made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        Self::place(self, tensor, slot)
    }
}
