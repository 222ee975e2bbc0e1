//! Mirroring, in place.

use forebay_core::{Result, Rng};

use super::check::Check;
use super::table::args;
use super::transform::Transform;
use super::{Buffers, Form};
use crate::{Image, Tensor, TensorData, Value};

/// Mirrors each row of `width` groups of `channels` interleaved elements.
pub(crate) fn horizontal<T: Copy>(pixels: &mut [T], width: usize, channels: usize) {
    for row in pixels.chunks_exact_mut(width * channels) {
        row.reverse();
        // The reversal also turned each pixel around: turn it back.
        row.chunks_exact_mut(channels).for_each(<[T]>::reverse);
    }
}

/// Mirrors the order of rows of `row` elements.
pub(crate) fn vertical<T: Copy>(pixels: &mut [T], row: usize) {
    let height = pixels.len() / row;
    let (upper, lower) = pixels.split_at_mut(height.div_ceil(2) * row);
    for (above, below) in upper.chunks_exact_mut(row).zip(lower.chunks_exact_mut(row).rev()) {
        above.swap_with_slice(below);
    }
}

impl Transform for args::RandomHorizontalFlip<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.probability(*self.p);
        form
    }

    fn image(&self, mut image: Image, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        if rng.chance(*self.p) {
            horizontal(&mut image.pixels, image.width as usize, image.channels as usize);
        }
        Ok(Value::Image(image))
    }

    fn tensor(&self, mut tensor: Tensor, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        if rng.chance(*self.p) {
            match &mut tensor.data {
                TensorData::U8(data) => horizontal(data, tensor.width as usize, 1),
                TensorData::F32(data) => horizontal(data, tensor.width as usize, 1),
            }
        }
        Ok(tensor)
    }
}

impl Transform for args::RandomVerticalFlip<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.probability(*self.p);
        form
    }

    fn image(&self, mut image: Image, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        if rng.chance(*self.p) {
            vertical(&mut image.pixels, image.width as usize * image.channels as usize);
        }
        Ok(Value::Image(image))
    }

    fn tensor(&self, mut tensor: Tensor, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        let width = tensor.width as usize;
        let plane = width * tensor.height as usize;
        if rng.chance(*self.p) {
            match &mut tensor.data {
                TensorData::U8(data) => data.chunks_exact_mut(plane).for_each(|plane| vertical(plane, width)),
                TensorData::F32(data) => data.chunks_exact_mut(plane).for_each(|plane| vertical(plane, width)),
            }
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flips_keep_pixels_whole() {
        let mut pixels = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        horizontal(&mut pixels, 2, 3);
        assert_eq!(pixels, [4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9]);
        vertical(&mut pixels, 6);
        assert_eq!(pixels, [10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3]);
        let mut odd = [1, 2, 3];
        vertical(&mut odd, 1);
        assert_eq!(odd, [3, 2, 1]);
    }
}
