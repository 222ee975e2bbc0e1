//! Positions of crops: the random or central choice of a [`Window`], without touching pixels.

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::Check;
use super::cut::cut;
use super::limit::too_small;
use super::resize::{Job, resample};
use super::table::args;
use super::transform::{Of, Transform};
use super::window::Window;
use super::{Buffers, Form, Op, Padding, PaddingMode, Size};
use crate::{Image, Value};

/// Half of a difference as torchvision rounds it (`int(round(x / 2.0))`, ties to even).
fn half(difference: i64) -> i64 {
    (difference as f64 / 2.0).round_ties_even() as i64
}

/// The middle of a picture; what a smaller picture lacks is outside.
pub(crate) fn center(size: Size, width: u32, height: u32) -> Window {
    let start = |have: u32, want: u32| {
        let difference = i64::from(have) - i64::from(want);
        // torchvision pads a smaller picture by floor(missing / 2) in front and then crops nothing.
        if difference < 0 { -(-difference / 2) } else { half(difference) }
    };
    Window { left: start(width, size.width), top: start(height, size.height), width: size.width, height: size.height }
}

/// A random place of a picture that is padded first.
pub(crate) fn random(
    size: Size,
    padding: Option<Padding>,
    pad_if_needed: bool,
    (width, height): (u32, u32),
    rng: &mut Rng,
) -> Result<Window> {
    let padding = padding.unwrap_or_default();
    let axis = |have: u32, before: u32, after: u32, want: u32| {
        let (mut before, mut total) = (i64::from(before), i64::from(have) + i64::from(before) + i64::from(after));
        if pad_if_needed && total < i64::from(want) {
            // Padded on each side by all that is missing, so that the picture's position is random, too.
            let missing = i64::from(want) - total;
            before += missing;
            total += 2 * missing;
        }
        (before, total)
    };
    let (top_padding, padded_height) = axis(height, padding.top, padding.bottom, size.height);
    let (left_padding, padded_width) = axis(width, padding.left, padding.right, size.width);
    let (spare_height, spare_width) = (padded_height - i64::from(size.height), padded_width - i64::from(size.width));
    if spare_height < 0 || spare_width < 0 {
        return Err(too_small(size, padded_width as u64, padded_height as u64));
    }
    let top = rng.below(spare_height as u64 + 1) as i64 - top_padding;
    let left = rng.below(spare_width as u64 + 1) as i64 - left_padding;
    Ok(Window { left, top, width: size.width, height: size.height })
}

/// A random part by area and aspect ratio: ten attempts, then the largest central part of an allowed ratio.
pub(crate) fn random_part(scale: (f64, f64), ratio: (f64, f64), (width, height): (u32, u32), rng: &mut Rng) -> Window {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * rng.uniform(scale.0, scale.1);
        let aspect = rng.uniform(ratio.0.ln(), ratio.1.ln()).exp();
        let part_width = (target * aspect).sqrt().round_ties_even();
        let part_height = (target / aspect).sqrt().round_ties_even();
        if (1.0..=f64::from(width)).contains(&part_width) && (1.0..=f64::from(height)).contains(&part_height) {
            let (part_width, part_height) = (part_width as u32, part_height as u32);
            let top = rng.below(u64::from(height - part_height) + 1) as i64;
            let left = rng.below(u64::from(width - part_width) + 1) as i64;
            return Window { left, top, width: part_width, height: part_height };
        }
    }
    let aspect = f64::from(width) / f64::from(height);
    // On pictures one pixel thin, rounding may give one pixel less than none, or more than there are.
    let within = |wanted: f64, have: u32| (wanted.round_ties_even() as u32).clamp(1, have);
    let (part_width, part_height) = if aspect < ratio.0 {
        (width, within(f64::from(width) / ratio.0, height))
    } else if aspect > ratio.1 {
        (within(f64::from(height) * ratio.1, width), height)
    } else {
        (width, height)
    };
    Window {
        left: i64::from((width - part_width) / 2),
        top: i64::from((height - part_height) / 2),
        width: part_width,
        height: part_height,
    }
}

impl Op {
    /// The window this op cuts out of a picture of this size; `None` for ops that do not crop or pad.
    pub(crate) fn window(&self, (width, height): (u32, u32), rng: &mut Rng) -> Option<Result<Window>> {
        match self {
            Self::CenterCrop { size } => Some(Ok(center(*size, width, height))),
            Self::RandomCrop { size, padding, pad_if_needed, .. } => {
                Some(random(*size, *padding, *pad_if_needed, (width, height), rng))
            }
            Self::Pad { padding, .. } => Some(Ok(padding.around(width, height))),
            _ => None,
        }
    }

    /// The padding of the picture if the window extends beyond it.
    pub(crate) fn surrounding(&self) -> (PaddingMode, &[f64]) {
        match self {
            Self::RandomCrop { fill, padding_mode, .. } | Self::Pad { fill, padding_mode, .. } => (*padding_mode, fill),
            _ => (PaddingMode::Constant, &[0.0]),
        }
    }
}

/// Cuts the op's window out of an image or a tensor.
pub(crate) fn cut_window(op: &Op, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
    let value = op.known(value)?;
    let size = match &value {
        Value::Image(image) => (image.width, image.height),
        Value::Tensor(tensor) => (tensor.width, tensor.height),
        _ => return Ok(value),
    };
    let Some(window) = op.window(size, rng) else { return Ok(value) };
    let (mode, fill) = op.surrounding();
    cut(value, window?, mode, fill, buffers)
}

impl Transform for args::CenterCrop<'_> {
    fn is_fixed(&self) -> bool {
        true
    }

    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.size("size", *self.size);
        form.sized(Some(*self.size))
    }

    fn memory(&self, _size: Size) -> Option<(u64, Size)> {
        Some((rgb_bytes(*self.size), *self.size))
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        cut_window(self.op(), value, rng, buffers)
    }
}

impl Transform for args::RandomCrop<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.size("size", *self.size);
        check.padding(self.padding.unwrap_or_default());
        check.fill(self.fill, form);
        form.sized(Some(*self.size))
    }

    fn memory(&self, _size: Size) -> Option<(u64, Size)> {
        Some((rgb_bytes(*self.size), *self.size))
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        cut_window(self.op(), value, rng, buffers)
    }
}

impl Transform for args::RandomResizedCrop<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.size("size", *self.size);
        check.range("scale", *self.scale, 0.0, f64::INFINITY);
        check.positive("ratio", *self.ratio);
        form.sized(Some(*self.size))
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        // The cutout is no larger than the picture, and there are as many rows between two passes as it has.
        let (Size { height, width }, to) = (size, *self.size);
        let job = Job::whole(size, to, *self.interpolation);
        let between = Size { height, width: to.width }.area().max(Size { height: to.height, width }.area());
        Some((job.memory_bytes() + 3 * between, to))
    }

    fn image(&self, image: Image, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let part = random_part(*self.scale, *self.ratio, (image.width, image.height), rng);
        resample(image, part, *self.size, *self.interpolation, buffers).map(Value::Image)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::{Epoch, SampleId};

    use super::*;

    fn rng(sample: u64) -> Rng {
        Rng::for_sample(1, Epoch(0), SampleId(sample))
    }

    #[test]
    fn center_rounds_and_pads_as_torchvision() {
        let at = |width, height, size: u32| {
            let window = center(size.into(), width, height);
            (window.left, window.top)
        };
        assert_eq!(at(227, 229, 224), (2, 2)); // 1.5 and 2.5 both round to 2
        assert_eq!(at(224, 224, 224), (0, 0));
        assert_eq!(at(221, 223, 224), (-1, 0)); // 3 and 1 missing: floor of the half in front
        assert_eq!(at(1, 300, 4), (-1, 148));
    }

    #[test]
    fn random_crop_reaches_every_place_equally() {
        let mut counts = [0u32; 9];
        for sample in 0..9000 {
            let window = random(2.into(), None, false, (4, 4), &mut rng(sample)).unwrap();
            counts[(window.top * 3 + window.left) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn random_crop_of_a_smaller_picture_fails_unless_padded() {
        let error = random(224.into(), None, false, (100, 80), &mut rng(0)).unwrap_err();
        assert_eq!(error.message(), "is smaller than the crop (expected at least 224×224, got 100×80)");
        assert!(error.is_sample_local());
        let window = random(224.into(), None, true, (100, 80), &mut rng(0)).unwrap();
        assert!((-124..=0).contains(&window.left) && (-144..=0).contains(&window.top));
    }

    #[test]
    fn random_part_has_the_distribution_of_the_formulas() {
        let (count, size) = (20_000, (400, 300));
        let (mut areas, mut logs, mut below_half) = (0.0, 0.0, 0);
        for sample in 0..count {
            // Up to a third of the area every attempt fits, so that rejections do not distort the distribution.
            let part = random_part((0.08, 0.33), (0.75, 4.0 / 3.0), size, &mut rng(sample));
            assert!(part.is_inside(size.0, size.1));
            let area = f64::from(part.width) * f64::from(part.height) / 120_000.0;
            let log = (f64::from(part.width) / f64::from(part.height)).ln();
            assert!((0.078..0.333).contains(&area) && log.abs() < (4.0f64 / 3.0).ln() + 0.02);
            (areas, logs) = (areas + area, logs + log);
            below_half += u32::from(log < -0.5 * (4.0f64 / 3.0).ln());
        }
        let n = count as f64;
        assert!((areas / n - 0.205).abs() < 0.002, "mean area {}", areas / n);
        assert!((logs / n).abs() < 0.005, "mean log ratio {}", logs / n);
        assert!((f64::from(below_half) / n - 0.25).abs() < 0.015, "log ratio is not uniform");
    }

    #[test]
    fn random_part_falls_back_to_the_middle() {
        let part = random_part((1.0, 1.0), (0.75, 4.0 / 3.0), (1000, 10), &mut rng(3));
        assert_eq!(part, Window { left: 493, top: 0, width: 13, height: 10 });
        let part = random_part((1.0, 1.0), (0.75, 4.0 / 3.0), (10, 1000), &mut rng(3));
        assert_eq!(part, Window { left: 0, top: 493, width: 10, height: 13 });
        assert_eq!(random_part((0.08, 1.0), (0.75, 1.3), (1, 1), &mut rng(3)).width, 1);
    }
}
