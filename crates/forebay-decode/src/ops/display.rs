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
            Self::Resize { size, interpolation, max_size, .. } => {
                match size {
                    ResizeTo::Edge(edge) => write!(f, "size={edge}")?,
                    ResizeTo::Exact(size) => write!(f, "size={size}")?,
                    ResizeTo::LongEdge => f.write_str("size=None")?,
                }
                write!(f, ", interpolation={interpolation}, max_size={}", OrNone(*max_size))?;
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
            Self::RandomResizedCrop { size, scale, ratio, interpolation, .. } => {
                write!(f, "size={size}, scale={scale:?}, ratio={ratio:?}, interpolation={interpolation}")?;
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
