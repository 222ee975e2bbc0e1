//! Three interleaved channels to planes or pixels of any type, 8 elements at a time with NEON: the same bits as
//! `portable`, because [`Formula`] was tried on every byte.

use std::arch::aarch64::*;

use super::Walk;
use super::formula::{Formula, Scale, UNIT};
use super::portable::{self, Stored};
use crate::narrow::neon::{Floats, bfloat16_of_number, half};
use crate::{Dtype, Image, Order};

/// Elements at a time.
const LANES: usize = 8;
/// As many pixels have this many bytes, and make three vectors.
const GROUP: usize = LANES * 3;

/// Every processor of this kind has NEON.
pub(super) fn is_available() -> bool {
    true
}

/// Writes three channels; `tables` serve the pixels that do not fill a group. Where the elements are bytes, the formula
/// has to be the one that changes nothing.
///
/// `past_caches` changes nothing: stable Rust has no store for it, and these processors are said to notice long runs of
/// writes by themselves (not measured).
pub(super) fn write<T: Stored>(
    image: &Image,
    formula: &Formula,
    tables: &[[T; 256]],
    order: Order,
    walk: Walk,
    _past_caches: bool,
    slot: &mut [u8],
) {
    let (width, height) = (image.width as usize, image.height as usize);
    let (fast, row_bytes) = (width / LANES * LANES, width * size_of::<T>());
    // SAFETY: every processor of this kind has NEON.
    let vectors = unsafe { [0, 1, 2].map(|number| Vector::new(number, formula, order, walk.mirrored)) };
    for y in 0..height {
        let from = if walk.upside_down { height - 1 - y } else { y };
        let pixels = &image.pixels[from * width * 3..][..width * 3];
        // Mirrored, the last pixels come first.
        let (first, last) = if walk.mirrored { pixels.split_at((width - fast) * 3) } else { pixels.split_at(fast * 3) };
        let (groups, others) = if walk.mirrored { (last, first) } else { (first, last) };
        match order {
            Order::Planar => {
                for (channel, (vector, table)) in vectors.iter().zip(tables).enumerate() {
                    let out = &mut slot[(channel * height + y) * row_bytes..][..row_bytes];
                    let (out, out_others) = out.split_at_mut(fast * size_of::<T>());
                    // SAFETY: as above.
                    unsafe { plane_row::<T>(groups, vector, walk.mirrored, out) };
                    portable::plane_row(others, 3, channel, table, walk.mirrored, out_others);
                }
            }
            Order::Interleaved => {
                let out = &mut slot[y * row_bytes * 3..][..row_bytes * 3];
                let (out, out_others) = out.split_at_mut(fast * 3 * size_of::<T>());
                // SAFETY: as above.
                unsafe { pixel_row::<T>(groups, &vectors, walk.mirrored, out) };
                portable::pixel_row(others, tables, walk.mirrored, out_others);
            }
        }
    }
}

/// One channel of whole groups of pixels.
#[target_feature(enable = "neon")]
fn plane_row<T: Stored>(pixels: &[u8], vector: &Vector, mirrored: bool, out: &mut [u8]) {
    let groups = pixels.as_chunks::<GROUP>().0;
    let out = out.chunks_exact_mut(LANES * size_of::<T>());
    if mirrored {
        for (group, out) in groups.iter().rev().zip(out) {
            vector.write::<T>(group, out);
        }
    } else {
        for (group, out) in groups.iter().zip(out) {
            vector.write::<T>(group, out);
        }
    }
}

/// All channels of whole groups of pixels.
#[target_feature(enable = "neon")]
fn pixel_row<T: Stored>(pixels: &[u8], vectors: &[Vector; 3], mirrored: bool, out: &mut [u8]) {
    let groups = pixels.as_chunks::<GROUP>().0;
    for (at, out) in out.chunks_exact_mut(GROUP * size_of::<T>()).enumerate() {
        let group = &groups[if mirrored { groups.len() - 1 - at } else { at }];
        for (vector, out) in vectors.iter().zip(out.chunks_exact_mut(LANES * size_of::<T>())) {
            vector.write::<T>(group, out);
        }
    }
}

/// How one of three vectors is made of a group of pixels: a plane's, or the first, second or third of the pixels'.
struct Vector {
    /// Where its bytes are among the first 16 of the group, followed by the last 16.
    places: uint8x8_t,
    scale: Scale,
    mean: Floats,
    std: Floats,
    inverse: Floats,
}

impl Vector {
    #[target_feature(enable = "neon")]
    fn new(number: usize, formula: &Formula, order: Order, mirrored: bool) -> Self {
        let (mut places, mut channels) = ([0u8; LANES], [0; LANES]);
        for lane in 0..LANES {
            let (pixel, channel) = match order {
                Order::Planar => (lane, number),
                Order::Interleaved => ((number * LANES + lane) / 3, (number * LANES + lane) % 3),
            };
            let at = (if mirrored { LANES - 1 - pixel } else { pixel }) * 3 + channel;
            // The last 16 begin with byte 8 of the group.
            places[lane] = if at < 16 { at } else { at + 8 } as u8;
            channels[lane] = channel;
        }
        let floats = |of: &dyn Fn(usize) -> f32| {
            let values = channels.map(of);
            // SAFETY: eight floats are there; the loads need no alignment.
            unsafe { [vld1q_f32(values.as_ptr()), vld1q_f32(values[4..].as_ptr())] }
        };
        Self {
            // SAFETY: 8 bytes are there; the load needs no alignment.
            places: unsafe { vld1_u8(places.as_ptr()) },
            scale: formula.scale,
            mean: floats(&|channel| formula.mean[channel]),
            std: floats(&|channel| formula.std[channel]),
            inverse: floats(&|channel| 1.0 / formula.std[channel]),
        }
    }

    /// Writes 8 elements.
    #[target_feature(enable = "neon")]
    #[inline]
    fn write<T: Stored>(&self, group: &[u8; GROUP], out: &mut [u8]) {
        // SAFETY: 16 bytes are there, and again from byte 8 on; the loads need no alignment.
        let group = unsafe { uint8x16x2_t(vld1q_u8(group.as_ptr()), vld1q_u8(group[GROUP - 16..].as_ptr())) };
        let bytes = vqtbl2_u8(group, self.places);
        let out = &mut out[..LANES * size_of::<T>()];
        match T::DTYPE {
            // SAFETY: 8 bytes are there; the store needs no alignment.
            Dtype::U8 => unsafe { vst1_u8(out.as_mut_ptr(), bytes) },
            Dtype::F32 => {
                let [low, high] = self.value(bytes).map(|four| vreinterpretq_u8_f32(four));
                store(low, &mut out[..16]);
                store(high, &mut out[16..]);
            }
            Dtype::F16 => store(half(self.value(bytes)), out),
            // A formula gives numbers only.
            Dtype::BF16 => store(bfloat16_of_number(self.value(bytes)), out),
        }
    }

    /// What the formula makes of 8 bytes.
    #[target_feature(enable = "neon")]
    #[inline]
    fn value(&self, bytes: uint8x8_t) -> Floats {
        let (most, unit) = (vdupq_n_f32(255.0), vdupq_n_f32(UNIT));
        let words = vmovl_u8(bytes);
        let low = vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)));
        let high = vcvtq_f32_u32(vmovl_high_u16(words));
        let value = |four: float32x4_t, part: usize| {
            let four = match self.scale {
                Scale::Divided => divide(four, most, unit),
                Scale::Multiplied => vmulq_f32(four, unit),
                Scale::None => four,
            };
            divide(vsubq_f32(four, self.mean[part]), self.std[part], self.inverse[part])
        };
        [value(low, 0), value(high, 1)]
    }
}

/// `value / by` by its reciprocal, corrected once: the twin of the formula's.
#[target_feature(enable = "neon")]
#[inline]
fn divide(value: float32x4_t, by: float32x4_t, reciprocal: float32x4_t) -> float32x4_t {
    let quotient = vmulq_f32(value, reciprocal);
    let rest = vfmsq_f32(value, quotient, by);
    vfmaq_f32(quotient, rest, reciprocal)
}

#[target_feature(enable = "neon")]
#[inline]
fn store(bytes: uint8x16_t, out: &mut [u8]) {
    let out = &mut out[..16];
    // SAFETY: 16 bytes are there; the store of bytes needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), bytes) }
}
