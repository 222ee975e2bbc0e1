//! Resizing 8-bit pictures exactly as Pillow does: two passes, weights rounded to 22 bits, the result of each pass
//! rounded to 8 bits.
//!
//! [`Resampler`] holds what is worth keeping between pictures: weight tables and the rows between the two passes.
//! The passes exist once per instruction set (`portable`, `avx2`, `neon`); all give the same bytes.

use std::ops::Range;

use forebay_core::Result;

use super::limit::check_result;
use super::{Interpolation, ResizeTo, Size};

#[cfg(target_arch = "x86_64")]
mod avx2;
mod nearest;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod table;

#[cfg(target_arch = "x86_64")]
use avx2 as simd;
#[cfg(target_arch = "aarch64")]
use neon as simd;
use table::{Table, Tables};

pub(crate) use nearest::is_nearest;
pub(crate) use table::{support, weight};

/// Weights are integers of this many fractional bits; 8 bits of pixel and 2 of headroom complete an `i32`.
const PRECISION_BITS: u32 = 22;

/// Half a level, so that the shift down rounds.
const HALF: i32 = 1 << (PRECISION_BITS - 1);

/// The size a picture gets: torchvision's rule.
pub(crate) fn target(size: ResizeTo, max_size: Option<u32>, width: u32, height: u32) -> Result<Size> {
    let (short, long) = (width.min(height), width.max(height));
    // Python divides two integers with one rounding, which is what f64 does below 2^53; then truncates.
    let scaled = |edge: u64, by: u64, over: u64| (edge as f64 * by as f64 / over as f64) as u64;
    let (new_short, new_long) = match (size, max_size) {
        (ResizeTo::Exact(size), _) => return check_result(size.width.into(), size.height.into(), "Resize"),
        (ResizeTo::LongEdge, max_size) => {
            let new_long = u64::from(max_size.unwrap_or(long));
            (scaled(new_long, short.into(), long.into()), new_long)
        }
        (ResizeTo::Edge(edge), max_size) => {
            let (new_short, new_long) = (u64::from(edge), scaled(edge.into(), long.into(), short.into()));
            match max_size.map(u64::from) {
                Some(max_size) if new_long > max_size => (scaled(max_size, new_short, new_long), max_size),
                _ => (new_short, new_long),
            }
        }
    };
    let (new_width, new_height) = if width <= height { (new_short, new_long) } else { (new_long, new_short) };
    check_result(new_width, new_height, "Resize")
}

/// A rectangle of interleaved pixels in memory, and where it lies in the picture to be resized.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// From the first pixel of the rectangle on.
    pub(crate) pixels: &'a [u8],
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Elements of a pixel.
    pub(crate) channels: usize,
    /// Column and row of the first pixel in the whole picture.
    pub(crate) origin: (usize, usize),
}

/// From which size to which, how, and which part of the result is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Size of the whole picture.
    pub(crate) from: Size,
    /// Size of the whole result.
    pub(crate) to: Size,
    /// The filter.
    pub(crate) interpolation: Interpolation,
    /// Wanted columns of the result.
    pub(crate) columns: Range<usize>,
    /// Wanted rows of the result.
    pub(crate) rows: Range<usize>,
}

impl Job {
    /// Which passes, in which order: rounding to 8 bits between them makes the order visible.
    ///
    /// Pillow 13 begins with the vertical pass where that saves work: when the height shrinks by more than twice as
    /// many pixels as the width (found by comparing results of 1,500 pairs of sizes). Earlier versions always begin
    /// with the horizontal one.
    fn passes(&self) -> Passes {
        let shrinks = |from: u32, to: u32| i64::from(from) - i64::from(to);
        let columns = shrinks(self.from.width, self.to.width);
        let rows = shrinks(self.from.height, self.to.height);
        match (columns, rows) {
            (_, 0) => Passes::Horizontal,
            (0, _) => Passes::Vertical,
            _ if rows > 0 && rows > 2 * columns => Passes::VerticalFirst,
            _ => Passes::HorizontalFirst,
        }
    }

    /// All of the result.
    pub(crate) fn whole(from: Size, to: Size, interpolation: Interpolation) -> Self {
        Self { from, to, interpolation, columns: 0..to.width as usize, rows: 0..to.height as usize }
    }
}

/// See [`Job::passes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Horizontal,
    Vertical,
    HorizontalFirst,
    VerticalFirst,
}

impl<'a> Source<'a> {
    /// These rows and columns as the vertical pass wants them.
    fn rows(&self, rows: &Range<usize>, columns: &Range<usize>) -> Input<'a> {
        let skip = (rows.start - self.origin.1) * self.stride + (columns.start - self.origin.0) * self.channels;
        Input { pixels: &self.pixels[skip..], stride: self.stride, first: rows.start }
    }
}

/// Tables and buffers kept between pictures.
#[derive(Default)]
pub(crate) struct Resampler {
    tables: Tables,
    between: Vec<u8>,
    #[cfg(test)]
    portable_only: bool,
}

impl Resampler {
    /// The columns and rows of the picture that the wanted part of the result depends on.
    pub(crate) fn needed(&mut self, job: &Job) -> (Range<usize>, Range<usize>) {
        let nearest = is_nearest(job.interpolation);
        let mut axis = |from: u32, to: u32, wanted: &Range<usize>| {
            if from == to {
                wanted.clone()
            } else if nearest {
                nearest::needed(from, to, wanted)
            } else {
                let at = self.tables.find(from, to, job.interpolation);
                self.tables.get(at).needed(wanted)
            }
        };
        (axis(job.from.width, job.to.width, &job.columns), axis(job.from.height, job.to.height, &job.rows))
    }

    /// Writes the wanted part of the result to `out`; `source` holds at least what [`needed`](Self::needed) says.
    pub(crate) fn run(&mut self, source: Source<'_>, job: &Job, out: &mut Vec<u8>) {
        let row = job.columns.len() * source.channels;
        out.resize(row * job.rows.len(), 0);
        if out.is_empty() {
            return;
        }
        if is_nearest(job.interpolation) || job.from == job.to {
            return nearest::run(source, job, out);
        }
        let vector = self.vector();
        let columns = self.tables.find(job.from.width, job.to.width, job.interpolation);
        let rows = self.tables.find(job.from.height, job.to.height, job.interpolation);
        let (columns, rows) = (self.tables.get(columns), self.tables.get(rows));
        let needed = rows.needed(&job.rows);
        match job.passes() {
            Passes::Horizontal => horizontal(source, columns, job, &job.rows, out, vector),
            Passes::Vertical => vertical(source.rows(&needed, &job.columns), rows, &job.rows, row, out, vector),
            Passes::HorizontalFirst => {
                self.between.resize(row * needed.len(), 0);
                horizontal(source, columns, job, &needed, &mut self.between, vector);
                let input = Input { pixels: &self.between, stride: row, first: needed.start };
                vertical(input, rows, &job.rows, row, out, vector);
            }
            Passes::VerticalFirst => {
                let wide = columns.needed(&job.columns);
                let stride = wide.len() * source.channels;
                self.between.resize(stride * job.rows.len(), 0);
                vertical(source.rows(&needed, &wide), rows, &job.rows, stride, &mut self.between, vector);
                let origin = (wide.start, job.rows.start);
                let source = Source { pixels: &self.between, stride, channels: source.channels, origin };
                horizontal(source, columns, job, &job.rows, out, vector);
            }
        }
    }

    /// The rows between the two passes.
    pub(crate) fn between_mut(&mut self) -> &mut Vec<u8> {
        &mut self.between
    }

    /// Whether the vector twin of the passes may run.
    fn vector(&self) -> bool {
        #[cfg(test)]
        if self.portable_only {
            return false;
        }
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("avx2");
        // Every processor of this kind has NEON.
        #[cfg(not(target_arch = "x86_64"))]
        return cfg!(target_arch = "aarch64");
    }
}

/// Rows for the vertical pass: `first` is the number of the row that `pixels` begins with.
#[derive(Clone, Copy)]
struct Input<'a> {
    pixels: &'a [u8],
    stride: usize,
    first: usize,
}

/// The horizontal pass over the picture's rows `rows`.
fn horizontal(source: Source<'_>, table: &Table, job: &Job, rows: &Range<usize>, out: &mut [u8], vector: bool) {
    let skip = (rows.start - source.origin.1) * source.stride;
    let source = Source { pixels: &source.pixels[skip..], ..source };
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if vector && source.channels == 3 {
        return simd::horizontal(source, table, &job.columns, out);
    }
    let _ = vector;
    match source.channels {
        1 => portable::horizontal::<1>(source, table, &job.columns, out),
        _ => portable::horizontal::<3>(source, table, &job.columns, out),
    }
}

/// The vertical pass over rows of `row` elements.
fn vertical(input: Input<'_>, table: &Table, rows: &Range<usize>, row: usize, out: &mut [u8], vector: bool) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if vector {
        return simd::vertical(input, table, rows, row, out);
    }
    let _ = vector;
    portable::vertical(input, table, rows, row, out);
}

#[cfg(test)]
mod tests;
