//! The passes in plain Rust: always compiled, the reference that vector versions are tested against.

use std::ops::Range;

use super::table::Table;
use super::{HALF, Input, PRECISION_BITS, Source};

/// Down from 22 fractional bits, into 0 to 255.
fn clip(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// One row of `out` for each row of `source`.
pub(super) fn horizontal<const CHANNELS: usize>(
    source: Source<'_>,
    table: &Table,
    columns: &Range<usize>,
    out: &mut [u8],
) {
    for (y, out) in out.chunks_exact_mut(columns.len() * CHANNELS).enumerate() {
        horizontal_row::<CHANNELS>(&source.pixels[y * source.stride..], source.origin.0, table, columns, out);
    }
}

/// One row; `first` is the number of the pixel it begins with.
pub(super) fn horizontal_row<const CHANNELS: usize>(
    row: &[u8],
    first: usize,
    table: &Table,
    columns: &Range<usize>,
    out: &mut [u8],
) {
    for (x, out) in columns.clone().zip(out.chunks_exact_mut(CHANNELS)) {
        let start = table.span(x).start as usize - first;
        let mut sums = [HALF; CHANNELS];
        for (pixel, weight) in row[start * CHANNELS..].chunks_exact(CHANNELS).zip(table.weights(x)) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = clip(sum);
        }
    }
}

/// One row of `out`, `row` elements long, for each of `rows`.
pub(super) fn vertical(input: Input<'_>, table: &Table, rows: &Range<usize>, row: usize, out: &mut [u8]) {
    for (y, out) in rows.clone().zip(out.chunks_exact_mut(row)) {
        vertical_part(input, table, y, 0, out);
    }
}

/// Elements of output row `y` from `from` on, as many as `out` takes.
pub(super) fn vertical_part(input: Input<'_>, table: &Table, y: usize, from: usize, out: &mut [u8]) {
    // Wide enough for vectors, small enough to stay in registers and the nearest cache.
    const BLOCK: usize = 64;
    let start = table.span(y).start as usize - input.first;
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let mut sums = [HALF; BLOCK];
        for (tap, weight) in table.weights(y).iter().enumerate() {
            let at = (start + tap) * input.stride + from + block * BLOCK;
            for (sum, value) in sums.iter_mut().zip(&input.pixels[at..][..out.len()]) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = clip(sum);
        }
    }
}
