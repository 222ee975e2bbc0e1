//! Files of text, and files that are taken as they are.

use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Error, Kind, Result};

use crate::memory::reserve;
use crate::{ColumnKind, ColumnSpec, Dense, Fields, LightRecipe, Made, Recipe, Sample, Scratch, Timing, Value};

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
        Ok(LightRecipe::memory_bytes(self, fields.only().len() as u64))
    }

    fn light(&self) -> Option<&dyn LightRecipe> {
        Some(self)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        made_lightly(self, sample)
    }
}

impl LightRecipe for BytesRecipe {
    fn memory_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes
    }

    fn make(&self, bytes: &[u8]) -> Result<Value> {
        copy_of(bytes).map(Value::Bytes)
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

/// Every sample is the text of its file, or one line of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextRecipe {
    /// How it is written.
    pub encoding: Encoding,
    /// What becomes of bytes that are no text.
    pub invalid: InvalidText,
    /// It is a line, whose end is left out. A byte order mark is a character there, which only a file begins with.
    pub is_line: bool,
}

impl TextRecipe {
    fn decoded(self, bytes: &[u8]) -> Result<String> {
        let bytes = if self.is_line { without_line_end(bytes) } else { bytes };
        match self.encoding {
            Encoding::Utf8 if self.is_line => self.decoded_utf8(bytes),
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
            InvalidText::Strict => Err(not_text(name, bytes, Some(at))),
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

/// The error of bytes that are not text in an encoding, with the first that does not fit where it is known.
fn not_text(name: &str, bytes: &[u8], at: Option<usize>) -> Error {
    let found = at.and_then(|at| Some((at, bytes.get(at)?)));
    let message = match found {
        Some((at, byte)) => format!("is not {name}: byte {byte:#04x} at {at} does not fit"),
        None => format!("is not {name}"),
    };
    Error::new(Kind::Corrupt, message)
        .with_hint("give its `encoding`, or `errors=\"replace\"` to get U+FFFD in place of such bytes")
}

/// A line without `\n` or `\r\n` at its end.
pub(super) fn without_line_end(bytes: &[u8]) -> &[u8] {
    match bytes.strip_suffix(b"\n") {
        Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
        None => bytes,
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
        Ok(LightRecipe::memory_bytes(self, fields.only().len() as u64))
    }

    fn light(&self) -> Option<&dyn LightRecipe> {
        Some(self)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        made_lightly(self, sample)
    }
}

impl LightRecipe for TextRecipe {
    fn memory_bytes(&self, size_bytes: u64) -> u64 {
        // An invalid byte may become three, a byte of Latin-1 two, and a text that grows is copied.
        let times = match (self.encoding, self.invalid) {
            (Encoding::Latin1, _) => 2,
            (_, InvalidText::Replace) => 6,
            _ => 1,
        };
        size_bytes.saturating_mul(times)
    }

    fn make(&self, bytes: &[u8]) -> Result<Value> {
        self.decoded(bytes).map(Value::Text)
    }
}

/// [`Recipe::make`] of a light recipe.
fn made_lightly(recipe: &dyn LightRecipe, sample: Sample<'_>) -> Result<Made> {
    let started = Instant::now();
    let value = recipe.make(sample.fields.only())?;
    Ok((Some(value), Timing { decode: started.elapsed(), ..Timing::default() }))
}

/// An encoding that another language's library decodes.
pub trait Codec: Send + Sync {
    /// What the encoding is called in messages.
    fn name(&self) -> &str;
    /// The text, or where the bytes are none. An error is one of the library, not of the bytes.
    fn decode(&self, bytes: &[u8]) -> Result<Decoded>;
}

/// What a [`Codec`] made of bytes.
#[derive(Debug)]
pub enum Decoded {
    /// Their text.
    Text(Value),
    /// They are none.
    Invalid {
        /// The first byte that does not fit, where the codec knows.
        at: Option<usize>,
    },
}

/// Every sample is the text of its file, which a [`Codec`] decodes.
pub struct CodecRecipe {
    codec: Arc<dyn Codec>,
}

impl CodecRecipe {
    /// The texts that `codec` makes.
    pub fn new(codec: Arc<dyn Codec>) -> Self {
        Self { codec }
    }
}

impl Recipe for CodecRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        vec![ColumnSpec::new("text", ColumnKind::Objects)]
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        // Its own copy of the bytes, and characters of up to four.
        Ok((fields.only().len() as u64).saturating_mul(5))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        match self.codec.decode(sample.fields.only())? {
            Decoded::Text(text) => Ok((Some(text), Timing { decode: started.elapsed(), ..Timing::default() })),
            Decoded::Invalid { at } => Err(not_text(self.codec.name(), sample.fields.only(), at)),
        }
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
    fn a_line_has_no_line_end() {
        let line = |bytes: &[u8]| TextRecipe { is_line: true, ..TextRecipe::default() }.decoded(bytes).unwrap();
        for (bytes, expected) in
            [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("\n", ""), ("a\r", "a\r"), ("a\n\n", "a\n")]
        {
            assert_eq!(line(bytes.as_bytes()), expected, "{bytes:?}");
        }
        assert_eq!(line("\u{FEFF}a\0\n".as_bytes()), "\u{FEFF}a\0");
    }

    #[test]
    fn other_encodings_are_those_of_python() {
        let decode = |encoding, invalid, bytes: &[u8]| TextRecipe { encoding, invalid, is_line: false }.decoded(bytes);
        let every_byte: Vec<u8> = (0..=255).collect();
        let latin: String = (0..=255).map(char::from).collect();
        assert_eq!(decode(Encoding::Latin1, InvalidText::Strict, &every_byte).unwrap(), latin);
        assert_eq!(decode(Encoding::Ascii, InvalidText::Strict, b"plain").unwrap(), "plain");
        assert_eq!(decode(Encoding::Ascii, InvalidText::Replace, b"gr\xC3\xBCn").unwrap(), "gr\u{FFFD}\u{FFFD}n");
        assert_eq!(decode(Encoding::Ascii, InvalidText::Ignore, b"gr\xFCn").unwrap(), "grn");
        let error = decode(Encoding::Ascii, InvalidText::Strict, b"gr\xFCn").unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Corrupt, "is not ASCII: byte 0xfc at 2 does not fit"));
    }

    /// Digits; `!` is where its library gives up without a place, `?` where it breaks.
    struct Digits;

    impl Codec for Digits {
        fn name(&self) -> &str {
            "digits"
        }
        fn decode(&self, bytes: &[u8]) -> Result<Decoded> {
            match bytes.iter().position(|byte| !byte.is_ascii_digit()) {
                None => Ok(Decoded::Text(Value::Text(String::from_utf8_lossy(bytes).into_owned()))),
                Some(at) if bytes[at] == b'?' => Err(Error::internal("broke")),
                Some(at) => Ok(Decoded::Invalid { at: (bytes[at] != b'!').then_some(at) }),
            }
        }
    }

    #[test]
    fn what_a_codec_refuses_is_damage_like_that_of_native_encodings() {
        use forebay_core::{Epoch, Rng, SampleId};
        let recipe = CodecRecipe::new(Arc::new(Digits));
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        assert_eq!(recipe.memory_bytes(Fields(&[b"1234"]), scratch).unwrap(), 20);
        let mut make = |bytes| {
            recipe.make(Sample { fields: Fields(&[bytes]), path: &|| "unused".into(), rng, scratch, slot: None })
        };
        assert!(matches!(make(b"0815").unwrap(), (Some(Value::Text(text)), _) if text == "0815"));
        for (bytes, message) in [(&b"12a"[..], "is not digits: byte 0x61 at 2 does not fit"), (b"12!", "is not digits")]
        {
            let error = make(bytes).unwrap_err();
            assert_eq!((error.kind(), error.message()), (Kind::Corrupt, message));
            assert!(error.hint().contains("encoding"), "{}", error.hint());
        }
        assert_eq!(make(b"?").unwrap_err().kind(), Kind::Internal);
    }
}
