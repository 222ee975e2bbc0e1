//! Cutting a window out of a value of any form, and the fill values outside it.

use forebay_core::{Error, Result};

use super::convert::truncate;
use super::limit::check_result;
use super::window::{Window, extract};
use super::{Buffers, PaddingMode, Size};
use crate::{Tensor, TensorData, Value};

/// One value for each channel, from one value or from one per channel.
pub(crate) fn per_channel<T>(values: &[f64], channels: u32, make: impl Fn(f64) -> T) -> Result<Vec<T>> {
    if values.len() != 1 && values.len() != channels as usize {
        let message = format!("fill: expected 1 or {channels} values, got {}", values.len());
        return Err(Error::config(message));
    }
    Ok((0..channels as usize).map(|channel| make(values[channel.min(values.len() - 1)])).collect())
}

/// Cuts a window out of an image or of each plane of a tensor.
pub(crate) fn cut(
    value: Value,
    window: Window,
    mode: PaddingMode,
    fill: &[f64],
    buffers: &mut Buffers,
) -> Result<Value> {
    let Size { height, width } = check_result(window.width.into(), window.height.into(), "padding")?;
    match value {
        Value::Image(mut image) => {
            let fill = per_channel(fill, image.channels, |value| value as u8)?;
            buffers.spare.pixels.clear();
            extract(&image.pixels, image.width as usize, window, mode, &fill, &mut buffers.spare.pixels)?;
            std::mem::swap(&mut image.pixels, &mut buffers.spare.pixels);
            (image.width, image.height) = (width, height);
            Ok(Value::Image(image))
        }
        Value::Tensor(tensor) => {
            let (channels, plane) = (tensor.channels, tensor.width as usize * tensor.height as usize);
            let columns = tensor.width as usize;
            let data = match tensor.data {
                TensorData::U8(data) => {
                    let fill = per_channel(fill, channels, |value| truncate(value as f32))?;
                    TensorData::U8(cut_planes(&data, plane, columns, window, mode, &fill)?)
                }
                TensorData::F32(data) => {
                    let fill = per_channel(fill, channels, |value| value as f32)?;
                    TensorData::F32(cut_planes(&data, plane, columns, window, mode, &fill)?)
                }
            };
            Ok(Value::Tensor(Tensor { channels, height, width, data }))
        }
        opaque => Ok(opaque),
    }
}

fn cut_planes<T: Copy>(
    data: &[T],
    plane: usize,
    columns: usize,
    window: Window,
    mode: PaddingMode,
    fill: &[T],
) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for (plane, fill) in data.chunks_exact(plane).zip(fill.chunks_exact(1)) {
        extract(plane, columns, window, mode, fill, &mut out)?;
    }
    Ok(out)
}
