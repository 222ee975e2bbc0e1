//! The transforms that change each element by itself: `ToTensor`, `ToImage`, `ToDtype` and `Normalize`, one at a time. The
//! arithmetic is that of `convert`, which the fused tail of a pipeline uses too.

use forebay_core::{Result, Rng};

use super::charge::rgb_bytes;
use super::check::Check;
use super::convert::{Pointwise, planar};
use super::table::args;
use super::transform::{Of, Transform};
use super::{Buffers, Form, Op, Size};
use crate::{Dtype, Image, Tensor, TensorData, Value};

/// Sizes of the planes in bytes, and in floats before and after.
fn planes_bytes(size: Size) -> u64 {
    rgb_bytes(size) * (1 + 2 * size_of::<f32>() as u64)
}

/// The result of a conversion for a picture. Tensors are left as they are, as in torchvision.
fn converted(form: Form, dtype: Dtype) -> Form {
    match form {
        Form::Image(shape) => Form::Tensor(shape, dtype),
        _ => form,
    }
}

fn pointwise(op: &Op, tensor: Tensor) -> Result<Tensor> {
    match Pointwise::of(op) {
        Some(change) => change.tensor(tensor),
        None => Ok(tensor),
    }
}

impl Transform for args::ToTensor<'_> {
    fn check(&self, form: Form, _check: &mut Check<'_>) -> Form {
        converted(form, Dtype::F32)
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((planes_bytes(size), size))
    }

    fn image(&self, image: Image, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        Pointwise::Unit.tensor(planar(&image)?).map(Value::Tensor)
    }

    fn tensor(&self, tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        Ok(tensor)
    }
}

impl Transform for args::ToImage<'_> {
    fn check(&self, form: Form, _check: &mut Check<'_>) -> Form {
        converted(form, Dtype::U8)
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((planes_bytes(size), size))
    }

    fn image(&self, image: Image, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Value> {
        planar(&image).map(Value::Tensor)
    }

    fn tensor(&self, tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        Ok(tensor)
    }
}

impl Transform for args::ToDtype<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.expect(!matches!(form, Form::Image(_)), || {
            "expected a tensor, got an image: put ToImage before it".into()
        });
        let dtype = *self.dtype;
        check.expect(matches!(dtype, Dtype::U8 | Dtype::F32), || {
            format!("expected uint8 or float32, got {}: ask the loader for it (dtype=)", dtype.name())
        });
        match form {
            Form::Unknown => form,
            _ => Form::Tensor(form.shape(), dtype),
        }
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((planes_bytes(size), size))
    }

    fn tensor(&self, tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        pointwise(self.op(), tensor)
    }
}

impl Transform for args::Normalize<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check.expect(!matches!(form, Form::Image(_) | Form::Tensor(_, Dtype::U8)), || {
            let fix = match form {
                Form::Image(_) => "put ToTensor before it",
                _ => "put ToDtype(float32, scale=True) before it",
            };
            format!("expected a float32 tensor, got {}: {fix}", form.name())
        });
        check.channel_values("mean", self.mean, form.shape());
        check.channel_values("std", self.std, form.shape());
        check.expect(!self.std.contains(&0.0), || format!("expected std without 0, got {:?}", self.std));
        form
    }

    fn memory(&self, size: Size) -> Option<(u64, Size)> {
        Some((planes_bytes(size), size))
    }

    fn tensor(&self, tensor: Tensor, _rng: &mut Rng, _buffers: &mut Buffers) -> Result<Tensor> {
        let fits = |values: &[f64]| values.len() == 1 || values.len() == tensor.channels as usize;
        if !fits(self.mean) || !fits(self.std) || matches!(tensor.data, TensorData::U8(_)) {
            return Err(self.op().unfit(&format!("{:?}", tensor.layout())));
        }
        pointwise(self.op(), tensor)
    }
}
