//! Gaussian blur as torchvision does it: a kernel of given size, mirrored edges, rounded once at the end.
//!
//! Two passes in `f32` instead of torchvision's one with the product kernel: the sums differ in their last bits, so a
//! value that lies halfway may round the other way (±1).

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::Check;
use super::table::args;
use super::transform::Transform;
use super::wide::widest;
use super::window::source;
use super::{Buffers, Form, PaddingMode, Size};
use crate::memory::resize;
use crate::{Image, Value};

/// Buffers kept between pictures.
#[derive(Default)]
pub(crate) struct Blur {
    row: Vec<f32>,
    sums: Vec<f32>,
    starts: Vec<usize>,
    columns: Vec<f32>,
    rows: Vec<f32>,
}

/// Weights of a kernel of `size` taps, an odd number, without those at both ends that are next to nothing.
fn kernel(size: u32, sigma: f64, weights: &mut Vec<f32>) {
    weights.clear();
    let reach = f64::from(size / 2);
    let exponent = |tap: u32| {
        let x = (f64::from(tap) - reach) / sigma;
        -0.5 * x * x
    };
    let sum: f64 = (0..size).map(|tap| exponent(tap).exp()).sum();
    weights.extend((0..size).map(|tap| (exponent(tap).exp() / sum) as f32));
    // What adds less than a ten-millionth of a level costs time only, the more so where floats are denormal.
    let tiny = weights.iter().take_while(|weight| **weight < 1e-10).count();
    weights.truncate(size as usize - tiny);
    weights.drain(..tiny);
}

impl Blur {
    /// Blurs `image` into `out`.
    pub(crate) fn run(&mut self, image: &Image, kernel_size: (u32, u32), sigma: f64, out: &mut Image) -> Result<()> {
        let (width, height, channels) = (image.width as usize, image.height as usize, image.channels as usize);
        kernel(kernel_size.0, sigma, &mut self.columns);
        kernel(kernel_size.1, sigma, &mut self.rows);
        let (reach_x, reach_y) = (self.columns.len() / 2, self.rows.len() / 2);
        let mirrored = |at: i64, size: usize| source(at, size, PaddingMode::Reflect).unwrap_or(0);
        let stride = width * channels;
        resize(&mut self.row, stride + 2 * reach_x * channels, 0.0, "a blurred row")?;
        resize(&mut self.sums, stride, 0.0, "a blurred row")?;
        resize(&mut out.pixels, image.pixels.len(), 0, "its blurred pixels")?;
        (out.width, out.height, out.channels) = (image.width, image.height, image.channels);
        for (y, out) in out.pixels.chunks_exact_mut(stride).enumerate() {
            self.starts.clear();
            let taps = (0..self.rows.len()).map(|tap| (y + tap) as i64 - reach_y as i64);
            self.starts.extend(taps.map(|y| mirrored(y, height) * stride));
            let middle = &mut self.row[reach_x * channels..][..stride];
            widest(|| weigh_rows(&image.pixels, &self.starts, &self.rows, middle));
            for x in (0..reach_x).chain(reach_x + width..width + 2 * reach_x) {
                let from = mirrored(x as i64 - reach_x as i64, width) + reach_x;
                self.row.copy_within(from * channels..(from + 1) * channels, x * channels);
            }
            widest(|| weigh_columns(&self.row, channels, &self.columns, &mut self.sums, out));
        }
        Ok(())
    }
}

/// The weighted sum of the rows that begin at `starts`, those of equal weight by two.
#[inline(always)]
fn weigh_rows(pixels: &[u8], starts: &[usize], weights: &[f32], out: &mut [f32]) {
    let reach = weights.len() / 2;
    for (out, value) in out.iter_mut().zip(&pixels[starts[reach]..]) {
        *out = f32::from(*value) * weights[reach];
    }
    for tap in 0..reach {
        let (above, below) = (&pixels[starts[tap]..], &pixels[starts[weights.len() - 1 - tap]..]);
        for (out, (above, below)) in out.iter_mut().zip(above.iter().zip(below)) {
            *out += (f32::from(*above) + f32::from(*below)) * weights[tap];
        }
    }
}

/// The weighted sum of neighbouring pixels, rounded; `row` is wider than `out` by what the kernel reaches.
#[inline(always)]
fn weigh_columns(row: &[f32], channels: usize, weights: &[f32], sums: &mut [f32], out: &mut [u8]) {
    let reach = weights.len() / 2;
    for (sum, value) in sums.iter_mut().zip(&row[reach * channels..]) {
        *sum = value * weights[reach];
    }
    for tap in 0..reach {
        let (left, right) = (&row[tap * channels..], &row[(weights.len() - 1 - tap) * channels..]);
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += (left + right) * weights[tap];
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum.round_ties_even() as u8;
    }
}

impl Transform for args::GaussianBlur<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.positive("sigma", *self.sigma);
        // No picture is wider; making a larger kernel would only take time.
        const MOST: u32 = (1 << 16) - 1;
        let fine = |size: u32| size % 2 == 1 && size <= MOST;
        let (columns, rows) = *self.kernel_size;
        check.expect(fine(columns) && fine(rows), || {
            format!("expected odd numbers up to {MOST} as kernel_size, got ({columns}, {rows})")
        });
        form
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((rgb_bytes(size), size))
    }

    fn image(&self, mut image: Image, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let sigma = rng.uniform(self.sigma.0, self.sigma.1);
        buffers.blur.run(&image, *self.kernel_size, sigma, &mut buffers.spare)?;
        std::mem::swap(&mut image, &mut buffers.spare);
        Ok(Value::Image(image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_picture_stays_even_under_any_kernel() {
        let image = Image { width: 5, height: 3, channels: 3, pixels: vec![77; 45] };
        let mut out = Image::default();
        for size in [1, 3, 9, 101] {
            Blur::default().run(&image, (size, size), 1.7, &mut out).unwrap();
            assert_eq!(out, image, "kernel {size}");
        }
    }

    #[test]
    fn kernel_far_wider_than_sigma_costs_only_its_middle() {
        let mut weights = Vec::new();
        kernel(10_001, 1.0, &mut weights);
        assert!(weights.len() < 40, "{}", weights.len());
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
