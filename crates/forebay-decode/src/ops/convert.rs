//! Conversion of pictures to tensors, and all elementwise ops: types, scaling, normalising.

use forebay_core::Result;

use super::Op;
use crate::memory::{collect, reserve};
use crate::narrow::{BFloat16, Half};
use crate::{Dtype, Image, Tensor, TensorData};

/// An element on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Element {
    U8(u8),
    F32(f32),
}

/// A change of each element by itself. The same functions serve tensors and the tables of the fused path, so both
/// give the same floats.
#[derive(Clone, Debug)]
pub(crate) enum Pointwise {
    /// `ToTensor`: divided by 255.
    Unit,
    /// `ToDtype(float32, scale=True)`: multiplied by 1/255, which rounds differently.
    Scaled,
    /// `ToDtype(float32)`.
    Float,
    /// `ToDtype(uint8)`; `scale` maps 0 to 1 onto 0 to 255.
    Byte { scale: bool },
    /// `Normalize`, for each channel or for all.
    Normalize { mean: Vec<f32>, std: Vec<f32> },
}

impl Pointwise {
    /// The elementwise change of an op; `None` if it is not elementwise.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        match op {
            Op::ToTensor => Some(Self::Unit),
            Op::ToDtype { dtype: Dtype::F32, scale: true } => Some(Self::Scaled),
            Op::ToDtype { dtype: Dtype::F32, scale: false } => Some(Self::Float),
            Op::ToDtype { dtype: Dtype::U8, scale } => Some(Self::Byte { scale: *scale }),
            Op::Normalize { mean, std } => {
                let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
                Some(Self::Normalize { mean: narrow(mean), std: narrow(std) })
            }
            _ => None,
        }
    }

    /// Applies the change to one element of a channel.
    pub(crate) fn element(&self, channel: usize, element: Element) -> Element {
        match (self, element) {
            (Self::Unit, Element::U8(value)) => Element::F32(f32::from(value) / 255.0),
            (Self::Scaled, Element::U8(value)) => Element::F32(f32::from(value) * (1.0 / 255.0) as f32),
            (Self::Float, Element::U8(value)) => Element::F32(f32::from(value)),
            (Self::Byte { scale: true }, Element::F32(value)) => Element::U8(truncate(value * 255.999)),
            (Self::Byte { scale: false }, Element::F32(value)) => Element::U8(truncate(value)),
            (Self::Normalize { mean, std }, Element::F32(value)) => {
                let of = |values: &[f32]| values[channel.min(values.len() - 1)];
                Element::F32((value - of(mean)) / of(std))
            }
            // Already of that type; torchvision leaves it as it is, scaled or not.
            (_, element) => element,
        }
    }

    /// Applies the change to a tensor.
    pub(crate) fn tensor(&self, tensor: Tensor) -> Result<Tensor> {
        let Tensor { channels, height, width, data } = tensor;
        let plane = (height as usize * width as usize).max(1);
        let (elements, len): (Box<dyn Iterator<Item = Element>>, usize) = match &data {
            TensorData::U8(data) => (Box::new(data.iter().map(|value| Element::U8(*value))), data.len()),
            TensorData::F32(data) => (Box::new(data.iter().map(|value| Element::F32(*value))), data.len()),
        };
        let results = elements.enumerate().map(|(at, element)| self.element(at / plane, element));
        let becomes_bytes = match (self, &data) {
            (Self::Unit | Self::Scaled | Self::Float, _) => false,
            (Self::Byte { .. }, _) => true,
            (Self::Normalize { .. }, data) => matches!(data, TensorData::U8(_)),
        };
        let data = if becomes_bytes {
            TensorData::U8(collect(results.map(Element::byte), len, "its tensor")?)
        } else {
            TensorData::F32(collect(results.map(Element::float), len, "its tensor")?)
        };
        Ok(Tensor { channels, height, width, data })
    }
}

impl Element {
    /// As `uint8`.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::U8(value) => value,
            Self::F32(value) => truncate(value),
        }
    }

    /// As `float32`.
    pub(crate) fn float(self) -> f32 {
        match self {
            Self::U8(value) => f32::from(value),
            Self::F32(value) => value,
        }
    }
}

/// As torch turns a float into `uint8`: towards zero, then modulo 256.
pub(crate) fn truncate(value: f32) -> u8 {
    value as i64 as u8
}

/// A picture as a `uint8` tensor.
pub(crate) fn planar(image: &Image) -> Result<Tensor> {
    let channels = image.channels as usize;
    let mut data = Vec::new();
    reserve(&mut data, image.pixels.len(), "its planes")?;
    for channel in 0..channels {
        data.extend(image.pixels.iter().skip(channel).step_by(channels));
    }
    Ok(Tensor { channels: image.channels, height: image.height, width: image.width, data: TensorData::U8(data) })
}

/// The result of a chain of changes for each `uint8` value in each channel.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    /// The values stay bytes.
    U8(Vec<[u8; 256]>),
    /// They become floats.
    F32(Vec<[f32; 256]>),
    /// They become floats, and 16-bit ones in the batch.
    F16(Vec<[Half; 256]>),
    /// The same with the other 16-bit type.
    BF16(Vec<[BFloat16; 256]>),
}

impl Lookup {
    /// Runs all 256 values through the chain.
    pub(crate) fn new(chain: &[Pointwise], channels: usize) -> Self {
        let through = |channel: usize, value: usize| {
            let start = Element::U8(value as u8);
            chain.iter().fold(start, |element, change| change.element(channel, element))
        };
        let channels = 0..channels;
        match through(0, 0) {
            Element::U8(_) => {
                Self::U8(channels.map(|channel| std::array::from_fn(|value| through(channel, value).byte())).collect())
            }
            Element::F32(_) => Self::F32(
                channels.map(|channel| std::array::from_fn(|value| through(channel, value).float())).collect(),
            ),
        }
    }

    /// The same in another type; floats stay floats.
    pub(crate) fn stored_as(&self, dtype: Dtype) -> Self {
        fn narrow<T>(tables: &[[f32; 256]], one: impl Fn(f32) -> T) -> Vec<[T; 256]> {
            tables.iter().map(|table| std::array::from_fn(|value| one(table[value]))).collect()
        }
        let floats = match (self, dtype) {
            (Self::U8(tables), Dtype::F32 | Dtype::F16 | Dtype::BF16) => {
                tables.iter().map(|table| table.map(f32::from)).collect::<Vec<_>>()
            }
            (Self::F32(tables), Dtype::F16 | Dtype::BF16) => tables.clone(),
            _ => return self.clone(),
        };
        match dtype {
            Dtype::F16 => Self::F16(narrow(&floats, Half::of)),
            Dtype::BF16 => Self::BF16(narrow(&floats, BFloat16::of)),
            _ => Self::F32(floats),
        }
    }

    /// How many channels it is for.
    pub(crate) fn channels(&self) -> usize {
        match self {
            Self::U8(tables) => tables.len(),
            Self::F32(tables) => tables.len(),
            Self::F16(tables) => tables.len(),
            Self::BF16(tables) => tables.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_to_unit_floats_and_back() {
        let image = Image { width: 256, height: 1, channels: 1, pixels: (0..=255).collect() };
        let there = Pointwise::Scaled.tensor(planar(&image).unwrap()).unwrap();
        let back = Pointwise::Byte { scale: true }.tensor(there).unwrap();
        assert_eq!(back.data, TensorData::U8(image.pixels));
    }

    #[test]
    fn floats_become_bytes_as_in_torch() {
        let cases = [(-1.5, 255), (-0.5, 0), (2.7, 2), (255.9, 255), (256.0, 0), (f32::NAN, 0)];
        for (value, expected) in cases {
            assert_eq!(truncate(value), expected, "{value}");
        }
    }

    #[test]
    fn lookup_is_the_chain() {
        let chain = [Pointwise::Unit, Pointwise::Normalize { mean: vec![0.485, 0.456], std: vec![0.229] }];
        let Lookup::F32(tables) = Lookup::new(&chain, 2) else { panic!("floats are expected") };
        assert_eq!(tables[1][100], (100.0f32 / 255.0 - 0.456) / 0.229);
        assert!(matches!(Lookup::new(&[], 3), Lookup::U8(tables) if tables[2][7] == 7));
    }
}
