//! Floats of 16 bits, rounded to the nearest (ties to even) as torch rounds them; numbers too large become infinite, and
//! NaN stays NaN.
//!
//! The scalar functions are always compiled; `avx2` and `neon` have vector versions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

#[cfg(target_arch = "x86_64")]
use avx2 as simd;
#[cfg(target_arch = "aarch64")]
use neon as simd;

/// A `float16`, as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Half(pub(crate) u16);

/// A `bfloat16`, as its bits: the upper half of a `float32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BFloat16(pub(crate) u16);

impl Half {
    pub(crate) fn of(value: f32) -> Self {
        Self(half::f16::from_f32_const(value).to_bits())
    }
}

impl BFloat16 {
    pub(crate) fn of(value: f32) -> Self {
        Self(half::bf16::from_f32_const(value).to_bits())
    }
}

/// Writes floats as `float16`, two bytes each in the machine's order.
pub(crate) fn halves(values: &[f32], out: &mut [u8]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if simd::is_available() {
        return simd::halves(values, out);
    }
    each(values, out, |value| Half::of(value).0);
}

/// Writes floats as `bfloat16`, two bytes each in the machine's order.
pub(crate) fn bfloat16s(values: &[f32], out: &mut [u8]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if simd::is_available() {
        return simd::bfloat16s(values, out);
    }
    each(values, out, |value| BFloat16::of(value).0);
}

fn each(values: &[f32], out: &mut [u8], bits: impl Fn(f32) -> u16) {
    for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = bits(*value).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_to_the_nearest_even() {
        let tiny = 2f32.powi(-24);
        for (value, expected) in [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3C00),
            (-2.0, 0xC000),
            (65504.0, 0x7BFF),
            (65519.9, 0x7BFF),
            (65520.0, 0x7C00), // half way to what is no longer finite
            (1e30, 0x7C00),
            (f32::NEG_INFINITY, 0xFC00),
            (f32::NAN, 0x7E00),
            (f32::from_bits(0x7F80_0001), 0x7E00), // a signalling one whose payload is lost
            (1.0 + 2f32.powi(-11), 0x3C00),        // a tie: to even, down
            (1.0 + 3.0 * 2f32.powi(-11), 0x3C02),  // a tie: to even, up
            (tiny, 0x0001),
            (tiny / 2.0, 0x0000), // a tie at zero
            (tiny * 0.500_1, 0x0001),
            (tiny * 1.5, 0x0002),
            (tiny * 1023.6, 0x0400), // rounds up into the normal ones
            (f32::from_bits(1), 0x0000),
        ] {
            assert_eq!(Half::of(value).0, expected, "{value:e}");
        }
    }

    #[test]
    fn bfloat16s_are_rounded_to_the_nearest_even() {
        for (bits, expected) in [
            (0x0000_0000u32, 0x0000),
            (0x8000_0000, 0x8000),
            (0x3F80_0000, 0x3F80),
            (0x3F80_8000, 0x3F80), // a tie: to even, down
            (0x3F81_8000, 0x3F82), // a tie: to even, up
            (0x3F80_8001, 0x3F81),
            (0x7F7F_FFFF, 0x7F80), // the largest becomes infinite
            (0x7F80_0000, 0x7F80),
            (0x7F80_0001, 0x7FC0), // not infinite
            (0xFFC0_0000, 0xFFC0),
            (0x0000_8000, 0x0000),
            (0x0000_8001, 0x0001),
        ] {
            assert_eq!(BFloat16::of(f32::from_bits(bits)).0, expected, "{bits:#x}");
        }
    }

    /// Random bits, so that every kind of float is among them, and the borders of each kind.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn floats() -> Vec<f32> {
        let borders = [0u32, 1, 0x007F_FFFF, 0x0080_0000, 0x3300_0000, 0x3380_0000, 0x387F_F000, 0x3880_0000]
            .into_iter()
            .chain([0x477F_EFFF, 0x477F_F000, 0x4780_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001, 0x7FC0_0000, !0]);
        let around = borders.flat_map(|bits| (0..7u32).map(move |step| bits.wrapping_add(step).wrapping_sub(3)));
        let mut state = 88_172_645_463_325_252u64;
        let random = std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32
        });
        // Half of the random ones within the range of halves: all bits alike would be so one time in eight.
        let near = |bits: u32| if bits & 1 == 0 { bits } else { bits & 0x807F_FFFF | (96 + (bits >> 24) % 50) << 23 };
        let all = around.flat_map(|bits| [bits, bits ^ 0x8000_0000]).chain(random.take(1_000_000).map(near));
        all.map(f32::from_bits).collect()
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn vectors_equal_the_scalars() {
        if !simd::is_available() {
            return;
        }
        let values = floats();
        assert!(values.iter().any(|value| value.is_nan()) && values.iter().any(|value| value.is_infinite()));
        assert!(values.iter().filter(|value| value.is_subnormal()).count() > 100);
        for length in [0, 1, 7, 8, 9, 15, 17, values.len() - 3, values.len()] {
            let values = &values[values.len() - length..];
            let (mut expected, mut got) = (vec![0; length * 2], vec![1; length * 2]);
            each(values, &mut expected, |value| Half::of(value).0);
            simd::halves(values, &mut got);
            assert!(expected == got, "halves of {length}");
            each(values, &mut expected, |value| BFloat16::of(value).0);
            simd::bfloat16s(values, &mut got);
            assert!(expected == got, "bfloat16 of {length}");
        }
    }
}
