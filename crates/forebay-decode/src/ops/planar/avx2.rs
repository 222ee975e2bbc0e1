//! The passes with AVX2: the same bytes as `portable`. All sums are exact integers, so the order does not matter.

use std::arch::x86_64::*;

use super::colour::{BLUE, GREEN_BLUE, GREEN_RED, RED};
use super::table::{HALF, LANES, PRECISION_BITS, Table};
use super::{Rows, portable};

/// Samples that the horizontal pass loads at once, for four pixels.
const LOADED: usize = 16;

/// Samples of each pixel that it uses of them: two pairs.
const USED: usize = 4;

/// Columns that the vertical pass makes at once.
const BLOCK: usize = 32;

/// See `planar::horizontal`. The processor has AVX2.
pub(super) fn horizontal(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    // As far as the last row is read.
    let reach = table.needed().end - source.first.0 + table.pair_count() * 2 + LOADED;
    let has_room = source.samples.len() >= count.saturating_sub(1) * source.stride + reach;
    // Pixels too far apart to be found in one load, or made of too many samples: a picture is made much smaller, more
    // than decoding could.
    if table.max_offset() as usize + USED > LOADED || !has_room {
        return portable::horizontal(source, table, count, out);
    }
    // SAFETY: the caller has seen that the processor has AVX2. Four pixels begin with a sample that the table needs;
    // from there on LOADED are loaded, and again from every USED of `pair_count * 2`.
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
/// AVX2 is there, and samples as far as `horizontal` looks.
#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows<const LOADS: usize>(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    let half = _mm256_set1_epi32(HALF);
    for (group, starts) in table.starts().iter().enumerate() {
        let pairs = table.group_pairs(group).as_chunks::<2>().0;
        let pairs = if LOADS > 0 { &pairs[..LOADS] } else { pairs };
        let (first, second) = spread(table.offsets(group));
        let (left, right) = (starts[0] as usize - source.first.0, starts[4] as usize - source.first.0);
        for y in 0..count {
            let row = source.samples.as_ptr().wrapping_add(y * source.stride);
            let (mut left, mut right) = (row.wrapping_add(left), row.wrapping_add(right));
            let mut sum = half;
            for weights in pairs {
                // SAFETY: the function's own condition.
                let (left_half, right_half) = unsafe { (_mm_loadu_si128(left.cast()), _mm_loadu_si128(right.cast())) };
                let samples = _mm256_set_m128i(right_half, left_half);
                let (first, second) = (_mm256_shuffle_epi8(samples, first), _mm256_shuffle_epi8(samples, second));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(first, load(&weights[0])));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(second, load(&weights[1])));
                (left, right) = (left.wrapping_add(USED), right.wrapping_add(USED));
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

/// What shuffles loaded samples so that each lane has its first pair in 16 bits each; and its second.
#[target_feature(enable = "avx2")]
fn spread(offsets: &[u8; LANES]) -> (__m256i, __m256i) {
    const NOTHING: u32 = 0x80;
    let pair = |from: u32| {
        offsets.map(|offset| {
            let at = u32::from(offset) + from;
            (at | NOTHING << 8 | (at + 1) << 16 | NOTHING << 24) as i32
        })
    };
    (load(&pair(0)), load(&pair(2)))
}

#[target_feature(enable = "avx2")]
fn load(lanes: &[i32; LANES]) -> __m256i {
    // SAFETY: eight lanes are there; the load needs no alignment.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

/// See `planar::vertical`. The processor has AVX2.
pub(super) fn vertical(source: Rows<'_>, table: &Table, columns: usize, out: &mut [u8]) {
    // Rows are made from the first to the last, so what is written beyond one is the next one's place.
    for y in 0..table.len() {
        let length = columns.next_multiple_of(BLOCK);
        // SAFETY: the caller has seen that the processor has AVX2.
        unsafe { vertical_row(source, table, y, &mut out[y * columns..][..length]) };
    }
}

/// Output row `y`, whole blocks.
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
            let pair_row = row;
            row += 2 * source.stride;
            if pair == 0 {
                continue;
            }
            let at = |row: usize| &source.samples[row.min(last) + block * BLOCK..];
            let (above, below) = (load_block(at(pair_row)), load_block(at(pair_row + source.stride)));
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

/// Pixels whose colours are computed at once.
const PIXELS: usize = 16;

/// See `colour::convert`, as many as are whole [`PIXELS`]; gives how many were done. The processor has AVX2.
pub(super) fn convert(planes: [&[u8]; 3], out: &mut [u8]) -> usize {
    let [luma, blue, red] = planes.map(|plane| plane.as_chunks::<PIXELS>().0);
    let out = out.as_chunks_mut::<{ PIXELS * 3 }>().0;
    let count = luma.len().min(blue.len()).min(red.len()).min(out.len());
    // SAFETY: the caller has seen that the processor has AVX2.
    unsafe { convert_pixels(luma, blue, red, out) };
    count * PIXELS
}

#[target_feature(enable = "avx2")]
fn convert_pixels(luma: &[[u8; 16]], blue: &[[u8; 16]], red: &[[u8; 16]], out: &mut [[u8; 48]]) {
    // Each colour's bytes to their places among 48: those of the first, second and third 16.
    let places = [0, 1, 2].map(|third| {
        [0, 1, 2].map(|channel| {
            let at: [i8; 16] = std::array::from_fn(|byte| {
                let place = third * 16 + byte;
                if place % 3 == channel { (place / 3) as i8 } else { -1 }
            });
            // SAFETY: 16 bytes are there; the load needs no alignment.
            unsafe { _mm_loadu_si128(at.as_ptr().cast()) }
        })
    });
    let wide = |bytes: &[u8; 16]| {
        // SAFETY: 16 bytes are there; the load needs no alignment.
        _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    };
    let middle = _mm256_set1_epi16(128);
    // As `part` and `whole` of `colour::convert`.
    let part = |chroma, factor: i16| _mm256_mulhrs_epi16(chroma, _mm256_set1_epi16(factor));
    let whole = |sum| _mm256_srai_epi16::<4>(_mm256_add_epi16(sum, _mm256_set1_epi16(8)));
    for (((luma, blue), red), out) in luma.iter().zip(blue).zip(red).zip(out) {
        let y = wide(luma);
        let [cb, cr] = [blue, red].map(|chroma| _mm256_slli_epi16::<7>(_mm256_sub_epi16(wide(chroma), middle)));
        let r = _mm256_add_epi16(y, whole(part(cr, RED)));
        let g = _mm256_sub_epi16(y, whole(_mm256_add_epi16(part(cb, GREEN_BLUE), part(cr, GREEN_RED))));
        let b = _mm256_add_epi16(y, whole(part(cb, BLUE)));
        let colours = [r, g, b]
            .map(|colour| _mm_packus_epi16(_mm256_castsi256_si128(colour), _mm256_extracti128_si256::<1>(colour)));
        for (places, out) in places.iter().zip(out.as_chunks_mut::<16>().0) {
            let [r, g, b] = [0, 1, 2].map(|channel| _mm_shuffle_epi8(colours[channel], places[channel]));
            // SAFETY: 16 bytes are there; the store needs no alignment.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_or_si128(_mm_or_si128(r, g), b)) };
        }
    }
}
