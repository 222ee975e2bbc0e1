//! PNG, by the `png` crate, with all checksums of the picture verified. Chunks after its data are not read: a missing
//! end chunk loses no pixel.

use std::borrow::Cow;
use std::io::Cursor;
use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use png::{BitDepth, ColorType, DecodeOptions, DecodingError, Limits, Transformations};

use crate::decoder::{check_size, damaged, truncated};
use crate::memory::{reserve, resize};
use crate::pixels::{Palette, prepare, rgb_mut};
use crate::{Decoder, Format, Header, Image, Region};

/// The crate's memory besides rows: inflate's window and tables, chunk buffers.
const WORKING_BYTES: u64 = 256 << 10;
/// Rows that the crate holds.
const ROWS_HELD: u64 = 4;

/// Decodes PNG; keeps the memory for undecoded rows.
#[derive(Default)]
pub(crate) struct Png {
    raw: Vec<u8>,
}

/// Two bits of deflate stand for at most 258 bytes.
const MAX_EXPANSION: u64 = 1032;

fn open(bytes: &[u8]) -> png::Decoder<Cursor<&[u8]>> {
    let mut options = DecodeOptions::default();
    options.set_ignore_adler32(false);
    options.set_ignore_crc(false);
    // Text chunks contain no pixels, and could be decompression bombs.
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = png::Decoder::new_with_options(Cursor::new(bytes), options);
    decoder.set_transformations(Transformations::IDENTITY);
    decoder
}

/// The end chunk.
const END: &[u8; 12] = b"\0\0\0\0IEND\xAE\x42\x60\x82";

/// The chunks with at least a length and a kind, up to the end chunk: their kinds, and where they are.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8], Range<usize>)> {
    const SIGNATURE_BYTES: usize = 8;
    let mut at = SIGNATURE_BYTES;
    std::iter::from_fn(move || {
        let [length @ .., _, _, _, _] = bytes.get(at..)?.first_chunk::<8>()?;
        let kind = &bytes[at + 4..at + 8];
        let start = at;
        let end = at.saturating_add(u32::from_be_bytes(*length) as usize).saturating_add(12);
        at = if kind == b"IEND" { bytes.len() } else { end };
        Some((kind, start..end))
    })
}

fn is_animation(kind: &[u8]) -> bool {
    matches!(kind, b"acTL" | b"fcTL" | b"fdAT")
}

/// Where the picture's data ends if no chunk follows it, other than those of an animation.
fn open_end(bytes: &[u8]) -> Option<usize> {
    let (kind, place) = chunks(bytes).filter(|(kind, _)| !is_animation(kind)).last()?;
    (kind == b"IDAT" && place.end <= bytes.len()).then_some(place.end)
}

/// Whether [`still`] makes a copy.
fn is_copied(bytes: &[u8]) -> bool {
    chunks(bytes).any(|(kind, _)| is_animation(kind)) || open_end(bytes).is_some()
}

/// The file without its animation; Pillow shows only the still picture, too, so damage in other frames does not matter.
/// If nothing follows the picture's data, an end chunk is added, because the crate needs the next chunk to detect the
/// end of the data. Other files are not copied.
fn still(bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
    if !is_copied(bytes) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut kept = Vec::new();
    reserve(&mut kept, bytes.len() + END.len(), "the picture without its animation")?;
    let mut from = 0;
    for (_, place) in chunks(bytes).filter(|(kind, _)| is_animation(kind)) {
        kept.extend_from_slice(&bytes[from..place.start]);
        from = place.end.min(bytes.len());
    }
    match open_end(bytes) {
        None => kept.extend_from_slice(&bytes[from..]),
        Some(end) => {
            kept.extend_from_slice(bytes.get(from..end).unwrap_or_default());
            kept.extend_from_slice(END);
        }
    }
    Ok(Cow::Owned(kept))
}

fn raw_row_bytes(info: &png::Info<'_>) -> u64 {
    let bits = u64::from(info.width) * info.color_type.samples() as u64 * u64::from(info.bit_depth as u8);
    bits.div_ceil(8)
}

impl Decoder for Png {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let mut decoder = open(bytes);
        let info = decoder.read_header_info().map_err(error)?;
        check_size(Format::Png, info.width, info.height)?;
        let raw = match (info.color_type, info.bit_depth) {
            (ColorType::Rgb, BitDepth::Eight) => 0,
            _ => raw_row_bytes(info) * u64::from(info.height),
        };
        let rgb = u64::from(info.width) * u64::from(info.height) * 3;
        let copied = if is_copied(bytes) { (bytes.len() + END.len()) as u64 } else { 0 };
        let memory_bytes = rgb + raw + ROWS_HELD * raw_row_bytes(info) + copied + WORKING_BYTES;
        // Interlaced pictures have other rows, but no fewer bytes.
        let coded_bytes = raw_row_bytes(info) * u64::from(info.height) / MAX_EXPANSION;
        Ok(Header { format: Format::Png, width: info.width, height: info.height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        // If an end chunk was added, missing data means that the file was truncated.
        let is_cut = open_end(bytes).is_some();
        let error = |found| match found {
            DecodingError::Format(_) if is_cut => truncated(Format::Png, found.to_string()),
            _ => error(found),
        };
        let bytes = still(bytes)?;
        let mut decoder = open(&bytes);
        // The default of 64 MiB is less than a few rows of a very wide picture; the memory is already charged.
        decoder.set_limits(Limits { bytes: header.memory_bytes.max(64 << 20) as usize });
        let mut reader = decoder.read_info().map_err(error)?;
        let info = reader.info();
        if (info.width, info.height) != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another PNG"));
        }
        // The crate aborts if it cannot allocate its rows, so try that first.
        reserve(&mut Vec::<u8>::new(), (ROWS_HELD * raw_row_bytes(info)) as usize, "rows of its PNG")?;
        let (colour, depth, interlaced) = (info.color_type, info.bit_depth, info.interlaced);
        let palette = match colour {
            ColorType::Indexed => Palette::new(info.palette.iter().flat_map(|all| all.as_chunks().0.iter().copied())),
            _ => Palette::grey(u32::from(depth as u8).min(8)),
        };
        prepare(out, header.width, header.height)?;
        if (colour, depth) == (ColorType::Rgb, BitDepth::Eight) {
            check_frame(&reader.next_frame(&mut out.pixels).map_err(error)?, header)?;
        } else {
            let size = reader.output_buffer_size().ok_or_else(|| error(DecodingError::LimitsExceeded))?;
            resize(&mut self.raw, size, 0, "its PNG")?;
            if interlaced {
                // For pixels of less than a byte the crate ORs into the existing content.
                self.raw.fill(0);
            }
            let frame = reader.next_frame(&mut self.raw).map_err(error)?;
            check_frame(&frame, header)?;
            let rows = self.raw.chunks(frame.line_size).zip(out.pixels.chunks_mut(header.width as usize * 3));
            rows.for_each(|(raw, rgb)| convert(raw, colour, depth, &palette, rgb));
        }
        Ok(header.whole())
    }
}

/// The first frame of an animation may claim to be smaller than the picture, which is not allowed.
fn check_frame(frame: &png::OutputInfo, header: &Header) -> Result<()> {
    if (frame.width, frame.height) == (header.width, header.height) {
        return Ok(());
    }
    let detail =
        format!("expected a frame of {}×{}, got {}×{}", header.width, header.height, frame.width, frame.height);
    Err(damaged(Format::Png, detail))
}

/// One row as Pillow converts it: alpha and transparent colours are dropped, colours of 16 bits keep their high byte,
/// but grey of 16 bits is clipped at 255.
fn convert(raw: &[u8], colour: ColorType, depth: BitDepth, palette: &Palette, rgb: &mut [u8]) {
    use ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
    let wide = depth == BitDepth::Sixteen;
    match (colour, wide) {
        (Grayscale, false) if depth == BitDepth::Eight => each::<1>(raw, rgb, |[grey]| [grey; 3]),
        (Grayscale | Indexed, false) => palette.paint(raw, u32::from(depth as u8), rgb),
        (Grayscale | Indexed, true) => each::<2>(raw, rgb, |[high, low]| [if high == 0 { low } else { 255 }; 3]),
        (GrayscaleAlpha, false) => each::<2>(raw, rgb, |[grey, _]| [grey; 3]),
        (GrayscaleAlpha, true) => each::<4>(raw, rgb, |[grey, ..]| [grey; 3]),
        (Rgb, false) => each::<3>(raw, rgb, |pixel| pixel),
        (Rgb, true) => each::<6>(raw, rgb, |[r, _, g, _, b, _]| [r, g, b]),
        (Rgba, false) => each::<4>(raw, rgb, |[r, g, b, _]| [r, g, b]),
        (Rgba, true) => each::<8>(raw, rgb, |[r, _, g, _, b, ..]| [r, g, b]),
    }
}

fn each<const N: usize>(raw: &[u8], rgb: &mut [u8], pixel: impl Fn([u8; N]) -> [u8; 3]) {
    raw.as_chunks::<N>().0.iter().zip(rgb_mut(rgb)).for_each(|(&raw, rgb)| *rgb = pixel(raw));
}

fn error(error: DecodingError) -> Error {
    match &error {
        DecodingError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
            truncated(Format::Png, error.to_string())
        }
        DecodingError::LimitsExceeded => {
            Error::new(Kind::Exhausted, "needs more memory than its size tells (PNG)").with_detail(error.to_string())
        }
        _ => damaged(Format::Png, error.to_string()),
    }
}
