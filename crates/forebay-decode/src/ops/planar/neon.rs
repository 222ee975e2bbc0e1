//! The passes with NEON: the same bytes as `portable`. All sums are exact integers, so the order does not matter.

use std::arch::aarch64::*;

use super::colour::{BLUE, GREEN_BLUE, GREEN_RED, RED};
use super::table::{HALF, LANES, PRECISION_BITS, Table};
use super::{Rows, portable};

/// Samples that the horizontal pass loads at once, for four pixels.
const LOADED: usize = 16;

/// Samples of each pixel that it uses of them: two pairs.
const USED: usize = 4;

/// Columns that the vertical pass makes at once.
const BLOCK: usize = 16;

/// See `planar::horizontal`.
pub(super) fn horizontal(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    // As far as the last row is read.
    let reach = table.needed().end - source.first.0 + table.pair_count() * 2 + LOADED;
    let has_room = source.samples.len() >= count.saturating_sub(1) * source.stride + reach;
    // Pixels too far apart to be found in one load, or made of too many samples: a picture is made much smaller, more
    // than decoding could.
    if table.max_offset() as usize + USED > LOADED || !has_room {
        return portable::horizontal(source, table, count, out);
    }
    // SAFETY: every processor of this kind has NEON. Four pixels begin with a sample that the table needs; from there on
    // LOADED are loaded, and again from every USED of `pair_count * 2`.
    unsafe {
        match table.pair_count() {
            2 => horizontal_rows::<1>(source, table, count, out),
            4 => horizontal_rows::<2>(source, table, count, out),
            _ => horizontal_rows::<0>(source, table, count, out),
        }
    }
}

/// `LOADS` is half of the table's `pair_count`, or 0 for any: weights of a loop whose turns are known stay in registers.
///
/// # Safety
/// There are samples as far as `horizontal` looks.
#[target_feature(enable = "neon")]
unsafe fn horizontal_rows<const LOADS: usize>(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    for (group, starts) in table.starts().iter().enumerate() {
        let pairs = table.group_pairs(group).as_chunks::<2>().0;
        let pairs = if LOADS > 0 { &pairs[..LOADS] } else { pairs };
        let places = spread(table.offsets(group));
        let from = [starts[0], starts[4]].map(|start| start as usize - source.first.0);
        for y in 0..count {
            let row = source.samples.as_ptr().wrapping_add(y * source.stride);
            let half = |half: usize| {
                let mut from = row.wrapping_add(from[half]);
                // Of both weights of a pair by themselves: of the first two lanes, and of the others.
                let mut sums = [vdupq_n_s32(0); 2];
                for weights in pairs {
                    // SAFETY: the function's own condition.
                    let samples = unsafe { vld1q_u8(from) };
                    for (weights, places) in weights.iter().zip(places[half]) {
                        let samples = vreinterpretq_s16_u8(vqtbl1q_u8(samples, places));
                        let weights = load_pairs(&weights.as_chunks::<4>().0[half]);
                        sums[0] = vmlal_s16(sums[0], vget_low_s16(samples), vget_low_s16(weights));
                        sums[1] = vmlal_high_s16(sums[1], samples, weights);
                    }
                    from = from.wrapping_add(USED);
                }
                clip(vaddq_s32(vpaddq_s32(sums[0], sums[1]), vdupq_n_s32(HALF)))
            };
            let pixels = vqmovn_u16(vcombine_u16(half(0), half(1)));
            let mut bytes = [0; LANES];
            // SAFETY: LANES bytes are there; the store needs no alignment.
            unsafe { vst1_u8(bytes.as_mut_ptr(), pixels) };
            let place = &mut out[y * table.len() + group * LANES..(y + 1) * table.len()];
            match place.first_chunk_mut() {
                Some(place) => *place = bytes,
                None => place.copy_from_slice(&bytes[..place.len()]),
            }
        }
    }
}

/// What finds, for four lanes and the other four, each lane's first pair among loaded samples, in 16 bits each; and its
/// second.
#[target_feature(enable = "neon")]
fn spread(offsets: &[u8; LANES]) -> [[uint8x16_t; 2]; 2] {
    const NOTHING: u8 = 0xFF;
    [0, 4].map(|lane| {
        [0, 2].map(|from| {
            let places: [u8; LOADED] = std::array::from_fn(|byte| match byte % 4 {
                0 => offsets[lane + byte / 4] + from,
                2 => offsets[lane + byte / 4] + from + 1,
                _ => NOTHING,
            });
            load(&places)
        })
    })
}

/// The weights of four pairs.
#[target_feature(enable = "neon")]
fn load_pairs(pairs: &[i32; 4]) -> int16x8_t {
    // SAFETY: four pairs are there; the load needs no alignment.
    unsafe { vreinterpretq_s16_s32(vld1q_s32(pairs.as_ptr())) }
}

#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Down from the weights' fractional bits, not below 0; the caller clips at 255.
#[target_feature(enable = "neon")]
fn clip(sum: int32x4_t) -> uint16x4_t {
    vqshrun_n_s32::<{ PRECISION_BITS as i32 }>(sum)
}

/// See `planar::vertical`.
pub(super) fn vertical(source: Rows<'_>, table: &Table, columns: usize, out: &mut [u8]) {
    // Rows are made from the first to the last, so what is written beyond one is the next one's place.
    for y in 0..table.len() {
        let length = columns.next_multiple_of(BLOCK);
        // SAFETY: every processor of this kind has NEON.
        unsafe { vertical_row(source, table, y, &mut out[y * columns..][..length]) };
    }
}

/// Output row `y`, whole blocks.
#[target_feature(enable = "neon")]
fn vertical_row(source: Rows<'_>, table: &Table, y: usize, out: &mut [u8]) {
    let start = (table.start(y) - source.first.1) * source.stride;
    // Beyond the rows that are needed all weights are 0: any row will do, but one that is there.
    let last = (table.needed().len() - 1) * source.stride;
    for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut sums = [vdupq_n_s32(HALF); 4];
        let mut row = start;
        for pair in table.pairs(y) {
            for weight in [pair as i16, (pair >> 16) as i16] {
                let samples = source.samples[row.min(last) + block * BLOCK..].first_chunk().expect("slack behind rows");
                let samples = load(samples);
                let front = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(samples)));
                let back = vreinterpretq_s16_u16(vmovl_high_u8(samples));
                sums[0] = vmlal_n_s16(sums[0], vget_low_s16(front), weight);
                sums[1] = vmlal_high_n_s16(sums[1], front, weight);
                sums[2] = vmlal_n_s16(sums[2], vget_low_s16(back), weight);
                sums[3] = vmlal_high_n_s16(sums[3], back, weight);
                row += source.stride;
            }
        }
        let [a, b, c, d] = sums.map(|sum| clip(sum));
        let bytes = vcombine_u8(vqmovn_u16(vcombine_u16(a, b)), vqmovn_u16(vcombine_u16(c, d)));
        // SAFETY: BLOCK bytes are there; the store needs no alignment.
        unsafe { vst1q_u8(out.as_mut_ptr(), bytes) }
    }
}

/// Pixels whose colours are computed at once.
const PIXELS: usize = 16;

/// See `colour::convert`, as many as are whole [`PIXELS`]; gives how many were done.
pub(super) fn convert(planes: [&[u8]; 3], out: &mut [u8]) -> usize {
    let [luma, blue, red] = planes.map(|plane| plane.as_chunks::<PIXELS>().0);
    let out = out.as_chunks_mut::<{ PIXELS * 3 }>().0;
    let count = luma.len().min(blue.len()).min(red.len()).min(out.len());
    // SAFETY: every processor of this kind has NEON.
    unsafe { convert_pixels(luma, blue, red, out) };
    count * PIXELS
}

#[target_feature(enable = "neon")]
fn convert_pixels(luma: &[[u8; 16]], blue: &[[u8; 16]], red: &[[u8; 16]], out: &mut [[u8; 48]]) {
    for (((luma, blue), red), out) in luma.iter().zip(blue).zip(red).zip(out) {
        let [y, cb, cr] = [luma, blue, red].map(|samples| load(samples));
        let front = eight(vget_low_u8(y), vget_low_u8(cb), vget_low_u8(cr));
        let back = eight(vget_high_u8(y), vget_high_u8(cb), vget_high_u8(cr));
        let [r, g, b] = [0, 1, 2].map(|channel| vcombine_u8(front[channel], back[channel]));
        // SAFETY: 48 bytes are there; the store needs no alignment.
        unsafe { vst3q_u8(out.as_mut_ptr(), uint8x16x3_t(r, g, b)) };
    }
}

/// Red, green and blue of eight pixels.
#[target_feature(enable = "neon")]
#[inline]
fn eight(y: uint8x8_t, cb: uint8x8_t, cr: uint8x8_t) -> [uint8x8_t; 3] {
    let wide = |bytes| vreinterpretq_s16_u16(vmovl_u8(bytes));
    // As `part` and `whole` of `colour::convert`.
    let part = |chroma, factor: i16| vqrdmulhq_n_s16(chroma, factor);
    let whole = |sum| vrshrq_n_s16::<4>(sum);
    let y = wide(y);
    let [cb, cr] = [cb, cr].map(|chroma| vshlq_n_s16::<7>(vsubq_s16(wide(chroma), vdupq_n_s16(128))));
    let r = vaddq_s16(y, whole(part(cr, RED)));
    let g = vsubq_s16(y, whole(vaddq_s16(part(cb, GREEN_BLUE), part(cr, GREEN_RED))));
    let b = vaddq_s16(y, whole(part(cb, BLUE)));
    [r, g, b].map(|colour| vqmovun_s16(colour))
}
