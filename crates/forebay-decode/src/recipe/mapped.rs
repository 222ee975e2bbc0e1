//! A recipe whose values go through the user's own code.

use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Error, Field, Result, Stage};

use crate::{ColumnKind, ColumnSpec, Custom, Dense, Fields, Made, Recipe, Sample, Scratch, Timing};

/// Another recipe, and a function of the user's that each of its values is given to.
pub struct MappedRecipe {
    recipe: Arc<dyn Recipe>,
    function: Arc<dyn Custom>,
}

impl MappedRecipe {
    /// What `function` makes of the values of `recipe`.
    pub fn new(recipe: Arc<dyn Recipe>, function: Arc<dyn Custom>) -> Self {
        Self { recipe, function }
    }
}

impl Recipe for MappedRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let name = self.recipe.schema().into_iter().next().map_or("sample".into(), |column| column.name);
        vec![ColumnSpec { name, kind: ColumnKind::Objects }]
    }

    fn field_count(&self) -> u32 {
        self.recipe.field_count()
    }

    fn max_bytes(&self) -> Option<u64> {
        self.recipe.max_bytes()
    }

    fn reads_bytes(&self) -> bool {
        self.recipe.reads_bytes()
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        // What the recipe would write to its places in the batch are values here; what the function takes is not known.
        let placed = self.recipe.layout().into_iter().chain(self.recipe.more_layouts());
        let value: u64 = placed.map(|layout| layout.size_bytes() as u64).sum();
        self.recipe.memory_bytes(fields, scratch).map(|taken| taken.saturating_add(value))
    }

    fn uses_landmarks(&self, field: Field) -> bool {
        self.recipe.uses_landmarks(field)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let seed = sample.rng.clone().next_u64();
        let (value, timing) = self.recipe.make(Sample { slot: None, ..sample })?;
        let value = value.ok_or_else(|| Error::internal("a recipe without a place in the batch made no value"))?;
        let started = Instant::now();
        let value = self.function.apply(value, seed).map_err(|error| error.at_stage(Stage::Transform))?;
        Ok((Some(value), Timing { transform: timing.transform + started.elapsed(), ..timing }))
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        self.recipe.fails_always(fields, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BytesRecipe, Value};
    use forebay_core::{Epoch, Kind, Rng, SampleId};

    struct Length;

    impl Custom for Length {
        fn name(&self) -> &str {
            "length"
        }
        fn apply(&self, value: Value, _seed: u64) -> Result<Value> {
            match value {
                Value::Bytes(bytes) if bytes.is_empty() => Err(Error::new(Kind::UserCode, "is empty")),
                Value::Bytes(bytes) => Ok(Value::Text(bytes.len().to_string())),
                other => panic!("expected bytes, got {other:?}"),
            }
        }
    }

    #[test]
    fn values_go_through_the_function_and_its_errors_are_of_the_transform() {
        let recipe = MappedRecipe::new(Arc::new(BytesRecipe), Arc::new(Length));
        let schema = recipe.schema();
        assert_eq!((schema.len(), &*schema[0].name, &schema[0].kind), (1, "bytes", &ColumnKind::Objects));
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        let mut make = |bytes| {
            recipe.make(Sample { fields: Fields(&[bytes]), path: &|| "unused".into(), rng, scratch, slot: None })
        };
        assert!(matches!(make(b"abc").unwrap(), (Some(Value::Text(text)), _) if text == "3"));
        assert_eq!(make(b"").unwrap_err().stage(), Some(Stage::Transform));
    }
}
