//! The passes with AVX2: the same bytes as `portable`. All sums are exact integers, so the order does not matter.

use std::arch::x86_64::*;

use super::table::{HALF, LANES, PRECISION_BITS, Table};
use super::{Rows, portable};

/// Samples that the horizontal pass takes at once for each pixel: two pairs.
const TAKEN: usize = 4;

/// Columns that the vertical pass makes at once.
const BLOCK: usize = 32;

/// See `planar::horizontal`. The processor has AVX2.
pub(super) fn horizontal(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    if count == 0 {
        return;
    }
    // As far as the last row is read.
    let reach = table.needed().end - source.first.0 + table.pair_count() * 2 + TAKEN;
    assert!(source.samples.len() >= (count - 1) * source.stride + reach, "room to read beyond the last sample");
    // SAFETY: the caller has seen that the processor has AVX2. A pixel begins with a sample that the table needs, and
    // takes `pair_count * 2` from there on.
    unsafe { horizontal_rows(source, table, count, out) }
}

/// # Safety
/// AVX2 is there, and samples as `horizontal` asserts it.
#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    // Bytes a b c d to pairs of 16 bits: a b, and c d.
    let lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    let upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    let half = _mm256_set1_epi32(HALF);
    for group in 0..table.len().div_ceil(LANES) {
        let pairs = table.group_pairs(group);
        let starts = load(table.group_starts(group));
        let starts = _mm256_sub_epi32(starts, _mm256_set1_epi32(source.first.0 as i32));
        for y in 0..count {
            // SAFETY: the row begins inside the samples.
            let mut at = unsafe { source.samples.as_ptr().add(y * source.stride) };
            let mut sum = half;
            for [first, second] in pairs.as_chunks::<2>().0 {
                // SAFETY: the function's own condition, for each lane.
                let taken = unsafe { _mm256_i32gather_epi32::<1>(at.cast(), starts) };
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(taken, lower), load(first)));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(taken, upper), load(second)));
                at = at.wrapping_add(TAKEN);
            }
            let sum = _mm256_srai_epi32::<{ PRECISION_BITS as i32 }>(sum);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            let bytes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words)).to_le_bytes();
            let place = &mut out[y * table.len() + group * LANES..(y + 1) * table.len()];
            match place.first_chunk_mut() {
                Some(place) => *place = bytes,
                None => place.copy_from_slice(&bytes[..place.len()]),
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn load(lanes: &[i32; LANES]) -> __m256i {
    // SAFETY: eight lanes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

/// See `planar::vertical`. The processor has AVX2.
pub(super) fn vertical(source: Rows<'_>, table: &Table, columns: usize, out: &mut [u8]) {
    for (y, out) in out.chunks_exact_mut(columns).take(table.len()).enumerate() {
        let blocks = columns / BLOCK * BLOCK;
        let (fast, rest) = out.split_at_mut(blocks);
        if blocks > 0 {
            // SAFETY: the caller has seen that the processor has AVX2.
            unsafe { vertical_row(source, table, y, fast) };
        }
        if !rest.is_empty() {
            portable::vertical_part(source, table, y, blocks, rest);
        }
    }
}

/// Whole blocks of output row `y`.
#[target_feature(enable = "avx2")]
fn vertical_row(source: Rows<'_>, table: &Table, y: usize, out: &mut [u8]) {
    let zero = _mm256_setzero_si256();
    let start = (table.start(y) - source.first.1) * source.stride;
    // Beyond the rows that are needed all weights are 0: any row will do, but one that is there.
    let last = (table.needed().len() - 1) * source.stride;
    for (block, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut sums = [_mm256_set1_epi32(HALF); 4];
        let mut row = start;
        for pair in table.pairs(y) {
            let at = |row: usize| &source.samples[row.min(last) + block * BLOCK..][..BLOCK];
            let (above, below) = (load_block(at(row)), load_block(at(row + source.stride)));
            let (front, back) = (_mm256_unpacklo_epi8(above, below), _mm256_unpackhi_epi8(above, below));
            // Bytes a b, with zeros between them, are pairs of 16 bits.
            let parts = [
                _mm256_unpacklo_epi8(front, zero),
                _mm256_unpackhi_epi8(front, zero),
                _mm256_unpacklo_epi8(back, zero),
                _mm256_unpackhi_epi8(back, zero),
            ];
            let pair = _mm256_set1_epi32(pair);
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(part, pair));
            }
            row += 2 * source.stride;
        }
        let [a, b, c, d] = sums.map(|sum| _mm256_srai_epi32::<{ PRECISION_BITS as i32 }>(sum));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // SAFETY: BLOCK bytes are there; the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) }
    }
}

#[target_feature(enable = "avx2")]
fn load_block(bytes: &[u8]) -> __m256i {
    let bytes = &bytes[..BLOCK];
    // SAFETY: BLOCK bytes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
