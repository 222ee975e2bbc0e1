//! Rotation as Pillow's `Image.rotate`: nearest in 16-bit fixed point, bilinear and bicubic in `f64`.

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::Check;
use super::cut::per_channel;
use super::limit::check_result;
use super::table::args;
use super::transform::Transform;
use super::wide::widest;
use super::{Buffers, Form, Interpolation, Size};
use crate::memory::reserve;
use crate::{Image, MAX_PIXELS, Value};

/// The map from an output point to its source: `x' = a x + b y + c`, `y' = d x + e y + f`.
#[derive(Clone, Copy, Debug)]
struct Affine {
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    e: f64,
    f: f64,
}

impl Affine {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.a * x + self.b * y + self.c, self.d * x + self.e * y + self.f)
    }
}

/// Python's `round(x, 15)`: through the decimal digits, which is where it rounds.
fn round_15(value: f64) -> f64 {
    format!("{value:.15}").parse().unwrap_or(value)
}

/// Name of the pixel buffer in memory errors.
const PIXELS: &str = "its turned pixels";

/// The parameters of a rotation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) degrees: f64,
    pub(crate) interpolation: Interpolation,
    pub(crate) expand: bool,
    pub(crate) center: Option<(f64, f64)>,
    /// One byte for each channel.
    pub(crate) fill: &'a [u8],
}

impl Turn<'_> {
    /// Turns `image` into `out`.
    pub(crate) fn run(&self, image: &Image, out: &mut Image) -> Result<()> {
        let degrees = self.degrees.rem_euclid(360.0);
        let square = image.width == image.height;
        if self.center.is_none() {
            // Pillow's special cases, whose results the general path would not reproduce exactly.
            if degrees == 0.0 {
                out.pixels.clear();
                reserve(&mut out.pixels, image.pixels.len(), PIXELS)?;
                out.clone_from(image);
                return Ok(());
            }
            if degrees == 180.0 {
                return turn_quarters(image, 2, out);
            }
            if (degrees == 90.0 || degrees == 270.0) && (self.expand || square) {
                return turn_quarters(image, if degrees == 90.0 { 1 } else { 3 }, out);
            }
        }
        let (affine, size) = self.affine(degrees, image)?;
        let channels = image.channels as usize;
        (out.width, out.height, out.channels) = (size.width, size.height, image.channels);
        out.pixels.clear();
        reserve(&mut out.pixels, size.area() as usize * channels, PIXELS)?;
        (0..size.area()).for_each(|_| out.pixels.extend_from_slice(self.fill));
        match self.interpolation {
            Interpolation::Bilinear => widest(|| interpolate(image, affine, out, bilinear)),
            Interpolation::Bicubic => widest(|| interpolate(image, affine, out, bicubic)),
            _ => nearest(image, affine, out),
        }
        Ok(())
    }

    /// The map from output to input, and the output's size.
    fn affine(&self, degrees: f64, image: &Image) -> Result<(Affine, Size)> {
        let (width, height) = (f64::from(image.width), f64::from(image.height));
        let angle = -degrees.to_radians();
        let (sin, cos) = (round_15(angle.sin()), round_15(angle.cos()));
        let mut affine = Affine { a: cos, b: sin, c: 0.0, d: -sin, e: cos, f: 0.0 };
        let center = self.center.unwrap_or((width / 2.0, height / 2.0));
        let (c, f) = affine.at(-center.0, -center.1);
        (affine.c, affine.f) = (c + center.0, f + center.1);
        if !self.expand {
            return Ok((affine, Size { height: image.height, width: image.width }));
        }
        let corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)].map(|(x, y)| affine.at(x, y));
        let extent = |pick: fn(&(f64, f64)) -> f64| {
            let (low, high) = corners
                .iter()
                .map(pick)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
            high.ceil() - low.floor()
        };
        let (new_width, new_height) = (extent(|corner| corner.0), extent(|corner| corner.1));
        let size = check_result(new_width as u64, new_height as u64, "RandomRotation")?;
        (affine.c, affine.f) = affine.at(-(new_width - width) / 2.0, -(new_height - height) / 2.0);
        Ok((affine, size))
    }
}

/// Turns by quarters, counter-clockwise.
fn turn_quarters(image: &Image, quarters: u32, out: &mut Image) -> Result<()> {
    let (width, height, channels) = (image.width as usize, image.height as usize, image.channels as usize);
    let sideways = quarters % 2 == 1;
    (out.width, out.height) = if sideways { (image.height, image.width) } else { (image.width, image.height) };
    out.channels = image.channels;
    out.pixels.clear();
    reserve(&mut out.pixels, image.pixels.len(), PIXELS)?;
    for y in 0..out.height as usize {
        for x in 0..out.width as usize {
            let (from_x, from_y) = match quarters {
                1 => (width - 1 - y, x),
                2 => (width - 1 - x, height - 1 - y),
                _ => (y, height - 1 - x),
            };
            out.pixels.extend_from_slice(&image.pixels[(from_y * width + from_x) * channels..][..channels]);
        }
    }
    Ok(())
}

/// Pillow's fixed point has 16 fractional bits; outside of ±32768 it steps in `f64` instead.
fn nearest(image: &Image, affine: Affine, out: &mut Image) {
    let (width, height, channels) = (i64::from(image.width), i64::from(image.height), image.channels as usize);
    let out_width = out.width as usize;
    let (last_x, last_y) = (f64::from(out.width) - 1.0, f64::from(out.height) - 1.0);
    let fits = |(x, y)| {
        let (x, y) = affine.at(x, y);
        x.abs() < 32768.0 && y.abs() < 32768.0
    };
    let start = affine.at(0.5, 0.5);
    let copy = |x: i64, y: i64, pixel: &mut [u8]| {
        if (0..width).contains(&x) && (0..height).contains(&y) {
            pixel.copy_from_slice(&image.pixels[(y * width + x) as usize * channels..][..channels]);
        }
    };
    let rows = out.pixels.chunks_exact_mut(out_width * channels);
    if [(0.0, 0.0), (last_x, last_y), (0.0, last_y), (last_x, 0.0)].into_iter().all(fits) {
        let fixed = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
        let [a, b, d, e] = [affine.a, affine.b, affine.d, affine.e].map(fixed);
        let (mut row_x, mut row_y) = (fixed(affine.a * 0.5 + affine.b * 0.5 + affine.c), fixed(start.1));
        for row in rows {
            let (mut x, mut y) = (row_x, row_y);
            for pixel in row.chunks_exact_mut(channels) {
                copy(x >> 16, y >> 16, pixel);
                (x, y) = (x + a, y + d);
            }
            (row_x, row_y) = (row_x + b, row_y + e);
        }
        return;
    }
    let (mut row_x, mut row_y) = start;
    for row in rows {
        let (mut x, mut y) = (row_x, row_y);
        for pixel in row.chunks_exact_mut(channels) {
            if x >= 0.0 && y >= 0.0 {
                copy(x as i64, y as i64, pixel);
            }
            (x, y) = (x + affine.a, y + affine.d);
        }
        (row_x, row_y) = (row_x + affine.b, row_y + affine.e);
    }
}

/// Fills each output pixel whose origin is inside by `sample(image, x, y, pixel)`.
#[inline(always)]
fn interpolate(image: &Image, affine: Affine, out: &mut Image, sample: impl Fn(&Image, f64, f64, &mut [u8])) {
    let (width, height, channels) = (f64::from(image.width), f64::from(image.height), image.channels as usize);
    let out_width = out.width as usize;
    for (y, row) in out.pixels.chunks_exact_mut(out_width * channels).enumerate() {
        for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
            let (at_x, at_y) = affine.at(x as f64 + 0.5, y as f64 + 0.5);
            if (0.0..width).contains(&at_x) && (0.0..height).contains(&at_y) {
                sample(image, at_x - 0.5, at_y - 0.5, pixel);
            }
        }
    }
}

/// The integer below, and the fraction above it.
fn split(value: f64) -> (i64, f64) {
    // `f64::floor` is a call into the C library on plain x86-64.
    let whole = value as i64 - i64::from(value < 0.0);
    (whole, value - whole as f64)
}

/// Neighbouring coordinates from `first` on, clamped to the picture, times `step`.
fn neighbours<const COUNT: usize>(first: i64, size: u32, step: usize) -> [usize; COUNT] {
    std::array::from_fn(|next| (first + next as i64).clamp(0, i64::from(size) - 1) as usize * step)
}

fn bilinear(image: &Image, x: f64, y: f64, pixel: &mut [u8]) {
    let ((left, dx), (top, dy)) = (split(x), split(y));
    let mix = |[first, second]: [f64; 2], part: f64| first + (second - first) * part;
    let channels = image.channels as usize;
    let columns = neighbours::<2>(left, image.width, channels);
    let rows = neighbours::<2>(top, image.height, channels * image.width as usize);
    for (channel, out) in pixel.iter_mut().enumerate() {
        let value = |row: usize, column: usize| f64::from(image.pixels[rows[row] + columns[column] + channel]);
        let across = |row: usize| mix([value(row, 0), value(row, 1)], dx);
        *out = mix([across(0), across(1)], dy) as u8;
    }
}

fn bicubic(image: &Image, x: f64, y: f64, pixel: &mut [u8]) {
    let ((left, dx), (top, dy)) = (split(x), split(y));
    let curve = |v: [f64; 4], at: f64| {
        let p2 = -v[0] + v[2];
        let p3 = 2.0 * (v[0] - v[1]) + v[2] - v[3];
        let p4 = -v[0] + v[1] - v[2] + v[3];
        v[1] + at * (p2 + at * (p3 + at * p4))
    };
    let channels = image.channels as usize;
    let columns = neighbours::<4>(left - 1, image.width, channels);
    let rows = neighbours::<4>(top - 1, image.height, channels * image.width as usize);
    for (channel, out) in pixel.iter_mut().enumerate() {
        let value = |row: usize, column: usize| f64::from(image.pixels[rows[row] + columns[column] + channel]);
        let across = |row: usize| curve([value(row, 0), value(row, 1), value(row, 2), value(row, 3)], dx);
        *out = curve([across(0), across(1), across(2), across(3)], dy) as u8;
    }
}

impl Transform for args::RandomRotation<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.range("degrees", *self.degrees, f64::NEG_INFINITY, f64::INFINITY);
        check.fill(self.fill, form);
        let interpolation = *self.interpolation;
        let known = matches!(
            interpolation,
            Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Bilinear | Interpolation::Bicubic
        );
        check.expect(known, || format!("expected interpolation nearest, bilinear or bicubic, got {interpolation}"));
        if let Some((x, y)) = self.center {
            check.expect(x.is_finite() && y.is_finite(), || format!("expected a finite center, got ({x}, {y})"));
        }
        if *self.expand { form.sized(None) } else { form }
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        if !*self.expand {
            return Some((rgb_bytes(size), size));
        }
        // Turned by 45 degrees, in a frame of its own, each side of which is rounded up at both ends.
        let side = (f64::from(size.width) + f64::from(size.height)) * std::f64::consts::FRAC_1_SQRT_2;
        let to = Size::from(side.ceil() as u32 + 2);
        (to.area() <= MAX_PIXELS).then(|| (rgb_bytes(to), to))
    }

    fn image(&self, mut image: Image, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let fill = per_channel(self.fill, image.channels, |value| value as u8)?;
        let degrees = rng.uniform(self.degrees.0, self.degrees.1);
        let (interpolation, expand, center) = (*self.interpolation, *self.expand, *self.center);
        Turn { degrees, interpolation, expand, center, fill: &fill }.run(&image, &mut buffers.spare)?;
        std::mem::swap(&mut image, &mut buffers.spare);
        Ok(Value::Image(image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(degrees: f64, expand: bool, image: &Image) -> Image {
        let mut out = Image::default();
        let fill = [0; 3];
        let fill = &fill[..image.channels as usize];
        Turn { degrees, interpolation: Interpolation::Bilinear, expand, center: None, fill }
            .run(image, &mut out)
            .unwrap();
        out
    }

    #[test]
    fn quarters_are_exact_and_counter_clockwise() {
        let image = Image { width: 3, height: 2, channels: 1, pixels: vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(turn(90.0, true, &image).pixels, [3, 6, 2, 5, 1, 4]);
        assert_eq!(turn(-90.0, true, &image).pixels, [4, 1, 5, 2, 6, 3]);
        assert_eq!(turn(180.0, false, &image).pixels, [6, 5, 4, 3, 2, 1]);
        assert_eq!(turn(360.0, false, &image), image);
    }

    #[test]
    fn expanded_result_holds_all_corners() {
        let image = Image { width: 30, height: 10, channels: 3, pixels: vec![255; 900] };
        let out = turn(45.0, true, &image);
        assert_eq!((out.width, out.height), (30, 30));
        let bright = out.pixels.iter().filter(|value| **value > 0).count();
        assert!((800..1000).contains(&bright), "{bright}");
    }
}
