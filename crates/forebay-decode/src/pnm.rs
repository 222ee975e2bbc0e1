//! Portable bitmaps, greymaps and pixmaps (P1 to P6): a few numbers as text, then samples as text or as bytes.
//!
//! Read here rather than by a crate: Pillow's choices (how samples are scaled, what a comment may split) are the
//! specification. A file may hold several pictures; the first is decoded.

use forebay_core::{Error, Result};

use crate::decoder::{check_size, damaged, truncated};
use crate::pixels::{Palette, prepare, rgb_mut};
use crate::{Decoder, Format, Header, Image, Region};

#[derive(Default)]
pub(crate) struct Pnm;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colours {
    /// 1 is black.
    Bits,
    Grey,
    Rgb,
}

struct Anymap<'a> {
    width: u32,
    height: u32,
    colours: Colours,
    /// Samples are written as text.
    plain: bool,
    /// The sample that is white.
    highest: u16,
    data: &'a [u8],
}

/// What separates numbers; C's `isspace`, which unlike Rust's `is_ascii_whitespace` has the vertical tab.
pub(crate) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Text with comments removed: as in Pillow, a comment inside a number does not end it.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn byte(&mut self) -> Result<u8> {
        while let Some((&first, rest)) = self.0.split_first() {
            self.0 = rest;
            if first != b'#' {
                return Ok(first);
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            self.0 = end.map_or(&[], |end| &rest[end + 1..]);
        }
        Err(truncated(Format::Pnm, "expected a number, got the end"))
    }

    fn visible_byte(&mut self) -> Result<u8> {
        loop {
            let byte = self.byte()?;
            if !is_space(byte) {
                return Ok(byte);
            }
        }
    }

    /// The next number, of at most ten digits, and the space after it. The end of the file ends a number, too.
    fn number(&mut self) -> Result<u64> {
        let mut byte = self.visible_byte()?;
        let mut value = 0;
        for _ in 0..10 {
            if !byte.is_ascii_digit() {
                break;
            }
            value = value * 10 + u64::from(byte - b'0');
            byte = self.byte().unwrap_or(b' ');
            if is_space(byte) {
                return Ok(value);
            }
        }
        Err(damaged(Format::Pnm, format!("expected a number of at most 10 digits, got '{}'", byte.escape_ascii())))
    }

    fn bit(&mut self) -> Result<u16> {
        match self.visible_byte()? {
            byte @ (b'0' | b'1') => Ok(u16::from(byte - b'0')),
            byte => Err(damaged(Format::Pnm, format!("expected 0 or 1, got '{}'", byte.escape_ascii()))),
        }
    }

    fn sample(&mut self, highest: u16) -> Result<u16> {
        let value = self.number()?;
        let sample = u16::try_from(value).ok().filter(|sample| *sample <= highest);
        sample.ok_or_else(|| damaged(Format::Pnm, format!("expected samples of at most {highest}, got {value}")))
    }
}

impl<'a> Anymap<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (colours, plain) = match bytes.get(1) {
            Some(kind @ (b'1' | b'4')) => (Colours::Bits, *kind == b'1'),
            Some(kind @ (b'2' | b'5')) => (Colours::Grey, *kind == b'2'),
            Some(kind @ (b'3' | b'6')) => (Colours::Rgb, *kind == b'3'),
            _ => return Err(damaged(Format::Pnm, "expected P1 to P6")),
        };
        let mut text = Text(bytes.get(2..).unwrap_or_default());
        let mut side = || text.number().map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let (width, height) = (side()?, side()?);
        let highest = if colours == Colours::Bits { 1 } else { text.sample(u16::MAX)? };
        if highest == 0 {
            return Err(damaged(Format::Pnm, "expected a highest sample of 1 to 65535, got 0"));
        }
        Ok(Self { width, height, colours, plain, highest, data: text.0 })
    }

    /// The smallest data size of the picture in bytes.
    fn needed_bytes(&self) -> usize {
        let (width, height) = (self.width as usize, self.height as usize);
        let samples = width * height * if self.colours == Colours::Rgb { 3 } else { 1 };
        match (self.colours, self.plain) {
            (Colours::Bits, true) => samples,
            (Colours::Bits, false) => width.div_ceil(8) * height,
            (_, true) => samples * 2 - 1,
            (_, false) => samples * if self.highest > 255 { 2 } else { 1 },
        }
    }

    /// Converts a sample to 8 bits as Pillow does: grey of more than 8 bits is scaled to 16 bits and then clipped at
    /// 255.
    fn level(&self, sample: u16) -> u8 {
        let white = match self.colours {
            Colours::Bits => return if sample == 0 { 255 } else { 0 },
            Colours::Grey if self.highest > 255 => 65535.0,
            _ => 255.0,
        };
        (f64::from(sample) / f64::from(self.highest) * white).round_ties_even().min(255.0) as u8
    }

    /// Fills the picture with samples, in the order of the file.
    fn fill(&self, rgb: &mut [u8], mut next: impl FnMut() -> Result<u16>) -> Result<()> {
        for pixel in rgb_mut(rgb) {
            let first = self.level(next()?);
            *pixel = match self.colours {
                Colours::Rgb => [first, self.level(next()?), self.level(next()?)],
                _ => [first; 3],
            };
        }
        Ok(())
    }
}

impl Decoder for Pnm {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let map = Anymap::parse(bytes)?;
        let Anymap { width, height, .. } = map;
        check_size(Format::Pnm, width, height)?;
        let coded_bytes = (bytes.len() - map.data.len() + map.needed_bytes()) as u64;
        let memory_bytes = u64::from(width) * u64::from(height) * 3 + (64 << 10);
        Ok(Header { format: Format::Pnm, width, height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        let map = Anymap::parse(bytes)?;
        if (map.width, map.height) != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another picture"));
        }
        let needed = map.needed_bytes();
        let Some(data) = map.data.get(..needed) else {
            let detail = format!("expected at least {needed} bytes of pixels, got {}", map.data.len());
            return Err(truncated(Format::Pnm, detail));
        };
        prepare(out, map.width, map.height)?;
        let (rgb, width) = (&mut out.pixels[..], map.width as usize);
        match (map.colours, map.plain, map.highest) {
            (colours, true, highest) => {
                let mut text = Text(map.data);
                map.fill(rgb, || if colours == Colours::Bits { text.bit() } else { text.sample(highest) })?;
            }
            (Colours::Rgb, false, 255) => rgb.copy_from_slice(data),
            (colours @ (Colours::Bits | Colours::Grey), false, ..=255) => {
                let bits = if colours == Colours::Bits { 1 } else { 8 };
                let palette = Palette::new((0..=255).map(|sample| [map.level(sample); 3]));
                let rows = data.chunks_exact((width * bits as usize).div_ceil(8));
                rows.zip(rgb.chunks_exact_mut(width * 3)).for_each(|(row, rgb)| palette.paint(row, bits, rgb));
            }
            (_, false, highest) => {
                let mut samples = data.chunks_exact(if highest > 255 { 2 } else { 1 });
                let value = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u16::from(*byte));
                // `data` has every sample: the default is never used.
                map.fill(rgb, || Ok(samples.next().map(value).unwrap_or_default()))?;
            }
        }
        Ok(header.whole())
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Kind;

    use super::*;

    fn decode(bytes: &[u8]) -> Result<Vec<u8>> {
        let header = Pnm.header(bytes)?;
        let mut out = Image::default();
        Pnm.decode(bytes, &header, None, &mut out)?;
        Ok(out.pixels)
    }

    #[test]
    fn comments_are_not_there_and_one_space_ends_the_header() {
        for text in
            [&b"P5 # a\r1#2 3\n 1\n255\n\n"[..], b"P5\x0B1\x0C1\t255\r\n", b"P5 1 1 25#5\n5\n\n", b"P5 1 1 255#\n \n"]
        {
            assert_eq!(decode(text).unwrap(), [b'\n'; 3], "{}", text.escape_ascii());
        }
        assert_eq!(decode(b"P2 2 1 9 #\n3# ...\r 9").unwrap(), [85, 85, 85, 255, 255, 255]);
        assert_eq!(decode(b"P1 3 1 10#1\n 0").unwrap(), [0, 0, 0, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn numbers_that_are_none_or_too_large_are_damage() {
        for text in
            ["P2 1 1 9 10", "P2 1 1 9 -1", "P2 1 1 9 x", "P2 1 1 0 0", "P2 1 1 65536 0", "P1 1 1 2", "P2 0 1 9 1"]
        {
            assert_eq!(decode(text.as_bytes()).unwrap_err().kind(), Kind::Corrupt, "{text}");
        }
        assert_eq!(decode(b"P2 00000000001 1 9 1").unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(decode(b"P6 9999999999 1 255 ").unwrap_err().kind(), Kind::Exhausted);
        // Samples of bytes beyond the highest are white.
        assert_eq!(decode(b"P5 1 1 7 \xFF").unwrap(), [255; 3]);
    }
}
