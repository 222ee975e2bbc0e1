//! The transforms: one table of all (`table.rs`), one file per kind of work beside it, and here the types of their
//! arguments.
//!
//! Names, arguments, defaults and random distributions are those of `torchvision.transforms.v2` applied to
//! Pillow images; `docs/transforms.md` states how near the results are. An op is data: it is checked, printed and
//! planned by [`Pipeline`](crate::Pipeline), which alone decides when and in what form it runs.

use std::fmt;

use forebay_core::Result;

use crate::Value;

pub(crate) mod argument;
pub(crate) mod blur;
mod charge;
mod check;
pub(crate) mod color;
pub(crate) mod convert;
pub(crate) mod crop;
pub(crate) mod cut;
mod define;
mod display;
pub(crate) mod erase;
pub(crate) mod flip;
pub(crate) mod gray;
mod limit;
pub(crate) mod nest;
mod pad;
pub(crate) mod planar;
pub(crate) mod resize;
pub(crate) mod rotate;
mod table;
mod tensors;
mod transform;
pub(crate) mod wide;
pub(crate) mod window;

pub use argument::Argument;
pub(crate) use charge::Sizes;
pub(crate) use check::Form;
pub use table::{Op, Row, Takes};
pub(crate) use transform::Buffers;

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

impl Size {
    /// Pixels.
    pub const fn area(self) -> u64 {
        self.height as u64 * self.width as u64
    }
}

impl From<u32> for Size {
    /// A square.
    fn from(edge: u32) -> Self {
        Self { height: edge, width: edge }
    }
}

/// What [`Op::Resize`] aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// The shorter edge becomes this long (unless `max_size` is passed), the aspect ratio stays.
    Edge(u32),
    /// Exactly this size.
    Exact(Size),
    /// The longer edge becomes `max_size` long, the aspect ratio stays (torchvision's `size=None`).
    LongEdge,
}

/// The resampling filter; downscaling is always antialiased, as in Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// The nearest pixel; the same as [`Interpolation::Nearest`] for pictures, as in torchvision.
    NearestExact,
    /// A triangle.
    Bilinear,
    /// A cubic with a = -0.5.
    Bicubic,
    /// A box.
    Box,
    /// A Hamming window.
    Hamming,
    /// Lanczos with three lobes.
    Lanczos,
}

impl Interpolation {
    /// All of them.
    pub(crate) const ALL: [Self; 7] =
        [Self::Nearest, Self::NearestExact, Self::Bilinear, Self::Bicubic, Self::Box, Self::Hamming, Self::Lanczos];

    /// torchvision's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest-exact",
            Self::Bilinear => "bilinear",
            Self::Bicubic => "bicubic",
            Self::Box => "box",
            Self::Hamming => "hamming",
            Self::Lanczos => "lanczos",
        }
    }
}

/// How a picture is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddingMode {
    /// `fill`.
    Constant,
    /// The pixel at the edge.
    Edge,
    /// The picture mirrored, its edge not repeated.
    Reflect,
    /// The picture mirrored, its edge repeated.
    Symmetric,
}

impl PaddingMode {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Constant, Self::Edge, Self::Reflect, Self::Symmetric];

    /// torchvision's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Edge => "edge",
            Self::Reflect => "reflect",
            Self::Symmetric => "symmetric",
        }
    }
}

/// Pixels added on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Columns on the left.
    pub left: u32,
    /// Rows on top.
    pub top: u32,
    /// Columns on the right.
    pub right: u32,
    /// Rows at the bottom.
    pub bottom: u32,
}

impl Padding {
    /// From torchvision's one (all sides), two (left and right, top and bottom) or four values (left, top, right,
    /// bottom); `None` for any other count.
    pub fn from_values(values: &[u32]) -> Option<Self> {
        match *values {
            [all] => Some(Self { left: all, top: all, right: all, bottom: all }),
            [x, y] => Some(Self { left: x, top: y, right: x, bottom: y }),
            [left, top, right, bottom] => Some(Self { left, top, right, bottom }),
            _ => None,
        }
    }
}

/// The fill of [`Op::RandomErasing`].
#[derive(Clone, Debug, PartialEq)]
pub enum Erase {
    /// One value for all channels, or one for each.
    Values(Vec<f64>),
    /// A standard normal number for each element.
    Random,
}

/// A user's transform, opaque to forebay.
///
/// # Contract
/// - `apply` may be called by several threads at once, and depends on nothing but its arguments.
/// - An error is the sample's own unless its kind says otherwise.
pub trait Custom: Send + Sync {
    /// Its name in messages and in the printed pipeline.
    fn name(&self) -> &str;
    /// Transforms a value; `seed` is the randomness of this sample, epoch and position in the pipeline.
    fn apply(&self, value: Value, seed: u64) -> Result<Value>;
}

impl fmt::Debug for dyn Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.name())
    }
}
