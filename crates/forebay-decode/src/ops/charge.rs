//! Memory of an op, as far as the picture's size tells: charged before the picture is decoded.

use super::Size;

/// An RGB picture of this size.
pub(crate) fn rgb_bytes(size: Size) -> u64 {
    size.area() * 3
}

/// The possible sizes of a picture at some point of a pipeline: several after a random choice of transforms.
///
/// Only a fixed number is stored, without allocation, because this runs for every sample: further ones are merged into
/// one size that contains all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    kept: [Size; Self::MOST],
    count: usize,
}

impl From<Size> for Sizes {
    fn from(size: Size) -> Self {
        Self { kept: [size; Self::MOST], count: 1 }
    }
}

impl Sizes {
    const MOST: usize = 8;

    fn iter(&self) -> impl Iterator<Item = Size> {
        self.kept.into_iter().take(self.count)
    }

    fn add(&mut self, size: Size) {
        if self.iter().any(|kept| kept == size) {
            return;
        }
        if self.count < Self::MOST {
            self.kept[self.count] = size;
            self.count += 1;
        } else if let Some(last) = self.kept.last_mut() {
            *last = Size { height: last.height.max(size.height), width: last.width.max(size.width) };
        }
    }

    /// The union of both.
    pub(crate) fn and(mut self, others: Self) -> Self {
        others.iter().for_each(|size| self.add(size));
        self
    }

    /// The one with the most pixels.
    pub(crate) fn largest(&self) -> Size {
        self.iter().max_by_key(|size| size.area()).unwrap_or(self.kept[0])
    }

    /// The memory of an op for any of the sizes, given that for each.
    pub(crate) fn each(self, memory: impl Fn(Size) -> Option<(u64, Size)>) -> Option<(u64, Self)> {
        let (mut most, first) = memory(self.kept[0])?;
        let mut made = Self::from(first);
        for size in self.iter().skip(1) {
            let (bytes, size) = memory(size)?;
            most = most.max(bytes);
            made.add(size);
        }
        Some((most, made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Interpolation, Op, Padding, PaddingMode, ResizeTo};
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
            let (bytes, sizes) = op.charge(size.into()).expect("a size that is known");
            let most = sizes.largest();
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
        assert_eq!(turn.charge(vast.into()), None);
    }

    #[test]
    fn many_sizes_become_one_that_all_fit_in() {
        let mut sizes = Sizes::from(Size { height: 1, width: 1 });
        for edge in 1..=20 {
            sizes = sizes.and(Size { height: edge, width: 21 - edge }.into());
        }
        assert_eq!(sizes.iter().count(), Sizes::MOST);
        assert!(sizes.iter().any(|size| size.height >= 20 && size.width >= 14), "{sizes:?}");
    }
}
