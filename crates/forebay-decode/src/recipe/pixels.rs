//! Pictures without compression, as MosaicML's MDS and LitData keep Pillow's: width, height and the length of the mode's name in
//! 32 bits each, the name, and the pixels. They are given a header of a portable anymap, and go the way of all pictures.

use std::io::Write as _;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};

use crate::memory::reserve;
use crate::{ColumnSpec, Dense, Fields, Layout, Made, Pipeline, Recipe, Sample, Scratch, Size, Tensor};

/// More than the header of an anymap.
const HEADER_BYTES: usize = 64;

/// The recipe of pictures, for pictures that are kept as their pixels.
pub struct PixelsRecipe(Arc<Pipeline>);

impl PixelsRecipe {
    /// What `pipeline` makes of them.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        Self(pipeline)
    }
}

/// What is said in front of the pixels, and they.
struct Picture<'a> {
    width: u32,
    height: u32,
    /// Of anymaps: 4 for bits, 5 for grey, 6 for colours.
    kind: u8,
    /// How many bytes a pixel has, and how many of them are colours; of bits there are eight in a byte.
    pixel: u64,
    colours: u64,
    pixels: &'a [u8],
}

fn parse(bytes: &[u8]) -> Result<Picture<'_>> {
    let damaged = |message: &str| Error::new(Kind::Corrupt, format!("is damaged (pixels): {message}"));
    let (header, rest) = bytes.split_first_chunk::<12>().ok_or_else(|| damaged("it ends in its header"))?;
    let word = |at: usize| header.as_chunks::<4>().0.get(at).map_or(0, |word| u32::from_le_bytes(*word));
    let (width, height) = (word(0), word(1));
    let name = rest.split_at_checked(word(2) as usize).filter(|(name, _)| name.len() <= 16);
    let (mode, pixels) = name.ok_or_else(|| damaged("it has no name of a mode"))?;
    let (kind, pixel, colours) = match mode {
        b"L" => (5, 1, 1),
        b"LA" | b"La" => (5, 2, 1),
        b"RGB" => (6, 3, 3),
        b"RGBX" | b"RGBA" => (6, 4, 3),
        b"1" => (4, 1, 1),
        _ => {
            let message = format!("is a picture of mode \"{}\", which is not read", mode.escape_ascii());
            let error = Error::new(Kind::Undecodable, message);
            return Err(error.with_hint("keep pictures as L, RGB or RGBA, or as PNG or JPEG"));
        }
    };
    let row = if kind == 4 { u64::from(width).div_ceil(8) } else { u64::from(width).saturating_mul(pixel) };
    let expected = row.saturating_mul(u64::from(height));
    if expected != pixels.len() as u64 || expected == 0 {
        let got = pixels.len();
        return Err(damaged(&format!("expected {expected} bytes for {width} × {height} pixels, got {got}")));
    }
    Ok(Picture { width, height, kind, pixel, colours, pixels })
}

/// A PNM file with the picture that is behind its width, its height and Pillow's name of its mode.
pub fn anymap(bytes: &[u8]) -> Result<Vec<u8>> {
    let Picture { width, height, kind, pixel, colours, pixels } = parse(bytes)?;
    let mut file = Vec::new();
    reserve(&mut file, pixels.len() + HEADER_BYTES, "a picture with its header")?;
    let depth = if kind == 4 { "" } else { "255\n" };
    write!(file, "P{kind}\n{width} {height}\n{depth}").map_err(|error| Error::internal(error.to_string()))?;
    match (kind, pixel == colours) {
        // Of Pillow 1 is white, and here it is black.
        (4, _) => file.extend(pixels.iter().map(|byte| !byte)),
        (_, true) => file.extend_from_slice(pixels),
        // What is behind the colours is left out, as when Pillow converts a picture to RGB.
        (_, false) => {
            for pixel in pixels.chunks_exact(pixel as usize) {
                file.extend_from_slice(&pixel[..colours as usize]);
            }
        }
    }
    Ok(file)
}

impl Recipe for PixelsRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        Recipe::schema(&*self.0)
    }

    fn layout(&self) -> Option<&Dense> {
        Recipe::layout(&*self.0)
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        let Picture { width, height, pixels, .. } = parse(fields.only())?;
        // The copy with its header, and the picture as it is decoded.
        let (copy, decoded) = (pixels.len() as u64 + HEADER_BYTES as u64, u64::from(width) * u64::from(height) * 3);
        Ok(copy.saturating_add(decoded).saturating_add(self.0.memory_beside(Size { height, width })))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let Sample { fields, path, rng, scratch, slot } = sample;
        let file = anymap(fields.only())?;
        Recipe::make(&*self.0, Sample { fields: Fields(&[&file]), path, rng, scratch, slot })
    }

    fn fails_always(&self, fields: Fields<'_>, scratch: &mut Scratch) -> bool {
        anymap(fields.only()).map_or(true, |file| Recipe::fails_always(&*self.0, Fields(&[&file]), scratch))
    }

    fn batch_layout(&self, made: Layout) -> Result<Layout> {
        Recipe::batch_layout(&*self.0, made)
    }

    fn place(&self, tensor: &Tensor, slot: &mut [u8]) -> Result<()> {
        Recipe::place(&*self.0, tensor, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32, mode: &str, pixels: &[u8]) -> Vec<u8> {
        let words = [width, height, mode.len() as u32].map(u32::to_le_bytes).concat();
        [&words, mode.as_bytes(), pixels].concat()
    }

    #[test]
    fn modes_become_anymaps() {
        assert_eq!(anymap(&picture(2, 1, "L", &[1, 2])).unwrap(), b"P5\n2 1\n255\n\x01\x02");
        assert_eq!(anymap(&picture(1, 1, "RGB", &[1, 2, 3])).unwrap(), b"P6\n1 1\n255\n\x01\x02\x03");
        assert_eq!(anymap(&picture(1, 1, "RGBA", &[1, 2, 3, 4])).unwrap(), b"P6\n1 1\n255\n\x01\x02\x03");
        assert_eq!(anymap(&picture(1, 1, "LA", &[1, 2])).unwrap(), b"P5\n1 1\n255\n\x01");
        assert_eq!(anymap(&picture(9, 1, "1", &[0xFF, 0x80])).unwrap(), b"P4\n9 1\n\x00\x7F");
    }

    #[test]
    fn what_is_no_picture_is_an_error() {
        let good = picture(2, 2, "RGB", &[7; 12]);
        for end in 0..good.len() {
            assert_eq!(anymap(&good[..end]).unwrap_err().kind(), Kind::Corrupt, "{end}");
        }
        assert!(anymap(&picture(u32::MAX, u32::MAX, "RGB", &[0; 3])).is_err());
        assert!(anymap(&picture(0, 0, "L", &[])).is_err());
        let error = anymap(&picture(1, 1, "P", &[0])).unwrap_err();
        assert_eq!(error.message(), "is a picture of mode \"P\", which is not read");
    }
}
