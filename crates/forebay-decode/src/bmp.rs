//! Windows and OS/2 bitmaps: 1, 4, 8, 16, 24 and 32 bits, run-length coded or not, either way up.
//!
//! Read here rather than by a crate: the format is a header and an array, and Pillow's choices (which masks, how five
//! bits become eight, what a truncated file is) are the specification.

use forebay_core::{Error, Result};

use crate::decoder::{check_size, damaged, truncated, unsupported};
use crate::memory::reserve;
use crate::pixels::{Palette, prepare, rgb_mut};
use crate::{Decoder, Format, Header, Image, Region};

/// Decodes bitmaps; keeps the memory for the indices of run-length coded ones.
#[derive(Default)]
pub(crate) struct Bmp {
    indices: Vec<u8>,
}

/// How the pixels are stored.
enum Coding {
    Palette {
        bits: u32,
        palette: Box<Palette>,
    },
    RunLength {
        half_bytes: bool,
        palette: Box<Palette>,
    },
    /// 5 bits each, or 6 for green.
    Packed16 {
        green_bits: u32,
    },
    /// Bytes per pixel, and which of them are red, green and blue.
    Bytes {
        size: usize,
        red_green_blue: [usize; 3],
    },
}

struct Bitmap {
    width: u32,
    height: u32,
    top_down: bool,
    bits: u32,
    coding: Coding,
    data_offset: usize,
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u32> {
    let bytes = bytes.get(offset..offset + 2).ok_or_else(cut)?;
    Ok(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])))
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32> {
    Ok(u16_at(bytes, offset)? | u16_at(bytes, offset + 2)? << 16)
}

fn cut() -> Error {
    truncated(Format::Bmp, "ends in its header")
}

impl Bitmap {
    fn parse(bytes: &[u8]) -> Result<Self> {
        const RAW: u32 = 0;
        const RLE8: u32 = 1;
        const RLE4: u32 = 2;
        const BITFIELDS: u32 = 3;
        let stated_offset = u32_at(bytes, 10)? as usize;
        let header_size = u32_at(bytes, 14)? as usize;
        let short = header_size == 12;
        if !short && !matches!(header_size, 40 | 52 | 56 | 64 | 108 | 124) {
            return Err(unsupported(Format::Bmp, format!("header of {header_size} bytes")));
        }
        let (width, height, bits, compression, stated_colours) = if short {
            (u16_at(bytes, 18)?, u16_at(bytes, 20)?, u16_at(bytes, 24)?, RAW, 0)
        } else {
            let (width, height, bits) = (u32_at(bytes, 18)?, u32_at(bytes, 22)?, u16_at(bytes, 28)?);
            (width, height, bits, u32_at(bytes, 30)?, u32_at(bytes, 46)?)
        };
        // As Pillow: the highest byte of a plausible negative height.
        let top_down = !short && height >> 24 == 0xFF;
        let height = if top_down { height.wrapping_neg() } else { height };
        let mut next = 14 + header_size;
        let coding = match (compression, bits) {
            (RAW, 1 | 4 | 8) | (RLE8, 8) | (RLE4, 4) => {
                let entry = if short { 3 } else { 4 };
                let colours = if stated_colours == 0 { 1 << bits } else { stated_colours as usize };
                let table = bytes.get(next..).and_then(|rest| rest.get(..colours.checked_mul(entry)?));
                let table = table.ok_or_else(|| truncated(Format::Bmp, "ends in its palette"))?;
                next += table.len();
                let palette = Box::new(Palette::new(table.chunks_exact(entry).map(|bgr| [bgr[2], bgr[1], bgr[0]])));
                match compression {
                    RAW => Coding::Palette { bits, palette },
                    _ => Coding::RunLength { half_bytes: compression == RLE4, palette },
                }
            }
            (RAW, 16) => Coding::Packed16 { green_bits: 5 },
            (RAW, 24) => Coding::Bytes { size: 3, red_green_blue: [2, 1, 0] },
            (RAW, 32) => Coding::Bytes { size: 4, red_green_blue: [2, 1, 0] },
            (BITFIELDS, 16 | 24 | 32) => {
                if header_size == 40 {
                    next += 12;
                }
                Self::masked(bits, [u32_at(bytes, 54)?, u32_at(bytes, 58)?, u32_at(bytes, 62)?])?
            }
            _ => return Err(unsupported(Format::Bmp, format!("{bits} bits with compression {compression}"))),
        };
        // Some writers give the end of the header as the data's offset, though a palette follows.
        let data_offset = if stated_offset == 0 || stated_offset == 14 + header_size { next } else { stated_offset };
        Ok(Self { width, height, top_down, bits, coding, data_offset })
    }

    fn masked(bits: u32, masks: [u32; 3]) -> Result<Coding> {
        match (bits, masks) {
            (16, [0xF800, 0x7E0, 0x1F]) => return Ok(Coding::Packed16 { green_bits: 6 }),
            (16, [0x7C00, 0x3E0, 0x1F]) => return Ok(Coding::Packed16 { green_bits: 5 }),
            (32, [0, 0, 0]) => return Ok(Coding::Bytes { size: 4, red_green_blue: [2, 1, 0] }),
            (16, _) => {}
            (24 | 32, masks) => {
                let size = bits as usize / 8;
                let whole_byte = |mask: u32| (0..size).find(|byte| mask == 0xFF << (8 * byte));
                if let [Some(red), Some(green), Some(blue)] = masks.map(whole_byte) {
                    return Ok(Coding::Bytes { size, red_green_blue: [red, green, blue] });
                }
            }
            _ => {}
        }
        Err(unsupported(Format::Bmp, format!("{bits} bits with masks {masks:X?}")))
    }

    /// Bytes from one row to the next.
    const fn stride(&self) -> usize {
        (self.width as usize * self.bits as usize).div_ceil(32) * 4
    }

    /// The smallest data size of the pixels in bytes.
    const fn least_bytes(&self) -> u64 {
        let (width, height) = (self.width as u64, self.height as u64);
        if self.run_length() {
            // Four bytes can skip 255 rows and 255 pixels; no other code skips as much.
            return width * height / (255 * (width + 1)) * 4;
        }
        // The padding of the last row may be left out.
        self.stride() as u64 * (height - 1) + (width * self.bits as u64).div_ceil(8)
    }

    const fn run_length(&self) -> bool {
        matches!(self.coding, Coding::RunLength { .. })
    }
}

impl Decoder for Bmp {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let bitmap = Bitmap::parse(bytes)?;
        check_size(Format::Bmp, bitmap.width, bitmap.height)?;
        let pixels = u64::from(bitmap.width) * u64::from(bitmap.height);
        let memory_bytes = pixels * if bitmap.run_length() { 4 } else { 3 } + (64 << 10);
        let coded_bytes = bitmap.data_offset as u64 + bitmap.least_bytes();
        Ok(Header { format: Format::Bmp, width: bitmap.width, height: bitmap.height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        let bitmap = Bitmap::parse(bytes)?;
        if (bitmap.width, bitmap.height) != (header.width, header.height) {
            return Err(Error::internal("the header given belongs to another bitmap"));
        }
        let data = bytes.get(bitmap.data_offset..).ok_or_else(|| truncated(Format::Bmp, "ends before its pixels"))?;
        let (width, height) = (bitmap.width as usize, bitmap.height as usize);
        let (data, stride) = match &bitmap.coding {
            Coding::RunLength { half_bytes, .. } => {
                run_lengths(data, *half_bytes, width, width * height, &mut self.indices)?;
                (&self.indices[..], width)
            }
            _ => {
                let (stride, needed) = (bitmap.stride(), bitmap.least_bytes() as usize);
                if data.len() < needed {
                    let detail = format!("expected {needed} bytes of pixels, got {}", data.len());
                    return Err(truncated(Format::Bmp, detail));
                }
                (data, stride)
            }
        };
        prepare(out, header.width, header.height)?;
        for (row, stored) in data.chunks(stride).take(height).enumerate() {
            let y = if bitmap.top_down { row } else { height - 1 - row };
            convert(&bitmap.coding, stored, &mut out.pixels[y * width * 3..][..width * 3]);
        }
        Ok(header.whole())
    }
}

fn convert(coding: &Coding, stored: &[u8], rgb: &mut [u8]) {
    match coding {
        Coding::Palette { bits, palette } => palette.paint(stored, *bits, rgb),
        Coding::RunLength { palette, .. } => palette.paint(stored, 8, rgb),
        Coding::Packed16 { green_bits } => {
            let widen = |value: u16, bits: u32| {
                let highest = (1_u32 << bits) - 1;
                ((u32::from(value) & highest) * 255 / highest) as u8
            };
            for (&pair, rgb) in stored.as_chunks::<2>().0.iter().zip(rgb_mut(rgb)) {
                let pixel = u16::from_le_bytes(pair);
                *rgb = [widen(pixel >> (5 + green_bits), 5), widen(pixel >> 5, *green_bits), widen(pixel, 5)];
            }
        }
        Coding::Bytes { size, red_green_blue } => {
            for (pixel, rgb) in stored.chunks_exact(*size).zip(rgb_mut(rgb)) {
                *rgb = red_green_blue.map(|byte| pixel[byte]);
            }
        }
    }
}

/// Expands runs to one index per pixel, rows upwards. Like Pillow it refuses a bitmap that ends early.
fn run_lengths(data: &[u8], half_bytes: bool, width: usize, total: usize, indices: &mut Vec<u8>) -> Result<()> {
    let short = |got: usize| truncated(Format::Bmp, format!("expected {total} pixels, got {got}"));
    let nibble = |byte: u8, position: usize| if position.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
    indices.clear();
    reserve(indices, total, "its indices")?;
    let mut rest = data.iter().copied();
    let mut next = |got: usize| rest.next().ok_or_else(|| short(got));
    let mut x = 0;
    while indices.len() < total {
        let (count, value) = (next(indices.len())?, next(indices.len())?);
        match (count, value) {
            (0, 0) => {
                let row_end = indices.len().next_multiple_of(width);
                indices.resize(row_end, 0);
                x = 0;
            }
            (0, 1) => return Err(damaged(Format::Bmp, format!("ends after {} pixels of {total}", indices.len()))),
            (0, 2) => {
                let (right, up) = (next(indices.len())?, next(indices.len())?);
                let end = indices.len() + usize::from(right) + usize::from(up) * width;
                indices.resize(end.min(total), 0);
                x = indices.len() % width;
            }
            (0, literal) => {
                let literal = usize::from(literal);
                let count = literal.min(total - indices.len());
                let stored = if half_bytes { count.div_ceil(2) } else { count };
                for position in 0..stored {
                    let byte = next(indices.len())?;
                    match half_bytes {
                        false => indices.push(byte),
                        true => (0..2)
                            .filter(|half| position * 2 + half < count)
                            .for_each(|half| indices.push(nibble(byte, half))),
                    }
                }
                x += literal;
                if stored % 2 == 1 && indices.len() < total {
                    next(indices.len())?;
                }
            }
            (count, value) => {
                // A run never leaves its row.
                let count = usize::from(count).min(width.saturating_sub(x));
                indices.extend((0..count).map(|position| if half_bytes { nibble(value, position) } else { value }));
                x += count;
            }
        }
    }
    // The end-of-bitmap marker, after a last end of line: without it the file is truncated.
    if rest.len() < 2 {
        return Err(truncated(Format::Bmp, "ends before its end mark"));
    }
    Ok(())
}
