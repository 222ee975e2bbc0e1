//! Samples of several fields, such as a picture and its caption.

use std::sync::Arc;

use forebay_core::{Error, Field, Result};

use crate::memory::resize;
use crate::{Array, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// One recipe for each field of a sample. Fields do not know each other: each draws random numbers of its own.
///
/// Each field becomes one column, under the name that it is given here.
pub struct FieldsRecipe(Vec<(String, Arc<dyn Recipe>)>);

impl FieldsRecipe {
    /// The fields in the order in which the dataset locates them: at least one, each with a name of its own, and each made into
    /// a single column from bytes that are read.
    pub fn new(fields: Vec<(String, Arc<dyn Recipe>)>) -> Result<Self> {
        let is_repeated = |at: usize| fields[..at].iter().any(|(name, _)| *name == fields[at].0);
        if let Some(at) = (0..fields.len()).find(|&at| is_repeated(at)) {
            return Err(Error::config(format!("fields: expected names that differ, got {:?} twice", fields[at].0)));
        }
        let is_simple =
            |recipe: &dyn Recipe| recipe.schema().len() == 1 && recipe.field_count() == 1 && recipe.reads_bytes();
        if let Some((name, _)) = fields.iter().find(|(_, recipe)| !is_simple(&**recipe)) {
            return Err(Error::config(format!("fields: expected {name:?} to be made into one column from its bytes")));
        }
        match fields.is_empty() {
            true => Err(Error::config("fields: expected at least one, got none")),
            false => Ok(Self(fields)),
        }
    }

    /// Each recipe with its field and the field's bytes.
    fn each<'a>(&'a self, fields: Fields<'a>) -> impl Iterator<Item = (Field, &'a dyn Recipe, &'a [u8])> {
        let numbered = (0..).map(Field).zip(&self.0).zip(fields.0);
        numbered.map(|((field, (_, recipe)), bytes)| (field, &**recipe, *bytes))
    }
}

impl Recipe for FieldsRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let column = |(name, recipe): &(String, Arc<dyn Recipe>)| {
            let kind = recipe.schema().swap_remove(0).kind;
            ColumnSpec { name: name.clone().into(), kind }
        };
        self.0.iter().map(column).collect()
    }

    fn field_count(&self) -> u32 {
        self.0.len() as u32
    }

    fn max_bytes(&self) -> Option<u64> {
        // One limit for all of them: the largest, if each has one.
        self.0.iter().map(|(_, recipe)| recipe.max_bytes()).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        let mut values = 0u64; // those that are made stay while the next one is made
        let mut peak = 0u64;
        for (_, recipe, bytes) in self.each(fields) {
            let working = recipe.memory_bytes(Fields(&[bytes]), scratch)?;
            let value = recipe.layout().map_or(working, |layout| layout.size_bytes() as u64);
            peak = peak.max(values.saturating_add(working).saturating_add(value));
            values = values.saturating_add(value);
        }
        Ok(peak)
    }

    fn uses_landmarks(&self, field: Field) -> bool {
        // Each of them makes a single field.
        self.0.get(field.0 as usize).is_some_and(|(_, recipe)| recipe.uses_landmarks(Field(0)))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let Sample { fields, path, rng, scratch, .. } = sample;
        if fields.0.len() != self.0.len() {
            let (expected, got) = (self.0.len(), fields.0.len());
            return Err(Error::internal(format!("a recipe of {expected} fields was given {got}")));
        }
        let mut row = Vec::with_capacity(self.0.len());
        let mut total = Timing::default();
        for (field, recipe, bytes) in self.each(fields) {
            let rng = &rng.fork(u64::from(field.0));
            let scratch = &mut *scratch;
            let (value, timing) = make_one(recipe, Sample { fields: Fields(&[bytes]), path, rng, scratch, slot: None })
                .map_err(|error| error.at_field(field))?;
            total = Timing { decode: total.decode + timing.decode, transform: total.transform + timing.transform };
            row.push(value);
        }
        let value = if row.len() == 1 { row.swap_remove(0) } else { Value::Row(row) };
        Ok((Some(value), total))
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        self.each(fields).any(|(_, recipe, bytes)| recipe.fails_always(Fields(&[bytes]), scratch))
    }
}

/// One field as a value, in the type and order that its recipe gives to a batch.
pub(super) fn make_one(recipe: &dyn Recipe, sample: Sample<'_>) -> Result<(Value, Timing)> {
    if let Some(layout) = recipe.layout() {
        let mut bytes = zeros(layout)?;
        let (value, timing) = recipe.make(Sample { slot: Some(&mut bytes), ..sample })?;
        return Ok((value.unwrap_or_else(|| array(layout, bytes)), timing));
    }
    match recipe.make(sample)? {
        (Some(Value::Tensor(tensor)), timing) => {
            let layout = Dense::from(recipe.batch_layout(tensor.layout())?);
            if layout.order != Order::default() {
                // An array has no order of its own: the column has it, where it is known in advance.
                let message = "memory_format: expected pictures of one size for channels_last, got some of any size";
                return Err(Error::config(message));
            }
            let mut bytes = zeros(&layout)?;
            recipe.place(&tensor, &mut bytes)?;
            Ok((array(&layout, bytes), timing))
        }
        (Some(value), timing) => Ok((value, timing)),
        (None, _) => Err(Error::internal("a recipe without a place in the batch made no value")),
    }
}

fn zeros(layout: &Dense) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    resize(&mut bytes, layout.size_bytes(), 0, "one of its fields")?;
    Ok(bytes)
}

fn array(layout: &Dense, bytes: Vec<u8>) -> Value {
    Value::Array(Array { shape: layout.shape.clone(), element: layout.element, bytes })
}
