//! Samples that are numbers, written as text.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// No number has a longer text: Python writes every float in 24 characters.
const MAX_TEXT_BYTES: usize = 64;

/// Every sample is a float of 64 bits, as Python writes it.
#[derive(Clone, Debug)]
pub struct DecimalRecipe(Dense);

impl Default for DecimalRecipe {
    fn default() -> Self {
        Self(Dense { shape: Vec::new(), element: Element::F64, order: Order::default() })
    }
}

impl Recipe for DecimalRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("number", ColumnKind::Dense(self.0.clone()))]
    }

    fn layout(&self) -> Option<&Dense> {
        Some(&self.0)
    }

    fn memory_bytes(&self, _fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(size_of::<f64>() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bytes = number(sample.fields.only())?.to_ne_bytes();
        let value = match sample.slot {
            Some(slot) if slot.len() == bytes.len() => {
                slot.copy_from_slice(&bytes);
                None
            }
            _ => Some(Value::Array(Array { shape: Vec::new(), element: Element::F64, bytes: bytes.to_vec() })),
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

fn number(bytes: &[u8]) -> Result<f64> {
    let text = std::str::from_utf8(bytes).ok().map(str::trim).filter(|text| text.len() <= MAX_TEXT_BYTES);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let start = bytes[..bytes.len().min(MAX_TEXT_BYTES)].escape_ascii();
        Error::new(Kind::Corrupt, format!("is no number (expected decimal digits, got \"{start}\")"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_everything_else_is_damage() {
        for (text, expected) in [("7", 7.0), ("-1.5e-3", -0.0015), ("inf", f64::INFINITY), (" 0.1 ", 0.1)] {
            assert_eq!(number(text.as_bytes()).unwrap(), expected);
        }
        assert!(number(b"nan").unwrap().is_nan());
        for other in [&b""[..], b"1,5", b"0x10", b"\xff", &[b'1'; 100]] {
            assert_eq!(number(other).unwrap_err().kind(), Kind::Corrupt, "{other:?}");
        }
    }
}
