//! Eight floats at a time to 16 bits, with NEON: bit for bit what the scalar functions give.

use std::arch::aarch64::*;

use super::{BFloat16, Half, each};

const LANES: usize = 8;

/// Eight floats.
pub(crate) type Floats = [float32x4_t; 2];

/// Every processor of this kind has NEON.
pub(crate) fn is_available() -> bool {
    true
}

/// Writes `float16` values.
pub(super) fn halves(values: &[f32], out: &mut [u8]) {
    // SAFETY: every processor of this kind has NEON.
    let done = unsafe { slice::<true>(values, out) };
    each(&values[done..], &mut out[done * 2..], |value| Half::of(value).0);
}

/// Writes `bfloat16` values.
pub(super) fn bfloat16s(values: &[f32], out: &mut [u8]) {
    // SAFETY: every processor of this kind has NEON.
    let done = unsafe { slice::<false>(values, out) };
    each(&values[done..], &mut out[done * 2..], |value| BFloat16::of(value).0);
}

/// Whole vectors; says how many values that were.
#[target_feature(enable = "neon")]
fn slice<const HALF: bool>(values: &[f32], out: &mut [u8]) -> usize {
    let (values, _) = values.as_chunks::<LANES>();
    let (out, _) = out.as_chunks_mut::<{ LANES * 2 }>();
    for (values, out) in values.iter().zip(out) {
        // SAFETY: eight floats are there; the loads need no alignment.
        let values = unsafe { [vld1q_f32(values.as_ptr()), vld1q_f32(values[4..].as_ptr())] };
        let short = if HALF { half(values) } else { to_bfloat16(values) };
        // SAFETY: 16 bytes are there; the store of bytes needs no alignment.
        unsafe { vst1q_u8(out.as_mut_ptr(), short) };
    }
    values.len() * LANES
}

/// Eight `float16` values, as their bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn half(values: Floats) -> uint8x16_t {
    let [low, high] = values.map(|four| {
        let halves: uint16x4_t;
        // SAFETY: it works on registers alone. The function for it is not in every version of Rust that may compile this.
        unsafe {
            std::arch::asm!(
                "fcvtn {halves:v}.4h, {four:v}.4s",
                halves = lateout(vreg) halves,
                four = in(vreg) four,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        halves
    });
    vreinterpretq_u8_u16(vcombine_u16(low, high))
}

/// Eight `bfloat16` values, as their bytes.
#[target_feature(enable = "neon")]
#[inline]
fn to_bfloat16(values: Floats) -> uint8x16_t {
    bfloat16_of_number(values.map(|four| {
        let bits = vreinterpretq_u32_f32(four);
        // Quiet, and small enough that rounding does not carry into the sign: its lower half is lost anyway.
        let quiet = vorrq_u32(vandq_u32(bits, vdupq_n_u32(!0xFFFF)), vdupq_n_u32(0x40_0000));
        vreinterpretq_f32_u32(vbslq_u32(vceqq_f32(four, four), bits, quiet))
    }))
}

/// Eight `bfloat16` values of floats that are not NaN, or NaNs whose lower half is 0; as their bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(crate) fn bfloat16_of_number(values: Floats) -> uint8x16_t {
    let [low, high] = values.map(|four| {
        let bits = vreinterpretq_u32_f32(four);
        let last = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        vshrn_n_u32::<16>(vaddq_u32(bits, vaddq_u32(last, vdupq_n_u32(0x7FFF))))
    });
    vreinterpretq_u8_u16(vcombine_u16(low, high))
}
