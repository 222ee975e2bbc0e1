//! JPEG inside TIFF: each strip or tile is a JPEG without the tables, which all of them share.

use forebay_core::Result;

use super::colour::Colour;
use super::{Page, Tiff, chunks, resize};
use crate::decoder::{damaged, unsupported};
use crate::jpeg::Jpeg;
use crate::{Decoder, Format, Image};

const START: [u8; 2] = [0xFF, 0xD8];
const END: [u8; 2] = [0xFF, 0xD9];

/// Checks that this kind is supported.
pub(super) fn check(page: &Page<'_>) -> Result<()> {
    match (&page.colour, page.samples) {
        _ if page.planar => Err(unsupported(Format::Tiff, "JPEG in separate planes")),
        (Colour::Indexed(_), 1) | (Colour::Rgb | Colour::YCbCr(_), 3) | (Colour::Cmyk, 4) => Ok(()),
        (_, samples) => Err(unsupported(Format::Tiff, format!("JPEG of {samples} samples"))),
    }
}

impl Tiff {
    /// Decodes every chunk straight into the picture.
    pub(super) fn read_jpegs(&mut self, page: &Page<'_>, bytes: &[u8], rgb: &mut [u8]) -> Result<()> {
        let mut jpeg = match self.jpeg.take() {
            Some(jpeg) => jpeg,
            None => Jpeg::new()?,
        };
        jpeg.ink_is_plain = true;
        let width = page.width as usize;
        let mut picture = Image { pixels: std::mem::take(&mut self.chunk), ..Image::default() };
        for chunk in chunks(page, bytes)? {
            let chunk = chunk?;
            join(page, chunk.coded, &mut self.coded)?;
            let header = jpeg.header(&self.coded)?;
            // Some writers store all rows in the last strip.
            let (expected, rows) = (page.chunk_width, chunk.stored_rows as u32);
            let most = if page.tiled { rows } else { page.chunk_height };
            if header.width != expected || !(rows..=most).contains(&header.height) {
                let (got_width, got_height) = (header.width, header.height);
                let detail = format!("expected a JPEG of {expected}×{rows}, got {got_width}×{got_height}");
                return Err(damaged(Format::Tiff, detail));
            }
            resize(&mut picture.pixels, header.width as usize * header.height as usize * 3)?;
            jpeg.decode(&self.coded, &header, None, &mut picture)?;
            if let Colour::Indexed(palette) = &page.colour {
                picture.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| *pixel = palette.get(pixel[0]));
            }
            for (row, stored) in picture.pixels.chunks_exact(expected as usize * 3).take(chunk.rows).enumerate() {
                let start = ((chunk.top + row) * width + chunk.left) * 3;
                rgb[start..][..chunk.columns * 3].copy_from_slice(&stored[..chunk.columns * 3]);
            }
        }
        self.chunk = picture.pixels;
        self.jpeg = Some(jpeg);
        Ok(())
    }
}

/// Makes a JPEG of a chunk and the tables, with a segment that declares its colours: TIFF's tag is authoritative, not
/// the chunk's own segment.
fn join(page: &Page<'_>, coded: &[u8], whole: &mut Vec<u8>) -> Result<()> {
    let transform = u8::from(matches!(page.colour, Colour::YCbCr(_)));
    let adobe = [&[0xFF, 0xEE, 0, 14][..], b"Adobe", &[0, 100, 0, 0, 0, 0, transform]].concat();
    resize(whole, coded.len() + page.tables.len() + adobe.len() + 4)?;
    whole.clear();
    whole.extend_from_slice(&START);
    whole.extend_from_slice(&adobe);
    segments(page.tables, whole)?;
    segments(coded, whole)?;
    if !whole.ends_with(&END) {
        whole.extend_from_slice(&END);
    }
    Ok(())
}

/// Appends the segments and data of a stream, without its start marker, an end marker without data, and application
/// segments.
fn segments(stream: &[u8], whole: &mut Vec<u8>) -> Result<()> {
    let cut = || damaged(Format::Tiff, "a JPEG inside ends in its header");
    let mut rest = stream.strip_prefix(&START).unwrap_or(stream);
    while let [0xFF, marker, after @ ..] = rest {
        match marker {
            0xFF => rest = &rest[1..],
            0xD8 | 0xD9 => rest = after,
            0xDA => break,
            _ => {
                let length = usize::from(u16::from_be_bytes(*after.first_chunk().ok_or_else(cut)?));
                let segment = rest.get(..2 + length).filter(|_| length >= 2).ok_or_else(cut)?;
                if !matches!(marker, 0xE0..=0xEF | 0xFE) {
                    whole.extend_from_slice(segment);
                }
                rest = &rest[segment.len()..];
            }
        }
    }
    whole.extend_from_slice(rest);
    Ok(())
}
