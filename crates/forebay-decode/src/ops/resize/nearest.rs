//! Nearest neighbour: copies pixels without weights. Also used if the size does not change.

use std::ops::Range;

use super::super::Interpolation;
use super::{Job, Source};

/// Whether the filter is this one.
pub(crate) fn is_nearest(interpolation: Interpolation) -> bool {
    matches!(interpolation, Interpolation::Nearest | Interpolation::NearestExact)
}

/// The input pixel of each output pixel. Accumulates the step as Pillow does: a product rounds differently.
fn positions(from: u32, to: u32) -> impl Iterator<Item = usize> {
    let step = f64::from(from) / f64::from(to);
    let mut at = step * 0.5;
    (0..to).map(move |output| {
        let position = if from == to { output as usize } else { (at as usize).min(from as usize - 1) };
        at += step;
        position
    })
}

/// The input pixels that these output pixels depend on.
pub(super) fn needed(from: u32, to: u32, wanted: &Range<usize>) -> Range<usize> {
    let mut wanted = positions(from, to).skip(wanted.start).take(wanted.len());
    let Some(first) = wanted.next() else { return 0..0 };
    first..wanted.last().unwrap_or(first) + 1
}

/// Copies the wanted part.
pub(super) fn run(source: Source<'_>, job: &Job, out: &mut [u8]) {
    let channels = source.channels;
    let rows = positions(job.from.height, job.to.height).skip(job.rows.start);
    for (out, y) in out.chunks_exact_mut(job.columns.len() * channels).zip(rows) {
        let row = &source.pixels[(y - source.origin.1) * source.stride..];
        if job.from.width == job.to.width {
            let start = (job.columns.start - source.origin.0) * channels;
            out.copy_from_slice(&row[start..][..out.len()]);
            continue;
        }
        let columns = positions(job.from.width, job.to.width).skip(job.columns.start);
        for (pixel, x) in out.chunks_exact_mut(channels).zip(columns) {
            pixel.copy_from_slice(&row[(x - source.origin.0) * channels..][..channels]);
        }
    }
}
