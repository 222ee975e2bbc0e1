//! Resizes planes to the pixels of the result, for `decode="fast"`: each plane is resized from its own resolution, and
//! colours are computed for the result only.
//!
//! Filters, positions and antialiasing are those of `resize`. The weights have 14 bits instead of 22 and the passes run
//! in the cheaper order, so results differ from Pillow's by a level or two even if nothing is scaled while decoding.
//! The passes exist once per instruction set; all give the same bytes.

use forebay_core::Result;

use super::resize::Job;
use crate::memory;
use crate::pixels::prepare;
use crate::planes::{Plane, Planes, SLACK_BYTES};
use crate::{Image, Region};

#[cfg(target_arch = "x86_64")]
mod avx2;
mod colour;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod table;

#[cfg(target_arch = "x86_64")]
use avx2 as simd;
#[cfg(target_arch = "aarch64")]
use neon as simd;
use table::{Axis, Table};

/// Tables and buffers kept between pictures.
#[derive(Default)]
pub(crate) struct Planar {
    /// Of luma's columns and rows, and of chroma's.
    tables: [[Table; 2]; 2],
    between: Vec<u8>,
    made: [Vec<u8>; 3],
    #[cfg(test)]
    portable_only: bool,
}

/// Rows of samples, from a pixel that a table calls `first` on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    samples: &'a [u8],
    stride: usize,
    /// The number of the first sample of a row, and that of the first row.
    first: (usize, usize),
}

impl Planar {
    /// Computes the part of the result that the job wants. `corner` is the pixel at which the job's picture begins;
    /// `planes` holds the samples of `usable`.
    pub(crate) fn run(
        &mut self,
        planes: &Planes,
        usable: Region,
        corner: (u32, u32),
        job: &Job,
        out: &mut Image,
    ) -> Result<()> {
        let vector = self.vector();
        let mut pitches = [None; 2];
        for (number, plane) in planes.each().iter().enumerate() {
            // Both planes of chroma are alike, and often they are like luma.
            let kind = if number > 0 && pitches[0] != Some(plane.pitch) { 1 } else { 0 };
            if pitches[kind] != Some(plane.pitch) {
                let [columns, rows] = &mut self.tables[kind];
                let interpolation = job.interpolation;
                let across = Axis {
                    corner: corner.0,
                    pitch: plane.pitch.0,
                    usable: usable.x..usable.x + usable.width,
                    from: job.from.width,
                    to: job.to.width,
                    wanted: job.columns.clone(),
                    interpolation,
                };
                let down = Axis {
                    corner: corner.1,
                    pitch: plane.pitch.1,
                    usable: usable.y..usable.y + usable.height,
                    from: job.from.height,
                    to: job.to.height,
                    wanted: job.rows.clone(),
                    interpolation,
                };
                columns.fill(&across, vector)?;
                rows.fill(&down, vector)?;
                pitches[kind] = Some(plane.pitch);
            }
            let [columns, rows] = &self.tables[kind];
            resize(plane, columns, rows, &mut self.between, &mut self.made[number], vector)?;
        }
        prepare(out, job.columns.len() as u32, job.rows.len() as u32)?;
        let [luma, blue, red] = &self.made;
        let count = job.columns.len() * job.rows.len();
        match planes.count {
            1 => colour::grey(&luma[..count], &mut out.pixels),
            _ => colour::convert([luma, blue, red].map(|plane| &plane[..count]), &mut out.pixels, vector),
        }
        Ok(())
    }

    /// Gives back tables beyond what a thread may keep.
    pub(crate) fn give_back(&mut self) {
        self.tables.iter_mut().flatten().for_each(Table::give_back);
    }

    /// The buffers that grow with the picture.
    pub(crate) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        std::iter::once(&mut self.between).chain(&mut self.made)
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

/// Allocates `bytes` and the slack that vector loads touch. Old content is not cleared.
fn room(buffer: &mut Vec<u8>, bytes: usize) -> Result<&mut [u8]> {
    if buffer.len() < bytes + SLACK_BYTES {
        memory::resize(buffer, bytes + SLACK_BYTES, 0, "planes of a resize")?;
    }
    Ok(&mut buffer[..bytes + SLACK_BYTES])
}

/// Resizes one plane in both directions; the first pass is the one that leaves less work for the second.
fn resize(
    plane: &Plane,
    columns: &Table,
    rows: &Table,
    between: &mut Vec<u8>,
    out: &mut Vec<u8>,
    vector: bool,
) -> Result<()> {
    let (needed_columns, needed_rows) = (columns.needed(), rows.needed());
    let first = (needed_columns.start, needed_rows.start);
    let source = Rows { samples: plane.from(first.0, first.1), stride: plane.stride(), first };
    let out = room(out, columns.len() * rows.len())?;
    if rows.len() < needed_rows.len() {
        let stride = needed_columns.len();
        let between = room(between, stride * rows.len())?;
        vertical(source, rows, stride, between, vector);
        horizontal(Rows { samples: between, stride, first }, columns, rows.len(), out, vector);
    } else {
        let stride = columns.len();
        let between = room(between, stride * needed_rows.len())?;
        horizontal(source, columns, needed_rows.len(), between, vector);
        vertical(Rows { samples: between, stride, first }, rows, stride, out, vector);
    }
    Ok(())
}

/// `count` rows of `out` from as many of `source`. Both have [`SLACK_BYTES`] behind their last sample.
fn horizontal(source: Rows<'_>, table: &Table, count: usize, out: &mut [u8], vector: bool) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if vector {
        return simd::horizontal(source, table, count, out);
    }
    let _ = vector;
    portable::horizontal(source, table, count, out);
}

/// All rows of the table, each of `columns` samples. Both sides have [`SLACK_BYTES`] behind their last sample.
fn vertical(source: Rows<'_>, table: &Table, columns: usize, out: &mut [u8], vector: bool) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if vector {
        return simd::vertical(source, table, columns, out);
    }
    let _ = vector;
    portable::vertical(source, table, columns, out);
}

#[cfg(test)]
mod tests;
