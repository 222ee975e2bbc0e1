//! Three interleaved channels to planes or pixels of any type, 8 elements at a time with AVX2, FMA and F16C: the same
//! bits as `portable`, because [`Formula`] was tried on every byte.

use std::arch::x86_64::*;

use super::Walk;
use super::formula::{Formula, Scale, UNIT};
use super::portable::{self, Stored};
use crate::{Dtype, Image, Order, narrow};

/// Elements at a time.
const LANES: usize = 8;
/// What memory is written in.
const LINE_BYTES: usize = 64;
/// As many pixels have this many bytes, and make three vectors.
const GROUP: usize = LANES * 3;

/// Whether the processor has what [`write`] needs.
pub(super) fn is_available() -> bool {
    narrow::avx2::is_available() && std::arch::is_x86_feature_detected!("fma")
}

/// Writes three channels; `tables` serve the pixels that do not fill a group. The processor has AVX2, FMA and F16C.
/// Where the elements are bytes, the formula has to be the one that changes nothing.
///
/// With `past_caches` it writes whole lines of memory without reading them first, where they begin and end as rows do.
pub(super) fn write<T: Stored>(
    image: &Image,
    formula: &Formula,
    tables: &[[T; 256]],
    order: Order,
    walk: Walk,
    past_caches: bool,
    slot: &mut [u8],
) {
    let row_bytes = image.width as usize * size_of::<T>();
    let is_in_lines = slot.as_ptr().addr().is_multiple_of(LINE_BYTES) && row_bytes.is_multiple_of(LINE_BYTES);
    if past_caches && is_in_lines && T::DTYPE != Dtype::U8 {
        write_rows::<T, true>(image, formula, tables, order, walk, slot);
        // SAFETY: every processor of this kind has it. It orders the streamed stores before the slot is reported as written.
        unsafe { _mm_sfence() };
    } else {
        write_rows::<T, false>(image, formula, tables, order, walk, slot);
    }
}

fn write_rows<T: Stored, const STREAMS: bool>(
    image: &Image,
    formula: &Formula,
    tables: &[[T; 256]],
    order: Order,
    walk: Walk,
    slot: &mut [u8],
) {
    let (width, height) = (image.width as usize, image.height as usize);
    let (fast, row_bytes) = (width / LANES * LANES, width * size_of::<T>());
    // SAFETY: the caller has seen that the processor has AVX2, FMA and F16C.
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
                    unsafe { plane_row::<T, STREAMS>(groups, vector, walk.mirrored, out) };
                    portable::plane_row(others, 3, channel, table, walk.mirrored, out_others);
                }
            }
            Order::Interleaved => {
                let out = &mut slot[y * row_bytes * 3..][..row_bytes * 3];
                let (out, out_others) = out.split_at_mut(fast * 3 * size_of::<T>());
                // SAFETY: as above.
                unsafe { pixel_row::<T, STREAMS>(groups, &vectors, walk.mirrored, out) };
                portable::pixel_row(others, tables, walk.mirrored, out_others);
            }
        }
    }
}

/// One channel of whole groups of pixels.
#[target_feature(enable = "avx2,fma,f16c")]
fn plane_row<T: Stored, const STREAMS: bool>(pixels: &[u8], vector: &Vector, mirrored: bool, out: &mut [u8]) {
    let groups = pixels.chunks_exact(GROUP);
    let out = out.chunks_exact_mut(LANES * size_of::<T>());
    // Two loops: a reversed one inside the other's closure would cost the forward one its vectors.
    if mirrored {
        for (group, out) in groups.rev().zip(out) {
            vector.write::<T, STREAMS>(group, out);
        }
    } else {
        for (group, out) in groups.zip(out) {
            vector.write::<T, STREAMS>(group, out);
        }
    }
}

/// All channels of whole groups of pixels.
#[target_feature(enable = "avx2,fma,f16c")]
fn pixel_row<T: Stored, const STREAMS: bool>(pixels: &[u8], vectors: &[Vector; 3], mirrored: bool, out: &mut [u8]) {
    let count = pixels.len() / GROUP;
    for (at, out) in out.chunks_exact_mut(GROUP * size_of::<T>()).enumerate() {
        let from = if mirrored { count - 1 - at } else { at };
        let group = &pixels[from * GROUP..][..GROUP];
        for (vector, out) in vectors.iter().zip(out.chunks_exact_mut(LANES * size_of::<T>())) {
            vector.write::<T, STREAMS>(group, out);
        }
    }
}

/// How one of three vectors is made of a group of pixels: a plane's, or the first, second or third of the pixels'.
struct Vector {
    /// Where its bytes are in the first 16 and in the last 16 of the group.
    front: __m128i,
    back: __m128i,
    scale: Scale,
    mean: __m256,
    std: __m256,
    inverse: __m256,
}

impl Vector {
    #[target_feature(enable = "avx2")]
    fn new(number: usize, formula: &Formula, order: Order, mirrored: bool) -> Self {
        let (mut front, mut back) = ([-1i8; 16], [-1i8; 16]);
        let mut channels = [0; LANES];
        for lane in 0..LANES {
            let (pixel, channel) = match order {
                Order::Planar => (lane, number),
                Order::Interleaved => ((number * LANES + lane) / 3, (number * LANES + lane) % 3),
            };
            let at = (if mirrored { LANES - 1 - pixel } else { pixel }) * 3 + channel;
            if at < 16 {
                front[lane] = at as i8
            } else {
                back[lane] = at as i8 - 8
            }
            channels[lane] = channel;
        }
        let bytes = |bytes: [i8; 16]| {
            let word = |from: usize| i64::from_le_bytes(std::array::from_fn(|next| bytes[from + next] as u8));
            _mm_set_epi64x(word(8), word(0))
        };
        let floats = |of: &dyn Fn(usize) -> f32| {
            let [a, b, c, d, e, f, g, h] = channels.map(of);
            _mm256_setr_ps(a, b, c, d, e, f, g, h)
        };
        Self {
            front: bytes(front),
            back: bytes(back),
            scale: formula.scale,
            mean: floats(&|channel| formula.mean[channel]),
            std: floats(&|channel| formula.std[channel]),
            inverse: floats(&|channel| 1.0 / formula.std[channel]),
        }
    }

    /// Writes 8 elements. To stream them, `out` has to begin at a multiple of their size: it does where [`write`] says so.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn write<T: Stored, const STREAMS: bool>(&self, group: &[u8], out: &mut [u8]) {
        let bytes = _mm_or_si128(
            _mm_shuffle_epi8(load(&group[..16]), self.front),
            _mm_shuffle_epi8(load(&group[GROUP - 16..GROUP]), self.back),
        );
        let out = &mut out[..LANES * size_of::<T>()];
        match T::DTYPE {
            // SAFETY: 8 bytes are there; the store needs no alignment.
            Dtype::U8 => unsafe { _mm_storel_epi64(out.as_mut_ptr().cast(), bytes) },
            Dtype::F32 => store::<STREAMS>(self.value(bytes), out),
            Dtype::F16 => store_half::<STREAMS>(narrow::avx2::half(self.value(bytes)), out),
            // A formula gives numbers only.
            Dtype::BF16 => store_half::<STREAMS>(narrow::avx2::bfloat16_of_number(self.value(bytes)), out),
        }
    }

    /// What the formula makes of the lower 8 bytes.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn value(&self, bytes: __m128i) -> __m256 {
        let (most, unit) = (_mm256_set1_ps(255.0), _mm256_set1_ps(UNIT));
        let value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        let value = match self.scale {
            Scale::Divided => divide(value, most, unit),
            Scale::Multiplied => _mm256_mul_ps(value, unit),
            Scale::None => value,
        };
        divide(_mm256_sub_ps(value, self.mean), self.std, self.inverse)
    }
}

/// `value / by` by its reciprocal, corrected once: the twin of the formula's.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn divide(value: __m256, by: __m256, reciprocal: __m256) -> __m256 {
    let quotient = _mm256_mul_ps(value, reciprocal);
    let rest = _mm256_fnmadd_ps(quotient, by, value);
    _mm256_fmadd_ps(rest, reciprocal, quotient)
}

#[target_feature(enable = "avx2")]
#[inline]
fn store<const STREAMS: bool>(vector: __m256, out: &mut [u8]) {
    let out = &mut out[..32];
    debug_assert!(!STREAMS || out.as_ptr().addr().is_multiple_of(32));
    match STREAMS {
        // SAFETY: 32 bytes are there, at a multiple of 32: rows begin at lines of memory, and all is written in order.
        true => unsafe { _mm256_stream_ps(out.as_mut_ptr().cast(), vector) },
        // SAFETY: 32 bytes are there; the store needs no alignment.
        false => unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), vector) },
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_half<const STREAMS: bool>(vector: __m128i, out: &mut [u8]) {
    let out = &mut out[..16];
    debug_assert!(!STREAMS || out.as_ptr().addr().is_multiple_of(16));
    match STREAMS {
        // SAFETY: 16 bytes are there, at a multiple of 16: rows begin at lines of memory, and all is written in order.
        true => unsafe { _mm_stream_si128(out.as_mut_ptr().cast(), vector) },
        // SAFETY: 16 bytes are there; the store needs no alignment.
        false => unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), vector) },
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8]) -> __m128i {
    let bytes = &bytes[..16];
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
