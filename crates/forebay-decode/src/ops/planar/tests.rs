use super::super::resize::{Resampler, Source};
use super::super::{Interpolation, Size};
use super::*;

const FILTERS: [Interpolation; 5] = [
    Interpolation::Bilinear,
    Interpolation::Bicubic,
    Interpolation::Box,
    Interpolation::Hamming,
    Interpolation::Lanczos,
];

/// Planes of a picture of this size, with samples of so many pixels, that hold `usable`.
fn planes(count: usize, usable: Region, pitches: [(u32, u32); 3], value: impl Fn(usize, f64, f64) -> u8) -> Planes {
    let mut planes = Planes { count, ..Planes::default() };
    for (number, (plane, pitch)) in planes.planes.iter_mut().zip(pitches).enumerate() {
        let (left, top) = (usable.x / pitch.0, usable.y / pitch.1);
        let (right, bottom) =
            ((usable.x + usable.width).div_ceil(pitch.0), (usable.y + usable.height).div_ceil(pitch.1));
        // Somewhat more than is needed, as whole blocks are.
        let (columns, rows) = ((right - left + 3) as usize, (bottom - top + 2) as usize);
        plane.origin = (left, top);
        plane.pitch = pitch;
        let samples = plane.prepare(columns, rows).unwrap();
        samples.fill(0xA5); // beyond the samples, anything
        for (at, sample) in samples[..columns * rows].iter_mut().enumerate() {
            // The middle of the sample, in pixels.
            let x = (f64::from(left) + (at % columns) as f64 + 0.5) * f64::from(pitch.0);
            let y = (f64::from(top) + (at / columns) as f64 + 0.5) * f64::from(pitch.1);
            *sample = value(number, x, y);
        }
    }
    planes
}

fn noise(number: usize, x: f64, y: f64) -> u8 {
    let hash = (x.to_bits() ^ y.to_bits().rotate_left(21) ^ number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 40) as u8
}

fn run(planes: &Planes, usable: Region, corner: (u32, u32), job: &Job, portable_only: bool) -> Image {
    let mut out = Image::default();
    Planar { portable_only, ..Planar::default() }.run(planes, usable, corner, job, &mut out).unwrap();
    out
}

fn crop(x: u32, y: u32, width: u32, height: u32) -> (Region, Size) {
    (Region { x, y, width, height }, Size { height, width })
}

#[test]
fn vectors_give_the_same_bytes_as_plain_code() {
    let crops =
        [crop(0, 0, 1, 1), crop(3, 5, 31, 40), crop(17, 1, 320, 240), crop(101, 90, 500, 333), crop(0, 7, 2000, 9)];
    let sizes = [1.into(), 7.into(), 64.into(), Size { height: 225, width: 31 }, Size { height: 50, width: 227 }];
    let pitches = [[(1, 1); 3], [(1, 1), (2, 2), (2, 2)], [(2, 2), (2, 2), (2, 2)], [(1, 1), (4, 1), (4, 1)]];
    for ((usable, from), interpolation) in crops.into_iter().flat_map(|crop| FILTERS.map(|filter| (crop, filter))) {
        for (to, pitches) in sizes.into_iter().flat_map(|size| pitches.map(|pitches| (size, pitches))) {
            let planes = planes(3, usable, pitches, noise);
            let job = Job::whole(from, to, interpolation);
            let corner = (usable.x, usable.y);
            let (vector, plain) = (run(&planes, usable, corner, &job, false), run(&planes, usable, corner, &job, true));
            assert!(vector == plain, "{usable:?} to {to:?}, {interpolation:?}, {pitches:?}");
        }
    }
}

#[test]
fn pixels_as_samples_are_resized_as_ever_within_a_level() {
    for ((usable, from), to) in [(crop(5, 3, 320, 240), 224), (crop(0, 0, 100, 90), 224), (crop(9, 9, 900, 700), 224)] {
        for interpolation in FILTERS {
            let planes = planes(1, usable, [(1, 1); 3], noise);
            let job = Job::whole(from, to.into(), interpolation);
            let fast = run(&planes, usable, (usable.x, usable.y), &job, false);
            let mut faithful = Vec::new();
            let plane = &planes.planes[0];
            let pixels = plane.from(usable.x as usize, usable.y as usize);
            let source = Source { pixels, stride: plane.stride(), channels: 1, origin: (0, 0) };
            Resampler::default().run(source, &job, &mut faithful).unwrap();
            // Filters that overshoot clip elsewhere if the passes come in another order, and a box may round a pixel
            // that is half inside to its other side.
            let smooth = matches!(interpolation, Interpolation::Bilinear | Interpolation::Hamming);
            let most = if smooth { 1 } else { 255 };
            let differences: Vec<u8> =
                fast.pixels.chunks_exact(3).zip(&faithful).map(|(pixel, value)| pixel[0].abs_diff(*value)).collect();
            let mean = differences.iter().map(|value| f64::from(*value)).sum::<f64>() / differences.len() as f64;
            assert!(differences.iter().all(|value| *value <= most) && mean < 1.0, "{interpolation:?}: {mean}");
        }
    }
}

/// A slope has the same height everywhere, however large the samples and wherever the crop begins: nothing is shifted.
#[test]
fn samples_of_any_size_lie_where_their_pixels_are() {
    let slope = |_: usize, x: f64, y: f64| (20.0 + x * 0.11 + y * 0.07).round() as u8;
    for pitch in [1, 2, 4, 8, 16] {
        for (x, y) in [(0, 0), (1, 0), (37, 21), (50, 33)] {
            let (usable, from) = crop(x, y, 777, 555);
            let planes = planes(1, usable, [(pitch, pitch); 3], slope);
            // Not nearly one sample a pixel: rounding would then hide where between samples a pixel lies.
            let (width, height) = (from.width * 5 / 7 / pitch, from.height * 5 / 7 / pitch);
            let job = Job::whole(from, Size { height, width }, Interpolation::Bilinear);
            let made = run(&planes, usable, (x, y), &job, false);
            let scale = (f64::from(from.width) / f64::from(width), f64::from(from.height) / f64::from(height));
            let (mut sum, mut count) = (0.0, 0.0);
            for (at, pixel) in made.pixels.chunks_exact(3).enumerate() {
                let (column, row) = (at as u32 % width, at as u32 / width);
                // At the edges the filter is cut off.
                if (2..width - 2).contains(&column) && (2..height - 2).contains(&row) {
                    let at = |corner: u32, place: u32, scale: f64| f64::from(corner) + (f64::from(place) + 0.5) * scale;
                    let (x, y) = (at(x, column, scale.0), at(y, row, scale.1));
                    let difference = f64::from(pixel[0]) - (20.0 + x * 0.11 + y * 0.07);
                    assert!(difference.abs() < 1.6, "pitch {pitch} at ({x}, {y}): {difference}");
                    (sum, count) = (sum + difference, count + 1.0);
                }
            }
            // Half a pixel would be 0.09.
            assert!((sum / count).abs() < 0.03, "pitch {pitch} from ({x}, {y}): {}", sum / count);
        }
    }
}

#[test]
fn one_grey_stays_that_grey_and_colours_are_right() {
    let (usable, from) = crop(11, 13, 301, 203);
    for interpolation in FILTERS {
        let grey = planes(3, usable, [(1, 1), (2, 2), (2, 2)], |number, _, _| if number == 0 { 77 } else { 128 });
        let made = run(&grey, usable, (11, 13), &Job::whole(from, 224.into(), interpolation), false);
        assert!(made.pixels.iter().all(|value| *value == 77), "{interpolation:?}");
    }
    let level = |value: f64| value.round().clamp(0.0, 255.0);
    for (y, cb, cr) in (0..=255).step_by(15).flat_map(|y| {
        (0..=255).step_by(15).flat_map(move |cb| (0..=255).step_by(15).map(move |cr| (y as u8, cb as u8, cr as u8)))
    }) {
        let (luma, blue, red) = (f64::from(y), f64::from(cb) - 128.0, f64::from(cr) - 128.0);
        let expected =
            [luma + 1.402 * red, luma - 0.344_136_286 * blue - 0.714_136_286 * red, luma + 1.772 * blue].map(level);
        // 17 pixels: 16 of vectors, and one.
        let [y, cb, cr] = [y, cb, cr].map(|value| [value; 17]);
        let mut out = [0; 51];
        colour::convert([&y, &cb, &cr], &mut out, true);
        for pixel in out.chunks_exact(3) {
            for (got, expected) in pixel.iter().zip(expected) {
                assert!((f64::from(*got) - expected).abs() <= 1.0, "{y:?} {cb:?} {cr:?}: {pixel:?}");
            }
        }
        assert_eq!(out[..48], out[..3].repeat(16));
        assert_eq!(out[45..48], out[48..]);
    }
}

#[test]
fn a_part_of_the_result_is_that_part_of_the_whole_one() {
    let (whole, from) = crop(0, 0, 640, 480);
    let pitches = [(1, 1), (2, 2), (2, 2)];
    let to = Size { height: 192, width: 256 };
    let all =
        run(&planes(3, whole, pitches, noise), whole, (0, 0), &Job::whole(from, to, Interpolation::Bilinear), false);
    let job = Job { columns: 50..178, rows: 32..160, ..Job::whole(from, to, Interpolation::Bilinear) };
    // All that the part can depend on.
    let usable = Region { x: 110, y: 70, width: 350, height: 340 };
    let part = run(&planes(3, usable, pitches, noise), usable, (0, 0), &job, false);
    for (row, part) in part.pixels.chunks_exact(128 * 3).enumerate() {
        let start = ((32 + row) * 256 + 50) * 3;
        assert!(part == &all.pixels[start..start + 128 * 3], "row {row}");
    }
}
