//! How much memory an op takes, as far as the size of the picture tells: charged before the picture is decoded.

use super::resize::{Job, target};
use super::{Op, Size};
use crate::MAX_PIXELS;

/// An RGB picture of this size.
fn rgb_bytes(size: Size) -> u64 {
    size.area() * 3
}

impl Op {
    /// Bytes that this op takes beside a picture of this size, its result included, and the largest size that the result
    /// may have. `None` where nothing can be said: of a transform of the user's own, and of sizes that will be refused.
    pub(crate) fn memory(&self, size: Size) -> Option<(u64, Size)> {
        let Size { height, width } = size;
        Some(match self {
            Self::Resize { size: to, max_size, interpolation, .. } => {
                let to = target(*to, *max_size, width, height).ok()?;
                (Job::whole(size, to, *interpolation).memory_bytes(), to)
            }
            Self::RandomResizedCrop { size: to, interpolation, .. } => {
                // What is cut out is no larger than the picture, and rows between two passes are as many as it has.
                let job = Job::whole(size, *to, *interpolation);
                let between = Size { height, width: to.width }.area().max(Size { height: to.height, width }.area());
                (job.memory_bytes() + 3 * between, *to)
            }
            Self::CenterCrop { size: to } | Self::RandomCrop { size: to, .. } => (rgb_bytes(*to), *to),
            Self::Pad { padding, .. } => {
                let sum = |side: u32, before: u32, after: u32| side.saturating_add(before).saturating_add(after);
                let height = sum(height, padding.top, padding.bottom);
                let to = Size { height, width: sum(width, padding.left, padding.right) };
                (rgb_bytes(to), to)
            }
            Self::RandomRotation { expand: true, .. } => {
                // Turned by 45 degrees, in a frame of its own.
                let side = width.saturating_add(height);
                let to = Size { height: side, width: side / 2 + 1 };
                if to.area() > MAX_PIXELS {
                    return None;
                }
                (rgb_bytes(to), to)
            }
            Self::RandomRotation { .. } | Self::GaussianBlur { .. } | Self::Grayscale { .. } => (rgb_bytes(size), size),
            // The planes in bytes, and in floats before and after.
            Self::ToTensor | Self::ToImage | Self::ToDtype { .. } | Self::Normalize { .. } => {
                (rgb_bytes(size) * (1 + 2 * size_of::<f32>() as u64), size)
            }
            Self::RandomHorizontalFlip { .. }
            | Self::RandomVerticalFlip { .. }
            | Self::RandomGrayscale { .. }
            | Self::ColorJitter { .. }
            | Self::RandomErasing { .. } => (0, size),
            Self::Custom(_) => return None,
        })
    }
}
