//! The table of transforms: names, arguments and types, accepted input, and how near the results are to the reference.
//!
//! Everything that lists all transforms is generated from this table: the enum [`Op`], its parser and printed form, the
//! Python package's translation of torchvision's instances, and the table in `docs/transforms.md`. A new transform is a
//! row here, an implementation of [`Transform`] for its [`args`] in a file beside this one, and a class in
//! `python/forebay/transforms.py`, which has the defaults.

use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, Result};

use super::argument::{Argument, Arguments, Setting, print};
use super::define::transforms;
use super::transform::{Of, Own, Transform};
use super::{Custom, Erase, Interpolation, Padding, PaddingMode, ResizeTo, Size};
use crate::Dtype;

/// The input of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Pictures: pixels are interpolated and recoloured as bytes, as Pillow does it.
    Images,
    /// Tensors.
    Tensors,
    /// Tensors of floats.
    FloatTensors,
    /// Pictures and tensors.
    Both,
    /// Pictures, which become tensors; tensors are left as they are.
    Conversion,
    /// The input of the nested transforms.
    Nested,
}

impl Takes {
    /// Its name in Python and in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Tensors => "tensors",
            Self::FloatTensors => "float tensors",
            Self::Both => "images, tensors",
            Self::Conversion => "images → tensors",
            Self::Nested => "as its transforms",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// torchvision's name.
    pub name: &'static str,
    /// torchvision's names of the arguments, without those that have no effect here.
    pub arguments: &'static [&'static str],
    /// Its input.
    pub takes: Takes,
    /// The reference of the results, in Markdown.
    pub reference: &'static str,
    /// The difference from the reference.
    pub difference: &'static str,
}

transforms! {
    /// Resizes a picture.
    Resize {
        /// The size aimed at.
        size: ResizeTo,
        /// The filter.
        interpolation: Interpolation,
        /// No edge becomes longer than this; only with [`ResizeTo::Edge`] and [`ResizeTo::LongEdge`].
        max_size: Option<u32>,
        /// Accepted and ignored: pictures are always antialiased, as in torchvision with Pillow images.
        antialias: bool,
    }
    takes Images, reference "`Image.resize` of Pillow 13",
    difference "exact, for nearest, bilinear, bicubic, box, hamming, lanczos";

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
        /// Accepted and ignored, as in [`Op::Resize`].
        antialias: bool,
    }
    takes Images, reference "crop, then `Image.resize`", difference "exact";

    /// Cuts out the middle; the area outside a smaller picture is 0.
    CenterCrop {
        /// The result's size.
        size: Size,
    }
    takes Both, reference "torchvision", difference "exact";

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
        /// The padding mode.
        padding_mode: PaddingMode,
    }
    takes Both, reference "torchvision", difference "exact";

    /// Adds a border.
    Pad {
        /// How wide.
        padding: Padding,
        /// One value, or one for each channel.
        fill: Vec<f64>,
        /// The padding mode.
        padding_mode: PaddingMode,
    }
    takes Both, reference "`ImageOps.expand`, `numpy.pad`", difference "exact";

    /// Mirrors left and right, sometimes.
    RandomHorizontalFlip {
        /// How often.
        p: f64,
    }
    takes Both, reference "torchvision", difference "exact";

    /// Mirrors top and bottom, sometimes.
    RandomVerticalFlip {
        /// How often.
        p: f64,
    }
    takes Both, reference "torchvision", difference "exact";

    /// Makes it grey.
    Grayscale {
        /// 1, or 3 equal ones.
        num_output_channels: u32,
    }
    takes Both, reference "`Image.convert(\"L\")`; torchvision for tensors",
    difference "exact; tensors 1e-6 (uint8: ±1)";

    /// Makes it grey, sometimes, with as many channels as before.
    RandomGrayscale {
        /// How often.
        p: f64,
    }
    takes Both, reference "the same", difference "the same";

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
    }
    takes Images, reference "`ImageEnhance`; HSV shift of torchvision", difference "exact";

    /// Blurs with a Gaussian of random width.
    GaussianBlur {
        /// Columns and rows of the kernel, both odd.
        kernel_size: (u32, u32),
        /// Smallest and largest standard deviation.
        sigma: (f64, f64),
    }
    takes Images, reference "torchvision", difference "±1 (about 2 of 100,000 values)";

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
    }
    takes Images, reference "`Image.rotate`", difference "exact, for nearest, bilinear, bicubic";

    /// Overwrites a random rectangle, sometimes.
    RandomErasing {
        /// How often.
        p: f64,
        /// Smallest and largest part of the area.
        scale: (f64, f64),
        /// Smallest and largest height ÷ width.
        ratio: (f64, f64),
        /// The fill.
        value: Erase,
    }
    takes Both, reference "torchvision", difference "exact";

    /// A picture becomes a `float32` tensor from 0 to 1.
    ToTensor
    takes Conversion, reference "`to_tensor`", difference "1e-6 relative";

    /// A picture becomes a `uint8` tensor (also called `PILToTensor`).
    ToImage
    takes Conversion, reference "`to_image`, `pil_to_tensor`", difference "exact";

    /// Changes the type of a tensor's elements.
    ToDtype {
        /// The type.
        dtype: Dtype,
        /// Map 0 to 255 onto 0 to 1, or back.
        scale: bool,
    }
    takes Tensors, reference "`to_dtype`", difference "1e-6 relative";

    /// Subtracts `mean` and divides by `std`.
    Normalize {
        /// One value, or one for each channel.
        mean: Vec<f64>,
        /// One value, or one for each channel.
        std: Vec<f64>,
    }
    takes FloatTensors, reference "`normalize`", difference "1e-6 relative";

    /// Applies its transforms in order. In a list of transforms it is replaced by its own list.
    Compose {
        /// In this order.
        transforms: Vec<Op>,
    }
    takes Nested, reference "torchvision", difference "none of its own";

    /// Applies all of its transforms in order, sometimes.
    RandomApply {
        /// In this order.
        transforms: Vec<Op>,
        /// How often.
        p: f64,
    }
    takes Nested, reference "torchvision", difference "none of its own";

    /// Applies one of its transforms.
    RandomChoice {
        /// The candidates.
        transforms: Vec<Op>,
        /// The weight of each candidate.
        p: Vec<f64>,
    }
    takes Nested, reference "torchvision", difference "none of its own";

    /// Applies all of its transforms in random order.
    RandomOrder {
        /// In any order.
        transforms: Vec<Op>,
    }
    takes Nested, reference "torchvision", difference "none of its own";
}

impl Op {
    /// Its row; a [`Custom`] has none.
    pub fn row(&self) -> Option<&'static Row> {
        match self {
            Self::Custom(_) => None,
            _ => Self::TABLE.iter().find(|row| row.name == self.name()),
        }
    }
}
