//! Files that hold one array each: NumPy's, or nothing but the elements.

use std::time::Instant;

use forebay_core::{Element, Error, Result};

use crate::{
    Array, ColumnKind, ColumnSpec, Dense, Endian, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value, npy,
};

/// Every sample is the array of its `.npy` file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NpyRecipe;

impl Recipe for NpyRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("array", ColumnKind::Arrays)]
    }

    fn layout(&self) -> Option<&Dense> {
        None // of a batch whose arrays are of one shape they are put together afterwards
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        // One that lies column by column is copied once more.
        Ok((fields.only().len() as u64).saturating_mul(2))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let array = npy::read(sample.fields.only())?;
        Ok((Some(Value::Array(array)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// Every sample is an array, of which its file holds the elements and nothing else.
#[derive(Clone, Debug)]
pub struct RawRecipe {
    /// All dimensions, or those behind the first one where the file's length decides that.
    dense: Dense,
    is_of_any_length: bool,
    endian: Endian,
}

impl RawRecipe {
    /// Arrays of this shape. It has to have elements, and no more than a machine can count.
    pub fn new(shape: Vec<usize>, element: Element, endian: Endian) -> Result<Self> {
        let size = crate::array::size_bytes(&shape, element);
        if size.is_none_or(|size| size == 0) {
            let message = format!("shape: expected one with elements that fit into memory, got {shape:?}");
            return Err(Error::config(message));
        }
        let dense = Dense { shape, element, order: Order::default() };
        Ok(Self { dense, is_of_any_length: false, endian })
    }

    /// Arrays of as many rows as the file has, each of this shape: a single element where it has no dimensions.
    pub fn of_any_length(row: Vec<usize>, element: Element, endian: Endian) -> Result<Self> {
        Ok(Self { is_of_any_length: true, ..Self::new(row, element, endian)? })
    }

    fn shape_for(&self, size_bytes: usize) -> Vec<usize> {
        let Dense { shape, .. } = &self.dense;
        match self.is_of_any_length {
            // Rounded up: a row that is not complete is then missed by its length.
            true => {
                std::iter::once(size_bytes.div_ceil(self.dense.size_bytes())).chain(shape.iter().copied()).collect()
            }
            false => shape.clone(),
        }
    }
}

impl Recipe for RawRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("array", ColumnKind::arrays(self.layout()))]
    }

    fn layout(&self) -> Option<&Dense> {
        (!self.is_of_any_length).then_some(&self.dense)
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(fields.only().len() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let (bytes, element) = (sample.fields.only(), self.dense.element);
        let value = match sample.slot {
            Some(slot) if slot.len() == bytes.len() => {
                slot.copy_from_slice(bytes);
                self.endian.make_native(element, slot);
                None
            }
            // Of another size than the place in the batch, and so than the shape: that is an error.
            _ => Some(Value::Array(Array::of_bytes(bytes, self.shape_for(bytes.len()), element, self.endian)?)),
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Epoch, Kind, Rng, SampleId};

    fn make(recipe: &dyn Recipe, bytes: &[u8], slot: Option<&mut [u8]>) -> Result<Option<Value>> {
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        recipe
            .make(Sample { fields: Fields(&[bytes]), path: &|| "unused".into(), rng, scratch, slot })
            .map(|(value, _)| value)
    }

    #[test]
    fn elements_go_to_their_place_in_the_machines_order() {
        let recipe = RawRecipe::new(vec![2], Element::U16, Endian::Big).unwrap();
        assert_eq!(recipe.layout().map(Dense::size_bytes), Some(4));
        let mut slot = [0; 4];
        assert!(make(&recipe, &[0, 1, 0, 2], Some(&mut slot)).unwrap().is_none());
        let expected: Vec<u8> = [1u16, 2].into_iter().flat_map(u16::to_ne_bytes).collect();
        assert_eq!(slot.as_slice(), expected);
        let Some(Value::Array(array)) = make(&recipe, &[0, 1, 0, 2], None).unwrap() else { panic!("an array") };
        assert_eq!((array.shape, array.bytes), (vec![2], expected));
    }

    #[test]
    fn a_file_of_any_length_has_whole_rows() {
        let recipe = RawRecipe::of_any_length(vec![2], Element::U8, Endian::Little).unwrap();
        assert!(recipe.layout().is_none());
        for rows in 0..3 {
            let bytes = vec![7; 2 * rows];
            let Some(Value::Array(array)) = make(&recipe, &bytes, None).unwrap() else { panic!("an array") };
            assert_eq!((array.shape, array.bytes), (vec![rows, 2], bytes));
        }
        let error = make(&recipe, &[0; 5], None).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().starts_with("is shorter than its shape says (expected 6 bytes"), "{error}");
    }

    #[test]
    fn a_file_of_another_size_is_damaged() {
        let recipe = RawRecipe::new(vec![3], Element::F32, Endian::Little).unwrap();
        for bytes in [&[0; 11][..], &[0; 13]] {
            let error = make(&recipe, bytes, Some(&mut [0; 12])).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        }
        for shape in [vec![0], vec![usize::MAX, 3]] {
            assert_eq!(RawRecipe::new(shape, Element::U8, Endian::Little).unwrap_err().kind(), Kind::Config);
        }
    }
}
