//! Ops in print: as they are written in Python, with every argument, so that two pipelines print alike only if they
//! are alike.

use std::fmt;

use super::{Erase, Interpolation, Op, Padding, PaddingMode, ResizeTo, Size};

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest-exact",
            Self::Bilinear => "bilinear",
            Self::Bicubic => "bicubic",
            Self::Box => "box",
            Self::Hamming => "hamming",
            Self::Lanczos => "lanczos",
        })
    }
}

impl fmt::Display for PaddingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Constant => "constant",
            Self::Edge => "edge",
            Self::Reflect => "reflect",
            Self::Symmetric => "symmetric",
        })
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

/// A value, or Python's word for none.
struct OrNone<T>(Option<T>);

impl<T: fmt::Debug> fmt::Display for OrNone<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => write!(f, "{value:?}"),
            None => f.write_str("None"),
        }
    }
}

impl Op {
    /// How it is called in Python; a [`Custom`](super::Custom) names itself.
    pub fn name(&self) -> &str {
        match self {
            Self::Resize { .. } => "Resize",
            Self::CenterCrop { .. } => "CenterCrop",
            Self::RandomCrop { .. } => "RandomCrop",
            Self::RandomResizedCrop { .. } => "RandomResizedCrop",
            Self::RandomHorizontalFlip { .. } => "RandomHorizontalFlip",
            Self::RandomVerticalFlip { .. } => "RandomVerticalFlip",
            Self::Pad { .. } => "Pad",
            Self::Grayscale { .. } => "Grayscale",
            Self::RandomGrayscale { .. } => "RandomGrayscale",
            Self::ColorJitter { .. } => "ColorJitter",
            Self::GaussianBlur { .. } => "GaussianBlur",
            Self::RandomRotation { .. } => "RandomRotation",
            Self::RandomErasing { .. } => "RandomErasing",
            Self::ToTensor => "ToTensor",
            Self::ToImage => "ToImage",
            Self::ToDtype { .. } => "ToDtype",
            Self::Normalize { .. } => "Normalize",
            Self::Custom(custom) => custom.name(),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name())?;
        match self {
            Self::Resize { size, interpolation, max_size, antialias } => {
                match size {
                    ResizeTo::Edge(edge) => write!(f, "size={edge}")?,
                    ResizeTo::Exact(size) => write!(f, "size={size}")?,
                    ResizeTo::LongEdge => f.write_str("size=None")?,
                }
                write!(f, ", interpolation={interpolation}, max_size={}", OrNone(*max_size))?;
                write!(f, ", antialias={antialias}")?;
            }
            Self::CenterCrop { size } => write!(f, "size={size}")?,
            Self::RandomCrop { size, padding, pad_if_needed, fill, padding_mode } => {
                write!(f, "size={size}, padding=")?;
                match padding {
                    Some(padding) => write!(f, "{padding}")?,
                    None => f.write_str("None")?,
                }
                write!(f, ", pad_if_needed={pad_if_needed}, fill={fill:?}, padding_mode={padding_mode}")?;
            }
            Self::RandomResizedCrop { size, scale, ratio, interpolation, antialias } => {
                write!(f, "size={size}, scale={scale:?}, ratio={ratio:?}, interpolation={interpolation}")?;
                write!(f, ", antialias={antialias}")?;
            }
            Self::RandomHorizontalFlip { p } | Self::RandomVerticalFlip { p } | Self::RandomGrayscale { p } => {
                write!(f, "p={p:?}")?;
            }
            Self::Pad { padding, fill, padding_mode } => {
                write!(f, "padding={padding}, fill={fill:?}, padding_mode={padding_mode}")?;
            }
            Self::Grayscale { num_output_channels } => write!(f, "num_output_channels={num_output_channels}")?,
            Self::ColorJitter { brightness, contrast, saturation, hue } => write!(
                f,
                "brightness={}, contrast={}, saturation={}, hue={}",
                OrNone(*brightness),
                OrNone(*contrast),
                OrNone(*saturation),
                OrNone(*hue)
            )?,
            Self::GaussianBlur { kernel_size, sigma } => write!(f, "kernel_size={kernel_size:?}, sigma={sigma:?}")?,
            Self::RandomRotation { degrees, interpolation, expand, center, fill } => write!(
                f,
                "degrees={degrees:?}, interpolation={interpolation}, expand={expand}, center={}, fill={fill:?}",
                OrNone(*center)
            )?,
            Self::RandomErasing { p, scale, ratio, value } => {
                write!(f, "p={p:?}, scale={scale:?}, ratio={ratio:?}, value={value}")?;
            }
            Self::ToDtype { dtype, scale } => {
                write!(f, "{}, scale={scale}", dtype.name())?;
            }
            Self::Normalize { mean, std } => write!(f, "mean={mean:?}, std={std:?}")?,
            Self::ToTensor | Self::ToImage | Self::Custom(_) => {}
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

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
            (Op::ToDtype { dtype: Dtype::F32, scale: true }, "ToDtype(float32, scale=true)"),
            (Op::Normalize { mean: vec![0.5], std: vec![0.25] }, "Normalize(mean=[0.5], std=[0.25])"),
        ];
        for (op, expected) in printed {
            assert_eq!(op.to_string(), expected);
        }
    }
}
