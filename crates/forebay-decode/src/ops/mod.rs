//! The transforms: their settings here, one file per kind of work beside this one.
//!
//! Names, arguments, defaults and random distributions are those of `torchvision.transforms.v2` applied to
//! Pillow images; `docs/transforms.md` states how near the results are. An op is data: it is checked, printed and
//! planned by [`Pipeline`](crate::Pipeline), which alone decides when and in what form it runs.

use std::fmt;
use std::sync::Arc;

use forebay_core::Result;

use crate::{Dtype, Value};

pub(crate) mod apply;
pub(crate) mod blur;
mod charge;
mod check;
pub(crate) mod color;
pub(crate) mod convert;
pub(crate) mod crop;
mod display;
pub(crate) mod erase;
pub(crate) mod flip;
pub(crate) mod gray;
mod limit;
pub(crate) mod planar;
pub(crate) mod resize;
pub(crate) mod rotate;
pub(crate) mod wide;
pub(crate) mod window;

pub(crate) use apply::Buffers;
pub(crate) use check::Form;

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

/// How pixels between pixels are made; downscaling is always antialiased, as Pillow does it.
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

/// What surrounds a picture that is padded.
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

/// What [`Op::RandomErasing`] writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Erase {
    /// One value for all channels, or one for each.
    Values(Vec<f64>),
    /// A standard normal number for each element.
    Random,
}

/// One transform. The fields are torchvision's arguments; see the module's page.
#[derive(Clone, Debug)]
pub enum Op {
    /// Resizes a picture.
    Resize {
        /// The size aimed at.
        size: ResizeTo,
        /// The filter.
        interpolation: Interpolation,
        /// No edge becomes longer than this; only with [`ResizeTo::Edge`] and [`ResizeTo::LongEdge`].
        max_size: Option<u32>,
        /// Taken and ignored: pictures are always antialiased, as in torchvision with Pillow images.
        antialias: bool,
    },
    /// Cuts out the middle; what lies outside a smaller picture is 0.
    CenterCrop {
        /// The result's size.
        size: Size,
    },
    /// Cuts out a random place.
    RandomCrop {
        /// The result's size.
        size: Size,
        /// Padded before cropping.
        padding: Option<Padding>,
        /// Pad a picture that is too small, instead of failing.
        pad_if_needed: bool,
        /// One value, or one for each channel.
        fill: Vec<f64>,
        /// What surrounds the picture.
        padding_mode: PaddingMode,
    },
    /// Cuts out a random part of random area and aspect ratio, and resizes it.
    RandomResizedCrop {
        /// The result's size.
        size: Size,
        /// Smallest and largest part of the picture's area.
        scale: (f64, f64),
        /// Smallest and largest width ÷ height.
        ratio: (f64, f64),
        /// The filter.
        interpolation: Interpolation,
        /// Taken and ignored, as in [`Op::Resize`].
        antialias: bool,
    },
    /// Mirrors left and right, sometimes.
    RandomHorizontalFlip {
        /// How often.
        p: f64,
    },
    /// Mirrors top and bottom, sometimes.
    RandomVerticalFlip {
        /// How often.
        p: f64,
    },
    /// Adds a border.
    Pad {
        /// How wide.
        padding: Padding,
        /// One value, or one for each channel.
        fill: Vec<f64>,
        /// What it is made of.
        padding_mode: PaddingMode,
    },
    /// Makes it grey.
    Grayscale {
        /// 1, or 3 equal ones.
        num_output_channels: u32,
    },
    /// Makes it grey, sometimes, with as many channels as before.
    RandomGrayscale {
        /// How often.
        p: f64,
    },
    /// Changes brightness, contrast, saturation and hue in random order.
    ColorJitter {
        /// Factors from `.0` to `.1`; `None` leaves it.
        brightness: Option<(f64, f64)>,
        /// Factors from `.0` to `.1`; `None` leaves it.
        contrast: Option<(f64, f64)>,
        /// Factors from `.0` to `.1`; `None` leaves it.
        saturation: Option<(f64, f64)>,
        /// Turns from `.0` to `.1`, within -0.5 to 0.5; `None` leaves it.
        hue: Option<(f64, f64)>,
    },
    /// Blurs with a Gaussian of random width.
    GaussianBlur {
        /// Columns and rows of the kernel, both odd.
        kernel_size: (u32, u32),
        /// Smallest and largest standard deviation.
        sigma: (f64, f64),
    },
    /// Turns by a random angle, counter-clockwise.
    RandomRotation {
        /// Smallest and largest angle.
        degrees: (f64, f64),
        /// Nearest, bilinear or bicubic.
        interpolation: Interpolation,
        /// Enlarge the result so that nothing is cut off.
        expand: bool,
        /// Column and row of the centre; the picture's own by default.
        center: Option<(f64, f64)>,
        /// One value, or one for each channel.
        fill: Vec<f64>,
    },
    /// Overwrites a random rectangle, sometimes.
    RandomErasing {
        /// How often.
        p: f64,
        /// Smallest and largest part of the area.
        scale: (f64, f64),
        /// Smallest and largest height ÷ width.
        ratio: (f64, f64),
        /// With what.
        value: Erase,
    },
    /// A picture becomes a `float32` tensor from 0 to 1.
    ToTensor,
    /// A picture becomes a `uint8` tensor (also called `PILToTensor`).
    ToImage,
    /// Changes the type of a tensor's elements.
    ToDtype {
        /// The type.
        dtype: Dtype,
        /// Map 0 to 255 onto 0 to 1, or back.
        scale: bool,
    },
    /// Subtracts `mean` and divides by `std`.
    Normalize {
        /// One value, or one for each channel.
        mean: Vec<f64>,
        /// One value, or one for each channel.
        std: Vec<f64>,
    },
    /// A callable of the user's own.
    Custom(Arc<dyn Custom>),
}

/// A transform that forebay knows nothing about.
///
/// # Contract
/// - `apply` may be called by several threads at once, and depends on nothing but its arguments.
/// - An error is the sample's own unless its kind says otherwise.
pub trait Custom: Send + Sync {
    /// How it is called in messages and in the printed pipeline.
    fn name(&self) -> &str;
    /// The value it makes of this one; `seed` is the randomness of this sample, epoch and place in the pipeline.
    fn apply(&self, value: Value, seed: u64) -> Result<Value>;
}

impl fmt::Debug for dyn Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.name())
    }
}
