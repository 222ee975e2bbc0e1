//! Arrays with a header of their own: as MosaicML's MDS and as LitData write them.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Endian, Fields, Made, Recipe, Sample, Scratch, Timing, Value};

/// Arrays whose shape, and perhaps whose type, stand in front of their elements.
#[derive(Clone, Debug)]
pub struct HeadedArrayRecipe(Header);

/// The types of elements by their numbers in a header.
type Elements = &'static [Option<Element>];

#[derive(Clone, Debug)]
enum Header {
    /// The type, where it is not known, in a byte; the shape in one for the number of dimensions and the width of each, and
    /// the dimensions.
    Mds { element: Option<Element>, shape: Option<Vec<usize>> },
    /// The type, the number of dimensions and the dimensions, in 32 bits each.
    Words { elements: Elements, endian: Endian },
}

impl HeadedArrayRecipe {
    /// Arrays of MDS. What is known of them in advance is not in their header.
    pub fn mds(element: Option<Element>, shape: Option<Vec<usize>>) -> Self {
        Self(Header::Mds { element, shape })
    }

    /// Arrays of LitData, whose headers are in this order, and whose types have these numbers.
    pub fn litdata(elements: Elements, endian: Endian) -> Self {
        Self(Header::Words { elements, endian })
    }

    fn read(&self, mut bytes: &[u8]) -> Result<Array> {
        let (element, shape) = match &self.0 {
            Header::Mds { element, shape } => mds_header(&mut bytes, *element, shape.as_deref())?,
            Header::Words { elements, endian } => words_header(&mut bytes, elements, *endian)?,
        };
        Array::of_bytes(bytes, shape, element, Endian::Little)
    }
}

fn truncated() -> Error {
    Error::new(Kind::Corrupt, "is truncated: it ends in the header of its array")
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    bytes.split_off(..count).ok_or_else(truncated)
}

fn mds_header(bytes: &mut &[u8], element: Option<Element>, shape: Option<&[usize]>) -> Result<(Element, Vec<usize>)> {
    let element = match element {
        Some(element) => element,
        None => match take(bytes, 1)?[0] {
            8 => Element::U8,
            9 => Element::I8,
            16 => Element::U16,
            17 => Element::I16,
            18 => Element::F16,
            32 => Element::U32,
            33 => Element::I32,
            34 => Element::F32,
            64 => Element::U64,
            65 => Element::I64,
            66 => Element::F64,
            other => return Err(unknown(u32::from(other))),
        },
    };
    if let Some(shape) = shape {
        return Ok((element, shape.to_vec()));
    }
    let form = take(bytes, 1)?[0];
    let (dimensions, width) = (usize::from(form >> 2), 1 << (form & 3));
    let extents = take(bytes, dimensions * width)?;
    Ok((element, extents.chunks_exact(width).map(|extent| extent_of(extent, Endian::Little)).collect()))
}

fn words_header(bytes: &mut &[u8], elements: Elements, endian: Endian) -> Result<(Element, Vec<usize>)> {
    let mut word = || take(bytes, 4).map(|word| extent_of(word, endian));
    let (number, dimensions) = (word()?, word()?);
    let element = elements.get(number).copied().flatten().ok_or_else(|| unknown(number as u32))?;
    let extents = take(bytes, dimensions.checked_mul(4).ok_or_else(truncated)?)?;
    Ok((element, extents.chunks_exact(4).map(|extent| extent_of(extent, endian)).collect()))
}

fn unknown(number: u32) -> Error {
    Error::new(Kind::Undecodable, format!("holds elements of a type that is not read (number {number})"))
}

/// A number of up to eight bytes.
fn extent_of(bytes: &[u8], endian: Endian) -> usize {
    let mut word = [0; 8];
    match endian {
        Endian::Little => word[..bytes.len()].copy_from_slice(bytes),
        Endian::Big => word.iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from),
    }
    usize::try_from(u64::from_le_bytes(word)).unwrap_or(usize::MAX)
}

impl Recipe for HeadedArrayRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("array", ColumnKind::Arrays)]
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(fields.only().len() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let array = self.read(sample.fields.only())?;
        Ok((Some(Value::Array(array)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENTS: Elements = &[None, Some(Element::I16)];

    #[test]
    fn headers_say_type_and_shape() {
        let int16 = [1u8, 0, 2, 0];
        let expected =
            Array { shape: vec![2, 1], element: Element::I16, bytes: [1i16, 2].map(i16::to_ne_bytes).concat() };
        let mds = |element, shape, header: &[u8]| {
            HeadedArrayRecipe::mds(element, shape).read(&[header, &int16[..]].concat()).unwrap()
        };
        assert_eq!(mds(None, None, &[17, 2 << 2, 2, 1]), expected);
        assert_eq!(mds(Some(Element::I16), None, &[2 << 2 | 1, 2, 0, 1, 0]), expected);
        assert_eq!(mds(None, Some(vec![2, 1]), &[17]), expected);
        assert_eq!(mds(Some(Element::I16), Some(vec![2, 1]), &[]), expected);
        let little = [&[1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0][..], &int16].concat();
        assert_eq!(HeadedArrayRecipe::litdata(ELEMENTS, Endian::Little).read(&little).unwrap(), expected);
        let big = [&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1][..], &int16].concat();
        assert_eq!(HeadedArrayRecipe::litdata(ELEMENTS, Endian::Big).read(&big).unwrap(), expected);
    }

    #[test]
    fn damage_is_an_error() {
        let mds = HeadedArrayRecipe::mds(None, None);
        let good = [17, 2 << 2, 2, 1, 1, 0, 2, 0];
        mds.read(&good).unwrap();
        for end in 0..good.len() {
            assert_eq!(mds.read(&good[..end]).unwrap_err().kind(), Kind::Corrupt, "{end}");
        }
        // More elements than any machine has memory for, and a type that is none.
        let huge = [&[8, 2 << 2 | 3][..], &[0xFF; 16]].concat();
        assert_eq!(mds.read(&huge).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(mds.read(&[7, 1 << 2, 0]).unwrap_err().kind(), Kind::Undecodable);
        let words = HeadedArrayRecipe::litdata(ELEMENTS, Endian::Big);
        for bytes in
            [&[0xFF; 16][..], &[0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 1], &[0, 0, 0, 1], &[0, 0, 0, 0, 0, 0, 0, 0]]
        {
            assert!(words.read(bytes).is_err(), "{bytes:?}");
        }
    }
}
