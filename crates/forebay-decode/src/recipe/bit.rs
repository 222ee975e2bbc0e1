//! Truth values that are single bits of a file.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// Every sample is a bit of its last byte. As many bytes as are before that say which: a range of bytes says it all.
#[derive(Clone, Debug)]
pub struct BitRecipe(Dense);

impl Default for BitRecipe {
    fn default() -> Self {
        Self(Dense { shape: Vec::new(), element: Element::Bool, order: Order::default() })
    }
}

impl Recipe for BitRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("bit", ColumnKind::Dense(self.0.clone()))]
    }

    fn layout(&self) -> Option<&Dense> {
        Some(&self.0)
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(1)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bit = match sample.fields.only() {
            [before @ .., byte] if before.len() < 8 => byte >> before.len() & 1,
            other => {
                let message = format!("is no bit (expected 1 to 8 bytes, got {})", other.len());
                return Err(Error::new(Kind::Corrupt, message));
            }
        };
        let value = match sample.slot {
            Some([place]) => {
                *place = bit;
                None
            }
            _ => Some(Value::Array(Array { shape: Vec::new(), element: Element::Bool, bytes: vec![bit] })),
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Epoch, Rng, SampleId};

    #[test]
    fn the_bytes_before_the_last_one_say_which_of_its_bits() {
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        let mut make = |bytes: &[u8]| {
            let sample = Sample { fields: Fields(&[bytes]), path: &|| "unused".into(), rng, scratch, slot: None };
            BitRecipe::default().make(sample).map(|(value, _)| match value {
                Some(Value::Array(array)) => array.bytes,
                other => panic!("expected an array, got {other:?}"),
            })
        };
        for (bytes, bit) in
            [(&[1][..], 1), (&[2], 0), (&[0, 2], 1), (&[0xFF, 0xFF, 4], 1), (&[0, 0, 0, 0, 0, 0, 0, 0x80], 1)]
        {
            assert_eq!(make(bytes).unwrap(), [bit], "{bytes:?}");
        }
        assert!(make(&[]).is_err() && make(&[0; 9]).is_err());
    }
}
