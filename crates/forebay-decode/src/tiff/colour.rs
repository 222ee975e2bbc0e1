//! Interpretation of TIFF samples and their conversion to RGB, as in Pillow, which leaves part of it to libtiff.

use forebay_core::Result;

use super::chunk::Compression;
use super::directory::Directory;
use super::ycbcr::YCbCr;
use crate::Format;
use crate::decoder::{damaged, unsupported};
use crate::pixels::{Palette, cmyk_to_rgb, rgb_mut, unpack};

/// The interpretation of a pixel's samples.
pub(super) enum Colour {
    /// One index, or one shade.
    Indexed(Box<Palette>),
    Rgb,
    /// RGB multiplied by the alpha that follows.
    Premultiplied,
    Cmyk,
    YCbCr(Box<YCbCr>),
}

/// The storage type of a sample.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sample {
    /// 1, 2, 4 or 8 bits, kept.
    Bits(u32),
    /// 16 bits, of which the high byte is kept.
    High16,
    /// Wider than a byte, clipped: how Pillow treats grey of more than 8 bits.
    Clipped12,
    Clipped16 {
        signed: bool,
    },
    Clipped32 {
        signed: bool,
    },
    ClippedFloat,
}

impl Sample {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Bits(bits) => bits,
            Self::Clipped12 => 12,
            Self::High16 | Self::Clipped16 { .. } => 16,
            Self::Clipped32 { .. } | Self::ClippedFloat => 32,
        }
    }
}

/// The names of photometric interpretations, for error messages.
const fn name(photometric: u64) -> &'static str {
    match photometric {
        0 | 1 => "grey",
        2 => "RGB",
        3 => "palette",
        4 => "mask",
        5 => "CMYK",
        6 => "YCbCr",
        8..=10 => "CIE Lab",
        32803 => "colour filter array",
        32844 | 32845 => "CIE Log",
        _ => "unknown",
    }
}

/// The colours that Pillow reads, except Lab, which it converts with a colour management library.
pub(super) fn colour(directory: &Directory<'_>, samples: usize, compression: Compression) -> Result<(Colour, Sample)> {
    const UNSIGNED: u64 = 1;
    const SIGNED: u64 = 2;
    const FLOAT: u64 = 3;
    let photometric = directory.one(262, 0)?;
    let format = directory.uniform(339, usize::MAX, UNSIGNED)?;
    let bits = directory.uniform(258, samples, 1)?;
    let little_endian = !directory.big_endian();
    let refuse = || {
        let name = name(photometric);
        let detail =
            format!("{name} colours (photometric {photometric}): {samples} samples of {bits} bits, format {format}");
        unsupported(Format::Tiff, detail)
    };
    let wide = |high: bool| match (bits, format) {
        (1 | 2 | 4 | 8, UNSIGNED) => Ok(Sample::Bits(bits as u32)),
        (8, SIGNED) if samples == 1 => Ok(Sample::Bits(8)),
        (12, UNSIGNED) if !high && little_endian => Ok(Sample::Clipped12),
        (16, UNSIGNED) if high => Ok(Sample::High16),
        (16, UNSIGNED | SIGNED) if !high => Ok(Sample::Clipped16 { signed: format == SIGNED }),
        (32, UNSIGNED | SIGNED) if !high => Ok(Sample::Clipped32 { signed: format == SIGNED }),
        (32, FLOAT) if !high => Ok(Sample::ClippedFloat),
        _ => Err(refuse()),
    };
    let whole_bytes = |sample: Sample| if sample.bits() >= 8 { Ok(sample) } else { Err(refuse()) };
    let premultiplied = directory.first_of(338)? == Some(1);
    match (photometric, samples) {
        (0 | 1, 1) => {
            let sample = wide(false)?;
            let grey = Palette::grey(sample.bits().min(8));
            match (photometric, sample) {
                (0, Sample::Bits(_)) => Ok((Colour::Indexed(Box::new(grey.inverted())), sample)),
                // For wider samples Pillow ignores that white is zero.
                (0, Sample::Clipped16 { signed: false }) if little_endian => {
                    Ok((Colour::Indexed(Box::new(grey)), sample))
                }
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
            let channel = |plane: usize, index: usize| (map.get(plane * count + index).unwrap_or(0) >> 8) as u8;
            let colours = (0..count.min(256)).map(|index| [0, 1, 2].map(|plane| channel(plane, index)));
            Ok((Colour::Indexed(Box::new(Palette::new(colours))), wide(false)?))
        }
        (5, 4..=6) => Ok((Colour::Cmyk, whole_bytes(wide(true)?)?)),
        (6, 3) if bits == 8 && format == UNSIGNED && directory.one(284, 1)? == 1 => {
            let plain = matches!(compression, Compression::None);
            Ok((Colour::YCbCr(Box::new(YCbCr::new(directory, plain)?)), Sample::Bits(8)))
        }
        _ => Err(refuse()),
    }
}

/// A row's samples as bytes.
pub(super) fn narrow(stored: &[u8], sample: Sample, big_endian: bool, mut each: impl FnMut(usize, u8)) {
    let two = |pair: &[u8; 2]| if big_endian { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) };
    let four = |quad: &[u8; 4]| if big_endian { u32::from_be_bytes(*quad) } else { u32::from_le_bytes(*quad) };
    let pairs = stored.as_chunks::<2>().0.iter().map(two).enumerate();
    let quads = stored.as_chunks::<4>().0.iter().map(four).enumerate();
    match sample {
        Sample::Bits(bits) => unpack(stored, bits, each),
        Sample::High16 => pairs.for_each(|(at, value)| each(at, (value >> 8) as u8)),
        // Three bytes hold two of them, the first one's high bits first.
        Sample::Clipped12 => stored.chunks(3).enumerate().for_each(|(at, bytes)| {
            let (first, second) = (bytes[0], bytes.get(1).copied().unwrap_or(0));
            let value = u16::from(first) << 4 | u16::from(second) >> 4;
            each(2 * at, value.min(255) as u8);
            if let Some(&third) = bytes.get(2) {
                let value = u16::from(second & 15) << 8 | u16::from(third);
                each(2 * at + 1, value.min(255) as u8);
            }
        }),
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

/// Interleaved samples of so many a pixel to RGB.
pub(super) fn convert(colour: &Colour, count: usize, samples: &[u8], rgb: &mut [u8]) {
    let pixels = samples.chunks_exact(count);
    match colour {
        Colour::Indexed(palette) => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| *rgb = palette.get(pixel[0])),
        Colour::Rgb if count == 3 => rgb.copy_from_slice(samples),
        Colour::Rgb => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| rgb.copy_from_slice(&pixel[..3])),
        Colour::Premultiplied => pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| {
            let alpha = u32::from(pixel[3]);
            *rgb = [0, 1, 2].map(|k| (u32::from(pixel[k]) * 255).checked_div(alpha).unwrap_or(0).min(255) as u8);
        }),
        Colour::Cmyk => pixels.zip(rgb.chunks_exact_mut(3)).for_each(|(pixel, rgb)| cmyk_to_rgb(&pixel[..4], rgb)),
        Colour::YCbCr(ycbcr) => {
            pixels.zip(rgb_mut(rgb)).for_each(|(pixel, rgb)| *rgb = ycbcr.rgb(pixel[0], pixel[1], pixel[2]));
        }
    }
}
