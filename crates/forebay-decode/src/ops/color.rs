//! Brightness, contrast, saturation and hue as Pillow's `ImageEnhance` and torchvision's HSV shift.

use forebay_core::{Result, Rng};

use super::check::Check;
use super::gray::luma;
use super::table::args;
use super::transform::Transform;
use super::wide::widest;
use super::{Buffers, Form};
use crate::{Image, Value};

/// One change of colour with its factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    Brightness(f64),
    Contrast(f64),
    Saturation(f64),
    Hue(f64),
}

type Factors = Option<(f64, f64)>;

/// Draws a random order and a factor for each change that is wanted.
pub(crate) fn choose(
    brightness: Factors,
    contrast: Factors,
    saturation: Factors,
    hue: Factors,
    rng: &mut Rng,
) -> [Option<Change>; 4] {
    let mut draw = |range: Factors, change: fn(f64) -> Change| range.map(|(low, high)| change(rng.uniform(low, high)));
    let mut changes = [
        draw(brightness, Change::Brightness),
        draw(contrast, Change::Contrast),
        draw(saturation, Change::Saturation),
        draw(hue, Change::Hue),
    ];
    for last in (1..changes.len()).rev() {
        changes.swap(last, rng.below(last as u64 + 1) as usize);
    }
    changes
}

impl Change {
    /// Changes the picture in place.
    pub(crate) fn apply(self, image: &mut Image) {
        match self {
            Self::Brightness(factor) => toward(image, 0, factor),
            Self::Contrast(factor) => toward(image, mean_luma(image), factor),
            // Grey is its own luma, and Pillow has no hue for it.
            Self::Saturation(_) | Self::Hue(_) if image.channels == 1 => {}
            Self::Saturation(factor) => {
                let factor = factor as f32;
                widest(|| {
                    for pixel in image.pixels.as_chunks_mut::<3>().0 {
                        let grey = luma(pixel[0], pixel[1], pixel[2]);
                        *pixel = pixel.map(|value| blend(grey, value, factor));
                    }
                });
            }
            Self::Hue(factor) => {
                // Truncated towards zero, then added modulo 256.
                let shift = (factor * 255.0) as i32 as u8;
                widest(|| {
                    for pixel in image.pixels.as_chunks_mut::<3>().0 {
                        let [hue, saturation, value] = to_hsv(pixel[0], pixel[1], pixel[2]);
                        *pixel = from_hsv(hue.wrapping_add(shift), saturation, value);
                    }
                });
            }
        }
    }
}

/// `factor` of the way from one value to the other, truncated; beyond both ends for other factors than 0 to 1.
#[inline]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    // The cast truncates and saturates, which is Pillow's clipping.
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))) as u8
}

/// Blends each element with one level.
fn toward(image: &mut Image, level: u8, factor: f64) {
    let table: [u8; 256] = std::array::from_fn(|value| blend(level, value as u8, factor as f32));
    image.pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// The mean of the grey picture, rounded half up.
fn mean_luma(image: &Image) -> u8 {
    let sum: u64 = match image.channels {
        1 => image.pixels.iter().map(|value| u64::from(*value)).sum(),
        _ => widest(|| {
            image.pixels.as_chunks::<3>().0.iter().map(|pixel| u64::from(luma(pixel[0], pixel[1], pixel[2]))).sum()
        }),
    };
    let count = image.pixels.len() as u64 / u64::from(image.channels.max(1));
    (sum as f64 / count.max(1) as f64 + 0.5) as u8
}

/// Pillow's conversion, with `f32` and `f64` where it has them: the truncation at the end shows any difference.
/// Without branches, which the colours of a picture would mispredict.
#[inline(always)]
fn to_hsv(red: u8, green: u8, blue: u8) -> [u8; 3] {
    let high = red.max(green).max(blue);
    let low = red.min(green).min(blue);
    // Grey has no hue and no saturation: all distances are 0, whatever they are divided by.
    let range = f32::from((high - low).max(1));
    let saturation = f32::from(high - low) / f32::from(high.max(1));
    let (is_red, is_green) = (red == high, green == high);
    let third = if is_red {
        0.0
    } else if is_green {
        2.0
    } else {
        4.0
    };
    let ahead = if is_red {
        blue
    } else if is_green {
        red
    } else {
        green
    };
    let behind = if is_red {
        green
    } else if is_green {
        blue
    } else {
        red
    };
    let distance = |value: u8| f64::from(f32::from(high - value) / range);
    let hue = (third + distance(ahead) - distance(behind)) as f32;
    // Modulo 1: it is less than 2, and the difference is exact.
    let hue = f64::from(hue) / 6.0 + 1.0;
    let hue = (hue - if hue >= 1.0 { 1.0 } else { 0.0 }) as f32;
    [(f64::from(hue) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, high]
}

/// Sixth of the circle, and place in it, of each hue.
const SIXTHS: [(u8, f32); 256] = {
    let mut sixths = [(0, 0.0); 256];
    let mut hue = 0;
    while hue < 256 {
        let sixth = hue as f64 * 6.0 / 255.0;
        sixths[hue] = (sixth as u8, (sixth - sixth as u8 as f64) as f32);
        hue += 1;
    }
    sixths
};

/// Each saturation as a part of 1.
const PARTS: [f32; 256] = {
    let mut parts = [0.0; 256];
    let mut saturation = 0;
    while saturation < 256 {
        parts[saturation] = (saturation as f64 / 255.0) as f32;
        saturation += 1;
    }
    parts
};

#[inline(always)]
fn from_hsv(hue: u8, saturation: u8, value: u8) -> [u8; 3] {
    let (sector, part) = SIXTHS[usize::from(hue)];
    let saturation = PARTS[usize::from(saturation)];
    // Half up: nothing is negative here.
    let level = |amount: f64| (f64::from(value) * (1.0 - amount) + 0.5) as u8;
    let p = level(f64::from(saturation));
    let q = level(f64::from(saturation * part));
    let t = level(f64::from(saturation) * (1.0 - f64::from(part)));
    let levels = [value, p, q, t];
    let [red, green, blue] = ORDERS[usize::from(sector)];
    [levels[usize::from(red)], levels[usize::from(green)], levels[usize::from(blue)]]
}

/// Which of value, p, q and t each channel is, in each sixth; the end of the circle is a seventh.
const ORDERS: [[u8; 3]; 7] = [[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2], [0, 3, 1]];

impl Transform for args::ColorJitter<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        let factors = [("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)];
        for (name, range) in factors {
            range.iter().for_each(|range| check.range(name, *range, 0.0, f64::INFINITY));
        }
        self.hue.iter().for_each(|range| check.range("hue", *range, -0.5, 0.5));
        form
    }

    fn image(&self, mut image: Image, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        let changes = choose(*self.brightness, *self.contrast, *self.saturation, *self.hue, rng);
        changes.into_iter().flatten().for_each(|change| change.apply(&mut image));
        Ok(Value::Image(image))
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::{Epoch, SampleId};

    use super::*;

    #[test]
    fn every_order_is_equally_likely_and_factors_stay_in_range() {
        let mut orders = std::collections::HashMap::new();
        let range = Some((0.5, 1.5));
        for sample in 0..24_000 {
            let mut rng = Rng::for_sample(2, Epoch(0), SampleId(sample));
            let changes = choose(range, range, range, Some((-0.1, 0.1)), &mut rng);
            let order = changes.map(|change| match change.unwrap() {
                Change::Brightness(factor) => (0.5..1.5).contains(&factor).then_some(0),
                Change::Contrast(factor) => (0.5..1.5).contains(&factor).then_some(1),
                Change::Saturation(factor) => (0.5..1.5).contains(&factor).then_some(2),
                Change::Hue(factor) => (-0.1..0.1).contains(&factor).then_some(3),
            });
            assert!(order.iter().all(Option::is_some));
            *orders.entry(order).or_insert(0) += 1;
        }
        assert_eq!(orders.len(), 24);
        assert!(orders.values().all(|count| (850..1150).contains(count)), "{orders:?}");
    }

    #[test]
    fn hsv_rounds_as_the_library_functions_would() {
        for value in 0..=255u8 {
            for (hue, saturation) in (0..=255u8).flat_map(|hue| (1..=255u8).map(move |saturation| (hue, saturation))) {
                let sixth = f64::from(hue) * 6.0 / 255.0;
                let part = (sixth - sixth.floor()) as f32;
                let amount = (f64::from(saturation) / 255.0) as f32;
                let level = |amount: f64| (f64::from(value) * (1.0 - amount)).round() as u8;
                let p = level(f64::from(amount));
                let q = level(f64::from(amount * part));
                let t = level(f64::from(amount) * (1.0 - f64::from(part)));
                let rgb = from_hsv(hue, saturation, value);
                assert!(rgb.iter().all(|channel| [value, p, q, t].contains(channel)), "{hue} {saturation} {value}");
            }
        }
        for (range, distance) in (1..=255u8).flat_map(|range| (0..=range).map(move |distance| (range, distance))) {
            let [hue, ..] = to_hsv(range, 0, range - distance);
            let expected = f64::from(1.0 - f32::from(distance) / f32::from(range));
            let expected = f64::from(((-expected / 6.0 + 1.0) % 1.0) as f32) * 255.0;
            assert_eq!(hue, expected as u8, "{range} {distance}");
        }
    }

    #[test]
    fn factor_one_changes_nothing() {
        let image =
            Image { width: 4, height: 1, channels: 3, pixels: vec![0, 1, 2, 90, 80, 255, 255, 255, 0, 7, 7, 7] };
        for change in [Change::Brightness(1.0), Change::Contrast(1.0), Change::Saturation(1.0)] {
            let mut changed = image.clone();
            change.apply(&mut changed);
            assert_eq!(changed, image, "{change:?}");
        }
    }

    #[test]
    fn grey_pictures_have_neither_saturation_nor_hue() {
        let image = Image { width: 2, height: 1, channels: 1, pixels: vec![3, 200] };
        for change in [Change::Saturation(0.0), Change::Hue(0.5)] {
            let mut changed = image.clone();
            change.apply(&mut changed);
            assert_eq!(changed, image);
        }
    }
}
