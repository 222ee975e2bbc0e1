//! The passes with NEON, 3 channels in the horizontal one: the same bytes as `portable`.
//!
//! All sums are exact integers, so the order does not matter.

use std::arch::aarch64::*;
use std::ops::Range;

use super::table::Table;
use super::{HALF, Input, PRECISION_BITS, Source, portable};

/// Bytes that the horizontal pass reads at once, of which two pixels are used.
const LOAD_BYTES: usize = 8;

/// Rows that the horizontal pass makes at once: they share the loads of weights.
const ROWS: usize = 4;

/// Columns of which it joins the bytes.
const COLUMNS: usize = 4;

/// Columns that the vertical pass makes at once.
const BLOCK: usize = 16;

/// One row of `out` for each row of `source`, 3 channels.
pub(super) fn horizontal(source: Source<'_>, table: &Table, columns: &Range<usize>, out: &mut [u8]) {
    let row = columns.len() * 3;
    let needed = table.needed(columns);
    // From the start of a row, the last byte that any load touches: each column reads as many pairs as the longest,
    // beyond its own span with weights of 0.
    let reach = (needed.end + 2 * table.max_pairs() - source.origin.0) * 3 + LOAD_BYTES;
    let rows = out.len() / row;
    let safe = match source.pixels.len().checked_sub(reach) {
        Some(spare) => rows.min(spare / source.stride + 1),
        None => 0,
    };
    let (fast, rest) = out.split_at_mut(safe * row);
    if safe > 0 {
        // SAFETY: every processor of this kind has NEON; `safe` rows of `reach` bytes are in `pixels`.
        unsafe {
            match table.max_pairs() {
                1 => horizontal_rows::<1>(source, table, columns, fast),
                2 => horizontal_rows::<2>(source, table, columns, fast),
                3 => horizontal_rows::<3>(source, table, columns, fast),
                _ => horizontal_rows::<0>(source, table, columns, fast),
            }
        }
    }
    // The last rows, where a load would reach beyond the picture.
    for (y, out) in rest.chunks_exact_mut(row).enumerate() {
        let pixels = &source.pixels[(safe + y) * source.stride..];
        portable::horizontal_row::<3>(pixels, source.origin.0, table, columns, out);
    }
}

/// `PAIRS` is the table's `max_pairs`, or 0 for any: with a constant trip count the loop has no branch to mispredict.
///
/// # Safety
/// For each row of `out`, `source` has all pixels that `table` names for `columns`, twice the table's `max_pairs` more,
/// and `LOAD_BYTES` after that.
#[target_feature(enable = "neon")]
unsafe fn horizontal_rows<const PAIRS: usize>(
    source: Source<'_>,
    table: &Table,
    columns: &Range<usize>,
    out: &mut [u8],
) {
    let row = columns.len() * 3;
    let rows = out.len() / row;
    for y in (0..rows).step_by(ROWS) {
        // Beyond the last row, that row is repeated: the same bytes are written twice to the same place.
        let at: [usize; ROWS] = std::array::from_fn(|next| (y + next).min(rows - 1));
        let from = at.map(|y| source.pixels[y * source.stride..].as_ptr());
        for x in (0..columns.len()).step_by(COLUMNS) {
            let count = COLUMNS.min(columns.len() - x);
            // Beyond the last column, that column is repeated: its bytes are not stored.
            let made: [_; COLUMNS] = [0, 1, 2, 3].map(|next: usize| {
                let column = columns.start + x + next.min(count - 1);
                // SAFETY: as this function requires of its caller.
                unsafe { column_of_rows::<PAIRS>(from, source.origin.0, table, column) }
            });
            for (pixels, y) in by_rows(made).into_iter().zip(at) {
                let place = &mut out[y * row + x * 3..(y + 1) * row];
                match place.first_chunk_mut() {
                    // Four bytes too many, which the next columns overwrite.
                    Some(place) => *place = pixels,
                    None => place[..count * 3].copy_from_slice(&pixels[..count * 3]),
                }
            }
        }
    }
}

/// One output column of four rows, each as r, g, b and padding: of the first two rows, and of the others.
///
/// # Safety
/// `from`, which points to the column `origin` of each row, has all pixels that `table` names for `column`, twice its
/// `max_pairs` more, and `LOAD_BYTES` after that.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn column_of_rows<const PAIRS: usize>(
    from: [*const u8; ROWS],
    origin: usize,
    table: &Table,
    column: usize,
) -> [uint8x8_t; 2] {
    // Two pixels "rgbRGB" become r, g, b, nothing; and R, G, B, nothing; in 32 bits each.
    let (first, second) = (load(&in_words(0)), load(&in_words(3)));
    let mut sums = [vdupq_n_s32(HALF); ROWS];
    let mut offset = (table.span(column).start as usize - origin) * 3;
    let weights = table.even_weights(column).as_chunks::<2>().0;
    let weights = if PAIRS > 0 { &weights[..PAIRS] } else { weights };
    for [weight, next] in weights {
        for (sum, from) in sums.iter_mut().zip(from) {
            // SAFETY: the offset is of a pixel less than `max_pairs` pairs after one that the table names; LOAD_BYTES from
            // there on can be read, as this function requires.
            let bytes = unsafe { vld1_u8(from.add(offset)) };
            let bytes = vcombine_u8(bytes, vdup_n_u8(0));
            *sum = vmlaq_n_s32(*sum, vreinterpretq_s32_u8(vqtbl1q_u8(bytes, first)), *weight);
            *sum = vmlaq_n_s32(*sum, vreinterpretq_s32_u8(vqtbl1q_u8(bytes, second)), *next);
        }
        offset += 6;
    }
    let [a, b, c, d] = sums.map(|sum| clip(sum));
    [vqmovn_u16(vcombine_u16(a, b)), vqmovn_u16(vcombine_u16(c, d))]
}

/// Where the bytes of three words of 32 bits, and one of nothing, are from byte `from` on.
const fn in_words(from: u8) -> [u8; 16] {
    const NOTHING: u8 = 0xFF;
    let mut places = [NOTHING; 16];
    (places[0], places[4], places[8]) = (from, from + 1, from + 2);
    places
}

/// Four columns of four rows as the bytes of each row, every fourth one left out: 12 bytes and 4 of nothing.
#[inline]
#[target_feature(enable = "neon")]
fn by_rows(columns: [[uint8x8_t; 2]; COLUMNS]) -> [[u8; 16]; ROWS] {
    const UPPER: [u8; 16] = [0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26, 0xFF, 0xFF, 0xFF, 0xFF];
    const LOWER: [u8; 16] = [4, 5, 6, 12, 13, 14, 20, 21, 22, 28, 29, 30, 0xFF, 0xFF, 0xFF, 0xFF];
    let [a, b, c, d] = columns;
    let rows = |two: usize, places: &[u8; 16]| {
        let columns = uint8x16x2_t(vcombine_u8(a[two], b[two]), vcombine_u8(c[two], d[two]));
        let mut bytes = [0; 16];
        // SAFETY: 16 bytes are there; the store needs no alignment.
        unsafe { vst1q_u8(bytes.as_mut_ptr(), vqtbl2q_u8(columns, load(places))) };
        bytes
    };
    [rows(0, &UPPER), rows(0, &LOWER), rows(1, &UPPER), rows(1, &LOWER)]
}

/// Shifts down to whole levels, clipped at 0; the caller clips at 255.
#[inline]
#[target_feature(enable = "neon")]
fn clip(sum: int32x4_t) -> uint16x4_t {
    vqmovun_s32(vshrq_n_s32::<{ PRECISION_BITS as i32 }>(sum))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// One row of `out`, `row` elements long, for each of `rows`.
pub(super) fn vertical(input: Input<'_>, table: &Table, rows: &Range<usize>, row: usize, out: &mut [u8]) {
    for (y, out) in rows.clone().zip(out.chunks_exact_mut(row)) {
        let blocks = row / BLOCK * BLOCK;
        let (fast, rest) = out.split_at_mut(blocks);
        // SAFETY: every processor of this kind has NEON.
        unsafe { vertical_row(input, table, y, fast) };
        if !rest.is_empty() {
            portable::vertical_part(input, table, y, blocks, rest);
        }
    }
}

/// Whole blocks of output row `y`.
#[target_feature(enable = "neon")]
fn vertical_row(input: Input<'_>, table: &Table, y: usize, out: &mut [u8]) {
    let start = (table.span(y).start as usize - input.first) * input.stride;
    for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut sums = [vdupq_n_s32(HALF); 4];
        let mut at = start + block * BLOCK;
        for weight in table.weights(y) {
            let bytes = load(input.pixels[at..].first_chunk().expect("as many rows as the table needs"));
            let (front, back) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let parts = [
                vmovl_u16(vget_low_u16(front)),
                vmovl_high_u16(front),
                vmovl_u16(vget_low_u16(back)),
                vmovl_high_u16(back),
            ];
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = vmlaq_n_s32(*sum, vreinterpretq_s32_u32(part), *weight);
            }
            at += input.stride;
        }
        let [a, b, c, d] = sums.map(|sum| clip(sum));
        let bytes = vcombine_u8(vqmovn_u16(vcombine_u16(a, b)), vqmovn_u16(vcombine_u16(c, d)));
        // SAFETY: BLOCK bytes are there; the store needs no alignment.
        unsafe { vst1q_u8(out.as_mut_ptr(), bytes) }
    }
}
