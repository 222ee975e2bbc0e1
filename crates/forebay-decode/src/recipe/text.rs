//! Files of text, and files that are taken as they are.

use std::time::Instant;

use forebay_core::{Error, Kind, Result};

use crate::memory::reserve;
use crate::{ColumnKind, ColumnSpec, Dense, Fields, Made, Recipe, Sample, Scratch, Timing, Value};

/// Every sample is the bytes of its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesRecipe;

impl Recipe for BytesRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("bytes", ColumnKind::Bytes)]
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(fields.only().len() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bytes = copy_of(sample.fields.only())?;
        Ok((Some(Value::Bytes(bytes)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// How text is written as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8. A byte order mark at the beginning is left out.
    #[default]
    Utf8,
    /// ASCII: bytes below 128.
    Ascii,
    /// ISO 8859-1, in which every byte is a character.
    Latin1,
}

/// What becomes of bytes that are no text, by Python's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidText {
    /// The sample is damaged.
    #[default]
    Strict,
    /// U+FFFD takes the place of each invalid sequence.
    Replace,
    /// They are left out.
    Ignore,
}

/// Every sample is the text of its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextRecipe {
    /// How it is written.
    pub encoding: Encoding,
    /// What becomes of bytes that are no text.
    pub invalid: InvalidText,
}

impl TextRecipe {
    fn decoded(self, bytes: &[u8]) -> Result<String> {
        match self.encoding {
            Encoding::Utf8 => self.decoded_utf8(bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)),
            Encoding::Ascii => self.decoded_ascii(bytes),
            Encoding::Latin1 => {
                let high = bytes.iter().filter(|byte| !byte.is_ascii()).count();
                let mut text = room_for(bytes.len() + high)?;
                text.extend(bytes.iter().map(|byte| char::from(*byte)));
                Ok(text)
            }
        }
    }

    /// The error of a byte that is no text, or what takes its place.
    fn replacement(self, name: &str, bytes: &[u8], at: usize) -> Result<&'static str> {
        match self.invalid {
            InvalidText::Replace => Ok("\u{FFFD}"),
            InvalidText::Ignore => Ok(""),
            InvalidText::Strict => {
                let message = format!("is not {name}: byte {:#04x} at {at} does not fit", bytes[at]);
                Err(Error::new(Kind::Corrupt, message)
                    .with_hint("give its `encoding`, or `errors=\"replace\"` to get U+FFFD in place of such bytes"))
            }
        }
    }

    fn decoded_utf8(self, bytes: &[u8]) -> Result<String> {
        if let Ok(valid) = std::str::from_utf8(bytes) {
            let mut text = room_for(valid.len())?;
            text.push_str(valid);
            return Ok(text);
        }
        let (mut text, mut at) = (String::new(), 0);
        for chunk in bytes.utf8_chunks() {
            at += chunk.valid().len();
            let replacement = if chunk.invalid().is_empty() { "" } else { self.replacement("UTF-8", bytes, at)? };
            at += chunk.invalid().len();
            let more = chunk.valid().len() + replacement.len();
            text.try_reserve(more).map_err(|_| crate::memory::no_memory(text.len() + more, "its text"))?;
            text.push_str(chunk.valid());
            text.push_str(replacement);
        }
        Ok(text)
    }

    fn decoded_ascii(self, bytes: &[u8]) -> Result<String> {
        let mut text = room_for(bytes.len())?;
        for (at, byte) in bytes.iter().enumerate() {
            match byte.is_ascii() {
                true => text.push(char::from(*byte)),
                false => {
                    let replacement = self.replacement("ASCII", bytes, at)?;
                    let no_memory = |_| crate::memory::no_memory(3 * bytes.len(), "its text");
                    text.try_reserve(bytes.len() - at + replacement.len()).map_err(no_memory)?;
                    text.push_str(replacement);
                }
            }
        }
        Ok(text)
    }
}

fn room_for(size_bytes: usize) -> Result<String> {
    let mut text = String::new();
    text.try_reserve(size_bytes).map_err(|_| crate::memory::no_memory(size_bytes, "its text"))?;
    Ok(text)
}

impl Recipe for TextRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("text", ColumnKind::Text)]
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        // An invalid byte may become three, a byte of Latin-1 two, and a text that grows is copied.
        let times = match (self.encoding, self.invalid) {
            (Encoding::Latin1, _) => 2,
            (_, InvalidText::Replace) => 6,
            _ => 1,
        };
        Ok((fields.only().len() as u64).saturating_mul(times))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let text = self.decoded(sample.fields.only())?;
        Ok((Some(Value::Text(text)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

fn copy_of(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    reserve(&mut copy, bytes.len(), "its bytes")?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(invalid: InvalidText, bytes: &[u8]) -> Result<String> {
        TextRecipe { invalid, ..TextRecipe::default() }.decoded(bytes)
    }

    #[test]
    fn text_is_what_python_would_decode() {
        for invalid in [InvalidText::Strict, InvalidText::Replace, InvalidText::Ignore] {
            assert_eq!(text(invalid, "\u{FEFF}grün\0\r\n".as_bytes()).unwrap(), "grün\0\r\n");
            assert_eq!(text(invalid, b"").unwrap(), "");
        }
        let error = text(InvalidText::Strict, b"gr\xFCn").unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Corrupt, "is not UTF-8: byte 0xfc at 2 does not fit"));
        // b"gr\xfcn \xe2\x82 \xf0\x9f".decode("utf-8", errors) of Python.
        let broken = b"gr\xFCn \xE2\x82 \xF0\x9F";
        assert_eq!(text(InvalidText::Replace, broken).unwrap(), "gr\u{FFFD}n \u{FFFD} \u{FFFD}");
        assert_eq!(text(InvalidText::Ignore, broken).unwrap(), "grn  ");
    }

    #[test]
    fn other_encodings_are_those_of_python() {
        let decode = |encoding, invalid, bytes: &[u8]| TextRecipe { encoding, invalid }.decoded(bytes);
        let every_byte: Vec<u8> = (0..=255).collect();
        let latin: String = (0..=255).map(char::from).collect();
        assert_eq!(decode(Encoding::Latin1, InvalidText::Strict, &every_byte).unwrap(), latin);
        assert_eq!(decode(Encoding::Ascii, InvalidText::Strict, b"plain").unwrap(), "plain");
        assert_eq!(decode(Encoding::Ascii, InvalidText::Replace, b"gr\xC3\xBCn").unwrap(), "gr\u{FFFD}\u{FFFD}n");
        assert_eq!(decode(Encoding::Ascii, InvalidText::Ignore, b"gr\xFCn").unwrap(), "grn");
        let error = decode(Encoding::Ascii, InvalidText::Strict, b"gr\xFCn").unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Corrupt, "is not ASCII: byte 0xfc at 2 does not fit"));
    }
}
