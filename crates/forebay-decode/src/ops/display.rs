//! Arguments in print: as they are written in Python.

use std::fmt;

use super::{Erase, Interpolation, Padding, PaddingMode, ResizeTo, Size};

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PaddingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for ResizeTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge(edge) => write!(f, "{edge}"),
            Self::Exact(size) => write!(f, "{size}"),
            Self::LongEdge => f.write_str("None"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.height, self.width)
    }
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {}, {})", self.left, self.top, self.right, self.bottom)
    }
}

impl fmt::Display for Erase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values(values) => write!(f, "{values:?}"),
            Self::Random => f.write_str("random"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Op};

    #[test]
    fn ops_print_every_argument() {
        let (size, interpolation) = (Size { height: 4, width: 5 }, Interpolation::Hamming);
        let padding = Padding { left: 1, top: 2, right: 3, bottom: 4 };
        let (fill, mode) = (vec![7.0], PaddingMode::Constant);
        let crop = |padding| Op::RandomCrop {
            size,
            padding,
            pad_if_needed: true,
            fill: vec![1.0, 2.0],
            padding_mode: PaddingMode::Edge,
        };
        let resize =
            |size| Op::Resize { size, interpolation: Interpolation::Nearest, max_size: Some(9), antialias: false };
        let erase = |value| Op::RandomErasing { p: 0.5, scale: (0.1, 0.2), ratio: (0.3, 3.0), value };
        let jitter = Op::ColorJitter {
            brightness: Some((0.5, 1.5)),
            contrast: None,
            saturation: Some((1.0, 1.0)),
            hue: Some((-0.1, 0.1)),
        };
        let turn = Op::RandomRotation {
            degrees: (-10.0, 20.0),
            interpolation: Interpolation::Bicubic,
            expand: true,
            center: Some((1.0, 2.0)),
            fill: vec![0.0],
        };
        let zoom =
            Op::RandomResizedCrop { size, scale: (0.08, 1.0), ratio: (0.75, 1.5), interpolation, antialias: true };
        let blur = Op::GaussianBlur { kernel_size: (3, 5), sigma: (0.1, 2.0) };
        let printed = [
            (resize(ResizeTo::Edge(8)), "Resize(size=8, interpolation=nearest, max_size=9, antialias=false)"),
            (resize(ResizeTo::Exact(size)), "Resize(size=(4, 5), interpolation=nearest, max_size=9, antialias=false)"),
            (resize(ResizeTo::LongEdge), "Resize(size=None, interpolation=nearest, max_size=9, antialias=false)"),
            (Op::CenterCrop { size }, "CenterCrop(size=(4, 5))"),
            (
                crop(Some(padding)),
                "RandomCrop(size=(4, 5), padding=(1, 2, 3, 4), pad_if_needed=true, fill=[1.0, 2.0], padding_mode=edge)",
            ),
            (
                crop(None),
                "RandomCrop(size=(4, 5), padding=None, pad_if_needed=true, fill=[1.0, 2.0], padding_mode=edge)",
            ),
            (
                zoom,
                "RandomResizedCrop(size=(4, 5), scale=(0.08, 1.0), ratio=(0.75, 1.5), interpolation=hamming, \
                 antialias=true)",
            ),
            (Op::RandomHorizontalFlip { p: 0.5 }, "RandomHorizontalFlip(p=0.5)"),
            (Op::RandomVerticalFlip { p: 1.0 }, "RandomVerticalFlip(p=1.0)"),
            (
                Op::Pad { padding, fill, padding_mode: mode },
                "Pad(padding=(1, 2, 3, 4), fill=[7.0], padding_mode=constant)",
            ),
            (Op::Grayscale { num_output_channels: 3 }, "Grayscale(num_output_channels=3)"),
            (Op::RandomGrayscale { p: 0.1 }, "RandomGrayscale(p=0.1)"),
            (jitter, "ColorJitter(brightness=(0.5, 1.5), contrast=None, saturation=(1.0, 1.0), hue=(-0.1, 0.1))"),
            (blur, "GaussianBlur(kernel_size=(3, 5), sigma=(0.1, 2.0))"),
            (
                turn,
                "RandomRotation(degrees=(-10.0, 20.0), interpolation=bicubic, expand=true, center=(1.0, 2.0), \
                 fill=[0.0])",
            ),
            (erase(Erase::Values(vec![0.0])), "RandomErasing(p=0.5, scale=(0.1, 0.2), ratio=(0.3, 3.0), value=[0.0])"),
            (erase(Erase::Random), "RandomErasing(p=0.5, scale=(0.1, 0.2), ratio=(0.3, 3.0), value=random)"),
            (Op::ToTensor, "ToTensor()"),
            (Op::ToImage, "ToImage()"),
            (Op::ToDtype { dtype: Dtype::F32, scale: true }, "ToDtype(dtype=float32, scale=true)"),
            (Op::Normalize { mean: vec![0.5], std: vec![0.25] }, "Normalize(mean=[0.5], std=[0.25])"),
            (
                Op::RandomApply { transforms: vec![Op::ToTensor, Op::CenterCrop { size }], p: 0.25 },
                "RandomApply(transforms=[ToTensor(), CenterCrop(size=(4, 5))], p=0.25)",
            ),
            (
                Op::RandomChoice {
                    transforms: vec![Op::Compose { transforms: vec![Op::ToImage] }, Op::ToImage],
                    p: vec![1.0, 3.0],
                },
                "RandomChoice(transforms=[Compose(transforms=[ToImage()]), ToImage()], p=[1.0, 3.0])",
            ),
            (Op::RandomOrder { transforms: vec![] }, "RandomOrder(transforms=[])"),
        ];
        for (op, expected) in printed {
            assert_eq!(op.to_string(), expected);
        }
    }
}
