//! Bytes → columns: a [`Recipe`] for each kind of sample, image decoders, and transforms with torchvision's names and
//! results.
//!
//! Does not know files, threads or batches: bytes and a random stream go in; one sample comes out, in its slot of the
//! batch or as a value.

mod annotator;
mod array;
mod bmp;
mod decoder;
mod decoders;
mod encode;
mod gif;
mod image;
mod jpeg;
mod memory;
mod narrow;
mod npy;
mod ops;
mod pipeline;
mod pixels;
mod planes;
mod png;
mod pnm;
mod recipe;
mod tiff;
mod webp;
mod zip;

/// For fuzzers only: invariants that hold for any bytes.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::jpeg::huffman_differential;
}

pub use annotator::Annotator;
pub use array::{Array, Dense, Endian};
pub use decoder::{Decoder, Format, Header, MAX_PIXELS, Region};
pub use decoders::Decoders;
pub use encode::{Coding, Recoded, Recoder, Recoding};
pub use image::{Detail, Dtype, Image, Layout, Order, Output, Tensor, TensorData, Value};
pub use jpeg::Landmarks;
pub use npy::write as write_npy;
pub use ops::{Argument, Custom, Erase, Interpolation, Op, Padding, PaddingMode, ResizeTo, Row, Size, Takes};
pub use pipeline::{Pipeline, Scratch, Timing};
pub use recipe::{
    ArrayArchive, BytesRecipe, Codec, CodecRecipe, ColumnKind, ColumnSpec, CsvColumn, CsvRecipe, Decoded, DocumentRule,
    Encoding, ExampleRecord, Feature, FeatureKind, Fields, FieldsRecipe, FramedRecord, HeadedArrayRecipe, InvalidText,
    JsonRecipe, LightRecipe, LimitedRecipe, Made, MappedRecipe, NamedArraysRecipe, NpyRecipe, Part, PartsRecipe,
    PixelsRecipe, RawRecipe, Recipe, RecordFormat, RecordRecipe, Sample, ScalarRecipe, SizedRecord, TextRecipe,
    TokenSpec, TokensRecipe, WantedFeature, anymap, array_names, csv_fields, features, layouts,
};
