//! Records: samples whose fields lie one behind the other in the same bytes, and are told apart by a format of records.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Error, Field, Result, Stage};

use super::fields::{Columns, layouts_of};
use crate::{ColumnSpec, Dense, Fields, Layout, Made, Recipe, Sample, Scratch, Tensor};

mod example;
mod framed;
mod protobuf;
mod sized;

pub use example::{ExampleRecord, Feature, FeatureKind, WantedFeature, features};
pub use framed::FramedRecord;
pub use sized::SizedRecord;

/// The bytes of a field in a record, or what they are to be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// They are there.
    Plain(&'a [u8]),
    /// Numbers of a protocol buffer: a message with a list of them.
    Numbers {
        /// The message.
        list: &'a [u8],
        /// Whether they are floats, and not whole numbers.
        are_floats: bool,
    },
}

impl<'a> Part<'a> {
    /// The most that its bytes take, beside those of the record.
    fn own_bytes(self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Numbers { list, are_floats } => list.len() as u64 * if are_floats { 1 } else { 8 },
        }
    }

    fn bytes(self) -> Result<Cow<'a, [u8]>> {
        match self {
            Self::Plain(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Numbers { list, are_floats } => example::numbers(list, are_floats).map(Cow::Owned),
        }
    }
}

/// How records are taken apart.
pub trait RecordFormat: Send + Sync {
    /// How many fields it gives.
    fn field_count(&self) -> usize;
    /// Whether a record is what its checksums say. Nothing, where it has none.
    fn verify(&self, _record: &[u8]) -> Result<()> {
        Ok(())
    }
    /// The fields of a record, in their order, or the error of one of them, by its number.
    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<Part<'a>>, (usize, Error)>;
}

/// The fields of records, each with a recipe of its own: columns of the names that they are given here. Samples are made in place
/// where every field is.
pub struct RecordRecipe {
    format: Arc<dyn RecordFormat>,
    columns: Vec<(String, Arc<dyn Recipe>)>,
    /// One for each column, or none.
    layouts: Vec<Dense>,
}

impl RecordRecipe {
    /// The columns in the order in which the format gives their fields: at least one, each with a name of its own, and each made
    /// of bytes.
    pub fn new(format: Arc<dyn RecordFormat>, columns: Vec<(String, Arc<dyn Recipe>)>) -> Result<Self> {
        if columns.is_empty() || columns.len() != format.field_count() {
            let (expected, got) = (format.field_count(), columns.len());
            return Err(Error::config(format!("fields: expected {expected} recipes, and at least one, got {got}")));
        }
        let is_repeated = |at: usize| columns[..at].iter().any(|(name, _)| *name == columns[at].0);
        if let Some(at) = (0..columns.len()).find(|&at| is_repeated(at)) {
            return Err(Error::config(format!("fields: expected names that differ, got {:?} twice", columns[at].0)));
        }
        let is_simple =
            |recipe: &dyn Recipe| recipe.schema().len() == 1 && recipe.field_count() == 1 && recipe.reads_bytes();
        if let Some((name, _)) = columns.iter().find(|(_, recipe)| !is_simple(&**recipe)) {
            return Err(Error::config(format!("fields: expected {name:?} to be made into one column from its bytes")));
        }
        Ok(Self { format, layouts: layouts_of(&columns), columns })
    }

    /// The recipe of a record's only column.
    fn only(&self) -> Option<&dyn Recipe> {
        match &*self.columns {
            [(_, recipe)] => Some(&**recipe),
            _ => None,
        }
    }

    /// The recipe to ask about what only records of one column have.
    fn only_or_error(&self) -> Result<&dyn Recipe> {
        self.only().ok_or_else(|| Error::internal("a row of columns has no place of its own in a batch"))
    }

    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<Part<'a>>> {
        self.format.split(record).map_err(|(field, error)| self.about(field, error))
    }

    /// Says which field an error is about.
    fn about(&self, field: usize, error: Error) -> Error {
        match self.columns.get(field) {
            Some((name, _)) => error.in_part(name),
            None => error,
        }
    }
}

impl Recipe for RecordRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let column = |(name, recipe): &(String, Arc<dyn Recipe>)| {
            let kind = recipe.schema().swap_remove(0).kind;
            ColumnSpec { name: name.clone().into(), kind }
        };
        self.columns.iter().map(column).collect()
    }

    fn layout(&self) -> Option<&Dense> {
        self.layouts.first()
    }

    fn more_layouts(&self) -> &[Dense] {
        self.layouts.get(1..).unwrap_or_default()
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        let (mut values, mut peak) = (0u64, 0u64); // those that are made stay while the next one is made
        for ((_, recipe), part) in self.columns.iter().zip(self.split(fields.only())?) {
            let own = part.own_bytes();
            let bytes = if let Part::Plain(bytes) = part { bytes } else { &[] };
            let working = recipe.memory_bytes(Fields(&[bytes]), scratch)?.saturating_add(own.saturating_mul(2));
            let is_placed = self.columns.len() == 1 || !self.layouts.is_empty();
            let layout = recipe.layout().filter(|_| !is_placed);
            let value = layout.map_or(working, |layout| layout.size_bytes() as u64);
            peak = peak.max(values.saturating_add(working).saturating_add(if is_placed { 0 } else { value }));
            values = values.saturating_add(value);
        }
        Ok(peak)
    }

    fn uses_landmarks(&self, _field: Field) -> bool {
        // Those of an epoch before are of the one picture in it.
        self.columns.iter().filter(|(_, recipe)| recipe.uses_landmarks(Field(0))).count() == 1
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        self.make_columns(sample, &mut [])
    }

    fn make_columns(&self, sample: Sample<'_>, more: &mut [&mut [u8]]) -> Result<Made> {
        let Sample { fields, path, rng, scratch, slot } = sample;
        let started = Instant::now();
        let record = fields.only();
        self.format.verify(record)?;
        let parts = self.split(record)?;
        if let (Some(recipe), [part]) = (self.only(), &*parts) {
            let bytes = part.bytes().map_err(|error| self.about(0, error))?;
            let made = recipe.make(Sample { fields: Fields(&[&bytes]), path, rng, scratch, slot });
            return made.map_err(|error| self.about(0, error));
        }
        let mut columns = Columns::new(slot, more, self.columns.len())?.after(started.elapsed());
        for (at, ((_, recipe), part)) in self.columns.iter().zip(parts).enumerate() {
            let rng = &rng.fork(at as u64);
            let scratch = &mut *scratch;
            let made = part.bytes().and_then(|bytes| {
                columns.make(&**recipe, Sample { fields: Fields(&[&bytes]), path, rng, scratch, slot: None })
            });
            made.map_err(|error| self.about(at, error))?;
        }
        Ok(columns.finish())
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        let record = fields.only();
        let Ok(parts) = self.format.verify(record).and_then(|()| self.split(record)) else { return true };
        self.columns.iter().zip(parts).any(|((_, recipe), part)| match part.bytes() {
            Ok(bytes) => recipe.fails_always(Fields(&[&bytes]), scratch),
            Err(_) => true,
        })
    }

    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        self.only_or_error()?.batch_layout(made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        self.only_or_error()?.place(tensor, slot).map_err(|error| error.at_stage(Stage::Assemble))
    }
}
