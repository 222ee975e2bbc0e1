//! One op on one value, by the book: what the planned and fused ways of the pipeline are measured against.

use forebay_core::{Error, Result, Rng};

use super::blur::Blur;
use super::convert::{Pointwise, planar, truncate};
use super::limit::check_result;
use super::planar::Planar;
use super::resize::{Job, Resampler, Source};
use super::rotate::Turn;
use super::window::{Window, extract};
use super::{Op, PaddingMode, Size, color, crop, erase, flip, gray, resize};
use crate::{Image, Tensor, TensorData, Value};

/// What is kept between pictures so that nothing is allocated for each.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) resampler: Resampler,
    pub(crate) planar: Planar,
    /// Where ops write that cannot work in place.
    pub(crate) spare: Image,
    blur: Blur,
}

impl Buffers {
    /// Gives back tables beyond what a thread may keep.
    pub(crate) fn give_back(&mut self) {
        self.resampler.give_back();
        self.planar.give_back();
    }

    /// The buffers that grow with the picture.
    pub(crate) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        [&mut self.spare.pixels, self.resampler.between_mut()].into_iter().chain(self.planar.bytes_mut())
    }
}

/// Columns and rows of a value that has them.
fn size_of(value: &Value) -> Option<(u32, u32)> {
    match value {
        Value::Image(image) => Some((image.width, image.height)),
        Value::Tensor(tensor) => Some((tensor.width, tensor.height)),
        Value::Array(_) | Value::Text(_) | Value::Bytes(_) | Value::Opaque(_) => None,
    }
}

/// Has at least one element, and as many as its shape says; otherwise a transform of the user's own made it.
fn is_whole(value: &Value) -> bool {
    let count = |channels: u32, height: u32, width: u32| channels as usize * height as usize * width as usize;
    let (expected, got, channels) = match value {
        Value::Image(Image { width, height, channels, pixels }) => {
            (count(*channels, *height, *width), pixels.len(), matches!(channels, 1 | 3))
        }
        Value::Tensor(tensor) => {
            let got = match &tensor.data {
                TensorData::U8(data) => data.len(),
                TensorData::F32(data) => data.len(),
            };
            (tensor.layout().elements(), got, true)
        }
        Value::Array(_) | Value::Text(_) | Value::Bytes(_) | Value::Opaque(_) => return true,
    };
    channels && expected == got && got > 0
}

/// One value for each channel, made from one or from as many.
fn per_channel<T>(values: &[f64], channels: u32, make: impl Fn(f64) -> T) -> Result<Vec<T>> {
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

/// Resizes a part of an image to `to`, all of it.
fn resample(mut image: Image, part: Window, to: Size, op: &Op, buffers: &mut Buffers) -> Result<Image> {
    let (Op::Resize { interpolation, .. } | Op::RandomResizedCrop { interpolation, .. }) = op else { return Ok(image) };
    let channels = image.channels as usize;
    let stride = image.width as usize * channels;
    let start = part.top as usize * stride + part.left as usize * channels;
    let source = Source { pixels: &image.pixels[start..], stride, channels, origin: (0, 0) };
    let job = Job::whole(Size { height: part.height, width: part.width }, to, *interpolation);
    buffers.resampler.run(source, &job, &mut buffers.spare.pixels)?;
    std::mem::swap(&mut image.pixels, &mut buffers.spare.pixels);
    (image.width, image.height) = (to.width, to.height);
    Ok(image)
}

impl Op {
    /// The window this op cuts out of a picture of this size; `None` for ops that do not crop or pad.
    pub(crate) fn window(&self, (width, height): (u32, u32), rng: &mut Rng) -> Option<Result<Window>> {
        match self {
            Self::CenterCrop { size } => Some(Ok(crop::center(*size, width, height))),
            Self::RandomCrop { size, padding, pad_if_needed, .. } => {
                Some(crop::random(*size, *padding, *pad_if_needed, (width, height), rng))
            }
            Self::Pad { padding, .. } => Some(Ok(Window {
                left: -i64::from(padding.left),
                top: -i64::from(padding.top),
                width: width.saturating_add(padding.left).saturating_add(padding.right),
                height: height.saturating_add(padding.top).saturating_add(padding.bottom),
            })),
            _ => None,
        }
    }

    /// What surrounds the picture when the window reaches outside.
    pub(crate) fn surrounding(&self) -> (PaddingMode, &[f64]) {
        match self {
            Self::RandomCrop { fill, padding_mode, .. } | Self::Pad { fill, padding_mode, .. } => (*padding_mode, fill),
            _ => (PaddingMode::Constant, &[0.0]),
        }
    }

    /// Does it. `rng` is this op's own stream.
    pub(crate) fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        if let Self::Custom(custom) = self {
            return custom.apply(value, rng.next_u64());
        }
        let Some(size) = size_of(&value) else { return Err(self.unfit("an object of a transform's own")) };
        if !is_whole(&value) {
            return Err(self.unfit("one without pixels, or with another number of them than its shape says"));
        }
        if let Some(window) = self.window(size, rng) {
            let (mode, fill) = self.surrounding();
            return cut(value, window?, mode, fill, buffers);
        }
        match value {
            Value::Image(image) => self.apply_to_image(image, rng, buffers),
            Value::Tensor(tensor) => self.apply_to_tensor(tensor, rng).map(Value::Tensor),
            opaque => Ok(opaque),
        }
    }

    fn apply_to_image(&self, mut image: Image, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let (width, channels) = (image.width as usize, image.channels as usize);
        let size = (image.width, image.height);
        match self {
            Self::Resize { size: to, max_size, .. } => {
                let to = resize::target(*to, *max_size, image.width, image.height)?;
                let all = Window { left: 0, top: 0, width: image.width, height: image.height };
                image = resample(image, all, to, self, buffers)?;
            }
            Self::RandomResizedCrop { size: to, scale, ratio, .. } => {
                let part = crop::random_part(*scale, *ratio, size, rng);
                image = resample(image, part, *to, self, buffers)?;
            }
            Self::RandomHorizontalFlip { p } => {
                if rng.chance(*p) {
                    flip::horizontal(&mut image.pixels, width, channels);
                }
            }
            Self::RandomVerticalFlip { p } => {
                if rng.chance(*p) {
                    flip::vertical(&mut image.pixels, width * channels);
                }
            }
            Self::Grayscale { num_output_channels } => gray::image(&mut image, *num_output_channels)?,
            Self::RandomGrayscale { p } => {
                if rng.chance(*p) {
                    let channels = image.channels;
                    gray::image(&mut image, channels)?;
                }
            }
            Self::ColorJitter { brightness, contrast, saturation, hue } => {
                for change in color::choose(*brightness, *contrast, *saturation, *hue, rng).into_iter().flatten() {
                    change.apply(&mut image);
                }
            }
            Self::GaussianBlur { kernel_size, sigma } => {
                let sigma = rng.uniform(sigma.0, sigma.1);
                buffers.blur.run(&image, *kernel_size, sigma, &mut buffers.spare)?;
                std::mem::swap(&mut image, &mut buffers.spare);
            }
            Self::RandomRotation { degrees, interpolation, expand, center, fill } => {
                let fill = per_channel(fill, image.channels, |value| value as u8)?;
                let degrees = rng.uniform(degrees.0, degrees.1);
                Turn { degrees, interpolation: *interpolation, expand: *expand, center: *center, fill: &fill }
                    .run(&image, &mut buffers.spare)?;
                std::mem::swap(&mut image, &mut buffers.spare);
            }
            Self::RandomErasing { p, scale, ratio, value } => {
                let patch = if rng.chance(*p) { erase::choose(*scale, *ratio, size, rng) } else { None };
                if let Some(patch) = patch {
                    erase::fill(patch, channels, value, rng, |channel, y, x, value| {
                        image.pixels[(y * width + x) * channels + channel] = truncate(value);
                    });
                }
            }
            Self::ToTensor => return Pointwise::Unit.tensor(planar(&image)?).map(Value::Tensor),
            Self::ToImage => return planar(&image).map(Value::Tensor),
            _ => return Err(self.unfit("an image")),
        }
        Ok(Value::Image(image))
    }

    fn apply_to_tensor(&self, mut tensor: Tensor, rng: &mut Rng) -> Result<Tensor> {
        let width = tensor.width as usize;
        let plane = width * tensor.height as usize;
        match self {
            Self::RandomHorizontalFlip { p } => {
                if rng.chance(*p) {
                    match &mut tensor.data {
                        TensorData::U8(data) => flip::horizontal(data, width, 1),
                        TensorData::F32(data) => flip::horizontal(data, width, 1),
                    }
                }
            }
            Self::RandomVerticalFlip { p } => {
                if rng.chance(*p) {
                    match &mut tensor.data {
                        TensorData::U8(data) => {
                            data.chunks_exact_mut(plane).for_each(|plane| flip::vertical(plane, width));
                        }
                        TensorData::F32(data) => {
                            data.chunks_exact_mut(plane).for_each(|plane| flip::vertical(plane, width));
                        }
                    }
                }
            }
            Self::Grayscale { .. } | Self::RandomGrayscale { .. } if !matches!(tensor.channels, 1 | 3) => {
                return Err(self.unfit(&format!("a tensor of {} channels", tensor.channels)));
            }
            Self::Grayscale { num_output_channels } => tensor = gray::tensor(tensor, *num_output_channels)?,
            Self::RandomGrayscale { p } => {
                if rng.chance(*p) {
                    let channels = tensor.channels;
                    tensor = gray::tensor(tensor, channels)?;
                }
            }
            Self::RandomErasing { p, scale, ratio, value } => {
                let size = (tensor.width, tensor.height);
                let patch = if rng.chance(*p) { erase::choose(*scale, *ratio, size, rng) } else { None };
                if let Some(patch) = patch {
                    let at = |channel: usize, y: usize, x: usize| channel * plane + y * width + x;
                    let channels = tensor.channels as usize;
                    match &mut tensor.data {
                        TensorData::U8(data) => {
                            erase::fill(patch, channels, value, rng, |c, y, x, value| {
                                data[at(c, y, x)] = truncate(value);
                            });
                        }
                        TensorData::F32(data) => {
                            erase::fill(patch, channels, value, rng, |c, y, x, value| data[at(c, y, x)] = value);
                        }
                    }
                }
            }
            // torchvision leaves what is a tensor already.
            Self::ToTensor | Self::ToImage => {}
            Self::Normalize { mean, std } => {
                let fits = |values: &[f64]| values.len() == 1 || values.len() == tensor.channels as usize;
                if !fits(mean) || !fits(std) || matches!(tensor.data, TensorData::U8(_)) {
                    return Err(self.unfit(&format!("{:?}", tensor.layout())));
                }
                tensor = self.pointwise(tensor)?;
            }
            Self::ToDtype { .. } => tensor = self.pointwise(tensor)?,
            _ => return Err(self.unfit("a tensor")),
        }
        Ok(tensor)
    }

    fn pointwise(&self, tensor: Tensor) -> Result<Tensor> {
        match Pointwise::of(self) {
            Some(change) => change.tensor(tensor),
            None => Ok(tensor),
        }
    }

    /// The error of a value that could not be foreseen: a transform of the user's own stands before.
    fn unfit(&self, got: &str) -> Error {
        let expected = match self {
            Self::ToDtype { .. } => "a tensor",
            Self::Normalize { .. } => "a float32 tensor with as many channels as it has values",
            Self::Resize { .. }
            | Self::RandomResizedCrop { .. }
            | Self::ColorJitter { .. }
            | Self::GaussianBlur { .. }
            | Self::RandomRotation { .. } => "an image",
            _ => "an image or a tensor",
        };
        Error::config(format!("{}: expected {expected}, got {got}", self.name()))
            .with_hint("a transform of your own stands before it: return what the next transform expects")
    }
}
