//! Samples that are single values: numbers written as text, and bits of a file.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// A longer text is no number: Python writes every float in 24 characters.
const MAX_TEXT_BYTES: usize = 64;
/// The largest element.
const MAX_BYTES: usize = 8;

/// Every sample is one value.
#[derive(Clone, Debug)]
pub struct ScalarRecipe {
    name: &'static str,
    dense: Dense,
    /// Gives the element's bytes, from the first one on.
    read: fn(&[u8]) -> Result<[u8; MAX_BYTES]>,
}

impl ScalarRecipe {
    fn new(name: &'static str, element: Element, read: fn(&[u8]) -> Result<[u8; MAX_BYTES]>) -> Self {
        Self { name, dense: Dense { shape: Vec::new(), element, order: Order::default() }, read }
    }

    /// A whole number of 64 bits, in decimal digits: labels in files of their own.
    pub fn integer() -> Self {
        Self::new("integer", Element::I64, |bytes| Ok(parsed::<i64>(bytes, "whole number")?.to_ne_bytes()))
    }

    /// A float of 64 bits, as Python writes it.
    pub fn decimal() -> Self {
        Self::new("number", Element::F64, |bytes| Ok(parsed::<f64>(bytes, "number")?.to_ne_bytes()))
    }

    /// A bit of the last byte. As many bytes as are before that say which: a range of bytes says it all.
    pub fn bit() -> Self {
        Self::new("bit", Element::Bool, |bytes| {
            let bit = match bytes {
                [before @ .., byte] if before.len() < 8 => byte >> before.len() & 1,
                other => {
                    let message = format!("is no bit (expected 1 to 8 bytes, got {})", other.len());
                    return Err(Error::new(Kind::Corrupt, message));
                }
            };
            let mut made = [0; MAX_BYTES];
            made[0] = bit;
            Ok(made)
        })
    }
}

impl Recipe for ScalarRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new(self.name, ColumnKind::Dense(self.dense.clone()))]
    }

    fn layout(&self) -> Option<&Dense> {
        Some(&self.dense)
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(self.dense.element.size_bytes() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let made = (self.read)(sample.fields.only())?;
        let bytes = &made[..self.dense.element.size_bytes()];
        let value = match sample.slot {
            Some(slot) if slot.len() == bytes.len() => {
                slot.copy_from_slice(bytes);
                None
            }
            _ => {
                let (shape, element) = (Vec::new(), self.dense.element);
                Some(Value::Array(Array { shape, element, bytes: bytes.to_vec() }))
            }
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

fn parsed<T: std::str::FromStr>(bytes: &[u8], what: &str) -> Result<T> {
    let text = std::str::from_utf8(bytes).ok().map(str::trim).filter(|text| text.len() <= MAX_TEXT_BYTES);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let start = bytes[..bytes.len().min(MAX_TEXT_BYTES)].escape_ascii();
        Error::new(Kind::Corrupt, format!("is no {what} (expected decimal digits, got \"{start}\")"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Epoch, Rng, SampleId};

    fn make(recipe: &ScalarRecipe, bytes: &[u8]) -> Result<Vec<u8>> {
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        let sample = Sample { fields: Fields(&[bytes]), path: &|| "unused".into(), rng, scratch, slot: None };
        recipe.make(sample).map(|(value, _)| match value {
            Some(Value::Array(array)) => array.bytes,
            other => panic!("expected an array, got {other:?}"),
        })
    }

    #[test]
    fn whole_numbers_are_read_and_everything_else_is_damage() {
        let integer = ScalarRecipe::integer();
        for (text, expected) in [("7", 7), (" -12\r\n", -12), ("+3", 3), ("9223372036854775807", i64::MAX)] {
            assert_eq!(make(&integer, text.as_bytes()).unwrap(), expected.to_ne_bytes());
        }
        for other in [&b""[..], b" ", b"1.5", b"9223372036854775808", b"0x10", b"\xff", &[b'1'; 100]] {
            assert_eq!(make(&integer, other).unwrap_err().kind(), Kind::Corrupt, "{other:?}");
        }
    }

    #[test]
    fn numbers_are_read_and_everything_else_is_damage() {
        let decimal = ScalarRecipe::decimal();
        for (text, expected) in [("7", 7.0f64), ("-1.5e-3", -0.0015), ("inf", f64::INFINITY), (" 0.1 ", 0.1)] {
            assert_eq!(make(&decimal, text.as_bytes()).unwrap(), expected.to_ne_bytes());
        }
        assert!(parsed::<f64>(b"nan", "number").unwrap().is_nan());
        for other in [&b""[..], b"1,5", b"0x10", b"\xff", &[b'1'; 100]] {
            assert_eq!(make(&decimal, other).unwrap_err().kind(), Kind::Corrupt, "{other:?}");
        }
    }

    #[test]
    fn the_bytes_before_the_last_one_say_which_of_its_bits() {
        let bit = ScalarRecipe::bit();
        for (bytes, expected) in
            [(&[1][..], 1), (&[2], 0), (&[0, 2], 1), (&[0xFF, 0xFF, 4], 1), (&[0, 0, 0, 0, 0, 0, 0, 0x80], 1)]
        {
            assert_eq!(make(&bit, bytes).unwrap(), [expected], "{bytes:?}");
        }
        assert!(make(&bit, &[]).is_err() && make(&bit, &[0; 9]).is_err());
    }
}
