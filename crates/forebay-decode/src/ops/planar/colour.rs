//! Y, Cb and Cr to RGB by JFIF's formulas, each colour rounded to the nearest once.

use crate::pixels::rgb_mut;

/// Fractional bits of the factors.
const BITS: u32 = 14;
const fn factor(exact: f64) -> i32 {
    (exact * (1 << BITS) as f64 + 0.5) as i32
}
const RED: i32 = factor(1.402);
const GREEN_BLUE: i32 = factor(0.344_136_286);
const GREEN_RED: i32 = factor(0.714_136_286);
const BLUE: i32 = factor(1.772);

/// Three times the same.
pub(super) fn grey(luma: &[u8], out: &mut [u8]) {
    rgb_mut(out).iter_mut().zip(luma).for_each(|(pixel, luma)| *pixel = [*luma; 3]);
}

/// Y, Cb and Cr of each pixel to RGB.
pub(super) fn convert(planes: [&[u8]; 3], out: &mut [u8], vector: bool) {
    #[cfg(target_arch = "x86_64")]
    if vector {
        // SAFETY: the caller has seen that the processor has AVX2.
        return unsafe { convert_avx2(planes, out) };
    }
    let _ = vector;
    convert_any(planes, out);
}

/// The same code, for which the compiler may use AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn convert_avx2(planes: [&[u8]; 3], out: &mut [u8]) {
    convert_any(planes, out);
}

#[inline(always)]
fn convert_any([luma, blue, red]: [&[u8]; 3], out: &mut [u8]) {
    let level = |value: i32| value.clamp(0, 255) as u8;
    let half = 1 << (BITS - 1);
    for (((y, cb), cr), pixel) in luma.iter().zip(blue).zip(red).zip(rgb_mut(out)) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
        *pixel = [
            level(y + ((RED * cr + half) >> BITS)),
            level(y - ((GREEN_BLUE * cb + GREEN_RED * cr + half) >> BITS)),
            level(y + ((BLUE * cb + half) >> BITS)),
        ];
    }
}
