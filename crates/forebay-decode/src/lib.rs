//! Bytes → pixels and tensors: image decoders, and transforms with torchvision's names and results.
//!
//! Knows nothing of files, threads or batches. [`Pipeline`] is the whole of it for a caller: bytes and a random
//! stream go in, one sample comes out in its place of the batch.

mod decoder;
mod image;
mod ops;
mod pipeline;

pub use decoder::{Decoder, Format, Header, MAX_PIXELS, Region};
pub use image::{Dtype, Image, Layout, Tensor, TensorData, Value};
