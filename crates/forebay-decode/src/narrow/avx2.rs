//! Eight floats at a time to 16 bits, with AVX2 and F16C: bit for bit what the scalar functions give.

use std::arch::x86_64::*;

use super::{BFloat16, Half, each};

const LANES: usize = 8;

/// Whether the processor has what this module needs.
pub(crate) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
}

/// Writes `float16` values. The processor has AVX2 and F16C.
pub(super) fn halves(values: &[f32], out: &mut [u8]) {
    // SAFETY: the caller has seen that the processor has AVX2 and F16C.
    let done = unsafe { slice::<true>(values, out) };
    each(&values[done..], &mut out[done * 2..], |value| Half::of(value).0);
}

/// Writes `bfloat16` values. The processor has AVX2 and F16C.
pub(super) fn bfloat16s(values: &[f32], out: &mut [u8]) {
    // SAFETY: the caller has seen that the processor has AVX2 and F16C.
    let done = unsafe { slice::<false>(values, out) };
    each(&values[done..], &mut out[done * 2..], |value| BFloat16::of(value).0);
}

/// Whole vectors; says how many values that were.
#[target_feature(enable = "avx2,f16c")]
fn slice<const HALF: bool>(values: &[f32], out: &mut [u8]) -> usize {
    let (values, _) = values.as_chunks::<LANES>();
    let (out, _) = out.as_chunks_mut::<{ LANES * 2 }>();
    for (values, out) in values.iter().zip(out) {
        // SAFETY: eight floats are there; the load needs no alignment.
        let values = unsafe { _mm256_loadu_ps(values.as_ptr()) };
        let short = if HALF { half(values) } else { to_bfloat16(values) };
        // SAFETY: 16 bytes are there; the store needs no alignment.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), short) };
    }
    values.len() * LANES
}

/// Eight `float16` values.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(crate) fn half(values: __m256) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values)
}

/// Eight `bfloat16` values.
#[target_feature(enable = "avx2")]
#[inline]
fn to_bfloat16(values: __m256) -> __m128i {
    let bits = _mm256_castps_si256(values);
    // Quiet, and small enough that rounding does not carry into the sign: its lower half is lost anyway.
    let quiet = _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(!0xFFFF)), _mm256_set1_epi32(0x40_0000));
    let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    let bits = _mm256_blendv_epi8(bits, quiet, is_nan);
    bfloat16_of_number(_mm256_castsi256_ps(bits))
}

/// Eight `bfloat16` values of floats that are not NaN, or NaNs whose lower half is 0.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn bfloat16_of_number(values: __m256) -> __m128i {
    let bits = _mm256_castps_si256(values);
    let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF)));
    // The upper halves of four numbers to the lower quarter of each half of the register, and those together.
    let upper = _mm_set_epi64x(-1, 0x0F0E_0B0A_0706_0302);
    let packed = _mm256_shuffle_epi8(rounded, _mm256_broadcastsi128_si256(upper));
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b00_00_10_00>(packed))
}
