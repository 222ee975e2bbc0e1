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
                // Turned by 45 degrees, in a frame of its own, each side of which is rounded up at both ends.
                let side = (f64::from(width) + f64::from(height)) * std::f64::consts::FRAC_1_SQRT_2;
                let to = Size::from(side.ceil() as u32 + 2);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Interpolation, Padding, PaddingMode, ResizeTo};
    use crate::{Image, Pipeline, Scratch, Value};
    use forebay_core::{Epoch, Rng, SampleId};

    #[test]
    fn no_result_is_larger_than_was_charged() {
        let interpolation = Interpolation::Bilinear;
        let turn = |expand| Op::RandomRotation {
            degrees: (-180.0, 180.0),
            interpolation,
            expand,
            center: None,
            fill: vec![0.0],
        };
        let ops = [
            Op::Pad {
                padding: Padding { left: 3, top: 0, right: 9, bottom: 2 },
                fill: vec![0.0],
                padding_mode: PaddingMode::Constant,
            },
            turn(true),
            turn(false),
            Op::GaussianBlur { kernel_size: (3, 3), sigma: (0.5, 1.0) },
            Op::Grayscale { num_output_channels: 3 },
            Op::RandomGrayscale { p: 1.0 },
            Op::Resize { size: ResizeTo::Edge(50), interpolation, max_size: None, antialias: true },
            Op::RandomResizedCrop {
                size: 24.into(),
                scale: (0.5, 1.0),
                ratio: (0.75, 1.5),
                interpolation,
                antialias: true,
            },
            Op::CenterCrop { size: 30.into() },
        ];
        let size = Size { height: 40, width: 31 };
        for op in ops {
            let (bytes, most) = op.memory(size).expect("a size that is known");
            let pipeline = Pipeline::new(vec![op]).unwrap();
            for sample in 0..64 {
                let image = Image { width: 31, height: 40, channels: 3, pixels: vec![7; 31 * 40 * 3] };
                let rng = Rng::for_sample(1, Epoch(0), SampleId(sample));
                let made = pipeline.transform(Value::Image(image), &rng, &mut Scratch::default()).unwrap();
                let Value::Image(made) = made else { panic!("{pipeline} made no picture") };
                let area = u64::from(made.width) * u64::from(made.height);
                assert!(area <= most.area(), "{pipeline}: {}×{} of {most}", made.width, made.height);
                // An op without memory of its own works in place.
                assert!(bytes == 0 || bytes >= made.pixels.len() as u64, "{pipeline}: {bytes} charged");
            }
        }
    }

    #[test]
    fn what_is_refused_later_is_not_charged() {
        let vast = Size { height: 20_000, width: 20_000 };
        let turn = Op::RandomRotation {
            degrees: (0.0, 1.0),
            interpolation: Interpolation::Nearest,
            expand: true,
            center: None,
            fill: vec![0.0],
        };
        assert_eq!(turn.memory(vast), None);
    }
}
