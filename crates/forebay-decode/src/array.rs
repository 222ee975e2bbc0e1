//! Arrays of any shape, and their bytes.

use forebay_core::{Element, Error, Kind, Result};

use crate::memory::{reserve, resize};
use crate::{Layout, Order};

/// An array of any shape: row by row (C order), in the machine's byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its dimensions; none for a single element.
    pub shape: Vec<usize>,
    /// The element type.
    pub element: Element,
    /// The elements.
    pub bytes: Vec<u8>,
}

/// The shape and type of every sample of a column, if all are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Its dimensions, without that of the batch.
    pub shape: Vec<usize>,
    /// The element type.
    pub element: Element,
    /// The memory order; row by row for anything but pictures.
    pub order: Order,
}

impl Dense {
    /// Bytes of one sample.
    pub fn size_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.size_bytes()
    }
}

impl From<Layout> for Dense {
    fn from(layout: Layout) -> Self {
        let shape = [layout.channels, layout.height, layout.width].map(|extent| extent as usize).to_vec();
        Self { shape, element: layout.dtype.element(), order: layout.order }
    }
}

/// The byte order of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Low bytes first: nearly every machine.
    Little,
    /// High bytes first: network order.
    Big,
}

impl Endian {
    /// This machine's.
    pub const NATIVE: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };

    /// Converts elements in this order to the machine's.
    pub(crate) fn make_native(self, element: Element, bytes: &mut [u8]) {
        if self != Self::NATIVE && element.size_bytes() > 1 {
            bytes.chunks_exact_mut(element.size_bytes()).for_each(<[u8]>::reverse);
        }
    }
}

/// Bytes of an array; `None` if that overflows.
pub(crate) fn size_bytes(shape: &[usize], element: Element) -> Option<usize> {
    shape.iter().try_fold(element.size_bytes(), |size, extent| size.checked_mul(*extent))
}

impl Array {
    /// An array from bytes in C order. Their number must match the shape.
    pub fn of_bytes(bytes: &[u8], shape: Vec<usize>, element: Element, endian: Endian) -> Result<Self> {
        let expected = size_bytes(&shape, element);
        if expected != Some(bytes.len()) {
            let problem = if expected.is_some_and(|expected| bytes.len() > expected) { "longer" } else { "shorter" };
            let message = format!(
                "is {problem} than its shape says (expected {} bytes for {shape:?} of {}, got {})",
                expected.map_or("too many".to_owned(), |expected| expected.to_string()),
                element.name(),
                bytes.len()
            );
            return Err(Error::new(Kind::Corrupt, message));
        }
        let mut own = Vec::new();
        reserve(&mut own, bytes.len(), "an array")?;
        own.extend_from_slice(bytes);
        endian.make_native(element, &mut own);
        Ok(Self { shape, element, bytes: own })
    }

    /// The same array from bytes in Fortran order.
    pub(crate) fn columns_to_rows(self) -> Result<Self> {
        if self.shape.len() < 2 || self.bytes.is_empty() {
            return Ok(self);
        }
        let size = self.element.size_bytes();
        let mut rows = Vec::new();
        resize(&mut rows, self.bytes.len(), 0, "an array row by row")?;
        // Distance in `self` of neighbours along each dimension.
        let strides: Vec<usize> = self
            .shape
            .iter()
            .scan(size, |stride, extent| {
                let own = *stride;
                *stride *= extent;
                Some(own)
            })
            .collect();
        let mut at = vec![0; self.shape.len()];
        for target in rows.chunks_exact_mut(size) {
            let source: usize = at.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
            target.copy_from_slice(&self.bytes[source..source + size]);
            for (index, extent) in at.iter_mut().zip(&self.shape).rev() {
                *index += 1;
                if *index < *extent {
                    break;
                }
                *index = 0;
            }
        }
        Ok(Self { bytes: rows, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_in_their_order_and_only_if_there_are_as_many_as_said() {
        let big = Array::of_bytes(&[0, 1, 0, 2], vec![2], Element::U16, Endian::Big).unwrap();
        let little = Array::of_bytes(&[1, 0, 2, 0], vec![2], Element::U16, Endian::Little).unwrap();
        assert_eq!(big, little);
        let error = Array::of_bytes(&[0; 5], vec![2, 3], Element::U8, Endian::Little).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().contains("shorter than its shape says (expected 6 bytes"), "{error}");
        let error = Array::of_bytes(&[0; 5], vec![], Element::U8, Endian::Little).unwrap_err();
        assert!(error.message().contains("longer"), "{error}");
        let error = Array::of_bytes(&[], vec![usize::MAX, 2], Element::U8, Endian::Little).unwrap_err();
        assert!(error.message().contains("too many"), "{error}");
    }

    #[test]
    fn columns_become_rows() {
        let columns = Array::of_bytes(&[1, 4, 2, 5, 3, 6], vec![2, 3], Element::U8, Endian::Little).unwrap();
        assert_eq!(columns.columns_to_rows().unwrap().bytes, [1, 2, 3, 4, 5, 6]);
        // Element (i, j, k) of 2 × 3 × 2 is i + 2j + 6k, column by column.
        let bytes: Vec<u8> = (0..12).collect();
        let columns = Array::of_bytes(&bytes, vec![2, 3, 2], Element::I8, Endian::Little).unwrap();
        assert_eq!(columns.columns_to_rows().unwrap().bytes, [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]);
    }
}
