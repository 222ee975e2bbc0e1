//! Pixels and tensors between decoder, transforms and batch.

use std::any::Any;

use forebay_core::{Element, Error, Result};

use crate::Array;

/// An 8-bit picture: interleaved (`HWC`), rows packed, 1 or 3 channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 (grey) or 3 (RGB).
    pub channels: u32,
    /// `height × width × channels` bytes.
    pub pixels: Vec<u8>,
}

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `uint8`
    U8,
    /// `float32`
    F32,
    /// `float16`: in batches only.
    F16,
    /// `bfloat16`: in batches only.
    BF16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
        }
    }

    /// The corresponding type among those of all arrays.
    pub const fn element(self) -> Element {
        match self {
            Self::U8 => Element::U8,
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::BF16 => Element::BF16,
        }
    }

    /// torch's name for it.
    pub const fn name(self) -> &'static str {
        self.element().name()
    }
}

/// The memory order of a sample's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Plane by plane (`CHW`): what torch calls contiguous.
    #[default]
    Planar,
    /// Pixel by pixel (`HWC`): what torch calls `channels_last`.
    Interleaved,
}

/// How much of a picture's detail is decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// All of it: the pixels are those of Pillow.
    #[default]
    Faithful,
    /// Where a JPEG is resized, as much as the result can show.
    Fast,
}

/// The output of a batch, beyond the result of the ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The element type; `None` keeps it. Floats are never converted to bytes, which would lose precision.
    pub dtype: Option<Dtype>,
    /// The memory order.
    pub order: Order,
}

impl Output {
    /// The layout of a tensor in the batch.
    pub fn layout(self, made: Layout) -> Result<Layout> {
        let dtype = self.dtype.unwrap_or(made.dtype);
        if dtype == Dtype::U8 && made.dtype != Dtype::U8 {
            let message =
                format!("dtype: expected transforms that end in uint8 for \"uint8\", got {}", made.dtype.name());
            let hint = "drop ToTensor, ToDtype and Normalize, or end with PILToTensor(), and normalise on the GPU: \
                        (images.float() / 255 - mean) / std";
            return Err(Error::config(message).with_hint(hint));
        }
        Ok(Layout { dtype, order: self.order, ..made })
    }
}

/// Shape, type and order of a sample in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Planes.
    pub channels: u32,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Element type.
    pub dtype: Dtype,
    /// The memory order of the elements.
    pub order: Order,
}

impl Layout {
    /// Elements of one sample.
    pub const fn elements(&self) -> usize {
        self.channels as usize * self.height as usize * self.width as usize
    }

    /// Bytes of one sample.
    pub const fn size_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }
}

/// A planar (`CHW`) tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Planes.
    pub channels: u32,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// The elements, plane by plane.
    pub data: TensorData,
}

/// Elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// `uint8`
    U8(Vec<u8>),
    /// `float32`
    F32(Vec<f32>),
}

impl Tensor {
    /// Its shape and type.
    pub fn layout(&self) -> Layout {
        let dtype = match self.data {
            TensorData::U8(_) => Dtype::U8,
            TensorData::F32(_) => Dtype::F32,
        };
        let order = Order::Planar;
        Layout { channels: self.channels, height: self.height, width: self.width, dtype, order }
    }
}

/// A sample between two transforms.
#[derive(Debug)]
pub enum Value {
    /// Before `ToTensor`.
    Image(Image),
    /// After it.
    Tensor(Tensor),
    /// An array of any shape.
    Array(Array),
    /// Text.
    Text(String),
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// A JSON document.
    Json(serde_json::Value),
    /// One value for each column, of a recipe that makes several.
    Row(Vec<Value>),
    /// A value made by a user's transform; only the binding knows its type.
    Opaque(Box<dyn Any + Send>),
}

impl Value {
    /// Its size in bytes, as far as it is known.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Image(image) => image.pixels.len(),
            Self::Tensor(tensor) => tensor.layout().size_bytes(),
            Self::Array(array) => array.bytes.len(),
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Json(value) => crate::recipe::json_bytes(value),
            Self::Row(values) => values.iter().map(Self::size_bytes).sum(),
            Self::Opaque(_) => 0,
        }
    }
}
