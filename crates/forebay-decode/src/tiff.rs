//! TIFF: the first page, in the colours that Pillow reads, uncompressed or by LZW, deflate or PackBits.
//!
//! Read here rather than by a crate, for palettes, Pillow's conversions, and a check that everything the file refers
//! to lies inside it. JPEG and fax inside TIFF, BigTIFF, YCbCr and LAB are not decoded, and say so.

use forebay_core::{Error, Result};

use crate::decoder::{check_size, damaged, unsupported};
use crate::pixels::{Palette, cmyk_to_rgb, prepare, rgb_mut, unpack};
use crate::{Decoder, Format, Header, Image, Region};

mod chunk;
mod directory;

use chunk::Compression;
use directory::Directory;

/// Decodes TIFF; keeps the memory for chunks and samples.
#[derive(Default)]
pub(crate) struct Tiff {
    chunk: Vec<u8>,
    samples: Vec<u8>,
}

/// What the samples of a pixel mean.
enum Colour {
    /// One index, or one shade.
    Indexed(Box<Palette>),
    Rgb,
    /// RGB multiplied by the alpha that follows.
    Premultiplied,
    Cmyk,
}

/// How a sample is stored.
#[derive(Clone, Copy, PartialEq)]
enum Sample {
    /// 1, 2, 4 or 8 bits, kept.
    Bits(u32),
    /// 16 bits, of which the high byte is kept.
    High16,
    /// Wider than a byte, clipped: how Pillow treats grey of more than 8 bits.
    Clipped16 {
        signed: bool,
    },
    Clipped32 {
        signed: bool,
    },
    ClippedFloat,
}

impl Sample {
    const fn bits(self) -> u32 {
        match self {
            Self::Bits(bits) => bits,
            Self::High16 | Self::Clipped16 { .. } => 16,
            Self::Clipped32 { .. } | Self::ClippedFloat => 32,
        }
    }
}

struct Page {
    width: u32,
    height: u32,
    orientation: u64,
    colour: Colour,
    sample: Sample,
    /// Samples of a pixel, those that are dropped included.
    samples: usize,
    planar: bool,
    big_endian: bool,
    compression: Compression,
    differenced: bool,
    reversed_bits: bool,
    chunk_width: u32,
    chunk_height: u32,
    tiled: bool,
    offsets: Vec<u64>,
    byte_counts: Vec<u64>,
}

impl Page {
    fn parse(directory: &Directory<'_>) -> Result<Self> {
        let width = directory.required(256, "ImageWidth")?;
        let height = directory.required(257, "ImageLength")?;
        let (width, height) = (u32::try_from(width).unwrap_or(u32::MAX), u32::try_from(height).unwrap_or(u32::MAX));
        check_size(Format::Tiff, width, height)?;
        let samples = directory.one(277, 1)? as usize;
        let (colour, sample) = colour(directory, samples)?;
        let differenced = match directory.one(317, 1)? {
            1 => false,
            2 if matches!(sample.bits(), 8 | 16) => true,
            other => return Err(unsupported(Format::Tiff, format!("predictor {other}"))),
        };
        let tiled = directory.has(322);
        let (chunk_width, chunk_height) = if tiled {
            (directory.required(322, "TileWidth")?, directory.required(323, "TileLength")?)
        } else {
            (u64::from(width), directory.one(278, u64::from(height))?.min(u64::from(height)))
        };
        // A tile larger than the picture is legal; one larger than any picture is not.
        let side = |value: u64| u32::try_from(value).ok().filter(|side| *side > 0);
        let (Some(chunk_width), Some(chunk_height)) = (side(chunk_width), side(chunk_height)) else {
            return Err(damaged(Format::Tiff, format!("chunks of {chunk_width}×{chunk_height} pixels")));
        };
        check_size(Format::Tiff, chunk_width, chunk_height)?;
        let (offsets, byte_counts) = directory.chunks()?;
        Ok(Self {
            width,
            height,
            orientation: directory.one(274, 1)?,
            colour,
            sample,
            samples,
            planar: samples > 1 && directory.one(284, 1)? == 2,
            big_endian: directory.big_endian(),
            compression: Compression::new(directory.one(259, 1)?)?,
            differenced,
            reversed_bits: directory.one(266, 1)? == 2,
            chunk_width,
            chunk_height,
            tiled,
            offsets,
            byte_counts,
        })
    }

    /// Sides as seen: orientations from 5 on swap them.
    const fn seen(&self) -> (u32, u32) {
        if self.orientation >= 5 && self.orientation <= 8 {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        }
    }

    const fn chunk_samples(&self) -> usize {
        if self.planar { 1 } else { self.samples }
    }

    const fn chunk_row_bytes(&self) -> usize {
        (self.chunk_width as usize * self.chunk_samples() * self.sample.bits() as usize).div_ceil(8)
    }

    fn memory_bytes(&self) -> u64 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        let chunk = self.chunk_row_bytes() as u64 * u64::from(self.chunk_height);
        let turned = if self.orientation == 1 { 0 } else { pixels * 3 };
        pixels * (3 + self.samples as u64) + turned + 2 * chunk + (64 << 10)
    }
}

/// The colours that Pillow reads, less those that nobody stores pictures in.
fn colour(directory: &Directory<'_>, samples: usize) -> Result<(Colour, Sample)> {
    const UNSIGNED: u64 = 1;
    const SIGNED: u64 = 2;
    const FLOAT: u64 = 3;
    let photometric = directory.one(262, 0)?;
    let format = directory.uniform(339, UNSIGNED)?;
    let bits = directory.uniform(258, 1)?;
    let extra = directory.all(338)?.unwrap_or_default();
    let refuse = || {
        let detail = format!("photometric {photometric}, {samples} samples of {bits} bits, sample format {format}");
        unsupported(Format::Tiff, detail)
    };
    let wide = |high| match (bits, format) {
        (1 | 2 | 4 | 8, UNSIGNED) => Ok(Sample::Bits(bits as u32)),
        (8, SIGNED) if samples == 1 => Ok(Sample::Bits(8)),
        (16, UNSIGNED) if high => Ok(Sample::High16),
        (16, UNSIGNED | SIGNED) if !high => Ok(Sample::Clipped16 { signed: format == SIGNED }),
        (32, UNSIGNED | SIGNED) if !high => Ok(Sample::Clipped32 { signed: format == SIGNED }),
        (32, FLOAT) if !high => Ok(Sample::ClippedFloat),
        _ => Err(refuse()),
    };
    let whole_bytes = |sample: Sample| if sample.bits() >= 8 { Ok(sample) } else { Err(refuse()) };
    let premultiplied = extra.first() == Some(&1);
    match (photometric, samples) {
        (0 | 1, 1) => {
            let sample = wide(false)?;
            let grey = Palette::grey(sample.bits().min(8));
            match (photometric, sample) {
                (0, Sample::Bits(_)) => Ok((Colour::Indexed(Box::new(grey.inverted())), sample)),
                (0, Sample::ClippedFloat) | (1, _) => Ok((Colour::Indexed(Box::new(grey)), sample)),
                _ => Err(refuse()),
            }
        }
        (1, 2) if bits == 8 && !premultiplied => Ok((Colour::Indexed(Box::new(Palette::grey(8))), Sample::Bits(8))),
        (2, 3..=6) => {
            let colour = if premultiplied && samples > 3 { Colour::Premultiplied } else { Colour::Rgb };
            Ok((colour, whole_bytes(wide(true)?)?))
        }
        (3, 1) | (3, 2) if bits <= 8 && format == UNSIGNED && (samples == 1 || bits == 8) => {
            let map = directory.all(320)?.ok_or_else(|| damaged(Format::Tiff, "has no ColorMap"))?;
            let count = map.len() / 3;
            let channel = |plane: usize, index: usize| (map[plane * count + index] >> 8) as u8;
            let colours = (0..count).map(|index| [channel(0, index), channel(1, index), channel(2, index)]);
            Ok((Colour::Indexed(Box::new(Palette::new(colours))), wide(false)?))
        }
        (5, 4..=6) => Ok((Colour::Cmyk, whole_bytes(wide(true)?)?)),
        _ => Err(refuse()),
    }
}

impl Decoder for Tiff {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let page = Page::parse(&Directory::first(bytes)?)?;
        let (width, height) = page.seen();
        Ok(Header { format: Format::Tiff, width, height, memory_bytes: page.memory_bytes() })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        let directory = Directory::first(bytes)?;
        directory.check_extent()?;
        let page = Page::parse(&directory)?;
        if page.seen() != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another TIFF"));
        }
        self.read_samples(&page, bytes)?;
        prepare(out, page.width, page.height);
        convert(&page, &self.samples, &mut out.pixels);
        orient(page.orientation, out);
        Ok(header.whole())
    }
}

impl Tiff {
    /// All samples of the page, a byte each, interleaved.
    fn read_samples(&mut self, page: &Page, bytes: &[u8]) -> Result<()> {
        let (width, height) = (page.width as usize, page.height as usize);
        let (chunk_width, chunk_height) = (page.chunk_width as usize, page.chunk_height as usize);
        let (across, down) = (width.div_ceil(chunk_width), height.div_ceil(chunk_height));
        let planes = if page.planar { page.samples } else { 1 };
        let count = across * down * planes;
        if page.offsets.len() < count || page.byte_counts.len() < count {
            let detail = format!("expected {count} chunks, got {}", page.offsets.len().min(page.byte_counts.len()));
            return Err(damaged(Format::Tiff, detail));
        }
        self.samples.resize(width * height * page.samples, 0);
        let row_bytes = page.chunk_row_bytes();
        for number in 0..count {
            let (plane, place) = (number / (across * down), number % (across * down));
            let (left, top) = (place % across * chunk_width, place / across * chunk_height);
            let (columns, rows) = (chunk_width.min(width - left), chunk_height.min(height - top));
            let stored_rows = if page.tiled { chunk_height } else { rows };
            let coded = directory::slice(bytes, page.offsets[number], page.byte_counts[number])?;
            self.chunk.resize(row_bytes * stored_rows, 0);
            page.compression.expand(coded, page.reversed_bits, &mut self.chunk)?;
            for row in 0..rows {
                let stored = &mut self.chunk[row * row_bytes..][..row_bytes];
                if page.differenced {
                    chunk::undo_differences(stored, page.chunk_samples(), page.sample.bits(), page.big_endian);
                }
                let start = ((top + row) * width + left) * page.samples;
                let target = &mut self.samples[start..][..columns * page.samples];
                if page.planar {
                    narrow(stored, page, |at, value| {
                        if let Some(sample) = target.get_mut(at * page.samples + plane) {
                            *sample = value;
                        }
                    });
                } else if page.sample == Sample::Bits(8) {
                    target.copy_from_slice(&stored[..target.len()]);
                } else {
                    narrow(stored, page, |at, value| {
                        if let Some(sample) = target.get_mut(at) {
                            *sample = value;
                        }
                    });
                }
            }
        }
        Ok(())
    }
}

/// A row's samples as bytes.
fn narrow(stored: &[u8], page: &Page, mut each: impl FnMut(usize, u8)) {
    let big_endian = page.big_endian;
    let two = |pair: &[u8; 2]| if big_endian { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) };
    let four = |quad: &[u8; 4]| if big_endian { u32::from_be_bytes(*quad) } else { u32::from_le_bytes(*quad) };
    let pairs = stored.as_chunks::<2>().0.iter().map(two).enumerate();
    let quads = stored.as_chunks::<4>().0.iter().map(four).enumerate();
    match page.sample {
        Sample::Bits(bits) => unpack(stored, bits, each),
        Sample::High16 => pairs.for_each(|(at, value)| each(at, (value >> 8) as u8)),
        Sample::Clipped16 { signed: false } => pairs.for_each(|(at, value)| each(at, value.min(255) as u8)),
        Sample::Clipped16 { signed: true } => {
            pairs.for_each(|(at, value)| each(at, (value as i16).clamp(0, 255) as u8))
        }
        Sample::Clipped32 { signed: false } => quads.for_each(|(at, value)| each(at, value.min(255) as u8)),
        Sample::Clipped32 { signed: true } => {
            quads.for_each(|(at, value)| each(at, (value as i32).clamp(0, 255) as u8))
        }
        // The cast rounds towards zero and saturates, as Pillow.
        Sample::ClippedFloat => quads.for_each(|(at, value)| each(at, f32::from_bits(value) as u8)),
    }
}

fn convert(page: &Page, samples: &[u8], rgb: &mut [u8]) {
    let pixels = samples.chunks_exact(page.samples);
    match &page.colour {
        Colour::Indexed(palette) => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| *rgb = palette.get(pixel[0])),
        Colour::Rgb if page.samples == 3 => rgb.copy_from_slice(samples),
        Colour::Rgb => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| rgb.copy_from_slice(&pixel[..3])),
        Colour::Premultiplied => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| {
            let alpha = u32::from(pixel[3]);
            *rgb = [0, 1, 2].map(|k| (u32::from(pixel[k]) * 255).checked_div(alpha).unwrap_or(0).min(255) as u8);
        }),
        Colour::Cmyk => pixels.zip(rgb.chunks_exact_mut(3)).for_each(|(pixel, rgb)| cmyk_to_rgb(&pixel[..4], rgb)),
    }
}

/// Turns the picture as its orientation says. (Pillow does this for TIFF, and only for TIFF.)
fn orient(orientation: u64, out: &mut Image) {
    if !(2..=8).contains(&orientation) {
        return;
    }
    let (width, height) = (out.width as usize, out.height as usize);
    let stored = std::mem::take(&mut out.pixels);
    let stored = stored.as_chunks::<3>().0;
    let swapped = orientation >= 5;
    let (seen_width, seen_height) = if swapped { (height, width) } else { (width, height) };
    out.pixels.reserve_exact(stored.len() * 3);
    for y in 0..seen_height {
        for x in 0..seen_width {
            let (x, y) = match orientation {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                _ => (width - 1 - y, x),
            };
            out.pixels.extend_from_slice(&stored[y * width + x]);
        }
    }
    (out.width, out.height) = (seen_width as u32, seen_height as u32);
}
