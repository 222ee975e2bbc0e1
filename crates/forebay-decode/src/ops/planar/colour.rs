//! Y, Cb and Cr to RGB by JFIF's formulas, within a level of exact ones.

use crate::pixels::rgb_mut;

/// Sixteenths of 1/128th of a level: what 16-bit multiplication makes of chroma times 128 are then sixteenths of a level.
const fn factor(exact: f64) -> i16 {
    (exact * 16.0 * 256.0 + 0.5) as i16
}
pub(super) const RED: i16 = factor(1.402);
pub(super) const GREEN_BLUE: i16 = factor(0.344_136_286);
pub(super) const GREEN_RED: i16 = factor(0.714_136_286);
pub(super) const BLUE: i16 = factor(1.772);

/// Three times the same.
pub(super) fn grey(luma: &[u8], out: &mut [u8]) {
    rgb_mut(out).iter_mut().zip(luma).for_each(|(pixel, luma)| *pixel = [*luma; 3]);
}

/// Y, Cb and Cr of each pixel to RGB.
pub(super) fn convert(planes: [&[u8]; 3], out: &mut [u8], vector: bool) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    let done = if vector { super::simd::convert(planes, out) } else { 0 };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let done = 0;
    let _ = vector;
    let [luma, blue, red] = planes.map(|plane| &plane[done..]);
    let level = |value: i32| value.clamp(0, 255) as u8;
    // What `mulhrs` does: sixteenths of a level, rounded.
    let part = |chroma: u8, factor: i16| (((i32::from(chroma) - 128) * 128 * i32::from(factor)) + (1 << 14)) >> 15;
    let whole = |sum: i32| (sum + 8) >> 4;
    for (((y, cb), cr), pixel) in luma.iter().zip(blue).zip(red).zip(rgb_mut(&mut out[done * 3..])) {
        let y = i32::from(*y);
        *pixel = [
            level(y + whole(part(*cr, RED))),
            level(y - whole(part(*cb, GREEN_BLUE) + part(*cr, GREEN_RED))),
            level(y + whole(part(*cb, BLUE))),
        ];
    }
}
