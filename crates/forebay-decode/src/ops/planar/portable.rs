//! The passes in plain Rust: always compiled, the reference that vector versions are tested against.

use super::Rows;
use super::table::{HALF, PRECISION_BITS, Table};

/// Down from the weights' fractional bits, into 0 to 255.
fn clip(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Both weights of a pair.
fn weights(pair: i32) -> [i32; 2] {
    [i32::from(pair as i16), pair >> 16]
}

/// See `planar::horizontal`.
pub(super) fn horizontal(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8]) {
    for (y, out) in out.chunks_exact_mut(table.len()).take(count).enumerate() {
        let row = &source.samples[y * source.stride..];
        for (x, out) in out.iter_mut().enumerate() {
            let samples = row[table.start(x) - source.first.0..].iter();
            let sum: i32 = table.pairs(x).flat_map(weights).zip(samples).map(|(w, s)| w * i32::from(*s)).sum();
            *out = clip(sum + HALF);
        }
    }
}

/// See `planar::vertical`.
pub(super) fn vertical(source: Rows<'_>, table: &Table, columns: usize, out: &mut [u8]) {
    for (y, out) in out.chunks_exact_mut(columns).take(table.len()).enumerate() {
        vertical_part(source, table, y, 0, out);
    }
}

/// Samples of output row `y` from `from` on, as many as `out` takes.
pub(super) fn vertical_part(source: Rows<'_>, table: &Table, y: usize, from: usize, out: &mut [u8]) {
    // Wide enough for vectors, small enough to stay in registers and the nearest cache.
    const BLOCK: usize = 64;
    let start = table.start(y) - source.first.1;
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let mut sums = [HALF; BLOCK];
        // Beyond the rows that there are, all weights are 0.
        for (tap, weight) in table.pairs(y).flat_map(weights).enumerate().filter(|(_, weight)| *weight != 0) {
            let at = (start + tap) * source.stride + from + block * BLOCK;
            for (sum, value) in sums.iter_mut().zip(&source.samples[at..][..out.len()]) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = clip(sum);
        }
    }
}
