//! NumPy's `.npy`: a magic number, a version, a header that is a Python dictionary, and the elements.
//!
//! Parses only headers as NumPy itself writes them, and evaluates nothing.

use forebay_core::{Element, Error, Kind, Result};

use crate::array::{Array, Endian, size_bytes};
use crate::memory::reserve;

const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy refuses longer ones, too, unless told to trust the file.
const MAX_HEADER_BYTES: usize = 10_000;
/// Elements of files that are written begin at a multiple of this, as NumPy has it; headers of usual arrays have this many bytes twice.
const WRITTEN_ALIGNMENT: usize = 64;
/// NumPy's own limit.
const MAX_DIMENSIONS: usize = 64;

fn damaged(detail: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, "is damaged (npy)").with_detail(detail)
}

fn truncated(detail: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, "is truncated (npy)").with_detail(detail)
}

fn unsupported(what: &str) -> Error {
    Error::new(Kind::Undecodable, format!("may well be good: forebay does not read npy files of {what}"))
        .with_hint("save it as an array of plain numbers, or leave it out")
}

/// A parsed header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    element: Element,
    endian: Endian,
    is_in_columns: bool,
    shape: Vec<usize>,
    /// Where the elements begin.
    start: usize,
}

/// Reads an array.
pub(crate) fn read(bytes: &[u8]) -> Result<Array> {
    let header = header(bytes)?;
    let content = &bytes[header.start..];
    let expected = size_bytes(&header.shape, header.element)
        .ok_or_else(|| damaged(format!("a shape of {:?}, which no machine has memory for", header.shape)))?;
    // As in NumPy, bytes after the elements are ignored.
    let content = content
        .get(..expected)
        .ok_or_else(|| truncated(format!("expected {expected} bytes of elements, got {}", content.len())))?;
    let array = Array::of_bytes(content, header.shape, header.element, header.endian)?;
    if header.is_in_columns { array.columns_to_rows() } else { Ok(array) }
}

/// An array as a file of version 1, as NumPy writes it: row by row, low bytes first. What NumPy has no type for becomes one that holds
/// every value of it: `bfloat16` is written as `float32`.
///
/// ```
/// use forebay_core::Element;
/// use forebay_decode::{Array, write_npy};
///
/// let made = write_npy(&Array { shape: vec![2], element: Element::U8, bytes: vec![7, 9] })?;
/// assert!(made.starts_with(b"\x93NUMPY\x01\x00") && made.ends_with(b"\n\x07\x09") && made.len() == 128 + 2);
/// # Ok::<(), forebay_core::Error>(())
/// ```
pub fn write(array: &Array) -> Result<Vec<u8>> {
    let Array { shape, element, bytes } = array;
    let (kind, size) = match element {
        Element::Bool => ('b', 1),
        Element::I8 | Element::I16 | Element::I32 | Element::I64 => ('i', element.size_bytes()),
        Element::U8 | Element::U16 | Element::U32 | Element::U64 => ('u', element.size_bytes()),
        Element::BF16 => ('f', 4),
        Element::F16 | Element::F32 | Element::F64 => ('f', element.size_bytes()),
    };
    let order = if size == 1 { '|' } else { '<' };
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    // One dimension keeps its comma: Python's tuple of one.
    let extents = if shape.len() == 1 { extents.trim_end() } else { extents.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{order}{kind}{size}', 'fortran_order': False, 'shape': ({extents}), }}");
    let start = (MAGIC.len() + 4 + text.len() + 1).next_multiple_of(WRITTEN_ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', start - MAGIC.len() - 5 - text.len()));
    text.push('\n');
    let length = u16::try_from(text.len())
        .map_err(|_| Error::internal(format!("an array of {} dimensions has no npy header", shape.len())))?;
    let mut made = Vec::new();
    reserve(&mut made, start + bytes.len() / element.size_bytes() * size, "an array with its header")?;
    made.extend([MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat());
    if *element == Element::BF16 {
        // Its bits are the upper half of those of a float32.
        for own in bytes.as_chunks::<2>().0 {
            made.extend((u32::from(u16::from_ne_bytes(*own)) << 16).to_le_bytes());
        }
        return Ok(made);
    }
    let from = made.len();
    made.extend_from_slice(bytes);
    // Turned where this machine's order is another one.
    Endian::Little.make_native(*element, &mut made[from..]);
    Ok(made)
}

fn header(bytes: &[u8]) -> Result<Header> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let message = if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
            return Err(truncated(format!("{} bytes", bytes.len())));
        } else {
            "is not an npy file: it does not begin with NumPy's magic number"
        };
        return Err(Error::new(Kind::Undecodable, message));
    };
    let short = || truncated("it ends in its header");
    let (length, from) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
        [] | [1..=3] | [1, ..] | [2 | 3, ..] => return Err(short()),
        [major, minor @ ..] => {
            let minor = minor.first().copied().unwrap_or(0);
            return Err(unsupported(&format!("version {major}.{minor}")));
        }
    };
    if length > MAX_HEADER_BYTES {
        return Err(damaged(format!("a header of {length} bytes (expected at most {MAX_HEADER_BYTES})")));
    }
    let text = rest.get(from..from + length).ok_or_else(short)?;
    let text = std::str::from_utf8(text).map_err(|error| damaged(format!("its header is no text: {error}")))?;
    parse(text, MAGIC.len() + from + length)
}

/// Parses the dictionary: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(text: &str, start: usize) -> Result<Header> {
    let wrong = |what: &str| damaged(format!("{what} in its header {text:?}"));
    let mut rest = text.trim().strip_prefix('{').ok_or_else(|| wrong("no dictionary"))?;
    let (mut kind, mut is_in_columns, mut shape) = (None, None, None);
    loop {
        rest = rest.trim_start();
        if let Some(end) = rest.strip_prefix('}') {
            if !end.trim().is_empty() {
                return Err(wrong("something behind the dictionary"));
            }
            break;
        }
        let (key, after) = quoted(rest).ok_or_else(|| wrong("no key"))?;
        rest = after.trim_start().strip_prefix(':').ok_or_else(|| wrong("no value"))?.trim_start();
        match key {
            "descr" => {
                if rest.starts_with('[') {
                    return Err(unsupported("records (a structured dtype)"));
                }
                let (value, after) = quoted(rest).ok_or_else(|| wrong("no dtype"))?;
                (kind, rest) = (Some(element(value)?), after);
            }
            "fortran_order" => {
                let value = ["True", "False"].into_iter().find(|word| rest.starts_with(word));
                let value = value.ok_or_else(|| wrong("neither True nor False"))?;
                (is_in_columns, rest) = (Some(value == "True"), &rest[value.len()..]);
            }
            "shape" => {
                let (inside, after) =
                    rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or_else(|| wrong("no shape"))?;
                (shape, rest) = (Some(extents(inside).ok_or_else(|| wrong("no shape"))?), after);
            }
            _ => return Err(wrong("an unknown key")),
        }
        rest = rest.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None if rest.starts_with('}') => rest,
            None => return Err(wrong("no comma")),
        };
    }
    let ((element, endian), is_in_columns, shape) = kind
        .zip(is_in_columns)
        .zip(shape)
        .map(|((kind, is_in_columns), shape)| (kind, is_in_columns, shape))
        .ok_or_else(|| wrong("a key is missing"))?;
    Ok(Header { element, endian, is_in_columns, shape, start })
}

/// The text between quotes, and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote).filter(|(inside, _)| !inside.contains('\\'))
}

/// `3, 4` or `3,` or nothing.
fn extents(text: &str) -> Option<Vec<usize>> {
    let mut parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.last().is_some_and(|last| last.is_empty()) {
        parts.pop();
    } else if parts.len() == 1 {
        return None; // a number in parentheses is not a tuple
    }
    // NumPy 1 on Python 2 wrote `3L`.
    let number = |part: &&str| part.strip_suffix('L').unwrap_or(part).parse().ok();
    (parts.len() <= MAX_DIMENSIONS).then(|| parts.iter().map(number).collect())?
}

/// NumPy's name of an element type: byte order, kind, bytes.
fn element(text: &str) -> Result<(Element, Endian)> {
    let (order, name) = text.split_at_checked(1).ok_or_else(|| damaged(format!("a dtype of {text:?}")))?;
    let endian = match order {
        "<" => Endian::Little,
        ">" => Endian::Big,
        "|" | "=" => Endian::NATIVE,
        _ => return Err(damaged(format!("a dtype of {text:?}"))),
    };
    let element = match name {
        "b1" => Element::Bool,
        "i1" => Element::I8,
        "i2" => Element::I16,
        "i4" => Element::I32,
        "i8" => Element::I64,
        "u1" => Element::U8,
        "u2" => Element::U16,
        "u4" => Element::U32,
        "u8" => Element::U64,
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        "O" => return Err(unsupported("Python objects, which only unpickling could read")),
        _ => return Err(unsupported(&format!("dtype {text:?}"))),
    };
    Ok((element, endian))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, dictionary: &str, content: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((dictionary.len() as u16).to_le_bytes()),
            _ => bytes.extend((dictionary.len() as u32).to_le_bytes()),
        }
        bytes.extend(dictionary.as_bytes());
        bytes.extend(content);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for element in Element::ALL {
            for shape in [vec![], vec![3], vec![0, 7], vec![2, 3], vec![1; 32]] {
                let count: usize = shape.iter().product();
                let bytes: Vec<u8> = (0..count * element.size_bytes()).map(|at| (at % 2) as u8).collect();
                let array = Array { shape, element, bytes };
                let made = write(&array).unwrap();
                assert_eq!(
                    (made.len() - count * element.size_bytes().max(4 * usize::from(element == Element::BF16))) % 64,
                    0
                );
                let again = read(&made).unwrap();
                match element {
                    Element::BF16 => {
                        let wide =
                            |own: &[u8; 2]| f32::from_bits(u32::from(u16::from_ne_bytes(*own)) << 16).to_ne_bytes();
                        let bytes = array.bytes.as_chunks::<2>().0.iter().flat_map(wide).collect();
                        assert_eq!(again, Array { element: Element::F32, bytes, ..array });
                    }
                    _ => assert_eq!(again, array),
                }
            }
        }
        // As `numpy.save` writes `np.array([1, 2], "<u2")`.
        let made =
            write(&Array { shape: vec![2], element: Element::U16, bytes: [1u16, 2].map(u16::to_ne_bytes).concat() });
        let dictionary = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(made.unwrap(), file(1, &format!("{dictionary:117}\n"), &[1, 0, 2, 0]));
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let rows = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }          \n";
        let content: Vec<u8> = (1..=6i16).flat_map(i16::to_le_bytes).collect();
        for version in 1..=3 {
            let array = read(&file(version, rows, &content)).unwrap();
            assert_eq!((array.shape.as_slice(), array.element), ([2, 3].as_slice(), Element::I16));
            assert_eq!(array.bytes, (1..=6i16).flat_map(i16::to_ne_bytes).collect::<Vec<_>>());
        }
        let columns = "{'descr': '>u2', 'fortran_order': True, 'shape': (2, 2), }\n";
        let array = read(&file(1, columns, &[0, 1, 0, 2, 0, 3, 0, 4])).unwrap();
        assert_eq!(array.bytes, [1u16, 3, 2, 4].into_iter().flat_map(u16::to_ne_bytes).collect::<Vec<_>>());
        let single = read(&file(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", &[1])).unwrap();
        assert_eq!((single.shape.len(), single.element, single.bytes), (0, Element::Bool, vec![1]));
        let none = read(&file(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 7), }\n", &[])).unwrap();
        assert_eq!((none.shape, none.bytes.len()), (vec![0, 7], 0));
        let behind = read(&file(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n", &[7, 8, 9])).unwrap();
        assert_eq!(behind.bytes, [7], "as NumPy, which does not look behind the elements");
    }

    #[test]
    fn what_is_not_read_says_why() {
        let with = |descr: &str| {
            file(1, &format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n"), &[0; 64])
        };
        for (descr, part) in [("'|O'", "Python objects"), ("'<c8'", "\"<c8\""), ("[('a', '<f4')]", "records")] {
            let error = read(&with(descr)).unwrap_err();
            assert_eq!(error.kind(), Kind::Undecodable, "{error}");
            assert!(error.message().contains("may well be good") && error.message().contains(part), "{error}");
        }
        assert_eq!(read(b"PK\x03\x04").unwrap_err().kind(), Kind::Undecodable);
    }

    #[test]
    fn damage_is_found() {
        let good = file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n", &[0; 48]);
        read(&good).unwrap();
        for length in 0..good.len() {
            let error = read(&good[..length]).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{length}: {error}");
            assert!(error.message().contains("truncated"), "{length}: {error}");
        }
        let dictionary = |text: &str| read(&file(1, text, &[0; 48])).unwrap_err();
        for text in [
            "",
            "{}",
            "{'descr': '<f4'}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } + 1",
            "{'descr': '<f4' 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2), }",
            "{'descr': 'é', 'fortran_order': False, 'shape': (3,), }",
            "{'shape': (",
        ] {
            assert_eq!(dictionary(text).kind(), Kind::Corrupt, "{text}");
        }
        let many = format!("{{'descr': '|u1', 'fortran_order': True, 'shape': ({}), }}", "1,".repeat(65));
        assert_eq!(dictionary(&many).kind(), Kind::Corrupt);
        let long = file(2, &" ".repeat(MAX_HEADER_BYTES + 1), &[]);
        assert!(read(&long).unwrap_err().detail().unwrap().contains("header of 10001 bytes"));
    }
}
