//! Files of text, and files that are taken as they are.

use std::time::Instant;

use forebay_core::{Error, Kind, Result};

use crate::memory::reserve;
use crate::{Dense, Made, Recipe, Sample, Scratch, Timing, Value};

/// Every sample is the bytes of its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesRecipe;

impl Recipe for BytesRecipe {
    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, bytes: &[u8], _scratch: &mut Scratch) -> Result<u64> {
        Ok(bytes.len() as u64)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bytes = copy_of(sample.bytes)?;
        Ok((Some(Value::Bytes(bytes)), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// What becomes of bytes that are not UTF-8, by Python's names.
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

/// Every sample is the text of its file, which is UTF-8. A byte order mark at the beginning is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextRecipe {
    /// What becomes of bytes that are no text.
    pub invalid: InvalidText,
}

impl TextRecipe {
    fn decoded(self, bytes: &[u8]) -> Result<String> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        match std::str::from_utf8(bytes) {
            Ok(_) => {}
            Err(error) if self.invalid == InvalidText::Strict => {
                let at = error.valid_up_to();
                let message = format!("is not UTF-8: byte {:#04x} at {at} does not fit", bytes[at]);
                return Err(Error::new(Kind::Corrupt, message)
                    .with_hint("give its `encoding`, or `errors=\"replace\"` to go on with U+FFFD in its place"));
            }
            Err(_) => {}
        }
        let replacement = if self.invalid == InvalidText::Replace { "\u{FFFD}" } else { "" };
        let mut text = String::new();
        for chunk in bytes.utf8_chunks() {
            let replacement = if chunk.invalid().is_empty() { "" } else { replacement };
            let more = chunk.valid().len() + replacement.len();
            text.try_reserve(more).map_err(|_| crate::memory::no_memory(text.len() + more, "its text"))?;
            text.push_str(chunk.valid());
            text.push_str(replacement);
        }
        Ok(text)
    }
}

impl Recipe for TextRecipe {
    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, bytes: &[u8], _scratch: &mut Scratch) -> Result<u64> {
        // An invalid byte may become three, and a text that grows is copied.
        let times = if self.invalid == InvalidText::Replace { 6 } else { 1 };
        Ok((bytes.len() as u64).saturating_mul(times))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let text = self.decoded(sample.bytes)?;
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
        TextRecipe { invalid }.decoded(bytes)
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
}
