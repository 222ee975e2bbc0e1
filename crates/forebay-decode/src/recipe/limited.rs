//! A recipe that refuses objects above a size.

use forebay_core::{Field, Result};
use std::sync::Arc;

use crate::{ColumnSpec, Dense, Fields, Layout, LightRecipe, Made, Pipeline, Recipe, Sample, Scratch, Tensor};

/// Another recipe, for objects of at most so many bytes.
pub struct LimitedRecipe {
    recipe: Arc<dyn Recipe>,
    max_bytes: u64,
}

impl LimitedRecipe {
    /// The same recipe; an object above `max_bytes` fails before it is read.
    pub fn new(recipe: Arc<dyn Recipe>, max_bytes: u64) -> Self {
        Self { recipe, max_bytes }
    }
}

impl Recipe for LimitedRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        self.recipe.schema()
    }

    fn field_count(&self) -> u32 {
        self.recipe.field_count()
    }

    fn max_bytes(&self) -> Option<u64> {
        Some(self.recipe.max_bytes().map_or(self.max_bytes, |inner| inner.min(self.max_bytes)))
    }

    fn reads_bytes(&self) -> bool {
        self.recipe.reads_bytes()
    }

    fn layout(&self) -> Option<&Dense> {
        self.recipe.layout()
    }

    fn more_layouts(&self) -> &[Dense] {
        self.recipe.more_layouts()
    }

    fn memory_bytes(&self, fields: Fields<'_>, scratch: &mut Scratch) -> Result<u64> {
        self.recipe.memory_bytes(fields, scratch)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        self.recipe.pipeline()
    }

    fn uses_landmarks(&self, field: Field) -> bool {
        self.recipe.uses_landmarks(field)
    }

    fn light(&self) -> Option<&dyn LightRecipe> {
        self.recipe.light()
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        self.recipe.make(sample)
    }

    fn make_columns(&self, sample: Sample<'_>, more: &mut [&mut [u8]]) -> Result<Made> {
        self.recipe.make_columns(sample, more)
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        self.recipe.fails_always(fields, scratch)
    }

    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        self.recipe.batch_layout(made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        self.recipe.place(tensor, slot)
    }
}
