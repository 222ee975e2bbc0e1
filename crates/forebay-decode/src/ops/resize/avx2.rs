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
        // SAFETY: the caller has seen that the processor has AVX2; `safe` rows of `reach` bytes are in `pixels`.
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
/// AVX2 is there. For each row of `out`, `source` has all pixels that `table` names for `columns`, twice the table's
/// `max_pairs` more, and `LOAD_BYTES` after that.
#[target_feature(enable = "avx2")]
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
        // SAFETY: as this function requires of its caller.
        let sums = |column| unsafe { column_of_rows::<PAIRS>(from, source.origin.0, table, column) };
        let mut x = 0;
        // Four columns make 12 bytes of each row. They are stored as 16, where the row has as many.
        while x + 4 <= columns.len() {
            let first = columns.start + x;
            let left = _mm256_packus_epi16(sums(first), sums(first + 1));
            let right = _mm256_packus_epi16(sums(first + 2), sums(first + 3));
            // Rows 0 and 2 in the lower half, 1 and 3 in the upper, by columns; then by rows.
            let (left, right) =
                (_mm256_shuffle_epi32::<0b11_01_10_00>(left), _mm256_shuffle_epi32::<0b11_01_10_00>(right));
            let (upper, lower) = (_mm256_unpacklo_epi64(left, right), _mm256_unpackhi_epi64(left, right));
            let (upper, lower) = (without_fourths(upper), without_fourths(lower));
            let pixels = [
                _mm256_castsi256_si128(upper),
                _mm256_extracti128_si256::<1>(upper),
                _mm256_castsi256_si128(lower),
                _mm256_extracti128_si256::<1>(lower),
            ];
            let is_inside = (x + 4) * 3 + 4 <= row;
            for (pixels, y) in pixels.into_iter().zip(at) {
                let place = &mut out[y * row + x * 3..(y + 1) * row];
                if is_inside {
                    debug_assert!(place.len() >= 16);
                    // SAFETY: 16 bytes are there; the last four are written again with the next columns.
                    unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), pixels) };
                } else {
                    place[..8].copy_from_slice(&_mm_cvtsi128_si64(pixels).to_le_bytes());
                    place[8..12].copy_from_slice(&_mm_extract_epi32::<2>(pixels).to_le_bytes());
                }
            }
            x += 4;
        }
        for x in x..columns.len() {
            let bytes = sums(columns.start + x);
            let bytes = _mm256_packus_epi16(bytes, bytes);
            let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let pixels = [
                _mm_cvtsi128_si32(even),
                _mm_cvtsi128_si32(odd),
                _mm_extract_epi32::<1>(even),
                _mm_extract_epi32::<1>(odd),
            ];
            for (pixel, y) in pixels.into_iter().zip(at) {
                out[y * row + x * 3..][..3].copy_from_slice(&pixel.to_le_bytes()[..3]);
            }
        }
    }
}

/// One output column of four rows, in 16 bits: rows 0 and 2 in the lower half, 1 and 3 in the upper, each as r, g, b
/// and padding.
///
/// # Safety
/// AVX2 is there. `from`, which points to the column `origin` of each row, has all pixels that `table` names for
/// `column`, twice its `max_pairs` more, and `LOAD_BYTES` after that.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn column_of_rows<const PAIRS: usize>(
    from: [*const u8; ROWS],
    origin: usize,
    table: &Table,
    column: usize,
) -> __m256i {
    // Two pixels "rgbRGB" become pairs of 16 bits: r R, g G, b B, and padding.
    let spread = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    let (zero, half) = (_mm256_setzero_si256(), _mm256_set1_epi32(HALF));
    let (mut high_a, mut high_b, mut low_a, mut low_b) = (zero, zero, half, half);
    let mut offset = (table.span(column).start as usize - origin) * 3;
    let pairs = table.even_pairs(column);
    let pairs = if PAIRS > 0 { &pairs[..PAIRS] } else { pairs };
    for pair in pairs {
        let high = _mm256_set1_epi32(pair.high);
        let low = _mm256_set1_epi32(pair.low);
        // SAFETY: the offset is of a pixel less than `max_pairs` pairs after one that the table names; LOAD_BYTES from
        // there on can be read, as this function requires.
        let load = |row: usize| unsafe { from[row].add(offset).cast::<i64>().read_unaligned() };
        // Blended, because only one unit can insert.
        let two = |a, b| _mm256_blend_epi32::<0xF0>(_mm256_set1_epi64x(load(a)), _mm256_set1_epi64x(load(b)));
        let (first, second) = (_mm256_shuffle_epi8(two(0, 1), spread), _mm256_shuffle_epi8(two(2, 3), spread));
        high_a = _mm256_add_epi32(high_a, _mm256_madd_epi16(first, high));
        high_b = _mm256_add_epi32(high_b, _mm256_madd_epi16(second, high));
        low_a = _mm256_add_epi32(low_a, _mm256_madd_epi16(first, low));
        low_b = _mm256_add_epi32(low_b, _mm256_madd_epi16(second, low));
        offset += 6;
    }
    _mm256_packs_epi32(join(high_a, low_a), join(high_b, low_b))
}

/// Removes every fourth byte in both halves: 12 bytes and 4 of padding.
#[inline]
#[target_feature(enable = "avx2")]
fn without_fourths(bytes: __m256i) -> __m256i {
    let keep = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(keep))
}

/// Joins the sums of both parts, and rounds down to whole levels, not clipped yet.
#[inline]
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
            // The second weight of a last pair may be 0; any existing row will do for it.
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
