//! Three interleaved channels to three planes of floats, 8 pixels at a time with AVX2 and FMA: the same floats as
//! `portable`, because [`Formula`] was tried on every byte.

use std::arch::x86_64::*;

use super::formula::{Formula, UNIT};
use super::{Walk, portable};
use crate::Image;

/// Pixels at a time.
const LANES: usize = 8;

/// Whether the processor has what [`planes`] needs.
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// Writes three planes; `tables` serve the pixels that do not fill a vector. The processor has AVX2 and FMA.
pub(super) fn planes(image: &Image, formula: &Formula, tables: &[[f32; 256]], walk: Walk, slot: &mut [u8]) {
    let (width, height) = (image.width as usize, image.height as usize);
    let (fast, row_bytes) = (width / LANES * LANES, width * 4);
    for y in 0..height {
        let from = if walk.upside_down { height - 1 - y } else { y };
        let pixels = &image.pixels[from * width * 3..][..width * 3];
        let (reds, rest) = slot[y * row_bytes..].split_at_mut(height * row_bytes);
        let (greens, blues) = rest.split_at_mut(height * row_bytes);
        let out = [&mut reds[..row_bytes], &mut greens[..row_bytes], &mut blues[..row_bytes]];
        // Mirrored, the last pixels come first.
        let (first, last) = if walk.mirrored { pixels.split_at((width - fast) * 3) } else { pixels.split_at(fast * 3) };
        let (vectors, others) = if walk.mirrored { (last, first) } else { (first, last) };
        for (channel, out) in out.into_iter().enumerate() {
            let (out, out_others) = out.split_at_mut(fast * 4);
            // SAFETY: the caller has seen that the processor has AVX2 and FMA.
            unsafe { channel_row(vectors, formula, channel, walk.mirrored, out) };
            portable::row(others, 3, channel, &tables[channel], walk.mirrored, out_others);
        }
    }
}

/// One channel of whole vectors of pixels.
#[target_feature(enable = "avx2,fma")]
fn channel_row(pixels: &[u8], formula: &Formula, channel: usize, mirrored: bool, out: &mut [u8]) {
    let (mean, std) = (_mm256_set1_ps(formula.mean[channel]), _mm256_set1_ps(formula.std[channel]));
    let inverse = _mm256_set1_ps(1.0 / formula.std[channel]);
    let (most, unit) = (_mm256_set1_ps(255.0), _mm256_set1_ps(UNIT));
    let (front, back) = shuffles(channel, mirrored);
    let (count, vector_bytes) = (pixels.len() / (LANES * 3), LANES * 3);
    for (at, out) in out.chunks_exact_mut(LANES * 4).enumerate() {
        let from = if mirrored { count - 1 - at } else { at };
        let pixels = &pixels[from * vector_bytes..][..vector_bytes];
        let bytes = _mm_or_si128(
            _mm_shuffle_epi8(load(&pixels[..16]), front),
            _mm_shuffle_epi8(load(&pixels[vector_bytes - 16..]), back),
        );
        let value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        let value = if formula.divides { divide(value, most, unit) } else { _mm256_mul_ps(value, unit) };
        store(out, divide(_mm256_sub_ps(value, mean), std, inverse));
    }
}

/// Where the bytes of a channel of 8 pixels are in the first 16 and in the last 16 of their 24 bytes.
#[target_feature(enable = "avx2")]
fn shuffles(channel: usize, mirrored: bool) -> (__m128i, __m128i) {
    let (mut front, mut back) = ([-1i8; 16], [-1i8; 16]);
    for lane in 0..LANES {
        let at = (if mirrored { LANES - 1 - lane } else { lane }) * 3 + channel;
        if at < 16 { front[lane] = at as i8 } else { back[lane] = at as i8 - 8 }
    }
    let vector = |bytes: [i8; 16]| {
        let word = |from: usize| i64::from_le_bytes(std::array::from_fn(|next| bytes[from + next] as u8));
        _mm_set_epi64x(word(8), word(0))
    };
    (vector(front), vector(back))
}

/// `value / by` by its reciprocal, corrected once: the twin of the formula's.
#[target_feature(enable = "avx2,fma")]
fn divide(value: __m256, by: __m256, reciprocal: __m256) -> __m256 {
    let quotient = _mm256_mul_ps(value, reciprocal);
    let rest = _mm256_fnmadd_ps(quotient, by, value);
    _mm256_fmadd_ps(rest, reciprocal, quotient)
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m128i {
    let bytes = &bytes[..16];
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store(out: &mut [u8], values: __m256) {
    let out = &mut out[..LANES * 4];
    // SAFETY: 32 bytes are there; the store needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), values) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::{Lookup, Pointwise};

    #[test]
    fn vectors_equal_the_tables() {
        if !is_available() {
            return;
        }
        let normalize = Pointwise::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
        for first in [Pointwise::Unit, Pointwise::Scaled] {
            let chain = [first, normalize.clone()];
            let lookup = Lookup::new(&chain, 3);
            let formula = Formula::new(&chain, &lookup).unwrap();
            let Lookup::F32(tables) = lookup else { panic!("floats are expected") };
            for (width, height) in [(1, 1), (7, 3), (8, 2), (9, 2), (67, 29)] {
                let pixels: Vec<u8> = (0..width * height * 3).map(|at| (at * 89 % 256) as u8).collect();
                let image = Image { width, height, channels: 3, pixels };
                for (mirrored, upside_down) in [(false, false), (true, false), (false, true), (true, true)] {
                    let walk = Walk { mirrored, upside_down };
                    let mut expected = vec![0; image.pixels.len() * 4];
                    let mut got = vec![1; image.pixels.len() * 4];
                    portable::planes(&image, &tables, walk, &mut expected);
                    planes(&image, &formula, &tables, walk, &mut got);
                    assert!(got == expected, "{width}×{height} {walk:?}");
                }
            }
        }
    }
}
