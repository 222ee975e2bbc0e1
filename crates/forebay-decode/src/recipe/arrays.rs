//! Files that hold one array each: NumPy's, or nothing but the elements.

use std::time::Instant;

use forebay_core::{Element, Error, Result};

use crate::{Array, Dense, Endian, Made, Order, Recipe, Sample, Scratch, Timing, Value, npy};

/// Every sample is the array of its `.npy` file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NpyRecipe;

impl Recipe for NpyRecipe {
    fn layout(&self) -> Option<&Dense> {
        None // of a batch whose arrays are of one shape they are put together afterwards
    }

    fn memory_bytes(&self, bytes: &[u8], _scratch: &mut Scratch) -> Result<u64> {
        // One that lies column by column is copied once more.
        Ok((bytes.len() as u64).saturating_mul(2))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let array = npy::read(sample.bytes)?;
        Ok((Some(Value::Array(array)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// Every sample is an array of one shape, of which its file holds the elements and nothing else.
#[derive(Clone, Debug)]
pub struct RawRecipe {
    dense: Dense,
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
        Ok(Self { dense: Dense { shape, element, order: Order::default() }, endian })
    }
}

impl Recipe for RawRecipe {
    fn layout(&self) -> Option<&Dense> {
        Some(&self.dense)
    }

    fn memory_bytes(&self, bytes: &[u8], _scratch: &mut Scratch) -> Result<u64> {
        Ok(bytes.len() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let (bytes, Dense { shape, element, .. }) = (sample.bytes, &self.dense);
        let value = match sample.slot {
            Some(slot) if slot.len() == bytes.len() => {
                slot.copy_from_slice(bytes);
                self.endian.make_native(*element, slot);
                None
            }
            // Of another size than the place in the batch, and so than the shape: that is an error.
            _ => Some(Value::Array(Array::of_bytes(bytes, shape.clone(), *element, self.endian)?)),
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
        recipe.make(Sample { bytes, path: &|| "unused".into(), rng, scratch, slot }).map(|(value, _)| value)
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
