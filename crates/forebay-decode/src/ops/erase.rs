//! Random erasing: which rectangle, and what is written there.

use forebay_core::{Result, Rng};

use super::check::Check;
use super::convert::truncate;
use super::table::args;
use super::transform::Transform;
use super::{Buffers, Erase, Form};
use crate::{Image, Tensor, TensorData, Value};

/// A rectangle inside a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) left: usize,
    pub(crate) top: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Ten attempts at a rectangle smaller than the picture; `None` when all failed.
pub(crate) fn choose(
    scale: (f64, f64),
    ratio: (f64, f64),
    (width, height): (u32, u32),
    rng: &mut Rng,
) -> Option<Patch> {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * rng.uniform(scale.0, scale.1);
        let aspect = rng.uniform(ratio.0.ln(), ratio.1.ln()).exp();
        let patch_height = (target * aspect).sqrt().round_ties_even();
        let patch_width = (target / aspect).sqrt().round_ties_even();
        if patch_height < f64::from(height) && patch_width < f64::from(width) {
            let top = rng.below(u64::from(height) - patch_height as u64 + 1) as usize;
            let left = rng.below(u64::from(width) - patch_width as u64 + 1) as usize;
            return Some(Patch { left, top, width: patch_width as usize, height: patch_height as usize });
        }
    }
    None
}

/// Calls `set(channel, y, x, value)` for each element of the patch.
pub(crate) fn fill(
    patch: Patch,
    channels: usize,
    value: &Erase,
    rng: &mut Rng,
    mut set: impl FnMut(usize, usize, usize, f32),
) {
    for channel in 0..channels {
        for y in patch.top..patch.top + patch.height {
            for x in patch.left..patch.left + patch.width {
                let value = match value {
                    Erase::Values(values) => values[channel.min(values.len() - 1)] as f32,
                    Erase::Random => rng.normal() as f32,
                };
                set(channel, y, x, value);
            }
        }
    }
}

impl args::RandomErasing<'_> {
    fn patch(&self, size: (u32, u32), rng: &mut Rng) -> Option<Patch> {
        if rng.chance(*self.p) { choose(*self.scale, *self.ratio, size, rng) } else { None }
    }
}

impl Transform for args::RandomErasing<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.probability(*self.p);
        check.range("scale", *self.scale, 0.0, 1.0);
        check.positive("ratio", *self.ratio);
        if let Erase::Values(values) = self.value {
            check.channel_values("value", values, form.shape());
        }
        form
    }

    fn image(&self, mut image: Image, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        let (width, channels) = (image.width as usize, image.channels as usize);
        if let Some(patch) = self.patch((image.width, image.height), rng) {
            fill(patch, channels, self.value, rng, |channel, y, x, value| {
                image.pixels[(y * width + x) * channels + channel] = truncate(value);
            });
        }
        Ok(Value::Image(image))
    }

    fn tensor(&self, mut tensor: Tensor, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        let (width, channels) = (tensor.width as usize, tensor.channels as usize);
        let plane = width * tensor.height as usize;
        let at = |channel: usize, y: usize, x: usize| channel * plane + y * width + x;
        if let Some(patch) = self.patch((tensor.width, tensor.height), rng) {
            match &mut tensor.data {
                TensorData::U8(data) => {
                    fill(patch, channels, self.value, rng, |c, y, x, value| data[at(c, y, x)] = truncate(value));
                }
                TensorData::F32(data) => {
                    fill(patch, channels, self.value, rng, |c, y, x, value| data[at(c, y, x)] = value);
                }
            }
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::{Epoch, SampleId};

    use super::*;

    #[test]
    fn patches_have_the_distribution_of_the_formulas() {
        let (count, size) = (20_000u64, (200, 160));
        let (mut areas, mut logs) = (0.0, 0.0);
        for sample in 0..count {
            let mut rng = Rng::for_sample(5, Epoch(0), SampleId(sample));
            // Small enough that the first attempt always fits.
            let patch = choose((0.02, 0.2), (0.3, 3.3), size, &mut rng).unwrap();
            assert!(patch.left + patch.width <= 200 && patch.top + patch.height <= 160);
            areas += (patch.width * patch.height) as f64 / 32_000.0;
            logs += (patch.height as f64 / patch.width as f64).ln();
        }
        let expected_log = (0.3f64.ln() + 3.3f64.ln()) / 2.0;
        assert!((areas / count as f64 - 0.11).abs() < 0.002, "{}", areas / count as f64);
        assert!((logs / count as f64 - expected_log).abs() < 0.02, "{}", logs / count as f64);
    }

    #[test]
    fn single_pixel_is_never_erased() {
        let mut rng = Rng::for_sample(5, Epoch(0), SampleId(0));
        assert_eq!(choose((0.9, 1.0), (1.0, 1.0), (1, 1), &mut rng), None);
    }

    #[test]
    fn random_values_are_standard_normal() {
        let mut rng = Rng::for_sample(5, Epoch(0), SampleId(0));
        let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
        let patch = Patch { left: 3, top: 4, width: 100, height: 100 };
        fill(patch, 3, &Erase::Random, &mut rng, |_, _, _, value| {
            sum += f64::from(value);
            squares += f64::from(value * value);
            count += 1.0;
        });
        assert_eq!(count, 30_000.0);
        assert!((sum / count).abs() < 0.03 && (squares / count - 1.0).abs() < 0.05);
    }
}
