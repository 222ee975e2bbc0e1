//! Interleaved bytes to planes or pixels through a table per channel: always compiled, the reference of the vector
//! version.

use super::Walk;
use crate::narrow::{BFloat16, Half};
use crate::{Dtype, Image, Order};

/// An element that a table holds and a slot takes.
pub(super) trait Stored: Copy {
    const DTYPE: Dtype;
    type Bytes: AsRef<[u8]>;
    fn bytes(self) -> Self::Bytes;
}

impl Stored for u8 {
    const DTYPE: Dtype = Dtype::U8;
    type Bytes = [u8; 1];
    fn bytes(self) -> [u8; 1] {
        [self]
    }
}

impl Stored for f32 {
    const DTYPE: Dtype = Dtype::F32;
    type Bytes = [u8; 4];
    fn bytes(self) -> [u8; 4] {
        self.to_ne_bytes()
    }
}

impl Stored for Half {
    const DTYPE: Dtype = Dtype::F16;
    type Bytes = [u8; 2];
    fn bytes(self) -> [u8; 2] {
        self.0.to_ne_bytes()
    }
}

impl Stored for BFloat16 {
    const DTYPE: Dtype = Dtype::BF16;
    type Bytes = [u8; 2];
    fn bytes(self) -> [u8; 2] {
        self.0.to_ne_bytes()
    }
}

/// Writes as many channels as there are tables.
pub(super) fn write<T: Stored>(image: &Image, tables: &[[T; 256]], order: Order, walk: Walk, slot: &mut [u8]) {
    let (width, height, channels) = (image.width as usize, image.height as usize, tables.len());
    let row_bytes = width * size_of::<T>();
    for y in 0..height {
        let from = if walk.upside_down { height - 1 - y } else { y };
        let pixels = &image.pixels[from * width * channels..][..width * channels];
        match order {
            // The row is read once per channel, from the nearest cache; each plane is written in order.
            Order::Planar => {
                for (channel, table) in tables.iter().enumerate() {
                    let out = &mut slot[(channel * height + y) * row_bytes..][..row_bytes];
                    plane_row(pixels, channels, channel, table, walk.mirrored, out);
                }
            }
            Order::Interleaved => {
                pixel_row(pixels, tables, walk.mirrored, &mut slot[y * row_bytes * channels..][..row_bytes * channels]);
            }
        }
    }
}

/// Writes one channel of one row.
pub(super) fn plane_row<T: Stored>(
    pixels: &[u8],
    channels: usize,
    channel: usize,
    table: &[T; 256],
    mirrored: bool,
    out: &mut [u8],
) {
    let values = pixels.chunks_exact(channels).map(|pixel| table[usize::from(pixel[channel])]);
    let write = |(out, value): (&mut [u8], T)| out.copy_from_slice(value.bytes().as_ref());
    let out = out.chunks_exact_mut(size_of::<T>());
    if mirrored { out.zip(values.rev()).for_each(write) } else { out.zip(values).for_each(write) }
}

/// Writes all channels of one row, pixel by pixel.
pub(super) fn pixel_row<T: Stored>(pixels: &[u8], tables: &[[T; 256]], mirrored: bool, out: &mut [u8]) {
    let pixels = pixels.chunks_exact(tables.len());
    let write = |(out, pixel): (&mut [u8], &[u8])| {
        for ((out, byte), table) in out.chunks_exact_mut(size_of::<T>()).zip(pixel).zip(tables) {
            out.copy_from_slice(table[usize::from(*byte)].bytes().as_ref());
        }
    };
    let out = out.chunks_exact_mut(tables.len() * size_of::<T>());
    if mirrored { out.zip(pixels.rev()).for_each(write) } else { out.zip(pixels).for_each(write) }
}
