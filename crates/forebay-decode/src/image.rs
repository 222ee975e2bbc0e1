//! Pixels and tensors between decoder, transforms and batch.

use std::any::Any;

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

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `uint8`
    U8,
    /// `float32`
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
        }
    }
}

/// Shape and type of a sample in a batch: planar (`CHW`).
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
        Layout { channels: self.channels, height: self.height, width: self.width, dtype }
    }
}

/// A sample on its way through the transforms.
#[derive(Debug)]
pub enum Value {
    /// Before `ToTensor`.
    Image(Image),
    /// After it.
    Tensor(Tensor),
    /// Whatever a transform of the user's own made; only the binding knows.
    Opaque(Box<dyn Any + Send>),
}

impl Value {
    /// Bytes that it holds, as far as they are known.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Image(image) => image.pixels.len(),
            Self::Tensor(tensor) => tensor.layout().size_bytes(),
            Self::Opaque(_) => 0,
        }
    }
}
