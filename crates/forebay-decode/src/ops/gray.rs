//! Grey: Pillow's integer formula for pictures, torchvision's float formula for tensors.

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::{Check, Shape};
use super::table::args;
use super::transform::{Of, Transform};
use super::{Buffers, Form, Size};
use crate::memory::{collect, reserve};
use crate::{Image, Tensor, TensorData, Value};

/// ITU-R 601 luma in 16-bit fixed point, as Pillow's conversion to `L`.
#[inline]
pub(crate) fn luma(red: u8, green: u8, blue: u8) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

/// Makes a picture grey, with one or three channels.
pub(crate) fn image(image: &mut Image, channels: u32) -> Result<()> {
    match (image.channels, channels) {
        (3, 3) => {
            for pixel in image.pixels.chunks_exact_mut(3) {
                pixel.fill(luma(pixel[0], pixel[1], pixel[2]));
            }
        }
        (3, _) => {
            let count = image.pixels.len() / 3;
            for at in 0..count {
                let pixel = &image.pixels[at * 3..][..3];
                image.pixels[at] = luma(pixel[0], pixel[1], pixel[2]);
            }
            image.pixels.truncate(count);
        }
        (1, 3) => {
            let (pixels, count) = (image.pixels.iter().flat_map(|value| [*value; 3]), image.pixels.len() * 3);
            image.pixels = collect(pixels, count, "its grey pixels")?;
        }
        _ => {}
    }
    image.channels = channels;
    Ok(())
}

/// Makes a tensor grey, with one or three channels.
pub(crate) fn tensor(tensor: Tensor, channels: u32) -> Result<Tensor> {
    let Tensor { channels: had, height, width, data } = tensor;
    let plane = height as usize * width as usize;
    let weigh = |red: f32, green: f32, blue: f32| red * 0.2989 + green * 0.587 + blue * 0.114;
    let data = match data {
        TensorData::U8(data) => {
            let grey = |red, green, blue| weigh(f32::from(red), f32::from(green), f32::from(blue)) as u8;
            TensorData::U8(combine(data, plane, had, channels, grey)?)
        }
        TensorData::F32(data) => TensorData::F32(combine(data, plane, had, channels, weigh)?),
    };
    Ok(Tensor { channels, height, width, data })
}

/// Three planes into one by `grey`, repeated `channels` times.
fn combine<T: Copy>(
    mut data: Vec<T>,
    plane: usize,
    had: u32,
    channels: u32,
    grey: impl Fn(T, T, T) -> T,
) -> Result<Vec<T>> {
    if had == 3 {
        for at in 0..plane {
            data[at] = grey(data[at], data[plane + at], data[2 * plane + at]);
        }
    }
    data.truncate(plane);
    reserve(&mut data, plane * (channels as usize - 1), "its grey planes")?;
    (1..channels).for_each(|_| data.extend_from_within(..plane));
    Ok(data)
}

impl Transform for args::Grayscale<'_> {
    fn is_fixed(&self) -> bool {
        true
    }

    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        let channels = *self.num_output_channels;
        check.expect(matches!(channels, 1 | 3), || format!("expected num_output_channels 1 or 3, got {channels}"));
        form.with(Shape { channels: Some(channels), ..form.shape() })
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((rgb_bytes(size), size))
    }

    fn image(&self, mut image: Image, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        self::image(&mut image, *self.num_output_channels)?;
        Ok(Value::Image(image))
    }

    fn tensor(&self, tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        self::tensor(with_colours(self, tensor)?, *self.num_output_channels)
    }
}

impl Transform for args::RandomGrayscale<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.probability(*self.p);
        form
    }

    fn image(&self, mut image: Image, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        if rng.chance(*self.p) {
            let channels = image.channels;
            self::image(&mut image, channels)?;
        }
        Ok(Value::Image(image))
    }

    fn tensor(&self, tensor: Tensor, rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        let tensor = with_colours(self, tensor)?;
        let channels = tensor.channels;
        if rng.chance(*self.p) { self::tensor(tensor, channels) } else { Ok(tensor) }
    }
}

/// The tensor, if it has the channels of a picture.
fn with_colours(transform: &impl Of, tensor: Tensor) -> Result<Tensor> {
    match tensor.channels {
        1 | 3 => Ok(tensor),
        channels => Err(transform.op().unfit(&format!("a tensor of {channels} channels"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_has_as_many_channels_as_asked() {
        let colour = Image { width: 2, height: 1, channels: 3, pixels: vec![255, 0, 0, 10, 10, 10] };
        for (channels, expected) in [(1, vec![76, 10]), (3, vec![76, 76, 76, 10, 10, 10])] {
            let mut grey = colour.clone();
            image(&mut grey, channels).unwrap();
            assert_eq!((grey.channels, grey.pixels), (channels, expected));
        }
        let mut single = Image { width: 2, height: 1, channels: 1, pixels: vec![5, 6] };
        image(&mut single, 3).unwrap();
        assert_eq!(single.pixels, [5, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn tensor_grey_is_the_weighted_sum_of_planes() {
        let data = TensorData::F32(vec![1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let grey = tensor(Tensor { channels: 3, height: 1, width: 2, data }, 3);
        let TensorData::F32(values) = grey.unwrap().data else { panic!("floats are expected") };
        assert_eq!(values, [0.2989, 0.587, 0.2989, 0.587, 0.2989, 0.587]);
    }
}
