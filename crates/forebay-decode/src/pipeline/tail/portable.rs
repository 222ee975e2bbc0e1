//! Interleaved bytes to planes through a table per channel: always compiled, the reference of the vector version.

use super::Walk;
use crate::Image;

/// An element that a table holds and a slot takes.
pub(super) trait Stored: Copy {
    type Bytes: AsRef<[u8]>;
    fn bytes(self) -> Self::Bytes;
}

impl Stored for u8 {
    type Bytes = [u8; 1];
    fn bytes(self) -> [u8; 1] {
        [self]
    }
}

impl Stored for f32 {
    type Bytes = [u8; 4];
    fn bytes(self) -> [u8; 4] {
        self.to_ne_bytes()
    }
}

/// Writes as many planes as there are tables.
pub(super) fn planes<T: Stored>(image: &Image, tables: &[[T; 256]], walk: Walk, slot: &mut [u8]) {
    let (width, height, channels) = (image.width as usize, image.height as usize, tables.len());
    let row_bytes = width * size_of::<T>();
    for y in 0..height {
        let from = if walk.upside_down { height - 1 - y } else { y };
        let pixels = &image.pixels[from * width * channels..][..width * channels];
        // The row is read once per channel, from the nearest cache; each plane is written in order.
        for (channel, table) in tables.iter().enumerate() {
            let out = &mut slot[(channel * height + y) * row_bytes..][..row_bytes];
            row(pixels, channels, channel, table, walk.mirrored, out);
        }
    }
}

/// Writes one channel of one row.
pub(super) fn row<T: Stored>(
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
