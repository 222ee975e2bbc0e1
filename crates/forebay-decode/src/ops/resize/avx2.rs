//! The passes with AVX2, 3 channels in the horizontal one: the same bytes as `portable`.
//!
//! A weight of 22 bits does not fit the 16-bit multiplication that sums pairs (`vpmaddwd`), so each is split into a
//! high and a low part, summed apart and joined at the end. All sums are exact integers, so the order does not matter.

use std::arch::x86_64::*;
use std::ops::Range;

use super::table::{LOW_BITS, Table};
use super::{HALF, Input, PRECISION_BITS, Source, portable};

/// Bytes that the horizontal pass reads at once, of which two pixels are used.
const LOAD_BYTES: usize = 8;

/// Rows that the horizontal pass makes at once: they share the loads of weights.
const ROWS: usize = 4;

/// Columns that the vertical pass makes at once.
const BLOCK: usize = 32;

/// One row of `out` for each row of `source`, 3 channels. The processor has AVX2.
pub(super) fn horizontal(source: Source<'_>, table: &Table, columns: &Range<usize>, out: &mut [u8]) {
    let row = columns.len() * 3;
    let needed = table.needed(columns);
    // From the start of a row, the last byte that any load touches: an odd count of weights reads one pixel more.
    let reach = (needed.end - source.origin.0) * 3 + 3 + LOAD_BYTES;
    let rows = out.len() / row;
    let safe = match source.pixels.len().checked_sub(reach) {
        Some(spare) => rows.min(spare / source.stride + 1),
        None => 0,
    };
    let (fast, rest) = out.split_at_mut(safe * row);
    if safe > 0 {
        // SAFETY: the caller has seen that the processor has AVX2; `safe` rows of `reach` bytes are in `pixels`.
        unsafe { horizontal_rows(source, table, columns, fast) };
    }
    // The last row, where a load would reach beyond the picture.
    for (y, out) in rest.chunks_exact_mut(row).enumerate() {
        let pixels = &source.pixels[(safe + y) * source.stride..];
        portable::horizontal_row::<3>(pixels, source.origin.0, table, columns, out);
    }
}

/// # Safety
/// AVX2 is there. For each row of `out`, `source` has all pixels that `table` names for `columns`, one more, and
/// `LOAD_BYTES` after that.
#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows(source: Source<'_>, table: &Table, columns: &Range<usize>, out: &mut [u8]) {
    let row = columns.len() * 3;
    let rows = out.len() / row;
    // Two pixels "rgbRGB" become pairs of 16 bits: r R, g G, b B, and nothing.
    let spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    let half = _mm256_set1_epi32(HALF);
    for y in (0..rows).step_by(ROWS) {
        // Beyond the last row, that row again: the same bytes are written twice to the same place.
        let at: [usize; ROWS] = std::array::from_fn(|next| (y + next).min(rows - 1));
        let from = at.map(|y| source.pixels[y * source.stride..].as_ptr());
        for (x, column) in columns.clone().enumerate() {
            let mut offset = (table.span(column).start as usize - source.origin.0) * 3;
            let zero = _mm256_setzero_si256();
            let (mut high_a, mut high_b, mut low_a, mut low_b) = (zero, zero, half, half);
            for pair in table.pairs(column) {
                let high = _mm256_set1_epi32(pair.high);
                let low = _mm256_set1_epi32(pair.low);
                // SAFETY: the offset is of a pixel that the table names or the one after the last; LOAD_BYTES from
                // there on are in `pixels`, as this function requires.
                let (first, second) = unsafe {
                    let load = |row: usize| _mm_loadl_epi64(from[row].add(offset).cast());
                    (_mm256_set_m128i(load(1), load(0)), _mm256_set_m128i(load(3), load(2)))
                };
                let (first, second) = (_mm256_shuffle_epi8(first, spread), _mm256_shuffle_epi8(second, spread));
                high_a = _mm256_add_epi32(high_a, _mm256_madd_epi16(first, high));
                high_b = _mm256_add_epi32(high_b, _mm256_madd_epi16(second, high));
                low_a = _mm256_add_epi32(low_a, _mm256_madd_epi16(first, low));
                low_b = _mm256_add_epi32(low_b, _mm256_madd_epi16(second, low));
                offset += 6;
            }
            // Rows 0 and 2 in the lower half, 1 and 3 in the upper.
            let bytes = _mm256_packs_epi32(join(high_a, low_a), join(high_b, low_b));
            let bytes = _mm256_packus_epi16(bytes, bytes);
            let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let pixels = [
                _mm_cvtsi128_si32(even),
                _mm_cvtsi128_si32(odd),
                _mm_extract_epi32::<1>(even),
                _mm_extract_epi32::<1>(odd),
            ];
            let last = x + 1 == columns.len();
            for (pixel, y) in pixels.into_iter().zip(at) {
                let place = y * row + x * 3;
                if last {
                    out[place..place + 3].copy_from_slice(&pixel.to_le_bytes()[..3]);
                } else {
                    debug_assert!(place + 4 <= out.len());
                    // SAFETY: `y` is a row of `out` and `x` not its last pixel, so four bytes are there; the fourth is
                    // written again with the next pixel.
                    unsafe { out.as_mut_ptr().add(place).cast::<i32>().write_unaligned(pixel.to_le()) };
                }
            }
        }
    }
}

/// Joins the sums of both parts, and rounds down to whole levels, not clipped yet.
#[target_feature(enable = "avx2")]
fn join(high: __m256i, low: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32::<{ LOW_BITS as i32 }>(high), low);
    _mm256_srai_epi32::<{ PRECISION_BITS as i32 }>(sum)
}

/// One row of `out`, `row` elements long, for each of `rows`. The processor has AVX2.
pub(super) fn vertical(input: Input<'_>, table: &Table, rows: &Range<usize>, row: usize, out: &mut [u8]) {
    for (y, out) in rows.clone().zip(out.chunks_exact_mut(row)) {
        let blocks = row / BLOCK * BLOCK;
        let (fast, rest) = out.split_at_mut(blocks);
        if blocks > 0 {
            // SAFETY: the caller has seen that the processor has AVX2.
            unsafe { vertical_row(input, table, y, fast) };
        }
        if !rest.is_empty() {
            portable::vertical_part(input, table, y, blocks, rest);
        }
    }
}

/// Whole blocks of output row `y`.
#[target_feature(enable = "avx2")]
fn vertical_row(input: Input<'_>, table: &Table, y: usize, out: &mut [u8]) {
    let span = table.span(y);
    let start = (span.start as usize - input.first) * input.stride;
    let last = start + (span.len as usize - 1) * input.stride;
    let zero = _mm256_setzero_si256();
    for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let mut high = [zero; 4];
        let mut low = [_mm256_set1_epi32(HALF); 4];
        let mut at = start + block * BLOCK;
        for pair in table.pairs(y) {
            let above = load(&input.pixels[at..]);
            // The second weight of a last pair may be 0; its row is then any row, but one that is there.
            let below = load(&input.pixels[(at + input.stride).min(last + block * BLOCK)..]);
            let (front, back) = (_mm256_unpacklo_epi8(above, below), _mm256_unpackhi_epi8(above, below));
            // Bytes a b, with zeros between them, are pairs of 16 bits.
            let pairs = [
                _mm256_unpacklo_epi8(front, zero),
                _mm256_unpackhi_epi8(front, zero),
                _mm256_unpacklo_epi8(back, zero),
                _mm256_unpackhi_epi8(back, zero),
            ];
            let (weight_high, weight_low) = (_mm256_set1_epi32(pair.high), _mm256_set1_epi32(pair.low));
            for part in 0..4 {
                high[part] = _mm256_add_epi32(high[part], _mm256_madd_epi16(pairs[part], weight_high));
                low[part] = _mm256_add_epi32(low[part], _mm256_madd_epi16(pairs[part], weight_low));
            }
            at += 2 * input.stride;
        }
        let front = _mm256_packs_epi32(join(high[0], low[0]), join(high[1], low[1]));
        let back = _mm256_packs_epi32(join(high[2], low[2]), join(high[3], low[3]));
        store(out, _mm256_packus_epi16(front, back));
    }
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    let bytes = &bytes[..BLOCK];
    // SAFETY: BLOCK bytes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn store(out: &mut [u8], bytes: __m256i) {
    let out = &mut out[..BLOCK];
    // SAFETY: BLOCK bytes are there; the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) }
}
