//! Samples of several fields, such as a picture and its caption.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Field, Result};

use crate::memory::resize;
use crate::{Array, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// One recipe for each field of a sample. Fields do not know each other: each draws random numbers of its own.
///
/// Each field becomes one column, under the name that it is given here. Samples are made in place where every field is.
pub struct FieldsRecipe {
    fields: Vec<(String, Arc<dyn Recipe>)>,
    /// One for each field, or none.
    layouts: Vec<Dense>,
}

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
            false => Ok(Self { layouts: layouts_of(&fields), fields }),
        }
    }

    /// Each recipe with its field and the field's bytes.
    fn each<'a>(&'a self, fields: Fields<'a>) -> impl Iterator<Item = (Field, &'a dyn Recipe, &'a [u8])> {
        let numbered = (0..).map(Field).zip(&self.fields).zip(fields.0);
        numbered.map(|((field, (_, recipe)), bytes)| (field, &**recipe, *bytes))
    }
}

impl Recipe for FieldsRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let column = |(name, recipe): &(String, Arc<dyn Recipe>)| {
            let kind = recipe.schema().swap_remove(0).kind;
            ColumnSpec { name: name.clone().into(), kind }
        };
        self.fields.iter().map(column).collect()
    }

    fn field_count(&self) -> u32 {
        self.fields.len() as u32
    }

    fn max_bytes(&self) -> Option<u64> {
        // One limit for all of them: the largest, if each has one.
        self.fields.iter().map(|(_, recipe)| recipe.max_bytes()).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn layout(&self) -> Option<&Dense> {
        self.layouts.first()
    }

    fn more_layouts(&self) -> &[Dense] {
        self.layouts.get(1..).unwrap_or_default()
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        let mut values = 0u64; // those that are made stay while the next one is made
        let mut peak = 0u64;
        for (_, recipe, bytes) in self.each(fields) {
            let working = recipe.memory_bytes(Fields(&[bytes]), scratch)?;
            let value = match self.layouts.is_empty() {
                true => recipe.layout().map_or(working, |layout| layout.size_bytes() as u64),
                false => 0, // it goes to its place in the batch
            };
            peak = peak.max(values.saturating_add(working).saturating_add(value));
            values = values.saturating_add(value);
        }
        Ok(peak)
    }

    fn uses_landmarks(&self, field: Field) -> bool {
        // Each of them makes a single field.
        self.fields.get(field.0 as usize).is_some_and(|(_, recipe)| recipe.uses_landmarks(Field(0)))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        self.make_columns(sample, &mut [])
    }

    fn make_columns(&self, sample: Sample<'_>, more: &mut [&mut [u8]]) -> Result<Made> {
        let Sample { fields, path, rng, scratch, slot } = sample;
        if fields.0.len() != self.fields.len() {
            let (expected, got) = (self.fields.len(), fields.0.len());
            return Err(Error::internal(format!("a recipe of {expected} fields was given {got}")));
        }
        let mut columns = Columns::new(slot, more, self.fields.len())?;
        for (field, recipe, bytes) in self.each(fields) {
            let rng = &rng.fork(u64::from(field.0));
            let scratch = &mut *scratch;
            let sample = Sample { fields: Fields(&[bytes]), path, rng, scratch, slot: None };
            columns.make(recipe, sample).map_err(|error| error.at_field(field))?;
        }
        Ok(columns.finish())
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        self.each(fields).any(|(_, recipe, bytes)| recipe.fails_always(Fields(&[bytes]), scratch))
    }
}

/// The layouts of several columns, if each recipe has one: then all of them are made in place.
pub(super) fn layouts_of(columns: &[(String, Arc<dyn Recipe>)]) -> Vec<Dense> {
    columns.iter().map(|(_, recipe)| recipe.layout().cloned()).collect::<Option<_>>().unwrap_or_default()
}

/// The columns of one sample, made one after the other: in their places in the batch where there are any, else as a row of values.
pub(super) struct Columns<'a> {
    /// Of the columns that are still to be made.
    slots: std::vec::IntoIter<&'a mut [u8]>,
    is_placed: bool,
    row: Vec<Value>,
    total: Timing,
}

impl<'a> Columns<'a> {
    /// `count` columns: the place of the first, and those of the others.
    pub(super) fn new(slot: Option<&'a mut [u8]>, more: &'a mut [&mut [u8]], count: usize) -> Result<Self> {
        let slots: Vec<&mut [u8]> = slot.into_iter().chain(more.iter_mut().map(|slot| &mut **slot)).collect();
        let is_placed = !slots.is_empty();
        if is_placed && slots.len() != count {
            let got = slots.len();
            return Err(Error::internal(format!("a recipe of {count} columns was given {got} places in a batch")));
        }
        Ok(Self { slots: slots.into_iter(), is_placed, row: Vec::new(), total: Timing::default() })
    }

    /// Counts time that was taken before the first one.
    pub(super) fn after(self, decode: Duration) -> Self {
        Self { total: Timing { decode: self.total.decode + decode, ..self.total }, ..self }
    }

    /// Makes the next column.
    pub(super) fn make(&mut self, recipe: &dyn Recipe, sample: Sample<'_>) -> Result<()> {
        let timing = match self.slots.next() {
            Some(slot) => make_in(recipe, sample, slot)?,
            None => {
                let (value, timing) = make_one(recipe, sample)?;
                self.row.push(value);
                timing
            }
        };
        let Timing { decode, transform } = self.total;
        self.total = Timing { decode: decode + timing.decode, transform: transform + timing.transform };
        Ok(())
    }

    pub(super) fn finish(mut self) -> Made {
        let value = match (self.is_placed, self.row.len()) {
            (true, _) => None,
            (false, 1) => Some(self.row.swap_remove(0)),
            (false, _) => Some(Value::Row(self.row)),
        };
        (value, self.total)
    }
}

/// One field in its place in the batch.
fn make_in(recipe: &dyn Recipe, sample: Sample<'_>, slot: &mut [u8]) -> Result<Timing> {
    let (value, timing) = recipe.make(Sample { slot: Some(&mut *slot), ..sample })?;
    match value {
        None => {}
        Some(Value::Tensor(tensor)) => recipe.place(&tensor, slot)?,
        Some(Value::Array(array)) if array.bytes.len() == slot.len() => slot.copy_from_slice(&array.bytes),
        Some(other) => return Err(Error::internal(format!("a field with a place in the batch became {other:?}"))),
    }
    Ok(timing)
}

/// One field as a value, in the type and order that its recipe gives to a batch.
fn make_one(recipe: &dyn Recipe, sample: Sample<'_>) -> Result<(Value, Timing)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordRecipe, ScalarRecipe, SizedRecord, TextRecipe, layouts};
    use forebay_core::{Epoch, Kind, Rng, SampleId};

    fn named(recipes: Vec<Arc<dyn Recipe>>) -> Vec<(String, Arc<dyn Recipe>)> {
        recipes.into_iter().enumerate().map(|(at, recipe)| (at.to_string(), recipe)).collect()
    }

    fn numbers() -> Vec<(String, Arc<dyn Recipe>)> {
        named(vec![Arc::new(ScalarRecipe::integer()), Arc::new(ScalarRecipe::decimal())])
    }

    fn make(recipe: &dyn Recipe, fields: &[&[u8]], slots: &mut [&mut [u8]]) -> Result<Option<Value>> {
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        let (slot, more) = match slots {
            [] => (None, &mut [][..]),
            [slot, more @ ..] => (Some(&mut **slot), more),
        };
        let sample = Sample { fields: Fields(fields), path: &|| "unused".into(), rng, scratch, slot };
        recipe.make_columns(sample, more).map(|(value, _)| value)
    }

    #[test]
    fn fields_and_parts_of_records_go_to_their_places_or_become_the_same_values() {
        let record = SizedRecord::new(vec![None, None], vec![0, 1]);
        let records = RecordRecipe::new(Arc::new(record), numbers()).unwrap();
        let record = [&2u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"-71.5"].concat();
        let rows: [(&dyn Recipe, &[&[u8]]); 2] =
            [(&FieldsRecipe::new(numbers()).unwrap(), &[b"-7", b"1.5"]), (&records, &[&record])];
        for (recipe, fields) in rows {
            assert_eq!(layouts(recipe).iter().map(Dense::size_bytes).collect::<Vec<_>>(), [8, 8]);
            let (mut one, mut two) = ([0xAA; 8], [0xAA; 8]);
            assert!(make(recipe, fields, &mut [&mut one, &mut two]).unwrap().is_none());
            assert_eq!((one, two), ((-7i64).to_ne_bytes(), 1.5f64.to_ne_bytes()));
            let Some(Value::Row(row)) = make(recipe, fields, &mut []).unwrap() else { panic!("expected a row") };
            let bytes = row.iter().map(|value| if let Value::Array(array) = value { &*array.bytes } else { &[] });
            assert_eq!(bytes.collect::<Vec<_>>(), [one, two]);
            assert_eq!(make(recipe, fields, &mut [&mut one]).unwrap_err().kind(), Kind::Internal);
        }
    }

    #[test]
    fn a_field_without_a_layout_makes_all_of_them_values() {
        let mixed = named(vec![Arc::new(ScalarRecipe::integer()), Arc::new(TextRecipe::default())]);
        let recipe = FieldsRecipe::new(mixed).unwrap();
        assert!(layouts(&recipe).is_empty());
        let made = make(&recipe, &[b"7", b"seven"], &mut []).unwrap();
        assert!(matches!(made, Some(Value::Row(row)) if matches!(&row[1], Value::Text(text) if text == "seven")));
    }

    #[test]
    fn an_error_in_place_is_of_its_field() {
        let recipe = FieldsRecipe::new(numbers()).unwrap();
        let error = make(&recipe, &[b"7", b"x"], &mut [&mut [0; 8], &mut [0; 8]]).unwrap_err();
        assert_eq!((error.kind(), error.field()), (Kind::Corrupt, Field(1)));
    }
}
