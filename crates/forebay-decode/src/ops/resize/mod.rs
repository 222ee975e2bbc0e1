//! Resizing 8-bit pictures exactly as Pillow does: two passes, weights rounded to 22 bits, the result of each pass
//! rounded to 8 bits.
//!
//! [`Resampler`] keeps weight tables and the rows between the two passes from picture to picture.
//! The passes exist once per instruction set (`portable`, `avx2`, `neon`); all give the same bytes.

use std::ops::Range;

use forebay_core::Result;

use super::limit::check_result;
use super::{Interpolation, ResizeTo, Size};
use crate::memory;

#[cfg(target_arch = "x86_64")]
mod avx2;
mod nearest;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod table;
mod transform;

#[cfg(target_arch = "x86_64")]
use avx2 as simd;
#[cfg(target_arch = "aarch64")]
use neon as simd;
use table::{Table, Tables, check_table, table_bytes};

pub(crate) use nearest::is_nearest;
pub(crate) use table::{support, weight};
pub(crate) use transform::resample;

/// Weights are integers of this many fractional bits; 8 bits of pixel and 2 of headroom complete an `i32`.
const PRECISION_BITS: u32 = 22;

/// Name of the rows between the two passes in memory errors.
const BETWEEN: &str = "rows of a resize";

/// Half a level, so that the shift down rounds.
const HALF: i32 = 1 << (PRECISION_BITS - 1);

/// The size of the result by torchvision's rule.
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

/// A rectangle of interleaved pixels in memory, and its position in the picture to be resized.
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

/// A resize: both sizes, the filter, and the wanted part of the result.
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

    /// The axes that are resized: from which size to which.
    fn axes(&self) -> impl Iterator<Item = (u32, u32)> {
        let axes = [(self.from.width, self.to.width), (self.from.height, self.to.height)];
        let none = is_nearest(self.interpolation);
        axes.into_iter().filter(move |(from, to)| !none && from != to)
    }

    /// Refuses sides that are too long, before anything is decoded for them.
    pub(crate) fn check(&self) -> Result<()> {
        self.axes().try_for_each(|(from, to)| check_table(from, to, self.interpolation))
    }

    /// Memory for the whole result, including it, for pixels of three channels.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let tables: u64 = self.axes().map(|(from, to)| table_bytes(from, to, self.interpolation)).sum();
        let between = match self.passes() {
            Passes::HorizontalFirst => Size { height: self.from.height, width: self.to.width },
            Passes::VerticalFirst => Size { height: self.to.height, width: self.from.width },
            Passes::Horizontal | Passes::Vertical => Size { height: 0, width: 0 },
        };
        tables + 3 * (self.to.area() + between.area())
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
    /// These rows and columns in the order of the vertical pass.
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
    pub(crate) fn needed(&mut self, job: &Job) -> Result<(Range<usize>, Range<usize>)> {
        let nearest = is_nearest(job.interpolation);
        let mut axis = |from: u32, to: u32, wanted: &Range<usize>| {
            if from == to {
                Ok(wanted.clone())
            } else if nearest {
                Ok(nearest::needed(from, to, wanted))
            } else {
                self.tables.needed(from, to, job.interpolation, wanted)
            }
        };
        Ok((axis(job.from.width, job.to.width, &job.columns)?, axis(job.from.height, job.to.height, &job.rows)?))
    }

    /// Writes the wanted part of the result to `out`; `source` holds at least what [`needed`](Self::needed) says.
    pub(crate) fn run(&mut self, source: Source<'_>, job: &Job, out: &mut Vec<u8>) -> Result<()> {
        let row = job.columns.len() * source.channels;
        memory::resize(out, row * job.rows.len(), 0, "its resized pixels")?;
        if out.is_empty() {
            return Ok(());
        }
        if is_nearest(job.interpolation) || job.from == job.to {
            nearest::run(source, job, out);
            return Ok(());
        }
        let vector = self.vector();
        match job.passes() {
            Passes::Horizontal => {
                let columns = self.columns(job)?;
                horizontal(source, self.tables.get(columns), job, &job.rows, out, vector);
            }
            Passes::Vertical => {
                let rows = self.rows(job)?;
                let rows = self.tables.get(rows);
                vertical(source.rows(&rows.needed(&job.rows), &job.columns), rows, &job.rows, row, out, vector);
            }
            Passes::HorizontalFirst => {
                let (columns, rows) = (self.columns(job)?, self.rows(job)?);
                let (columns, rows) = (self.tables.get(columns), self.tables.get(rows));
                let needed = rows.needed(&job.rows);
                memory::resize(&mut self.between, row * needed.len(), 0, BETWEEN)?;
                horizontal(source, columns, job, &needed, &mut self.between, vector);
                let input = Input { pixels: &self.between, stride: row, first: needed.start };
                vertical(input, rows, &job.rows, row, out, vector);
            }
            Passes::VerticalFirst => {
                let (columns, rows) = (self.columns(job)?, self.rows(job)?);
                let (columns, rows) = (self.tables.get(columns), self.tables.get(rows));
                let (wide, needed) = (columns.needed(&job.columns), rows.needed(&job.rows));
                let stride = wide.len() * source.channels;
                memory::resize(&mut self.between, stride * job.rows.len(), 0, BETWEEN)?;
                vertical(source.rows(&needed, &wide), rows, &job.rows, stride, &mut self.between, vector);
                let origin = (wide.start, job.rows.start);
                let source = Source { pixels: &self.between, stride, channels: source.channels, origin };
                horizontal(source, columns, job, &job.rows, out, vector);
            }
        }
        Ok(())
    }

    /// The index of the horizontal table.
    fn columns(&mut self, job: &Job) -> Result<usize> {
        self.tables.find(job.from.width, job.to.width, job.interpolation)
    }

    /// The index of the vertical table.
    fn rows(&mut self, job: &Job) -> Result<usize> {
        self.tables.find(job.from.height, job.to.height, job.interpolation)
    }

    /// Frees tables beyond what a thread may keep.
    pub(crate) fn give_back(&mut self) {
        self.tables.give_back();
    }

    /// The rows between the two passes.
    pub(crate) fn between_mut(&mut self) -> &mut Vec<u8> {
        &mut self.between
    }

    /// Whether the vector version of the passes may run.
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
