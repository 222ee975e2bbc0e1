//! A picture as JPEG stores it: separate luma and chroma planes, each with its own resolution. `decode="fast"` resizes
//! these, so that chroma is enlarged only once and colours are computed for pixels of the result alone.

use forebay_core::Result;

use crate::memory::resize;

/// Luma and two of chroma.
pub(crate) const MAX_PLANES: usize = 3;

/// Bytes after the last row that vector loads may touch.
pub(crate) const SLACK_BYTES: usize = 64;

/// The planes of one picture, or of a part: 1 (grey) or 3 (Y, Cb, Cr).
#[derive(Default)]
pub(crate) struct Planes {
    pub(crate) count: usize,
    pub(crate) planes: [Plane; MAX_PLANES],
}

/// Samples of one component.
#[derive(Default)]
pub(crate) struct Plane {
    /// Rows of `stride` samples, then [`SLACK_BYTES`] of anything.
    samples: Vec<u8>,
    stride: usize,
    /// Column and row of the first sample among those of the whole picture.
    pub(crate) origin: (u32, u32),
    /// Pixels across and down that a sample covers: sample `n` covers those from `n * pitch` on.
    pub(crate) pitch: (u32, u32),
}

impl Planes {
    /// The planes that there are.
    pub(crate) fn each(&self) -> &[Plane] {
        &self.planes[..self.count]
    }

    /// The buffers that grow with the picture.
    pub(crate) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        self.planes.iter_mut().map(|plane| &mut plane.samples)
    }
}

impl Plane {
    /// Allocates samples. Old content is not cleared: zeroing it first would cost a pass over memory.
    pub(crate) fn prepare(&mut self, stride: usize, rows: usize) -> Result<&mut [u8]> {
        self.stride = stride;
        let needed = stride * rows + SLACK_BYTES;
        if self.samples.len() < needed {
            resize(&mut self.samples, needed, 0, "its planes")?;
        }
        Ok(&mut self.samples[..needed])
    }

    /// Samples from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// From this column and row of the whole picture on.
    pub(crate) fn from(&self, column: usize, row: usize) -> &[u8] {
        let (left, top) = (self.origin.0 as usize, self.origin.1 as usize);
        &self.samples[(row - top) * self.stride + column - left..]
    }
}
