//! Samples that are whole numbers, written as text: labels in files of their own.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// A longer text is no number.
const MAX_TEXT_BYTES: usize = 64;

/// Every sample is a whole number of 64 bits, in decimal digits.
#[derive(Clone, Debug)]
pub struct IntegerRecipe(Dense);

impl Default for IntegerRecipe {
    fn default() -> Self {
        Self(Dense { shape: Vec::new(), element: Element::I64, order: Order::default() })
    }
}

impl Recipe for IntegerRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("integer", ColumnKind::Dense(self.0.clone()))]
    }

    fn layout(&self) -> Option<&Dense> {
        Some(&self.0)
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(size_of::<i64>() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bytes = number(sample.fields.only())?.to_ne_bytes();
        let value = match sample.slot {
            Some(slot) if slot.len() == bytes.len() => {
                slot.copy_from_slice(&bytes);
                None
            }
            _ => Some(Value::Array(Array { shape: Vec::new(), element: Element::I64, bytes: bytes.to_vec() })),
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

fn number(bytes: &[u8]) -> Result<i64> {
    let text = std::str::from_utf8(bytes).ok().map(str::trim).filter(|text| text.len() <= MAX_TEXT_BYTES);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let start = bytes[..bytes.len().min(MAX_TEXT_BYTES)].escape_ascii();
        let message = format!("is no whole number (expected decimal digits, got \"{start}\")");
        Error::new(Kind::Corrupt, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_everything_else_is_damage() {
        for (text, expected) in [("7", 7), (" -12\r\n", -12), ("+3", 3), ("9223372036854775807", i64::MAX)] {
            assert_eq!(number(text.as_bytes()).unwrap(), expected);
        }
        for other in [&b""[..], b" ", b"1.5", b"9223372036854775808", b"0x10", b"\xff", &[b'1'; 100]] {
            assert_eq!(number(other).unwrap_err().kind(), Kind::Corrupt, "{other:?}");
        }
    }
}
