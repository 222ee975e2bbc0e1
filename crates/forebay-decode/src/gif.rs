//! GIF: the first frame, on its canvas, as Pillow shows it without its transparency.
//!
//! The blocks are parsed here, up to the end of the first frame: missing or damaged data after it changes no pixel. The
//! LZW decoder is weezl's.

use forebay_core::Result;
use weezl::{BitOrder, LzwStatus, decode::Decoder as Lzw};

use crate::decoder::{check_size, damaged, truncated};
use crate::memory::{reserve, resize};
use crate::pixels::{Palette, prepare, rgb_mut};
use crate::{Decoder, Format, Header, Image, Region};

const WORKING_BYTES: u64 = 256 << 10;

/// A code of 12 bits stands for at most as many pixels as there are codes, 4096; a shorter one for fewer still.
const MAX_PIXELS_PER_BYTE: u64 = 4096 * 8 / 12 + 1;

/// Decodes GIF; keeps the memory for indices.
#[derive(Default)]
pub(crate) struct Gif {
    data: Vec<u8>,
    indices: Vec<u8>,
}

/// Everything that precedes the pixels of the first frame.
struct Start {
    canvas: (u32, u32),
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    interlaced: bool,
    palette: Palette,
    transparent: Option<u8>,
    code_size: u8,
}

/// A byte reader; running out of bytes is truncation.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| truncated(Format::Gif, "a block is cut"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| truncated(Format::Gif, "a block is cut"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Passes the sub-blocks of a chain to `each`; of a truncated chain, the complete ones.
    fn sub_blocks(&mut self, mut each: impl FnMut(&[u8])) -> Result<()> {
        loop {
            match self.byte()? {
                0 => return Ok(()),
                size => each(self.take(usize::from(size))?),
            }
        }
    }

    /// The palette that `flags` describes.
    fn palette(&mut self, flags: u8) -> Result<Option<Palette>> {
        if flags & 0x80 == 0 {
            return Ok(None);
        }
        let colours = self.take(3 << ((flags & 7) + 1))?;
        Ok(Some(Palette::new(colours.as_chunks().0.iter().copied())))
    }

    fn start(&mut self) -> Result<Start> {
        self.take(6)?;
        let [w0, w1, h0, h1, flags, _, _] = self.array()?;
        let global = self.palette(flags)?;
        let mut transparent = None;
        loop {
            match self.byte()? {
                b'!' => {
                    let control = self.byte()? == 0xF9;
                    self.sub_blocks(|block| {
                        if let (true, &[flags, _, _, index, ..]) = (control, block) {
                            transparent = (flags & 1 == 1).then_some(index);
                        }
                    })?;
                }
                b',' => break,
                b';' => return Err(damaged(Format::Gif, "holds no frame")),
                // Pillow skips stray bytes between blocks, so files with them exist.
                _ => {}
            }
        }
        let word = |low, high| u32::from(u16::from_le_bytes([low, high]));
        let [x0, x1, y0, y1, width0, width1, height0, height1, flags] = self.array()?;
        let (x, y) = (word(x0, x1), word(y0, y1));
        let (width, height) = (word(width0, width1), word(height0, height1));
        let local = self.palette(flags)?;
        Ok(Start {
            // A frame that leaves the canvas enlarges it.
            canvas: (word(w0, w1).max(x + width), word(h0, h1).max(y + height)),
            x: x as usize,
            y: y as usize,
            width: width as usize,
            height: height as usize,
            interlaced: flags & 0x40 != 0,
            palette: local.or(global).unwrap_or_else(|| Palette::grey(8)),
            transparent,
            code_size: self.byte()?,
        })
    }
}

impl Decoder for Gif {
    fn header(&mut self, bytes: &[u8]) -> Result<Header> {
        let start = Bytes(bytes).start()?;
        let (width, height) = start.canvas;
        check_size(Format::Gif, width, height)?;
        // Pixels outside the frame take no bytes.
        let coded_bytes = (start.width * start.height) as u64 / MAX_PIXELS_PER_BYTE;
        let memory_bytes = u64::from(width) * u64::from(height) * 4 + bytes.len() as u64 + WORKING_BYTES;
        Ok(Header { format: Format::Gif, width, height, memory_bytes, coded_bytes })
    }

    fn decode(&mut self, bytes: &[u8], header: &Header, wanted: Option<Region>, out: &mut Image) -> Result<Region> {
        header.region(wanted)?;
        let mut bytes = Bytes(bytes);
        let start = bytes.start()?;
        check_size(Format::Gif, start.width as u32, start.height as u32)?;
        self.data.clear();
        reserve(&mut self.data, bytes.0.len(), "its codes")?;
        let chain = bytes.sub_blocks(|block| self.data.extend_from_slice(block));
        resize(&mut self.indices, start.width * start.height, 0, "its indices")?;
        // A chain that is cut after its last pixel has lost nothing of the picture: Pillow reads it, too.
        inflate(&self.data, start.code_size, &mut self.indices).map_err(|error| chain.err().unwrap_or(error))?;

        prepare(out, header.width, header.height)?;
        let stride = header.width as usize;
        let pixels = rgb_mut(&mut out.pixels);
        if (start.width, start.height) != (stride, header.height as usize) {
            pixels.fill(start.palette.get(start.transparent.unwrap_or(0)));
        }
        for (row, indices) in self.indices.chunks(start.width).enumerate() {
            let y = start.y + if start.interlaced { interlaced_row(row, start.height) } else { row };
            let pixels = &mut pixels[y * stride + start.x..][..start.width];
            pixels.iter_mut().zip(indices).for_each(|(pixel, &index)| *pixel = start.palette.get(index));
        }
        Ok(header.whole())
    }
}

/// Fills `indices`. Codes beyond the last pixel are ignored, as in other decoders; fewer pixels are damage.
fn inflate(mut data: &[u8], code_size: u8, indices: &mut [u8]) -> Result<()> {
    if !(1..=11).contains(&code_size) {
        return Err(damaged(Format::Gif, format!("LZW code size {code_size}, expected 2 to 8")));
    }
    let total = indices.len();
    let mut lzw = Lzw::new(BitOrder::Lsb, code_size);
    let mut filled = 0;
    while filled < total {
        let step = lzw.decode_bytes(data, &mut indices[filled..]);
        data = &data[step.consumed_in..];
        filled += step.consumed_out;
        match step.status {
            Ok(LzwStatus::Ok) if step.consumed_in + step.consumed_out > 0 => {}
            Ok(_) if filled == total => {}
            Ok(_) => return Err(damaged(Format::Gif, format!("the frame has {filled} pixels of {total}"))),
            Err(error) => return Err(damaged(Format::Gif, error.to_string())),
        }
    }
    Ok(())
}

/// The row of the frame that the `n`th stored row of an interlaced one is.
fn interlaced_row(mut n: usize, height: usize) -> usize {
    for (first, step) in [(0, 8), (4, 8), (2, 4)] {
        let count = height.saturating_sub(first).div_ceil(step);
        if n < count {
            return first + n * step;
        }
        n -= count;
    }
    1 + n * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interlaced_rows_are_a_permutation_for_every_height() {
        for height in 1..40 {
            let mut rows: Vec<_> = (0..height).map(|n| interlaced_row(n, height)).collect();
            rows.sort_unstable();
            assert_eq!(rows, (0..height).collect::<Vec<_>>());
        }
    }
}
