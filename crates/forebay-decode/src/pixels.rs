//! Pixel functions shared by decoders: allocation, and conversion to RGB as in Pillow.

use forebay_core::Result;

use crate::Image;
use crate::memory::resize;

/// Makes `out` an RGB picture of this size. Old pixels are not cleared: zeroing them first would cost a pass over
/// memory.
pub(crate) fn prepare(out: &mut Image, width: u32, height: u32) -> Result<()> {
    resize(&mut out.pixels, width as usize * height as usize * 3, 0, "its pixels")?;
    out.width = width;
    out.height = height;
    out.channels = 3;
    Ok(())
}

/// The pixels of an RGB row, or of a whole picture.
pub(crate) fn rgb_mut(bytes: &mut [u8]) -> &mut [[u8; 3]] {
    bytes.as_chunks_mut().0
}

/// CMYK (0 = no ink) to RGB by Pillow's formula, rounding included.
pub(crate) fn cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (&[c, m, y, k], rgb) in cmyk.as_chunks::<4>().0.iter().zip(rgb_mut(rgb)) {
        let light = u32::from(255 - k);
        *rgb = [c, m, y].map(|ink| {
            let product = u32::from(ink) * light + 128;
            (light - (((product >> 8) + product) >> 8)) as u8
        });
    }
}

/// Splits bytes into samples of 1, 2, 4 or 8 bits, the first in the highest bits.
pub(crate) fn unpack(packed: &[u8], bits: u32, mut each: impl FnMut(usize, u8)) {
    let per_byte = 8 / bits as usize;
    let mask = 0xFF >> (8 - bits);
    for (position, &byte) in packed.iter().enumerate() {
        for k in 0..per_byte {
            let shift = 8 - bits * (k as u32 + 1);
            each(position * per_byte + k, byte >> shift & mask);
        }
    }
}

/// The colours of indexed pixels; an index without a colour is black, as with Pillow.
#[derive(Clone)]
pub(crate) struct Palette([[u8; 3]; 256]);

impl Palette {
    /// A palette of these colours, at most 256 of them.
    pub(crate) fn new(colours: impl IntoIterator<Item = [u8; 3]>) -> Self {
        let mut palette = [[0; 3]; 256];
        palette.iter_mut().zip(colours).for_each(|(entry, colour)| *entry = colour);
        Self(palette)
    }

    /// Shades from black to white, for samples of so many bits.
    pub(crate) fn grey(bits: u32) -> Self {
        let highest = (1_u32 << bits) - 1;
        Self::new((0..=highest).map(|value| [(value * 255 / highest) as u8; 3]))
    }

    /// The same, from white to black.
    pub(crate) fn inverted(mut self) -> Self {
        self.0.iter_mut().flatten().for_each(|value| *value = !*value);
        self
    }

    /// The colour of an index.
    pub(crate) fn get(&self, index: u8) -> [u8; 3] {
        self.0[usize::from(index)]
    }

    /// Paints a row of packed indices. Bits beyond the last pixel are padding.
    pub(crate) fn paint(&self, packed: &[u8], bits: u32, rgb: &mut [u8]) {
        let rgb = rgb_mut(rgb);
        if bits == 8 {
            // By far the most common, and nothing to unpack.
            return rgb.iter_mut().zip(packed).for_each(|(pixel, index)| *pixel = self.get(*index));
        }
        unpack(packed, bits, |position, index| {
            if let Some(pixel) = rgb.get_mut(position) {
                *pixel = self.get(index);
            }
        });
    }
}
