//! Samples of several datasets in one batch: each dataset has a recipe of its own, and all of them make the same columns.

use std::sync::Arc;

use forebay_core::{Error, Result};

use crate::recipe::{ColumnKind, ColumnSpec, Fields, Made, Recipe, Sample, layouts};
use crate::{Dense, Layout, Scratch, Tensor};

/// A recipe for each dataset of several. The engine takes the one of a sample's own dataset ([`Recipe::parts`]); this one says
/// what a batch of all of them is.
pub struct PartsRecipe {
    parts: Vec<Arc<dyn Recipe>>,
    /// In place only if all of them are.
    is_in_place: bool,
}

impl PartsRecipe {
    /// Puts recipes together. Those that consist of several themselves count as so many. All have to announce the same columns.
    pub fn new(recipes: Vec<Arc<dyn Recipe>>) -> Result<Self> {
        let each = |recipe: Arc<dyn Recipe>| recipe.parts().map_or_else(|| vec![Arc::clone(&recipe)], <[_]>::to_vec);
        let parts: Vec<_> = recipes.into_iter().flat_map(each).collect();
        let Some(first) = parts.first() else { return Err(Error::config("expected at least one dataset, got none")) };
        let expected = first.schema();
        let differs = |(number, recipe): (usize, &Arc<dyn Recipe>)| {
            let got = recipe.schema();
            (got != expected).then_some((number, got))
        };
        if let Some((number, got)) = parts.iter().enumerate().find_map(differs) {
            let (expected, got) = (described(&expected), described(&got));
            let message = format!(
                "expected datasets of the same columns, got {expected} in dataset 0 and {got} in dataset {number}"
            );
            let hint = "give them transforms that end alike: the same size, type and kind of sample";
            return Err(Error::config(message).with_hint(hint));
        }
        let expected = layouts(&**first);
        let is_in_place = !expected.is_empty() && parts.iter().all(|recipe| layouts(&**recipe) == expected);
        Ok(Self { parts, is_in_place })
    }

    fn first(&self) -> &dyn Recipe {
        &*self.parts[0]
    }
}

/// Columns in words: `image (float32 [3, 224, 224])`.
fn described(columns: &[ColumnSpec]) -> String {
    let column = |ColumnSpec { name, kind }: &ColumnSpec| match kind {
        ColumnKind::Dense(Dense { shape, element, .. }) => format!("{name} ({} {shape:?})", element.name()),
        ColumnKind::Arrays => format!("{name} (arrays of any shape)"),
        ColumnKind::Text => format!("{name} (text)"),
        ColumnKind::Bytes => format!("{name} (bytes)"),
        ColumnKind::Objects => format!("{name} (whatever each sample is)"),
    };
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

impl Recipe for PartsRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        self.first().schema()
    }

    fn parts(&self) -> Option<&[Arc<dyn Recipe>]> {
        Some(&self.parts)
    }

    fn layout(&self) -> Option<&Dense> {
        self.first().layout().filter(|_| self.is_in_place)
    }

    fn more_layouts(&self) -> &[Dense] {
        if self.is_in_place { self.first().more_layouts() } else { &[] }
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Err(no_part())
    }

    fn make(&self, _sample: Sample<'_>) -> Result<Made> {
        Err(no_part())
    }

    // What tensors are in a batch depends on the loader's settings, which all parts share.
    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        self.first().batch_layout(made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        self.first().place(tensor, slot)
    }
}

fn no_part() -> Error {
    Error::internal("a sample of several datasets was made by none of their recipes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BytesRecipe, Op, Pipeline, TextRecipe};

    fn pictures(size: u32) -> Arc<dyn Recipe> {
        Arc::new(Pipeline::new(vec![Op::CenterCrop { size: size.into() }, Op::ToTensor]).unwrap())
    }

    #[test]
    fn parts_of_parts_count_by_themselves() {
        let two = PartsRecipe::new(vec![pictures(4), pictures(4)]).unwrap();
        let three = PartsRecipe::new(vec![Arc::new(two), pictures(4)]).unwrap();
        assert_eq!(three.parts().unwrap().len(), 3);
        assert_eq!(three.layout(), pictures(4).layout());
    }

    #[test]
    fn recipes_of_different_columns_are_refused_and_both_are_named() {
        let refused = |parts: Vec<Arc<dyn Recipe>>| PartsRecipe::new(parts).map(|_| ()).unwrap_err().to_string();
        let message = refused(vec![pictures(4), pictures(5)]);
        let expected = "image (float32 [3, 4, 4]) in dataset 0 and image (float32 [3, 5, 5]) in dataset 1";
        assert!(message.contains(expected), "{message}");
        let message = refused(vec![Arc::new(TextRecipe::default()), Arc::new(BytesRecipe)]);
        assert!(message.contains("(text) in dataset 0") && message.contains("(bytes) in dataset 1"), "{message}");
        assert!(refused(Vec::new()).contains("expected at least one dataset"));
    }
}
