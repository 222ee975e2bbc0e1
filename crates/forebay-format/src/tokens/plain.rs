//! Files that hold tokens and nothing else: raw elements, with llm.c's header before them or without; NumPy's arrays.

use forebay_core::{Element, Error, Kind, Result};

use super::{Runs, check_element};

/// As much of a file's beginning as its layout may depend on: llm.c's header, and that of an array of one dimension.
pub const HEADER_BYTES: u64 = 1024;
/// llm.c's magic numbers, as 32-bit integers, and the elements behind the header.
const LLM_C: [(u32, Element); 2] = [(20_240_520, Element::U16), (20_240_801, Element::U32)];

/// The layout of a file of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainTokens {
    /// The type of its tokens.
    pub element: Element,
    /// Where they are.
    pub runs: Runs,
    /// What there is to say about the file, as a predicate about its path.
    pub note: Option<String>,
}

/// The layout of raw elements, by the first bytes of the file, its size, and the type that it is said to have.
pub fn plain_tokens(head: &[u8], size_bytes: u64, given: Option<Element>) -> Result<PlainTokens> {
    let magic = head.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic));
    let known = LLM_C.iter().find(|(number, _)| magic == Some(*number) && size_bytes >= HEADER_BYTES);
    let Some((_, element)) = known else {
        return counted(given.unwrap_or(Element::U16), 0, size_bytes);
    };
    if let Some(given) = given.filter(|given| given != element) {
        let (expected, got) = (element.name(), given.name());
        let message = format!("dtype: expected {expected}, which the file's header of llm.c says, got {got}");
        return Err(Error::config(message));
    }
    let declared = head.get(8..12).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
    let plain = counted(*element, HEADER_BYTES, size_bytes)?;
    match declared.map(u64::from) {
        // The counter has 32 bits, and wraps around in a file of more.
        Some(declared) if declared != plain.runs.tokens() & u64::from(u32::MAX) => {
            let got = plain.runs.tokens();
            let message = format!("is truncated or damaged (expected {declared} tokens by its header, got {got})");
            Err(Error::new(Kind::Corrupt, message))
        }
        _ => Ok(plain),
    }
}

/// The elements from `offset` to the end of a file.
fn counted(element: Element, offset: u64, size_bytes: u64) -> Result<PlainTokens> {
    let item_bytes = check_element(element)?.size_bytes() as u64;
    let body = size_bytes.saturating_sub(offset);
    let note = match body % item_bytes {
        0 if body == 0 => Some("has no tokens".to_owned()),
        0 => None,
        rest => Some(format!("ends with {rest} bytes of a token of {item_bytes}, which are left out")),
    };
    Ok(PlainTokens { element, runs: Runs::One { offset, tokens: body / item_bytes }, note })
}

/// The layout of a NumPy array of one dimension, by its first bytes and the file's size.
pub fn npy_tokens(head: &[u8], size_bytes: u64, given: Option<Element>) -> Result<PlainTokens> {
    let wrong = |what: &str| Error::new(Kind::Corrupt, format!("is no NumPy array of tokens: {what}"));
    let rest = head.strip_prefix(b"\x93NUMPY").ok_or_else(|| wrong("it does not begin with NumPy's magic number"))?;
    let (length, from) = match rest {
        [1, _, a, b, ..] => (u64::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u64::from(u32::from_le_bytes([*a, *b, *c, *d])), 12),
        _ => return Err(wrong("its version is not 1, 2 or 3")),
    };
    let offset = from + length;
    let text = usize::try_from(offset).ok().and_then(|end| head.get(from as usize..end));
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(|| wrong("its header is too long"))?;
    let after = |key: &str| text.split_once(key).map(|(_, rest)| rest.trim_start_matches([':', ' ']));
    let descr = after("'descr'").and_then(|rest| rest.strip_prefix('\'')?.split_once('\''));
    let element = match descr.map(|(descr, _)| descr) {
        Some("|u1") => Element::U8,
        Some("|i1") => Element::I8,
        Some("<u2") => Element::U16,
        Some("<i2") => Element::I16,
        Some("<u4") => Element::U32,
        Some("<i4") => Element::I32,
        Some("<u8") => Element::U64,
        Some("<i8") => Element::I64,
        other => {
            let got = other.unwrap_or("something else");
            let message = format!("is an array of {got:?} (expected little-endian whole numbers)");
            return Err(Error::new(Kind::Undecodable, message));
        }
    };
    if let Some(given) = given.filter(|given| *given != element) {
        let (expected, got) = (element.name(), given.name());
        return Err(Error::config(format!("dtype: expected {expected}, which the file's header says, got {got}")));
    }
    let shape = after("'shape'").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).map(|(shape, _)| shape);
    let count = shape.and_then(|shape| shape.strip_suffix(',')?.trim().parse::<u64>().ok());
    let tokens = count.ok_or_else(|| wrong("it has not one dimension"))?;
    let needed = tokens.checked_mul(element.size_bytes() as u64).and_then(|bytes| bytes.checked_add(offset));
    match needed.filter(|needed| *needed <= size_bytes) {
        Some(_) => {
            let note = (tokens == 0).then(|| "has no tokens".to_owned());
            Ok(PlainTokens { element, runs: Runs::One { offset, tokens }, note })
        }
        None => {
            let message =
                format!("is truncated (expected {tokens} tokens of {}, got {size_bytes} bytes)", element.name());
            Err(Error::new(Kind::Corrupt, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_files_are_counted_and_half_a_token_is_said() {
        let plain = plain_tokens(&[1, 2, 3, 4, 5], 5, None).unwrap();
        assert_eq!((plain.element, plain.runs), (Element::U16, Runs::One { offset: 0, tokens: 2 }));
        assert_eq!(plain.note.as_deref(), Some("ends with 1 bytes of a token of 2, which are left out"));
        let wide = plain_tokens(&[], 16, Some(Element::U32)).unwrap();
        assert_eq!((wide.runs.tokens(), wide.note), (4, None));
        assert_eq!(plain_tokens(&[], 0, None).unwrap().note.as_deref(), Some("has no tokens"));
        assert_eq!(plain_tokens(&[], 16, Some(Element::F32)).unwrap_err().kind(), Kind::Undecodable);
    }

    #[test]
    fn the_header_of_llm_c_is_known_by_its_magic_number() {
        let header = |magic: u32, tokens: u32| {
            let mut header = vec![0; 1024];
            for (at, word) in [magic, 1, tokens].into_iter().enumerate() {
                header[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            header
        };
        let plain = plain_tokens(&header(20_240_520, 7), 1024 + 14, None).unwrap();
        assert_eq!((plain.element, plain.runs), (Element::U16, Runs::One { offset: 1024, tokens: 7 }));
        let llama = plain_tokens(&header(20_240_801, 7), 1024 + 28, Some(Element::U32)).unwrap();
        assert_eq!(llama.runs.tokens(), 7);
        assert_eq!(plain_tokens(&header(20_240_520, 8), 1024 + 14, None).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(plain_tokens(&header(20_240_520, 7), 1038, Some(Element::U32)).unwrap_err().kind(), Kind::Config);
        assert_eq!(plain_tokens(&header(20_240_521, 7), 1038, None).unwrap().runs.tokens(), 519);
    }

    #[test]
    fn arrays_of_one_dimension_are_token_files() {
        let file = |descr: &str, shape: &str| {
            let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
            bytes
        };
        let head = file("<u4", "3,");
        let offset = head.len() as u64;
        let plain = npy_tokens(&head, offset + 12, None).unwrap();
        assert_eq!((plain.element, plain.runs), (Element::U32, Runs::One { offset, tokens: 3 }));
        for (head, kind) in [
            (file("<u4", "4,"), Kind::Corrupt),
            (file("<u4", "18446744073709551615,"), Kind::Corrupt),
            (file("<u4", "3, 1"), Kind::Corrupt),
            (file("<u4", ""), Kind::Corrupt),
            (file(">u4", "3,"), Kind::Undecodable),
            (file("<f4", "3,"), Kind::Undecodable),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), Kind::Corrupt),
            (b"\x93NUMPY".to_vec(), Kind::Corrupt),
            (b"PK".to_vec(), Kind::Corrupt),
        ] {
            assert_eq!(npy_tokens(&head, offset + 12, None).unwrap_err().kind(), kind, "{head:?}");
        }
    }
}
